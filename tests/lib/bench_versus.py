"""Rows that `tailrace bench versus` measures, and what is kept of its file: figures with their spread, a few kilobytes.

The whole file stays under target/bench until the next time: the report is made of it.
"""

import json
import os
import pathlib
import re
import signal
import socket

import bench_rows
import broker as brokers
import proc
import proof

RAW = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or proc.ROOT / "target") / "bench"
SIDES_EACH_S = 120  # beyond the load: start, end, and the disk's rest


def ours(layout):
    """Arguments of Tailrace as a broker, beside those that `bench versus` gives it."""
    return ["--memory", bench_rows.MEMORY, *(["--shards", "1"] if layout == "split" else [])]


def raw(row, layout):
    """Where the whole file of a row is."""
    return RAW / f"{row.name}.{layout}.json"


def measure(p, row, layout, size, folder):
    """One layout of a row; what its result file has of it."""
    RAW.mkdir(parents=True, exist_ok=True)
    file = raw(row, layout) if size.whole() else folder / raw(row, layout).name
    log = file.with_suffix(".log")
    file.unlink(missing_ok=True)
    command = [proof.binary(), "bench", "versus", row.workload, "--layout", layout, "--pairs", size.pairs, "--dir", folder / "versus",
               "--output", file, "--kafka-peer", brokers.PEER, *(x for peer in row.peers for x in ("--peer", peer)),
               *(x for arg in ours(layout) for x in ("--ours-arg", arg)), *size.sets(row)]
    p.say(f"{row.name}, {layout}: {len(row.peers) + 1} brokers, {size.pairs} pairs; its progress is in {log}")
    with open(log, "wb") as out:
        process = proc.start(command, stdin=proc.subprocess.DEVNULL, stdout=out, stderr=out)
        # It ends its brokers when it is told to end.
        proc.cleanup.callback(proc.end, process, signal.SIGINT, 120)
        each = size.warm_up_s + size.length_s + SIDES_EACH_S
        try:
            code = process.wait(2 * size.pairs * (len(row.peers) + 1) * each)
        except proc.subprocess.TimeoutExpired:
            raise proc.Failed(f"{row.name}, {layout}: it doesn't come to an end; see {log}") from None
    said = proc.tail(log.read_bytes(), 500)
    if not file.exists():
        raise proc.Failed(f"{row.name}, {layout}: exit {code}: {said}")
    found = compact(json.loads(file.read_text()))
    if code and not found["problem"]:
        found["problem"] = f"exit {code}: {clean(said)}"
    return found


def compact(versus):
    """Of a file of one workload."""
    compared = versus["workloads"][0]
    problems = [compared["problem"], *(v["problem"] for v in compared["verdicts"])]
    found = {
        "started": versus["started"],
        "machine": machine(versus["machine"]),
        "pairs": len(compared["rounds"]),
        "repeated": [clean(why) for why in compared["repeated"]],
        "problem": next((clean(text) for text in problems if text), None),
        "sides": [{"label": side["label"], "command": clean(side["command"]), "version": side["version"]} for side in versus["sides"]],
        "overloaded": {v["theirs"]: v["overloaded"] for v in compared["verdicts"] if v["overloaded"]},
        "figures": [figure(r["figure"], v["theirs"], r["ours"], r["theirs"], r["pairs"], (r["low"], r["median"], r["high"]))
                    for v in compared["verdicts"] for r in v["ratios"]],
    }
    if compared["rounds"]:
        time = compared["rounds"][0][0]["workload"]["time"]
        found |= {"warm_up_s": time["warm-up-s"], "length_s": time["length-s"]}
    return found


def figure(name, against, mine, theirs, pairs, spread):
    low, median, high = spread
    return {"figure": name, "against": against, "ours": rounded(mine), "theirs": rounded(theirs), "low": rounded(low),
            "median": rounded(median), "high": rounded(high), "pairs": [rounded(x) for x in pairs]}


def rounded(value):
    """Four digits that count."""
    return None if value is None else float(f"{value:.4g}")


def machine(told):
    return {"cpu": told["cpu"], "cpus": told["cpus"], "memory_gib": round(told["memory_bytes"] / 2**30), "kernel": told["kernel"]}


def clean(text):
    """Without the names of places and of this machine."""
    for place, name in ((str(proof.binary()), "tailrace"), (f"{proc.ROOT}/", ""), (str(proc.ROOT), ".")):
        text = text.replace(place, name)
    return re.sub(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w.-])", "localhost", text)
