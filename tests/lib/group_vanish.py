"""Members that vanish in the middle of joining: their connection closed, or silent. The others of the group settle without them within the
rebalance timeout."""

import asyncio
import dataclasses

import group_wire as wire
from group_desk import Desk
from group_member import Member, cut_short, stop

SESSION_MS, REBALANCE_MS = 6_000, 8_000
SLACK_S = 2
LIMIT_S = REBALANCE_MS / 1000 + SLACK_S


class Case:
    """A group of three that live, and one that vanishes."""

    def __init__(self, place, p, name, silently):
        self.place, self.p, self.group, self.silently = place, p, name, silently
        self.desk, self.lives = Desk(place), {}

    def must(self, what, holds, detail=""):
        self.p.check(f"{self.group}: {what}", holds, detail)

    def born(self):
        one = Member(self.place, self.group)
        self.lives[one] = self.place.run(one.live())
        return one

    async def taken(self, one):
        """One of those that live: from now on it does as it is told."""
        await stop(self.lives.pop(one))
        return one

    async def new(self):
        one = Member(self.place, self.group)
        await one.connect()
        return one

    async def until_told_of_a_rebalance(self, one):
        while (error := await one.heartbeat()) == 0:
            await asyncio.sleep(0.02)
        self.must("it is told of the rebalance", error == wire.REBALANCE, error)

    async def goes_on_with_heartbeats(self, one):
        """It is heard of, and does nothing else, until it is told that it is out."""
        while (error := await one.heartbeat()) in (0, wire.REBALANCE):
            await asyncio.sleep(self.place.beat_s)
        self.must("it is told that it is out", error == wire.UNKNOWN_MEMBER, error)
        one.link.close()


async def before_it_joined(v):
    """It asked for an id, and never came with it; another that comes has to wait for it."""
    one = await v.new()
    v.must("it is given an id", (error := await one.join_once()) == wire.ID_REQUIRED, error)
    one.vanish(v.silently)
    v.born()


async def joining(v):
    one = await v.new()
    task = v.place.run(one.join())
    while one.id not in {seen.id for seen in (await v.desk.describe(v.group))[v.group].members}:
        await asyncio.sleep(0.005)
    await stop(task)
    one.vanish(v.silently)


async def joining_again(v):
    one = await v.taken(next(iter(v.lives)))
    v.born()
    await v.until_told_of_a_rebalance(one)
    await cut_short(one.join())
    one.vanish(v.silently)


async def after_it_joined(v):
    one = await v.new()
    v.must("it joins", (error := await one.join()) == 0, error)
    one.vanish(v.silently)


async def as_the_leader(v):
    one = await v.taken(next(one for one in v.lives if one.leads))
    v.born()
    await v.until_told_of_a_rebalance(one)
    v.must("it joins, and leads", (await one.join(), one.leads) == (0, True))
    one.vanish(v.silently)


async def syncing(v):
    one = await v.new()
    v.must("it joins", (error := await one.join()) == 0, error)
    await cut_short(one.sync())
    one.vanish(v.silently)


async def never_joins_again(v):
    one = await v.taken(next(iter(v.lives)))
    v.place.run(v.goes_on_with_heartbeats(one))
    v.born()


async def never_syncs(v):
    one = await v.new()
    v.must("it joins", (error := await one.join()) == 0, error)
    v.place.run(v.goes_on_with_heartbeats(one))


TWO_WAYS = (before_it_joined, joining, joining_again, after_it_joined, as_the_leader, syncing)
CASES = [(case, silently) for case in TWO_WAYS for silently in (False, True)] + [(never_joins_again, False), (never_syncs, False)]


async def one_of(place, p, number, vanishes, silently, fired):
    name = f"{vanishes.__name__}-{'silent' if silently else 'closed'}"
    v = Case(place, p, f"{name}-{number}", silently)
    for _ in range(3):
        v.born()
    await v.desk.settled(v.group, list(v.lives), LIMIT_S)
    await vanishes(v)
    seconds = await v.desk.settled(v.group, list(v.lives), LIMIT_S)
    fired[f"vanished_{name}"] += 1
    for one, life in v.lives.items():
        await stop(life)
        one.vanish(False)
    v.desk.link.close()
    return seconds


async def round_of_all(place, p, number, fired):
    """The longest that a group took to settle, in seconds."""
    place = dataclasses.replace(place, session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)
    return max(await asyncio.gather(*(one_of(place, p, number, *case, fired) for case in CASES)))
