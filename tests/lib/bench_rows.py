"""The rows of what the instrument asks for: one entry each. `tests/show/bench/2` measures them, `bench_page` tells them.

A bound is held by the end of the spread that is worse for Tailrace: the lowest of ratios that say how many times better it
is (`least`), the highest of those that say what it costs (`most`). Figures have the names that `tailrace bench versus` and
`bench_alone` give them. Bounds are those of the split layout; the shared one is reported beside it.
"""

import dataclasses

# Of both brokers the same: Kafka's heap is 1 GiB, as its own start script has it.
MEMORY = "1GiB"
FSYNC, SHIPPED = "kafka-fsync", "kafka"
NAMES = {FSYNC: "Kafka with fsync", SHIPPED: "Kafka as shipped"}
WARM_UP_S, LENGTH_S = 10, 30
# What a claim needs at least.
PAIRS, LEAST_LENGTH_S = 5, 20


@dataclasses.dataclass(frozen=True)
class Bound:
    figure: str
    against: str | None = None
    least: float | None = None
    most: float | None = None

    def asks(self):
        return f"≥ {self.least:g}×" if self.least is not None else f"≤ {self.most:g}"

    def holds(self, figure):
        return figure["low"] >= self.least if self.least is not None else figure["high"] <= self.most


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    asked: str
    # "versus": brokers in turns; else the function of `bench_alone` that measures it, or "elsewhere".
    how: str
    bounds: tuple
    workload: str = ""
    beside: str = ""  # the workload of the other side, where that is Tailrace too
    peers: tuple = ()
    layouts: tuple = ("split",)
    sets: tuple = ()
    # Of one layout, at full length.
    minutes: int = 0
    why: str = ""  # it isn't measured here


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is measured."""
    pairs: int
    warm_up_s: float
    length_s: float
    quick: bool

    @classmethod
    def of(cls, quick, pairs=None, seconds=None):
        if quick:
            return cls(pairs or 2, 1, seconds or 3, True)
        return cls(pairs or PAIRS, WARM_UP_S, seconds or LENGTH_S, False)

    def whole(self):
        return not self.quick and self.pairs >= PAIRS and self.length_s >= LEAST_LENGTH_S

    def sets(self, row):
        """What every run of a row has other than its workload file."""
        return [x for s in (f"time.warm-up-s={self.warm_up_s}", f"time.length-s={self.length_s}") for x in ("--set", s)]

    def replayed(self, row):
        """What runs of a row with a replay have: its load lasts until it is read."""
        if self.quick:
            return ["replay.bytes=268435456", "replay.begin-s=2", "time.length-s=6"]
        return row.sets


def latency(name, workload, rate, fsync_least, bounds=()):
    shipped = tuple(Bound(figure, SHIPPED, least=1) for figure in ("p99 ms", "p99.9 ms")) if fsync_least == 5 else ()
    return Row(name, f"p99 and p99.9, 1 KiB, acks=all, {rate} records/s, {int(workload.split('-')[1]):,} partitions", "versus",
               (Bound("p99 ms", FSYNC, least=fsync_least), Bound("p99.9 ms", FSYNC, least=fsync_least), *shipped, *bounds),
               workload=workload, peers=(FSYNC, SHIPPED), layouts=("split", "shared"), minutes=15 if fsync_least == 5 else 18)


RESIDENT = tuple(Bound("MiB resident", peer, least=5) for peer in (FSYNC, SHIPPED))

ROWS = (
    latency("latency-12-5k", "latency-12", "5,000", 5),
    latency("latency-12-20k", "latency-12-20k", "20,000", 5),
    latency("latency-1000-5k", "latency-1000", "5,000", 10, RESIDENT),
    latency("latency-1000-20k", "latency-1000-20k", "20,000", 10, RESIDENT),
    *(Row(f"own-1000-{short}", f"the same of Tailrace over 1,000 partitions beside 12, {rate} records/s", "beside",
          (Bound("p99 ms", "12 partitions", most=1.3), Bound("p99.9 ms", "12 partitions", most=1.3)),
          workload=f"latency-1000{more}", beside=f"latency-12{more}", minutes=9)
      for short, rate, more in (("5k", "5,000", ""), ("20k", "20,000", "-20k"))),
    Row("flat-out-1k", "flat out, 1 KiB, acks=all, 12 partitions", "versus",
        (Bound("records/s", FSYNC, least=5), Bound("records/s", SHIPPED, least=1),
         Bound("records per CPU s", SHIPPED, least=1.5)),
        workload="flat-out-1k", peers=(FSYNC, SHIPPED), layouts=("split", "shared"), minutes=15),
    Row("low-rate", "p50 at 1,000 records/s beside the disk's durable 4 KiB write and the loopback's round trip", "low_rate",
        (Bound("p50 ms", "durable write p50 + round trip p50", most=1.5),), workload="low-rate", minutes=7),
    Row("one-at-a-time", "one synchronous publish at a time, beside NATS JetStream that syncs always", "nats",
        (Bound("p50 ms", "NATS JetStream", least=2), Bound("p99 ms", "NATS JetStream", least=2)), workload="one-at-a-time", minutes=9),
    Row("tail-readers", "tail readers end to end, 5,000 records/s", "within_a_run",
        (Bound("end to end p99 ms", "produce p99", most=1.5),), workload="end-to-end", minutes=5),
    Row("cold-replay", "a cold replay of 5 GiB beside the live load, 5,000 records/s", "replay",
        (Bound("live p99 ms", "the same without a replay", most=1.3), Bound("live end to end p99 ms", "the same without a replay", most=1.3),
         Bound("replay MB/s", "what disk or core can", least=0.7)),
        workload="cold-replay", beside="end-to-end", sets=("replay.begin-s=12", "time.length-s=45"), minutes=18),
    Row("write-out", "the journal's p99.9 while segments are written out at full load", "write_out",
        (Bound("journal p99.9 ms", "the same with segments in memory", most=1.5),), workload="flat-out-1k", minutes=9),
    Row("device-small", "device bytes ÷ bytes produced, flat out, small appends (1 KiB records, batches to 128 KiB)", "device",
        (Bound("device bytes ÷ produced", most=2.2),), workload="flat-out-1k", minutes=5),
    Row("device-large", "device bytes ÷ bytes produced, flat out, large appends (batches of 4 MiB)", "device",
        (Bound("device bytes ÷ produced", most=1.1),), workload="flat-out-large", minutes=5),
    Row("instructions", "instructions of a record, 10 to 10,000 partitions and 1 to 1,000 connections, within 10 %", "elsewhere",
        (), why="tests/show/bench/5"),
)
BY_NAME = {row.name: row for row in ROWS}
# What the report shows.
MAIN = ("latency-12-5k", "latency-12-20k", "flat-out-1k")
# Has no schedule that the instrument could be late for: it goes through on a busy machine too.
QUICK = "flat-out-1k"
