"""The administrative commands, for clients/command-line: groups, topics, configs, the cluster, quotas, completion. What they
print is held against what another client sees: kcat reads on where a reset went, Kafka's own tools tell the same lag."""

import datetime
import json
import os
import pty
import select
import subprocess
import time

import broker as brokers
import proc
import proof

USAGE, REFUSED, UNREACHABLE = 2, 9, 10
NOWHERE = f"{proc.LOOPBACK}:1"
RECORDS = 100  # in each of three partitions
BEFORE = 60  # of them, produced before a time that is noted


class Commands:
    def __init__(self, p, run, broker):
        self.p, self.run, self.broker = p, run, broker

    def json(self, *args, code=0, words=()):
        out = self.run(code, words, *args, "--json")
        try:
            return json.loads(out)
        except ValueError:
            self.p.check(f"`{' '.join(map(str, args))}` prints JSON", False, out[:300])
            return None

    def table(self, *args):
        """Rows of a table by column name; the columns must be aligned."""
        lines = self.run(0, [], *args).decode().splitlines()
        names = lines[0].split()
        rows = [line.split() for line in lines[1:]]
        self.p.check(f"`{' '.join(map(str, args))}`: no line ends in blanks", all(x == x.rstrip() for x in lines))
        return [dict(zip(names, row)) for row in rows if len(row) == len(names)]

    def committed(self, group):
        [told] = self.json("group", "lag", group)
        return {(x["topic"], x["partition"]): x["committed"] for x in told["partitions"]}

    def state(self, group):
        return {g["group"]: g["state"] for g in self.json("group", "list")}.get(group)

    def reader(self, group, *topics):
        return proc.start(["kcat", "-b", self.broker.bootstrap, "-u", "-G", group, "-X", "auto.offset.reset=earliest",
                           "-X", "auto.commit.interval.ms=100", "-X", "session.timeout.ms=6000", *topics],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def everything(p, run, broker):
    c = Commands(p, run, broker)
    noted = fill(c)
    groups(c, noted)
    p.say("groups done")
    topics(c)
    configs(c)
    p.say("topics and configs done")
    cluster(c)
    quotas(c)
    completion(c)
    p.say("cluster, quotas and completion done")


def fill(c):
    """Records of two moments; a time between them."""
    c.run(0, [], "topic", "create", "orders", "--partitions", 3)
    c.run(0, [], "topic", "create", "t")
    for partition in range(3):
        c.run(0, [], "produce", "orders", "-p", partition, stdin=b"x\n" * BEFORE)
    time.sleep(0.3)
    noted = time.time()
    time.sleep(2)
    for partition in range(3):
        c.run(0, [], "produce", "orders", "-p", partition, stdin=b"x\n" * (RECORDS - BEFORE))
    return noted


def groups(c, noted):
    p, run = c.p, c.run
    p.check("no groups is a table without rows", run(0, [], "group", "list").startswith(b"GROUP "))
    reader = c.reader("live", "orders")
    proc.wait_for("all is read and committed", lambda: c.state("live") == "Stable" and set(
        c.committed("live").values()) == {RECORDS}, 40, every=0.3)
    [told] = c.json("group", "describe", "live")
    p.check("describe tells the member", [(m["host"].strip("/"), m["assignment"]) for m in told["members"]]
            == [(proc.LOOPBACK, [{"topic": "orders", "partitions": [0, 1, 2]}])] and told["lag"] == 0, told)
    text = run(0, [], "group", "describe", "live").decode()
    p.check("people see ranges", "orders 0-2" in text and "members      1" in text, text)
    members_are_left_alone(c)
    proc.end(reader)
    proc.wait_for("the group is empty", lambda: c.state("live") == "Empty", 20, every=0.2)
    previews(c, noted)
    resets(c)
    new_and_odd_groups(c)
    beside_kafkas_tool(c)
    deletes(c)


def members_are_left_alone(c):
    for execute in ((), ("--execute",)):
        told = c.json("group", "reset", "live", "--to-earliest", *execute, code=REFUSED,
                      words=["Stable with 1 member", proc.LOOPBACK, "nothing was changed", "stop its consumers"])
        c.p.check("a group with members isn't reset", told and told["executed"] is False
                  and set(c.committed("live").values()) == {RECORDS}, told)
    c.run(REFUSED, ["'live'", "members", "stop its consumers"], "group", "delete", "live")
    c.run(REFUSED, "subscribed", "group", "delete-offsets", "live", "--topic", "orders")


def previews(c, noted):
    """Where each way goes; nothing moves."""
    stamp = datetime.datetime.fromtimestamp(noted, datetime.UTC).isoformat(timespec="milliseconds")
    back = f"{int((time.time() - noted) * 1000)}ms"
    for args, expected, note in (
        (["--to-earliest"], 0, None), (["--to-latest"], RECORDS, None), (["--to-offset", 30], 30, None),
        (["--to-offset", 5000], RECORDS, "the end"), (["--shift-by", -7], RECORDS - 7, None),
        (["--shift-by", -5000], 0, "the start"), (["--shift-by", 1], RECORDS, "the end"),
        (["--to-datetime", stamp], BEFORE, None), (["--to-datetime", stamp.replace("+00:00", "Z")], BEFORE, None),
        (["--to-datetime", f"@{int(noted * 1000)}"], BEFORE, None), (["--to-datetime", "2020-01-01"], 0, None),
        (["--to-datetime", "2200-01-01T00:00"], RECORDS, "no record since"), (["--by-duration", back], BEFORE, None),
        (["--by-duration", "P1D"], 0, None), (["--by-duration", "0s"], RECORDS, "no record since"),
    ):
        told = c.json("group", "reset", "live", *args)
        c.p.check(f"reset {args[0]} {args[1:]} goes to {expected}", told and not told["executed"] and [
            (x["partition"], x["committed"], x["new"], note in (x["note"] or "") if note else x["note"])
            for x in told["partitions"]] == [(n, RECORDS, expected, True if note else None) for n in range(3)], told)
    c.p.check("previews change nothing", set(c.committed("live").values()) == {RECORDS})
    [row, *_] = c.table("group", "reset", "live", "--to-offset", 30)
    c.p.check("the preview is a table", (row["COMMITTED"], row["NEW"], row["CHANGE"], row["LAG"])
              == ("100", "30", "-70", "70"), row)
    for args, words in (
        (["--to-datetime", "soon"], "2026-"), (["--by-duration", "5"], "1h30m"), (["--to-offset", "-1"], "invalid value"),
        ([], "--to-earliest"), (["--to-latest", "--to-earliest"], "cannot be used"),
        (["--to-latest", "-t", "orders:x"], "orders:0,4-7"),
    ):
        c.run(USAGE, words, "group", "reset", "live", *args)
    c.run(REFUSED, "partitions 0 to 2", "group", "reset", "live", "--to-latest", "-t", "orders:3")
    c.run(REFUSED, "no topic 'nosuch'", "group", "reset", "live", "--to-latest", "-t", "nosuch")


def resets(c):
    """What is executed is where other clients go on."""
    told = c.json("group", "reset", "live", "--to-offset", 30, "--topic", "orders:0,2", "--execute")
    c.p.check("the reset is told", told and told["executed"], told)
    c.p.check("only the named partitions moved", list(c.committed("live").values()) == [30, RECORDS, 30])
    run_out = c.reader("live", "orders")
    lines = 0
    deadline = time.monotonic() + 40
    while lines < 2 * (RECORDS - 30) and time.monotonic() < deadline:
        if select.select([run_out.stdout], [], [], 0.2)[0]:
            lines += os.read(run_out.stdout.fileno(), 1 << 16).count(b"\n")
    proc.wait_for("it is committed", lambda: set(c.committed("live").values()) == {RECORDS}, 20, every=0.2)
    proc.end(run_out)
    c.p.check("a consumer goes on where the reset went", lines == 2 * (RECORDS - 30), lines)
    proc.wait_for("the group is empty", lambda: c.state("live") == "Empty", 20, every=0.2)
    text = c.run(0, [], "group", "reset", "live", "--shift-by", "-10", "--execute").decode()
    c.p.check("people are told", "3 offsets of group 'live' set" in text, text)
    [told] = c.json("group", "lag", "live")
    c.p.check("lag is told by partition and in all", told["lag"] == 30 and [
        (x["committed"], x["end"], x["lag"]) for x in told["partitions"]] == [(90, 100, 10)] * 3, told)


def new_and_odd_groups(c):
    p, run = c.p, c.run
    run(REFUSED, ["'nosuch'", "tailrace group list"], "group", "reset", "nosuch", "--to-latest")
    run(REFUSED, "no committed offset to shift", "group", "reset", "live", "--shift-by", 1, "-t", "t")
    run(0, "there is no group 'made' yet", "group", "reset", "made", "--to-offset", 5, "-t", "orders:1")
    p.check("a preview makes no group", c.state("made") is None)
    run(0, [], "group", "reset", "made", "--to-offset", 5, "-t", "orders:1", "--execute")
    p.check("a reset makes a group", c.committed("made") == {("orders", 1): 5}, c.committed("made"))
    odd = "odd\x1b[31m\tname"
    run(0, [], "group", "reset", odd, "--to-earliest", "-t", "orders:0", "--execute")
    text = run(0, [], "group", "list")
    p.check("names of others don't reach the terminal", b"\x1b" not in text and b"odd\\u{1b}[31m\\tname" in text, text)
    p.check("JSON has them as they are", odd in [g["group"] for g in c.json("group", "list")])
    run(0, [], "group", "delete", odd)
    run(0, [], "topic", "create", "gone")
    run(0, [], "produce", "gone", stdin=b"x\n")
    run(0, [], "group", "reset", "made", "--to-latest", "-t", "gone", "--execute")
    run(0, [], "topic", "delete", "gone")
    told = c.json("group", "reset", "made", "--to-earliest")
    p.check("topics that are gone are left out", [x["topic"] for x in told["partitions"]] == ["orders"], told)
    overview = {row["GROUP"]: row for row in c.table("group", "lag")}
    p.check("without a name there is a line for each group", overview.get("live", {}).get("LAG") == "30"
            and "made" in overview, overview)
    p.check("states can be chosen", c.json("group", "list", "--state", "stable") == [])
    run(USAGE, "possible values", "group", "list", "--state", "stabel")


def beside_kafkas_tool(c):
    text = brokers.tool("consumer-groups", "--bootstrap-server", c.broker.bootstrap, "--describe", "--group", "live",
                        check=False).decode()
    theirs = sorted(tuple(line.split()[1:6]) for line in text.splitlines() if line.startswith("live "))
    ours = sorted((r["TOPIC"], r["PARTITION"], r["COMMITTED"], r["END"], r["LAG"]) for r in c.table("group", "lag", "live")
                  if r.get("GROUP") == "live")
    c.p.check("Kafka's own tool tells the same lag", ours == theirs and len(ours) == 3, f"{ours} {theirs}")


def deletes(c):
    p, run = c.p, c.run
    run(0, [], "group", "delete-offsets", "live", "-t", "orders:0,1")
    p.check("offsets are forgotten", c.committed("live") == {("orders", 2): 90}, c.committed("live"))
    run(REFUSED, "no committed offset", "group", "delete-offsets", "live", "-t", "orders:0")
    run(REFUSED, "'nosuch'", "group", "delete-offsets", "nosuch", "-t", "orders")
    run(REFUSED, ["'nosuch'", "tailrace group list"], "group", "delete", "live", "nosuch")
    p.check("the others are deleted", c.state("live") is None)
    run(REFUSED, "'live'", "group", "describe", "live")
    run(REFUSED, "'live'", "group", "lag", "live")
    p.check("deleted is told", c.json("group", "delete", "made") == [{"group": "made", "deleted": True}])


def described(c, topic):
    [told] = c.json("topic", "describe", topic)
    return len(told["partitions"]), {x["name"]: (x["value"], x["source"]) for x in told["configs"]}


def topics(c):
    p, run = c.p, c.run
    run(0, [], "topic", "create", "wide", "--partitions", 2, "-c", "segment.bytes=2000000")
    run(0, "another partition than before", "topic", "alter", "wide", "-p", 4, "-c", "retention.ms=60000", "--dry-run")
    p.check("a dry run changes nothing", described(c, "wide")[0] == 2)
    run(0, "another partition than before", "topic", "alter", "wide", "-p", 4, "-c", "retention.ms=60000")
    proc.wait_for("configs are known everywhere", lambda: described(c, "wide")[1]["retention.ms"] == ("60000", "topic"), 10)
    p.check("there are more partitions", described(c, "wide")[0] == 4)
    run(0, "1 record", "produce", "wide", "-p", 3, stdin=b"x\n")
    run(REFUSED, ["'wide'", "4 partitions already", "fewer"], "topic", "alter", "wide", "-p", 3)
    run(USAGE, "nothing to change", "topic", "alter", "wide")
    run(USAGE, "given twice", "topic", "alter", "wide", "-c", "retention.ms=1", "--unset", "retention.ms")
    run(USAGE, "takes milliseconds", "topic", "alter", "wide", "-p", 6, "-c", "retention.ms=abc")
    run(REFUSED, "cleanup.policy", "topic", "alter", "wide", "-p", 6, "-c", "cleanup.policy=nonsense")
    run(REFUSED, "no_such.config", "topic", "alter", "wide", "-p", 6, "-c", "no_such.config=1")
    run(REFUSED, "'nosuch'", "topic", "alter", "wide", "nosuch", "-p", 6)
    p.check("all or nothing", described(c, "wide")[0] == 4)
    told = c.json("topic", "alter", "wide", "--unset", "retention.ms")
    [change] = told[0]["configs"]
    p.check("before and after are told", (change["config"], change["before"]) == ("retention.ms", "60000")
            and change["after"] in ("604800000", None), told)  # Kafka tells this default only in hours
    proc.wait_for("the default holds again", lambda: described(c, "wide")[1]["retention.ms"] == ("604800000", "default"), 10)
    text = run(0, [], "topic", "describe", "wide").decode()
    p.check("describe tells what was set", "segment.bytes" in text and "retention.ms" not in text, text)
    names = [row["TOPIC"] for row in c.table("topic", "list")]
    p.check("topics are listed in order", "wide" in names and names == sorted(names), names)


def configs(c):
    p, run = c.p, c.run
    [told] = c.json("config", "get", "topic", "wide", "segment.bytes")
    p.check("a config is told", (told["value"], told["source"], told["type"]) == ("2000000", "topic", "int"), told)
    run(REFUSED, "did you mean retention.ms?", "config", "get", "topic", "wide", "retention.m")
    run(REFUSED, "tailrace topic list", "config", "get", "topic", "nosuch")
    run(USAGE, "no broker's id", "config", "get", "broker", "x")
    run(REFUSED, "there is no broker 99", "config", "get", "broker", 99)
    run(USAGE, "nothing to change", "config", "set", "topic", "wide")
    text = run(0, [], "config", "set", "topic", "wide", "retention.ms=70000", "--dry-run").decode()
    p.check("what would change is shown", "604800000" in text and "70000" in text and "nothing was changed" in text, text)
    p.check("a dry run sets nothing", described(c, "wide")[1]["retention.ms"][1] == "default")
    run(0, [], "config", "set", "topic", "wide", "retention.ms=70000", "--unset", "segment.bytes")
    proc.wait_for("both are changed", lambda: (lambda d: d["retention.ms"] == ("70000", "topic")
                                               and d["segment.bytes"][1] != "topic")(described(c, "wide")[1]), 10)
    run(REFUSED, "retention.ms", "config", "set", "topic", "wide", "--append", "retention.ms=1")
    text = run(0, [], "config", "set", "topic", "wide", "retention.ms=1h30m", "retention.bytes=16MiB", "--dry-run").decode()
    p.check("values may have units", "5400000 (1h30m)" in text and "16777216 (16.0 MiB)" in text, text)
    broker = c.json("cluster", "info")["brokers"][0]["broker"]
    told = {x["name"]: x for x in c.json("config", "get", "broker", broker)}
    p.check("a broker's configs are told", told.get("log.segment.bytes", {}).get("type") == "int", list(told)[:5])
    text = run(0, [], "config", "get", "topic", "wide", "retention.ms", "--explain").decode()
    p.check("a config is explained", "long, set by: topic\n    topic: retention.ms = 70000" in text, text)
    if isinstance(c.broker, brokers.Tailrace):
        levels_change(c, broker)
    run(0, [], "config", "set", "broker", "default", "log.retention.bytes=1GiB")
    proc.wait_for("a default holds for topics", lambda: described(c, "wide")[1]["retention.bytes"] == ("1073741824", "all brokers"), 10)
    told = c.json("config", "get", "broker", "default")
    p.check("what all brokers share is told", [(x["name"], x["value"]) for x in told] == [("log.retention.bytes", "1073741824")], told)
    run(0, [], "config", "set", "broker", "default", "--unset", "log.retention.bytes")
    proc.wait_for("it is the default again", lambda: described(c, "wide")[1]["retention.bytes"] == ("-1", "default"), 10)
    only = c.json("config", "get", "topic", "wide", "--only-set")
    p.check("what was set can be chosen", "retention.ms" in [x["name"] for x in only]
            and not [x for x in only if x["source"] == "default"], only)


def levels_change(c, broker):
    c.run(0, [], "config", "set", "logger", broker, "engine=DEBUG", "root=WARN")
    c.p.check("levels are told", {x["name"]: x["value"] for x in c.json("config", "get", "logger", broker)} == {
        "engine": "DEBUG", **{name: "WARN" for name in ("cluster", "kafka_api", "node", "raftgroup", "root", "tailrace")}})
    c.run(0, [], "config", "set", "logger", broker, "root=INFO", "--unset", "engine")
    proc.wait_for("a new level is in force", lambda: "what is logged is now info" in c.broker.log(), 10)


def on_a_terminal(args, timeout=20):
    """What a command shows on a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    process = proc.start([proof.binary(), *args], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # how Linux tells that nobody has it open any more
            break
        shown += piece
    os.close(ours)
    process.wait(10)
    return shown, process.returncode


def cluster(c):
    p, run = c.p, c.run
    told = c.json("cluster", "info")
    [broker] = told["brokers"]
    p.check("the cluster is told", broker["address"] == c.broker.bootstrap and broker["controller"]
            and told["topics"] >= 2 and broker["leads"] == told["partitions"] and broker["data_bytes"] > 0, told)
    p.check("its disk is told", 0 < broker["free_bytes"] <= broker["disk_bytes"], broker)
    p.check("people see units", b"iB" in run(0, [], "cluster", "info"))
    told = c.json("cluster", "health")
    p.check("it is well", told["healthy"] and {x["check"] for x in told["checks"]}
            >= {"brokers", "controller", "leaders", "replicas", "disks"}, told)
    apis = {x["name"]: x for x in c.json("cluster", "apis")}
    p.check("versions are told", apis["Metadata"]["max"] == 13 and apis["Metadata"]["used"] == 13, apis.get("Metadata"))
    began = time.monotonic()
    run(UNREACHABLE, "can't connect", "cluster", "health", "--wait", "--timeout-ms", 1500, "-b", NOWHERE)
    p.check("it waits as long as it is told", 0.9 < time.monotonic() - began < 6, time.monotonic() - began)
    shown, code = on_a_terminal(["cluster", "health", "--wait", "--timeout-ms", "2500", "-b", NOWHERE])
    p.check("a terminal shows what is waited for", code == UNREACHABLE and b"\r\x1b[Kwaiting for the cluster" in shown, shown)
    c.broker.kill()
    waiting = proc.start([proof.binary(), "cluster", "health", "--wait", "--timeout-ms", "60000", "-b", c.broker.bootstrap],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1)
    p.check("it still waits", waiting.poll() is None)
    c.broker.start()
    out, err = waiting.communicate(timeout=60)
    p.check("it ends when the cluster is well", waiting.returncode == 0 and b"brokers" in out, f"{waiting.returncode} {err}")


def quotas(c):
    p, run = c.p, c.run
    if "DescribeClientQuotas" not in [x["name"] for x in c.json("cluster", "apis")]:
        run(REFUSED, ["doesn't support", "tailrace cluster apis"], "quota", "list")
        return
    p.check("no quotas is an empty list", c.json("quota", "list") == [])
    run(0, [], "quota", "set", "producer_byte_rate=1MiB", "request_percentage=50%", "--user", "alice")
    run(0, [], "quota", "set", "consumer_byte_rate=2000", "--default-client-id")
    told = proc.wait_for("quotas are known", lambda: (lambda told: told if len(told) == 3 else None)(c.json("quota", "list")), 10)
    p.check("quotas are told", [(x["user"], x["client_id"], x["quota"], x["value"]) for x in told] == [
        (None, "(default)", "consumer_byte_rate", 2000.0), ("alice", None, "producer_byte_rate", 1048576.0),
        ("alice", None, "request_percentage", 50.0)], told)
    theirs = brokers.tool("configs", "--bootstrap-server", c.broker.bootstrap, "--describe", "--entity-type", "users",
                          "--entity-name", "alice", check=False).decode()  # it asks for SCRAM credentials too
    p.check("Kafka's own tool sees them", "producer_byte_rate=1048576" in theirs.replace(" ", ""), theirs)
    told = c.json("quota", "set", "producer_byte_rate=2MiB", "--user", "alice", "--dry-run")
    p.check("a dry run tells and changes nothing", told["changes"][0]["before"] == 1048576.0 and not told["executed"]
            and len([x for x in c.json("quota", "list", "--user", "alice") if x["value"] == 1048576.0]) == 1, told)
    run(USAGE, "did you mean producer_byte_rate?", "quota", "set", "producer_byte_rat=1", "--user", "alice")
    run(USAGE, "above 0", "quota", "set", "producer_byte_rate=0", "--user", "alice")
    run(USAGE, "whose?", "quota", "set", "producer_byte_rate=1")
    run(0, [], "quota", "delete", "request_percentage", "--user", "alice")
    run(0, [], "quota", "delete", "--user", "alice")
    run(0, [], "quota", "delete", "--default-client-id")
    proc.wait_for("quotas are gone", lambda: c.json("quota", "list") == [], 10)
    run(REFUSED, "no quota is set", "quota", "delete", "--user", "alice")


def completion(c):
    """The script that bash reads completes commands, and names that the broker has."""
    folder = proc.scratch()
    (folder / "tailrace").symlink_to(proof.binary())
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "TAILRACE_BROKER": c.broker.bootstrap}
    script = ('source <(tailrace completion bash); COMP_WORDS=({}); COMP_CWORD={}; COMP_TYPE=9; '
              'f=$(complete -p tailrace | sed "s/.*-F \\([^ ]*\\) .*/\\1/"); $f tailrace "${{COMP_WORDS[-1]}}" ""; '
              'printf "%s\\n" "${{COMPREPLY[@]}}"')
    for line, expected in (("tailrace gro", "group"), ("tailrace group res", "reset"), ("tailrace topic describe wi", "wide"),
                           ("tailrace group reset live --to-l", "--to-latest"), ("tailrace config get topic ord", "orders"),
                           ("tailrace config set topic orders retention.m", "retention.ms="), ("tailrace consume ord", "orders")):
        words = line.split()
        done = subprocess.run(["bash", "-c", script.format(" ".join(words), len(words) - 1)], env=env, capture_output=True,
                              timeout=20)
        found = done.stdout.decode().split()
        c.p.check(f"`{line}` is completed", found == [expected], f"{found} {done.stderr.decode()[-300:]}")
    for shell in ("bash", "zsh", "fish", "elvish", "powershell"):
        c.p.check(f"{shell} has a script", b"tailrace" in c.run(0, [], "completion", shell))
    done = subprocess.run([str(proof.binary()), "--", "tailrace", "topic", "describe", "w"], timeout=20, capture_output=True,
                          env={**env, "TAILRACE_BROKER": NOWHERE, "TAILRACE_COMPLETE": "bash", "_CLAP_COMPLETE_INDEX": "3"})
    c.p.check("without a broker there is nothing to complete, and no noise", done.stdout.strip() == b""
              and done.stderr == b"", done)
