"""Many at once, for spine/9: connections that stall, leave or don't listen, and state that clients could make a broker keep: sessions,
producers, groups, members, partitions. Each function takes the judge, its broker and whether the size is the quick one.
"""

import selectors
import socket
import struct
import time

import metrics
import wire
from bad_bytes import (DESCRIBE_CONFIGS, INIT_PRODUCER_ID, JOIN_GROUP, OFFSET_COMMIT, TOPIC, body, fetch_session, frame,
                       i32, join_group, offset_commit, record, sealed)
from bad_judge import closings, produce
from resident import rss_mib
from wire import array, string

MIB = 1 << 20
# The broker's rules: a frame must be whole after so long, a large one has a microsecond more for each byte; looked at every few seconds.
PARTIAL_FRAME_S, SWEEP_S = 30, 5
STALLED = 10000
# Sessions that a broker keeps by default, and partitions of the sessions of one shard.
SESSIONS, SESSION_PARTITIONS = 1000, 100000
# GROUP_MAX_SIZE_REACHED, INVALID_COMMIT_OFFSET_SIZE: what is told where groups find no more memory; and that of a coordinator that isn't ready.
NO_ROOM = (81, 28, 15, 14)
DELETE_TOPICS = 20
# Longest wait of others while a topic of very many partitions is made or removed, in seconds.
WIDE_S = 0.15


class Stalled:
    """2: STALLED connections in the middle of a small frame, a thousand more in the middle of one that has a buffer of its own, and large
    frames that have half arrived. Made at once; `check` waits until all of them are past their deadlines."""

    def __init__(self, judge, broker, large):
        self.judge, self.broker = judge, broker
        self.selector = selectors.DefaultSelector()
        self.before = metrics.total(broker, metrics.MEMORY_USED)
        self.large = large
        for size, sent in large:
            self.open(size, sent)
        # The last of what was sent may still be on its way.
        until = time.monotonic() + 10
        while True:
            self.held = metrics.total(broker, metrics.MEMORY_USED) - self.before
            if self.held >= sum(sent for _, sent in large) or self.before >= 16 * MIB or time.monotonic() > until:
                break
            time.sleep(0.05)
        for _ in range(STALLED):
            self.open(1000, 20)
        for _ in range(1000):
            self.open(100000, 20)
        self.last = time.monotonic()
        judge.served(f"2: {STALLED + 1000} connections that stall in a frame")

    def open(self, size, sent):
        one = socket.create_connection(("127.0.0.1", self.broker.port), 20)
        one.sendall(i32(size) + bytes([0, 3, 0, 1]) + bytes(sent))
        one.setblocking(False)
        due = time.monotonic() + PARTIAL_FRAME_S + (size / 1e6 if size > 65536 else 0)
        self.selector.register(one, selectors.EVENT_READ, (size, due))

    def check(self):
        p, early, late, shed, closed = self.judge.p, 0, 0, 0, 0
        opened = len(self.selector.get_map())
        used = metrics.total(self.broker, metrics.MEMORY_USED)
        deadline = max(key.data[1] for key in self.selector.get_map().values()) + SWEEP_S + 5
        while self.selector.get_map() and time.monotonic() < deadline:
            now = time.monotonic()
            if any(key.data[1] > now - 1 for key in self.selector.get_map().values()) and not closed:
                used = metrics.total(self.broker, metrics.MEMORY_USED)
            for key, _ in self.selector.select(0.2):
                size, due = key.data
                closed += 1
                now = time.monotonic()
                # Those with a buffer of their own may have to make room for others sooner.
                early += now < due - 1 and size <= 65536
                late += now > due + SWEEP_S + 3
                self.selector.unregister(key.fileobj)
                key.fileobj.close()
        left = len(self.selector.get_map())
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()
        self.judge.case(2)
        p.check("2: every connection that stalls in a frame is closed after its deadline, not before", not (left or early or late),
                {"open": left, "early": early, "late": late, "of": opened})
        p.figures["stalled_cut_off"] = p.figures.get("stalled_cut_off", 0) + closed
        text = self.judge.until(lambda text: closings(text) >= opened)
        named = text.count("its request did not arrive in time") + text.count("its request arrives too slowly")
        p.check("2: each of them is told in the log, and some by their names", closings(text) >= opened and named > 0, [closings(text), named, opened])
        half = sum(sent for _, sent in self.large)
        after = metrics.total(self.broker, metrics.MEMORY_USED)
        p.figures["large_frames_held_mib"] = round(self.held / MIB, 1)
        p.figures["large_frames_given_back_mib"] = round((used - after) / MIB, 1)
        # Later the batch cache has what they don't take, and gives it back for them: the sum says nothing.
        if self.before < 16 * MIB:
            p.figures["large_frames_looked_at"] = len(self.large)
            p.check("2: large frames that have half arrived are counted", self.held >= half, [self.held, half])
        p.check("2: their memory is given back", used - after >= half * 3 // 4, [used, after, half])
        self.judge.served("2: they were cut off")


def connections(judge, broker):
    """3, 11, 12."""
    for _ in range(1000):
        one = socket.create_connection(("127.0.0.1", broker.port))
        one.sendall(i32(100) + bytes(9))
        # No wait and no goodbye: a reset.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    judge.crowd(3, "1,000 connections that are reset in a frame")
    for _ in range(2000):
        socket.create_connection(("127.0.0.1", broker.port)).close()
    judge.crowd(12, "2,000 connections that come and go")
    deaf = socket.create_connection(("127.0.0.1", broker.port))
    deaf.setblocking(False)
    request, sent = frame(wire.METADATA, 0, array([])) * 1000, 0
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            sent += deaf.send(request)
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            break
    judge.crowd(11, f"{sent // 30} requests whose answers nobody reads")
    deaf.close()


def long_poll(judge, broker):
    """19: a Fetch that names a partition 100,000 times waits at its end until a record comes: it is answered, and nobody else waits for that."""
    reader, writer = wire.Connection(broker.port, 30), wire.Connection(broker.port, 30)
    end = writer.list_offsets(TOPIC, [0])[0][1]
    reader.socket.sendall(frame(wire.FETCH, 4, struct.pack(">iiiib", -1, 20000, 1, 1 << 20, 0) + array(
        [string(TOPIC) + array([struct.pack(">iqi", 0, end, 1 << 20)] * 100000)])))
    time.sleep(0.5)
    writer.call(wire.PRODUCE, 3, wire.produce_body(TOPIC, {0: sealed(body())}, timeout_ms=5000))
    judge.served("19: a partition 100,000 times in a Fetch that waits")
    began = time.monotonic()
    reader.receive()
    judge.p.check("19: a Fetch that waited is answered when a record comes", time.monotonic() - began < 2, time.monotonic() - began)
    judge.crowd(19, "a partition 100,000 times in a Fetch that waits")
    reader.close(), writer.close()


def windows(judge, broker, count):
    """36: batches of zstd at one time that each fill a window of 128 MiB, the largest that Kafka's clients write and read (level 22)."""
    # A record of 1 GiB whose value goes on and on.
    head, begins = bytes.fromhex("28b52ffd0088"), wire.varint(1 << 30) + b"\0\0\0\1" + wire.varint(1 << 29)
    one = wire.Connection(broker.port, 30)
    # What level 22 makes of a small batch: the window is as large, and hardly used.
    small = record()
    error, _ = produce(one, sealed(body(attributes=4, records=head + struct.pack("<I", len(small) << 3 | 1)[:3] + small)), 7)
    judge.p.check("36: a small batch with a window of 128 MiB is taken", error == 0, error)
    one.close()
    large = sealed(body(attributes=4, records=head + struct.pack("<I", len(begins) << 3)[:3] + begins + (
        struct.pack("<I", 131072 << 3 | 2)[:3] + b"x") * 2048 + b"\x01\0\0"))
    before, most = rss_mib(broker), 0
    selector = selectors.DefaultSelector()
    for _ in range(count):
        connection = wire.Connection(broker.port, 60)
        connection.send(wire.PRODUCE, 7, b"\xff\xff" + wire.produce_body(TOPIC, {0: large}, timeout_ms=30000)[2:])
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    until = time.monotonic() + 60
    while selector.get_map() and time.monotonic() < until:
        most = max(most, rss_mib(broker))
        for key, _ in selector.select(0.005):
            selector.unregister(key.fileobj)
            key.data.receive()
            key.data.close()
    judge.p.check("36: windows of 128 MiB are all answered", not selector.get_map(), len(selector.get_map()))
    judge.p.check("36: no more windows of 128 MiB at a time than one a shard", not judge.ours or most - before < judge.shards * 160,
                  [round(before), round(most)])
    judge.p.figures["windows_mib"] = round(max(judge.p.figures.get("windows_mib", 0), most - before), 1)
    judge.crowd(36, f"{count} batches that each fill a window of 128 MiB")


def wide(judge, broker, partitions):
    """25: while a topic of very many partitions is made and removed, others are answered."""
    maker = wire.Connection(broker.port, 120)
    others = [wire.Connection(broker.port, 30) for _ in range(8)]
    for name, key, version, asked in (
            ("made", wire.CREATE_TOPICS, 2, array([string("wide") + struct.pack(">ih", partitions, 1) + array([]) + array([])]) +
             struct.pack(">ib", 60000, 0)),
            ("removed", DELETE_TOPICS, 1, array([string("wide")]) + struct.pack(">i", 60000))):
        maker.send(key, version, asked)
        slowest, rounds, waiting = 0, 0, selectors.DefaultSelector()
        waiting.register(maker.socket, selectors.EVENT_READ)
        while not waiting.select(0):
            for one in others:
                began = time.monotonic()
                one.api_versions()
                slowest = max(slowest, time.monotonic() - began)
            rounds += 1
        _, answer = maker.receive()
        _throttle, _topics, _name, error = answer.take("i"), answer.take("i"), answer.string(), answer.take("h")
        judge.p.check(f"25: a topic of {partitions} partitions is {name}", error == 0 and (rounds or not judge.ours), [error, rounds])
        waiting.close()
        judge.p.say(f"a topic of {partitions} partitions is {name}: the slowest other answer took {slowest * 1e3:.1f} ms, {rounds} rounds")
        judge.p.check(f"25: others are answered while a topic of {partitions} partitions is {name}", not judge.ours or slowest < WIDE_S, slowest)
        judge.p.figures[f"slowest_while_{name}_ms"] = round(slowest * 1e3, 1)
    for one in (maker, *others):
        one.close()
    judge.crowd(25, f"a topic of {partitions} partitions made and removed")


def served_everywhere(judge, what):
    """Is every shard served, and fast? Connections go to shards by chance: sixteen find all of two."""
    for _ in range(16):
        judge.served(what)


def poll_for_more(connection, wait_ms, behind=b""):
    """Asks for what isn't there, with bytes after the end of the request, which a broker skips."""
    body = wire.fetch_body(TOPIC, {0: connection.list_offsets(TOPIC, [0])[0][1]}, 1 << 20, 1 << 30, 1, wait_ms)
    connection.send(wire.FETCH, 4, body + behind)


def hogs(judge, broker):
    """11: long polls hold nothing that others want: neither their own requests' memory nor that of what is sent behind them."""
    large = frame(wire.METADATA, 1, array([string(TOPIC)]) + bytes(3900000))
    first = [wire.Connection(broker.port, 60) for _ in range(8)]
    for one in first:
        poll_for_more(one, 20000)
        one.socket.setblocking(False)
    ten = memoryview(large * 10)
    left = {one: ten for one in first}
    sent, cut, until = 0, 0, time.monotonic() + 4
    while time.monotonic() < until:
        for one, data in left.items():
            try:
                count = one.socket.send(data[:1 << 20])
                left[one] = data[count:]
                sent += count
            except BlockingIOError:
                pass
            except OSError:
                cut += 1
        time.sleep(0.01)
    judge.p.check("11: whoever sends behind a long poll is not cut off for it", not cut, cut)
    if cut:
        return
    served_everywhere(judge, "11: large requests behind long polls")
    judge.p.say(f"{sent / MIB:.1f} MiB were taken behind long polls")
    judge.p.check("11: what is sent behind a long poll waits in its socket", sent < 8 * 10 * len(large) / 2, sent)
    # As soon as the poll is answered, so are those behind it.
    for one, data in left.items():
        one.socket.settimeout(60)
    one, data = next(iter(left.items()))
    one.receive()
    one.socket.sendall(data)
    for _ in range(10):
        one.receive()
    judge.case(11)
    for one in first:
        one.close()
    polls = [wire.Connection(broker.port, 60) for _ in range(40)]
    for one in polls:
        poll_for_more(one, 20000, bytes(3900000))
    served_everywhere(judge, "11: 40 long polls of 4 MB")
    for one in polls:
        one.close()
    judge.crowd(11, "long polls of 4 MB, and with large requests behind them")


def crowded_polls(judge, broker, count=4000):
    """11: more long polls than two shards have places for in what crosses between them; data that is there is given at once."""
    polls = []
    end = wire.Connection(broker.port, 20).list_offsets(TOPIC, [0])[0][1]
    body = wire.fetch_body(TOPIC, {0: end}, 1 << 20, 1 << 30, 1, 60000)
    for _ in range(count):
        polls.append(wire.Connection(broker.port, 60))
        polls[-1].send(wire.FETCH, 4, body)
    slowest = 0
    for _ in range(16):
        one, began = wire.Connection(broker.port, 20), time.monotonic()
        try:
            found = one.fetch(TOPIC, {0: 0}, max_wait_ms=10000)[0]
            good = found[0] in (0, 1)
        except OSError:
            good = False
        slowest = max(slowest, time.monotonic() - began)
        judge.p.check(f"11: a fetch is answered beside {count} long polls", good)
        one.close()
    judge.p.check(f"11: at once beside {count} long polls", slowest < 2, slowest)
    # One that waits learns of a record as soon as it is there.
    one = wire.Connection(broker.port, 20)
    one.produce(TOPIC, {0: wire.batch([b"news"])})
    began = time.monotonic()
    answered = sum(bool(poll.receive()) for poll in polls)
    judge.p.check(f"11: {count} long polls are answered when there is something", answered == count and time.monotonic() - began < 20,
                  [answered, time.monotonic() - began])
    for poll in polls:
        poll.close()
    one.close()
    judge.p.figures["long_polls"] = count
    judge.crowd(11, f"{count} long polls at once")


def unread(judge, broker, resident):
    """11: large answers that nobody reads: their memory is bounded, and whoever doesn't read is cut off when others want it."""
    before, most = resident(), 0
    asked = array([b"\x02" + string(TOPIC) + i32(-1)] * 20000) + b"\1"
    deaf = []
    for _ in range(20):
        one = wire.Connection(broker.port, 60)
        one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.send(DESCRIBE_CONFIGS, 1, asked)
        deaf.append(one)
    until = time.monotonic() + 12
    while time.monotonic() < until:
        most = max(most, resident() - before)
        time.sleep(0.05)
    served_everywhere(judge, "11: 20 large answers that nobody reads")
    judge.p.figures["unread_answers_mib"] = round(most, 1)
    judge.p.check("11: large answers that nobody reads take a bounded memory", most < 240, most)
    # One that reads gets its answer once those are cut off.
    one, began = wire.Connection(broker.port, 120), time.monotonic()
    answer = one.call(DESCRIBE_CONFIGS, 1, array([b"\x02" + string(TOPIC) + i32(-1)] * 100) + b"\1")
    told = struct.unpack_from(">i", answer.data, 4)[0]
    judge.p.check("11: one who reads is answered, once others are cut off", told == 100 and time.monotonic() - began < 60,
                  [told, time.monotonic() - began])
    for one in deaf:
        one.close()
    judge.crowd(11, "large answers that nobody reads")


def everything(judge, broker, topics, partitions):
    """18: Metadata and DescribeConfigs for all there is. The list says 100,000 topics; so many partitions aren't one broker's, and making
    them takes too long: `topics` topics with `partitions` partitions together it is."""
    connection = wire.Connection(broker.port, 120)
    each = [partitions // topics] * topics
    each[0] += partitions - sum(each)
    names = [f"all-{number}-{'x' * 40}" for number in range(topics)]
    for at in range(0, topics, 100):
        asked = [string(name) + struct.pack(">ih", count, 1) + array([]) + array([])
                 for name, count in zip(names[at:at + 100], each[at:at + 100])]
        answer = connection.call(wire.CREATE_TOPICS, 2, array(asked) + struct.pack(">ib", 60000, 0))
        answer.take("i")
        errors = {error for _, error, _ in answer.array(lambda: (answer.string(), answer.take("h"), answer.string()))}
        judge.p.check("18: topics are created", errors <= {0, 36}, sorted(errors))
    judge.p.say(f"{topics} topics with {partitions} partitions are there")
    for _ in range(3):
        found = metadata_of_all(connection)
        judge.p.check("18: Metadata tells of all topics", found >= topics, [found, topics])
    judge.crowd(18, f"Metadata of {found} topics")
    # A topic with many partitions as often as there is room for its name: it is told once, as by Kafka.
    answer = connection.call(wire.METADATA, 1, array([string(names[0])] * 100000))
    told = topics_of(answer)
    judge.p.check("18: a topic that is named 100,000 times is told once", told == 1, told)
    judge.crowd(18, f"a topic of {each[0]} partitions 100,000 times in a Metadata")
    asked = array([b"\x02" + string(name) + i32(-1) for name in names])
    answer = connection.call(DESCRIBE_CONFIGS, 1, asked + b"\1")
    judge.p.check("18: DescribeConfigs tells of all topics", struct.unpack_from(">i", answer.data, 4)[0] == topics)
    judge.p.figures["all_configs_mib"] = round(len(answer.data) / MIB, 1)
    judge.crowd(18, f"DescribeConfigs of {topics} topics")
    judge.p.figures.update(all_topics=topics, all_partitions=partitions)
    connection.close()


def metadata_of_all(connection):
    """How many topics there are: Metadata 1 with null."""
    return topics_of(connection.call(wire.METADATA, 1, i32(-1)))


def topics_of(answer):
    """How many topics an answer to Metadata 1 tells of."""
    answer.array(lambda: (answer.take("i"), answer.string(), answer.take("i"), answer.string()))
    answer.take("i")
    return answer.take("i")


def ask(connection, requests, window=500):
    """Sends (key, version, body)s, so many ahead of their answers; the answers in order."""
    ahead = 0
    for key, version, data in requests:
        connection.send(key, version, data)
        ahead += 1
        if ahead >= window:
            yield connection.receive()[1]
            ahead -= 1
    for _ in range(ahead):
        yield connection.receive()[1]


def sessions(judge, broker):
    """22: sessions up to the limits and past them, over several connections, since each shard has its own."""
    many = [wire.Connection(broker.port, 60) for _ in range(8)]

    def begin(connection, topics, count):
        ids = []
        requests = ((wire.FETCH, 7, fetch_session(0, 0, topics)) for _ in range(count))
        for answer in ask(connection, requests, 50):
            _, error, session = answer.take("ihi")
            judge.p.check("22: a session can be asked for", error == 0, error)
            ids.append(session)
        return ids

    def end(connection, ids):
        for answer in ask(connection, ((wire.FETCH, 7, fetch_session(one, -1, [])) for one in ids if one)):
            answer.take("i")

    # Of partitions: 20,000 each, so that five fill a shard.
    large = [(c, begin(c, [("no", range(20000))], 7)) for c in many]
    given = {one for _, ids in large for one in ids if one}
    judge.p.check("22: the partitions of all sessions are bounded",
                  0 < len(given) * 20000 <= judge.shards * SESSION_PARTITIONS < 8 * 7 * 20000, len(given))
    for connection, ids in large:
        end(connection, ids)
    judge.crowd(22, "sessions of 20,000 partitions until there are no more")
    small = [(c, begin(c, [(TOPIC, [0])], SESSIONS)) for c in many]
    given = [one for _, ids in small for one in ids if one]
    judge.p.check("22: each session has an id of its own", len(set(given)) == len(given), len(given))
    judge.p.check("22: no more sessions than there are slots", 0 < len(given) <= SESSIONS, len(given))
    judge.p.check("22: where there is no room the answer has no session", all(0 in ids for _, ids in small))
    judge.p.figures["sessions"] = len(given)
    # Whoever has one keeps it.
    for connection, ids in small:
        for one in [one for one in ids if one][:3]:
            answer = connection.call(wire.FETCH, 7, fetch_session(one, 1, []))
            judge.p.check("22: a session goes on", answer.take("ihi")[1:] == (0, one))
        end(connection, ids)
        connection.close()
    judge.crowd(22, f"{len(many) * SESSIONS} sessions asked for")


def producers(judge, broker, ids, appending):
    """23: more producer ids than anybody has, and producers of one partition; the list's millions would only take longer: what a
    partition keeps of them is bounded at 4,096."""
    connection = wire.Connection(broker.port, 60)
    seen = set()
    for answer in ask(connection, ((INIT_PRODUCER_ID, 0, struct.pack(">hi", -1, 60000)) for _ in range(ids))):
        answer.take("ih")
        seen.add(answer.take("q"))
    judge.p.check("23: every producer id is a new one", len(seen) == ids, len(seen))
    judge.crowd(23, f"{ids} producer ids")
    requests = ((wire.PRODUCE, 3, wire.produce_body(TOPIC, {0: sealed(body(producer=one, epoch=0, sequence=0))},
                                                    timeout_ms=20000)) for one in sorted(seen)[:appending])
    errors = {wire.Connection.produce_answer(answer)[0][0] for answer in ask(connection, requests, 90)}
    judge.p.check(f"23: {appending} producers append to one partition", errors == {0}, sorted(errors))
    judge.crowd(23, f"{appending} producers of one partition")
    judge.p.figures.update(producer_ids=ids, producers_appending=appending)
    connection.close()


def groups(judge, broker, count):
    """23: groups with an offset each, and names that only ask."""
    connection = wire.Connection(broker.port, 120)
    judge.coordinator(connection, "crowd")
    errors = {}
    requests = ((OFFSET_COMMIT, 2, offset_commit(f"crowd-{number}", [(0, 1, b"m" * 100)])) for number in range(count))
    for answer in ask(connection, requests, 90):
        error = answer.array(lambda: (answer.string(), answer.array(lambda: answer.take("ih"))))[0][1][0][1]
        errors[error] = errors.get(error, 0) + 1
    judge.p.check("23: groups commit or are refused", errors.get(0) and set(errors) <= {0, *NO_ROOM}, errors)
    judge.p.figures.update(groups=count, groups_taken=errors.get(0, 0))
    judge.crowd(23, f"{count} groups")
    connection.close()


def members(judge, broker, count):
    """21: members with 1 MB of metadata each join one group, from a connection each."""
    connection = wire.Connection(broker.port, 60)
    judge.coordinator(connection, "large")
    connection.close()
    request = frame(JOIN_GROUP, 0, join_group("large", protocols=[("range", b"m" * 1000000)]))
    selector, errors, closed = selectors.DefaultSelector(), {}, 0

    def collect(patience):
        nonlocal closed
        for key, _ in selector.select(patience):
            try:
                answer = key.fileobj.recv(16)
            except OSError:
                answer = b""
            if len(answer) >= 10:
                error = struct.unpack_from(">h", answer, 8)[0]
                errors[error] = errors.get(error, 0) + 1
            else:
                closed += 1
            selector.unregister(key.fileobj)
            key.fileobj.close()

    began = time.monotonic()
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", broker.port), 20)
        try:
            one.sendall(request)
        except OSError:
            closed += 1
            one.close()
            continue
        one.setblocking(False)
        selector.register(one, selectors.EVENT_READ)
        collect(0)
    while selector.get_map() and time.monotonic() < began + 60 + count / 50:
        collect(0.5)
    left = len(selector.get_map())
    for key in list(selector.get_map().values()):
        key.fileobj.close()
    judge.p.check("21: members with 1 MB each are taken or refused", not left and set(errors) <= {0, *NO_ROOM, 25, 27},
                  {"unanswered": left, "closed": closed, **errors})
    judge.p.say(f"{count} members with 1 MB each: errors {errors}, {closed} closed")
    judge.crowd(21, f"{count} members with 1 MB of metadata each")
    judge.p.figures["members"] = count
