"""Rounds of load and sudden death, and the check of everything that was acknowledged."""

import random
import time

import load
import proc

PARTITIONS = 100
TOPIC = "crash"
# Bytes of large records, and how many a second.
LARGE = (1_100_000, 2_000_000)
LARGE_RATE = 3
THRESHOLDS = dict.fromkeys(load.SEEN, 0) | {"given_up": 0}


def rounds(p, broker, count, crash, folder, seed, check_every, rates, prepared=None):
    """Kills the broker `count` times with `crash(number)`, which also restarts it, under load all the time.

    Each round first waits until every producer has had something acknowledged since the restart, so that no round
    is idle. Every `check_every` rounds, and at the end by both clients' readers, everything acknowledged is
    compared with what is there.
    """
    chance = random.Random(seed)
    broker.create_topic(TOPIC, PARTITIONS, f"max.message.bytes={LARGE[1] * 2}")
    if prepared:
        prepared()
    producers = [
        load.Producer(kind, number, broker, TOPIC, PARTITIONS, folder, rate, codec=codec)
        for number, (kind, codec, rate) in enumerate([
            ("librdkafka", "none", rates), ("librdkafka", "lz4", rates), ("java", "none", rates),
            ("java", "zstd", rates)])
    ]
    # Too large for the journal: these take another way to the disk.
    large = load.Producer("librdkafka", len(producers), broker, TOPIC, PARTITIONS, folder, LARGE_RATE, size=LARGE)
    producers.append(large)
    figures = {"rounds": 0, "checks": 0, "seed": seed, "partitions": PARTITIONS, "producers": len(producers),
               "restart_s_max": 0.0}
    p.figures.update(figures)
    for number in range(1, count + 1):
        before = {x.number: x.logged() for x in producers}
        proc.wait_for(f"every producer goes on in round {number}",
                      lambda: all(x.logged() > before[x.number] for x in producers), 90)
        time.sleep(chance.uniform(0.05, 1.0))
        began = time.monotonic()
        crash(number)
        p.figures["restart_s_max"] = max(p.figures["restart_s_max"], round(time.monotonic() - began, 2))
        p.figures["rounds"] = number
        if number % check_every == 0:
            logged = {x.number: x.logged() for x in producers}
            counts, examples = load.verify(producers, load.read("librdkafka", broker, TOPIC, PARTITIONS),
                                           PARTITIONS, logged)
            p.figures["checks"] += 1
            p.say(f"round {number}: {counts}")
            if not judge(p, f"after round {number}", counts, examples):
                p.figures.update(counts)
                return
    for producer in producers:
        producer.finish()
    totals = {}
    for kind in ("librdkafka", "java"):
        counts, examples = load.verify(producers, load.read(kind, broker, TOPIC, PARTITIONS), PARTITIONS)
        p.figures["checks"] += 1
        p.say(f"at the end, by {kind}: {counts}")
        judge(p, f"at the end, read by {kind}", counts, examples)
        given_up = [text for text in examples if text.startswith("given up")][:3]
        totals = {name: max(counts[name], totals.get(name, 0)) for name in counts}
    p.check("given up by a producer", totals["given_up"] == 0, [totals["given_up"], *given_up])
    p.figures["large_acknowledged"] = large.path.read_bytes().count(b"\nA ")
    p.check("large records were acknowledged", p.figures["large_acknowledged"] >= count,
            p.figures["large_acknowledged"])
    p.check("something was acknowledged", totals["acknowledged"] > 100 * count, totals["acknowledged"])
    p.figures.update(totals)


def judge(p, when, counts, examples):
    return p.check(f"what was acknowledged, {when}", not any(counts[name] for name in load.SEEN),
                   {name: counts[name] for name in load.SEEN if counts[name]} | {"examples": examples[:3]})
