"""As much of the Kafka protocol as the proofs need to speak in plain bytes, without flexible versions:
Metadata 1, Produce 3, Fetch 4, ListOffsets 1, CreateTopics 2, ApiVersions 0.

For what clients hide: times to the first answer, the bytes of a batch as stored, a thousand partitions in one
request, and requests that no client would send.
"""

import socket
import struct
import time

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, API_VERSIONS = 0, 1, 2, 3, 19, 18


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(">" + form)
        return values if len(values) > 1 else values[0]

    def bytes(self, size):
        self.at += max(size, 0)
        return self.data[self.at - max(size, 0):self.at] if size >= 0 else None

    def string(self):
        value = self.bytes(self.take("h"))
        return None if value is None else bytes(value).decode()

    def blob(self):
        return self.bytes(self.take("i"))

    def array(self, one):
        return [one() for _ in range(max(self.take("i"), 0))]


def string(text):
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def array(items):
    return struct.pack(">i", len(items)) + b"".join(items)


class Connection:
    def __init__(self, port, timeout=30, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = 0

    def close(self):
        self.socket.close()

    def send(self, key, version, body):
        self.number += 1
        head = struct.pack(">hhi", key, version, self.number) + string("proof")
        self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        return self.number

    def receive(self):
        size, number = struct.unpack(">ii", self._exactly(8))
        return number, Reader(memoryview(self._exactly(size - 4)))

    def call(self, key, version, body):
        sent = self.send(key, version, body)
        number, reader = self.receive()
        if number != sent:
            raise ValueError(f"answer {number} to request {sent}")
        return reader

    def _exactly(self, size):
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            got = self.socket.recv_into(view[at:])
            if not got:
                raise ConnectionError(f"closed after {at} of {size} bytes")
            at += got
        return bytes(data)

    # --- requests -----------------------------------------------------------

    def api_versions(self):
        """{key: (lowest, highest version)}"""
        reader = self.call(API_VERSIONS, 0, b"")
        reader.take("h")
        return {key: versions for key, *versions in reader.array(lambda: reader.take("hhh"))}

    def metadata(self, topics=()):
        """{topic: (error, {partition: (error, leader)})}; without names, no topic (the brokers only)."""
        reader = self.call(METADATA, 1, array([string(t) for t in topics]))
        reader.array(lambda: (reader.take("i"), reader.string(), reader.take("i"), reader.string()))
        reader.take("i")

        def partition():
            error, number, leader = reader.take("hii")
            reader.array(lambda: reader.take("i"))
            reader.array(lambda: reader.take("i"))
            return number, (error, leader)

        def topic():
            error, name, _internal = reader.take("h"), reader.string(), reader.take("b")
            return name, (error, dict(reader.array(partition)))

        return dict(reader.array(topic))

    def create_topic(self, topic, partitions, timeout_ms=60000, configs=()):
        body = string(topic) + struct.pack(">ih", partitions, 1) + array([])
        body += array([string(k) + string(v) for k, v in configs])
        reader = self.call(CREATE_TOPICS, 2, array([body]) + struct.pack(">ib", timeout_ms, 0))
        reader.take("i")
        return reader.array(lambda: (reader.string(), reader.take("h"), reader.string()))[0][1]

    def produce(self, topic, batches, acks=-1, timeout_ms=30000):
        """batches: {partition: bytes of a record batch}; answers {partition: (error, base offset)}."""
        return self.produce_answer(self.call(PRODUCE, 3, produce_body(topic, batches, acks, timeout_ms)))

    @staticmethod
    def produce_answer(reader):
        def partition():
            number, error, base, _time = reader.take("ihqq")
            return number, (error, base)

        topics = reader.array(lambda: (reader.string(), dict(reader.array(partition))))
        return topics[0][1] if topics else {}

    def fetch(self, topic, offsets, partition_max_bytes=1 << 20, max_bytes=1 << 30, min_bytes=1, max_wait_ms=500):
        """offsets: {partition: offset}; answers {partition: (error, high watermark, bytes)}."""
        return self.fetch_answer(self.call(FETCH, 4, fetch_body(
            topic, offsets, partition_max_bytes, max_bytes, min_bytes, max_wait_ms)))

    @staticmethod
    def fetch_answer(reader):
        def partition():
            number, error, high, _stable = reader.take("ihqq")
            reader.array(lambda: reader.take("qq"))
            return number, (error, high, reader.blob() or b"")

        reader.take("i")
        topics = reader.array(lambda: (reader.string(), dict(reader.array(partition))))
        return topics[0][1] if topics else {}

    def list_offsets(self, topic, partitions, timestamp=-1):
        """{partition: (error, offset)}; timestamp -1 is the end, -2 the start."""
        body = struct.pack(">i", -1) + array([string(topic) + array(
            [struct.pack(">iq", p, timestamp) for p in partitions])])
        reader = self.call(LIST_OFFSETS, 1, body)

        def partition():
            number, error, _time, offset = reader.take("ihqq")
            return number, (error, offset)

        topics = reader.array(lambda: (reader.string(), dict(reader.array(partition))))
        return topics[0][1] if topics else {}


def produce_body(topic, batches, acks=-1, timeout_ms=30000):
    return struct.pack(">hhi", -1, acks, timeout_ms) + array([string(topic) + array(
        [struct.pack(">ii", p, len(b)) + b for p, b in batches.items()])])


def fetch_body(topic, offsets, partition_max_bytes, max_bytes, min_bytes, max_wait_ms):
    return struct.pack(">iiiib", -1, max_wait_ms, min_bytes, max_bytes, 0) + array([string(topic) + array(
        [struct.pack(">iqi", p, o, partition_max_bytes) for p, o in offsets.items()])])


# --- record batches, format v2 ------------------------------------------------

def _crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def varint(value):
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value & ~0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def batch(values, key=None, attributes=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, base_offset=0):
    """An uncompressed batch of records with these values."""
    records = b""
    for delta, value in enumerate(values):
        record = b"\0" + varint(0) + varint(delta)
        record += varint(-1) if key is None else varint(len(key)) + key
        record += varint(len(value)) + value + varint(0)
        records += varint(len(record)) + record
    now = int(time.time() * 1000)
    body = struct.pack(">hiqqqhii", attributes, len(values) - 1, now, now,
                       producer_id, producer_epoch, base_sequence, len(values)) + records
    return struct.pack(">qiibI", base_offset, len(body) + 9, -1, 2, crc32c(body)) + body


def records(one):
    """(offset, key, value) of an uncompressed batch as `batches` answers it."""
    body, found = one["body"], []
    at = 40

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def blob():
        nonlocal at
        size = number()
        if size < 0:
            return None
        at += size
        return bytes(body[at - size:at])

    for _ in range(one["count"]):
        size = number()
        end = at + size
        at += 1
        number()
        offset = one["base_offset"] + number()
        found.append((offset, blob(), blob()))
        at = end
    return found


def batches(data):
    """Headers of the whole batches in `data`: dicts; a cut one at the end is left out."""
    found, at = [], 0
    while at + 61 <= len(data):
        base, size, epoch, magic, crc, attributes, last_delta, first, latest, producer_id, producer_epoch, \
            sequence, count = struct.unpack_from(">qiibIhiqqqhii", data, at)
        if at + 12 + size > len(data):
            break
        found.append({"base_offset": base, "size": size + 12, "leader_epoch": epoch, "magic": magic,
                      "crc": crc, "codec": attributes & 7, "last_offset": base + last_delta, "count": count,
                      "producer_id": producer_id, "sequence": sequence, "body": data[at + 21:at + 12 + size]})
        at += 12 + size
    return found
