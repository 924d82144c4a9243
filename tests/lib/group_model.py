"""What must hold of groups whatever happens: to them, to their members, to the broker. It is told each answer, with what was known when
its request was sent, and counts what can't be.

- `two_owners`: a partition was assigned to two members of one generation. A static member that comes back is the same member.
- `two_assignments`: members of one generation were told assignments that different SyncGroups of a leader gave.
- `generations_back`: a generation below one that had assignments; or, of one life of the broker, below one that was told.
- `lost`: an offset that was acknowledged, or told, before it was asked for isn't there any more, nor a later one.
- `back`: the same, by its number.
- `unknown`: an offset that nobody committed, or that was refused, or that is from a generation whose partitions have another owner since.
- `old_taken`: a request of a member of a generation was carried out after a later one had assignments.
- `fenced_taken`: one of a static member's earlier self was.
- `thrown_out`: a member that was heard of was told that it is none, and nothing had happened to it.
- `not_told`: a member that was replaced wasn't told so.
- `unexpected`: an error that this request can't have in this state. `unanswered`: no answer.
- `unsettled`: members that don't come to one generation in which each partition has an owner.

What makes the rules of offsets so strict: commits carry their time as a serial number in their metadata. In one partition they are carried out in
the order of generations, and by one member within one; whoever is told an assignment is told it behind all commits of earlier generations.
What was committed without an answer may be there or not, until the next owner has looked.

A generation that no assignment was told of may come twice: a broker that dies knows nothing of it afterwards.
"""

import collections
import time

SEEN = ("two_owners", "two_assignments", "generations_back", "lost", "back", "unknown", "old_taken", "fenced_taken", "thrown_out", "not_told",
        "unexpected", "unanswered", "unsettled")
# Commits of a partition that are remembered, at most.
REMEMBERED = 64
# In the metadata of clients whose refusals aren't told.
BY_OTHERS = "r"

# What was known when a request was sent.
Before = collections.namedtuple("Before", "kills told assigned replaced")
Commit = collections.namedtuple("Commit", "group generation member serial values before")


class Offset:
    """One partition of a group."""

    def __init__(self):
        self.serial, self.value = -1, -1  # The latest that is known to be there.
        self.sent = {}  # {serial: (value, generation)}: what may be there.
        self.fence = -1  # The generation of the last owner that looked.
        self.history = collections.deque(maxlen=32)

    def at_least(self, serial, value):
        if serial > self.serial:
            self.serial, self.value = serial, value
            self.history.append((time.monotonic_ns(), value))

    def value_at(self, ns):
        """What was known to be there at a time."""
        return max((value for at, value in self.history if at < ns), default=-1)


class Group:
    def __init__(self):
        self.told = self.assigned = 0
        self.owners, self.marks = {}, {}
        self.newest, self.replaced = {}, set()  # Of static members: {instance: member id}, and the ids that they had before.
        self.offsets = collections.defaultdict(Offset)


class Model:
    def __init__(self, say=lambda text: None):
        self.groups = collections.defaultdict(Group)
        self.wrong, self.examples, self.counts = collections.Counter(), [], collections.Counter()
        self.kills, self.say = 0, say
        self.up_since = time.monotonic()  # None while the broker is down.

    def is_wrong(self, what, text):
        self.wrong[what] += 1
        if self.wrong[what] <= 5:
            self.examples.append(f"{what}: {text}")
            self.say(self.examples[-1])

    def started(self):
        self.up_since = time.monotonic()

    def up_s(self, since):
        """How long the broker has been up without a break since then."""
        return 0 if self.up_since is None else time.monotonic() - max(self.up_since, since)

    def killed(self):
        self.kills += 1
        self.up_since = None
        for group in self.groups.values():
            group.told = group.assigned

    def forget(self, name):
        """The group is to be deleted."""
        self.groups.pop(name, None)

    def before(self, name, member=None):
        group = self.groups[name]
        return Before(self.kills, group.told, group.assigned, member in group.replaced)

    # --- generations -----------------------------------------------------------

    def joined(self, name, before, generation):
        floor = before.assigned if before.kills != self.kills else max(before.told, before.assigned)
        if generation < floor:
            self.is_wrong("generations_back", f"{name}: {generation} after {floor}")
        if before.kills == self.kills:
            self.groups[name].told = max(self.groups[name].told, generation)

    def assigned(self, name, before, generation, member, instance, partitions, mark):
        group, who = self.groups[name], instance or member
        self.carried_out(name, before, generation, member, "SyncGroup")
        if generation > group.assigned:
            group.assigned = generation
            self.counts["generations"] += 1
        self.counts["assignments"] += 1
        owners = group.owners.setdefault(generation, {})
        for partition in partitions:
            owner = owners.setdefault(partition, who)
            if owner != who:
                self.is_wrong("two_owners", f"{name}, generation {generation}: {partition} is {owner}'s and {who}'s")
        if mark is not None and group.marks.setdefault(generation, mark) != mark:
            self.is_wrong("two_assignments", f"{name}, generation {generation}: {group.marks[generation]} and {mark}")
        if instance and member not in group.replaced:
            earlier = group.newest.get(instance, member)
            group.newest[instance] = member
            if earlier != member:
                group.replaced.add(earlier)

    def carried_out(self, name, before, generation, member, what):
        """A request of a member was answered without an error."""
        if generation < before.assigned:
            self.is_wrong("old_taken", f"{name}: {what} of generation {generation} by {member}, after {before.assigned} had its assignments")
        if before.replaced:
            self.is_wrong("fenced_taken", f"{name}: {what} by {member}, after another took its place")

    # --- offsets ----------------------------------------------------------------

    def commits(self, name, generation, member, values):
        """An OffsetCommit is about to be sent: what its answer is told with, and {partition: (value, metadata)}."""
        serial = time.monotonic_ns()
        for partition, value in values.items():
            sent = self.groups[name].offsets[partition].sent
            sent[serial] = (value, generation)
            if len(sent) > REMEMBERED:
                del sent[next(iter(sent))]
        commit = Commit(name, generation, member, serial, values, self.before(name, member))
        return commit, {partition: (value, f"{serial}:{value}") for partition, value in values.items()}

    def committed(self, commit):
        """It was acknowledged."""
        if commit.generation >= 0:
            self.carried_out(commit.group, commit.before, commit.generation, commit.member, "OffsetCommit")
        for partition, value in commit.values.items():
            self.counts["commits"] += 1
            offset = self.groups[commit.group].offsets[partition]
            if 0 <= commit.generation < offset.fence and commit.serial > offset.serial:
                self.is_wrong("lost", f"{commit.group}/{partition}: {value} of generation {commit.generation} is acknowledged, and the owner in "
                                      f"{offset.fence} was told {offset.value}")
            offset.at_least(commit.serial, value)

    def refused(self, commit):
        for partition in commit.values:
            self.groups[commit.group].offsets[partition].sent.pop(commit.serial, None)

    def asks(self, name, partitions):
        """An OffsetFetch is about to be sent."""
        offsets = self.groups[name].offsets
        return {partition: (offsets[partition].serial, offsets[partition].value) for partition in partitions}

    def told(self, name, asked, found, generation=None):
        """found: {partition: (offset, metadata)}; the generation, if it was asked by their owner."""
        for partition, (serial, value) in asked.items():
            offset, (got, text) = self.groups[name].offsets[partition], found[partition]
            self.counts["offsets_told"] += 1
            what = f"{name}/{partition}: {got} ({text}), after {value} ({serial})"
            if got < value:
                self.is_wrong("back", what)
            if got < 0:
                if serial >= 0:
                    self.is_wrong("lost", what)
                continue
            by_others = text.startswith(BY_OTHERS)
            # confluent-kafka sends the zero behind its text, too.
            first, _, last = text.removeprefix(BY_OTHERS).rstrip("\0").partition(":")
            number = int(first)
            if number < serial:
                self.is_wrong("lost", what)
                continue
            known = offset.value if number == offset.serial else offset.sent.get(number, (None,))[0]
            if known is None and by_others:
                known = int(last)
            if known != got:
                self.is_wrong("unknown", f"{what}, known: {known}")
            offset.at_least(number, got)
            if generation is not None and generation >= offset.fence:
                offset.fence = generation
                offset.sent = {one: sent for one, sent in offset.sent.items() if one == number or sent[1] >= generation}

    def by_others(self, name, partition, serial, value):
        """A client acknowledged what it committed."""
        self.counts["commits_by_clients"] += 1
        self.groups[name].offsets[partition].at_least(serial, value)

    def told_to_others(self, name, partition, value, asked_ns):
        floor = self.groups[name].offsets[partition].value_at(asked_ns)
        if value < floor:
            self.is_wrong("back", f"{name}/{partition}: a client was told {value} after {floor}")

    def in_doubt(self, name):
        """Offsets that were sent after the latest that is known to be there."""
        return sum(serial > offset.serial for offset in self.groups[name].offsets.values() for serial in offset.sent)
