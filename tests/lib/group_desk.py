"""Questions about groups from outside, and when a group has settled."""

import asyncio
import time

import group_wire as wire

PATIENCE_S = 40


class Desk:
    """One connection, made anew when it breaks. It asks again while a coordinator isn't ready."""

    def __init__(self, place):
        self.place, self.link, self.asking = place, None, asyncio.Lock()

    async def ask(self, call, *arguments):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                async with self.asking:
                    if self.link is None or self.link.closed:
                        self.link = await wire.Link.to(self.place.port)
                async with asyncio.timeout(20):
                    return await call(self.link, *arguments)
            except OSError:
                if self.link:
                    self.link.close()
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.1)

    async def until_ready(self, call, *arguments, error=lambda answer: answer):
        end = time.monotonic() + PATIENCE_S
        while True:
            answer = await self.ask(call, *arguments)
            if error(answer) not in wire.NOT_READY or time.monotonic() > end:
                return answer
            await asyncio.sleep(0.05)

    async def describe(self, *groups):
        found = await self.until_ready(wire.describe, groups, error=lambda all_: next((g.error for g in all_ if g.error), 0))
        return {group.group: group for group in found}

    async def state(self, group):
        return (await self.describe(group))[group].state

    async def until_state(self, group, state):
        end = time.monotonic() + PATIENCE_S
        while (found := await self.state(group)) != state:
            if time.monotonic() > end:
                raise TimeoutError(f"{group} is {found}, not {state}")
            await asyncio.sleep(0.005)

    async def check_offsets(self, group, partitions=None):
        """Every offset of a group is as the model has it; they are given as {partition: (offset, metadata)}."""
        partitions = range(self.place.partitions) if partitions is None else partitions
        model = self.place.model
        asked = model.asks(group, partitions)
        error, found = await self.until_ready(wire.committed, group, self.place.topic, partitions, error=lambda answer: answer[0])
        if error:
            model.is_wrong("unexpected", f"{group}: offsets are refused with {error}")
        else:
            model.told(group, asked, found)
        return found

    async def settled(self, group, members, limit_s, others=0):
        """The seconds until all these members, and so many others that are none of ours, are in one generation, and every partition has one owner."""
        began = time.monotonic()
        while True:
            why = _apart(members) or _unlike(await self.describe(group), group, members, others, self.place.partitions)
            if not why:
                return round(time.monotonic() - began, 2)
            if time.monotonic() - began > limit_s:
                self.place.model.is_wrong("unsettled", f"{group}, after {limit_s} s: {why}")
                return limit_s
            await asyncio.sleep(0.1)


def _apart(members):
    """Why they aren't in one generation, as they know it."""
    waiting = [one.id for one in members if not one.settled]
    generations = {one.generation for one in members}
    if waiting or len(generations) > 1:
        return f"{len(waiting)} of {len(members)} have no assignment ({waiting[:3]}); generations {sorted(generations)}"
    return None


def _unlike(found, group, members, others, partitions):
    described = found[group]
    if described.state != "Stable":
        return described.state
    strangers = {one.id for one in described.members} ^ {one.id for one in members}
    if len(described.members) != len(members) + others or len(strangers) != others:
        return f"{len(described.members)} members, {len(members)} + {others} wanted; {sorted(strangers)[:3]}"
    owned = sorted(p for one in described.members for p in wire.read_assignment(one.assignment)[0])
    return None if owned == list(range(partitions)) else f"owned: {owned}"
