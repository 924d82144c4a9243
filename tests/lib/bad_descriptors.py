"""Few descriptors, for spine/9: a broker that may have LIMIT of them meets more connections than that, and for a while can't open a file at all. Neither is a failed disk: what
is refused is connections, files wait, and all that was sent is written.
"""

import os
import resource
import socket
import time

import broker as brokers
import proc
import wire

LIMIT, SHARDS, CROWD = 400, 2, 1000
TOPIC, PARTITIONS = "few", 4
REFUSED, WAITS = "a connection was refused", "a file waits until there is a descriptor"
# How long no file can be opened, in seconds.
NONE_S = 3


def limited():
    """Runs a command with LIMIT descriptors, and without the right to have more."""
    drop = ["setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource"] if os.geteuid() == 0 else []
    return [*drop, "prlimit", f"--nofile={LIMIT}:{LIMIT}"]


def closed(one):
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def few(p):
    node = brokers.Tailrace(proc.scratch() / "few", wrap=limited(),
                            flags=("--overprovisioned", "--shards", str(SHARDS), "--memory", "512MiB"))
    node.start()
    node.create_topic(TOPIC, PARTITIONS, "segment.bytes=2500000", "max.message.bytes=4000000")
    ours = wire.Connection(node.port, 30)
    small, large = wire.batch([b"s" * 900000]), wire.batch([b"l" * 2000000])

    def write(batch, count):
        return {error for number in range(count) for error, _ in ours.produce(TOPIC, {number % PARTITIONS: batch}).values()}

    began = time.monotonic()
    crowd = [socket.create_connection(("127.0.0.1", node.port), 20) for _ in range(CROWD)]
    time.sleep(1)
    held = [one for one in crowd if not closed(one)]
    p.check("few descriptors: connections beyond them are refused, not all", 50 <= len(held) <= LIMIT // 2, len(held))
    # More than the journals hold: segments, checkpoints and indexes are opened; and extents.
    p.check("few descriptors: all that is sent is written", write(small, 100) | write(large, 8) == {0})
    took = time.monotonic() - began
    fds = len(os.listdir(f"/proc/{node.pid()}/fd"))
    p.check("few descriptors: files have some left", fds < LIMIT - 16, fds)
    lines = node.log().count(REFUSED)
    p.check("few descriptors: a line a second and shard says so", 1 <= lines <= SHARDS * (took + 1), [lines, took])

    resource.prlimit(node.pid(), resource.RLIMIT_NOFILE, (8, LIMIT))
    asked = [ours.send(wire.PRODUCE, 3, wire.produce_body(TOPIC, {number % PARTITIONS: batch}))
             for number, batch in enumerate([small] * 8 + [large] * 2)]
    time.sleep(NONE_S)
    resource.prlimit(node.pid(), resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    errors = {error for _ in asked for error, _ in ours.produce_answer(ours.receive()[1]).values()}
    p.check("no descriptors: what was sent meanwhile is written", errors == {0}, errors)
    lines = node.log().count(WAITS)
    p.check("no descriptors: a line a second and shard says so", 1 <= lines <= SHARDS * (NONE_S + 2), lines)
    for one in crowd:
        one.close()

    def served():
        try:
            one = wire.Connection(node.port, 5)
            found = one.metadata([TOPIC])
            one.close()
            return found
        except OSError:
            return None

    proc.wait_for("others are let in when some leave", served, 10)
    p.check("few descriptors: all goes on", write(small, 8) == {0})
    ours.close()
    p.figures.update(few_descriptors=LIMIT, few_descriptors_connections=len(held), few_descriptors_open=fds)
    p.say(f"{CROWD} connections to a broker with {LIMIT} descriptors")
    node.stop()
