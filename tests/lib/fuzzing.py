"""libFuzzer on the targets of `fuzz/`, with the stable compiler: what `cargo fuzz` would pass is passed here.

Targets of whole directories are built with the simulated runtime, in a target directory of their own. The runs begin with the committed seeds and
with what earlier runs here found worth keeping (`target/fuzz/corpus/<target>`).
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import time

import proc

FUZZ = proc.ROOT / "fuzz"
HOST = "x86_64-unknown-linux-gnu"
COVERAGE = ["-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4",
            "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters", "-Cllvm-args=-sanitizer-coverage-pc-table",
            "-Cllvm-args=-sanitizer-coverage-trace-compares", "--cfg", "fuzzing"]
SIMULATED = ("recovery", "segments")
# Target: the longest input, in bytes.
TARGETS = {"frames": 4096, "batches": 16384, "journal": 20000, "files": 20000, "recovery": 1024, "segments": 1024}
# An input that takes longer than this, or more memory, is a find.
INPUT_SECONDS, RSS_MIB = 60, 4096

STATUS = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
EXECUTED = re.compile(r"stat::number_of_executed_units: *(\d+)")
ARTIFACT = re.compile(r"Test unit written to (\S+)")


def work():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", proc.ROOT / "target")) / "fuzz"


def cargo(simulated, *args):
    """(command, environment) of a cargo command on the crate. --target keeps the flags away from build scripts."""
    flags = COVERAGE + (["--cfg", "tailrace_sim"] if simulated else [])
    folder = work() / ("sim" if simulated else "kafka")
    env = {**os.environ, "CARGO_TARGET_DIR": str(folder), "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags)}
    env.pop("RUSTFLAGS", None)
    return (["cargo", *args, "--locked", "--release", "--target", HOST, "--manifest-path", str(FUZZ / "Cargo.toml")], env,
            folder / HOST / "release")


def build(targets):
    """Builds these targets; {target: its binary}."""
    built = {}
    for simulated in (False, True):
        wanted = [t for t in targets if (t in SIMULATED) == simulated]
        if wanted:
            command, env, folder = cargo(simulated, "build", "--quiet", *[w for t in wanted for w in ("--bin", t)])
            subprocess.run(command, env=env, check=True, stdin=subprocess.DEVNULL)
            built |= {t: folder / t for t in wanted}
    return built


def selftest():
    """The crate's own tests: seeds are today's and sound, and what was found once is found no more."""
    for simulated in (False, True):
        command, env, _ = cargo(simulated, "test", "--quiet", "--tests")
        subprocess.run(command, env=env, check=True, stdin=subprocess.DEVNULL)


def again(target, path):
    return f"tests/fuzz {target} --input {path}"


def run(binary, target, seconds):
    """One run: {"executions": .., "features": .., "coverage": .., "corpus": .., "found": None or the input's path, "output": ..}"""
    kept, found = work() / "corpus" / target, work() / "found" / target
    kept.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    out = proc.run([binary, f"-max_total_time={seconds}", f"-max_len={TARGETS[target]}", f"-timeout={INPUT_SECONDS}",
                    f"-rss_limit_mb={RSS_MIB}", "-print_final_stats=1", f"-artifact_prefix={found}/", kept,
                    FUZZ / "corpus" / target], timeout=seconds + 300, check=False)
    text = (out.stdout + out.stderr).decode(errors="replace")
    status, executed, artifact = STATUS.findall(text), EXECUTED.findall(text), ARTIFACT.findall(text)
    coverage, features, corpus = (int(n) for n in status[-1]) if status else (0, 0, 0)
    return {"executions": int(executed[-1]) if executed else 0, "features": features, "coverage": coverage, "corpus": corpus,
            "good": out.returncode == 0, "found": artifact[-1] if artifact else None, "output": text}


def run_all(targets, seconds, at_once=2):
    """{target: its run}"""
    built = build(targets)
    with concurrent.futures.ThreadPoolExecutor(at_once) as some:
        runs = {target: some.submit(run, built[target], target, seconds) for target in targets}
        return {target: one.result() for target, one in runs.items()}


def prove(p, seconds, targets=tuple(TARGETS)):
    """These targets, as a part of a proof."""
    began = time.monotonic()
    finds = 0
    for target, one in run_all(list(targets), seconds).items():
        finds += not one["good"]
        p.check(f"fuzzing {target} finds nothing", one["good"],
                f"{again(target, one['found'])}\n{one['output'][-2000:]}" if not one["good"] else "")
        p.check(f"fuzzing {target} ran", one["executions"] > 0 and one["features"] > 0, one["output"][-500:])
        p.figures.update({f"fuzz_{target}_{name}": one[name] for name in ("executions", "features", "coverage")})
        p.say(f"{target}: {one['executions']} executions, {one['features']} features, {one['coverage']} places reached")
    p.figures.update(fuzz_seconds=seconds, fuzz_finds=finds)
    p.say(f"fuzzing took {time.monotonic() - began:.0f} s")
