"""The administrative calls of the matrix of clients/1, one after the other. Each that a client offers must say, or do, what the
broker itself is then asked about; what it doesn't offer is done for it, so that the next finds what it needs."""

import proc
from matrix import PARTITIONS, must
from proc import Failed

CALLS = ("create_topic", "list_topics", "describe_topic", "create_partitions", "get_config", "set_config", "list_offsets", "delete_records",
         "describe_cluster", "describe_log_dirs", "describe_producers", "elect_leader", "list_groups", "describe_group", "group_offsets",
         "set_group_offset", "delete_group_offset", "delete_group", "delete_topic")


def calls(row):
    """All of them; how many of them the client has."""
    oracle, topic, group = row.oracle, row.name("admin"), row.name("admin-group")
    offered = row.hello["admin"]
    wrong = []

    def call(which, check, instead=None, /, **arguments):
        """`check` looks at the answer and at the broker; `instead` does for the client what it can't."""
        try:
            if which in offered:
                must(f"admin:{which}" not in row.limits, f"{which}: listed as absent, and it is there")
                answer = row.driver.admin(which, **arguments)
                # A Kafka learns of its own changes a moment after it has acknowledged them.
                try:
                    proc.wait_for(which, lambda: check(answer), 10)
                except Failed:
                    raise Failed(f"{which}: {answer!r:.200}") from None
            else:
                absent(row, which)
                if instead:
                    instead()
        except Failed as error:
            wrong.append(str(error))

    call("create_topic", lambda _: (oracle.partitions(topic), oracle.config(topic, "retention.ms")) == (3, "86400000"),
         lambda: oracle.create(topic, 3, retention_ms="86400000"), topic=topic, partitions=3, config={"retention.ms": "86400000"})
    call("list_topics", lambda found: topic in found)
    call("describe_topic", lambda found: found == 3, topic=topic)
    call("create_partitions", lambda _: oracle.partitions(topic) == PARTITIONS, lambda: grow(oracle, topic), topic=topic, partitions=PARTITIONS)
    call("get_config", lambda found: found == "86400000", topic=topic, name="retention.ms")
    call("set_config", lambda _: oracle.config(topic, "retention.ms") == "3600000", topic=topic, name="retention.ms", value="3600000")
    oracle.produce(topic, 0, [b"%d" % n for n in range(10)])
    call("list_offsets", lambda found: found == [0, 10], topic=topic, partition=0)
    call("delete_records", lambda low: low in (4, None) and oracle.offset(topic, 0, -2) == 4, topic=topic, partition=0, before=4)
    call("describe_cluster", lambda found: found == 1)
    call("describe_log_dirs", lambda found: found == PARTITIONS, topic=topic)
    call("describe_producers", lambda found: found == 0, topic=topic, partition=0)
    call("elect_leader", lambda said: "needed" in said.lower().replace("_", " ") or said == "done", topic=topic, partition=0)
    oracle.commit(group, topic, {0: 7, 1: 0})
    call("list_groups", lambda found: group in found)
    call("describe_group", lambda found: found == ["Empty", 0], group=group)
    call("group_offsets", lambda found: {p: o for p, o in found.items() if o >= 0} == {"0": 7, "1": 0}, group=group, topic=topic)
    call("set_group_offset", lambda _: oracle.committed(group, topic, 2) == {0: 5, 1: 0}, group=group, topic=topic, partition=0, offset=5)
    call("delete_group_offset", lambda _: oracle.committed(group, topic, 2)[1] == -1, group=group, topic=topic, partition=1)
    call("delete_group", lambda _: oracle.group(group)[0] == "Dead", group=group)
    call("delete_topic", lambda _: oracle.partitions(topic) is None, topic=topic)
    must(not wrong, "; ".join(wrong))
    return f"{len(offered)} of {len(CALLS)}"


def absent(row, name):
    """What isn't offered is in the committed list, and the client's driver has no way to do it."""
    must(f"admin:{name}" in row.limits, f"{name}: neither offered nor listed as absent")
    try:
        row.driver.admin(name)
    except Failed as error:
        must(": unsupported;" in str(error), f"{name}: {error}")
    else:
        raise Failed(f"{name}: listed as absent, and it is there")


def grow(oracle, topic):
    answer = oracle.call("CreatePartitions", 0, {"Topics": [{"Name": topic, "Count": PARTITIONS, "Assignments": None}], "TimeoutMs": 30000})
    must(answer["Results"][0]["ErrorCode"] == 0, f"create partitions: {answer}")
    proc.wait_for("there are more partitions", lambda: oracle.partitions(topic) == PARTITIONS, 10)
