"""librdkafka's own tests, those that need a broker, out of the crate rdkafka-sys. (Their quick size leaves out most of what they do.)

The crate is pinned by the lock file of the matrix's driver (tests/clients/drivers/rdkafka).
"""

import re
import shutil

import proc
import suite_rust
import suites
from proc import TESTS
from suites import BUILD_LIMIT_S, Peer, Result, Round, Suite

# A row of the table that the tests end with; the colours are taken out first.
ROW = re.compile(r"^\|\s*(\d{4}_\w+)\s+\|\s*(\w+)\s*\|\s*[\d.]+s \|(.*)$", re.M)
COLOUR = re.compile(r"\x1b\[[\d;]*m")
OUTCOME = {"PASSED": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
# They need no broker, are known to fail to those who wrote them, or were left out here.
NOT_ASKED_FOR = ("Filtered due to negative test flags", "included in TESTS_SKIP list")
PASSES = 8


class Librdkafka(Suite):
    """Its tests in parts, as all take long: those with a number from `first` to `last`."""

    version = "2.12.1"
    # Most want topics of four partitions to be made when they are asked for, and some want none to be.
    rounds = (Round(flags=("--num-partitions", "4"), sets={"num.partitions": "4"}),
              Round(flags=("--auto-create-topics=false",), sets={"auto.create.topics.enable": "false"}, environment={"TEST_SCENARIO": "noautocreate"}))

    def __init__(self, part, first, last):
        self.name, self.part, self.numbers = f"librdkafka-{part}", part, [f"{one:04}" for one in range(first, last + 1)]

    @property
    def folder(self):
        return suites.FOLDER / "librdkafka"

    @property
    def kafka(self):
        return self.folder / f"kafka-{self.part}.txt"

    def has(self, test):
        return number(test) in self.numbers

    @property
    def source(self):
        return self.target / "source"

    def pins(self):
        return [*super().pins(), suite_rust.LOCK]

    def make(self):
        shutil.copytree(suite_rust.crate("rdkafka-sys") / "librdkafka", self.source)
        without = [f"--disable-{what}" for what in ("ssl", "gssapi", "curl", "lz4-ext")]
        for command in (["./configure", *without], ["make", "-j2", "libs"], ["make", "-j2", "-C", "tests", "build"]):
            output, code = suites.play(command, self.target / "build.log", BUILD_LIMIT_S, self.source)
            if code != 0:
                raise proc.Failed(f"{self.name}: {' '.join(command)}: exit {code}: {output[-1500:]}")

    def run(self, broker, left_out, environment, log):
        conf = self.target / f"{self.name}.conf"
        conf.write_text(f"metadata.broker.list={broker.bootstrap}\ntest.topic.random=true\n")
        environment = {"RDKAFKA_TEST_CONF": str(conf), "TEST_KAFKA_VERSION": "4.4.0", "BROKERS": broker.bootstrap,
                       "KAFKA_PATH": str(self.folder), "KAFKA_PEER": str(TESTS / "peer" / "kafka-peer"),
                       "LD_LIBRARY_PATH": f"{self.source}/src:{self.source}/src-cpp", **environment}
        results, there = {}, set(Peer(self).results)
        # A test that hangs ends them all. They are run again then, without those that came to an end.
        for _ in range(PASSES):
            known = {*left_out, *results}
            output, code = suites.play(["stdbuf", "-oL", "./test-runner", "-L", "-p5"], log, self.limit_s, self.source / "tests",
                                       {**environment, "TESTS": ",".join(self.numbers), "TESTS_SKIP": ",".join(numbers(known, there))})
            found = rows(output)
            if not found:
                raise proc.Failed(f"{self.name}: exit {code}, and no table: {output[-900:]}")
            there |= found.keys()
            ended = {test: one for test, one in found.items() if one and test not in known}
            results |= ended
            if all(found.values()) or not ended:
                return results | {test: Result("failed", ["didn't end"]) for test, one in found.items() if not one}
        raise proc.Failed(f"{self.name}: not through in {PASSES} passes")


def rows(output):
    """{test: Result, or None if it was cut short}"""
    found = {}
    for test, state, why in ROW.findall(COLOUR.sub("", output)):
        if not why.strip().startswith(NOT_ASKED_FOR):
            found[f"broker:{test}"] = Result(OUTCOME[state], suites.said([why])) if state in OUTCOME else None
    return found


def number(test):
    return test.partition(":")[2][:4]


def numbers(known, there):
    """Tests are left out by number, and several may have one: the numbers of which all are known."""
    return sorted({number(test) for test in known} - {number(test) for test in there if test not in known})
