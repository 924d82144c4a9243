"""Proofs that are cargo tests: found by name, run, and their figures taken from their output.

A test target `<crate>/tests/<prefix>*.rs` prints lines `SHOW name=number name=number ...`; the numbers of one name are
added up over all of them. The size comes in by environment variables.
"""

import concurrent.futures
import os
import re

import proc

CRATES = ("engine", "raftgroup", "cluster", "kafka-api", ".")
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


def simulation(environment):
    return {**environment, "RUSTFLAGS": "--cfg tailrace_sim", "CARGO_TARGET_DIR": str(proc.ROOT / "target-sim")}


def fuzz(p, seconds):
    """Runs every fuzz target so long, two at a time; those that need the simulated runtime say so in their file. What
    one finds it prints with the command that does it again; that is what the check shows."""
    found = [(crate, name) for crate, names in targets("fuzz_").items() for name in names]
    p.check("there are fuzz targets", found)
    environment = {**os.environ, "FUZZ_SECONDS": str(seconds), "RUST_BACKTRACE": "0"}

    def cargo(crate, name, *more):
        manifest = proc.ROOT / crate / "Cargo.toml"
        simulated = "#![cfg(tailrace_sim)]" in (proc.ROOT / crate / "tests" / f"{name}.rs").read_text()
        return proc.run(["cargo", "test", "--quiet", "--locked", "--profile", "ci", "--manifest-path", manifest,
                         "--test", name, *more], env=simulation(environment) if simulated else environment,
                        timeout=seconds + 1200, check=False)

    shown = {}
    for crate, name in found:
        cargo(crate, name, "--no-run")
    with concurrent.futures.ThreadPoolExecutor(2) as two:
        runs = {name: two.submit(cargo, crate, name, "--", "--nocapture") for crate, name in found}
        for name, ran in runs.items():
            out = ran.result()
            text = (out.stdout + out.stderr).decode(errors="replace")
            p.check(f"{name} finds nothing", out.returncode == 0, text[-3000:])
            p.check(f"{name} ran", f" {name[len('fuzz_'):]}_executions=" in text)
            add(shown, text)
    p.figures.update(shown)
    return shown


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
        p.check(f"cargo test of {crate}: {' '.join(names)}", out.returncode == 0, text[-1500:])
        add(shown, text)
    p.figures.update(shown)
    return shown
