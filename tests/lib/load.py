"""Load from idempotent acks=all producers (librdkafka and Java), and the one verifier of what they were promised.

A record is named by (producer, partition, sequence). The verifier takes what every producer logged as acknowledged
and what a reader found from the start of every partition, and counts:

- lost: acknowledged records that are not there;
- moved: acknowledged records at another offset than the acknowledgement said;
- duplicates and disorder: a sequence that came before in its partition, or came after a later one;
- gaps: sequences neither there nor given up by their producer;
- bad: records whose bytes are not what the producer made;
- holes: offsets that are not dense from 0 to the high watermark.
"""

import os
import pathlib
import subprocess

import broker as brokers
import proc
from proc import TESTS, Failed

SEEN = ("lost", "moved", "duplicates", "disorder", "gaps", "bad", "holes")


def program(kind):
    """The command of a load program, built when its source is newer."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or proc.ROOT / "target") / "load"
    target.mkdir(parents=True, exist_ok=True)
    if kind == "librdkafka":
        source, out = TESTS / "load" / "librdkafka" / "load.c", target / "load"
        if newer(source, out):
            proc.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", source, "-o", out, "-lrdkafka", "-lpthread"])
        return [out]
    source, out = TESTS / "load" / "java" / "Load.java", target / "Load.class"
    classpath = proc.run([brokers.PEER, "classpath"], timeout=600).stdout.decode().strip()
    if newer(source, out):
        proc.run(["javac", "-d", target, "-cp", classpath, source])
    return ["java", "-Xmx512M", "-XX:TieredStopAtLevel=1", "-cp", f"{target}:{classpath}", "Load"]


def newer(source, out):
    return not out.exists() or out.stat().st_mtime < source.stat().st_mtime


class Producer:
    """One producing process; its acknowledgements go to a file outside the broker's disk."""

    def __init__(self, kind, number, broker, topic, partitions, folder, rate, size=(20, 1200), codec="none",
                 count=None, bulk=False):
        self.number = number
        self.kind = kind
        self.path = folder / f"acked-{number}"
        with open(self.path, "wb") as out, open(folder / f"acked-{number}.err", "wb") as err:
            self.process = proc.start(
                [*program(kind), "produce", broker.bootstrap, topic, partitions, number, rate, *size, codec,
                 *([count] if count else [])], stdin=subprocess.PIPE, stdout=out, stderr=err,
                env={**os.environ, "LOAD_BULK": "1"} if bulk else None)

    def logged(self):
        """Bytes of acknowledgements so far."""
        if self.process.poll():
            raise Failed(f"producer {self.number} ({self.kind}) ended with {self.process.returncode}: "
                         + self.path.with_suffix(".err").read_text()[-1000:])
        return self.path.stat().st_size

    def finish(self, timeout=340):
        """No more records; waits until each one sent is answered."""
        self.process.stdin.close()
        return self.join(timeout)

    def join(self, timeout):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"producer {self.number} ({self.kind}) is not done after {timeout} s") from None
        self.logged()
        return self


def read(kind, broker, topic, partitions, timeout=300):
    return proc.run([*program(kind), "read", broker.bootstrap, topic, partitions], timeout=timeout).stdout


def verify(producers, found, partitions, logged=None):
    """Counts by the names above, and examples of what was wrong.

    While producers still run, give what `logged()` said before the reader began: only that much must be there, and
    gaps are not counted, as records in flight come in later.
    """
    counts = dict.fromkeys(("read", "acknowledged", "given_up", *SEEN), 0)
    examples = []

    def wrong(what, text, number=1):
        counts[what] += number
        if len(examples) < 10:
            examples.append(f"{what}: {text}")

    ends, at = {}, {}  # at: {(producer, partition): {sequence: offset}}, in the order of offsets
    next_offset = {}
    latest = {}
    for line in found.splitlines():
        word = line.split(b" ", 4)
        if word[0] == b"R":
            partition, offset, producer, sequence = map(int, word[1:])
            counts["read"] += 1
            if offset != next_offset.get(partition, 0):
                wrong("holes", f"partition {partition}: {offset} after {next_offset.get(partition, 0) - 1}")
            next_offset[partition] = offset + 1
            mine = at.setdefault((producer, partition), {})
            if sequence in mine:
                wrong("duplicates", f"{producer}/{partition}/{sequence} at {mine[sequence]} and {offset}")
            elif sequence < latest.get((producer, partition), -1):
                wrong("disorder", f"{producer}/{partition}/{sequence} at {offset} after a later one")
            mine[sequence] = offset
            latest[producer, partition] = max(sequence, latest.get((producer, partition), -1))
        elif word[0] == b"E":
            ends[int(word[1])] = (int(word[2]), int(word[3]))
        else:
            partition, offset = int(word[1]), int(word[2])
            next_offset[partition] = offset + 1
            wrong("bad", line.decode(errors="replace"))
    for partition in range(partitions):
        low, high = ends[partition]
        if low or next_offset.get(partition, 0) != high:
            wrong("holes", f"partition {partition}: from {low}, read to {next_offset.get(partition, 0)} of {high}")

    given_up = {}
    for producer in producers:
        with open(producer.path, "rb") as lines:
            for line in lines.read(-1 if logged is None else logged[producer.number]).splitlines(keepends=True):
                word = line.split() if line.endswith(b"\n") else [b""]
                if word[0] == b"A":
                    partition, offset, sequence = map(int, word[1:])
                    counts["acknowledged"] += 1
                    there = at.get((producer.number, partition), {}).get(sequence)
                    if there is None:
                        wrong("lost", f"{producer.number}/{partition}/{sequence}, acknowledged at {offset}")
                    elif there != offset:
                        wrong("moved", f"{producer.number}/{partition}/{sequence} from {offset} to {there}")
                elif word[0] == b"F":
                    counts["given_up"] += 1
                    examples.append(f"given up: {producer.number} ({producer.kind}): {line.decode().strip()}")
                    given_up.setdefault((producer.number, int(word[1])), set()).add(int(word[2]))
    for key, mine in at.items() if logged is None else ():
        missing = set(range(max(mine) + 1)) - mine.keys() - given_up.get(key, set())
        if missing:
            wrong("gaps", f"{key}: {sorted(missing)[:5]}", len(missing))
    return counts, examples
