"""Record batches that the differential proof makes, good and broken, and what it sees of stored ones. Codecs are written by hand, without
compressing: every codec has a form that stores, and the standard library has only gzip."""

import dataclasses
import gzip
import struct

import wire

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# What may be wrong with a batch; "" is a good one.
FAULTS = ("crc", "magic", "short", "count", "twice", "none", "empty", "control", "transactional", "garbage", "delta", "sequence", "base", "max", "append", "trailing", "codec", "null", "few")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Of records (key, value, headers, milliseconds from the run's base time); `producer` is a slot of InitProducerId."""
    records: tuple
    codec: int = 0
    fault: str = ""
    producer: str = ""
    sequence: int = -1
    epoch_delta: int = 0

    def __repr__(self):
        parts = [f"{len(self.records)} records", f"times {[r[3] for r in self.records]}", CODECS[self.codec], f"fault {self.fault}" if self.fault else "",
                 f"producer {self.producer} sequence {self.sequence} epoch {self.epoch_delta:+}" if self.producer else ""]
        return f"<batch: {', '.join(p for p in parts if p)}>"

    def bytes(self, base_ms, producer_id=-1, producer_epoch=-1):
        fault, attributes = self.fault, self.codec
        if fault == "null":
            return None
        if fault == "none":
            return b""
        times = [base_ms + delta if delta is not None else -1 for *_, delta in self.records] or [base_ms]
        body = b""
        for offset, ((key, value, headers, _), ms) in enumerate(zip(self.records, times)):
            number = offset + (offset + 1 if fault == "delta" else 0)
            one = b"\0" + wire.varint(ms - times[0]) + wire.varint(number) + blob(key) + blob(value) + wire.varint(len(headers))
            for name, inner in headers:
                one += blob(name) + blob(inner)
            body += wire.varint(len(one)) + one
        if fault == "few":
            body = body[:-1]
        if fault == "trailing":
            body += b"\0\1\2"
        count = len(self.records)
        body = garbage() if fault == "garbage" else squeeze(body, self.codec)
        attributes |= {"control": 0x20, "transactional": 0x10, "append": 0x08, "codec": 0x07}.get(fault, 0)
        newest = max(times) - (50 if fault == "max" else 0)
        if fault == "empty":
            body, count = b"", 0
        sequence = self.sequence if self.producer or fault != "sequence" else -5
        last = count - 1 + (1 if fault == "count" else 0)
        tail = struct.pack(">hiqqqhii", attributes, last, times[0], newest, producer_id, producer_epoch, sequence, count) + body
        crc = wire.crc32c(tail) ^ (1 if fault == "crc" else 0)
        base = 7 if fault == "base" else 0
        whole = struct.pack(">qiib", base, len(tail) + 9, -1, 1 if fault == "magic" else 2) + struct.pack(">I", crc) + tail
        return whole[:-3] if fault == "short" else whole * 2 if fault == "twice" else whole


def garbage():
    return bytes(i * 37 & 255 for i in range(40))


def blob(data):
    return wire.varint(-1) if data is None else wire.varint(len(data)) + data


def squeeze(data, codec):
    if codec == 1:
        return gzip.compress(data, mtime=0)
    if codec == 2:
        return unsigned(len(data)) + literals(data)
    if codec == 3:
        head = b"\x60\x40"
        out = struct.pack("<I", 0x184D2204) + head + bytes([xxh32(head) >> 8 & 255])
        for at in range(0, len(data), 65536):
            part = data[at:at + 65536]
            out += struct.pack("<I", len(part) | 1 << 31) + part
        return out + bytes(4)
    if codec == 4:
        # A frame of one segment whose size is told in 8 bytes, and blocks that are stored.
        out = struct.pack("<IBQ", 0xFD2FB528, 0xE0, len(data))
        parts = [data[at:at + 65536] for at in range(0, len(data), 65536)] or [b""]
        for part in parts:
            out += struct.pack("<I", len(part) << 3 | (part is parts[-1]))[:3] + part
        return out
    return data


def unsigned(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def literals(data):
    return b"".join(b"\xf4" + struct.pack("<H", len(part) - 1) + part for part in (data[at:at + 65536] for at in range(0, len(data), 65536)))


def xxh32(data):
    """Of fewer than 16 bytes, with seed 0."""
    mask, value = 0xFFFFFFFF, 374761393 + len(data)
    while len(data) >= 4:
        value = value + int.from_bytes(data[:4], "little") * 3266489917 & mask
        value = (value << 17 | value >> 15) * 668265263 & mask
        data = data[4:]
    for byte in data:
        value = value + byte * 374761393 & mask
        value = (value << 11 | value >> 21) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16


def stored(data, base_ms, producers):
    """What a fetch shows of its batches: headers, and the records where they aren't a codec's bytes."""
    found, at = [], 0
    data = data or b""
    while at + 61 <= len(data):
        base, length, _, magic, _, attributes, last, first_ms, max_ms, pid, epoch, sequence, count = struct.unpack_from(">qiibIhiqqqhii", data, at)
        if at + length + 12 > len(data):
            break
        codec, body = attributes & 7, data[at + 61:at + 12 + length]
        body = gzip.decompress(body) if codec == 1 else body if codec == 0 else None
        found.append({"base": base, "magic": magic, "attributes": attributes, "last": last, "first_ms": first_ms - base_ms if first_ms > 0 else first_ms,
                      "max_ms": "a time" if attributes & 8 else max_ms - base_ms if max_ms > 0 else max_ms, "producer": producers.get(pid, pid), "epoch": epoch, "sequence": sequence, "count": count,
                      "records": body.hex() if body is not None else "coded"})
        at += length + 12
    return found
