"""What a classic group is in at the moment of a kill -9: its scenes, each with a group of its own (group_stage.py).

A scene is an async generator that stops twice: when its group is prepared, and right before the kill, with the state in which
the group must be then, which is looked at. What comes behind that is what must hold when the broker is back.
"""

import asyncio

import group_wire as wire
from group_member import stop

# Groups of those scenes whose one request is on its way at the kill: each dies at another point.
IN_FLIGHT = 8
DELETED, DELETERS = 200, 4
PUMPS, PUMPERS = 4, 6
SHORT_SESSION_MS = 6_000


async def empty(s):
    members = await s.settled(2)
    for one in members:
        s.must("a member leaves", await one.leave() == 0)
    yield
    yield "Empty"
    s.must("it is Empty", (state := await s.desk.state(s.name)) == "Empty", state)
    await s.desk.check_offsets(s.name)
    late = s.member()
    await s.go_on([late])
    s.must("generations go on", late.generation > members[0].generation, (late.generation, members[0].generation))


async def without_members(s):
    one, position = s.member(), dict.fromkeys(range(s.place.partitions), 0)

    async def commit():
        error = await one.said(lambda: one.commit(-1, position))
        s.must("offsets are committed without a member", error == 0, error)
    await commit()
    yield
    yield "Empty"
    await s.desk.check_offsets(s.name)
    await commit()
    await s.desk.check_offsets(s.name)


async def preparing_first(s):
    members = [s.member() for _ in range(2)]
    for one in members:
        await one.connect()
    yield
    for one in members:
        s.waits(one.join())
    await s.desk.until_state(s.name, "PreparingRebalance")
    while not all(one.id for one in members):
        await asyncio.sleep(0.005)

    async def more_come():
        # It goes on waiting as long as they do.
        while True:
            one = s.member()
            await one.connect()
            s.waits(one.join())
            await asyncio.sleep(0.1)
    s.waits(more_come())
    yield "PreparingRebalance"
    s.must("there is no such group, or nobody in it", (state := await s.desk.state(s.name)) in ("Dead", "Empty"), state)
    for one in members:
        s.must("nobody is a member", (error := await one.said(one.join_once)) == wire.UNKNOWN_MEMBER, error)
        one.id = ""
    await s.go_on(members)


async def preparing_unjoined(s):
    members, new = await s.settled(2), s.member()
    yield
    await new.connect()
    s.waits(new.join())
    await s.desk.until_state(s.name, "PreparingRebalance")
    yield "PreparingRebalance"
    await s.as_before(members, new)


async def preparing_joined(s):
    members, new = await s.settled(3), s.member()
    yield
    await new.connect()
    for one in (new, members[1], members[2]):
        s.waits(one.join())
        await s.desk.until_state(s.name, "PreparingRebalance")
    yield "PreparingRebalance"
    await s.as_before(members, new)


async def completing(s):
    members = await s.settled(3)
    before = members[0].generation
    leader, followers = await s.next_generation(members)
    for one in followers:
        s.waits(one.sync())
    yield
    yield "CompletingRebalance"
    for one in members:
        s.must("a generation without assignments is gone", (error := await one.said(one.heartbeat)) == wire.ILLEGAL_GENERATION, error)
    s.must("its leader is late", (error := await leader.said(leader.sync)) == wire.ILLEGAL_GENERATION, error)
    for one in members:
        one.generation = before
    await s.as_before(members)


async def completing_first(s):
    members = [s.member() for _ in range(2)]
    for one in members:
        await one.connect()
    errors = await asyncio.gather(*(one.join() for one in members))
    s.must("they join", set(errors) == {0}, errors)
    for one in members:
        if not one.leads:
            s.waits(one.sync())
    yield
    yield "CompletingRebalance"
    s.must("there is no such group, or nobody in it", (state := await s.desk.state(s.name)) in ("Dead", "Empty"), state)
    for one in members:
        for step in (one.heartbeat, one.sync, one.join_once):
            s.must("nobody is a member", (error := await one.said(step)) == wire.UNKNOWN_MEMBER, error)
        one.id = ""
    await s.go_on(members)


async def syncing(s):
    """The leader's SyncGroup is on its way."""
    members = await s.settled(3)
    before = members[0].generation
    leader, followers = await s.next_generation(members)
    for one in followers:
        s.waits(one.sync(), counts=False)
    yield

    async def assignments():
        s.waits(leader.sync())
    s.at_the_kill.append(assignments)
    yield "CompletingRebalance"
    errors = {await one.said(one.heartbeat) for one in members}
    s.must("the new generation is in force or not", errors in ({0}, {wire.ILLEGAL_GENERATION}), errors)
    s.must("an assignment that was told is kept", errors == {0} or not any(task.result() == 0 for task in s.tasks), errors)
    if errors == {0}:
        for one in members:
            s.must("its assignments are told", (error := await one.said(one.sync)) == 0, error)
        s.model.counts["syncs_kept"] += 1
    else:
        for one in members:
            one.generation = before
    await s.as_before(members)


async def stable(s):
    members = await s.settled(3)
    generation = members[0].generation
    yield
    yield "Stable"
    for one in members:
        s.must("a member is one", (error := await one.said(one.heartbeat)) == 0, error)
        s.must("its assignment is kept", (error := await one.said(one.sync)) == 0, error)
        one.settled = error == 0 and not await one.said(one.look)
    await s.go_on(members)
    s.must("nobody had to join again", {one.generation for one in members} == {generation})


async def committing(s):
    """Every member commits without a pause."""
    s.groups = [f"{s.name}-{number}" for number in range(PUMPS)]
    crowds = await asyncio.gather(*(s.settled(PUMPERS, group=group) for group in s.groups))

    async def pump(one):
        while True:
            error = await one.commit()
            if error:
                s.must("a commit is taken", error in wire.NOT_READY, error)
                await asyncio.sleep(0.01)
    for members in crowds:
        for one in members:
            s.waits(pump(one))
    yield
    yield "Stable"
    s.model.counts["commits_in_doubt"] += sum(s.model.in_doubt(group) for group in s.groups)
    await asyncio.gather(*(s.as_before(members) for members in crowds))


async def deleting(s):
    """Groups that are being deleted: each is there with all its offsets, or gone with all of them."""
    s.groups = [f"{s.name}-{number}" for number in range(DELETED)]
    one = s.member()
    await one.connect()
    position = dict.fromkeys(range(s.place.partitions), 0)
    for group in s.groups:
        one.group = group
        s.must("a group commits", (error := await one.said(lambda: one.commit(-1, dict(position)))) == 0, error)
    there, asked, done = list(s.groups), set(), set()
    yield

    async def remove():
        link = await wire.Link.to(s.place.port)
        while there:
            group = there.pop()
            asked.add(group)
            error = await wire.delete(link, group)
            s.must("a group is deleted", error == 0, error)
            done.add(group)

    async def removed():
        for _ in range(DELETERS):
            s.waits(remove())
        while len(done) < DELETED // 10:
            await asyncio.sleep(0)
    s.at_the_kill.append(removed)
    yield "Empty"
    for group in s.groups:
        if group in asked:
            [found] = (await s.desk.until_ready(wire.committed, group, s.place.topic, position, error=lambda answer: answer[0]))[1:]
            kept, state = {offset >= 0 for offset, _ in found.values()}, await s.desk.state(group)
            s.must("a group is deleted whole or not", len(kept) == 1, (group, found))
            s.must("a deleted group is gone", kept == {False} or group not in done, (group, found))
            s.must("its state says so", state == ("Empty" if True in kept else "Dead"), (group, state))
            s.model.counts["deletes_kept"] += kept == {False}
            s.model.forget(group) if kept == {False} else None
        await s.desk.check_offsets(group)


async def leaving(s):
    """A member has left, and the others haven't joined again: that it left may be forgotten, and it goes when its session is over."""
    members = await s.settled(3, session_ms=SHORT_SESSION_MS)
    lives = [s.place.run(one.live()) for one in members]
    yield
    for life in lives:
        await stop(life)
    s.must("a member leaves", await members[2].leave() == 0)
    yield "PreparingRebalance"
    error = await members[2].said(members[2].heartbeat)
    s.must("who left is a member again or not", error in (0, wire.UNKNOWN_MEMBER), error)
    await s.as_before(members[:2])


async def replaced(s):
    """A static member has come back under another id; its earlier self is told so, over the kill as well."""
    old, other = await s.settled(2, ("one", "two"))
    new = s.member("one")
    await new.connect()

    async def told(when):
        for step in (old.heartbeat, old.sync, old.commit, old.join_once):
            error = await old.said(step)
            s.must(f"who was replaced is told so {when}", error == wire.FENCED, (step.__name__, error))
            s.model.counts["fenced_told"] += error == wire.FENCED
    s.must("it takes the place", (await new.join(), await new.sync(), await new.look()) == (0, 0, 0))
    s.must("without a rebalance", new.generation == other.generation and new.owned == old.owned, (new.owned, old.owned))
    s.must("and commits", await new.commit() == 0)
    await told("at once")
    yield
    yield "Stable"
    await told("after the kill")
    await s.as_before([new, other])


async def replacing(s):
    """A static member comes back at the kill."""
    old, other = await s.settled(2, ("one", "two"))
    new = s.member("one")
    await new.connect()
    yield

    async def comes():
        s.waits(new.join())
    s.at_the_kill.append(comes)
    yield "Stable"
    error = await old.said(old.heartbeat)
    told = s.tasks[-1].result() == 0
    s.must("it was replaced or not", error in (0, wire.FENCED), error)
    s.must("what was told is kept", error == wire.FENCED or not told)
    s.model.counts["replacements_kept"] += error == wire.FENCED
    if not told:
        new.id = ""
        s.must("the place is taken", (error := await new.said(new.join)) == 0, error)
    s.must("who was replaced is told so", (error := await old.said(old.heartbeat)) == wire.FENCED, error)
    await s.go_on([new, other])


SCENES = {empty: 1, without_members: 1, preparing_first: 1, preparing_unjoined: 1, preparing_joined: 1, completing: 1, completing_first: 1,
          syncing: IN_FLIGHT, stable: 1, committing: 1, deleting: 1, leaving: 1, replaced: 1, replacing: IN_FLIGHT}
# Those in which the kill must have cut off requests, for they are about nothing else.
CUT_OFF = (syncing, committing, deleting, replacing)
