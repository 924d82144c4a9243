"""Suites that are Go packages: module zips hold their tests. Pinned by go.mod and go.sum of the suite's folder."""

import re
import shutil

import proc
import suites
from suites import BUILD_LIMIT_S, Result, Round, Suite

# Lines of `-test.v=test2json`: what is the frame's own begins with a mark, also behind what a test left without a line's end.
RAN = re.compile(r"(?:^\s*|\x16\s*)=== (?:RUN|CONT|NAME) +(\S*)$")
ENDED = re.compile(r"(?:^\s*|\x16\s*)--- (PASS|FAIL|SKIP): (\S+) \(")
SAID = re.compile(r"^\s+(?!panic\.go)[\w./-]+\.go:\d+: |^\s{8,}\S|^panic: |^\s+testConsumer ")
PASSES = 6
OUTCOME = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


class GoSuite(Suite):
    # {group: import path}
    packages, parallel = {}, 4

    def go(self, *args):
        return proc.run(["go", "-C", self.folder, *args], timeout=BUILD_LIMIT_S).stdout.decode()

    def make(self):
        for group, package in self.packages.items():
            self.go("test", "-c", "-p", "2", "-mod=readonly", "-o", self.target / f"{group}.test", package)
            # Tests read files beside them; what some write shall not be in the cache of modules.
            beside = self.target / f"{group}.beside"
            shutil.copytree(self.go("list", "-mod=readonly", "-f", "{{.Dir}}", package).strip(), beside)
            proc.run(["chmod", "-R", "u+w", beside])

    def environment(self, broker):
        raise NotImplementedError

    def run(self, broker, left_out, environment, log):
        results = {}
        for group in self.packages:
            for test, result in self.run_package(broker, group, [t for t in left_out if t.startswith(group + ":")], environment, log).items():
                results[f"{group}:{test}"] = result
        return results

    def run_package(self, broker, group, left_out, environment, log):
        """{test: Result}. A test that panics ends them all: the others are run again then, without those that came to an end."""
        results, out = {}, [test.partition(":")[2] for test in left_out]
        for _ in range(PASSES):
            skip = "|".join("/".join(f"^{re.escape(part)}$" for part in test.split("/")) for test in out)
            output, code = suites.play(
                [self.target / f"{group}.test", "-test.v=test2json", f"-test.parallel={self.parallel}", f"-test.timeout={self.limit_s}s",
                 *([f"-test.skip={skip}"] if skip else [])], log, self.limit_s + 60, self.target / f"{group}.beside",
                {**self.environment(broker), **environment})
            found, cut_short = parse(output)
            if not found and code != 0:
                raise proc.Failed(f"{self.name}, {group}: exit {code}, and no test ran: {output[-600:]}")
            ended = {test: result for test, result in found.items() if test not in cut_short}
            if not cut_short or not ended or "panic: test timed out" in output or code is None:
                return results | found
            results |= ended
            again = {test.partition("/")[0] for test in cut_short}
            out += sorted({test if test.partition("/")[0] in again else test.partition("/")[0] for test in ended})
        raise proc.Failed(f"{self.name}, {group}: not through in {PASSES} passes")


def parse(output):
    """({test: Result}, the tests that didn't end): a test with parts counts only if it failed for itself. (`a/b` need not be a part of `a`.)"""
    outcomes, heard, current, panics = {}, {}, None, []
    for line in output.splitlines():
        if found := RAN.search(line):
            current = found[1]
            if current:
                outcomes.setdefault(current, None)
        elif found := ENDED.search(line):
            outcomes[found[2]] = OUTCOME[found[1]]
        elif SAID.match(line):
            heard.setdefault(current, []).append(line)
        if line.startswith("panic: "):
            panics.append(line)
    parents = {test.partition("/")[0] for test in outcomes if "/" in test}
    results = {}
    for test, outcome in outcomes.items():
        if (test in parents and outcome == "passed") or not (outcome == "passed" or alone(test, outcomes)):
            continue
        end = heard.get(test, [])
        results[test] = Result(outcome or "failed", suites.said(end if outcome else [*end, *panics[:1], "didn't end"]))
    return results, {test for test, outcome in outcomes.items() if outcome is None and test in results}


def alone(test, outcomes):
    """Whether no part of it came out as it did."""
    return not any(other.startswith(test + "/") and (outcome or "failed") == (outcomes[test] or "failed")
                   for other, outcome in outcomes.items())


class FranzGo(GoSuite):
    name, version = "franz-go", "1.22.3, kadm 1.20.0"
    packages = {"kgo": "github.com/twmb/franz-go/pkg/kgo", "kadm": "github.com/twmb/franz-go/pkg/kadm"}

    def environment(self, broker):
        return {"KGO_SEEDS": broker.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "50000", "KGO_LOG_LEVEL": "none"}


class KafkaGo(GoSuite):
    """It knows but one address; readers that share partitions must come into a group together; what it tests of ACLs wants an authorizer."""

    name, version, port = "kafka-go", "0.4.51", 9092
    packages = {"kafka": "github.com/segmentio/kafka-go", "topics": "github.com/segmentio/kafka-go/topics",
                "sasl": "github.com/segmentio/kafka-go/sasl"}
    rounds = (Round(delay_ms=3000, flags=("--advertise", "localhost:9092"), sets={
        "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://127.0.0.1:9192", "super.users": "User:ANONYMOUS",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "message.max.bytes": "200000000"}),)

    def environment(self, broker):
        return {"KAFKA_VERSION": "4.4.0", "KAFKA_SKIP_NETTEST": "1"}
