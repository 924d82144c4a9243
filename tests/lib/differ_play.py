"""The differential proof at work: plays a history on both brokers, compares the answers field by field, and makes a history that shows a difference as short
as it gets."""

import dataclasses
import re
import time

from differ_accepted import ACCEPTED

# Requests whose answers may be a long time coming, as they depend on others.
BLOCKS = ("JoinGroup", "SyncGroup")
BLOCKED_S, SLOW_S = 0.12, 4
# What tells one row of a list from another.
NAMES = ("Name", "Topic", "TopicId", "PartitionIndex", "Index", "Partition", "GroupId", "ResourceName", "MemberId", "Key", "ErrorCode")


@dataclasses.dataclass
class Case:
    """A request and its two answers, and what came before: what an accepted difference goes by."""
    step: object
    theirs: object
    ours: object
    past: list


@dataclasses.dataclass
class Difference:
    place: int
    case: Case
    path: str
    theirs: object
    ours: object

    @property
    def kind(self):
        return self.case.step.name, self.path, short(self.theirs), short(self.ours)

    def __str__(self):
        return f"{self.case.step.name} {self.case.step.version}: {self.path or 'the answer'}: Kafka {short(self.theirs, 200)}, Tailrace {short(self.ours, 200)}"


def short(value, size=60):
    if isinstance(value, (dict, list)) and size < 100:
        return f"{type(value).__name__} of {len(value)}"
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "an id", str(value))[:size]


def row_name(value):
    return next((repr(value[k]) for k in NAMES if isinstance(value, dict) and k in value), repr(value))


def differences(theirs, ours, path=""):
    """(path, Kafka's value, Tailrace's) of every field that isn't the same."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            yield from differences(theirs.get(key, "not there"), ours.get(key, "not there"), f"{path}.{key}".lstrip("."))
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for a, b in zip(sorted(theirs, key=row_name), sorted(ours, key=row_name)):
            yield from differences(a, b, path)
    elif theirs != ours:
        yield path, theirs, ours


class Round:
    """One history on both brokers."""

    def __init__(self, sides, prefix):
        self.sides, self.late, self.cases = sides, [], []
        for side in sides:
            side.begin(prefix)

    def take(self, step, connections):
        self.cases.append(Case(step, *(side.take(c) for side, c in zip(self.sides, connections)), self.cases[:]))
        return self.cases[-1]

    def lose(self, step, connections, told):
        """Only one of them answers."""
        for side, connection in zip(self.sides, connections):
            side.give_up(connection)
        self.cases.append(Case(step, *told, self.cases[:]))
        return self.cases[-1]

    def ask(self, step):
        """The cases that came of a step, also of earlier ones that are answered now."""
        connections = [side.send(step) for side in self.sides]
        self.late = [(s, c) for s, c in self.late if all(one.waiting is s for one in c)]
        found = []
        if step.name in BLOCKS and not any(wait(connections, BLOCKED_S)):
            self.late.append((step, connections))
        else:
            found.append(self.answered(step, connections))
        for one in list(self.late):
            if any(wait(one[1], 0)):
                self.late.remove(one)
                found.append(self.answered(*one))
        return found

    def answered(self, step, connections):
        ready = wait(connections, 0)
        if not all(ready):
            ready = [c.ready(SLOW_S) for c in connections]
        if any(ready) and not all(ready):
            return self.lose(step, connections, ["an answer" if r else "no answer" for r in ready])
        return self.take(step, connections)

    def end(self):
        for side in self.sides:
            side.end()


def wait(connections, seconds):
    """Which of them have an answer, after so long at most for each but no longer than the first takes."""
    deadline = time.monotonic() + seconds
    while True:
        ready = [c.ready(0) for c in connections]
        if any(ready) or time.monotonic() >= deadline:
            return ready
        connections[0].ready(min(0.002, seconds))


def play(sides, steps, prefix, accept=None, count=None):
    """The differences that nothing accepts, of each answer the first. `accept` gets the others, each with what accepts it; `count` gets every case. A history ends where brokers part ways that may."""
    game, found, over = Round(sides, prefix), [], False
    for place, step in enumerate(steps):
        for case in game.ask(step):
            if count is not None:
                count(case)
            rows = [Difference(place, case, *d) for d in differences(case.theirs, case.ours)]
            rules = [next((a for a in ACCEPTED if a.fits(d)), None) for d in rows]
            if any(r and r.whole for r in rules):
                rules = [r if r and r.whole else next(w for w in rules if w and w.whole) for r in rules]
            found += [row for row, rule in zip(rows, rules) if rule is None][:1]
            for row, rule in zip(rows, rules):
                over = over or bool(rule and rule.ends)
                if rule and accept:
                    accept(rule, row)
        if over:
            break
    game.end()
    return found


def shrink(steps, shows, deadline):
    """The fewest steps found for which `shows` still holds, within the time."""
    size = max(len(steps) // 2, 1)
    while True:
        at, dropped = 0, False
        while at < len(steps) and time.monotonic() < deadline:
            fewer = steps[:at] + steps[at + size:]
            if fewer and shows(fewer):
                steps, dropped = fewer, True
            else:
                at += size
        if time.monotonic() >= deadline or (size == 1 and not dropped):
            return steps
        size = max(size // 2, 1)
