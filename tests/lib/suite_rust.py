"""rust-rdkafka's tests, which its crate holds.

The crate is pinned by the lock file of the matrix's driver (tests/clients/drivers/rdkafka), and what its tests are built
with by the lock file inside it.
"""

import json
import pathlib
import re
import shutil

import proc
import suites
from proc import TESTS
from suites import BUILD_LIMIT_S, Result, Round, Suite

MANIFEST = TESTS / "clients" / "drivers" / "rdkafka" / "Cargo.toml"
LOCK = MANIFEST.with_name("Cargo.lock")


def crate(name):
    """Where cargo has unpacked the crate."""
    proc.run(["cargo", "fetch", "--quiet", "--locked", "--manifest-path", MANIFEST], timeout=BUILD_LIMIT_S)
    found = json.loads(proc.run(["cargo", "metadata", "--format-version", "1", "--locked", "--offline", "--manifest-path", MANIFEST]).stdout)
    [manifest] = [package["manifest_path"] for package in found["packages"] if package["name"] == name]
    return pathlib.Path(manifest).parent


class RustRdkafka(Suite):
    """Its tests take the broker for number 0 at localhost:9092, and topics that come by being asked for to have three partitions."""

    name, version, limit_s, port = "rust-rdkafka", "0.39.0", 240, 9092
    rounds = (Round(flags=("--node-id", "0", "--num-partitions", "3"), sets={"node.id": "0", "num.partitions": "3"}),)

    @property
    def source(self):
        return self.target / "source"

    def pins(self):
        return [*super().pins(), LOCK]

    def make(self):
        shutil.copytree(crate("rdkafka"), self.source)
        # Where it lies now there is another workspace above it.
        with open(self.source / "Cargo.toml", "a") as manifest:
            manifest.write("\n[workspace]\n\n[profile.dev]\ndebug = false\n")
        tests = [w for path in sorted((self.source / "tests").glob("test_*.rs")) for w in ("--test", path.stem)]
        built = proc.run(["cargo", "test", "--quiet", "--locked", "-j", "2", "--no-run", "--message-format=json", *tests,
                          "--manifest-path", self.source / "Cargo.toml", "--target-dir", self.target / "build"], timeout=BUILD_LIMIT_S).stdout
        said = (json.loads(line) for line in built.splitlines() if line.startswith(b"{"))
        programs = {one["target"]["name"]: one["executable"] for one in said if one.get("executable") and "test" in one["target"]["kind"]}
        (self.target / "programs").write_text(json.dumps(programs))

    def run(self, broker, left_out, environment, log):
        results = {}
        for group, program in json.loads((self.target / "programs").read_text()).items():
            environment = {"KAFKA_HOST": broker.bootstrap, "KAFKA_VERSION": "4.4.0", "RUST_BACKTRACE": "0"}
            listing, _ = suites.play([program, "--list", "--format", "terse"], log, 60, self.source, environment)
            there = re.findall(r"^(\S+): test$", listing, re.M)
            out = [w for test in left_out if test.startswith(group + ":") for w in ("--skip", test.partition(":")[2])]
            output, code = suites.play([program, "--exact", *out], log, self.limit_s, self.source, environment)
            ended = dict(re.findall(r"^test (\S+) \.\.\. (ok|FAILED|ignored)", output, re.M))
            for test in there:
                if f"{group}:{test}" not in left_out:
                    results[f"{group}:{test}"] = result(test, ended.get(test), output, code)
        return results


def result(test, ended, output, code):
    if ended in ("ok", "ignored"):
        return Result("passed" if ended == "ok" else "skipped", [])
    told = re.search(rf"^---- {re.escape(test)} stdout ----\n(.*?)(?=^---- |^failures:$|\Z)", output, re.M | re.S)
    lines = told[1].splitlines() if told else []
    panic = [n for n, line in enumerate(lines) if "panicked at" in line]
    lines = lines[panic[-1]:][:4] if panic else lines
    return Result("failed", suites.said(lines if ended else [*lines, f"didn't end; exit {code}"]))
