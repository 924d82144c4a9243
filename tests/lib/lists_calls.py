"""Every call that lists or describes what a broker has, as clients/5 asks them: of nothing, of some and of all that there is."""

import dataclasses
import itertools
import socket
import statistics
import struct
import time

import messages
from differ_play import differences, short

# Keys that list or describe, besides those whose names say so.
LISTING = ("Metadata", "OffsetFetch", "ListOffsets", "FindCoordinator", "OffsetForLeaderEpoch")
# Served, told by ApiVersions, and listing nothing that a node has.
NOT_LISTS = ("DescribeQuorum",)
# Of the words and numbers of an answer that are a broker's own those that the differential proof doesn't know, or that tell nothing here.
DROPPED = ("ErrorMessage", "ThrottleTimeMs")
TOPIC, GROUP, CLIENT_METRICS = 2, 32, 16
# The id of no topic.
NOBODY = "00000000-0000-0000-0000-00000000000a"


@dataclasses.dataclass(frozen=True)
class Call:
    """`values(node, version)`: what is asked. From the version `since` on, up to `upto`."""
    label: str
    key: str
    values: object
    since: int = 0
    upto: int = 99

    def versions(self, served):
        low, high = served[self.key]
        return range(max(low, self.since), min(high, self.upto) + 1)


def all_calls(state):
    """What is asked of a node with this state."""
    topics, groups = state.topics, state.groups or ["nobody"]
    named = [*topics, "nobodys", "bad name"]
    wide = {"wide-0": range(topics["wide-0"])} if topics else {"nobodys": range(3)}
    several = topics or {"nobodys": 3}

    def resources(kind, names, keys=None):
        return [{"ResourceType": kind, "ResourceName": n, "ConfigurationKeys": keys} for n in names]

    def configs(kind, names, keys=None, told=True):
        return lambda node, version: {"Resources": resources(kind, names, keys), "IncludeSynonyms": told, "IncludeDocumentation": told}

    def offsets(timestamp, topics=several):
        def values(node, version):
            rows = [{"Name": t, "Partitions": [{"PartitionIndex": p, "Timestamp": timestamp(node)} for p in range(n)]} for t, n in topics.items()]
            return {"ReplicaId": -1, "Topics": rows, "TimeoutMs": 30000}
        return values

    def epochs(node, version):
        rows = [{"Topic": t, "Partitions": [{"Partition": p, "LeaderEpoch": node.side.epochs.get((t, p), 0)} for p in range(n)]} for t, n in several.items()]
        return {"ReplicaId": -1, "Topics": rows}

    def committed(names):
        return lambda node, version: {"GroupId": names[0], "Topics": None, "Groups": [{"GroupId": n, "Topics": None} for n in names], "RequireStable": True}

    def committed_of_named(node, version):
        group = state.everything or "nobody"
        rows = [{"Name": t, "PartitionIndexes": list(range(n + 1))} for t, n in several.items()]
        by_id = [row | {"TopicId": node.side.topic_ids.get(row["Name"], NOBODY)} for row in rows]
        return {"GroupId": group, "Topics": rows, "Groups": [{"GroupId": group, "Topics": by_id}]}

    def quotas(*components, strict=False):
        asked = [{"EntityType": kind, "MatchType": how, "Match": name} for kind, how, name in components]
        return lambda node, version: {"Components": asked, "Strict": strict}

    def listed(states=(), types=()):
        return lambda node, version: {"StatesFilter": list(states), "TypesFilter": list(types)}

    yield Call("all topics", "Metadata", lambda node, version: {"Topics": None if version else [], "AllowAutoTopicCreation": False, "IncludeClusterAuthorizedOperations": True, "IncludeTopicAuthorizedOperations": True})
    yield Call("topics by name", "Metadata", lambda node, version: {"Topics": [{"Name": t} for t in named], "AllowAutoTopicCreation": False}, since=4)
    yield Call("topics by id", "Metadata", lambda node, version: {"Topics": [{"Name": None, "TopicId": i} for i in [*map(node.side.topic_ids.get, topics), NOBODY]], "AllowAutoTopicCreation": False}, since=12)
    yield Call("no topic", "Metadata", lambda node, version: {"Topics": [], "AllowAutoTopicCreation": False}, since=1)
    yield Call("the cluster", "DescribeCluster", lambda node, version: {"IncludeClusterAuthorizedOperations": True, "EndpointType": 1, "IncludeFencedBrokers": True})
    yield Call("everything of all topics", "DescribeConfigs", configs(TOPIC, named))
    yield Call("two settings of all topics", "DescribeConfigs", configs(TOPIC, named, ["retention.ms", "cleanup.policy", "nope"], told=False))
    yield Call("all groups' settings", "DescribeConfigs", configs(GROUP, groups), since=1)
    yield Call("subscriptions", "DescribeConfigs", configs(CLIENT_METRICS, ["some"]), since=1)
    yield Call("everything that has settings", "ListConfigResources", lambda node, version: {"ResourceTypes": []})
    yield Call("topics and brokers that have settings", "ListConfigResources", lambda node, version: {"ResourceTypes": [2, 4, 2]}, since=1)
    yield Call("all partitions' sizes", "DescribeLogDirs", lambda node, version: {"Topics": None})
    yield Call("named partitions' sizes", "DescribeLogDirs", lambda node, version: {"Topics": [{"Topic": t, "Partitions": list(range(n + 1))} for t, n in several.items()]})
    yield Call("producers of all partitions", "DescribeProducers", lambda node, version: {"Topics": [{"Name": t, "PartitionIndexes": list(range(n))} for t, n in several.items()]})
    yield Call("producers of a topic", "DescribeProducers", lambda node, version: {"Topics": [{"Name": t, "PartitionIndexes": [*ps, len(ps)]} for t, ps in wide.items()]})
    yield Call("all groups", "ListGroups", listed())
    yield Call("stable groups", "ListGroups", listed(["Stable"]), since=4)
    yield Call("groups of some states", "ListGroups", listed(["completingrebalance", "EMPTY", "nope"]), since=4)
    yield Call("groups of no state", "ListGroups", listed(["nope"]), since=4)
    yield Call("classic groups", "ListGroups", listed(types=["Classic", "share"]), since=5)
    yield Call("groups of no type here", "ListGroups", listed(types=["share"]), since=5)
    yield Call("every group", "DescribeGroups", lambda node, version: {"Groups": [*groups, "nobody"], "IncludeAuthorizedOperations": True})
    yield Call("all offsets of a group that has them all", "OffsetFetch", committed([state.everything or "nobody"]), since=2)
    yield Call("all offsets of every group", "OffsetFetch", committed([*groups, "nobody"]), since=8)
    yield Call("offsets of named partitions", "OffsetFetch", committed_of_named)
    yield Call("the ends of all partitions", "ListOffsets", offsets(lambda node: -1))
    yield Call("the starts of all partitions", "ListOffsets", offsets(lambda node: -2))
    yield Call("the newest records of all partitions", "ListOffsets", offsets(lambda node: -3), since=7)
    yield Call("all partitions by time", "ListOffsets", offsets(lambda node: node.base_ms - 50))
    yield Call("the ends of all epochs", "OffsetForLeaderEpoch", epochs)
    if state.groups:
        # It makes a topic where there is none.
        yield Call("the coordinators of all groups", "FindCoordinator", lambda node, version: {"CoordinatorKeys": groups, "Key": groups[0], "KeyType": 0})
    yield Call("all quotas", "DescribeClientQuotas", quotas())
    yield Call("quotas of client ids", "DescribeClientQuotas", quotas(("client-id", 2, None), strict=True))
    yield Call("a quota", "DescribeClientQuotas", quotas(("client-id", 0, "client-0007")))
    yield Call("the default quota of users", "DescribeClientQuotas", quotas(("user", 1, None)))


def lists(served):
    """Keys of those that are served here that list or describe something."""
    return sorted(k for k in served if (k.startswith(("Describe", "List")) or k in LISTING) and k not in NOT_LISTS)


# --- pages ---------------------------------------------------------------------

def pages(node, limit, topics=()):
    """All of DescribeTopicPartitions, page by page: [(what is asked, the answer)]."""
    cursor, found = None, []
    while True:
        asked = {"Topics": [{"Name": t} for t in topics], "ResponsePartitionLimit": limit, "Cursor": cursor}
        answer = node.ask("DescribeTopicPartitions", 0, asked)
        found.append((asked, answer))
        cursor = answer["NextCursor"]
        if cursor is None or len(found) > 100000:
            return found


# --- comparing -----------------------------------------------------------------

def plain(value):
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in DROPPED}
    return [plain(v) for v in value] if isinstance(value, list) else value


def compared(node, answer):
    return node.side.normal(plain(answer), "") if isinstance(answer, dict) else answer


def apart(theirs, ours):
    """The first places where two answers differ, as text; "" when they don't."""
    if theirs == ours:
        return ""
    found = list(itertools.islice(differences(theirs, ours), 4))
    return "; ".join(f"{path or 'the answer'}: Kafka {short(a, 150)}, Tailrace {short(b, 150)}" for path, a, b in found)


# --- times ---------------------------------------------------------------------

class Reader:
    """A connection that sends frames that were made before, and drops the answers: nothing of this side's own work is in the time."""

    def __init__(self, port, timeout=120, room=1 << 20):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.room = memoryview(bytearray(room))

    def ask(self, frames):
        """Seconds from the first byte sent to the last byte read, and how many bytes came."""
        began, got = time.perf_counter(), 0
        for one in frames:
            self.socket.sendall(one)
            left = struct.unpack(">i", self.exactly(4))[0]
            got += left
            while left:
                count = self.socket.recv_into(self.room[:min(left, len(self.room))])
                if not count:
                    raise ConnectionError("closed in an answer")
                left -= count
        return time.perf_counter() - began, got

    def exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed before an answer")
            data += part
        return data

    def close(self):
        self.socket.close()


def in_turns(nodes, frames, turns, warm_s, turn_s, most=20):
    """Median times of each node, asked in turns, A B A B: [seconds]. Both are warmed before; a turn asks at least twice."""
    readers, medians = [Reader(node.port) for node in nodes], [[] for _ in nodes]
    for reader, own in zip(readers, frames):
        until = time.perf_counter() + warm_s
        for _ in range(50):
            reader.ask(own)
            if time.perf_counter() > until:
                break
    for _ in range(turns):
        for place, (reader, own) in enumerate(zip(readers, frames)):
            until, times = time.perf_counter() + turn_s, []
            while len(times) < 2 or time.perf_counter() < until and len(times) < most:
                times.append(reader.ask(own)[0])
            medians[place].append(statistics.median(times))
    for reader in readers:
        reader.close()
    return [statistics.median(m) for m in medians]
