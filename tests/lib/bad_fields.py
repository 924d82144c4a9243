"""Every field of every request broken by its schema, for clients/6: lengths, tags, texts and numbers that no client sends, of each key in each version that is advertised.

A request is made that has something in every array; then one thing in it is put wrong, the nth of its kind. What is unreadable must close the connection, with a line in the log; the rest may be answered or
closed. Each (key, version) is a step: its requests one behind the other, each on a connection of its own, then a look at the log, at the metrics and at whether the broker still answers."""

import struct

import messages
import metrics
from bad_bytes import TOPIC
from bad_judge import CLOSING, closings, outcome

# Hidden from ApiVersions, and served.
HIDDEN = {"GetTelemetrySubscriptions": (0, 0), "PushTelemetry": (0, 0)}
# Of a length that isn't its field's: the number in the list, and whether nothing can be read behind it.
LENGTHS = {"huge": (16, True), "negative": (16, True), "past the end": (16, True), "null": (16, False), "one more": (16, False)}
TAGS = {"2^31 tags": b"\x80\x80\x80\x80\x08", "a varint of ten bytes": b"\xff" * 9 + b"\x01", "a varint without end": b"\xff" * 40, "the same tag twice": b"\x02\x63\x00\x63\x00",
        "tags out of order": b"\x02\x65\x00\x63\x00", "a tag past the end": b"\x01\x63\xff\xff\xff\xff\x07"}
TEXTS = {"not UTF-8": b"\xff\xfe", "of 32,767 bytes": b"x" * 32767, "of control characters": b"\x1b[31m\n\r\0x", "of one dot": b".", "empty": b""}
ENDS = {"int8": (-128, 127), "int16": (-32768, 32767), "uint16": (65535,), "int32": (-2**31, -2, 2**31 - 1), "uint32": (2**32 - 1,), "int64": (-2**63, -2, 2**63 - 1),
        "float64": (float("nan"), float("-inf"), 1e308)}
# What a good request names, and what keeps it from changing anything. The rest has its schema's default, or what its type gives.
NAMES = {"Topic": TOPIC, "TopicName": TOPIC, "Name": TOPIC, "TopicNames": "nobodys", "ResourceName": TOPIC, "ResourceType": 2, "GroupId": "fields", "Groups": "fields", "GroupsNames": "fields", "Key": "fields",
         "CoordinatorKeys": "fields", "ValidateOnly": True, "validateOnly": True, "AllowAutoTopicCreation": False, "Acks": -1, "TransactionalId": None, "MaxWaitMs": 0, "ReplicaId": -1, "SessionEpoch": -1,
         "EntityType": "client-id", "MemberId": "nobody", "Cursor": {"TopicName": TOPIC, "PartitionIndex": 0}, "SessionTimeoutMs": 6000}
OWN = {("CreateTopics", "Name"): "fields-made", ("DeleteTopics", "Name"): "nobodys", ("AlterClientQuotas", "Key"): "producer_byte_rate", ("CreateTopics", "Value"): "1000",
       ("IncrementalAlterConfigs", "Name"): "retention.ms", ("AlterConfigs", "Name"): "retention.ms"}


class Breaker(messages._Writer):
    """Writes a request in which the `place`th thing of a kind is put wrong. `found` counts the things of that kind."""

    def __init__(self, schema, version, kind="", place=-1, how=None):
        super().__init__(schema, version)
        self.kind, self.place, self.how, self.found, self.name = kind, place, how, 0, schema["name"].removesuffix("Request")

    def turn(self, kind):
        if kind != self.kind:
            return False
        self.found += 1
        return self.found - 1 == self.place

    def length(self, size, form, flexible):
        if not self.turn("length"):
            return super().length(size, form, flexible)
        if self.how in ("past the end", "one more"):
            return super().length((size or 0) + (30000 if self.how == "past the end" else 1), form, flexible)
        if self.how == "null":
            return super().length(None, form, flexible)
        if flexible:
            return b"\xff\xff\xff\xff\x0f" if self.how == "huge" else b"\xff" * 9 + b"\x01"
        return struct.pack(">" + form, {"huge": 2**31 - 1 if form == "i" else 32767, "negative": -2}[self.how])

    def value(self, field, value, kind=None):
        kind = kind or field["type"]
        if kind == "string" and self.turn("text"):
            value = self.how
        if kind in ENDS and self.turn("number"):
            ends = ENDS[kind]
            value = ends[self.how % len(ends)]
        return super().value(field, value, kind)

    def struct(self, fields, values):
        out = super().struct(fields, values)
        if self.flexible and out.endswith(b"\0") and self.turn("tags"):
            return out[:-1] + self.how
        return out

    def default(self, field):
        """Something in every array and in every field."""
        kind, name = field["type"], field["name"]
        known = OWN.get((self.name, name), NAMES.get(name, ...))
        if kind.startswith("[]"):
            inner = kind[2:]
            item = known if known is not ... and not isinstance(known, dict) and inner == "string" else {"string": "x", "bytes": b"x"}.get(inner, 0 if inner in messages.FIXED else {})
            return [item]
        return super().default(field) if known is ... or kind not in ("string", "bool", *messages.FIXED) and not isinstance(known, dict) else known

    def write(self):
        return self.struct(messages.load(self.name + "Request")["fields"], {})


def broken(name, version):
    """(number in the list, what is wrong, the frame, whether it must be closed) of all that can be put wrong in a request."""
    schema, head = messages.load(name + "Request"), messages.head(name, version)

    def each(kind, hows):
        probe = Breaker(schema, version, kind)
        probe.write()
        for place in range(probe.found):
            for label, (number, how, closed) in hows.items():
                data = head + Breaker(schema, version, kind, place, how).write()
                yield number, f"{name} {version}: the {kind} number {place}: {label}", struct.pack(">i", len(data)) + data, closed

    yield from each("length", {how: (number, how, closed) for how, (number, closed) in LENGTHS.items()})
    yield from each("tags", {label: (9, data, True) for label, data in TAGS.items()})
    yield from each("text", {label: (45 if label in ("of one dot", "empty") else 8, data, False) for label, data in TEXTS.items()})
    yield from each("number", {f"end {which}": (34, which, False) for which in range(3)})
    good = head + Breaker(schema, version).write()
    for cut in sorted({len(head), (len(head) + len(good)) // 2, len(good) - 1} - {len(good)}):
        # Of what has no body there is nothing to cut.
        yield 16, f"{name} {version}: cut after {cut} of {len(good)} bytes", struct.pack(">i", cut) + good[:cut], cut < len(good)


def good_frame(name, version):
    data = messages.head(name, version) + Breaker(messages.load(name + "Request"), version).write()
    return struct.pack(">i", len(data)) + data


def every_field(judge, advertised):
    """All of that for every key and version of `advertised`: {name: (lowest, highest)}. How many keys and versions there were."""
    steps = 0
    for name, (low, high) in advertised.items():
        judge.fresh_log()
        closed, text = 0, ""
        for version in range(low, high + 1):
            closed_now, text_now = step(judge, name, version)
            closed, text = closed + closed_now, text + text_now
            steps += 1
        text += judge.until(lambda more: closings(text + more) >= closed)
        lines = closings(text)
        judge.told[CLOSING] += lines
        judge.p.check(f"{name}: what is closed is told in the log", lines == closed, [lines, closed])
        judge.p.say(f"every field of {name}")
    return steps


def step(judge, name, version):
    """How many connections were closed, and what the log has told so far."""
    port, closed, before = judge.broker.port, 0, malformed(judge)
    good = outcome(port, good_frame(name, version))
    judge.p.check(f"{name} {version}: the request that the others are made from is answered", good == "answer", good)
    for number, what, data, must_close in broken(name, version):
        judge.case(number)
        result = outcome(port, data)
        closed += result == "closed"
        judge.answers += result == "answer"
        judge.p.check(f"{number}: {what}: {'a closed connection' if must_close else 'an answer or a closed connection'}", result == "closed" if must_close else result != "nothing", result)
    judge.closed += closed
    text = judge.fresh_log()
    judge.p.check(f"{name} {version}: what can't be read is counted", malformed(judge) - before >= closed, [malformed(judge) - before, closed])
    judge.p.check(f"{name} {version}: no control character comes into the log", "\x1b[31m" not in text and "\0" not in text, repr(text[-300:]))
    judge.served(f"{name} {version} with every field broken")
    return closed, text


def malformed(judge):
    return metrics.total(judge.broker, metrics.MALFORMED)


def advertised(connection):
    """{name: (lowest, highest version)} of what is told and of what is hidden."""
    answer = connection.call("ApiVersions", 3, {"ClientSoftwareName": "proof", "ClientSoftwareVersion": "1"})
    names = messages.keys()
    told = {names[row["ApiKey"]]: (row["MinVersion"], row["MaxVersion"]) for row in answer["ApiKeys"]}
    return {n: (max(low, 3) if n == "Produce" else low, high) for n, (low, high) in told.items()} | HIDDEN
