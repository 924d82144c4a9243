"""The broker under test as a process: Tailrace, or a real Apache Kafka as its oracle."""

import os
import pathlib
import re
import signal
import time
import urllib.error
import urllib.request

import proc
import proof
from proc import LOOPBACK, TESTS, Failed

PEER = TESTS / "peer" / "kafka-peer"


class Tailrace:
    """`tailrace serve` on a data directory. `start` after `stop` or `kill` is a restart."""

    name = "tailrace"

    def __init__(self, data_dir, flags=("--overprovisioned",), port=None, wrap=(), env=None, log_dir=None):
        self.binary = proof.binary()
        self.data_dir = pathlib.Path(data_dir)
        # In this order: with shard-direct the ports above are the shards'.
        self.admin_port, self.port = proc.free_ports(2)
        self.port = port or self.port
        self.flags = list(flags)
        self.wrap = list(wrap)  # a command to run it under: taskset, strace
        self.env = env
        self.process = None
        self.log_path = pathlib.Path(log_dir or self.data_dir.parent) / f"tailrace-{self.port}.log"
        self.ended = False  # by kill or stop
        proof.fates.append(self.fate)

    @property
    def bootstrap(self):
        return f"{LOOPBACK}:{self.port}"

    @property
    def admin(self):
        return f"http://{LOOPBACK}:{self.admin_port}"

    def launch(self):
        """exec without waiting; the time of it."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        log = open(self.log_path, "ab")
        began = time.monotonic()
        self.process = proc.start(
            [*self.wrap, self.binary, "serve", "--data-dir", self.data_dir, "--kafka-addr", self.bootstrap,
             "--admin-addr", f"{LOOPBACK}:{self.admin_port}", *self.flags],
            stdin=proc.subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, **self.env} if self.env else None)
        log.close()
        self.ended = False
        return began

    def start(self, timeout=60):
        began = self.launch()
        proc.wait_for("tailrace ready", lambda: self.ready(), timeout, every=0.005)
        return time.monotonic() - began

    def ready(self):
        if self.process.poll() is not None:
            raise Failed(f"tailrace ended with {self.process.returncode}:\n{self.log_tail()}")
        try:
            with urllib.request.urlopen(self.admin + "/ready", timeout=2) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def kill(self):
        """kill -9."""
        self.ended = True
        proc.end(self.process, signal.SIGKILL)

    def stop(self):
        """SIGTERM; it must end by itself, with 0."""
        self.ended = True
        obeyed = proc.end(self.process, signal.SIGTERM, timeout=30)
        if not obeyed or self.process.returncode:
            raise Failed(f"SIGTERM: obeyed={obeyed}, exit {self.process.returncode}\n{self.log_tail()}")

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def fate(self):
        """That it ended, when nobody ended it."""
        if self.process is None or self.ended or self.process.poll() is None:
            return None
        return f"tailrace ended by itself with {self.process.returncode}: {self.log()[-500:]}"

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self):
        return self.log()[-3000:]

    def metrics(self):
        """All samples of /metrics: [(name, {label: value}, number)]."""
        with urllib.request.urlopen(self.admin + "/metrics", timeout=10) as answer:
            return parse_metrics(answer.read().decode())

    def pid(self):
        """The broker's own pid, also under a wrapping command."""
        if not self.wrap:
            return self.process.pid
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = children.read_text().split()
        return int(pids[0]) if pids else self.process.pid

    def create_topic(self, topic, partitions, *configs):
        cli(self, "topic", "create", topic, "--partitions", partitions, *(x for c in configs for x in ("--config", c)))

    def delete_topic(self, topic):
        cli(self, "topic", "delete", topic)


class Kafka:
    """A real Apache Kafka 4.4 of one node."""

    name = "kafka"

    def __init__(self, data_dir, fsync=False, port=None, env=None, log_dir=None, sets=None):
        self.data_dir = pathlib.Path(data_dir)
        self.sets = [w for k, v in (sets or {}).items() for w in ("--set", f"{k}={v}")]
        self.port = port or proc.free_ports(1)[0]
        self.fsync = fsync
        self.number = 0
        self.env = {**os.environ, **(env or {})}
        proc.cleanup.callback(self.kill)

    @property
    def bootstrap(self):
        return f"{LOOPBACK}:{self.port}"

    def start(self, timeout=120):
        began = time.monotonic()
        proc.run([PEER, "start", "--dir", self.data_dir, "--port", self.port,
                  *(["--fsync"] if self.fsync else []), *self.sets], timeout=timeout, env=self.env)
        self.number = int((self.data_dir / "node1" / "pid").read_text())
        return time.monotonic() - began

    def kill(self):
        """kill -9, by the pid noted at the start: the file that has it may be on a disk that is gone."""
        if self.alive():
            os.kill(self.number, signal.SIGKILL)
            proc.wait_for("Kafka is gone", lambda: not self.alive(), 20)

    def stop(self):
        proc.run([PEER, "stop", "--dir", self.data_dir])

    def alive(self):
        try:
            command = pathlib.Path(f"/proc/{self.number}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self.data_dir).encode() in command

    def pid(self):
        return self.number

    def log_tail(self):
        path = self.data_dir / "node1" / "server.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def create_topic(self, topic, partitions, *configs):
        tool("topics", "--bootstrap-server", self.bootstrap, "--create", "--topic", topic,
             "--partitions", partitions, *(x for c in configs for x in ("--config", c)))

    def delete_topic(self, topic):
        tool("topics", "--bootstrap-server", self.bootstrap, "--delete", "--topic", topic)


def make(kind, data_dir, **options):
    """The broker that --against names."""
    if kind == "tailrace":
        return Tailrace(data_dir, **options)
    options.pop("flags", None)
    return Kafka(data_dir, fsync=kind == "kafka-fsync", **options)


def tool(name, *args, stdin=None, timeout=120, check=True):
    """One of Kafka's own tools; its standard output."""
    env = {**os.environ, "KAFKA_OPTS": "-XX:TieredStopAtLevel=1 -Xshare:auto"}
    if name in ("producer-perf-test", "consumer-perf-test", "e2e-latency"):
        env["KAFKA_OPTS"] = ""
    return proc.run([PEER, "tool", name, *args], stdin=stdin, timeout=timeout, check=check, env=env).stdout


def kcat(broker, *args, stdin=None, timeout=60, check=True):
    return proc.run(["kcat", "-b", broker.bootstrap, *args], stdin=stdin, timeout=timeout, check=check).stdout


def cli(broker, *args, stdin=None, timeout=60, check=True):
    """A client subcommand of the tailrace binary."""
    return proc.run([proof.binary(), *args, "--broker", broker.bootstrap],
                    stdin=stdin, timeout=timeout, check=check).stdout


SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse_metrics(text):
    samples = []
    for line in text.splitlines():
        found = SAMPLE.match(line)
        if found and not line.startswith("#"):
            samples.append((found[1], dict(LABEL.findall(found[2] or "")), float(found[3])))
    return samples
