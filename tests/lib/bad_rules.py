"""What no client may do, and what none does, with the keys of groups, offsets, administration, quotas, telemetry and sessions: for clients/6. Each case says what must come of it, and its number in the list."""

import gzip
import uuid

import bad_bytes
import messages
import proc
import wire
from bad_bytes import CLOSED, I32_MAX, TOPIC, body, record, sealed

OFFSETS = "__consumer_offsets"
I64 = (-2**63, 2**63 - 1)
NOBODY = "00000000-0000-0000-0000-00000000abcd"
# Keys of Kafka's that are for brokers and controllers alone, or for what isn't here: they must close the connection.
FOREIGN = ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "WriteTxnMarkers", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "AlterPartition", "Envelope", "FetchSnapshot", "BrokerRegistration",
           "BrokerHeartbeat", "UnregisterBroker", "AllocateProducerIds", "ControllerRegistration", "AssignReplicasToDirs", "AddRaftVoter", "RemoveRaftVoter", "UpdateRaftVoter")
WORDS = ("listeners", "ssl.keystore.password", "sasl.jaas.config", "log.dirs", "super.users", "authorizer.class.name")


def codes(value):
    """Every error code in an answer."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "ErrorCode":
                yield inner
            else:
                yield from codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from codes(inner)


class Asking:
    """A connection for cases whose answers are looked at; a new one where one is closed."""

    def __init__(self, judge, broker):
        self.judge, self.broker = judge, broker
        self.connection = messages.Connection(broker.port, timeout=20)

    def ask(self, name, version, values):
        answer = self.connection.call(name, version, values)
        if answer is None:
            self.connection = messages.Connection(self.broker.port, timeout=20)
        return answer

    def told(self, number, what, name, version, values, wanted):
        """The answer must tell one of these errors, and besides it at most that all is well."""
        self.judge.case(number)
        answer = self.ask(name, version, values)
        found = set(codes(answer)) if answer is not None else {"closed"}
        self.judge.p.check(f"{number}: {what}: {name} tells {wanted}", found & set(wanted) and found <= {*wanted, 0}, found)
        return answer


def frames():
    """For the judge of spine/9: (number, name, frame, what must happen)."""
    numbers = {name: key for key, name in messages.keys().items()}
    for name in FOREIGN:
        for version in (0, 1):
            yield 44 if name == "Envelope" else 7, f"{name} {version}, which is between brokers", bad_bytes.frame(numbers[name], version, bytes(60)), CLOSED
    for key in (-32768, 39, 93, 1000, 32767):
        if key not in messages.keys():
            yield 7, f"key {key}, which there isn't", bad_bytes.frame(key, 0, bytes(20)), CLOSED


def versions(advertised):
    """7: the versions just outside of what is served, of every key."""
    for name, (low, high) in advertised.items():
        key = messages.load(name + "Request")["apiKey"]
        for version in (low - 1, high + 1, 32767):
            # ApiVersions is answered whatever its version, and of Produce those below are told, and not served.
            if name != "ApiVersions":
                yield 7, f"{name} {version}", bad_bytes.frame(key, version, bytes(40)), CLOSED


def batches():
    """37 to 40, for the judge of spine/9: (number, name, bytes, version of Produce, must it be refused?)."""
    whole = sealed(body())
    yield 37, "a batch within a gzip", sealed(body(attributes=1, records=gzip.compress(whole))), 7, True
    yield 37, "a gzip within a gzip", sealed(body(attributes=1, records=gzip.compress(gzip.compress(record())))), 7, True
    yield 37, "a gzip called zstd", sealed(body(attributes=4, records=gzip.compress(record()))), 7, True
    for sequence in (-2, -5, -2**31):
        yield 38, f"sequence {sequence}", sealed(body(producer=77, epoch=0, sequence=sequence)), 3, True
    yield 38, "a sequence that wraps within the batch", sealed(body(producer=78, epoch=0, sequence=I32_MAX, count=2, last_delta=1, records=record() + record(delta=1))), 3, None
    yield 38, "the greatest epoch", sealed(body(producer=79, epoch=32767, sequence=0)), 3, None
    yield 38, "a producer without an epoch", sealed(body(producer=80, epoch=-1, sequence=0)), 3, True
    yield 38, "the greatest producer", sealed(body(producer=2**63 - 1, epoch=0, sequence=0)), 3, None
    yield 40, "a header's key that isn't UTF-8", sealed(body(records=record(headers=wire.varint(1) + wire.varint(2) + b"\xff\xfe\x01"))), 3, None
    yield 40, "a header's key of control characters", sealed(body(records=record(headers=wire.varint(1) + wire.varint(3) + b"\0\n\x1b\x01"))), 3, None


def groups(asking):
    """20 and 21."""
    told = asking.told
    told(20, "metadata of 4,097 characters", "OffsetCommit", 9, commit("rules", [("x" * 4097, 1)]), (12,))
    told(20, "metadata of 1 MiB", "OffsetCommit", 9, commit("rules", [("x" * (1 << 20), 1)]), (12,))
    # Characters are counted as Kafka counts them: two for what lies beyond the first 65,536.
    told(20, "metadata of 2,049 characters that count twice", "OffsetCommit", 9, commit("rules", [("\U0001f600" * 2049, 1)]), (12,))
    told(20, "metadata of 2,048 characters that count twice", "OffsetCommit", 9, commit("rules", [("\U0001f600" * 2048, 1)]), (0,))
    for offset in I64:
        told(34, f"offset {offset}", "OffsetCommit", 9, commit("rules", [("", offset)]), (0, 42, 1))
    for ms in (*I64, -2, 0):
        told(34, f"to be kept for {ms} ms", "OffsetCommit", 4, commit("rules", [("", 1)]) | {"RetentionTimeMs": ms}, (0,))
    told(20, "a group of no name", "OffsetDelete", 0, {"GroupId": "", "Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0}]}]}, (24,))
    told(20, "a group's name of 40,000 bytes", "OffsetCommit", 9, commit("g" * 40000, [("", 1)]), (24,))
    for name, version, values in (("Heartbeat", 4, {}), ("SyncGroup", 4, {}), ("LeaveGroup", 5, {"Members": [{"MemberId": "m"}]})):
        told(21, "a group of no name", name, version, {"GroupId": "", "GenerationId": 1, "MemberId": "m"} | values if name != "LeaveGroup" else {"GroupId": ""} | values, (24,))
        told(21, "a group's name of 40,000 bytes", name, version, ({"GroupId": "g" * 40000, "GenerationId": 1, "MemberId": "m"} if name != "LeaveGroup" else {"GroupId": "g" * 40000}) | values, (24, 25))
    join = {"GroupId": "rules-join", "SessionTimeoutMs": 6000, "RebalanceTimeoutMs": 1000, "MemberId": "", "ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": b""}]}
    told(21, "no protocol", "JoinGroup", 5, join | {"Protocols": []}, (23,))
    told(21, "no type of protocol", "JoinGroup", 5, join | {"ProtocolType": ""}, (23,))
    told(21, "a member's name of 40,000 bytes", "JoinGroup", 9, join | {"GroupInstanceId": "i" * 40000}, (42,))
    told(21, "a protocol's name of 40,000 bytes", "JoinGroup", 9, join | {"Protocols": [{"Name": "p" * 40000}]}, (42,))
    told(21, "a session of the greatest length", "JoinGroup", 9, join | {"SessionTimeoutMs": I32_MAX}, (26,))
    told(21, "a generation at its end", "Heartbeat", 4, {"GroupId": "rules-join", "GenerationId": I32_MAX, "MemberId": "m"}, (25, 22, 16))
    told(21, "assignments of 1 MiB for members that aren't there", "SyncGroup", 4, {"GroupId": "rules-join", "GenerationId": 0, "MemberId": "m", "Assignments": [{"MemberId": f"m{n}", "Assignment": bytes(1 << 20)} for n in range(3)]}, (25,))
    told(21, "subscriptions that aren't any", "JoinGroup", 5, join | {"GroupId": "rules-garbage", "Protocols": [{"Name": "range", "Metadata": b"\xff" * 1000}]}, (79, 0))


def commit(group, offsets):
    rows = [{"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": text} for text, offset in offsets]
    return {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": [{"Name": TOPIC, "Partitions": rows}]}


def sessions(asking):
    """22 and 43."""
    ends = asking.ask("ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]})
    end = ends["Topics"][0]["Partitions"][0]["Offset"]
    fetch = {"MaxWaitMs": 0, "MinBytes": 0, "Topics": [{"Topic": TOPIC, "Partitions": [{"Partition": 0, "FetchOffset": end, "PartitionMaxBytes": 1}]}]}
    for session, epoch, wanted in ((-1, 5, (70,)), (I32_MAX, 1, (70,)), (0, 5, (70, 71)), (0, I32_MAX, (70, 71)), (0, -2, (70, 71, 0)), (77, -2, (70, 71, 0))):
        asking.told(22, f"session {session}, epoch {epoch}", "Fetch", 11, fetch | {"SessionId": session, "SessionEpoch": epoch}, wanted)
    begun = asking.told(22, "a session begins", "Fetch", 11, fetch | {"SessionId": 0, "SessionEpoch": 0}, (0,))
    session = begun["SessionId"]
    asking.told(22, "a session is asked twice for one epoch", "Fetch", 11, fetch | {"SessionId": session, "SessionEpoch": 2}, (71,))
    asking.told(22, "a session goes on where it was", "Fetch", 11, fetch | {"SessionId": session, "SessionEpoch": 1, "Topics": []}, (0,))
    forgotten = [{"Topic": TOPIC, "Partitions": [0, 0, 7, -1, I32_MAX]}, {"Topic": "nobodys", "Partitions": [0]}, {"Topic": TOPIC, "Partitions": []}]
    asking.told(22, "a session forgets what it hasn't", "Fetch", 11, fetch | {"SessionId": session, "SessionEpoch": 2, "Topics": [], "ForgottenTopicsData": forgotten}, (0,))
    asking.told(22, "a session is asked by id for what it has by name", "Fetch", 13, {"MaxWaitMs": 0, "SessionId": session, "SessionEpoch": 3, "Topics": []}, (106, 70, 71))
    for replica in (0, 1, 2, -2, -3, I32_MAX):
        asking.told(43, f"replica {replica}", "Fetch", 11, fetch | {"ReplicaId": replica}, (0, 9, 6, 1))
        asking.told(43, f"replica {replica}", "ListOffsets", 6, {"ReplicaId": replica, "Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]}]}, (0, 6))
        asking.told(43, f"replica {replica}", "OffsetForLeaderEpoch", 4, {"ReplicaId": replica, "Topics": [{"Topic": TOPIC, "Partitions": [{"Partition": 0, "LeaderEpoch": 0}]}]}, (0, 6))


def numbers(asking):
    """34, 25 and 38: numbers at their ends."""
    told, topics = asking.told, lambda **part: [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0} | part]}]
    for timestamp in (-2**63, -7, -100):
        told(34, f"timestamp {timestamp}", "ListOffsets", 9, {"ReplicaId": -1, "Topics": topics(Timestamp=timestamp)}, (35,))
    told(34, "the last timestamp", "ListOffsets", 9, {"ReplicaId": -1, "Topics": topics(Timestamp=2**63 - 1)}, (0,))
    for offset in (-2**63, -2, 2**63 - 1):
        told(34, f"offset {offset}", "DeleteRecords", 2, {"Topics": topics(Offset=offset), "TimeoutMs": 1000}, (1,))
    for epoch in (-2**31, -2, I32_MAX):
        told(34, f"epoch {epoch}", "OffsetForLeaderEpoch", 4, {"ReplicaId": -1, "Topics": [{"Topic": TOPIC, "Partitions": [{"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": epoch}]}]}, (0,))
        told(34, f"current epoch {epoch}", "ListOffsets", 9, {"ReplicaId": -1, "Topics": topics(Timestamp=-1, CurrentLeaderEpoch=epoch)}, (74, 76, 75))
    for partition in (-2**31, -1, 1, I32_MAX):
        for name, version, values in (("ListOffsets", 9, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": partition, "Timestamp": -1}]}]}),
                                      ("DescribeProducers", 0, {"Topics": [{"Name": TOPIC, "PartitionIndexes": [partition]}]}), ("DeleteRecords", 2, {"Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": partition}]}]}),
                                      ("ElectLeaders", 2, {"ElectionType": 0, "TopicPartitions": [{"Topic": TOPIC, "Partitions": [partition]}]})):
            told(34, f"partition {partition}", name, version, values, (3,))
    for producer, epoch in ((2**63 - 1, 32767), (0, 0), (5, 3), (-1, 0), (7, -1), (-2, -2), (-2**63, -32768)):
        told(38, f"a producer that goes on as {producer}, {epoch}", "InitProducerId", 5, {"TransactionalId": None, "TransactionTimeoutMs": 1000, "ProducerId": producer, "ProducerEpoch": epoch}, (0, 42))
    for count in (1_000_000, I32_MAX, 0, -1, -2**31, 1):
        told(25, f"{count} partitions", "CreatePartitions", 3, {"Topics": [{"Name": TOPIC, "Count": count, "Assignments": None}], "TimeoutMs": 1000, "ValidateOnly": False}, (37, 44))
    for brokers in ([1, 1], [], [2], [-1], [1, 2, 3], [I32_MAX]):
        told(25, f"a partition on {brokers}", "CreatePartitions", 3, {"Topics": [{"Name": TOPIC, "Count": 2, "Assignments": [{"BrokerIds": brokers}]}], "TimeoutMs": 1000}, (39,))
        told(25, f"a partition on {brokers}", "CreateTopics", 7, {"Topics": [{"Name": "rules-placed", "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": [{"PartitionIndex": 0, "BrokerIds": brokers}]}]}, (39,))
    told(25, "places for partitions that aren't new", "CreatePartitions", 3, {"Topics": [{"Name": TOPIC, "Count": 2, "Assignments": [{"BrokerIds": [1]}] * 5}], "TimeoutMs": 1000}, (39,))
    told(25, "a partition that is placed twice", "CreateTopics", 7, {"Topics": [{"Name": "rules-placed", "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": [{"PartitionIndex": 0, "BrokerIds": [1]}] * 2}]}, (39,))
    for factor in (0, -2, 2, 32767):
        told(25, f"{factor} replicas", "CreateTopics", 7, {"Topics": [{"Name": "rules-factor", "NumPartitions": 1, "ReplicationFactor": factor}]}, (38,))
    for value in (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e-320):
        entry = {"Entity": [{"EntityType": "client-id", "EntityName": "rules"}], "Ops": [{"Key": "producer_byte_rate", "Value": value, "Remove": False}]}
        told(34, f"a quota of {value}", "AlterClientQuotas", 1, {"Entries": [entry], "ValidateOnly": True}, (42, 0))
    told(34, "a quota of a client's name of 1 MiB", "AlterClientQuotas", 1, {"Entries": [{"Entity": [{"EntityType": "client-id", "EntityName": "x" * (1 << 20)}], "Ops": []}], "ValidateOnly": True}, (44, 42))


def names(asking, judge):
    """45: names that no topic can have, by every key that takes one; and nothing is made of them."""
    bad = ("", ".", "..", "x" * 250, "x" * 40000, "a/b", "../../etc", "a\0b", "ℵ", "ａ", "a b", "%2e%2e")
    for name in bad:
        row = {"Name": name, "Partitions": [{"PartitionIndex": 0}]}
        for key, version, values, wanted in (
                ("Metadata", 12, {"Topics": [{"Name": name}], "AllowAutoTopicCreation": True}, (17,)), ("CreateTopics", 7, {"Topics": [{"Name": name, "NumPartitions": 1, "ReplicationFactor": 1}]}, (17,)),
                ("DeleteTopics", 5, {"TopicNames": [name], "TimeoutMs": 1000}, (3, 17)), ("CreatePartitions", 3, {"Topics": [{"Name": name, "Count": 2, "Assignments": None}], "TimeoutMs": 1000}, (3, 17)),
                ("ListOffsets", 9, {"ReplicaId": -1, "Topics": [row]}, (3, 17)), ("DeleteRecords", 2, {"Topics": [row], "TimeoutMs": 1000}, (3, 17)), ("DescribeTopicPartitions", 0, {"Topics": [{"Name": name}]}, (17, 3)),
                ("DescribeProducers", 0, {"Topics": [{"Name": name, "PartitionIndexes": [0]}]}, (17, 3)), ("OffsetDelete", 0, {"GroupId": "rules", "Topics": [row]}, (3,)),
                ("OffsetCommit", 9, {"GroupId": "rules", "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": [row]}, (3, 17)),
                ("DescribeConfigs", 4, {"Resources": [{"ResourceType": 2, "ResourceName": name, "ConfigurationKeys": None}]}, (17, 3, 42)),
                ("IncrementalAlterConfigs", 1, {"Resources": [{"ResourceType": 2, "ResourceName": name, "Configs": [{"Name": "retention.ms", "ConfigOperation": 0, "Value": "1"}]}]}, (17, 3, 42)),
                ("ElectLeaders", 2, {"ElectionType": 0, "TopicPartitions": [{"Topic": name, "Partitions": [0]}]}, (3, 17))):
            if key == "OffsetDelete" and len(name.encode()) > 32767:
                continue
            asking.told(45, f"a topic named {name[:6]!r} of {len(name)}", key, version, values, wanted)
    there = {t["Name"] for t in asking.ask("Metadata", 12, {"Topics": None})["Topics"]}
    judge.p.check("45: no topic is made of a bad name", not there & set(bad), there & set(bad))


def internal(asking, judge):
    """42: internal topics are the broker's own."""
    told = asking.told
    judge.case(42)
    connection = wire.Connection(judge.broker.port)
    found = connection.produce(OFFSETS, {0: sealed(body())})
    judge.p.check("42: nobody writes into an internal topic", found.get(0, (0,))[0] == 17, found)
    connection.close()
    told(42, "records of an internal topic", "DeleteRecords", 2, {"Topics": [{"Name": OFFSETS, "Partitions": [{"PartitionIndex": 0, "Offset": -1}]}], "TimeoutMs": 1000}, (17,))
    told(42, "an internal topic that is there", "CreateTopics", 7, {"Topics": [{"Name": OFFSETS, "NumPartitions": 1, "ReplicationFactor": 1}]}, (36,))
    told(39, "a topic of keys alone", "CreateTopics", 7, {"Topics": [{"Name": "rules-compact", "NumPartitions": 1, "ReplicationFactor": 1, "Configs": [{"Name": "cleanup.policy", "Value": "compact"}]}]}, (40,))
    told(39, "a topic that becomes one of keys alone", "IncrementalAlterConfigs", 1, {"Resources": [{"ResourceType": 2, "ResourceName": TOPIC, "Configs": [{"Name": "cleanup.policy", "ConfigOperation": 2, "Value": "compact"}]}]}, (40,))


def secrets(asking, judge):
    """46 and 47."""
    answer = asking.told(46, "a topic by an id that none has", "Metadata", 12, {"Topics": [{"Name": None, "TopicId": NOBODY}]}, (100,))
    judge.p.check("46: of an id that no topic has nothing is told", all(t["Name"] is None and not t["Partitions"] for t in answer["Topics"]), answer["Topics"])
    answer = asking.told(46, "a topic to be deleted by an id that none has", "DeleteTopics", 6, {"Topics": [{"Name": None, "TopicId": str(uuid.UUID(int=99))}], "TimeoutMs": 1000}, (100,))
    judge.p.check("46: nor when it is to be deleted", all(t["Name"] is None for t in answer["Responses"]), answer["Responses"])
    answer = asking.told(47, "everything of a broker", "DescribeConfigs", 4, {"Resources": [{"ResourceType": 4, "ResourceName": "1", "ConfigurationKeys": None}], "IncludeSynonyms": True, "IncludeDocumentation": True}, (0,))
    rows = answer["Results"][0]["Configs"]
    told = [r["Name"] for r in rows if r["IsSensitive"] and (r["Value"] is not None or any(s["Value"] is not None for s in r["Synonyms"]))]
    judge.p.check("47: what is secret is not told", rows and not told, told)
    hidden = [r["Name"] for r in rows if not r["IsSensitive"] and any(word in r["Name"] for word in ("password", "secret", "jaas", "private"))]
    judge.p.check("47: what has the name of a secret is one", not hidden, hidden)
    for word in WORDS:
        for how, version, values in (("IncrementalAlterConfigs", 1, {"ConfigOperation": 0}), ("AlterConfigs", 2, {})):
            configs = [{"Name": word, "Value": "PLAINTEXT://evil:1"} | values]
            for broker in ("1", ""):
                asking.told(47, f"{word} of broker {broker!r}", how, version, {"Resources": [{"ResourceType": 4, "ResourceName": broker, "Configs": configs}]}, (40, 42, 44))


def telemetry(asking):
    """36: what decompresses to more than it may, or not at all, in the push of a client's metrics."""
    instance = str(uuid.uuid4())
    asked = asking.told(36, "a subscription", "GetTelemetrySubscriptions", 0, {"ClientInstanceId": instance}, (0,))
    codec = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    for number, name, data, *_ in bad_bytes.batches():
        kind = name.split()[0]
        if number == 36 and kind in codec:
            push = {"ClientInstanceId": instance, "SubscriptionId": asked["SubscriptionId"], "CompressionType": codec[kind], "Metrics": data[61:]}
            asking.told(36, name, "PushTelemetry", 0, push, (87, 118, 89, 0) if "tail" in name else (87, 118, 89))
    for kind in (-128, 5, 127):
        asking.told(36, f"codec {kind}", "PushTelemetry", 0, {"ClientInstanceId": instance, "SubscriptionId": asked["SubscriptionId"], "CompressionType": kind, "Metrics": b"x"}, (76, 89))
    asking.told(36, "2 MiB", "PushTelemetry", 0, {"ClientInstanceId": instance, "SubscriptionId": asked["SubscriptionId"], "CompressionType": 0, "Metrics": bytes(2 << 20)}, (118, 89))


def everything(judge, broker):
    """All of the above but the frames and batches, which are the judge's."""
    asking = Asking(judge, broker)
    coordinator(asking)
    groups(asking)
    sessions(asking)
    numbers(asking)
    names(asking, judge)
    internal(asking, judge)
    secrets(asking, judge)
    telemetry(asking)
    asking.connection.close()
    judge.served("what no client may do")


def coordinator(asking):
    asking.ask("FindCoordinator", 4, {"CoordinatorKeys": ["rules"]})

    def ready():
        asked = {"Groups": [{"GroupId": g, "Topics": None} for g in ("rules", "rules-join", "rules-garbage", "fields", "heavy", "protocols")]}
        return not any(codes(asking.ask("OffsetFetch", 8, asked)))

    proc.wait_for("coordinators", ready, 60, every=0.1)
