"""The clients of spine/8, each a process of its own: the good one whose latency is measured, and readers of large batches."""

import ctypes
import multiprocessing
import os
import pathlib
import socket
import struct
import time

import metrics
import proc
import wire

MIB = 1 << 20
BIG_BATCH = 50 * MIB
# recv(2) itself: Python's would make a buffer for what MSG_TRUNC drops.
DROP = ctypes.CDLL(None, use_errno=True).recv
DROP.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
DROP.restype = ctypes.c_ssize_t
TICKS = os.sysconf("SC_CLK_TCK")


def niced(nice, target, *args):
    os.nice(nice)
    target(*args)


def start(target, *args, nice=0):
    """Runs a function in a process of its own, which ends with the proof."""
    process = multiprocessing.Process(target=niced, args=(nice, target, *args), daemon=True)
    process.start()
    proc.cleanup.callback(process.kill)
    return process


def good_client(port, topic, seconds, rate, out):
    """Latencies of one 1 KiB record at a time, `rate` a second, acks=all, in seconds: from when each was sent, and from when it was due, which the one
    before may have passed; and what this process took of the CPU."""
    connection, batch, times, due_times = wire.Connection(port), wire.batch([b"g" * 1024]), [], []
    began = time.monotonic()
    while time.monotonic() < began + seconds and not out.poll(0):
        due = began + len(times) / rate
        time.sleep(max(0, due - time.monotonic()))
        sent = time.monotonic()
        error, _ = connection.produce(topic, {0: batch})[0]
        if error:
            raise proc.Failed(f"the good client got error {error}")
        answered = time.monotonic()
        times.append(answered - sent)
        due_times.append(answered - due)
    out.send((times, due_times, time.process_time()))


def busy_seconds():
    """CPU time that this machine spent on anything, what its host took among it."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def process_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def window(broker, topic, seconds, rate=200):
    """A good client for so long: its p99 and other figures, how many requests they are of, bounds of what the broker and its journal took meanwhile, and what of
    a core the broker took, and all processes but these two."""
    receive, send = multiprocessing.Pipe()
    produced, committed = metrics.times(broker, metrics.PRODUCE_TIMES), metrics.times(broker, metrics.COMMIT_TIMES)
    busy, own, began = busy_seconds(), process_seconds(broker.pid()), time.monotonic()
    client = start(good_client, broker.port, topic, seconds, rate, send)
    if not receive.poll(seconds + 60):
        raise proc.Failed("the good client is not done")
    times, due_times, its = receive.recv()
    took, busy, own = time.monotonic() - began, busy_seconds() - busy, process_seconds(broker.pid()) - own
    client.join(5)
    times.sort()
    due_times.sort()
    at = int(len(times) * 0.99)
    return {"p99_us": round(times[at] * 1e6), "p50_us": round(times[len(times) // 2] * 1e6), "max_us": round(times[-1] * 1e6),
            "due_p99_us": round(due_times[at] * 1e6), "requests": len(times),
            "produce_p99_ms": metrics.percentile_ms(produced, metrics.times(broker, metrics.PRODUCE_TIMES), 0.99),
            "commit_p99_ms": metrics.percentile_ms(committed, metrics.times(broker, metrics.COMMIT_TIMES), 0.99),
            "broker_cpu": round(own / took, 3), "others_cpu": round((busy - own - its) / took, 3)}


def fetch_head(connection, topic, offset):
    """A fetch of which only the first batch's head is looked at: (error, high watermark, bytes of records, offset). The rest is dropped
    inside the kernel, uncopied: the reader's own work would take the core from the kernel's workers that end a synced write."""
    connection.send(wire.FETCH, 4, wire.fetch_body(topic, {0: offset}, 64 * MIB, 1 << 30, 1, 500))
    head = connection._exactly(52 + len(topic))
    size, _, _, topics = struct.unpack_from(">iiii", head)
    partitions, _, error, high, _, _, length = struct.unpack_from(">iihqqii", head, 18 + len(topic))
    if (topics, partitions) != (1, 1) or length < 8:
        raise proc.Failed(f"a fetch of a large batch: {topics} topics, {partitions} partitions, {length} bytes")
    found = struct.unpack(">q", connection._exactly(8))[0]
    left = size + 4 - len(head) - 8
    while left:
        got = DROP(connection.socket.fileno(), None, min(left, MIB), socket.MSG_TRUNC)
        if got <= 0:
            raise proc.Failed("a fetch of a large batch: the connection ended")
        left -= got
    return error, high, length, found


def big_reader(port, topic, seconds, out):
    """Fetches a batch of 50 MiB a second and checks its size."""
    connection, read, deadline = wire.Connection(port), 0, time.monotonic() + seconds
    connection.socket.settimeout(None)  # Python's would make it non-blocking
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 60, 0))
    offset, began = 0, time.monotonic()
    while time.monotonic() < deadline:
        error, high, length, found = fetch_head(connection, topic, offset)
        if error or found != offset or length < BIG_BATCH:
            raise proc.Failed(f"a fetch of a large batch: error {error}, {length} bytes at {found} for {offset}")
        read += 1
        time.sleep(max(0, began + read - time.monotonic()))
        offset = (offset + 1) % high
    out.send(read)
