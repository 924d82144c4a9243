"""What members of groups ask, in plain bytes, for hundreds of connections in one process: one event loop, no threads.

JoinGroup 5, SyncGroup 3, Heartbeat 3, LeaveGroup 3, OffsetCommit 7, OffsetFetch 5, DescribeGroups 4, DeleteGroups 1 and FindCoordinator 1:
the last versions without tagged fields that know static members. A request is on its way as soon as its coroutine has run to its first wait.
"""

import asyncio
import collections
import struct

from wire import Reader, array, string

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, DELETE = 8, 9, 10, 11, 12, 13, 14, 15, 42

LOADING, UNAVAILABLE, NOT_COORDINATOR = 14, 15, 16
# What is answered by a coordinator that isn't ready: ask again.
NOT_READY = (LOADING, UNAVAILABLE, NOT_COORDINATOR)
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE, NOT_FOUND, ID_REQUIRED, FENCED = 22, 25, 27, 69, 79, 82

Joined = collections.namedtuple("Joined", "error generation protocol leader member members")
Described = collections.namedtuple("Described", "error group state members")
# Of one member of a described group.
Seen = collections.namedtuple("Seen", "id instance assignment")


class Link(asyncio.Protocol):
    """One connection. Answers go by their correlation ids, so that several requests may be under way."""

    def __init__(self, client="trouble"):
        self.client = string(client)
        self.transport, self.number, self.waiting, self.data, self.closed = None, 0, {}, bytearray(), False

    @classmethod
    async def to(cls, port, client="trouble"):
        _, link = await asyncio.get_running_loop().create_connection(lambda: cls(client), "127.0.0.1", port)
        return link

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data
        at = 0
        while len(self.data) - at >= 8:
            size, number = struct.unpack_from(">ii", self.data, at)
            if len(self.data) - at - 4 < size:
                break
            waiting = self.waiting.pop(number, None)
            if waiting and not waiting.done():
                waiting.set_result(Reader(memoryview(bytes(self.data[at + 8:at + 4 + size]))))
            at += 4 + size
        del self.data[:at]

    def connection_lost(self, error):
        self.closed = True
        for one in self.waiting.values():
            if not one.done():
                one.set_exception(ConnectionError(f"closed: {error}"))
                one.exception()  # Nobody may be waiting for it.
        self.waiting.clear()

    def ask(self, key, version, body):
        """Sends; gives what the answer comes to."""
        if self.closed:
            raise ConnectionError("closed")
        self.number += 1
        head = struct.pack(">hhi", key, version, self.number) + self.client
        self.transport.write(struct.pack(">i", len(head) + len(body)) + head + body)
        answer = self.waiting[self.number] = asyncio.get_running_loop().create_future()
        return answer

    def silence(self):
        """Nothing is read any more; the connection stays."""
        if not self.closed:
            self.transport.pause_reading()

    def close(self):
        self.closed = True
        self.transport.close()


def maybe(text):
    return b"\xff\xff" if text is None else string(text)


def blob(data):
    return struct.pack(">i", len(data)) + data


def numbers(values):
    return array([struct.pack(">i", value) for value in values])


async def join(link, group, member, instance, session_ms, rebalance_ms, protocols):
    """protocols: [(name, metadata)]"""
    r = await link.ask(JOIN, 5, string(group) + struct.pack(">ii", session_ms, rebalance_ms) + string(member) + maybe(instance)
                       + string("consumer") + array([string(name) + blob(metadata) for name, metadata in protocols]))
    r.take("i")
    error, generation = r.take("hi")
    protocol, leader, me = r.string(), r.string(), r.string()
    members = r.array(lambda: (r.string(), r.string(), bytes(r.blob() or b""))[:2])
    return Joined(error, generation, protocol, leader, me, members)


async def sync(link, group, generation, member, instance, assignments):
    """assignments: {member id: bytes}; (error, the member's own assignment)"""
    given = array([string(one) + blob(data) for one, data in assignments.items()])
    r = await link.ask(SYNC, 3, string(group) + struct.pack(">i", generation) + string(member) + maybe(instance) + given)
    r.take("i")
    return r.take("h"), bytes(r.blob() or b"")


async def heartbeat(link, group, generation, member, instance):
    r = await link.ask(HEARTBEAT, 3, string(group) + struct.pack(">i", generation) + string(member) + maybe(instance))
    r.take("i")
    return r.take("h")


async def leave(link, group, member, instance):
    r = await link.ask(LEAVE, 3, string(group) + array([string(member) + maybe(instance)]))
    r.take("i")
    error = r.take("h")
    rows = r.array(lambda: (r.string(), r.string(), r.take("h")))
    return error or (rows[0][2] if rows else 0)


async def commit(link, group, generation, member, instance, topic, offsets):
    """offsets: {partition: (offset, metadata)}; {partition: error}"""
    rows = array([struct.pack(">iqi", p, offset, -1) + string(text) for p, (offset, text) in offsets.items()])
    r = await link.ask(COMMIT, 7, string(group) + struct.pack(">i", generation) + string(member) + maybe(instance)
                       + array([string(topic) + rows]))
    r.take("i")
    return dict(row for _, rows in r.array(lambda: (r.string(), r.array(lambda: r.take("ih")))) for row in rows)


async def committed(link, group, topic, partitions):
    """(error, {partition: (offset, metadata)}); no offsets with an error of the whole"""
    r = await link.ask(FETCH, 5, string(group) + array([string(topic) + numbers(partitions)]))
    r.take("i")
    errors, rows = {0}, {}

    def partition():
        number, offset, _epoch = r.take("iqi")
        text = r.string()
        errors.add(r.take("h"))
        rows[number] = offset, text

    r.array(lambda: (r.string(), r.array(partition)))
    return r.take("h") or max(errors), rows


async def describe(link, groups):
    r = await link.ask(DESCRIBE, 4, array([string(group) for group in groups]) + b"\0")
    r.take("i")

    def member():
        one, instance, _client, _host = r.string(), r.string(), r.string(), r.string()
        r.blob()
        return Seen(one, instance, bytes(r.blob() or b""))

    def group():
        error, name, state, _type, _protocol = r.take("h"), r.string(), r.string(), r.string(), r.string()
        members = r.array(member)
        r.take("i")
        return Described(error, name, state, members)

    return r.array(group)


async def delete(link, group):
    r = await link.ask(DELETE, 1, array([string(group)]))
    r.take("i")
    return r.array(lambda: (r.string(), r.take("h")))[0][1]


async def find_coordinator(link, group):
    r = await link.ask(FIND, 1, string(group) + b"\0")
    r.take("i")
    return r.take("h")


# --- what consumers put into groups: Kafka's consumer protocol, version 0 ------------

def subscription(topic):
    return struct.pack(">h", 0) + array([string(topic)]) + blob(b"")


def assignment(topic, partitions, mark):
    return struct.pack(">h", 0) + array([string(topic) + numbers(partitions)]) + blob(mark.encode())


def read_assignment(data):
    """(partitions, what the leader wrote beside them)"""
    if not data:
        return [], None
    r = Reader(memoryview(data))
    r.take("h")
    topics = r.array(lambda: (r.string(), r.array(lambda: r.take("i"))))
    return [p for _, partitions in topics for p in partitions], bytes(r.blob() or b"").decode(errors="replace") or None
