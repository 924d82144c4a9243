"""The driver of kcat: a command line a time, its output read as JSON."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import protocol  # noqa: E402

LIMIT_S = 60
# Between key and value, and behind each message: not in any record.
KEY_END, MESSAGE_END = "\x01~key~\x02", "\x01~end~\x02"


def start(*args, **options):
    return subprocess.Popen(["kcat", *map(str, args)], stderr=subprocess.PIPE, **options)


def kcat(*args, stdin=b""):
    process = start(*args, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, error = process.communicate(stdin, timeout=LIMIT_S)
    if process.returncode:
        raise RuntimeError(error.decode(errors="replace")[-500:])
    return out


def messages(out):
    """What `-J` wrote. Bytes that are no UTF-8 stand in its strings as they are."""
    for line in out.splitlines():
        if line:
            yield json.loads(line.decode("utf-8", "surrogateescape"))


def data(text):
    return None if text is None else text.encode("utf-8", "surrogateescape")


class Driver:
    def __init__(self, bootstrap):
        self.base = ["-b", bootstrap, "-X", "broker.address.family=v4"]

    def do_hello(self):
        found = subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout
        return {"version": re.search(r"Version (\S+)", found)[1].rstrip(",") + ", librdkafka " + re.search(r"librdkafka (\d[\d.]*)", found)[1],
                "admin": protocol.admin_calls(self)}

    def do_produce(self, topic, partition, codec, records):
        """Headers, and whether an empty text is null, are said once for a call."""
        for headers, nulls, some in calls(records):
            args = ["-P", "-t", topic, "-p", partition, "-z", codec, "-D", MESSAGE_END, "-K", KEY_END,
                    "-X", "linger.ms=100", "-X", "enable.idempotence=true"]
            for name, value in headers:
                args += ["-H", name.encode() + b"=" + protocol.bytes_of(value)] if value is not None else ["-H", name]
            lines = b""
            for r in some:
                key, value = protocol.bytes_of(r["k"]) or b"", protocol.bytes_of(r["v"]) or b""
                lines += key + KEY_END.encode() + value + MESSAGE_END.encode()
            self.produce([*args, *(["-Z"] if nulls else [])], lines)

    def produce(self, args, lines):
        args = [a if isinstance(a, bytes) else str(a) for a in args]
        process = subprocess.Popen(["kcat", *self.base, *args], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        _, error = process.communicate(lines, timeout=LIMIT_S)
        if process.returncode or b"failed" in error:
            raise RuntimeError(error.decode(errors="replace")[-500:])

    def do_read(self, topic, partition, count, offset=None, time_ms=None):
        where = f"s@{time_ms}" if time_ms is not None else offset
        out = kcat(*self.base, "-C", "-q", "-J", "-t", topic, "-p", partition, "-o", where, "-c", count)
        for m in messages(out):
            pairs = m.get("headers") or []
            protocol.record(m["offset"], data(m["key"]), data(m["payload"]),
                            [(pairs[i], data(pairs[i + 1])) for i in range(0, len(pairs), 2)], m["ts"])

    def do_replay(self, topic, group, count):
        self.do_member(topic, group, 10000, tell=False)
        end = time.monotonic() + LIMIT_S
        while len(self.seen) < count and time.monotonic() < end:
            time.sleep(0.05)
        self.do_leave()
        out = kcat(*self.base, "-C", "-q", "-J", "-t", topic, "-p", 0, "-o", 0, "-c", count)
        return {"first": self.seen, "second": [m["offset"] for m in messages(out)]}

    def do_member(self, topic, group, session_ms, instance=None, tell=True):
        """It commits by itself, and ends when it has lost its broker: then it is started anew, as a person would."""
        self.seen, self.leaving, self.tell = [], False, tell
        self.member = [*self.base, "-u", "-J", "-X", "auto.offset.reset=earliest", "-X", "auto.commit.interval.ms=100",
                       "-X", f"session.timeout.ms={session_ms}", "-X", "heartbeat.interval.ms=500",
                       *(["-X", f"group.instance.id={instance}"] if instance else []), "-G", group, topic]
        self.begin()

    def begin(self):
        self.process = start(*self.member, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        for what in (self.read, self.watch):
            threading.Thread(target=what, args=(self.process,), daemon=True).start()

    def read(self, process):
        for m in messages_of(process.stdout):
            self.seen.append(m["offset"])
            if self.tell:
                protocol.say(got=[m["partition"], m["offset"]])
        process.wait()
        if not self.leaving:
            time.sleep(0.2)
            self.begin()

    def watch(self, process):
        for line in process.stderr:
            found = re.search(rb" assigned: (.*)", line)
            if found and self.tell:
                protocol.say(assigned=sorted(int(n) for n in re.findall(rb"\[(\d+)\]", found[1])))

    def do_commit(self):
        time.sleep(0.6)

    def do_leave(self):
        self.leaving = True
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LIMIT_S)

    def admin_list_topics(self):
        found = json.loads(kcat(*self.base, "-L", "-J"))
        return sorted(t["topic"] for t in found["topics"])

    def admin_describe_topic(self, topic):
        [found] = json.loads(kcat(*self.base, "-L", "-J", "-t", topic))["topics"]
        return len(found["partitions"])

    def admin_list_offsets(self, topic, partition):
        def at(time_ms):
            out = kcat(*self.base, "-Q", "-t", f"{topic}:{partition}:{time_ms}")
            return int(out.split()[-1])
        return [at(-2), at(-1)]

    def admin_describe_cluster(self):
        return len(json.loads(kcat(*self.base, "-L", "-J"))["brokers"])


def calls(records):
    """(headers, whether an empty text is null, records) for each call: as many records at once as agree about both."""
    at = 0
    while at < len(records):
        headers, nulls, some = records[at]["h"], None, []
        for r in records[at:]:
            wants = True if None in (r["k"], r["v"]) else False if "" in (r["k"], r["v"]) else None
            if r["h"] != headers or None not in (wants, nulls) and wants != nulls:
                break
            nulls = wants if nulls is None else nulls
            some.append(r)
        yield headers, bool(nulls), some
        at += len(some)


def messages_of(stream):
    for line in stream:
        yield from messages(line)


protocol.serve(Driver(sys.argv[1]))
