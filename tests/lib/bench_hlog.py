"""Interval logs of `tailrace bench run --hlog`: percentiles of some seconds of a run, put together from their histograms."""

import base64
import math
import struct
import zlib

HEADER = 40


def percentile_ms(path, tag, begin_s, end_s, share):
    """Of the intervals that lie within the two moments, counted from the load's beginning; None if nothing is in them.
    `tag` is None for what was produced, "end-to-end" for what consumers saw."""
    counts = {}
    for its_tag, start, length, encoded in intervals(path):
        if its_tag == tag and start >= begin_s and start + length <= end_s + 1e-6:
            for value, count in histogram(encoded).items():
                counts[value] = counts.get(value, 0) + count
    total, seen = sum(counts.values()), 0
    rank = math.ceil(round(share * total, 6))
    for value in sorted(counts):
        seen += counts[value]
        if seen >= rank:
            return value / 1e6
    return None


def intervals(path):
    """[(tag, start, length, histogram)], the start counted from that of the load."""
    for line in path.read_text().splitlines():
        if not line or line[0] in '#"':
            continue
        fields = line.split(",")
        tag = fields.pop(0)[4:] if fields[0].startswith("Tag=") else None
        yield tag, float(fields[0]), float(fields[1]), fields[3]


def histogram(encoded):
    """{highest value of a bucket in ns: count} of a histogram in HdrHistogram's format V2, deflated."""
    raw = base64.b64decode(encoded)
    _, length = struct.unpack(">II", raw[:8])
    payload = zlib.decompress(raw[8:8 + length])
    cookie, size, offset, digits, low, _, _ = struct.unpack(">IIIIQQd", payload[:HEADER])
    assert cookie & 0xF in (3, 4) and offset == 0 and low == 1, "as the instrument makes them"
    half = 1 << math.ceil(math.log2(2 * 10 ** digits)) - 1
    found, index, at = {}, 0, HEADER
    while at < HEADER + size:
        number, shift = 0, 0
        while True:
            byte = payload[at]
            at += 1
            if shift == 56:  # the ninth byte has eight bits of the number
                number |= byte << shift
                break
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        number = number >> 1 ^ -(number & 1)
        if number < 0:
            index += -number
            continue
        if number:
            bucket = max(index // half - 1, 0)
            sub = index if index < 2 * half else index % half + half
            found[(sub + 1 << bucket) - 1] = number
        index += 1
    return found
