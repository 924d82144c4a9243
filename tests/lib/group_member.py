"""A member of a classic group that speaks plain bytes: its steps one by one, and the life of a consumer made of them.

    one = Member(place, "group")
    await one.connect(); await one.join(); await one.sync()
    task = place.run(one.live())        joins, shares out, asks for offsets, heartbeats, commits, joins again

Each answer is told to the model. `Place` is what members have in common: the broker, the topic, times, the model.
"""

import asyncio
import dataclasses
import random
import time

import group_wire as wire
from group_model import Model

# What each request may be refused with; NOT_READY in any case. FENCED is for static members only.
EXPECTED = {
    "join": (wire.UNKNOWN_MEMBER, wire.REBALANCE, wire.FENCED),
    "sync": (wire.ILLEGAL_GENERATION, wire.UNKNOWN_MEMBER, wire.REBALANCE, wire.FENCED),
    "heartbeat": (wire.ILLEGAL_GENERATION, wire.UNKNOWN_MEMBER, wire.REBALANCE, wire.FENCED),
    "commit": (wire.ILLEGAL_GENERATION, wire.UNKNOWN_MEMBER, wire.REBALANCE, wire.FENCED),
    "leave": (wire.UNKNOWN_MEMBER, wire.FENCED),
}
# Who was heard of that recently can't be taken for gone.
HEARD_S = 3
ANSWER_S = 40


class Fenced(Exception):
    """Another member took this one's place."""


class Watch:
    """Tasks of their own. If one fails, so does everything."""

    def __init__(self):
        self.tasks, self.failure, self.main = set(), None, asyncio.current_task()

    def run(self, work):
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task):
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() and not self.failure:
            self.failure = task.exception()
            self.main.cancel()


@dataclasses.dataclass
class Place:
    port: int
    topic: str
    partitions: int
    model: Model
    chance: random.Random
    watch: Watch
    session_ms: int = 30_000
    rebalance_ms: int = 30_000
    beat_s: float = 0.3
    protocol: str = "range"

    def run(self, work):
        return self.watch.run(work)


async def stop(task):
    task.cancel()
    await asyncio.wait([task])


async def cut_short(work):
    """It sends what it sends first, and comes to nothing more."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    await stop(task)
    if not task.cancelled():
        task.result()


class Member:
    def __init__(self, place, group, instance=None):
        self.place, self.model, self.group, self.instance = place, place.model, group, instance
        self.link, self.id, self.generation = None, "", -1
        self.session_ms, self.rebalance_ms = place.session_ms, place.rebalance_ms
        self.leads, self.told, self.owned, self.position = False, [], [], {}
        self.settled = False  # It has an assignment, and was not told that it is void.
        self.commits = True
        self.synced_as = None  # The id with which it last had an assignment.
        self.heard, self.gap = time.monotonic(), 0.0  # When the last request that was answered was sent, and how long ago the one before.
        self.kills = self.model.kills  # Those that were when it was last well.
        self.loaded = -1  # Those after which its coordinator was ready.
        self.may_be_fenced = False
        self.refusals = []  # (what, error)

    @property
    def who(self):
        return self.id, self.instance

    async def connect(self):
        self.link = await wire.Link.to(self.place.port)

    def vanish(self, silently):
        """Its client is gone: with its connection, or only silent."""
        if self.link:
            self.link.silence() if silently else self.link.close()

    # --- steps: each gives its error ---------------------------------------------

    async def answer(self, asked, patience=ANSWER_S):
        sent = time.monotonic()
        async with asyncio.timeout(patience):
            found = await asked
        # When the request before was sent: answers may be read late.
        self.heard, self.gap = sent, time.monotonic() - self.heard
        return found

    async def join_once(self):
        place = self.place
        before = self.model.before(self.group)
        protocols = [(place.protocol, wire.subscription(place.topic))]
        patience = (self.session_ms + self.rebalance_ms) / 1000 + ANSWER_S
        joined = await self.answer(wire.join(self.link, self.group, *self.who, self.session_ms, self.rebalance_ms, protocols), patience)
        if joined.error == wire.ID_REQUIRED and not self.id:
            self.id = joined.member
        elif joined.error == 0:
            self.model.joined(self.group, before, joined.generation)
            self.loaded = before.kills
            self.id, self.generation = joined.member, joined.generation
            self.leads, self.told = joined.leader == self.id, joined.members
        return joined.error

    async def join(self):
        self.settled = False
        error = await self.join_once()
        return await self.join_once() if error == wire.ID_REQUIRED else error

    def share_out(self):
        """As the leader: everybody gets something else than the last time."""
        ids = [one for one, _ in self.told]
        self.place.chance.shuffle(ids)
        mark = f"{self.id}/{self.place.chance.getrandbits(48):x}"
        return {one: wire.assignment(self.place.topic, range(at, self.place.partitions, len(ids)), mark) for at, one in enumerate(ids)}

    async def sync(self):
        before = self.model.before(self.group, self.id)
        me, generation = self.id, self.generation
        given = self.share_out() if self.leads and self.told else {}
        error, data = await self.answer(wire.sync(self.link, self.group, generation, *self.who, given))
        if error == 0:
            if not data:
                self.model.is_wrong("unexpected", f"{self.group}: an empty assignment for {me}")
            self.owned, mark = wire.read_assignment(data)
            self.model.assigned(self.group, before, generation, me, self.instance, self.owned, mark)
            self.synced_as, self.position = me, {}
        return error

    async def look(self):
        """Asks for the offsets of what it owns, and goes on from there."""
        if not self.owned:
            return 0
        asked = self.model.asks(self.group, self.owned)
        error, found = await self.answer(wire.committed(self.link, self.group, self.place.topic, self.owned))
        if error == 0:
            self.model.told(self.group, asked, found, self.generation)
            self.position = {partition: max(offset, 0) for partition, (offset, _) in found.items()}
        return error

    async def heartbeat(self):
        before = self.model.before(self.group, self.id)
        generation = self.generation
        error = await self.answer(wire.heartbeat(self.link, self.group, generation, *self.who))
        # While a coordinator loads, every heartbeat is well: it counts once the coordinator has said something else.
        if error == 0 and self.loaded == self.model.kills == before.kills:
            self.model.carried_out(self.group, before, generation, self.id, "Heartbeat")
        return error

    async def commit(self, generation=None, position=None):
        """Moves what it owns on; or commits as a member of that generation would."""
        generation = self.generation if generation is None else generation
        position = self.position if position is None else position
        values = {partition: offset + self.place.chance.randint(1, 5) for partition, offset in position.items()}
        if not values:
            return 0
        # Also without an answer it may have been carried out: the next goes on behind it.
        position.update(values)
        commit, rows = self.model.commits(self.group, generation, self.id, values)
        errors = await self.answer(wire.commit(self.link, self.group, generation, *self.who, self.place.topic, rows))
        if len(set(errors.values())) != 1 or errors.keys() != values.keys():
            self.model.is_wrong("unexpected", f"{self.group}: a commit of {sorted(values)} is answered with {errors}")
        error = max(errors.values(), default=0)
        if error == 0:
            self.model.committed(commit)
            self.loaded = commit.before.kills
        elif error not in wire.NOT_READY:
            self.model.refused(commit)
        return error

    async def leave(self):
        self.settled = False
        return await self.answer(wire.leave(self.link, self.group, *self.who))

    async def said(self, step):
        """What a step comes to once the coordinator is ready; connects if it must."""
        end = time.monotonic() + ANSWER_S
        while True:
            try:
                if self.link is None or self.link.closed:
                    await self.connect()
                error = await step()
            except OSError:
                error = None
            if error not in (None, *wire.NOT_READY) or time.monotonic() > end:
                return error
            await asyncio.sleep(0.05)

    # --- a life --------------------------------------------------------------------

    async def live(self):
        while True:
            try:
                if self.link is None or self.link.closed:
                    await self.connect()
                if self.settled:
                    await self.beat()
                else:
                    await self.enter()
            except TimeoutError:
                self.model.is_wrong("unanswered", f"{self.group}: {self.id} waits since {time.monotonic() - self.heard:.0f} s")
                self.link.close()
            except OSError:
                self.heard = time.monotonic()
                await asyncio.sleep(self.place.chance.uniform(0.1, 0.4))

    async def enter(self):
        for what, step in (("join", self.join), ("sync", self.sync), ("look", self.look)):
            error = await step()
            while what == "look" and error in wire.NOT_READY:
                await asyncio.sleep(0.05)
                error = await step()
            if error:
                return await self.react(what, error)
        self.settled, self.kills = True, self.model.kills

    async def beat(self):
        await asyncio.sleep(self.place.beat_s * self.place.chance.uniform(0.8, 1.2))
        error = await self.heartbeat()
        # Who is told of a rebalance may commit before it joins again.
        if error in (0, wire.REBALANCE) and self.commits:
            committed = await self.commit()
            if committed:
                await self.react("commit", committed)
        if error:
            await self.react("heartbeat", error)
        elif self.settled:
            self.kills = self.model.kills

    async def react(self, what, error):
        self.refusals.append((what, error))
        if error in wire.NOT_READY:
            return await asyncio.sleep(self.place.chance.uniform(0.02, 0.1))
        self.settled = False
        self.model.counts[f"told_{error}"] += 1
        fine = error in EXPECTED.get(what, ()) and (error != wire.FENCED or self.instance)
        if not fine:
            self.model.is_wrong("unexpected", f"{self.group}: {what} of {self.id} is refused with {error}")
        if self.may_be_fenced and error in (wire.FENCED, wire.UNKNOWN_MEMBER):
            raise Fenced(error)
        if error in (wire.UNKNOWN_MEMBER, wire.FENCED):
            self._thrown_out(what, error)
            self.id = ""
        if not fine:
            await asyncio.sleep(0.2)

    def _thrown_out(self, what, error):
        """After a kill, a member is none if no assignment was ever told to it; a static one may have got its earlier self back."""
        excused = self.kills != self.model.kills and (self.synced_as != self.id or self.instance)
        if not excused and self.gap < HEARD_S:
            self.model.is_wrong("thrown_out", f"{self.group}: {what} of {self.id} ({self.instance}) is refused with {error}")
