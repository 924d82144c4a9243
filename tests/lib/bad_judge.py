"""Who says, for spine/9, whether a broker took bad bytes as it must: an answer or a closed connection; what was refused is counted under its
name in Kafka, what closed a connection is in the log, and so is a refused batch.
"""

import socket
import time

import metrics
import proc
import wire
from bad_bytes import CLOSED, FIND_COORDINATOR, FINE, LEFT, TOPIC

CLOSING, REFUSING = "a connection is closed", "a request was refused"
# A shard writes ten lines of each kind a second; what it keeps back is told by the next, or by a last word within a second.
REST = "more connections were closed"
PACE_S = 0.12


def closings(text):
    """How many closed connections these lines of a log tell, those with a line of their own and those that others stand for."""
    told = 0
    for line in text.splitlines():
        if CLOSING in line or REST in line:
            told += (CLOSING in line) + int(line.split("kept_back=")[1].split()[0])
    return told


def outcome(port, data, leave=False):
    """"answer", "closed" or "nothing" within ten seconds."""
    one = socket.create_connection(("127.0.0.1", port), 10)
    try:
        one.sendall(data)
        if leave:
            one.shutdown(socket.SHUT_WR)
        got = one.recv(4096)
        return "answer" if got else "closed"
    except TimeoutError:
        return "nothing"
    except OSError:
        return "closed"
    finally:
        one.close()


class Judge:
    def __init__(self, p, broker, shards):
        self.p, self.broker, self.shards, self.cases, self.answers, self.closed = p, broker, shards, 0, 0, 0
        self.told = {CLOSING: 0, REFUSING: 0}
        self.numbers = set()
        self.ours = p.against == "tailrace"
        self.log_at, self.batch_at = 0, 0.0
        self.fresh_log()
        self.counted = self.refusals()

    def case(self, number):
        self.numbers.add(number)
        self.cases += 1

    def fresh_log(self):
        """What the log has got since this was last asked."""
        if not self.ours:
            return ""
        with open(self.broker.log_path, "rb") as log:
            log.seek(self.log_at)
            text = log.read()
        self.log_at += len(text)
        return text.decode(errors="replace")

    def line(self, text):
        """Waits for a line with `text`; what was read."""
        return self.until(lambda read: text in read)

    def until(self, told):
        """Waits until the log tells it; what was read."""
        read, deadline = "", time.monotonic() + 4
        while True:
            read += self.fresh_log()
            if told(read) or not self.ours or time.monotonic() > deadline:
                return read
            time.sleep(0.01)

    def refusals(self):
        """{name of an error: how often it was told}"""
        found = {}
        for name, labels, value in self.broker.metrics() if self.ours else ():
            if name == metrics.REFUSALS:
                found[labels["error"]] = found.get(labels["error"], 0) + value
        return found

    def refused(self):
        """The errors that were told since this was last asked."""
        now, before = self.refusals(), self.counted
        self.counted = now
        return {name for name, count in now.items() if count > before.get(name, 0)}

    def served(self, what):
        """Does the broker still answer, and fast?"""
        began = time.monotonic()
        try:
            connection = wire.Connection(self.broker.port, 5)
            connection.metadata([TOPIC])
            connection.close()
            good = True
        except OSError:
            good = False
        self.p.check(f"served after {what}", good and time.monotonic() - began < 2, time.monotonic() - began)
        if not self.broker.alive():
            raise proc.Failed(f"the broker ended after {what}:\n{self.broker.log_tail()}")

    def crowd(self, number, what):
        self.case(number)
        self.served(f"{number}: {what}")
        self.p.say(what)

    def coordinator(self, connection, group):
        """Waits until groups are served; the first question makes their topic."""
        def found():
            answer = connection.call(FIND_COORDINATOR, 0, wire.string(group))
            return answer.take("h") == 0
        proc.wait_for("a coordinator", found, 30, every=0.1)

    def frame(self, number, name, data, expected):
        what = f"{number}: {name}"
        self.fresh_log(), self.refused()
        result = outcome(self.broker.port, data, leave=expected == LEFT)
        self.case(number)
        self.answers += result == "answer"
        self.closed += result == "closed"
        self.p.check(f"{what}: an answer or a closed connection",
                     result == "closed" if expected in (CLOSED, LEFT) else result != "nothing", result)
        if self.ours and expected != LEFT:
            if result == "closed":
                told = closings(self.until(closings)) > 0
                self.told[CLOSING] += told
                self.p.check(f"{what}: it is closed with a line in the log", told)
            elif result == "answer" and expected != FINE:
                told = self.refused()
                self.p.check(f"{what}: the refusal is counted", told)
        self.served(what)

    def batch(self, number, name, data, version, refused):
        what = f"{number}: a batch with {name}"
        self.case(number)
        # Whatever was refused before the first of them has its lines behind it.
        time.sleep(PACE_S if time.monotonic() < self.batch_at + 0.5 else 1.1)
        connection = wire.Connection(self.broker.port, 20)
        before = connection.list_offsets(TOPIC, [0])[0][1]
        self.fresh_log(), self.refused()
        try:
            error, _ = produce(connection, data, version)
            self.answers += 1
        except OSError as ended:
            if isinstance(ended, TimeoutError):
                self.p.check(f"{what}: an answer or a closed connection", False, "nothing")
            error = -1
            self.closed += 1
            read = self.until(closings)
            self.told[CLOSING] += closings(read)
            self.p.check(f"{what}: it is closed with a line in the log", not self.ours or closings(read) > 0, read)
        else:
            if error and self.ours:
                names, read = self.refused(), self.line(REFUSING)
                lines = [line for line in read.splitlines() if REFUSING in line]
                self.told[REFUSING] += bool(lines)
                self.p.check(f"{what}: the refusal is counted", len(names) == 1, names)
                self.p.check(f"{what}: and in the log, by its name", any(name in line for name in names for line in lines), read)
        connection.close()
        self.served(what)
        connection = wire.Connection(self.broker.port, 20)
        after = connection.list_offsets(TOPIC, [0])[0][1]
        connection.close()
        if refused:
            self.p.check(f"{what}: refused", error != 0, error)
        self.p.check(f"{what}: what is refused is not appended", (error == 0) == (after > before),
                     [error, before, after])
        self.batch_at = time.monotonic()

    def one_line_a_second(self, batch, version=3):
        """A connection that sends bad batches in a loop has them all counted, and few lines."""
        self.fresh_log()
        before, sent, began = self.refusals(), 0, time.monotonic()
        connection = wire.Connection(self.broker.port, 20)
        while time.monotonic() < began + 2.5:
            produce(connection, batch, version)
            sent += 1
        connection.close()
        time.sleep(0.3)
        text = self.fresh_log()
        lines = [line for line in text.splitlines() if REFUSING in line or "more requests of a connection were refused" in line]
        counted = sum(self.refusals().values()) - sum(before.values())
        self.p.check("28: refusals of one connection are all counted", counted == sent, [counted, sent])
        self.p.check("28: and have a line a second at most", 2 <= len(lines) <= 5 < sent, [len(lines), sent])
        kept_back = sum(int(line.split("kept_back=")[1].split()[0]) for line in lines)
        self.p.check("28: which say how many they stand for",
                     kept_back + sum(REFUSING in line for line in lines) == sent, [kept_back, sent])


def produce(connection, data, version):
    """(error, base offset) of one batch to partition 0."""
    answer = connection.call(wire.PRODUCE, version, wire.produce_body(TOPIC, {0: data}, timeout_ms=5000))
    found = {}

    def partition():
        number, error, base, _ = answer.take("ihqq")
        if version >= 5:
            answer.take("q")
        found[number] = (error, base)

    answer.array(lambda: (answer.string(), answer.array(partition)))
    return found[0]
