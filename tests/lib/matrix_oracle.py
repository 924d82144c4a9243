"""The broker of the matrix of clients/1, asked in the protocol's own bytes, so that no client is believed about itself."""

import contextlib
import struct

import messages
import proc
import wire
from proc import Failed

WAIT_S = 60
NO_LEADER_YET = (3, 5, 6)


def must(holds, what):
    if not holds:
        raise Failed(what)


class Oracle:
    """Each question is on a connection of its own, as brokers are restarted in between."""

    def __init__(self, broker):
        self.broker = broker

    def call(self, name, version, values):
        with messages.Connection(self.broker.port) as connection:
            return connection.call(name, version, values)

    def create(self, topic, partitions, **config):
        answer = self.call("CreateTopics", 5, {"Topics": [{
            "Name": topic, "NumPartitions": partitions, "ReplicationFactor": 1,
            "Configs": [{"Name": name.replace("_", "."), "Value": value} for name, value in config.items()]}], "timeoutMs": 30000})
        must(answer["Topics"][0]["ErrorCode"] == 0, f"create {topic}: {answer}")
        # Whoever asks next must find it.
        proc.wait_for(f"{topic} has leaders", lambda: self.partitions(topic) == partitions, WAIT_S)

    def partitions(self, topic):
        """How many of its partitions have a leader; None if there is no such topic."""
        [found] = self.call("Metadata", 7, {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False})["Topics"]
        return None if found["ErrorCode"] else sum(p["ErrorCode"] == 0 for p in found["Partitions"])

    def config(self, topic, name):
        answer = self.call("DescribeConfigs", 1, {"Resources": [{"ResourceType": 2, "ResourceName": topic, "ConfigurationKeys": [name]}]})
        return answer["Results"][0]["Configs"][0]["Value"]

    def offset(self, topic, partition, timestamp):
        answer = self.call("ListOffsets", 2, {"ReplicaId": -1, "Topics": [{
            "Name": topic, "Partitions": [{"PartitionIndex": partition, "Timestamp": timestamp}]}]})
        return answer["Topics"][0]["Partitions"][0]["Offset"]

    def produce(self, topic, partition, values):
        said = []

        def written():
            with contextlib.closing(wire.Connection(self.broker.port)) as connection:
                said[:] = connection.produce(topic, {partition: wire.batch(values)})[partition]
            # Where the leader is may not be known yet to who leads.
            must(said[0] in (0, *NO_LEADER_YET), f"produce to {topic}: error {said[0]}")
            return said[0] == 0
        proc.wait_for(f"a leader of {topic}", written, 10)
        return said[1]

    def stored_codecs(self, topic, partition=0):
        """Of every batch of a partition."""
        found, at, end = [], 0, self.offset(topic, partition, -1)
        with contextlib.closing(wire.Connection(self.broker.port)) as connection:
            while at < end:
                error, _, data = connection.fetch(topic, {partition: at}, partition_max_bytes=8 << 20)[partition]
                some = wire.batches(data)
                must(error == 0 and some, f"fetch of {topic} from {at}: error {error}, {len(data)} bytes")
                found += [b["codec"] for b in some]
                at = some[-1]["last_offset"] + 1
        return found

    def group(self, group):
        """(state, {member id: (instance, partitions)})"""
        [found] = self.call("DescribeGroups", 4, {"Groups": [group]})["Groups"]
        return found["GroupState"], {m["MemberId"]: (m["GroupInstanceId"], assigned(m["MemberAssignment"])) for m in found["Members"]}

    def committed(self, group, topic, partitions):
        answer = self.call("OffsetFetch", 5, {"GroupId": group, "Topics": [{"Name": topic, "PartitionIndexes": list(range(partitions))}]})
        return {p["PartitionIndex"]: p["CommittedOffset"] for p in answer["Topics"][0]["Partitions"]}

    def commit(self, group, topic, offsets):
        answer = self.call("OffsetCommit", 2, {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": [{
            "Name": topic, "Partitions": [{"PartitionIndex": p, "CommittedOffset": o} for p, o in offsets.items()]}]})
        must(all(p["ErrorCode"] == 0 for p in answer["Topics"][0]["Partitions"]), f"commit for {group}: {answer}")

    def generation(self, group, member, instance):
        """Told by no answer: the one with which the member's heartbeat is good."""
        for number in range(1, 60):
            beat = {"GroupId": group, "GenerationId": number, "MemberId": member, "GroupInstanceId": instance}
            if self.call("Heartbeat", 3, beat)["ErrorCode"] == 0:
                return number
        raise Failed(f"{group}: no generation is {member}'s")


def assigned(data):
    """Partitions of a consumer's assignment, whatever its version."""
    if not data:
        return []
    at, found = 2, []
    [topics] = struct.unpack_from(">i", data, at)
    at += 4
    for _ in range(topics):
        [size] = struct.unpack_from(">h", data, at)
        at += 2 + size
        [count] = struct.unpack_from(">i", data, at)
        found += struct.unpack_from(f">{count}i", data, at + 4)
        at += 4 + 4 * count
    return sorted(found)
