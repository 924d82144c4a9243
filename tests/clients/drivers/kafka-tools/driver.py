"""The driver of Kafka's console tools. One after the other they run in one JVM (Tools.java); members of groups are processes of
their own, started as a person would start them."""

import base64
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import protocol  # noqa: E402

LIMIT_S = 60
PACKAGE = "org.apache.kafka.tools."
# Between what a line consists of: in no record.
FIELD, LINE, HEADER, NULL = "\x1f~field~", "\x1e~line~", "\x1d~header~", "\x1c~null~"


class Driver:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.jvm = None

    def tool(self, name, *args, stdin=b"", bootstrap=True):
        """What a tool wrote, as bytes. KAFKA_TOOLS is the command that runs them."""
        if self.jvm is None:
            self.jvm = subprocess.Popen(json.loads(os.environ["KAFKA_TOOLS"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        args = [*(("--bootstrap-server", self.bootstrap) if bootstrap else ()), *args]
        command = {"class": PACKAGE + name, "args": [str(a) for a in args], "stdin": base64.b64encode(stdin).decode()}
        self.jvm.stdin.write(json.dumps(command).encode() + b"\n")
        self.jvm.stdin.flush()
        said = json.loads(self.jvm.stdout.readline())
        out = base64.b64decode(said["out"])
        if said["code"]:
            raise RuntimeError(f"{name}: exit {said['code']}: {said['errors'][-400:]} {out[-400:].decode(errors='replace')}")
        return out

    def lines(self, name, *args, **more):
        return self.tool(name, *args, **more).decode().splitlines()

    def do_hello(self):
        jar = pathlib.Path(json.loads(os.environ["KAFKA_TOOLS"])[-1]).name
        return {"version": jar.removeprefix("kafka-tools-").removesuffix(".jar"), "admin": protocol.admin_calls(self)}

    def do_produce(self, topic, partition, codec, records):
        def said(text):
            return NULL.encode() if text is None else protocol.bytes_of(text)
        lines = b""
        for r in records:
            headers = HEADER.encode().join(name.encode() + b":" + said(data) for name, data in r["h"]) or NULL.encode()
            lines += FIELD.encode().join((headers, said(r["k"]), said(r["v"]))) + b"\n"
        args = ["--topic", topic, "--compression-codec", codec, "--timeout", "100"]
        for name, value in (("parse.key", "true"), ("parse.headers", "true"), ("headers.delimiter", FIELD), ("headers.separator", HEADER),
                            ("key.separator", FIELD), ("null.marker", NULL)):
            args += ["--reader-property", f"{name}={value}"]
        self.tool("ConsoleProducer", *args, stdin=lines)

    def read(self, *args):
        args = list(args)
        for name, value in (("print.timestamp", "true"), ("print.partition", "true"), ("print.offset", "true"), ("print.headers", "true"),
                            ("print.key", "true"), ("key.separator", FIELD), ("line.separator", LINE), ("headers.separator", HEADER),
                            ("null.literal", NULL)):
            args += ["--formatter-property", f"{name}={value}"]
        out = self.tool("consumer.ConsoleConsumer", *args, "--timeout-ms", LIMIT_S * 1000)
        for line in out.split(LINE.encode())[:-1]:
            yield [None if field == NULL.encode() else field for field in line.split(FIELD.encode())]

    def do_read(self, topic, partition, count, offset=None, time_ms=None):
        if time_ms is not None:
            [line] = self.lines("GetOffsetShell", "--topic", topic, "--partitions", partition, "--time", time_ms)
            offset = line.rsplit(":", 1)[1]
        for time, _, at, headers, key, value in self.read("--topic", topic, "--partition", partition, "--offset", offset, "--max-messages", count):
            pairs = []
            for header in [] if headers == b"NO_HEADERS" else headers.split(HEADER.encode()):
                name, _, data = header.partition(b":")
                pairs.append((name.decode(), None if data == NULL.encode() else data))
            protocol.record(int(at.split(b":")[1]), key, value, pairs, int(time.split(b":")[1]))

    def do_replay(self, topic, group, count):
        """A group begins again when its offsets are set back."""
        def offsets():
            args = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", count]
            return [int(fields[2].split(b":")[1]) for fields in self.read(*args)]
        first = offsets()
        self.lines("consumer.group.ConsumerGroupCommand", "--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute")
        return {"first": first, "second": offsets()}

    def do_member(self, topic, group, session_ms, instance=None):
        args = [os.environ["KAFKA_PEER"], "tool", "console-consumer", "--bootstrap-server", self.bootstrap, "--topic", topic, "--group", group]
        for name, value in (("auto.offset.reset", "earliest"), ("auto.commit.interval.ms", "100"), ("session.timeout.ms", session_ms),
                            ("heartbeat.interval.ms", "500"), ("group.protocol", "classic"), ("group.instance.id", instance)):
            args += ["--command-property", f"{name}={value}"] if value is not None else []
        for name in ("print.partition", "print.offset"):
            args += ["--formatter-property", f"{name}=true"]
        opts = {"KAFKA_HEAP_OPTS": "-Xmx128M", "KAFKA_OPTS": "-XX:TieredStopAtLevel=1 -Xshare:auto"}
        self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, **opts})
        threading.Thread(target=self.listen, args=(self.process,), daemon=True).start()

    def listen(self, process):
        for line in process.stdout:
            found = re.match(rb"Partition:(\d+)\tOffset:(\d+)\t", line)
            if found:
                protocol.say(got=[int(found[1]), int(found[2])])

    def do_commit(self):
        """It commits by itself."""
        time.sleep(0.6)

    def do_leave(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LIMIT_S)

    # --- administration -------------------------------------------------------

    def admin_create_topic(self, topic, partitions, config):
        self.tool("TopicCommand", "--create", "--topic", topic, "--partitions", partitions,
                  *(arg for name, value in config.items() for arg in ("--config", f"{name}={value}")))

    def admin_delete_topic(self, topic):
        self.tool("TopicCommand", "--delete", "--topic", topic)

    def admin_list_topics(self):
        return self.lines("TopicCommand", "--list")

    def admin_describe_topic(self, topic):
        return int(re.search(rb"PartitionCount: (\d+)", self.tool("TopicCommand", "--describe", "--topic", topic))[1])

    def admin_create_partitions(self, topic, partitions):
        self.tool("TopicCommand", "--alter", "--topic", topic, "--partitions", partitions)

    def admin_get_config(self, topic, name):
        out = self.tool("ConfigCommand", "--describe", "--entity-type", "topics", "--entity-name", topic).decode()
        return re.search(rf"^\s*{re.escape(name)}=(\S*)", out, re.M)[1]

    def admin_set_config(self, topic, name, value):
        self.tool("ConfigCommand", "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", f"{name}={value}")

    def admin_list_offsets(self, topic, partition):
        def at(where):
            [line] = self.lines("GetOffsetShell", "--topic", topic, "--partitions", partition, "--time", where)
            return int(line.rsplit(":", 1)[1])
        return [at("earliest"), at("latest")]

    def admin_delete_records(self, topic, partition, before):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"version": 1, "partitions": [{"topic": topic, "partition": partition, "offset": before}]}, file)
            file.flush()
            out = self.tool("DeleteRecordsCommand", "--offset-json-file", file.name)
        return int(re.search(rb"low_watermark: (\d+)", out)[1])

    def admin_describe_cluster(self):
        return len(self.lines("ClusterTool", "list-endpoints", "--bootstrap-server", self.bootstrap, bootstrap=False)) - 1

    def admin_describe_log_dirs(self, topic):
        said = json.loads(self.lines("LogDirsCommand", "--describe", "--topic-list", topic)[-1])
        return sum(len(one["partitions"]) for broker in said["brokers"] for one in broker["logDirs"])

    def admin_describe_producers(self, topic, partition):
        return len(self.lines("TransactionsCommand", "describe-producers", "--topic", topic, "--partition", partition)) - 1

    def admin_elect_leader(self, topic, partition):
        out = self.tool("LeaderElectionCommand", "--election-type", "preferred", "--topic", topic, "--partition", partition).decode()
        return "not needed" if "Valid replica already elected" in out else out

    def admin_list_groups(self):
        return self.lines("consumer.group.ConsumerGroupCommand", "--list")

    def described(self, group, what):
        lines = self.lines("consumer.group.ConsumerGroupCommand", "--describe", "--group", group, what)
        return [line.split() for line in lines if line.startswith(group + " ")]

    def admin_describe_group(self, group):
        [row] = self.described(group, "--state")
        return [row[-2], int(row[-1])]

    def admin_group_offsets(self, group, topic):
        return {row[2]: int(row[3]) for row in self.described(group, "--offsets") if row[1] == topic}

    def groups(self, *args):
        self.tool("consumer.group.ConsumerGroupCommand", *args)

    def admin_set_group_offset(self, group, topic, partition, offset):
        self.groups("--group", group, "--topic", f"{topic}:{partition}", "--reset-offsets", "--to-offset", offset, "--execute")

    def admin_delete_group_offset(self, group, topic, partition):
        self.groups("--group", group, "--topic", f"{topic}:{partition}", "--delete-offsets")

    def admin_delete_group(self, group):
        self.groups("--delete", "--group", group)


protocol.serve(Driver(sys.argv[1]))
