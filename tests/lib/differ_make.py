"""Random histories for the differential proof: sequences of requests, made from the protocol's own schemas. What a field may hold is told at the end, by its path or its name; what isn't told is drawn
by its type. Four requests in ten are odd: each of their fields may hold what it must not; a few are cut, have bytes behind them, or one that is another."""

import random

import messages
from differ_records import FAULTS, Batch
from differ_side import NOBODY, Ref, Step

# How often each is asked.
KEYS = {"Produce": 12, "Fetch": 13, "ListOffsets": 5, "Metadata": 4, "OffsetCommit": 6, "OffsetFetch": 5, "FindCoordinator": 2, "JoinGroup": 8, "Heartbeat": 4, "LeaveGroup": 3, "SyncGroup": 6,
        "DescribeGroups": 3, "ListGroups": 2, "ApiVersions": 2, "CreateTopics": 5, "DeleteTopics": 2, "DeleteRecords": 3, "InitProducerId": 3, "OffsetForLeaderEpoch": 3, "DescribeConfigs": 4,
        "AlterConfigs": 2, "AlterReplicaLogDirs": 1, "DescribeLogDirs": 2, "CreatePartitions": 3, "DeleteGroups": 2, "ElectLeaders": 2, "IncrementalAlterConfigs": 4, "OffsetDelete": 2, "DescribeCluster": 1,
        "DescribeProducers": 2, "GetTelemetrySubscriptions": 1, "PushTelemetry": 2, "ListConfigResources": 1,
        "DescribeTopicPartitions": 3}
ODD, ODD_FIELD, MANGLED = 0.4, 0.12, 0.04
# What a byte more or less may turn into something else for all histories, or for a long time.
WHOLE = ("CreateTopics", "DeleteTopics", "JoinGroup", "AlterConfigs", "IncrementalAlterConfigs")
# Of these, whatever another byte makes of them changes nothing.
HARMLESS = ("ListOffsets", "OffsetFetch", "FindCoordinator", "Heartbeat", "DescribeGroups", "ListGroups", "OffsetForLeaderEpoch", "DescribeConfigs", "DescribeLogDirs", "DescribeCluster", "DescribeProducers",
            "AlterReplicaLogDirs", "ListConfigResources", "DescribeTopicPartitions")
INTS = {"int8": (-128, -1, 0, 1, 2, 9, 127), "int16": (-32768, -2, -1, 0, 1, 2, 32767), "int32": (-2**31, -5, -2, -1, 0, 1, 2, 5, 1000, 2**31 - 1), "int64": (-2**63, -6, -2, -1, 0, 1, 2, 5, 10**6, 2**63 - 1)}
STRANGERS = ("99999999-9999-4999-8999-999999999999", "00000000-0000-0000-0000-000000000001")
BAD_TOPICS = ("", ".", "..", "bad name", "x" * 250, "ü", "a/b", Ref("name", "x" * 235), Ref("name", "x" * 260))
BAD_TEXTS = ("", "bad name", "ü", "x" * 300)
CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
# Values of configs, and how many of them are good, from the first on.
CONFIGS = {"retention.ms": ("-1", "60000000", "604800000", "x", "-2", ""), "retention.bytes": ("-1", "1000000", "-2", "1.5"), "segment.bytes": ("1048576", "1073741824", "100", "-1"),
           "segment.ms": ("1000000", "604800000", "0"), "compression.type": (*CODECS, "brotli", "GZIP"), "message.timestamp.type": ("CreateTime", "LogAppendTime", "Never"),
           "max.message.bytes": ("1048588", "400", "0", "-1"), "cleanup.policy": ("delete", "shred"), "min.insync.replicas": ("1", "0", "x"),
           "message.timestamp.before.max.ms": ("9223372036854775807", "600000", "-1"), "message.timestamp.after.max.ms": ("3600000", "600000", "x"), "delete.retention.ms": ("86400000", "-1"),
           "file.delete.delay.ms": ("60000",), "flush.messages": ("9223372036854775807", "0"), "unclean.leader.election.enable": ("false", "maybe"), "preallocate": ("false", "no"), "nope": ("1",), "": ("1",)}
GOOD = {"retention.ms": 3, "retention.bytes": 2, "segment.bytes": 2, "segment.ms": 2, "compression.type": 6, "message.timestamp.type": 2, "max.message.bytes": 2, "cleanup.policy": 1,
        "message.timestamp.before.max.ms": 2, "message.timestamp.after.max.ms": 2, "file.delete.delay.ms": 1, "min.insync.replicas": 1}
# Lists that hardly anybody sends.
SELDOM = ("CreateTopics.Topics.Assignments", "CreatePartitions.Topics.Assignments", "Fetch.ForgottenTopicsData")
# A consumer's subscription to a topic t.
META = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


def unlike(rows):
    """Rows without those that name again what another one names."""
    found = {}
    for row in rows:
        named = [v for k, v in row.items() if k in ("Name", "Topic", "TopicId", "Index", "Partition", "PartitionIndex", "GroupId", "ResourceName", "ResourceType")]
        found.setdefault(repr(named or row).replace("first ", ""), row)
    return list(found.values())


class Maker:
    """`served` has the versions of each key that both brokers serve. `c`, where it is passed on, is what a request is about: the names its fields have in common."""

    def __init__(self, seed, served):
        self.random, self.served = random.Random(seed), served
        self.topics = {f"t{n}": 1 + self.random.randrange(4) for n in range(3)}
        self.sequences, self.sessions, self.odd = {}, {}, 0.0

    def pick(self, *options):
        return self.random.choice(options)

    def weighed(self, *pairs):
        """One of (weight, value)s."""
        return self.random.choices([v for _, v in pairs], [w for w, _ in pairs])[0]

    def chance(self, share):
        return self.random.random() < share

    def history(self, size):
        steps = [self.create(name) for name in self.topics]
        steps += [Step("InitProducerId", self.version("InitProducerId"), {"TransactionalId": None, "TransactionTimeoutMs": 60000}, slot=slot) for slot in ("p0", "p1")]
        steps += [self.step("Produce", good=True) for _ in range(4)]
        steps += self.member("g0")
        while len(steps) < size:
            name = self.weighed(*((weight, name) for name, weight in KEYS.items() if name in self.served))
            steps.append(self.step(name))
        return steps

    def create(self, topic):
        configs = [{"Name": name, "Value": CONFIGS[name][self.random.randrange(GOOD[name])]} for name in self.random.sample(list(GOOD), self.random.randrange(3))]
        return Step("CreateTopics", self.version("CreateTopics"), {"timeoutMs": 30000, "Topics": [{"Name": Ref("name", topic), "NumPartitions": self.topics[topic], "ReplicationFactor": 1, "Configs": configs}]})

    def member(self, group):
        """Somebody who joins and, mostly, gives assignments."""
        slot, version = f"{group}/m0", self.pick(2, 4, 5, 9)
        join = {"GroupId": Ref("name", group), "SessionTimeoutMs": 1800000, "RebalanceTimeoutMs": 600000, "ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": META}]}
        steps = [Step("JoinGroup", version, join | {"MemberId": ""}, slot, slot)]
        if version >= 4:
            steps.append(Step("JoinGroup", version, join | {"MemberId": Ref("member", slot)}, slot, slot))
        sync = {"GroupId": Ref("name", group), "GenerationId": Ref("generation", group), "MemberId": Ref("member", slot), "Assignments": [{"MemberId": Ref("member", slot), "Assignment": b"all"}]}
        return steps + [Step("SyncGroup", 4, sync, slot, slot)] * self.chance(0.8)

    def version(self, name):
        return self.random.randint(*self.served[name])

    def step(self, name, good=False):
        self.odd = ODD_FIELD if not good and self.chance(ODD) else 0.0
        version, group = self.version(name), self.pick("g0", "g0", "g1")
        c = {"key": name, "version": version, "group": group, "slot": f"{group}/m{self.random.randrange(3)}", "topic": self.topic(), "producer": self.pick("p0", "p1"), "session": self.pick("s0", "s1"),
             "instance": self.pick("i0", "i1", "i2", "i3")}
        schema = messages.load(name + "Request")
        self.structs = {s["name"]: s["fields"] for s in schema.get("commonStructs", [])}
        values = self.struct(schema["fields"], c, name)
        self.correlate(name, values, c)
        slot = {"JoinGroup": c["slot"], "SyncGroup": c["slot"], "InitProducerId": c["producer"], "Fetch": c["session"], "GetTelemetrySubscriptions": c["instance"]}.get(name, "")
        mangle = ()
        if not good and name not in WHOLE and self.chance(MANGLED):
            mangle = self.pick("cut", "more", *(("other", "other") if name in HARMLESS else ())), self.random.randrange(1000), self.random.randrange(256)
        return Step(name, version, values, c["slot"] if name in ("JoinGroup", "SyncGroup") else "main", slot, mangle)

    # --- fields -------------------------------------------------------------

    def struct(self, fields, c, path):
        c, values = dict(c), {}
        for field in fields:
            if messages.within(field["versions"], c["version"]) and not (messages.within(field.get("taggedVersions"), c["version"]) and self.chance(0.8)):
                values[field["name"]] = self.field(field, c, f"{path}.{field['name']}")
        return values

    def field(self, field, c, path):
        kind, name = field["type"], field["name"]
        inner = field.get("fields") or self.structs.get(kind.removeprefix("[]"))
        nullable = messages.within(field.get("nullableVersions"), c["version"])
        if nullable and kind.startswith("[]") and self.chance(0.15):
            return None
        if path in SELDOM and self.chance(0.85):
            return None if nullable else []
        if inner and kind.startswith("[]"):
            rows = []
            for index in range(self.weighed((6, 0), (70, 1), (16, 2), (8, 3))):
                rows.append(self.struct(inner, c | {"index": index} | ({"topic": self.topic()} if index else {}), path))
            # What is named twice is odd; Kafka doesn't answer a Produce with a partition twice at all.
            return rows if c["key"] != "Produce" and self.chance(self.odd / 2) else unlike(rows)
        if inner:
            return None if nullable and self.chance(0.7) else self.struct(inner, c, path)
        if kind.startswith("[]"):
            return [self.leaf(kind[2:], name, c, path, False) for _ in range(self.weighed((8, 0), (60, 1), (22, 2), (10, 3)))]
        return self.leaf(kind, name, c, path, nullable)

    def leaf(self, kind, name, c, path, nullable):
        if self.chance(self.odd):
            found = self.oddity(kind, name, path, nullable)
            if found is not ...:
                return found
        made = PATHS.get(path) or FIELDS.get(name)
        if made:
            return made(self, c)
        if kind == "bool":
            return self.chance(0.5)
        if kind in INTS:
            return self.pick(*INTS[kind])
        return {"uuid": NOBODY, "bytes": b"z"}.get(kind) or (None if nullable and self.chance(0.5) else self.pick("", "x", "y"))

    def oddity(self, kind, name, path, nullable):
        """What a field must not hold, or ... where nothing of that kind is safe."""
        if name in ("SessionTimeoutMs", "RebalanceTimeoutMs", "MaxWaitMs", "TimeoutMs", "timeoutMs", "Acks", "Records", "Metrics", "GroupInstanceId"):
            return ...
        if name in ("CurrentLeaderEpoch", "LastFetchedEpoch", "LeaderEpoch"):
            # A number says another thing to each, whose epochs are its own.
            return self.pick(-1, -2)
        if name in ("MaxBytes", "PartitionMaxBytes", "MinBytes"):
            return self.pick(0, 1, 5, 1000)
        if name == "ReplicaId" and self.chance(0.8):
            return -1
        if name == "SessionId":
            return self.pick(0, 1, 77777, -1)
        if name in ("GroupId", "Groups", "GroupsNames"):
            # A group lives on: its name is the history's own.
            return self.pick(*(Ref("name", n) for n in ("bad name", "ü", "x" * 240)), *(("",) if path.split(".")[0] not in ("OffsetCommit", "OffsetDelete") else ()))
        if kind in INTS:
            return self.pick(*INTS[kind])
        if kind == "uuid":
            return self.pick(NOBODY, *STRANGERS)
        if kind == "string":
            return self.pick(*(BAD_TOPICS if "Topic" in name or name in ("Name", "Key", "ResourceName") else BAD_TEXTS), *((None,) if nullable else ()))
        return ...

    def topic(self):
        return self.weighed((40, "t0"), (25, "t1"), (15, "t2"), (10, "t3"), (5, "t.a"), (5, "t_a"))

    def topic_id(self, c):
        return Ref("topic id", c["topic"]) if self.chance(0.93) else Ref("first topic id", c["topic"])

    def partition(self, c):
        count = self.topics.get(c["topic"], 2)
        c["partition"] = self.weighed((50, 0), (40, self.random.randrange(count)), (5, count), (2, -1), (3, 99))
        return c["partition"]

    def epoch(self, c):
        here = c["topic"], 0
        return self.weighed((70, -1), (18, Ref("epoch", here)), (10, Ref("epoch", here, 1)), (2, -2))

    def offset(self, c):
        return self.weighed((40, 0), (15, 1), (12, 2), (25, self.random.randrange(12)), (5, 1000), (3, -1))

    def batch(self, c):
        times = [self.weighed((60, 0), (15, -50), (15, -1000), (2, 700000), (2, -900000), (2, 4000000), (2, None)) for _ in range(self.pick(1, 1, 2, 3, 5))]
        if len(times) > 1 and None in times:
            times = [0] * len(times)
        records = tuple((self.pick(None, b"", b"k", b"kk"), self.pick(None, b"", b"v", b"w" * 100, b"x" * 600), tuple((self.pick(b"h", b""), self.pick(None, b"1")) for _ in range(self.pick(0, 0, 0, 1, 2))), ms)
                        for ms in times)
        fault = self.pick(*FAULTS) if self.odd and self.chance(0.5) else ""
        producer, sequence, epoch = "", -1, 0
        if self.chance(0.35):
            producer = c["producer"]
            at = producer, c["topic"], c.get("partition")
            sequence = self.sequences.get(at, 0)
            if self.chance(0.2):
                sequence = self.pick(sequence - 1, sequence - len(records), sequence + 1, 0, 2**31 - 1, 5)
            if not fault:
                self.sequences[at] = sequence + len(records) & 2**31 - 1
            epoch = self.weighed((93, 0), (5, 1), (2, -1))
        return Batch(records, self.weighed((50, 0), (20, 1), (10, 2), (10, 3), (10, 4)), fault, producer, max(sequence, -1) if sequence < 2**31 else 0, epoch)

    def config(self, c):
        c["config"] = self.pick(*(CONFIGS if self.odd else GOOD))
        return c["config"]

    def config_value(self, c):
        options = CONFIGS.get(c.get("config"), ("1",))
        return self.pick(*(options if self.odd else options[:GOOD.get(c.get("config"), 1)]))

    def resource_type(self, c):
        c["resource"] = self.weighed((70, 2), (10, 4), (6, 8), (4, 16), (6, 32), (4 if self.odd else 0, 3))
        return c["resource"]

    def resource_name(self, c):
        return {2: Ref("name", c["topic"]), 4: self.pick("1", "", "2"), 8: self.pick("1", "2")}.get(c.get("resource"), self.pick("g", "s"))

    def correlate(self, name, values, c):
        """What the fields of a request have to do with one another."""
        if name in ("Metadata", "DeleteTopics") and values.get("Topics"):
            for row in values["Topics"]:
                if "TopicId" in row and not (self.odd and self.chance(0.1)):
                    row.update({"TopicId": NOBODY} if name == "Metadata" and c["version"] < 12 or self.chance(0.5) else {"Name": None})
            values["Topics"] = values["Topics"] if self.chance(self.odd) else unlike(values["Topics"])
        if name in ("IncrementalAlterConfigs", "AlterConfigs") and any(r["ResourceType"] != 2 for r in values["Resources"]):
            values["ValidateOnly"] = True
        if name == "JoinGroup" and values.get("GroupInstanceId") and self.chance(0.7):
            values["MemberId"] = ""
        if name == "Fetch" and c["version"] >= 7 and not (self.odd and self.chance(0.3)):
            slot = c["session"]
            how = self.weighed((45, "alone"), (20, "new"), (35, "on" if slot in self.sessions else "new"))
            values["SessionId"], values["SessionEpoch"] = {"alone": (0, -1), "new": (0, 0), "on": (Ref("session", slot), self.sessions.get(slot))}[how]
            if how != "alone":
                self.sessions[slot] = values["SessionEpoch"] + 1
            if how == "on" and self.chance(0.5):
                values["Topics"] = []


def slot_member(m, c):
    return m.weighed((80, Ref("member", c["slot"])), (12, ""), (8, "who"))


def group_id(m, c):
    return m.weighed((92, Ref("name", c["group"])), (8, Ref("name", "g9")))


def instance(m, c):
    return m.weighed((85, None), (10, "i" + c["slot"][-1]), (5, "ix"))


def generation(m, c):
    now = c["group"]
    return m.weighed((76, Ref("generation", now)), (8, Ref("generation", now, 1)), (10, -1), (6, Ref("generation", now, -1)))


def timestamp(m, c):
    return m.weighed((20, -1), (15, -2), (12, -3), (5, -4), (5, -5), (5, -6), (8, 0), (10, Ref("time", -1000)), (8, Ref("time", -50)), (8, Ref("time", 0)), (4, Ref("time", 10**9)))


def own(kind):
    return lambda m, c: Ref(kind, c["topic"])


def one_of(*options):
    return lambda m, c: m.pick(*options)


def odd_of(good, *others):
    return lambda m, c: m.pick(good, *others) if m.odd else good


# By path.
PATHS = {
    "JoinGroup.Protocols.Name": lambda m, c: m.pick("range", "sticky", "") if m.odd else ("range", "sticky", "other")[c["index"]],
    "InitProducerId.ProducerId": lambda m, c: m.pick(-1, Ref("producer", c["producer"]), 777) if m.odd else -1,
    "InitProducerId.ProducerEpoch": lambda m, c: m.pick(-1, Ref("producer epoch", c["producer"]), 3) if m.odd else -1,
} | {f"{key}.Configs.Name": Maker.config for key in ("CreateTopics.Topics", "AlterConfigs.Resources", "IncrementalAlterConfigs.Resources")}
# By the field's name.
FIELDS = {
    "GroupId": group_id, "Groups": group_id, "GroupsNames": group_id, "Key": group_id, "CoordinatorKeys": group_id, "MemberId": slot_member, "GroupInstanceId": instance,
    "GenerationId": generation, "GenerationIdOrMemberEpoch": generation, "MemberEpoch": one_of(-1), "Metadata": one_of(META), "Assignment": one_of(b"", b"a", b"bb"), "Reason": one_of(None, "why"),
    "SessionTimeoutMs": lambda m, c: m.pick(1, -1, 1800001) if m.chance(m.odd) else 1800000, "RebalanceTimeoutMs": one_of(600000), "RetentionTimeMs": one_of(-1, 86400000),
    "ProtocolType": odd_of("consumer", "consumer", "", "connect"), "ProtocolName": odd_of("range", None, "sticky"), "KeyType": odd_of(0, 0, 7, -1),
    "StatesFilter": one_of("Stable", "Empty", "stable", "Dead", "PreparingRebalance", "CompletingRebalance", "nope"), "TypesFilter": one_of("classic", "Classic", "consumer", "share", "nope"),
    "Name": own("name"), "Topic": own("name"), "TopicName": own("name"), "TopicNames": lambda m, c: Ref("name", m.topic()), "TopicId": Maker.topic_id,
    "Index": Maker.partition, "Partition": Maker.partition, "PartitionIndex": Maker.partition, "Partitions": Maker.partition, "PartitionIndexes": Maker.partition,
    "CurrentLeaderEpoch": Maker.epoch, "LastFetchedEpoch": lambda m, c: m.pick(-1, -1, -1, Ref("epoch", (c["topic"], 0))), "CommittedLeaderEpoch": one_of(-1, 0, 5),
    "LeaderEpoch": lambda m, c: m.pick(Ref("epoch", (c["topic"], 0)), Ref("epoch", (c["topic"], 0), 1), -1), "FetchOffset": Maker.offset, "Offset": Maker.offset, "CommittedOffset": Maker.offset,
    "CommittedMetadata": lambda m, c: m.pick("", "m", None, "x" * 4096, "x" * 4097) if m.odd else m.pick("", "m", None), "LogStartOffset": one_of(-1, 0, 3),
    "PartitionMaxBytes": one_of(1 << 20, 1 << 20, 1), "MaxBytes": one_of(1 << 24, 1 << 24, 1), "MinBytes": one_of(0, 1, 1), "MaxWaitMs": one_of(0, 10, 20), "Timestamp": timestamp,
    "SessionId": one_of(0), "SessionEpoch": one_of(-1, 0, 1, 2), "ReplicaId": one_of(-1), "IsolationLevel": one_of(0, 0, 1), "RackId": one_of("", "r"),
    "Records": Maker.batch, "Acks": lambda m, c: m.weighed((75, -1), (20, 1), (5 if m.odd else 0, 2)), "TransactionalId": lambda m, c: m.pick("", "tx") if m.odd and m.chance(0.4) else None,
    "TransactionTimeoutMs": one_of(60000), "TimeoutMs": one_of(20000), "timeoutMs": one_of(20000), "NumPartitions": one_of(1, 2, 3, -1), "ReplicationFactor": one_of(1, 1, -1),
    "BrokerIds": lambda m, c: m.weighed((90, 1), (5, 2), (5, -1)), "Count": one_of(2, 3, 4, 5, 6), "ElectionType": one_of(0, 0, 1), "ResponsePartitionLimit": one_of(2000, 2000, 1, 2, 3, 0, -1),
    "ResourceType": Maker.resource_type, "ResourceName": Maker.resource_name, "ConfigurationKeys": lambda m, c: m.pick(*CONFIGS), "Value": Maker.config_value,
    "ConfigOperation": lambda m, c: m.weighed((70, 0), (16, 1), (7, 2), (7, 3)), "ClientSoftwareName": one_of("a", "b.c-d"), "ClientSoftwareVersion": one_of("1", "2.0"),
    "ClusterId": one_of(None, None, None, "other"), "NodeId": one_of(-1, -1, 1, 2), "EndpointType": one_of(1, 1, 2), "ClientInstanceId": lambda m, c: Ref("instance", c["instance"]),
    "SubscriptionId": lambda m, c: Ref("subscription", c["instance"]), "CompressionType": one_of(0, 0, 1, 4, 9), "Metrics": one_of(b"", b"x"), "Terminating": lambda m, c: m.chance(0.1),
}
