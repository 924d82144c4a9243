"""Drivers of other people's clients (tests/clients/drivers): their builds, and how one is led.

    driver = Driver("franz-go", broker.bootstrap)
    driver.ask("produce", topic="t", partition=0, codec="lz4", records=[...])["offsets"]

A driver is a process that takes commands as lines of JSON and answers with lines of JSON: tests/clients/drivers/README.md.
Built into target/drivers/<client>, again when its sources or its lock file have changed.
"""

import functools
import glob
import hashlib
import json
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import threading

import broker as brokers
import proc
from proc import TESTS, Failed

SOURCES = TESTS / "clients" / "drivers"
CLIENTS = ("kcat", "kafka-tools", "java", "confluent-kafka", "aiokafka", "franz-go", "sarama", "kafka-go", "kafkajs", "rdkafka")
GO = ("franz-go", "sarama", "kafka-go")
BUILD_LIMIT_S = 1500
JAVA = ("java", "-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def target(client):
    path = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or proc.ROOT / "target") / "drivers" / client
    path.mkdir(parents=True, exist_ok=True)
    return path


@functools.cache
def build(client):
    """What starts the client's driver; builds it when its sources differ from those of the last build."""
    out, source = target(client), SOURCES / client
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if client in GO:
        files += [SOURCES / "go.mod", SOURCES / "go.sum", SOURCES / "protocol" / "protocol.go"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    stamp = out / "built-from"
    if not stamp.exists() or stamp.read_text() != digest:
        stamp.unlink(missing_ok=True)
        make(client, source, out)
        stamp.write_text(digest)
    return command(client, source, out)


def make(client, source, out):
    if client in GO:
        proc.run(["go", "-C", SOURCES, "build", "-p", "2", "-mod=readonly", "-o", out / "driver", f"./{client}"], timeout=BUILD_LIMIT_S)
    elif client in ("confluent-kafka", "aiokafka"):
        shutil.rmtree(out / "packages", ignore_errors=True)
        proc.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:",
                  "--root-user-action=ignore", "--target", out / "packages", "-r", source / "requirements.txt"], timeout=BUILD_LIMIT_S)
    elif client == "kafkajs":
        for name in ("package.json", "package-lock.json", "driver.js"):
            shutil.copy(source / name, out / name)
        proc.run(["npm", "ci", "--prefix", out, "--ignore-scripts", "--no-audit", "--no-fund"], timeout=BUILD_LIMIT_S)
    elif client == "rdkafka":
        proc.run(["cargo", "build", "--quiet", "--locked", "-j", "2", "--manifest-path", source / "Cargo.toml", "--target-dir", out],
                 timeout=BUILD_LIMIT_S)
    elif client in ("java", "kafka-tools"):
        proc.run(["javac", "-d", out, "-cp", classpath(), *source.glob("*.java")])


def command(client, source, out):
    if client in GO:
        return [out / "driver"]
    if client == "kafkajs":
        return ["node", out / "driver.js"]
    if client == "rdkafka":
        return [out / "debug" / "rdkafka-driver"]
    if client == "java":
        return [*JAVA, "-cp", f"{out}:{classpath()}", "Driver"]
    return [sys.executable, source / "driver.py"]


def environment(client):
    if client in ("confluent-kafka", "aiokafka"):
        return {"PYTHONPATH": str(target(client) / "packages"), "PYTHONDONTWRITEBYTECODE": "1"}
    if client == "kafka-tools":
        return {"PYTHONDONTWRITEBYTECODE": "1", "KAFKA_PEER": str(brokers.PEER), "KAFKA_TOOLS": json.dumps(tools())}
    return {"PYTHONDONTWRITEBYTECODE": "1"}


@functools.cache
def classpath():
    return proc.run([brokers.PEER, "classpath"], timeout=600).stdout.decode().strip()


@functools.cache
def tools():
    """Runs Kafka's tools in one JVM. Their jar isn't in its class path, as each run loads it anew."""
    jars = sorted(glob.glob(classpath()))
    [jar] = [one for one in jars if pathlib.Path(one).name.startswith("kafka-tools-4")]
    rest = [one for one in jars if one != jar]
    return [*JAVA, "-cp", ":".join([str(target("kafka-tools")), *rest]), "Tools", jar]


class Driver:
    """One process of a client. Its answers are read by a thread; what it says unasked is kept in `got` and `assigned`."""

    def __init__(self, client, bootstrap):
        self.client, self.bootstrap = client, bootstrap
        self.got, self.assigned, self.records = [], [], []
        self.answers = queue.Queue()
        self.errors = proc.scratch() / f"{client}.errors"
        with open(self.errors, "wb") as errors:
            # A group of processes of its own: some start others, and all end together.
            self.process = subprocess.Popen([str(c) for c in (*build(client), bootstrap)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=errors, env={**os.environ, **environment(client)}, start_new_session=True)
        proc.cleanup.callback(self.kill)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            said = json.loads(line)
            if "got" in said:
                self.got.append(tuple(said["got"]))
            elif "assigned" in said:
                self.assigned.append(said["assigned"])
            elif "record" in said:
                self.records.append(said["record"])
            else:
                self.answers.put(said)
        self.answers.put({"error": "the driver ended"})

    def ask(self, verb, timeout=90, **arguments):
        """Carries out a command; raises what the client says against it."""
        self.records = []
        try:
            self.process.stdin.write(json.dumps({"do": verb, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=timeout)
        except (OSError, queue.Empty) as error:
            raise Failed(f"{self.client}: {verb}: {error!r}; {self.complaints()}") from None
        if "error" in answer:
            raise Failed(f"{self.client}: {verb} {brief(arguments)}: {answer['error']}; {self.complaints()}")
        return answer

    def admin(self, call, **arguments):
        return self.ask("admin", call=call, **arguments).get("answer")

    def complaints(self):
        return self.errors.read_text(errors="replace")[-400:].strip()

    def kill(self):
        """kill -9, and those that it has started."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, 9)
            except ProcessLookupError:
                pass
            self.process.wait(20)

    def end(self):
        """It ends when its standard input does."""
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        self.kill()


def brief(arguments):
    return {name: value for name, value in arguments.items() if name != "records"}
