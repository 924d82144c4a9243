"""Hundreds of members that come and go, in many groups at once, static ones and others, while the broker is killed in the middle. Each place of a group
is taken by one member after the other; how each ends is its turn of a list, so that nothing is left to luck.

Members commit all the time. Now and then one commits in the name of the generation before, which must be refused."""

import asyncio
import collections
import dataclasses
import itertools
import time

import group_wire as wire
from group_desk import Desk
from group_member import Fenced, Member, cut_short, stop

# The group that has members of confluent-kafka beside those of plain bytes.
MIXED = "mixed"
# One place in so many is a static member's.
STATIC_EACH = 4
OLD_COMMITS = 0.1
SILENT_S = 8
JOINED_S = 4
FENCED_S = 25
NEXT_S = (0.1, 1.0)

# A group waits for those that vanish: most leave.
ENDS = ("leave", "close", "leave", "joining", "leave", "leave", "silent", "leave", "joined", "leave")
STATIC_ENDS = ("return", "replaced", "return", "silent")


@dataclasses.dataclass
class Size:
    members: int
    groups: int
    seconds: float
    kills: int
    life_s: tuple

    @property
    def each(self):
        return self.members // self.groups


class CrowdMember(Member):
    def __init__(self, *arguments, fired):
        super().__init__(*arguments)
        self.fired = fired

    async def enter(self):
        before = self.id, self.generation, dict(self.position)
        await super().enter()
        if self.settled and before[0] == self.id and before[2] and self.place.chance.random() < OLD_COMMITS:
            await self.commit_as_before(*before[1:])

    async def commit_as_before(self, generation, position):
        # Now and then its generation is still the same: it was told that again.
        if generation == self.generation:
            return
        error = await self.commit(generation, position)
        if error == wire.ILLEGAL_GENERATION:
            self.fired["old_commits"] += 1
        elif error and error not in wire.NOT_READY:
            await self.react("commit", error)


class Crowd:
    def __init__(self, place, p, size, fired, clients):
        self.place, self.p, self.size, self.fired, self.model = place, p, size, fired, place.model
        self.clients = {one.group: one for one in clients}  # Those of other people.
        self.ending = asyncio.Event()
        self.living = collections.defaultdict(dict)  # {group: {member: its life}}
        self.ends, self.static_ends = itertools.cycle(ENDS), itertools.cycle(STATIC_ENDS)
        self.groups = [MIXED, *(f"crowd-{number}" for number in range(size.groups - 1))]
        self.born_in_all = self.most = 0
        self.slots, self.closing = [], set()

    def begin(self):
        for group in self.groups:
            self.slots += [self.place.run(self.slot(group, number)) for number in range(self.size.each)]

    def born(self, group, instance):
        one = CrowdMember(self.place, group, instance, fired=self.fired)
        self.living[group][one] = self.place.run(self.life(one))
        self.born_in_all += 1
        self.most = max(self.most, sum(len(of_group) for of_group in self.living.values()))
        return one

    async def life(self, one):
        try:
            await one.live()
        except Fenced as told:
            self.fired["told_fenced"] += told.args[0] == wire.FENCED
            del self.living[one.group][one]
            one.link.close()

    async def wait(self, seconds):
        """Whether the end has come."""
        try:
            async with asyncio.timeout(seconds):
                return await self.ending.wait()
        except TimeoutError:
            return False

    async def slot(self, group, number):
        chance = self.place.chance
        instance = f"{group}-{number}" if number % STATIC_EACH == 0 else None
        if await self.wait(chance.uniform(0, 2)):
            return
        one = self.born(group, instance)
        while not await self.wait(chance.uniform(*self.size.life_s)):
            how = next(self.static_ends if instance else self.ends)
            # Of two that both come anew, neither is the later one.
            if how == "replaced" and one.settled:
                one = await self.replace(one)
                continue
            await self.end(one, how)
            if await self.wait(chance.uniform(*NEXT_S)):
                return
            one = self.born(group, instance)

    async def replace(self, old):
        """Another comes as this static member; it must be told so."""
        old.may_be_fenced = True
        life = self.living[old.group][old]
        new = self.born(old.group, old.instance)
        self.fired["ended_replaced"] += 1
        since = time.monotonic()
        while not life.done() and self.model.up_s(since) < FENCED_S:
            await asyncio.wait([life], timeout=1)
        if not life.done():
            self.model.is_wrong("not_told", f"{old.group}: {old.id} lives on, {new.id} took its place as {old.instance}")
            await stop(life)
            self.living[old.group].pop(old, None)
        return new

    async def end(self, one, how):
        await stop(self.living[one.group].pop(one))
        try:
            if one.link is None or one.link.closed:
                await one.connect()
            if how == "leave":
                await self.leave(one)
            elif how == "joining":
                # As what it is, or as somebody new.
                await cut_short(one.join_once())
            elif how == "joined":
                async with asyncio.timeout(JOINED_S):
                    how = "close" if await one.join() else how
        except OSError:
            # The broker is gone, or others aren't there yet: so is this member.
            how = "close"
        self.fired[f"ended_{how}"] += how != "replaced"
        silently = how == "silent"
        one.vanish(silently)
        if silently:
            self.closing.add(self.place.run(self.close_later(one.link)))

    async def leave(self, one):
        error = await one.leave()
        if error not in (0, wire.UNKNOWN_MEMBER, *wire.NOT_READY):
            self.model.is_wrong("unexpected", f"{one.group}: {one.id} leaves: {error}")

    @staticmethod
    async def close_later(link):
        await asyncio.sleep(SILENT_S)
        link.close()

    async def come_and_go(self, kill_and_start):
        """The broker dies at even distances."""
        self.begin()
        began = time.monotonic()
        for number in range(1, self.size.kills + 1):
            at = began + self.size.seconds * number / (self.size.kills + 1)
            await asyncio.sleep(max(at - time.monotonic(), 0))
            await kill_and_start()
            self.fired["killed_in_the_crowd"] += 1
            self.clients[MIXED].kill()
            self.clients[MIXED].begin()
        await asyncio.sleep(max(began + self.size.seconds - time.monotonic(), 0))
        self.ending.set()
        await asyncio.wait(self.slots)

    async def settle(self):
        """The seconds that the slowest group took. Then nobody moves any more."""
        desk = Desk(self.place)
        limit_s = (self.place.session_ms + self.place.rebalance_ms) / 1000 + 10
        for clients in self.clients.values():
            clients.stay()
        seconds = await asyncio.gather(*(
            desk.settled(group, list(self.living[group]), limit_s, self.clients[group].count if group in self.clients else 0)
            for group in {*self.groups, *self.clients}))
        for clients in self.clients.values():
            clients.end()
        for of_group in self.living.values():
            for life in of_group.values():
                await stop(life)
        return max(seconds)

    async def compare(self, kill_and_start):
        """Every offset is there, and over one more kill it stays exactly what it is."""
        desk = Desk(self.place)
        # What was under way when they were stopped has an end.
        await asyncio.gather(*(one.said(one.heartbeat) for of_group in self.living.values() for one in of_group))
        before = [await desk.check_offsets(group) for group in self.groups]
        await kill_and_start()
        after = [await desk.check_offsets(group) for group in self.groups]
        self.p.check("offsets are the same over a kill", before == after,
                     [(group, b, a) for group, b, a in zip(self.groups, before, after) if a != b][:1])
        return sum(offset >= 0 for found in after for offset, _ in found.values())

    def close(self):
        for of_group in self.living.values():
            for one in of_group:
                one.vanish(False)
