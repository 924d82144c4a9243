"""What clients/5 has on both brokers: topics, groups with offsets and with members, producers, records and quotas, by the same names and with the same times.

    node = Node(broker, base_ms)
    state = State.of_size(partitions, groups)
    node.fill(state)
"""

import dataclasses
import time

import proc
from differ_records import Batch
from differ_side import Side

# Offsets of one commit: more of them don't fit the largest batch that Kafka takes by default.
COMMIT = 2000
PATIENT_S = 120
# A consumer's subscription to the topic wide-0.
SUBSCRIPTION = b"\0\0\0\0\0\1\0\6wide-0\xff\xff\xff\xff"
# A coordinator that isn't ready.
NOT_YET = (14, 15, 16)


@dataclasses.dataclass(frozen=True)
class State:
    topics: dict
    # Groups that only have offsets, of so many partitions each; one that has them of all; those that have a member and an assignment, and those that wait for one.
    simple: tuple = ()
    offsets: int = 10
    everything: str = ""
    stable: tuple = ()
    waiting: tuple = ()
    # Of wide-0: partitions with records, and how many producers each.
    written: int = 0
    producers: int = 0
    quotas: int = 0

    @staticmethod
    def of_size(partitions, groups):
        """Nine parts in ten of the partitions are those of a few topics, the others have a topic each."""
        narrow, wide = partitions // 10, 9 if partitions >= 5000 else 3
        each = (partitions - narrow) // wide
        topics = {f"wide-{n}": each for n in range(wide)} | {f"narrow-{n:04}": 1 for n in range(partitions - each * wide)}
        stable, waiting = groups // 25, groups // 50
        return State(topics, tuple(f"simple-{n:04}" for n in range(groups - stable - waiting - 1)), 10, "everything", tuple(f"stable-{n}" for n in range(stable)),
                     tuple(f"waiting-{n}" for n in range(waiting)), min(100, each), 5, groups)

    @property
    def groups(self):
        return [*self.simple, *([self.everything] if self.everything else []), *self.stable, *self.waiting]

    @property
    def partitions(self):
        return sum(self.topics.values())

    def each_partition(self):
        return [(t, p) for t, count in self.topics.items() for p in range(count)]


EMPTY = State({})


def some(items, count):
    return [items[at:at + count] for at in range(0, len(items), count)]


class Node:
    """A broker, what is known of it, and how its answers look without what is its own."""

    def __init__(self, broker, base_ms):
        self.broker, self.name, self.base_ms = broker, broker.name, base_ms
        self.side = Side(broker.port, broker.name == "kafka", base_ms)
        self.side.admin.socket.settimeout(PATIENT_S)
        self.ask = self.side.admin.call

    @property
    def port(self):
        return self.broker.port

    def fill(self, state):
        self.create(state.topics)
        self.produce(state)
        self.coordinators()
        partitions = state.each_partition()
        for number, group in enumerate(state.simple):
            self.commit(group, partitions[number % 97::101][:state.offsets])
        if state.everything:
            for part in some(partitions, COMMIT):
                self.commit(state.everything, part)
        for group in (*state.stable, *state.waiting):
            self.join(group, group in state.stable)
        entries = [{"Entity": [{"EntityType": "client-id", "EntityName": f"client-{n:04}"}], "Ops": [{"Key": "producer_byte_rate", "Value": 1e9 + n, "Remove": False}]} for n in range(state.quotas)]
        for part in some(entries, 200):
            answer = self.ask("AlterClientQuotas", 1, {"Entries": part})
            self.good(answer["Entries"], "quotas")

    def good(self, rows, what):
        bad = [row for row in rows if row["ErrorCode"]]
        if bad:
            raise proc.Failed(f"{self.name}: {what}: {bad[:3]}")

    def create(self, topics):
        wide = [t for t, count in topics.items() if count > 1]
        for part in [[t] for t in wide] + some([t for t in topics if topics[t] == 1], 200):
            asked = [{"Name": t, "NumPartitions": topics[t], "ReplicationFactor": 1} for t in part]
            self.good(self.ask("CreateTopics", 5, {"Topics": asked, "timeoutMs": PATIENT_S * 1000})["Topics"], "topics")
        proc.wait_for(f"leaders of {self.name}", lambda: self.led(topics), PATIENT_S, every=0.2)

    def led(self, topics):
        """Whether every partition has a leader that serves; ids and epochs are noted."""
        found = {t["Name"]: t for t in self.ask("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": False})["Topics"]}
        if not all(t in found and len(found[t]["Partitions"]) == count and not any(p["ErrorCode"] for p in found[t]["Partitions"]) for t, count in topics.items()):
            return False
        for name, topic in found.items():
            self.side.topic_ids[name], self.side.id_names[topic["TopicId"]] = topic["TopicId"], f"id of {name}"
            for one in topic["Partitions"]:
                self.side.epochs[name, one["PartitionIndex"]] = one["LeaderEpoch"]
        return self.side.led(topics)

    def produce(self, state):
        """Three batches of three records each, in three codecs; then some idempotent producers."""
        for partition in range(state.written):
            batches = [Batch(tuple((b"k", b"v%d" % n, (), ms) for n, ms in enumerate(times)), codec) for codec, times in ((0, (-1000, -1000, -50)), (2, (0, -50, 0)), (4, (-1000, 0, -1000)))]
            for number in range(state.producers if partition < 20 else 0):
                answer = proc.wait_for("a producer's id", lambda: self.producer_id(), PATIENT_S, every=0.1)
                slot = f"{partition}/{number}"
                self.side.producers[slot] = answer
                self.side.producer_names[answer[0]] = f"producer {slot}"
                batches.append(Batch(((b"k", b"v", (), 0),) * (number + 1), 0, "", slot, 0))
            for batch in batches:
                pid, epoch = self.side.producers.get(batch.producer, (-1, -1))
                asked = {"TransactionalId": None, "Acks": -1, "TimeoutMs": 30000, "TopicData": [{"Name": "wide-0", "PartitionData": [{"Index": partition, "Records": batch.bytes(self.base_ms, pid, epoch)}]}]}
                answer = self.ask("Produce", 9, asked)
                self.good([p for t in answer["Responses"] for p in t["PartitionResponses"]], "records")

    def producer_id(self):
        answer = self.ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})
        return None if answer["ErrorCode"] else (answer["ProducerId"], answer["ProducerEpoch"])

    def coordinators(self):
        """Every partition of __consumer_offsets is there and loaded."""
        self.ask("FindCoordinator", 4, {"CoordinatorKeys": ["anybody"]})
        names = [f"anybody-{n}" for n in range(400)]

        def ready():
            asked = {"Groups": [{"GroupId": n, "Topics": None} for n in names]}
            return not any(g["ErrorCode"] for g in self.ask("OffsetFetch", 8, asked)["Groups"])

        proc.wait_for(f"coordinators of {self.name}", ready, PATIENT_S, every=0.2)
        self.led({})

    def commit(self, group, partitions):
        topics = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append({"PartitionIndex": partition, "CommittedOffset": partition % 7, "CommittedLeaderEpoch": -1, "CommittedMetadata": f"of {group}"[:partition % 12] or None})
        rows = [{"Name": topic, "Partitions": parts} for topic, parts in topics.items()]
        asked = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": rows}
        deadline = time.monotonic() + PATIENT_S
        while True:
            told = [p for t in self.ask("OffsetCommit", 9, asked)["Topics"] for p in t["Partitions"]]
            if not any(p["ErrorCode"] in NOT_YET for p in told) or time.monotonic() > deadline:
                return self.good(told, f"a commit of {group}")
            time.sleep(0.1)

    def join(self, group, whole):
        """A member of its own, which is never heard of again; with `whole` it has given itself an assignment."""
        asked = {"GroupId": group, "SessionTimeoutMs": 1800000, "RebalanceTimeoutMs": 1800000, "MemberId": "", "ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": SUBSCRIPTION}]}
        joined = self.ask("JoinGroup", 2, asked)
        self.good([joined], f"a member of {group}")
        self.side.member_names[joined["MemberId"]] = f"member of {group}"
        if whole:
            mine = [{"MemberId": joined["MemberId"], "Assignment": b"all of it"}]
            self.good([self.ask("SyncGroup", 2, {"GroupId": group, "GenerationId": joined["GenerationId"], "MemberId": joined["MemberId"], "Assignments": mine})], f"an assignment of {group}")
