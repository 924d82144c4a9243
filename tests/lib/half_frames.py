"""Connections that announce a large frame, send half of it as fast as the broker takes it, and then nothing: what becomes of each, and whether
that is what a broker's memory allows (docs/design.md, Memory).

Large frames are a class of a shard's memory, LARGE_SHARE of it. They take it in pieces of 2 MiB, each before it is read. So of many only some
get their half in; the others wait, and who waits has those cut off that got nothing for STALLED_S, which the log calls too slow. Who stays has its
deadline: PARTIAL_FRAME_S and a microsecond for each byte of the frame, which stands still while the broker has no memory for it."""

import os
import pathlib
import selectors
import socket
import statistics
import struct
import time

import metrics
import proc
import wire
from bad_judge import CLOSING, closings

MIB = 1 << 20
COUNT = 200
# The broker's rules.
LARGE_SHARE, PIECE = 0.40, 2 * MIB
STALLED_S, PARTIAL_FRAME_S, SWEEP_S = 1.0, 30, 5
SLOW, LATE = "its request arrives too slowly for the memory there is", "its request did not arrive in time"
# What a deadline may be passed by, besides the time until the broker looks: this process is niced and the broker has other things to do.
MARGIN_S = 3.0


def allowance(frame):
    """How long a frame may be on its way, waits of the broker's own apart, in seconds."""
    return PARTIAL_FRAME_S + frame / 1e6


def run(port, frame, seconds, pipe):
    """COUNT connections, opened; told by the pipe to begin they send; after `seconds`, or when told to, or when all are gone, a row for each goes
    into the pipe. Times are from the beginning. The bytes are holes of a file, so that sending costs this process next to nothing."""
    holes, half = os.memfd_create("half of a frame"), frame // 2
    os.ftruncate(holes, half)
    head = struct.pack(">ihhi", frame, 0, 3, 1) + wire.string("half") + struct.pack(">hhii", -1, -1, 30000, 1)
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(COUNT)]
    pipe.send("open")
    pipe.recv()
    began = time.monotonic()
    selector, rows = selectors.DefaultSelector(), []
    for one in sockets:
        rows.append({"sent": 0, "half_s": None, "gone_s": None, "answered": 0})
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE, rows[-1])

    def send(one, row):
        if row["sent"] < len(head):
            row["sent"] += one.send(head[row["sent"]:])
        else:
            row["sent"] += os.sendfile(one.fileno(), holes, row["sent"], min(MIB, half - row["sent"]))
        if row["sent"] >= half:
            row["half_s"] = time.monotonic() - began
            selector.modify(one, selectors.EVENT_READ, row)

    while selector.get_map() and time.monotonic() < began + seconds and not pipe.poll(0):
        for key, ready in selector.select(0.1):
            one, row = key.fileobj, key.data
            try:
                got = len(one.recv(4096)) if ready & selectors.EVENT_READ else None
                row["answered"] += got or 0
                if got != 0 and ready & selectors.EVENT_WRITE:
                    send(one, row)
            except BlockingIOError:
                continue
            except OSError:
                got = 0
            if got == 0:
                row["gone_s"] = time.monotonic() - began
                selector.unregister(one)
                one.close()
    for row in rows:
        row["watched_s"] = time.monotonic() - began
    pipe.send(rows)


def opened(broker, pipe, before):
    """Waits until all are connected and accepted: how many the broker counts more than `before`."""
    if not pipe.poll(60) or pipe.recv() != "open":
        raise proc.Failed("the connections of halves of frames aren't open")
    until = time.monotonic() + 10
    while (count := int(metrics.total(broker, metrics.CONNECTIONS) - before)) < COUNT and time.monotonic() < until:
        time.sleep(0.05)
    return count


def room(cap, half):
    """How many halves can be in at one time where a class holds `cap` bytes, besides what the kernel takes for each connection: what a client
    has sent isn't read yet."""
    kernel = sum(int(pathlib.Path(f"/proc/sys/net/ipv4/tcp_{side}").read_text().split()[2]) for side in ("rmem", "wmem"))
    return int(cap // (half - kernel)) if half > kernel else COUNT


def together(rows):
    """The most that had sent their halves and were still open, at one time."""
    steps = [(row["half_s"], 1) for row in rows if row["half_s"] is not None]
    steps += [(row["gone_s"], -1) for row in rows if row["half_s"] is not None and row["gone_s"] is not None]
    now = most = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def spread(values, digits=1):
    """[least, median, greatest]"""
    values = sorted(values)
    return [round(value, digits) for value in (values[0], statistics.median(values), values[-1])] if values else []


def check(p, name, rows, accepted, frame, caps):
    """What holds of every crowd of halves, however long it is watched. `caps`: for each shard, what its class of large frames may hold."""
    half, gone = frame // 2, [row for row in rows if row["gone_s"] is not None]
    early = [row for row in gone if row["gone_s"] < STALLED_S]
    served = [row for row in rows if row["answered"]]
    fit = sum(room(cap, half) for cap in caps)
    found = {"open_at_once": accepted, "open_after_1s": COUNT - len(early), "sent_their_half": sum(row["half_s"] is not None for row in rows),
             "halves_at_once": together(rows), "room_for_halves": fit, "sent_mib": spread([row["sent"] / MIB for row in rows]),
             "gone": len(gone), "gone_after_s": spread([row["gone_s"] for row in gone])}
    p.check(f"{name}: all of {COUNT} halves of frames are accepted", accepted >= COUNT, accepted)
    p.check(f"{name}: none is cut off before it stalled for {STALLED_S:.0f} s", not early, [len(early), found["gone_after_s"]])
    p.check(f"{name}: no half of a frame is served", not served, len(served))
    p.check(f"{name}: halves that are in at one time fit their class of memory", 1 <= found["halves_at_once"] <= fit, found)
    return found


def told(broker, mark, count):
    """The log from `mark` on, as soon as it tells of `count` closed connections (its last word about them may come a second later)."""
    until = time.monotonic() + 5
    while closings(text := broker.log()[mark:]) < count and time.monotonic() < until:
        time.sleep(0.1)
    return text


def check_told(p, name, text, count, reasons, exact=True):
    """That the log tells of each connection that the broker closed, and of nothing but these reasons. Not exact: of others that it closed since
    they were counted, too."""
    lines = [line for line in text.splitlines() if CLOSING in line]
    other = [line for line in lines if not any(why in line for why in reasons)]
    p.check(f"{name}: the log tells of each that is cut off, and why", not other and (closings(text) == count or not exact and closings(text) > count),
            [closings(text), count, other[:3]])


def check_deadlines(p, rows, frame):
    """Watched to the end: who had sent its half and wasn't in others' way is gone by its deadline, not before; and so are all."""
    due = allowance(frame)
    stayed = [row for row in rows if row["gone_s"] is None or row["gone_s"] >= due - 0.5]
    # The clock of one stood still while it waited for memory, for its last piece at the latest.
    late = [row for row in stayed if row["gone_s"] is None or row["gone_s"] > (row["half_s"] or 0) + due + SWEEP_S + MARGIN_S]
    p.check("some stay until their deadline", stayed)
    p.check("each half of a frame is gone by its deadline", not late, late[:5])
    return {"deadline_s": round(due, 1), "stayed_until_then": len(stayed), "stayed_s": spread([row["gone_s"] for row in stayed if row["gone_s"]])}
