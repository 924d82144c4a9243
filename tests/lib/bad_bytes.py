"""Requests and record batches that no client sends, numbered as in the list of 36 that spine/9 goes through.

`frames` gives (number, name, bytes, what must happen): CLOSED: the connection is closed, with a line in the log; TOLD: the same, or an
answer that tells errors; FINE: any answer will do as well; LEFT: the client leaves in the middle. `batches` gives (number, name,
bytes, produce version, must it be refused?); None there: Kafka takes it, or some of its versions do.
"""

import gzip
import struct
import zlib

import wire
from wire import array, string

I32_MAX = 2**31 - 1
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, INIT_PRODUCER_ID, DESCRIBE_CONFIGS = 8, 9, 10, 11, 22, 32
TOPIC = "bytes"
CLOSED, TOLD, FINE, LEFT = "closed", "told", "fine", "left"


def frame(key, version, body, client=string("proof"), size=None):
    head = struct.pack(">hhi", key, version, 7) + client
    return struct.pack(">i", len(head) + len(body) if size is None else size) + head + body


def i32(number):
    return struct.pack(">i", number)


def fetch_session(session, epoch, topics, forgotten=()):
    """Fetch 7 with `topics` as (name, partitions), for one batch at most."""
    return struct.pack(">iiiibii", -1, 0, 0, 1, 0, session, epoch) + array(
        [string(name) + array([struct.pack(">iqqi", p, 0, -1, 1 << 20) for p in partitions])
         for name, partitions in topics]) + array(list(forgotten))


def offset_commit(group, partitions, topic=TOPIC):
    """OffsetCommit 2 with (partition, offset, metadata as bytes); the group is one without members."""
    return string(group) + i32(-1) + string("") + struct.pack(">q", -1) + array([string(topic) + array(
        [struct.pack(">iqh", p, offset, len(text)) + text for p, offset, text in partitions])])


def join_group(group, member="", protocols=(("range", b""),), session_ms=6000, count=None):
    """JoinGroup 0."""
    names = b"".join(string(name) + i32(len(data)) + data for name, data in protocols)
    return string(group) + i32(session_ms) + string(member) + string("consumer") + i32(
        len(protocols) if count is None else count) + names


def frames():
    metadata = frame(wire.METADATA, 1, array([]))
    for size in (0, 1, 3, -1, -2**31, I32_MAX, 200 << 20):
        yield 1, f"size {size}", i32(size) + bytes(64), CLOSED
    yield 4, "HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", CLOSED
    yield 4, "SSH", b"SSH-2.0-OpenSSH_9.2\r\n", CLOSED
    yield 4, "RDP", bytes.fromhex("030000130ee000000000000100080003000000"), LEFT
    yield 5, "TLS hello", bytes.fromhex("160301020001000001fc0303") + bytes(200), CLOSED
    yield 7, "unknown key", frame(999, 0, b""), CLOSED
    yield 7, "negative key", frame(-1, 0, b""), CLOSED
    yield 7, "version too high", frame(wire.METADATA, 99, array([])), CLOSED
    yield 7, "negative version", frame(wire.METADATA, -1, array([])), CLOSED
    yield 8, "client id of length -2", frame(wire.METADATA, 1, array([]), client=struct.pack(">h", -2)), TOLD
    yield 8, "client id past the end", frame(wire.METADATA, 1, b"", client=struct.pack(">h", 32767)), CLOSED
    yield 8, "client id not UTF-8", frame(wire.METADATA, 1, array([]), client=struct.pack(">h", 2) + b"\xff\xfe"), FINE
    yield 8, "control characters", frame(wire.METADATA, 1, array([]), client=string("\x1b[31m\n\r\0x")), FINE
    flexible = string("proof")
    for name, tags in {"2^31 tags": b"\x80\x80\x80\x80\x08", "a varint of ten bytes": b"\xff" * 9 + b"\x01",
                       "a varint without end": b"\xff" * 40, "the same tag twice": b"\x02\x01\x00\x01\x00",
                       "tags out of order": b"\x02\x05\x00\x01\x00",
                       "a tag past the end": b"\x01\x00\xff\xff\xff\xff\x07"}.items():
        yield 9, name, frame(wire.API_VERSIONS, 3, b"\x02a\x02b\x00", client=flexible + tags), TOLD
    for count in (I32_MAX, -2, -2**31):
        yield 16, f"array of {count}", frame(wire.METADATA, 1, i32(count) + bytes(10)), TOLD
        yield 16, f"topics of a Produce: {count}", frame(wire.PRODUCE, 3, struct.pack(">hhii", -1, -1, 1000, count) +
                                                         bytes(10)), TOLD
        yield 16, f"partitions of a Fetch: {count}", frame(
            wire.FETCH, 4, struct.pack(">iiiib", -1, 0, 0, 1000, 0) + i32(1) + string(TOPIC) + i32(count) +
            bytes(10)), TOLD
    yield 17, "100,000 empty topics", frame(wire.FETCH, 4, struct.pack(">iiiib", -1, 0, 0, 1000, 0) +
                                            array([string("") + array([])] * 100000)), FINE
    yield 17, "a thousand topics of a hundred partitions", frame(
        wire.LIST_OFFSETS, 1, i32(-1) + array([string("no") + array([struct.pack(">iq", p, -1) for p in range(100)])
                                               ] * 1000)), TOLD
    yield 19, "a partition 100,000 times in a ListOffsets", frame(
        wire.LIST_OFFSETS, 1, i32(-1) + array([string(TOPIC) + array([struct.pack(">iq", 0, -1)] * 100000)])), FINE
    yield 19, "a partition 100,000 times in a Fetch", frame(
        wire.FETCH, 4, struct.pack(">iiiib", -1, 0, 0, 1 << 20, 0) + array([string(TOPIC) + array(
            [struct.pack(">iqi", 0, 0, 1 << 20)] * 100000)])), FINE
    yield 19, "a partition 100,000 times in a Produce, without batches", frame(
        wire.PRODUCE, 3, struct.pack(">hhi", -1, -1, 1000) + array([string(TOPIC) + array(
            [i32(0) + i32(-1)] * 100000)])), TOLD
    batch = wire.batch([b"again"])
    yield 19, "a partition 100,000 times in a Produce, with one batch", frame(
        wire.PRODUCE, 3, struct.pack(">hhi", -1, -1, 20000) + array([string(TOPIC) + array(
            [i32(0) + i32(len(batch)) + batch] * 100000)])), FINE
    yield 17, "bytes after the end of a request", frame(wire.METADATA, 1, array([]) + bytes(1000)), FINE
    yield 18, "100,000 names in a Metadata", frame(wire.METADATA, 4, array([string("no")] * 100000) + b"\0"), TOLD
    yield 18, "a topic 100,000 times in a Metadata", frame(wire.METADATA, 4, array([string(TOPIC)] * 100000) + b"\0"), FINE
    yield 18, "100,000 resources in a DescribeConfigs", frame(
        DESCRIBE_CONFIGS, 1, array([b"\x02" + string("no") + i32(-1)] * 100000) + b"\0"), TOLD
    yield 22, "a fetch session that isn't there", frame(
        wire.FETCH, 7, struct.pack(">iiiibii", -1, 0, 0, 1000, 0, 77, 5) + array([]) + array([])), TOLD
    yield 22, "a fetch session that forgets 100,000 topics", frame(
        wire.FETCH, 7, struct.pack(">iiiibii", -1, 0, 0, 1000, 0, 0, 0) + array([]) +
        array([string("no") + array([i32(0)])] * 100000)), FINE
    yield 25, "a million partitions", frame(wire.CREATE_TOPICS, 2, array(
        [string("million") + struct.pack(">ih", 1000000, 1) + array([]) + array([])]) + struct.pack(">ib", 1000, 0)), TOLD
    yield 25, "2^31-1 partitions", frame(wire.CREATE_TOPICS, 2, array(
        [string("many") + struct.pack(">ih", I32_MAX, 1) + array([]) + array([])]) + struct.pack(">ib", 1000, 0)), TOLD
    yield 25, "one broker twice", frame(wire.CREATE_TOPICS, 2, array(
        [string("twice") + struct.pack(">ih", -1, -1) + array([i32(0) + array([i32(1), i32(1)])]) + array([])]) +
        struct.pack(">ib", 1000, 0)), TOLD
    yield from groups()
    for name in ("", ".", "..", "x" * 250, "a/b", "a\0b", "ℵ"):
        yield 45, f"topic named {name[:5]!r}", frame(wire.CREATE_TOPICS, 2, array(
            [string(name) + struct.pack(">ih", 1, 1) + array([]) + array([])]) + struct.pack(">ib", 1000, 0)), TOLD
    yield 3, "half a frame, then an end", metadata[:9], LEFT


def groups():
    """20 and 21: what a group could be made to keep."""
    text = b"m" * 4097
    yield 20, "metadata of 4,097 bytes in an OffsetCommit", frame(
        OFFSET_COMMIT, 2, offset_commit("big", [(0, 1, text)])), TOLD
    yield 20, "metadata of 32,767 bytes in an OffsetCommit", frame(
        OFFSET_COMMIT, 2, offset_commit("big", [(0, 1, b"m" * 32767)])), TOLD
    yield 20, "metadata of length -2 in an OffsetCommit", frame(OFFSET_COMMIT, 2, offset_commit("big", [(0, 1, b"")])[:-2] + struct.pack(">h", -2)), TOLD
    yield 20, "metadata past the end of an OffsetCommit", frame(OFFSET_COMMIT, 2, offset_commit("big", [(0, 1, b"")])[:-2] + struct.pack(">h", 32767)), CLOSED
    yield 20, "metadata that isn't UTF-8 in an OffsetCommit", frame(
        OFFSET_COMMIT, 2, offset_commit("big", [(0, 1, b"\xff\xfe")])), TOLD
    flexible = string("proof") + b"\x00"
    for name, length, sent in (("of 16 MiB", 16 << 20, 16 << 20), ("of 2^31 bytes", 2**31, 10)):
        size = bytearray()
        number = length + 1
        while number >= 0x80:
            size.append(number & 0x7F | 0x80)
            number >>= 7
        size.append(number)
        yield 20, f"metadata {name} in an OffsetCommit", frame(
            OFFSET_COMMIT, 8, b"\x04big" + i32(-1) + b"\x01\x00\x02\x06" + TOPIC.encode() + b"\x02" +
            struct.pack(">iqi", 0, 1, -1) + bytes(size) + b"m" * sent + b"\x00\x00\x00", client=flexible), TOLD
    yield 20, "10,000 partitions with 4,096 bytes each in an OffsetCommit", frame(
        OFFSET_COMMIT, 2, offset_commit("big", [(p, 1, text[:4096]) for p in range(10000)])), TOLD
    yield 20, "a partition 100,000 times in an OffsetCommit", frame(
        OFFSET_COMMIT, 2, offset_commit("big", [(0, 1, b"")] * 100000)), FINE
    yield 20, "offsets at their ends in an OffsetCommit", frame(
        OFFSET_COMMIT, 2, offset_commit("big", [(0, -2**63, b""), (-1, 2**63 - 1, b"")])), TOLD
    yield 20, "a group of no name in an OffsetCommit", frame(OFFSET_COMMIT, 2, offset_commit("", [(0, 1, b"")])), FINE
    yield 20, "a group's name of 32,767 bytes in an OffsetCommit", frame(
        OFFSET_COMMIT, 2, offset_commit("g" * 32767, [(0, 1, b"")])), TOLD
    for count in (I32_MAX, -2):
        yield 20, f"partitions of an OffsetCommit: {count}", frame(
            OFFSET_COMMIT, 2, offset_commit("big", [])[:-4] + i32(count) + bytes(10)), TOLD
        yield 20, f"topics of an OffsetFetch: {count}", frame(OFFSET_FETCH, 1, string("big") + i32(count) + bytes(10)), TOLD
    yield 20, "a partition 100,000 times in an OffsetFetch", frame(
        OFFSET_FETCH, 1, string("big") + array([string(TOPIC) + array([i32(0)] * 100000)])), FINE
    yield 20, "100,000 topics in an OffsetFetch", frame(
        OFFSET_FETCH, 1, string("big") + array([string("no") + array([i32(0)])] * 100000)), FINE
    yield 20, "100,000 groups in an OffsetFetch", frame(
        OFFSET_FETCH, 8, b"\xa1\x8d\x06" + b"\x02g\x00\x00" * 100000 + b"\x00\x00", client=flexible), FINE
    yield 21, "no protocols in a JoinGroup", frame(JOIN_GROUP, 0, join_group("joins", protocols=())), TOLD
    for count in (I32_MAX, -2):
        yield 21, f"protocols of a JoinGroup: {count}", frame(
            JOIN_GROUP, 0, join_group("joins", protocols=(), count=count) + bytes(10)), TOLD
    yield 21, "100,000 protocols without names in a JoinGroup", frame(
        JOIN_GROUP, 0, join_group("joins", protocols=[("", b"")] * 100000)), FINE
    for session_ms in (0, -1, 5999, I32_MAX):
        yield 21, f"a session of {session_ms} ms in a JoinGroup", frame(
            JOIN_GROUP, 0, join_group("joins", session_ms=session_ms)), TOLD
    yield 21, "a member that isn't there in a JoinGroup", frame(JOIN_GROUP, 0, join_group("joins", member="nobody")), TOLD
    yield 21, "a group of no name in a JoinGroup", frame(JOIN_GROUP, 0, join_group("")), TOLD
    yield 21, "a group's name of 32,767 bytes in a JoinGroup", frame(JOIN_GROUP, 0, join_group("g" * 32767)), TOLD
    yield 21, "metadata of length -2 in a JoinGroup", frame(
        JOIN_GROUP, 0, join_group("joins")[:-4] + i32(-2)), TOLD
    yield 21, "metadata past the end of a JoinGroup", frame(
        JOIN_GROUP, 0, join_group("joins")[:-4] + i32(I32_MAX)), CLOSED


# --- batches: (number in the list, name, bytes, produce version, must it be refused?) --------------------------------
# None: Kafka takes it, or some of its versions do; an answer is enough.

def sealed(body, **header):
    """A batch around `body` (from the attributes on), its CRC right."""
    values = {"base_offset": 0, "length": len(body) + 9, "epoch": -1, "magic": 2, "crc": wire.crc32c(body)} | header
    return struct.pack(">qiibI", *values.values()) + body


def body(attributes=0, last_delta=0, first=0, latest=0, producer=-1, epoch=-1, sequence=-1, count=1, records=None):
    if records is None:
        records = record()
    return struct.pack(">hiqqqhii", attributes, last_delta, first, latest, producer, epoch, sequence, count) + records


def record(key=b"\x01", value=b"\x02x", headers=b"\x00", delta=0, time_delta=b"\x00", size=None):
    inner = b"\x00" + time_delta + wire.varint(delta) + key + value + headers
    return wire.varint(len(inner) if size is None else size) + inner


def batches():
    good = sealed(body())
    yield 26, "shorter than its length", good[:-1], 3, True
    yield 26, "longer than its length", good + b"x", 3, None
    yield 26, "length 0", sealed(body(), length=0), 3, True
    yield 26, "length negative", sealed(body(), length=-5), 3, True
    yield 26, "length 2^31-1", sealed(body(), length=I32_MAX), 3, True
    yield 26, "a header alone", good[:20], 3, True
    for magic in (0, 1, 3, -1):
        yield 27, f"magic {magic}", sealed(body(), magic=magic), 3, True
    yield 28, "bad CRC", sealed(body(), crc=1), 3, True
    for count, delta in ((0, 0), (-1, 0), (2, 0), (1, 1), (1, -1), (I32_MAX, I32_MAX - 1), (0, -1)):
        yield 29, f"count {count}, last delta {delta}", sealed(body(count=count, last_delta=delta)), 3, True
    yield 30, "record past the end", sealed(body(records=record(size=1000))), 3, True
    yield 30, "record of negative length", sealed(body(records=record(size=-3))), 3, True
    yield 30, "key of length -2", sealed(body(records=record(key=wire.varint(-2)))), 3, None
    yield 30, "value past the end", sealed(body(records=record(value=wire.varint(5000)))), 3, True
    yield 30, "2^31 headers", sealed(body(records=record(headers=wire.varint(2**31)))), 3, None
    yield 30, "header without key", sealed(body(records=record(headers=wire.varint(1) + wire.varint(-1) + b"\x01"))), 3, True
    yield 30, "varint without end", sealed(body(records=b"\xff" * 30)), 3, True
    yield 31, "two batches", good + good, 3, True
    yield 32, "control bit", sealed(body(attributes=32)), 3, True
    yield 32, "transactional bit", sealed(body(attributes=16)), 3, True
    yield 32, "delete horizon bit", sealed(body(attributes=64)), 3, None
    yield 32, "reserved bits", sealed(body(attributes=0x4000)), 3, None
    yield 33, "base offset and epoch set", sealed(body(), base_offset=77, epoch=9), 3, None
    yield 34, "timestamps at their ends", sealed(body(first=-2**63, latest=2**63 - 1)), 3, None
    yield 34, "timestamp delta over the end", sealed(body(first=2**63 - 1, latest=2**63 - 1,
                                                         records=record(time_delta=wire.varint(2**62)))), 3, None
    for codec in (5, 6, 7):
        yield 35, f"codec {codec}", sealed(body(attributes=codec)), 3, True
    yield 35, "zstd by an old version", sealed(body(attributes=4)), 3, True
    noise = bytes(range(256))
    zstd_head, lz4_head = bytes.fromhex("28b52ffd0058"), bytes.fromhex("04224d18604082")
    yield 36, "zstd cut short", sealed(body(attributes=4, records=zstd_head + b"\x41\x1f\x00" + record())), 7, True
    yield 36, "lz4 cut short", sealed(body(attributes=3, records=lz4_head + i32(99)[::-1] + record())), 3, True
    yield 36, "snappy cut short", sealed(body(attributes=2, records=b"\x40\xfc" + record())), 3, True
    # A block of 128 KiB of one byte takes four; 65,000 of one byte take 260.
    size = wire.varint(1 << 30)
    yield 36, "zstd bomb of 1 GiB", sealed(body(attributes=4, records=zstd_head + struct.pack(
        "<I", len(size) << 3)[:3] + size + (struct.pack("<I", 131072 << 3 | 2)[:3] + b"x") * 8192 + b"\x01\0\0")), 7, True
    one = b"\x1fx\x01\0" + b"\xff" * 254 + b"\x00\x50zzzzz"
    yield 36, "lz4 bomb of 240 MiB", sealed(body(attributes=3, records=lz4_head + (
        struct.pack("<I", len(one)) + one) * 3800 + bytes(4))), 3, True
    for codec in (1, 2, 3, 4):
        yield 36, f"no stream of codec {codec}", sealed(body(attributes=codec, records=noise)), 7, True
    whole = gzip.compress(record())
    yield 36, "gzip cut short", sealed(body(attributes=1, records=whole[:-9])), 3, True
    yield 36, "gzip with a tail", sealed(body(attributes=1, records=whole + b"tail")), 3, None
    # 64 MiB of zeros, which a flush keeps apart from what comes before and after, sixteen times.
    zeros, bomb, check = bytes(64 << 20), zlib.compressobj(9, wbits=-15), zlib.crc32(wire.varint(1 << 30))
    first = bomb.compress(wire.varint(1 << 30)) + bomb.flush(zlib.Z_FULL_FLUSH)
    bomb = first + (bomb.compress(zeros) + bomb.flush(zlib.Z_FULL_FLUSH)) * 16 + b"\x03\x00"
    for _ in range(16):
        check = zlib.crc32(zeros, check)
    bomb = gzip.compress(b"")[:10] + bomb + struct.pack("<II", check, (1 << 30) + 5)
    yield 36, "gzip bomb of 1 GiB", sealed(body(attributes=1, records=bomb)), 3, True
    yield 36, "lz4 with a wrong header checksum", sealed(body(
        attributes=3, records=bytes.fromhex("04224d186040ff") + bytes(20))), 3, True
    yield 36, "zstd that asks for 2 GiB of window", sealed(body(
        attributes=4, records=bytes.fromhex("28b52ffd00a8") + b"\x01\x00\x00" + bytes(20))), 7, True
    yield 36, "snappy that declares 2 GiB", sealed(body(attributes=2, records=b"\xff\xff\xff\xff\x07" + bytes(20))), 3, True
