"""One kill -9 that hits a group in every state (group_states.py). What has to be under way at the very moment of the kill is sent by
hooks (`Scene.at_the_kill`), one after the other, the kill right behind the last."""

import asyncio

import group_wire as wire
from group_desk import Desk
from group_member import Member, stop
from group_states import CUT_OFF, SCENES, SHORT_SESSION_MS, deleting


class Scene:
    """One group, or some of a kind, and what its play may do with them."""

    def __init__(self, place, p, play, number):
        self.place, self.p, self.model, self.play = place, p, place.model, play
        self.name = f"{play.__name__}-{number}"
        self.groups = [self.name]
        self.desk = Desk(place)
        self.at_the_kill, self.tasks, self.members = [], [], []
        self.unanswered = 0  # Requests that the kill cut off.
        self.acts = play(self)

    def must(self, what, holds, detail=""):
        self.p.check(f"{self.name}: {what}", holds, detail)

    def member(self, instance=None, group=None, session_ms=None):
        one = Member(self.place, group or self.name, instance)
        one.session_ms = session_ms or one.session_ms
        self.members.append(one)
        return one

    def waits(self, work, counts=True):
        """It is under way, and may be cut off by the kill."""
        async def run():
            try:
                return await work
            except OSError:
                self.unanswered += counts
                return None
        task = self.place.run(run())
        self.tasks.append(task)
        return task

    async def alive(self, members, limit_s=None):
        """They live until they have settled."""
        tasks = [self.place.run(one.live()) for one in members]
        limit_s = limit_s or (self.place.rebalance_ms + SHORT_SESSION_MS) / 1000
        seconds = await self.desk.settled(members[0].group, members, limit_s)
        for task in tasks:
            await stop(task)
        return seconds

    async def settled(self, count, instances=(), **options):
        members = [self.member(instance, **options) for instance in (*instances, *[None] * (count - len(instances)))]
        for one in members:
            one.commits = False
        await self.alive(members)
        for one in members:
            self.must("members commit", await one.commit() == 0)
        return members

    async def next_generation(self, members):
        """All are told a new generation, and nobody has its assignment."""
        leader = next(one for one in members if one.leads)
        first = asyncio.create_task(leader.join())
        await self.desk.until_state(leader.group, "PreparingRebalance")
        errors = await asyncio.gather(first, *(one.join() for one in members if one is not leader))
        self.must("all join again", set(errors) == {0}, errors)
        return leader, [one for one in members if one is not leader]

    async def go_on(self, members):
        """Back to life: they settle, their offsets are there, and they commit again."""
        await self.alive(members)
        await self.desk.check_offsets(members[0].group)
        for one in members:
            self.must("members commit again", await one.said(one.commit) == 0)
        await self.desk.check_offsets(members[0].group)

    async def as_before(self, members, *more):
        """Members of an assignment that was written are members of that generation."""
        for one in members:
            self.must("the generation before is in force", (error := await one.said(one.heartbeat)) == 0, error)
        await self.desk.check_offsets(members[0].group)
        for one in more:
            self.must("who is no member is told so", (error := await one.said(one.join_once)) == wire.UNKNOWN_MEMBER, error)
            one.id = ""
        await self.go_on([*members, *more])


async def act(scene):
    """Up to its next stop; what it says there."""
    try:
        return await anext(scene.acts)
    except StopAsyncIteration:
        return None


async def send_what_is_cut_off(place, scenes):
    hooks = {play: [hook for scene in scenes if scene.play is play for hook in scene.at_the_kill] for play in CUT_OFF}
    # Deletions go on for a while; of the others half are sent together with the kill.
    for hook in hooks.pop(deleting):
        await hook()
    last = [of_play.pop() for of_play in hooks.values() for _ in range(len(of_play) // 2)]
    rest = [hook for of_play in hooks.values() for hook in of_play]
    place.chance.shuffle(rest)
    for hook in rest:
        await hook()
        await asyncio.sleep(place.chance.uniform(0, 0.003))
    for hook in last:
        await hook()
    await asyncio.sleep(0)


async def round_of_all(place, p, number, kill_and_start, fired):
    """Kills the broker once, with a group in each state."""
    scenes = [Scene(place, p, play, f"{number}-{n}") for play, count in SCENES.items() for n in range(count)]
    await asyncio.gather(*(act(scene) for scene in scenes))
    wanted = await asyncio.gather(*(act(scene) for scene in scenes))
    found = await scenes[0].desk.describe(*(group for scene in scenes for group in scene.groups))
    await send_what_is_cut_off(place, scenes)
    await kill_and_start()
    for scene, state in zip(scenes, wanted):
        states = {found[group].state for group in scene.groups}
        name = f"killed_{scene.play.__name__}"
        p.check(f"{scene.name}: the state at the kill", states == {state}, states)
        fired[name] += states == {state}
        if scene.tasks:
            await asyncio.wait(scene.tasks, timeout=20)
        if scene.play in CUT_OFF:
            fired[f"cut_off_{scene.play.__name__}"] += scene.unanswered
    # A coordinator that loads answers heartbeats blindly.
    await scenes[0].desk.describe(*found)
    await asyncio.gather(*(act(scene) for scene in scenes))
    for one in (one for scene in scenes for one in (*scene.members, scene.desk)):
        if one.link:
            one.link.close()
