"""Where Tailrace may answer otherwise than Kafka 4.4, and why. A full run of the differential proof reports an entry that nothing matched any more."""

import dataclasses
import re

from differ_records import Batch
from differ_side import NOBODY


# Keys that leave everything as it is.
READING = "ListOffsets|OffsetFetch|Describe.*|List.*|OffsetForLeaderEpoch|FindCoordinator|ApiVersions"


@dataclasses.dataclass(frozen=True)
class Accepted:
    """A difference in the answer to one of `keys`, at a path that `path` matches, with these two values (None: any). `when` looks at the case. With `whole` the rest of that
    answer follows from it; with `ends` the two brokers have parted ways, and the history ends."""
    name: str
    reason: str
    keys: str
    path: str = ""
    theirs: object = None
    ours: object = None
    when: object = None
    whole: bool = False
    ends: bool = False

    def fits(self, d):
        return (re.fullmatch(self.keys, d.case.step.name) and re.search(self.path, d.path) and is_one(self.theirs, d.theirs) and is_one(self.ours, d.ours)
                and (self.when is None or self.holds(d.case)))

    def holds(self, case):
        try:
            return bool(self.when(case))
        except (TypeError, KeyError, AttributeError):
            # An answer that is none: the connection was closed.
            return False


def is_one(wanted, value):
    return wanted is None or (value in wanted if isinstance(wanted, tuple) else value == wanted)


def rows(value):
    """All dictionaries within a value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from rows(one)


def batches(case):
    return [r["Records"] for r in rows(case.step.values) if isinstance(r.get("Records"), Batch)]


def fault(*names):
    return lambda case: any(b.fault in names for b in batches(case))


def named_twice(case):
    def twice(value):
        if isinstance(value, dict):
            return any(twice(v) for v in value.values())
        if not isinstance(value, (list, tuple)):
            return False
        names = [repr([v for k, v in one.items() if k in ("Name", "Topic", "TopicId", "TopicName", "Partition", "PartitionIndex", "GroupId", "ResourceName", "ResourceType")]) if isinstance(one, dict)
                 else repr(one) for one in value]
        names = [n.replace("first ", "") for n in names]
        return len(set(names)) < len(names) or any(twice(v) for v in value)
    return twice(case.step.values)


def resources(case, *kinds):
    return any(r.get("ResourceType") in kinds for r in rows(case.step.values))


def asks(name, *values):
    return lambda case: any(r.get(name) in values for r in rows(case.step.values))


def groups_of(values):
    for row in rows(values):
        for key in ("GroupId", "Groups", "GroupsNames"):
            found = row.get(key, ())
            yield from (found if isinstance(found, (list, tuple)) else (found,))


def repeated(case):
    """Whether a producer's batch of this request was sent before."""
    before = {(b.producer, b.sequence) for p in case.past if p.step.name == "Produce" for b in batches(p)}
    return any(b.producer and (b.producer, b.sequence) in before for b in batches(case))


def ghost(case):
    """Kafka has made a group of a request that it refused: a join, or a commit of nothing good."""
    for past in case.past:
        if past.step.name == "JoinGroup" and isinstance(past.theirs, dict) and past.theirs["ErrorCode"] in (23, 24, 26):
            pass
        elif past.step.name == "OffsetCommit" and isinstance(past.theirs, dict) and any(p["ErrorCode"] not in (0, 3, 100) for t in past.theirs["Topics"] for p in t["Partitions"]):
            pass
        else:
            continue
        if case.step.name == "ListGroups" or set(map(repr, groups_of(past.step.values))) & set(map(repr, groups_of(case.step.values))):
            return True
    return False


ACCEPTED = [
    Accepted("named twice", "what a request names twice Kafka answers once, or refuses as one; here each row is answered by itself", READING, when=named_twice, whole=True),
    Accepted("changed twice", "the same of requests that change something", "(?!Produce).*", when=named_twice, whole=True, ends=True),
    Accepted("isolation levels that there aren't", "Kafka fails with UNKNOWN_SERVER_ERROR; without transactions all see the same", "Fetch|ListOffsets", when=lambda c: c.step.values.get("IsolationLevel", 0) not in (0, 1),
             whole=True, ends=True),
    Accepted("operations that there aren't", "Kafka fails with UNKNOWN_SERVER_ERROR for the whole request; here the resource is refused", "IncrementalAlterConfigs", r"ErrorCode$", -1, when=lambda c: any(
        r["ConfigOperation"] not in range(4) for r in rows(c.step.values["Resources"]) if "ConfigOperation" in r), whole=True, ends=True),
    Accepted("batches that can't be read", "Kafka fails with UNKNOWN_SERVER_ERROR on an unknown codec and on what a codec can't read; it is an invalid record", "Produce", r"\.ErrorCode$", -1, 87, whole=True),
    Accepted("the id of no topic", "Kafka fails with UNKNOWN_SERVER_ERROR where a topic has neither name nor id; here it is an unknown id", "Metadata|Fetch", r"ErrorCode$", -1, when=lambda c: NOBODY in [
        t.get("TopicId") for t in (c.step.values["Topics"] or []) + (c.step.values.get("ForgottenTopicsData") or [])], whole=True, ends=True),
    Accepted("no answer of Kafka", "a partition without records breaks Kafka, which answers nothing; it is an invalid record", "Produce", "^$", "no answer", when=fault("null"), whole=True, ends=True),
    # Messages are for people.
    Accepted("a message more", "errors are explained here where Kafka leaves the message out", ".*", r"ErrorMessage$", (None, ""), "own"),
    Accepted("NONE", "Kafka tells NONE where nothing is wrong", "FindCoordinator", r"ErrorMessage$", "own", ("", None)),
    # Batches.
    Accepted("a producer without an epoch", "Kafka takes -1 for a producer's epoch; a batch with a producer's id needs an epoch here", "Produce", r"\.ErrorCode$", None, 87,
             lambda c: any(b.producer and b.epoch_delta < 0 for b in batches(c)), whole=True, ends=True),
    Accepted("offset deltas", "Kafka takes wrong offset deltas where batches are not compressed, and fails with UNKNOWN_SERVER_ERROR where they are; they are invalid here always", "Produce", r"\.ErrorCode$", None, 87, fault("delta"), whole=True, ends=True),
    Accepted("transactional batches", "there are no transactions yet", "Produce", when=fault("transactional"), whole=True, ends=True),
    Accepted("the log append bit", "Kafka takes it into a topic of CreateTime; it is refused here everywhere", "Produce", r"\.ErrorCode$", None, 32, fault("append"), whole=True, ends=True),
    Accepted("where the log starts", "a refused batch names the log's start where the leader looks at it; here it is refused before", "Produce", r"LogStartOffset$", None, -1),
    Accepted("an older batch", "a batch that was taken long ago is DUPLICATE_SEQUENCE_NUMBER, which clients take for done; Kafka says that it is out of order", "Produce", r"\.ErrorCode$", 45, 46),
    Accepted("when a repeated batch came", "Kafka answers a repeated batch with its newest record's time for that of its append", "Produce", r"LogAppendTimeMs$", "a time", -1, repeated),
    # What can't be read.
    Accepted("bytes that are others", "Kafka reads text that isn't UTF-8 as another text, and lengths below -1 as null; here the connection is closed", ".*", "^$", None, "closed", lambda c: c.step.mangle and c.step.mangle[0] == "other",
             whole=True),
    # Transactions.
    Accepted("transactional ids", "there are no transactions yet", "InitProducerId|FindCoordinator", r"ErrorCode$", None, 53, whole=True, ends=True),
    # Fetch.
    Accepted("clients that say they are replicas", "no broker reads as a replica in this way here; who says so is served as any client", "Fetch|ListOffsets|OffsetForLeaderEpoch",
             when=lambda c: any(r.get("ReplicaId", -1) not in (-1, -2) for r in rows(c.step.values)), whole=True, ends=True),
    Accepted("epochs below -1", "there is no such epoch; Kafka tells where the log begins", "OffsetForLeaderEpoch", r"Partitions\.(EndOffset|LeaderEpoch)$", None, -1,
             lambda c: any(isinstance(r.get("LeaderEpoch"), int) and r["LeaderEpoch"] < -1 for r in rows(c.step.values))),
    Accepted("a session's topic is gone", "Kafka remembers its name, and says that it is unknown or another; here its id is unknown", "Fetch", r"Partitions\.ErrorCode$", (3, 103), 100, lambda c: c.step.values.get("SessionEpoch", -1) > 0),
    Accepted("sessions of another shard", "a session belongs to the shard of its connection; who comes on another connection may begin anew", "Fetch", r"^ErrorCode$", None, 70,
             lambda c: any("closed" in (p.theirs, p.ours) or "no answer" in (p.theirs, p.ours) for p in c.past), whole=True),
    # Topics.
    Accepted("the id of what is only validated", "Kafka makes one up; there is none here", "CreateTopics", r"Topics\.TopicId$", when=lambda c: c.step.values["validateOnly"]),
    Accepted("topics made by asking", "a topic that is made because its metadata is asked for is there some milliseconds later; with Kafka it takes longer", "Metadata", r"Topics", when=lambda c: any(
        t["ErrorCode"] in (3, 5) for t in c.theirs["Topics"]) and (c.step.version < 4 or c.step.values["AllowAutoTopicCreation"]), whole=True),
    Accepted("too many partitions in all", "Kafka refuses all of a request that asks for far too many partitions; here each topic is judged by itself", "CreateTopics", r"Topics\.ErrorCode$", 44, whole=True, ends=True),
    Accepted("elections of nothing", "Kafka doesn't look at the type of an election that names no partition", "ElectLeaders", r"^ErrorCode$", 0, 42, lambda c: c.step.values["TopicPartitions"] == []),
    # Configurations.
    Accepted("an append under a bad name", "Kafka looks first at whether the config is a list", "IncrementalAlterConfigs", r"Responses\.ErrorCode$", 40, 17),
    Accepted("a resource of no type", "Kafka refuses all of a request in which one resource is of a type that isn't there", "DescribeConfigs", r"Results", when=lambda c: any(
        r["ResourceType"] not in (2, 4, 8, 16, 32) for r in c.step.values["Resources"]), whole=True),
    Accepted("a broker's configs", "brokers have other settings here, set when they start", ".*Configs", when=lambda c: resources(c, 4), whole=True),
    Accepted("a broker's loggers", "brokers have other loggers here", ".*Configs", when=lambda c: resources(c, 8), whole=True),
    Accepted("groups and subscriptions", "there are no groups of the new protocols and no receiver of clients' metrics yet: only defaults are taken", "(Incremental)?AlterConfigs",
             when=lambda c: resources(c, 16, 32), whole=True),
    # Groups.
    Accepted("groups of refused requests", "a join or commit that is refused leaves an empty group behind in Kafka, and nothing here", "DescribeGroups|DeleteGroups|ListGroups|OffsetCommit|JoinGroup|OffsetDelete",
             when=ghost, whole=True, ends=True),
    Accepted("a protocol without a name", "Kafka tells null for it", "JoinGroup|SyncGroup", r"ProtocolName$", None, ""),
    Accepted("another subscription", "Kafka remembers when a client asked or pushed last, and what it asked for; nothing is remembered here", "GetTelemetrySubscriptions|PushTelemetry", r"^ErrorCode$", (89, 117, 42), whole=True),
]
