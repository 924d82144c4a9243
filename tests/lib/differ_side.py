"""One of the two brokers of the differential proof: it gets steps, in which what a broker gives out itself (ids, epochs, times) is a `Ref`; it learns
what the answers give out, and gives the answers back without what is a broker's own."""

import dataclasses
import re
import select
import socket
import struct
import time
import uuid

import differ_records
import messages

NOBODY = str(uuid.UUID(int=0))
OWN = {"ClusterId", "ControllerId", "Port", "Host", "ErrorMessage", "BatchIndexErrorMessage", "PartitionSize", "LogDir", "TotalBytes", "UsableBytes",
       "SubscriptionId", "LastTimestamp", "Documentation", "ClientHost", "StartTimestampMs"}
# Times that batches have by themselves, from the run's base time on; another one is a broker's clock.
TIMES = (0, -50, -1000, 700000, -900000, 4000000)
# Set in the peer's own properties.
PEERS = ("min.insync.replicas", "segment.bytes", "retention.ms", "log.segment.bytes", "log.retention.ms")


@dataclasses.dataclass(frozen=True)
class Ref:
    """What only a broker's answers tell, or the history's own (names, times)."""
    kind: str
    of: object = None
    delta: int = 0

    def __repr__(self):
        return f"<{self.kind} {self.of!s:.20}{self.delta or '':+}>" if self.delta else f"<{self.kind} {self.of!s:.20}>"


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    version: int
    values: dict
    connection: str = "main"
    slot: str = ""
    mangle: tuple = ()

    def __repr__(self):
        more = (f" on {self.connection}" if self.connection != "main" else "") + (f" mangled {self.mangle}" if self.mangle else "")
        return f"{self.name} {self.version}{more} {self.values}"


class Wire(messages.Connection):
    """A connection whose answer may be waited for later."""
    waiting = None

    def put(self, step, values):
        schema = messages.load(step.name + "Request")
        self.number += 1
        client = self.client.encode()
        head = struct.pack(">hhih", schema["apiKey"], step.version, self.number, len(client)) + client
        if messages.within(schema.get("flexibleVersions"), step.version):
            head += b"\0"
        body = messages.encode(step.name + "Request", step.version, values)
        if step.mangle:
            body = mangled(body, *step.mangle)
        self.waiting = step
        try:
            self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        except OSError:
            pass

    def ready(self, seconds):
        return bool(select.select([self.socket], [], [], max(seconds, 0))[0])

    def get(self):
        step, self.waiting = self.waiting, None
        try:
            return self.receive(step.name, step.version)
        except (ConnectionError, EOFError):
            return "closed"
        except (socket.timeout, TimeoutError):
            return "no answer"
        except (ValueError, AssertionError, struct.error) as e:
            return f"not to be read: {e}"


def merged(topics):
    """Kafka's Fetch answers a topic in several rows where partitions of others lie between its own; clients read them as one."""
    found = {}
    for row in topics:
        name = row.get("Topic") or row.get("TopicId")
        found.setdefault(name, row | {"Partitions": []})["Partitions"].extend(row["Partitions"])
    return list(found.values())


def mangled(body, how, at, value):
    if how == "cut":
        return body[:len(body) - 1 - at % max(len(body), 1)]
    if how == "more":
        return body + bytes([value]) * (1 + at % 9)
    data = bytearray(body)
    if data:
        data[at % len(data)] ^= value or 1
    return bytes(data)


class Side:
    def __init__(self, port, kafka, base_ms):
        self.port, self.kafka, self.base_ms = port, kafka, base_ms
        self.admin = messages.Connection(port, timeout=30)
        self.turn = 0
        self.begin("")

    def begin(self, prefix):
        """A new history: names of its own, nothing known."""
        self.prefix = prefix
        self.connections = {}
        self.topic_ids, self.id_names, self.epochs, self.partitions = {}, {}, {}, {}
        self.members, self.member_names, self.generations = {}, {}, {}
        self.producers, self.producer_names = {}, {}
        self.sessions, self.subscriptions = {}, {}

    def end(self):
        for one in self.connections.values():
            one.close()
        found = self.admin.call("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": False})
        mine = [t["Name"] for t in found["Topics"] if t["Name"].startswith(self.prefix)]
        if mine:
            self.admin.call("DeleteTopics", 5, {"TopicNames": mine, "TimeoutMs": 30000})

    # --- sending ------------------------------------------------------------

    def send(self, step):
        """The connection that waits for the answer. One that still waits for another is given up."""
        old = self.connections.get(step.connection)
        if old and old.waiting:
            self.give_up(old)
            old = None
        if old is None:
            old = self.connections[step.connection] = Wire(self.port, client="proof", timeout=6)
        old.put(step, self.resolve(step.values))
        return old

    def give_up(self, connection):
        connection.waiting = None
        connection.close()
        self.connections = {k: v for k, v in self.connections.items() if v is not connection}

    def take(self, connection):
        """The answer, as it is to be compared."""
        step = connection.waiting
        answer = connection.get()
        if not isinstance(answer, dict):
            self.give_up(connection)
            return answer
        self.learn(step, answer)
        if step.name == "ApiVersions":
            # What else it tells is what the brokers serve.
            answer = {k: answer[k] for k in ("ErrorCode", "ThrottleTimeMs") if k in answer}
        return self.normal(answer, "")

    def resolve(self, value):
        if isinstance(value, dict):
            return {k: self.resolve(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.resolve(v) for v in value]
        if isinstance(value, differ_records.Batch):
            pid, epoch = self.producers.get(value.producer, (4242, 0)) if value.producer else (-1, -1)
            return value.bytes(self.base_ms, pid, epoch + value.epoch_delta)
        if not isinstance(value, Ref):
            return value
        of, delta = value.of, value.delta
        return {
            "name": lambda: self.prefix + of,
            "topic id": lambda: self.topic_ids.get(of, str(uuid.uuid5(uuid.NAMESPACE_DNS, self.prefix + of))),
            "first topic id": lambda: next((i for i, n in self.id_names.items() if n == f"id of {of}, 0"), str(uuid.uuid5(uuid.NAMESPACE_DNS, self.prefix + of))),
            "epoch": lambda: self.epochs[of] + delta if of in self.epochs else -1,
            "member": lambda: self.members.get(of, "nobody " + of),
            "generation": lambda: self.generations.get(of, 1) + delta,
            "producer": lambda: self.producers.get(of, (4242, 0))[0] + delta,
            "producer epoch": lambda: self.producers.get(of, (4242, 0))[1] + delta,
            "session": lambda: self.sessions.get(of, 0) + delta,
            "subscription": lambda: self.subscriptions.get(of, 1) + delta,
            "instance": lambda: str(uuid.uuid5(uuid.NAMESPACE_URL, self.prefix + of)),
            "time": lambda: self.base_ms + (of or 0),
        }[value.kind]()

    # --- learning -----------------------------------------------------------

    def learn(self, step, answer):
        name = step.name
        if name == "JoinGroup" and answer["MemberId"]:
            self.members[step.slot] = answer["MemberId"]
            self.member_names.setdefault(answer["MemberId"], f"{step.slot} {sum(n.startswith(step.slot) for n in self.member_names.values())}")
            if answer["ErrorCode"] == 0:
                self.generations[step.slot.split("/")[0]] = answer["GenerationId"]
        if name == "InitProducerId" and answer["ErrorCode"] == 0:
            self.producers[step.slot] = answer["ProducerId"], answer["ProducerEpoch"]
            self.producer_names.setdefault(answer["ProducerId"], f"producer {len(self.producer_names)}")
        if name == "Fetch" and answer.get("SessionId"):
            self.sessions[step.slot] = answer["SessionId"]
        if name == "GetTelemetrySubscriptions":
            self.subscriptions[step.slot] = answer["SubscriptionId"]
        if name == "Produce" and step.values["Acks"] == 1 and not self.kafka:
            self.commit(step, answer)
        if self.changes(step, answer):
            if self.kafka:
                self.barrier()
            self.settle(self.made_by_asking(step, answer))

    def commit(self, step, answer):
        """Waits until what was answered from memory is committed: before, nobody reads it here."""
        names = {topic_id: t for t, (topic_id, _) in self.partitions.items()}
        for topic in answer["Responses"]:
            name = topic["Name"] if step.version < 13 else names.get(topic["TopicId"])
            for part in topic["PartitionResponses"]:
                ask = {"ReplicaId": -1, "Topics": [{"Name": name, "Partitions": [{"PartitionIndex": part["Index"], "Timestamp": -1}]}]}
                deadline = time.monotonic() + 5
                while name and part["ErrorCode"] == 0 and time.monotonic() < deadline:
                    if self.admin.call("ListOffsets", 1, ask)["Topics"][0]["Partitions"][0]["Offset"] > part["BaseOffset"]:
                        break

    def changes(self, step, answer):
        """Whether topics or their settings may be others now."""
        rows = {"CreateTopics": "Topics", "CreatePartitions": "Results", "DeleteTopics": "Responses", "IncrementalAlterConfigs": "Responses", "AlterConfigs": "Responses", "Metadata": "Topics"}.get(step.name)
        if rows is None or step.values.get("ValidateOnly") or step.values.get("validateOnly"):
            return False
        if step.name == "Metadata":
            return bool(self.made_by_asking(step, answer)) or not self.kafka and (step.version < 4 or step.values["AllowAutoTopicCreation"])
        return any(row["ErrorCode"] == 0 for row in answer[rows])

    def made_by_asking(self, step, answer):
        """Topics that Kafka makes now because their metadata was asked for."""
        if step.name != "Metadata" or not self.kafka or step.version >= 4 and not step.values["AllowAutoTopicCreation"]:
            return []
        named = [t["Name"] for t in answer["Topics"] if t["ErrorCode"] in (3, 5) and t["Name"]]
        there = {t.replace(".", "_") for t in self.partitions}
        return [n for n in named if re.fullmatch(r"[\w.-]{1,249}", n, re.A) and n.replace(".", "_") not in there]

    def barrier(self):
        """Until this broker has taken in all that was acknowledged: Kafka's controller answers before its broker knows. Twice, as what is seen of the first may
        have been taken in together with what came before, and that is at work one after another."""
        for _ in range(2):
            self.turn += 1
            value = str(10_000_000 + self.turn)
            resource = {"ResourceType": 2, "ResourceName": "barrier"}
            self.admin.call("IncrementalAlterConfigs", 1, {"Resources": [resource | {"Configs": [{"Name": "retention.ms", "ConfigOperation": 0, "Value": value}]}]})
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                row = self.admin.call("DescribeConfigs", 4, {"Resources": [resource | {"ConfigurationKeys": ["retention.ms"]}]})["Results"][0]
                if row["Configs"] and row["Configs"][0]["Value"] == value:
                    break
                time.sleep(0.002)

    def settle(self, expected=()):
        """Waits for the leaders of the history's topics, and a moment for the expected ones; notes ids and epochs."""
        deadline = time.monotonic() + 10
        soon = time.monotonic() + 1
        while time.monotonic() < deadline:
            found = self.admin.call("Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": False})
            mine = [t for t in found["Topics"] if t["Name"].startswith(self.prefix)]
            new = {t["Name"]: len(t["Partitions"]) for t in mine if self.partitions.get(t["Name"]) != (t["TopicId"], len(t["Partitions"]))}
            gone = [t for t in self.partitions if t not in {m["Name"] for m in mine}]
            for topic in gone:
                del self.partitions[topic]
            good = set(expected) <= {t["Name"] for t in mine} or time.monotonic() > soon
            good = good and all(t["ErrorCode"] == 0 and all(p["ErrorCode"] == 0 for p in t["Partitions"]) for t in mine)
            if good and (not new or self.led(new)):
                break
            time.sleep(0.01)
        for topic in mine:
            short = topic["Name"].removeprefix(self.prefix)
            self.partitions[topic["Name"]] = topic["TopicId"], len(topic["Partitions"])
            if topic["TopicId"] not in self.id_names:
                self.topic_ids[short] = topic["TopicId"]
                self.id_names[topic["TopicId"]] = f"id of {short}, {sum(n.startswith(f'id of {short},') for n in self.id_names.values())}"
            for one in topic["Partitions"]:
                self.epochs[short, one["PartitionIndex"]] = one["LeaderEpoch"]

    def led(self, topics):
        answer = self.admin.call("ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": t, "Partitions": [{"PartitionIndex": p, "Timestamp": -1} for p in range(n)]} for t, n in topics.items()]})
        return all(p["ErrorCode"] == 0 for t in answer["Topics"] for p in t["Partitions"])

    # --- comparing ----------------------------------------------------------

    def mine(self, row):
        """Whether a row of a list of everything belongs to the history."""
        for key in ("GroupId", "Name", "Topic", "TopicName", "ResourceName"):
            name = row.get(key) if isinstance(row, dict) else None
            if isinstance(name, str) and name.startswith(("d-", "barrier", "__")):
                return name.startswith(self.prefix)
        return True

    def normal(self, value, key):
        if isinstance(value, dict):
            if value.get("Name") in PEERS and "ConfigSource" in value:
                value = {k: v for k, v in value.items() if k not in ("ConfigSource", "Synonyms")}
            return {k: self.normal(v, k) for k, v in value.items()}
        if key == "AbortedTransactions" and not value:
            return "none"
        if isinstance(value, list):
            if key == "Responses" and value and "Partitions" in value[0]:
                value = merged(value)
            # Kafka's order is mostly that of its hash maps.
            return sorted((self.normal(v, key) for v in value if self.mine(v)), key=repr)
        if key == "Records":
            return differ_records.stored(value, self.base_ms, self.producer_names)
        if key == "TopicId":
            return self.id_names.get(value, value)
        if key in ("MemberId", "Leader"):
            return self.member_names.get(value, value if not value or len(value) < 20 else "a new member")
        if key == "ProducerId":
            return self.producer_names.get(value, value)
        if key in ("LeaderEpoch", "CurrentLeaderEpoch", "Epoch"):
            return "an epoch" if value >= 0 else value
        if key == "SessionId":
            return "a session" if value else 0
        if key in ("LogAppendTimeMs", "Timestamp") and value > 0:
            return value - self.base_ms if value - self.base_ms in TIMES and key == "Timestamp" else "a time"
        if key in OWN:
            return "own" if value not in (None, "", -1) else value
        if key == "ClientInstanceId":
            return "an instance"
        return value.hex() if isinstance(value, bytes) else value
