"""What each client must be able to do with a broker: the columns of the matrix of clients/1, one function each. The script of
a scenario is here alone: a driver only does what it is told, and what came of it the broker is asked itself (matrix_oracle).
"""

import collections
import time

import drivers
import proc
from matrix_oracle import WAIT_S, Oracle, must
from matrix_records import TRAITS, encoded, make_records, same
from proc import Failed

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
PARTITIONS = 6
SESSION_MS = 15000


class Row:
    """One client against one broker."""

    def __init__(self, client, reference, broker, quick, limits):
        self.client, self.broker, self.quick, self.limits = client, broker, quick, limits
        self.oracle = Oracle(broker)
        self.reference = drivers.Driver(reference, broker.bootstrap)
        self.driver = drivers.Driver(client, broker.bootstrap)
        self.writer = {what.removeprefix("write:") for what in limits if what.startswith("write:")}
        self.reader = {what.removeprefix("read:") for what in limits if what.startswith("read:")}
        self.base_ms = int(time.time() * 1000) - 3600 * 1000
        self.hello = self.driver.ask("hello")
        self.members, self.written, self.before, self.grouped = [], set(), [], False

    def name(self, what):
        return f"{what}-{self.client}"

    def codec(self, codec):
        """Written with a codec, stored with it, read back by the client and by another one; and what another one wrote."""
        count = 40 if self.quick else 1000
        sent = make_records(count, 7, self.base_ms, self.writer)
        topic = self.name(codec)
        self.oracle.create(topic, 1)
        told = self.driver.ask("produce", topic=topic, partition=0, codec=codec, records=sent).get("offsets")
        must(told in (None, list(range(count))), f"offsets of acknowledgements: {told!r:.200}")
        stored = set(self.oracle.stored_codecs(topic))
        # Some clients leave a batch as it is when its compressed form is longer.
        must(CODECS[codec] in stored <= {0, CODECS[codec]}, f"stored with codecs {stored} instead of {CODECS[codec]}")
        for driver, lacks in ((self.driver, self.reader), (self.reference, ())):
            driver.ask("read", topic=topic, partition=0, offset=0, count=count)
            same(sent, driver.records, f"written by {self.client}, read by {driver.client}", self.writer, lacks)
        other = make_records(count, 8, self.base_ms)
        topic = self.name(f"{codec}-others")
        self.oracle.create(topic, 1)
        self.reference.ask("produce", topic=topic, partition=0, codec=codec, records=other)
        self.driver.ask("read", topic=topic, partition=0, offset=0, count=count)
        same(other, self.driver.records, f"written by {self.reference.client}, read by {self.client}", (), self.reader)
        if codec == "none":
            self.traits()

    def traits(self):
        """What is listed as beyond the client is beyond it."""
        for writes, lacks in ((True, self.writer), (False, self.reader)):
            for trait in sorted(lacks):
                key, value, headers = TRAITS[trait]
                one = [encoded({"k": key, "v": value, "h": headers, "t": self.base_ms})]
                topic = self.name(f"{trait}-{'write' if writes else 'read'}")
                self.oracle.create(topic, 1)
                try:
                    writer, reader = (self.driver, self.reference) if writes else (self.reference, self.driver)
                    writer.ask("produce", topic=topic, partition=0, codec="none", records=one)
                    must(self.oracle.offset(topic, 0, -1) == 1, "another number of records")
                    reader.ask("read", topic=topic, partition=0, offset=0, count=1)
                    same(one, reader.records, trait)
                except Failed:
                    continue
                raise Failed(f"{trait} is listed as what it can't {'write' if writes else 'read'}, and it can")

    def replay(self):
        topic, count = self.name("replay"), 200
        self.oracle.create(topic, 1)
        self.oracle.produce(topic, 0, [b"%d" % n for n in range(count)])
        answer = self.driver.ask("replay", topic=topic, group=self.name("replay"), count=count)
        everything = list(range(count))
        must(answer["first"] == everything, f"first read: {answer['first']!r:.200}")
        must(answer["second"] == everything, f"read again from 0: {answer['second']!r:.200}")
        must(self.oracle.committed(self.name("replay"), topic, 1) == {0: count}, "committed in between")

    def time(self):
        """Times fall together with no batch's beginning; the record at a time or the next one behind it is found."""
        topic, count = self.name("time"), 60
        self.oracle.create(topic, 1)
        records = make_records(count, 9, self.base_ms)
        self.reference.ask("produce", topic=topic, partition=0, codec="gzip", records=records)
        for ms, offset in ((0, 0), (1, 1), (17000, 17), (17001, 18), (-5000, 0), (1000 * (count - 1), count - 1)):
            self.driver.ask("read", topic=topic, partition=0, time_ms=self.base_ms + ms, count=1)
            must([r["o"] for r in self.driver.records] == [offset], f"at {ms} ms: {[r['o'] for r in self.driver.records]}, not {offset}")

    def member(self, topic, group, **more):
        driver = drivers.Driver(self.client, self.broker.bootstrap)
        driver.ask("member", topic=topic, group=group, session_ms=SESSION_MS, **more)
        return driver

    def settled(self, group, sizes):
        """The members once the group is stable, each with so many partitions and all partitions with one owner."""
        seen = []

        def stable():
            state, members = self.oracle.group(group)
            seen[:] = [state, members]
            owned = [p for _, mine in members.values() for p in mine]
            return (state == "Stable" and sorted(len(mine) for _, mine in members.values()) == sizes
                    and sorted(owned) == list(range(PARTITIONS)) and members)
        try:
            return proc.wait_for(f"{group} has members with {sizes}", stable, WAIT_S, every=0.1)
        except Failed as error:
            raise Failed(f"{error}: {seen}") from None

    def told(self, members, described):
        """What clients say of their partitions is what the broker says. Kafka's console consumer says nothing."""
        if "assigned" in self.limits:
            return must(not any(m.assigned for m in members), "listed as saying nothing of its partitions, and it does")
        want = sorted(mine for _, mine in described.values())
        try:
            proc.wait_for("members say what they have", lambda: sorted(m.assigned[-1] for m in members if m.assigned) == want, 20)
        except Failed:
            raise Failed(f"members say {[m.assigned for m in members]}, the broker {want}") from None

    def spread(self, topic, count):
        """New records in every partition; {(partition, offset)}."""
        new = set()
        for partition in range(PARTITIONS):
            base = self.oracle.produce(topic, partition, [b"%d" % n for n in range(count)])
            new |= {(partition, base + n) for n in range(count)}
        return new

    def read_by(self, members, expected, before=()):
        """All that is expected has come; what came twice."""
        def came():
            return [r for m in members for r in m.got]
        try:
            proc.wait_for("all is read", lambda: expected <= set(came()), WAIT_S)
        except Failed:
            raise Failed(f"not read: {sorted(expected - set(came()))[:5]} of {len(expected)}") from None
        time.sleep(0.2)
        everything = came()
        must(set(everything) <= expected | set(before), f"never written: {sorted(set(everything) - expected)[:5]}")
        return len(everything) - len(set(everything))

    def commit(self, members, group, topic):
        for member in members:
            member.ask("commit")
        ends = {p: self.oracle.offset(topic, p, -1) for p in range(PARTITIONS)}
        try:
            proc.wait_for("all is committed", lambda: self.oracle.committed(group, topic, PARTITIONS) == ends, 20, every=0.1)
        except Failed:
            raise Failed(f"committed {self.oracle.committed(group, topic, PARTITIONS)}, written {ends}") from None

    def group(self):
        """Three members share the partitions; one leaves and the others take over, from where it had committed."""
        topic, group, count = self.name("group"), self.name("group"), 20 if self.quick else 500
        self.oracle.create(topic, PARTITIONS)
        self.members = [self.member(topic, group) for _ in range(3)]
        self.told(self.members, self.settled(group, [2, 2, 2]))
        self.written = self.spread(topic, count)
        twice = self.read_by(self.members, self.written)
        must(twice == 0, f"{twice} records were read twice by a quiet group")
        self.commit(self.members, group, topic)
        gone = self.members.pop(0)
        gone.ask("leave")
        gone.end()
        self.told(self.members, self.settled(group, [3, 3]))
        self.written |= self.spread(topic, count)
        twice = self.read_by([gone, *self.members], self.written)
        must(twice == 0, f"{twice} records were read twice after a member had left and all was committed")
        self.commit(self.members, group, topic)
        self.before = [r for m in self.members for r in m.got]
        self.grouped = True

    def resume(self):
        """After the broker's restart: what was committed is not read again, by those who stayed and by who comes later."""
        topic, group, count = self.name("group"), self.name("group"), 20 if self.quick else 500
        must(self.grouped, "its group of three had failed")
        for _ in range(2):
            self.settled(group, [3, 3])
            time.sleep(1)
        new = self.spread(topic, count)
        self.read_by(self.members, new, self.written)
        again = (collections.Counter(r for m in self.members for r in m.got) - collections.Counter(self.before)).keys() & self.written
        must(not again, f"read again although committed: {sorted(again)[:5]}")
        self.commit(self.members, group, topic)
        for member in self.members:
            member.ask("leave")
            member.end()
        late = self.member(topic, group)
        self.settled(group, [PARTITIONS])
        last = self.spread(topic, 5)
        twice = self.read_by([late], last)
        must(twice == 0, f"{twice} records were read twice")
        late.ask("leave")
        late.end()

    def static(self):
        """Members that are killed and come back under their names find their partitions, and nobody else notices."""
        topic, group = self.name("static"), self.name("static")
        self.oracle.create(topic, PARTITIONS)
        members = {"one": self.member(topic, group, instance="one")}
        self.settled(group, [PARTITIONS])
        members["two"] = self.member(topic, group, instance="two")
        self.settled(group, [3, 3])
        written = self.spread(topic, 10)
        must(self.read_by(members.values(), written) == 0, "read twice")
        self.come_back(members, "two", "one", written, quiet=True)
        if not self.quick:
            # The first is the leader. When it comes back it may ask for a rebalance by itself, as franz-go does at times.
            self.come_back(members, "one", "two", written, quiet=False)
        for member in members.values():
            member.ask("leave")
            member.end()

    def come_back(self, members, who, other, written, quiet):
        topic, group = self.name("static"), self.name("static")
        self.commit(members.values(), group, topic)
        generation = self.quiet_generation(group, other)
        before, told = self.by_instance(self.settled(group, [3, 3])), len(members[other].assigned)
        gone = members[who]
        gone.kill()
        members[who] = self.member(topic, group, instance=who)

        def back():
            now = self.by_instance(self.oracle.group(group)[1])
            return now.get(who, before[who])[0] != before[who][0]
        proc.wait_for("the static member is back under a new id", back, WAIT_S)
        now = self.by_instance(self.settled(group, [3, 3]))
        must(now[who][1] == before[who][1], f"{who} had {before[who][1]}, has {now[who][1]}")
        must(now[other] == before[other], f"{other}: {before[other]}, now {now[other]}")
        new = self.spread(topic, 10)
        must(self.read_by([members[who], members[other]], new, written) == 0, "read twice")
        must(not set(members[who].got) & written, "what was committed is read again")
        written |= new
        if quiet:
            later = self.oracle.generation(group, now[other][0], other)
            must(later == generation, f"there was a rebalance: from generation {generation} to {later}")
            must(len(members[other].assigned) == told, f"the other was told of partitions: {members[other].assigned}")

    def quiet_generation(self, group, instance):
        """The generation once it stays: who gives up partitions joins again a moment later."""
        seen = []

        def stays():
            member = self.by_instance(self.oracle.group(group)[1])[instance][0]
            seen.append(self.oracle.generation(group, member, instance))
            return len(seen) > 1 and seen[-1] == seen[-2]
        proc.wait_for(f"a generation of {group} that stays", stays, WAIT_S, every=0.7)
        return seen[-1]

    @staticmethod
    def by_instance(members):
        return {instance: (member, mine) for member, (instance, mine) in members.items()}

    def end(self):
        for driver in (self.driver, self.reference, *self.members):
            driver.kill()
