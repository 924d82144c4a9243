"""Rows that are measured on Tailrace alone: the broker on CPU 0 with one shard, `tailrace bench run` on CPU 1, fresh data for every run.

Where two loads are set beside each other they take turns (A B, A B, ...), and ratios are made turn by turn. A round in which the instrument
was late is made again, whole, as `tailrace bench versus` does; nothing is left out because of what the broker did.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time

import bench_hlog
import bench_rows
import bench_versus
import broker as brokers
import metrics
import proc
import proof

SETTLE_S = 3
# What it may take beyond the load: topics, a replay's filling, the wait for the last answers.
BEYOND_S = 400
IN_MEMORY = pathlib.Path("/dev/shm")


class NotAResult(Exception):
    """The broker's doing; told, never left out."""


class Late(Exception):
    """The instrument's."""


@dataclasses.dataclass
class Measured:
    """What came of a row: figure -> [(Tailrace's, the other, what is judged)] of each round; other notes."""
    beside: dict = dataclasses.field(default_factory=dict)  # figure -> what the other is
    rounds: dict = dataclasses.field(default_factory=dict)
    repeated: list = dataclasses.field(default_factory=list)
    problem: str | None = None
    machine: dict = dataclasses.field(default_factory=dict)

    def add(self, found):
        """{(figure, against): (ours, theirs, judged)} of one round."""
        for (figure, against), values in found.items():
            self.beside[figure] = against
            self.rounds.setdefault(figure, []).append(values)


class Bench:
    """Runs of `tailrace bench` on brokers of their own."""

    def __init__(self, p, row, size, folder):
        self.p, self.row, self.size, self.folder = p, row, size, folder
        self.machine, self.time = {}, {}
        self.others = {}  # name -> version

    @contextlib.contextmanager
    def broker(self, data=None, more=()):
        """A Tailrace on fresh data, gone afterwards, when the disk has come to rest."""
        place = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=self.folder))
        proc.cleanup.callback(shutil.rmtree, place, ignore_errors=True)
        data = data or place / "data"
        broker = brokers.Tailrace(data, flags=["--memory", bench_rows.MEMORY, "--shards", "1", "--log", "warn", *more], wrap=["taskset", "-c", "0"],
                                  log_dir=place)
        broker.start()
        try:
            time.sleep(SETTLE_S)
            yield broker, place
        finally:
            broker.stop()
            shutil.rmtree(data, ignore_errors=True)
            shutil.rmtree(place, ignore_errors=True)
            os.sync()
            time.sleep(SETTLE_S)

    def run(self, broker, place, workload, sets=(), meanwhile=None):
        """One run; its result. `meanwhile` is called when the load begins to count."""
        output, hlog = place / "run.json", place / "run.hlog"
        process = proc.start(
            ["taskset", "-c", "1", proof.binary(), "bench", "run", workload, "--broker", broker.bootstrap, "--cpus", "1", "--pid", broker.pid(),
             "--data-dir", place, "--label", "tailrace", "--output", output, "--hlog", hlog, "--keep-topics", "--quiet", *self.size.sets(self.row),
             *(x for s in sets for x in ("--set", s))],
            stdin=proc.subprocess.DEVNULL, stdout=proc.subprocess.DEVNULL, stderr=proc.subprocess.PIPE)
        if meanwhile:
            time.sleep(self.size.warm_up_s + 1)
            meanwhile()
        try:
            _, said = process.communicate(timeout=self.size.warm_up_s + self.size.length_s + BEYOND_S)
        except proc.subprocess.TimeoutExpired:
            raise proc.Failed(f"{workload}: it doesn't come to an end") from None
        if not output.exists():
            raise proc.Failed(f"{workload}: exit {process.returncode}: {proc.tail(said)}")
        result = json.loads(output.read_text())
        self.machine, self.time = bench_versus.machine(result["machine"]), result["workload"]["time"]
        self.p.say(f"{self.row.name}: {workload}: {result['records_per_s']:,.0f}/s, p50 {result['produce']['p50'] / 1e3:.3f}, "
                   f"p99 {result['produce']['p99'] / 1e3:.3f}, p99.9 {result['produce']['p99_9'] / 1e3:.3f} ms")
        if read := result["replay"]:
            self.p.say(f"{self.row.name}: replayed {read['bytes'] / 1e6:,.0f} MB in {read['seconds']:.1f} s, {'all of it' if read['whole'] else 'not all'}")
        open_loop = result["workload"]["load"]["mode"] == "open"
        if open_loop and result["generator"]["fell_behind"]:
            if not self.p.quick:
                raise Late("; ".join(result["problems"]))
            # A trial is of the whole way through, on machines that do other things too.
            return result
        if not result["valid"]:
            raise NotAResult("; ".join(result["problems"]))
        return result

    def alone(self, workload, sets=()):
        """One run on a broker of its own; its result."""
        with self.broker() as (broker, place):
            return self.run(broker, place, workload, sets)


def measure(p, row, size, folder):
    """What a row's result file has of it."""
    bench, found, made = Bench(p, row, size, folder), Measured(), 0
    round_of = globals()[row.how]
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    done = 0
    while done < size.pairs:
        if made == 2 * size.pairs:
            found.problem = "the instrument was late in half of the rounds: the machine is too busy"
            break
        made += 1
        p.say(f"{row.name}: round {done + 1} of {size.pairs}")
        try:
            found.add(round_of(bench, row))
            done += 1
        except Late as why:
            p.say(f"the round is made again: {why}")
            found.repeated.append(str(why))
        except NotAResult as why:
            found.problem = str(why)
            break
    return {"started": started, "machine": bench.machine, "pairs": done, "repeated": found.repeated, "problem": found.problem, "overloaded": {},
            "sides": [{"label": "tailrace", "command": f"tailrace serve --memory {bench_rows.MEMORY} --shards 1", "version": None},
                      *({"label": name, "command": "tests/peer/nats", "version": version} for name, version in bench.others.items())],
            "warm_up_s": bench.time.get("warm-up-s", ""), "length_s": bench.time.get("length-s", ""), "figures": [entry(name, found) for name in found.rounds]}


def entry(name, found):
    rounds = found.rounds[name]
    ours, theirs, judged = zip(*rounds, strict=True)
    middle = lambda values: statistics.median(values) if None not in values else None
    return bench_versus.figure(name, found.beside[name], middle(ours), middle(theirs), judged, (min(judged), middle(judged), max(judged)))


def cost(ours, theirs):
    """How many times as much ours is: what a bound of "at most" is about."""
    return ours, theirs, ours / theirs


def beside(bench, row):
    """The row's load beside another, on Tailrace both times."""
    other = bench.alone(row.beside)
    mine = bench.alone(row.workload)
    partitions = f"{other['workload']['topics']['partitions']} partitions"
    return {(figure, partitions): cost(mine["produce"][key] / 1e3, other["produce"][key] / 1e3)
            for figure, key in (("p50 ms", "p50"), ("p99 ms", "p99"), ("p99.9 ms", "p99_9"))}


def nats(bench, row):
    """One publish at a time: NATS JetStream, every one synced, then Tailrace; each on the same CPUs, with a client of its own kind."""
    peer = nats_peer()
    place = pathlib.Path(tempfile.mkdtemp(prefix="nats-", dir=bench.folder))
    port = proc.free_ports()[0]
    server = proc.start(["taskset", "-c", "0", peer, "serve", "--dir", place, "--port", port], stdin=proc.subprocess.DEVNULL,
                        stdout=proc.subprocess.DEVNULL, stderr=proc.subprocess.DEVNULL)
    time.sleep(SETTLE_S)
    size = bench.size
    out = proc.run(["taskset", "-c", "1", peer, "publish", "--port", port, "--warm-up-s", size.warm_up_s, "--length-s", size.length_s],
                   timeout=size.warm_up_s + size.length_s + 120).stdout
    theirs = json.loads(out)
    proc.end(server)
    shutil.rmtree(place)
    os.sync()
    time.sleep(SETTLE_S)
    bench.p.say(f"{row.name}: NATS {theirs['server']}: {theirs['records_per_s']:,.0f}/s, p50 {theirs['p50'] / 1e3:.3f}, p99 {theirs['p99'] / 1e3:.3f} ms")
    bench.others["nats"] = f"{theirs['server']}, client {theirs['client']}"
    mine = bench.alone(row.workload)["produce"]
    found = {}
    for figure, key in (("p50 ms", "p50"), ("p99 ms", "p99"), ("p99.9 ms", "p99_9")):
        found[figure, "NATS JetStream"] = mine[key] / 1e3, theirs[key] / 1e3, theirs[key] / mine[key]
    return found


def nats_peer():
    """The server and publisher of tests/peer/nats, built of what its go.sum pins."""
    peer = bench_versus.RAW / "nats-peer"
    peer.parent.mkdir(parents=True, exist_ok=True)
    proc.run(["go", "-C", brokers.PEER.parent / "nats", "build", "-p", "2", "-mod=readonly", "-o", peer, "."], timeout=1200)
    return peer


def within_a_run(bench, row):
    run = bench.alone(row.workload)
    return {("end to end p50 ms", "produce p50"): cost(run["end_to_end"]["p50"] / 1e3, run["produce"]["p50"] / 1e3),
            ("end to end p99 ms", "produce p99"): cost(run["end_to_end"]["p99"] / 1e3, run["produce"]["p99"] / 1e3)}


def low_rate(bench, row):
    """The machine is asked before and after the run; what it takes is the mean of both."""
    before = probe(bench)
    run = bench.alone(row.workload)
    after = probe(bench)
    mean = lambda *path: (dig(before, path) + dig(after, path)) / 2
    bare = (mean("write_p50") + mean("loopback", "p50")) / 1e3
    paced = (mean("write_at_pace", "p50") + mean("loopback_at_pace", "p50")) / 1e3
    p50 = run["produce"]["p50"] / 1e3
    found = {("p50 ms", "durable write p50 + round trip p50"): cost(p50, bare),
             ("p50 ms at the same pace", "the same, 1,000 a second"): cost(p50, paced)}
    if run["device"]:
        found["device bytes ÷ produced", None] = told(run["device"]["settled_per_produced"])
    return found


def told(value):
    return value, None, value


def dig(value, path):
    for key in path:
        value = value[key]
    return value


def probe(bench):
    output = bench.folder / "probe.json"
    each = 0.3 if bench.p.quick else 2
    proc.run([proof.binary(), "bench", "probe", "--dir", bench.folder, "--broker-cpus", 0, "--load-cpus", 1, "--each-s", each, "--output", output],
             timeout=300)
    return json.loads(output.read_text())


def device(bench, row):
    run = bench.alone(row.workload)
    if not run["device"]:
        raise proc.Failed("the data lies on no disk whose writes are counted: TAILRACE_TEST_DIR names another place")
    return {("device bytes ÷ produced", None): told(run["device"]["settled_per_produced"]), ("records/s", None): told(run["records_per_s"])}


def replay(bench, row):
    """The live load without and with the replay; percentiles of the seconds in which it was read, in both."""
    can = probe(bench)
    logs, results = [], []
    for workload in (row.workload, row.beside):
        # The load is one; what is beside it isn't.
        sets = [s for s in bench.size.replayed(row) if workload == row.workload or not s.startswith("replay.")]
        with bench.broker() as (broker, place):
            results.append(bench.run(broker, place, workload, sets))
            log = bench.folder / f"{workload}.hlog"
            shutil.move(place / "run.hlog", log)
            logs.append(log)
    read = results[0]["replay"]
    begin = results[0]["workload"]["replay"]["begin-s"]
    # Whole seconds, at least one.
    end = max(begin + int(read["seconds"]), begin + 1)
    found = {}
    for name, tag in (("live", None), ("live end to end", "end-to-end")):
        for figure, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            with_it, without = (bench_hlog.percentile_ms(log, tag, begin, end, share) for log in logs)
            if with_it is None or without is None:
                raise NotAResult("nothing was live while the replay was read")
            found[f"{name} {figure} ms", "the same without a replay"] = cost(with_it, without)
    could = min(can["disk_read_bytes_per_s"], can["loopback_bytes_per_s"]) / 1e6
    found["replay MB/s", "what disk or core can"] = cost(read["bytes_per_s"] / 1e6, could)
    found["replayed GB", None] = told(read["bytes"] / 1e9)
    return found


def write_out(bench, row):
    """Flat out, with segments on the journal's disk and in memory: the journal's disk then has nothing else to write."""
    took = []
    for in_memory in (True, False):
        memory = pathlib.Path(tempfile.mkdtemp(prefix="tailrace-bench-", dir=IN_MEMORY)) if in_memory else None
        if memory:
            proc.cleanup.callback(shutil.rmtree, memory, ignore_errors=True)
        journal = pathlib.Path(tempfile.mkdtemp(prefix="journal-", dir=bench.folder))
        with bench.broker(data=memory / "data" if memory else None, more=["--journal-dir", journal]) as (broker, place):
            seen = []
            look = lambda: seen.append(metrics.times(broker, metrics.COMMIT_TIMES))
            run = bench.run(broker, place, row.workload, meanwhile=look)
            look()
        shutil.rmtree(journal)
        took.append((run, *(between(*seen, share) * 1000 for share in (0.5, 0.99, 0.999))))
    quiet, busy = took
    found = {(f"journal {name} ms", "the same with segments in memory"): cost(busy[n], quiet[n]) for n, name in ((1, "p50"), (2, "p99"), (3, "p99.9"))}
    found["records/s", "the same with segments in memory"] = cost(busy[0]["records_per_s"], quiet[0]["records_per_s"])
    return found


def between(before, after, share):
    """The percentile of what came between two histograms, in seconds: within its bucket, whose bounds are a factor of 1.33 or 1.5 apart, as
    if times lay in it evenly."""
    bounds = sorted(after)
    came = [after[bound] - before[bound] for bound in bounds]
    if not came[-1]:
        raise NotAResult("the journal had nothing to do")
    rank = share * came[-1]
    at = next(n for n, count in enumerate(came) if count >= rank)
    low, below = (bounds[at - 1], came[at - 1]) if at else (0, 0)
    high = bounds[at] if bounds[at] != float("inf") else low
    return low + (high - low) * (rank - below) / max(came[at] - below, 1)
