"""Requests as heavy as a frame and its elements may be, for clients/6: a hundred thousand of whatever a request can name. While one is carried out others are answered, and many of them at once take a
bounded memory, whether their answers are read or not."""

import selectors
import socket
import time

import messages
import metrics
import wire
from bad_bytes import TOPIC
from messages import Many
from resident import Watch, rss_mib

# The longest that others may wait, in seconds: of several tries the best counts, as the machine may be busy.
STALL_S, TRIES = 0.15, 3
# How long a heavy request itself may take.
ANSWER_S = 60
# How many of them at once, and what the broker may grow by meanwhile, in MiB.
AT_ONCE, GROWTH_MIB = 24, 160
NAME = "n-" + Many.NUMBER


def heavy(count):
    """(number in the list, what, key, version, values). `count` elements each, or a little less where that is a bound of its own."""
    def partitions(**more):
        return Many(count, more)

    config = {"Name": NAME, "Value": "1", "ConfigOperation": 0}
    yield 19, "a partition by time", "ListOffsets", 7, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": partitions(PartitionIndex=0, Timestamp=5)}]}
    yield 19, "a partition's end", "ListOffsets", 7, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": partitions(PartitionIndex=0, Timestamp=-1)}]}
    yield 17, "topics that aren't there", "ListOffsets", 7, {"ReplicaId": -1, "Topics": Many(count // 2, {"Name": NAME, "Partitions": [{"PartitionIndex": 0, "Timestamp": -1}]})}
    yield 19, "a partition", "OffsetForLeaderEpoch", 4, {"ReplicaId": -1, "Topics": [{"Topic": TOPIC, "Partitions": partitions(Partition=0, LeaderEpoch=0)}]}
    yield 19, "a partition", "DescribeProducers", 0, {"Topics": [{"Name": TOPIC, "PartitionIndexes": Many(count, 0)}]}
    yield 19, "a partition", "DescribeLogDirs", 4, {"Topics": [{"Topic": TOPIC, "Partitions": Many(count, 0)}]}
    yield 19, "a partition", "AlterReplicaLogDirs", 2, {"Dirs": [{"Path": "/nowhere", "Topics": [{"Name": TOPIC, "Partitions": Many(count, 0)}]}]}
    yield 17, "topics that aren't there", "AlterReplicaLogDirs", 2, {"Dirs": [{"Path": "/nowhere", "Topics": Many(count // 2, {"Name": NAME, "Partitions": [0]})}]}
    yield 17, "types", "ListConfigResources", 1, {"ResourceTypes": Many(count, 2)}
    yield 19, "a partition", "ElectLeaders", 2, {"ElectionType": 0, "TopicPartitions": [{"Topic": TOPIC, "Partitions": Many(count, 0)}]}
    yield 19, "a partition", "DeleteRecords", 2, {"Topics": [{"Name": TOPIC, "Partitions": partitions(PartitionIndex=0, Offset=0)}], "TimeoutMs": 1000}
    yield 19, "a partition", "OffsetDelete", 0, {"GroupId": "heavy", "Topics": [{"Name": TOPIC, "Partitions": partitions(PartitionIndex=0)}]}
    yield 19, "a topic", "DescribeTopicPartitions", 0, {"Topics": Many(count, {"Name": TOPIC})}
    yield 17, "topics that aren't there", "DescribeTopicPartitions", 0, {"Topics": Many(count, {"Name": NAME})}
    yield 18, "topics that aren't there", "Metadata", 12, {"Topics": Many(count, {"Name": NAME}), "AllowAutoTopicCreation": False}
    yield 18, "settings of a broker", "DescribeConfigs", 4, {"Resources": [{"ResourceType": 4, "ResourceName": "1", "ConfigurationKeys": Many(count, NAME)}]}
    yield 18, "settings of a topic", "DescribeConfigs", 4, {"Resources": [{"ResourceType": 2, "ResourceName": TOPIC, "ConfigurationKeys": Many(count, NAME)}]}
    yield 18, "resources", "DescribeConfigs", 4, {"Resources": Many(count, {"ResourceType": 32, "ResourceName": NAME, "ConfigurationKeys": ["nope"]})}
    yield 23, "groups that aren't there", "DescribeGroups", 5, {"Groups": Many(count, NAME)}
    yield 23, "groups that aren't there", "DeleteGroups", 2, {"GroupsNames": Many(count, NAME)}
    yield 23, "groups", "FindCoordinator", 4, {"CoordinatorKeys": Many(count, NAME)}
    yield 23, "groups that aren't there", "OffsetFetch", 8, {"Groups": Many(count, {"GroupId": NAME, "Topics": None})}
    yield 20, "partitions", "OffsetFetch", 8, {"Groups": [{"GroupId": "heavy", "Topics": [{"Name": TOPIC, "PartitionIndexes": Many(count, 0)}]}]}
    yield 20, "offsets of a group", "OffsetCommit", 8, {"GroupId": "heavy", "GenerationIdOrMemberEpoch": -1, "MemberId": "", "Topics": [{"Name": TOPIC, "Partitions": partitions(PartitionIndex=0, CommittedOffset=1, CommittedMetadata="")}]}
    yield 21, "members that leave", "LeaveGroup", 5, {"GroupId": "heavy", "Members": Many(count, {"MemberId": NAME})}
    yield 21, "assignments", "SyncGroup", 5, {"GroupId": "heavy", "GenerationId": 1, "MemberId": "nobody", "Assignments": Many(count, {"MemberId": NAME, "Assignment": b"x"})}
    yield 21, "protocols", "JoinGroup", 2, {"GroupId": "protocols", "SessionTimeoutMs": 6000, "RebalanceTimeoutMs": 1, "MemberId": "", "ProtocolType": "consumer", "Protocols": Many(count, {"Name": NAME, "Metadata": b""})}
    yield 17, "states", "ListGroups", 5, {"StatesFilter": Many(count, NAME), "TypesFilter": []}
    yield 17, "types", "ListGroups", 5, {"StatesFilter": [], "TypesFilter": Many(count, NAME)}
    yield 17, "components", "DescribeClientQuotas", 1, {"Components": Many(count, {"EntityType": NAME, "MatchType": 2, "Match": None})}
    yield 17, "limits of a client", "AlterClientQuotas", 1, {"Entries": [{"Entity": [{"EntityType": "client-id", "EntityName": "heavy"}], "Ops": Many(count, {"Key": NAME, "Value": 1.0, "Remove": True})}], "ValidateOnly": True}
    twice = {"Entity": [{"EntityType": "client-id", "EntityName": NAME}], "Ops": []}
    yield 17, "clients, each twice", "AlterClientQuotas", 1, {"Entries": Many(min(count // 2, 4999), twice), "ValidateOnly": True}, 2
    yield 25, "topics to be made", "CreateTopics", 5, {"Topics": Many(count, {"Name": NAME, "NumPartitions": 1, "ReplicationFactor": 1}), "timeoutMs": 1000, "validateOnly": True}
    yield 25, "places of partitions", "CreateTopics", 5, {"Topics": [{"Name": "heavy-made", "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": Many(count // 2, {"PartitionIndex": 0, "BrokerIds": [1]})}], "validateOnly": True}
    yield 25, "brokers of a partition", "CreateTopics", 5, {"Topics": [{"Name": "heavy-made", "NumPartitions": -1, "ReplicationFactor": -1, "Assignments": [{"PartitionIndex": 0, "BrokerIds": Many(count, 1)}]}], "validateOnly": True}
    yield 17, "settings of a new topic", "CreateTopics", 5, {"Topics": [{"Name": "heavy-made", "NumPartitions": 1, "ReplicationFactor": 1, "Configs": Many(count, {"Name": NAME, "Value": "1"})}], "validateOnly": True}
    yield 25, "topics that get partitions", "CreatePartitions", 3, {"Topics": Many(count, {"Name": NAME, "Count": 3, "Assignments": None}), "TimeoutMs": 1000, "ValidateOnly": True}
    yield 17, "topics that aren't there", "DeleteTopics", 5, {"TopicNames": Many(count // 4, NAME), "TimeoutMs": 1000}
    yield 17, "settings of a topic", "IncrementalAlterConfigs", 1, {"Resources": [{"ResourceType": 2, "ResourceName": TOPIC, "Configs": Many(count, config)}], "ValidateOnly": True}
    yield 17, "settings of a broker", "IncrementalAlterConfigs", 1, {"Resources": [{"ResourceType": 4, "ResourceName": "1", "Configs": Many(count, config | {"ConfigOperation": 1})}], "ValidateOnly": True}
    yield 17, "brokers", "IncrementalAlterConfigs", 1, {"Resources": Many(count, {"ResourceType": 4, "ResourceName": NAME, "Configs": []}), "ValidateOnly": True}
    yield 17, "words of a list", "IncrementalAlterConfigs", 1, {"Resources": [{"ResourceType": 2, "ResourceName": TOPIC, "Configs": [
        {"Name": "cleanup.policy", "ConfigOperation": 2, "Value": ",".join(map(str, range(count)))}]}], "ValidateOnly": True}
    yield 17, "settings of a topic", "AlterConfigs", 2, {"Resources": [{"ResourceType": 2, "ResourceName": TOPIC, "Configs": Many(count, {"Name": NAME, "Value": "1"})}], "ValidateOnly": True}
    yield 17, "groups", "AlterConfigs", 2, {"Resources": Many(count, {"ResourceType": 32, "ResourceName": NAME, "Configs": []}), "ValidateOnly": True}
    yield 17, "partitions that aren't there", "Fetch", 12, {"MaxWaitMs": 0, "MinBytes": 0, "Topics": [{"Topic": TOPIC, "Partitions": partitions(Partition=9, FetchOffset=0, PartitionMaxBytes=1)}]}
    yield 22, "topics to be forgotten", "Fetch", 12, {"MaxWaitMs": 0, "MinBytes": 0, "SessionId": 0, "SessionEpoch": 0, "Topics": [], "ForgottenTopicsData": Many(count // 2, {"Topic": NAME, "Partitions": [0]})}
    yield 17, "partitions that aren't there", "Produce", 9, {"Acks": -1, "TimeoutMs": 1000, "TopicData": [{"Name": TOPIC, "PartitionData": partitions(Index=9, Records=None)}]}


def frames(count):
    """(number, what, frame) of each."""
    for number, what, name, version, values, *times in heavy(count):
        data = messages.frame(name, version, values)
        if times:
            # The same elements once more in one request: what names each thing twice.
            array = next(v for v in values.values() if isinstance(v, Many))
            data = twice(name, version, values, array)
        yield number, f"{what}, {count:,} in a {name}", data


def twice(name, version, values, array):
    class Twice(Many):
        def bytes(self, one):
            half = Many(self.count // 2, self.item).bytes(one)
            return half + half

    field = next(k for k, v in values.items() if v is array)
    return messages.frame(name, version, values | {field: Twice(array.count * 2, array.item)})


def stalls(judge, broker, count):
    """Each by itself, with others that ask for a little meanwhile."""
    others = [wire.Connection(broker.port, 60) for _ in range(8)]
    slowest_of_all, slowest_what = 0.0, ""
    for number, what, data in frames(count):
        judge.case(number)
        best, took = None, 0.0
        for _ in range(TRIES):
            answered, slowest, took = beside(broker, others, data)
            judge.p.check(f"{number}: {what}: an answer or a closed connection", answered, f"nothing in {took:.1f} s")
            best = slowest if best is None else min(best, slowest)
            if best < STALL_S or not answered:
                break
        if best > slowest_of_all:
            slowest_of_all, slowest_what = best, what
        judge.p.check(f"{number}: others are answered beside {what}", best < STALL_S, f"{best * 1e3:.0f} ms")
        judge.p.say(f"{number}: {what}: {len(data) >> 10} KiB, {took * 1e3:.0f} ms, others waited for {best * 1e3:.1f} ms")
    for one in others:
        one.close()
    judge.served("heavy requests")
    judge.p.figures.update(slowest_beside_ms=round(slowest_of_all * 1e3, 1), slowest_beside=slowest_what)


def beside(broker, others, data):
    """Sends a frame; (whether it is answered or closed, the slowest answer of others meanwhile, how long it took)."""
    one = socket.create_connection(("127.0.0.1", broker.port), 30)
    began = time.monotonic()
    one.sendall(data)
    one.settimeout(None)
    waiting, slowest = selectors.DefaultSelector(), 0.0
    waiting.register(one, selectors.EVENT_READ)
    done = False
    while not done and time.monotonic() < began + ANSWER_S:
        done = bool(waiting.select(0))
        for other in others:
            asked = time.monotonic()
            other.api_versions()
            slowest = max(slowest, time.monotonic() - asked)
    waiting.close()
    one.close()
    return done, slowest, time.monotonic() - began


def piles(judge, broker, count):
    """Many at once, whose answers nobody reads for a while: what they are made into is bounded as they are."""
    for number, what, data in frames(count):
        before, watch = rss_mib(broker), Watch(broker)
        many = []
        for _ in range(AT_ONCE):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(30)
            one.connect(("127.0.0.1", broker.port))
            many.append(one)
        sent = [push(one, data) for one in many]
        judge.served(f"{number}: {AT_ONCE} times {what}")
        time.sleep(0.5)
        grown = watch.end() - before
        for one in many:
            one.close()
        judge.case(number)
        judge.p.check(f"{number}: {AT_ONCE} times {what} take a bounded memory", grown <= GROWTH_MIB, f"{grown:.0f} MiB")
        judge.p.figures["piled_growth_mib"] = max(judge.p.figures.get("piled_growth_mib", 0), round(grown, 1))
        judge.p.say(f"{number}: {AT_ONCE} times {what}, {sum(sent)} of them sent: {grown:.0f} MiB more")
    judge.served("piles of heavy requests")


def push(one, data):
    """Whether a frame could be sent: while others' are carried out it may wait in its socket."""
    one.setblocking(False)
    view, until = memoryview(data), time.monotonic() + 5
    while view and time.monotonic() < until:
        try:
            view = view[one.send(view):]
        except BlockingIOError:
            time.sleep(0.005)
        except OSError:
            return False
    return not view


def strangers(judge, broker, count):
    """23: groups that are only asked for leave nothing behind, neither in the books nor in memory."""
    connection = messages.Connection(broker.port, timeout=60)
    before = metrics.total(broker, metrics.GROUPS)
    asked = (("Heartbeat", 3, {"GroupId": NAME, "GenerationId": 1, "MemberId": "m"}), ("LeaveGroup", 2, {"GroupId": NAME, "MemberId": "m"}), ("SyncGroup", 3, {"GroupId": NAME, "GenerationId": 1, "MemberId": "m"}),
             ("OffsetCommit", 7, {"GroupId": NAME, "GenerationIdOrMemberEpoch": 3, "MemberId": "m", "Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0}]}]}),
             ("OffsetDelete", 0, {"GroupId": NAME, "Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0}]}]}), ("JoinGroup", 5, {"GroupId": NAME, "SessionTimeoutMs": 1, "MemberId": "", "ProtocolType": "consumer", "Protocols": [{"Name": "range"}]}))
    for name, version, values in asked:
        for part in range(0, count, 200):
            data = b"".join(messages.frame(name, version, values | {"GroupId": f"stranger-{n}"}) for n in range(part, part + 200))
            connection.socket.sendall(data)
            for _ in range(200):
                size = int.from_bytes(connection._exactly(4), "big")
                connection._exactly(size)
    connection.close()
    after = metrics.total(broker, metrics.GROUPS)
    judge.p.check(f"23: {count} groups that are only asked for leave nothing behind", after == before, [before, after])
    judge.crowd(23, f"{count} groups that are only asked for, in six ways")


def clients(judge, broker, count):
    """23: clients of very many names, each with a quota: what is counted of them is bounded, and others are served."""
    admin = messages.Connection(broker.port, timeout=60)
    entry = {"Entity": [{"EntityType": "client-id", "EntityName": None}], "Ops": [{"Key": "request_percentage", "Value": 1e6, "Remove": False}, {"Key": "consumer_byte_rate", "Value": 1e12, "Remove": False}]}
    answer = admin.call("AlterClientQuotas", 1, {"Entries": [entry]})
    judge.p.check("23: every client can be given a quota", answer["Entries"][0]["ErrorCode"] == 0, answer)
    before, connection = rss_mib(broker), wire.Connection(broker.port, 60)
    values = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1, "Topics": [{"Topic": TOPIC, "Partitions": [{"Partition": 0, "PartitionMaxBytes": 1}]}]}
    for part in range(0, count, 200):
        connection.socket.sendall(b"".join(messages.frame("Fetch", 4, values, client=f"client-{n}-{'x' * 40}") for n in range(part, part + 200)))
        for _ in range(200):
            connection.receive()
    grown = rss_mib(broker) - before
    connection.close()
    entry["Ops"] = [op | {"Remove": True} for op in entry["Ops"]]
    admin.call("AlterClientQuotas", 1, {"Entries": [entry]})
    admin.close()
    judge.p.check(f"23: {count} clients with quotas take a bounded memory", grown < 48, f"{grown:.0f} MiB")
    judge.p.figures["clients_with_quotas"] = count
    judge.crowd(23, f"{count} clients with quotas")
