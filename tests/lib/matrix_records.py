"""The records of the matrix of clients/1: whatever a record may have, and what some client can't write or read of it."""

import base64
import random

from matrix_oracle import must


def text(data):
    return None if data is None else base64.b64encode(data).decode()


def encoded(record):
    """Ready for JSON."""
    return {"k": text(record["k"]), "v": text(record["v"]), "h": [[name, text(data)] for name, data in record["h"]], "t": record["t"]}


def make_records(count, seed, base_ms, lacks=()):
    """Records with whatever a record may have, every time the same; `lacks`: what the client can't write."""
    draw = random.Random(seed)
    every_byte = bytes(range(256))
    special = [
        (None, b"no key", []), (b"", b"an empty key", []), (b"tombstone", None, []), (b"an empty value", b"", []), (None, None, [("h", b"1")]),
        (every_byte, every_byte[::-1] * 3, [("all", every_byte)]), ("ключ".encode(), "значення €".encode(), [("naïve ☕", "äöü".encode())]),
        (b"twice", b"v", [("same", b"1"), ("same", b"2")]), (b"in turns", b"v", [("a", b"1"), ("b", b"2"), ("a", b"3")]),
        (b"null header", b"v", [("null", None)]), (b"empty header", b"v", [("empty", b"")]),
        (b"large", b"0123456789abcdef" * 8192, []), (b"dense", draw.randbytes(20000), []), (b"lines", b"one\ntwo\r\nthree\ttab\0", [("line", b"\n")]),
    ]
    # Headers change now and then only: for kcat each change is a call of its own.
    headers = [[(f"h{n}", draw.randbytes(draw.randrange(30))) for n in range(many)] for many in range(5)]
    rows = special + [(draw.choice([None, draw.randbytes(draw.randrange(1, 40))]), draw.randbytes(draw.randrange(1, 8)) * draw.randrange(1, 200),
                       headers[n // 20 % len(headers)]) for n in range(max(0, count - len(special)))]
    return [encoded(adapt({"k": k, "v": v, "h": h, "t": base_ms + 1000 * n}, lacks)) for n, (k, v, h) in enumerate(rows)]


# What a client may be unable to write or to read (limits.json), with a record (key, value, headers) by which it is seen.
TRAITS = {
    "binary": (b"\xff\xfe", b"one\ntwo", []),
    "nul-in-header": (b"k", b"v", [("h", b"a\0b")]),
    "null-in-header": (b"k", b"v", [("h", None)]),
    "null-and-null": (None, None, []),
    "null-beside-empty": (None, b"", []),
    "empty-is-null": (b"", b"v", []),
    "headers-in-turns": (b"k", b"v", [("a", b"1"), ("b", b"2"), ("a", b"3")]),
    "time": (b"k", b"v", []),
}


def adapt(record, lacks):
    """The record as near as one can say, or see, it who lacks something."""
    key, value, headers = record["k"], record["v"], list(record["h"])
    if "binary" in lacks:
        key, value = plain(key), plain(value)
        headers = [(name, plain(data)) for name, data in headers]
    if "nul-in-header" in lacks:
        headers = [(name, data and data.replace(b"\0", b"0")) for name, data in headers]
    if "null-in-header" in lacks:
        headers = [(name, b"-" if data is None else data) for name, data in headers]
    if "null-and-null" in lacks and key is None and value is None:
        key = b"-"
    if "null-beside-empty" in lacks and None in (key, value) and b"" in (key, value):
        key, value = (b"-" if data == b"" else data for data in (key, value))
    if "empty-is-null" in lacks:
        key, value = key or None, value or None
        headers = [(name, data or None) for name, data in headers]
    if "headers-in-turns" in lacks:
        names = list(dict.fromkeys(name for name, _ in headers))
        headers = sorted(headers, key=lambda h: names.index(h[0]))
    return {"k": key, "v": value, "h": headers, "t": record["t"]}


def decoded(record):
    def data(text):
        return None if text is None else base64.b64decode(text)
    return {"k": data(record["k"]), "v": data(record["v"]), "h": [(name, data(value)) for name, value in record["h"]], "t": record["t"]}


def plain(data):
    """The text itself where it is one of one line, else what stands for the bytes."""
    if data is None:
        return None
    try:
        if data.decode().isprintable():
            return data
    except UnicodeDecodeError:
        pass
    return base64.b64encode(data)


def same(sent, found, who, writer=(), reader=()):
    """Byte for byte; `writer` and `reader`: what they lack. A writer's records are adapted to it already, but for their times."""
    must(len(found) == len(sent), f"{who}: {len(found)} records instead of {len(sent)}")
    for n, (a, b) in enumerate(zip(sent, found)):
        must(b["o"] == n, f"{who}: offset {b['o']} instead of {n}")
        a = encoded(adapt(decoded(a), reader))
        for field in ("k", "v", "h") + (() if "time" in writer else ("t",)):
            must(a[field] == b[field], f"{who}: record {n}: {field} is {b[field]!r:.150} instead of {a[field]!r:.150}")


