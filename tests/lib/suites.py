"""Test suites that others wrote (tests/suites): what is known of their tests, and what a run is held against.

A suite's folder holds what pins it, and two lists:

    skips.txt   lines `test | reason`: left out when Tailrace is under test. A reason begins with one of REASONS.
    kafka.txt   what came of every test on a real Kafka, written by `tests/show/clients/2 --against kafka --write`; of a
                test that failed there, the end of what it said.

Tests are named `group:test`, and parts of a test `group:test/part`; a line of skips.txt stands for a test's parts too.
"""

import collections
import contextlib
import ctypes
import fcntl
import hashlib
import inspect
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess

import proc
from proc import TESTS, Failed

FOLDER = TESTS / "suites"
ALSO = "also fails on Kafka 4.4"
REASONS = ("transactions", "share groups", "KIP-848", "SASL/TLS/ACL", "several brokers", "client compaction", ALSO)
BUILD_LIMIT_S = 1500
SAID_LINES, SAID_WIDTH = 8, 240

# "passed", "failed" or "skipped", and what the test said.
Result = collections.namedtuple("Result", "outcome said")
# A broker that the suite is run against once: flags of `tailrace serve`, settings of Kafka, what its tests are told, and how
# long an empty group waits for more members.
Round = collections.namedtuple("Round", "flags sets environment delay_ms", defaults=((), {}, {}, 0))


class Suite:
    """One suite. Those that are one say how it is built, and how it is run against a broker."""

    name, version, limit_s = None, None, 900
    # Its address can't be chosen: it gets a network of its own, with this port.
    port = None
    rounds = (Round(),)

    @property
    def folder(self):
        return FOLDER / self.name

    @property
    def kafka(self):
        """What came of it on Kafka."""
        return self.folder / "kafka.txt"

    def has(self, _test):
        """Whether a test of the folder's list is this suite's: several may share a folder."""
        return True

    @property
    def target(self):
        path = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or proc.ROOT / "target") / "suites" / self.folder.name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def made_of(self):
        parts = [inspect.getsource(type(self).make).encode(), *(path.read_bytes() for path in self.pins())]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def build(self):
        """Makes it anew when what it is made of, or how, differs from the last build."""
        digest, stamp = self.made_of(), self.target / "built-from"
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(self.target)
            self.make()
            stamp.write_text(digest)

    def pins(self):
        """The files that the build depends on."""
        own = (path for path in self.folder.rglob("*") if path.is_file() and not (path.name == "skips.txt" or path.match("kafka*.txt")))
        return sorted(own)

    def make(self):
        raise NotImplementedError

    def run(self, broker, left_out, environment, log):
        """{test: Result} of one round; `left_out` need not be run. What it prints goes into `log`."""
        raise NotImplementedError


def play(args, log, limit_s, cwd, environment=None):
    """Runs a command whose output is wanted whatever becomes of it: (output, its exit code or None when it took too long)."""
    with open(log, "ab") as out:
        began = out.tell()
        process = proc.start(args, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cwd,
                             env={**os.environ, **(environment or {})})
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        proc.end(process, proc.signal.SIGKILL)
        code = None
    with open(log, "rb") as written:
        written.seek(began)
        return written.read().decode(errors="replace"), code


def said(lines):
    """The end of what a test said, without paths of this machine and ids drawn by chance."""
    text = [re.sub(r"(?:/[\w.@+-]+){2,}/([\w.@+-]+)", r"\1", line.strip())[:SAID_WIDTH]
            for some in lines for line in some.splitlines() if line.strip()]
    return [re.sub(r"\b[0-9a-f]{64}\b", "<id>", line) for line in list(dict.fromkeys(text))[-SAID_LINES:]]


# --- the lists ---------------------------------------------------------------

def head(test):
    """The test that a part belongs to."""
    group, colon, rest = test.partition(":")
    return group + colon + rest.partition("/")[0]


def stands_for(test, other):
    """Whether `other` is that test or a part of it."""
    return other == test or other.startswith(test + "/")


def skips(suite):
    """{test: reason}"""
    found = {}
    for number, line in enumerate((suite.folder / "skips.txt").read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        test, bar, reason = (part.strip() for part in line.partition(" | "))
        if not bar or test in found or not reason.startswith(REASONS):
            raise Failed(f"{suite.name}/skips.txt:{number}: not `test | reason` with a reason of {REASONS}: {line}")
        if suite.has(test):
            found[test] = reason
    return found


LINE = re.compile(r"(passed|failed|skipped) (\S.*?)(?: in (\d+) parts)?$")


class Peer:
    """What came of a suite on Kafka."""

    def __init__(self, suite):
        self.results, self.parts = {}, {}
        for line in suite.kafka.read_text().splitlines() if suite.kafka.exists() else ():
            if not line.startswith((" ", "#")) and line:
                found = LINE.fullmatch(line)
                if not found:
                    raise Failed(f"{suite.kafka}: {line}")
                self.results[found[2]] = found[1]
                self.parts[found[2]] = int(found[3] or 1)

    def counts(self):
        found = collections.Counter()
        for test, outcome in self.results.items():
            found[outcome] += self.parts[test]
        return found

    def of(self, test):
        """Its outcomes there, of all its parts; none when there is no such test."""
        found = {outcome for other, outcome in self.results.items() if stands_for(test, other)}
        whole = self.results.get(head(test))
        return found or ({whole} if whole and self.parts[head(test)] > 1 else set())


def write_peer(suite, results, version):
    """kafka.txt. Tests of which all parts passed take one line, if none of these is listed."""
    listed = {head(test) for test in skips(suite) if test != head(test)}
    tests = collections.defaultdict(dict)
    for test, result in sorted(results.items()):
        tests[head(test)][test] = result
    counts = collections.Counter(result.outcome for result in results.values())
    lines = [f"# {suite.name} {suite.version} on Apache Kafka {version}: {counts['passed']} passed, {counts['failed']} failed,"
             f" {counts['skipped']} skipped.",
             f"# Made by: tests/show/clients/2 --suite {suite.name} --against kafka --write"]
    for test, parts in tests.items():
        if len(parts) > 1 and test not in listed and all(result.outcome == "passed" for result in parts.values()):
            lines.append(f"passed {test} in {len(parts)} parts")
            continue
        for part, result in parts.items():
            lines.append(f"{result.outcome} {part}")
            lines += [f"    {line}" for line in (result.said if result.outcome != "passed" else ())]
    suite.kafka.write_text("\n".join(lines) + "\n")


def judge(listed, peer, results):
    """({outcome: how many}, {what is wrong: [test and why]}) of a run on Tailrace."""
    wrong = collections.defaultdict(list)
    counts = collections.Counter()
    for test, reason in listed.items():
        there = peer.of(test)
        if not there:
            wrong["listed, and there is no such test"].append(test)
        elif reason.startswith(ALSO) and there <= {"passed"}:
            wrong["listed as what fails on Kafka too, and it passes there"].append(test)
    covered = [other for other in peer.results if any(stands_for(test, other) for test in listed)]
    counts["skipped"] += sum(peer.parts[test] for test in covered)
    for test, result in results.items():
        if any(stands_for(one, test) for one in listed):
            # Counted with what is listed, unless Kafka's run didn't have this part.
            counts["skipped"] += not peer.of(test)
            continue
        counts[result.outcome] += 1
        if result.outcome == "failed":
            wrong["failed"].append(f"{test}: {' / '.join(result.said)}")
        elif result.outcome == "skipped":
            wrong["skipped, and not listed"].append(f"{test}: {' / '.join(result.said)}")
    failed = [test for test, result in results.items() if result.outcome == "failed"]
    for test in peer.results:
        ran = any(stands_for(test, other) for other in results)
        if not ran and test not in covered and not any(stands_for(one, test) for one in failed):
            wrong["didn't run"].append(test)
            counts["failed"] += 1
    return counts, wrong


# --- a network of its own ----------------------------------------------------

CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8914, 1


def system(call, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments):
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def own_network():
    """This thread, and what it starts, in a network that has nothing but a loopback of its own."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        system("unshare", CLONE_NEWNET)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
            yield
        finally:
            system("setns", before, CLONE_NEWNET)
    finally:
        os.close(before)
