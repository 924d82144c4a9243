"""Proofs that are cargo tests: found by name, run, and their figures taken from their output.

A test target `<crate>/tests/<prefix>*.rs` prints lines `SHOW name=number name=number ...`; the numbers of one name are
added up over all of them. The size comes in by environment variables.
"""

import os
import re

import proc

CRATES = ("engine", "raftgroup", "cluster", "kafka-api", "node", ".")
SHOWN = re.compile(r"\bSHOW ((?:\w+=[\d.]+ ?)+)")


def targets(prefix):
    """{crate: [test target]}"""
    found = {}
    for crate in CRATES:
        for path in sorted((proc.ROOT / crate / "tests").glob(f"{prefix}*.rs")):
            found.setdefault(crate, []).append(path.stem)
    return found


def add(shown, text):
    for line in SHOWN.findall(text):
        for pair in line.split():
            name, number = pair.split("=")
            shown[name] = shown.get(name, 0) + (float(number) if "." in number else int(number))


def panics(text):
    """What failed tests said, a few of them; the end of the output when none did."""
    found = re.findall(r"panicked at [^\n]*\n[^\n]*(?:\n[^\n]*)?", text)
    return found[:5] or [text[-1500:]]


def simulation(environment):
    return {**environment, "RUSTFLAGS": "--cfg tailrace_sim", "CARGO_TARGET_DIR": str(proc.ROOT / "target-sim")}


def run(p, prefix, environment, simulated=False, timeout=1800):
    env = {**os.environ, **environment}
    if simulated:
        env = simulation(env)
    shown, found = {}, targets(prefix)
    p.check(f"there are tests named {prefix}*", found)
    for crate, names in found.items():
        out = proc.run(["cargo", "test", "--quiet", "--locked", "--profile", "ci", "--manifest-path",
                        proc.ROOT / crate / "Cargo.toml", *[w for n in names for w in ("--test", n)],
                        "--", "--nocapture"], env=env, timeout=timeout, check=False)
        text = (out.stdout + out.stderr).decode(errors="replace")
        p.check(f"cargo test of {crate}: {' '.join(names)}", out.returncode == 0,
                "; ".join(panics(text)))
        add(shown, text)
    p.figures.update(shown)
    return shown
