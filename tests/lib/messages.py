"""Every message of the Kafka protocol in every version, from the schemas that Apache Kafka ships inside its own kafka-clients jar (which
`tests/peer/kafka-peer install` fetches): requests and answers as plain dictionaries, for what no client would send.
A schema is read when it is first used.

    kafka = messages.Connection(port)
    answer = kafka.call("DescribeCluster", 1, {"EndpointType": 1})

Fields that a request leaves out have their schema's default; a field that the version doesn't have is left out of the bytes.
"""

import functools
import glob
import json
import os
import pathlib
import re
import socket
import struct
import uuid
import zipfile

FIXED = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d"}


def _jar():
    home = os.environ.get("KAFKA_PEER_HOME", str(pathlib.Path.home() / ".cache/kafka-peer"))
    return sorted(glob.glob(home + "/libs/kafka-clients-*.jar"))[-1]


@functools.cache
def load(name):
    """The schema of a request or response by its name, e.g. "FetchRequest"."""
    with zipfile.ZipFile(_jar()) as jar:
        text = jar.read(f"common/message/{name}.json").decode()
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    return json.loads(re.sub(r"\s//\s.*$", "", text, flags=re.M))


def within(versions, version):
    """Whether a version is in a range as the schemas write it: "3", "1+", "0-4", "none"."""
    if versions in (None, "none"):
        return False
    low, plus, high = re.fullmatch(r"(\d+)(\+?)(?:-(\d+))?", versions).groups()
    return int(low) <= version and (bool(plus) or version <= int(high or low))


class Many:
    """An array of so many elements that are all alike, or, where they aren't, differ in a NUMBER that stands in each: made without encoding every one of them."""
    NUMBER = "~~~~~~~~"

    def __init__(self, count, item):
        self.count, self.item = count, item

    def bytes(self, one):
        mark = self.NUMBER.encode()
        if mark not in one:
            return one * self.count
        parts = one.split(mark)
        return b"".join((b"%08d" % number).join(parts) for number in range(self.count))


class _Codec:
    def __init__(self, schema, version):
        self.version = version
        self.flexible = within(schema.get("flexibleVersions", "none"), version)
        self.structs = {s["name"]: s["fields"] for s in schema.get("commonStructs", [])}

    def fields(self, field):
        name = field["type"].removeprefix("[]")
        return field.get("fields") or self.structs[name]

    def compact(self, field):
        return within(field["flexibleVersions"], self.version) if "flexibleVersions" in field else self.flexible


class _Writer(_Codec):
    def varint(self, value):
        out = bytearray()
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(out) + bytes([value])

    def length(self, size, form, flexible):
        return self.varint(0 if size is None else size + 1) if flexible else struct.pack(">" + form, -1 if size is None else size)

    def value(self, field, value, kind=None):
        kind = kind or field["type"]
        flexible = self.compact(field)
        if kind.startswith("[]"):
            if value is None:
                return self.length(None, "i", flexible)
            if isinstance(value, Many):
                return self.length(value.count, "i", flexible) + value.bytes(self.value(field, value.item, kind[2:]))
            return self.length(len(value), "i", flexible) + b"".join(self.value(field, one, kind[2:]) for one in value)
        if kind in FIXED:
            return struct.pack(">" + FIXED[kind], int(value) if kind != "float64" else value)
        if kind == "bool":
            return bytes([bool(value)])
        if kind == "uuid":
            return uuid.UUID(str(value)).bytes
        if kind == "string":
            data = None if value is None else value.encode() if isinstance(value, str) else value
            return self.length(None if data is None else len(data), "h", flexible) + (data or b"")
        if kind in ("bytes", "records"):
            return self.length(None if value is None else len(value), "i", flexible) + (value or b"")
        if value is None:
            return b"\xff"
        nullable = b"\x01" if within(field.get("nullableVersions"), self.version) and not field["type"].startswith("[]") else b""
        return nullable + self.struct(self.fields(field), value)

    def default(self, field):
        default, kind = field.get("default"), field["type"]
        if default == "null":
            return None
        if kind.startswith("[]"):
            return []
        if kind == "string":
            return default or ""
        if kind in ("bytes", "records"):
            return b""
        if kind == "uuid":
            return default or str(uuid.UUID(int=0))
        if kind == "bool":
            return default in ("true", True)
        if kind in FIXED:
            return float(default or 0) if kind == "float64" else int(str(default or 0), 0)
        return {}

    def struct(self, fields, values):
        unknown = set(values) - {f["name"] for f in fields}
        assert not unknown, f"no such fields: {unknown}"
        out, tagged = b"", []
        for field in fields:
            if not within(field["versions"], self.version):
                continue
            if within(field.get("taggedVersions"), self.version):
                if field["name"] in values:
                    tagged.append((field["tag"], self.value(field, values[field["name"]])))
                continue
            out += self.value(field, values[field["name"]] if field["name"] in values else self.default(field))
        if self.flexible:
            out += self.varint(len(tagged))
            for tag, data in sorted(tagged):
                out += self.varint(tag) + self.varint(len(data)) + data
        return out


class _Reader(_Codec):
    def __init__(self, schema, version, data):
        super().__init__(schema, version)
        self.data, self.at = data, 0

    def bytes(self, size):
        if not 0 <= size <= len(self.data) - self.at:
            raise ValueError(f"{size} bytes of {len(self.data) - self.at}")
        self.at += size
        return self.data[self.at - size:self.at]

    def varint(self):
        value = shift = 0
        while True:
            [byte] = self.bytes(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def length(self, form, flexible):
        size = self.varint() - 1 if flexible else struct.unpack(">" + form, self.bytes(struct.calcsize(form)))[0]
        return None if size == -1 else size

    def value(self, field, kind=None):
        kind = kind or field["type"]
        flexible = self.compact(field)
        if kind.startswith("[]"):
            count = self.length("i", flexible)
            return None if count is None else [self.value(field, kind[2:]) for _ in range(count)]
        if kind in FIXED:
            return struct.unpack(">" + FIXED[kind], self.bytes(struct.calcsize(FIXED[kind])))[0]
        if kind == "bool":
            return self.bytes(1) != b"\0"
        if kind == "uuid":
            return str(uuid.UUID(bytes=self.bytes(16)))
        if kind == "string":
            size = self.length("h", flexible)
            return None if size is None else self.bytes(size).decode()
        if kind in ("bytes", "records"):
            size = self.length("i", flexible)
            return None if size is None else self.bytes(size)
        if within(field.get("nullableVersions"), self.version) and not field["type"].startswith("[]"):
            if self.bytes(1) == b"\xff":
                return None
        return self.struct(self.fields(field))

    def struct(self, fields):
        values, tagged = {}, {}
        for field in fields:
            if within(field["versions"], self.version):
                if within(field.get("taggedVersions"), self.version):
                    tagged[field["tag"]] = field
                else:
                    values[field["name"]] = self.value(field)
        if self.flexible:
            for _ in range(self.varint()):
                tag, size = self.varint(), self.varint()
                end = self.at + size
                if tag in tagged:
                    values[tagged[tag]["name"]] = self.value(tagged[tag])
                else:
                    values[f"tag {tag}"] = self.bytes(size)
                if self.at != end:
                    raise ValueError(f"tag {tag} isn't as long as it says")
        return values


def encode(name, version, values):
    schema = load(name)
    return _Writer(schema, version).struct(schema["fields"], values)


def decode(name, version, data):
    """A message that must fill `data` to its end."""
    schema = load(name)
    reader = _Reader(schema, version, data)
    values = reader.struct(schema["fields"])
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes behind {name} {version}")
    return values


def head(name, version, number=7, client="proof"):
    """What stands before the body of a request, without the frame's length."""
    schema, client = load(name + "Request"), client.encode()
    tags = b"\0" if within(schema.get("flexibleVersions"), version) else b""
    return struct.pack(">hhih", schema["apiKey"], version, number, len(client)) + client + tags


def frame(name, version, values, number=7, client="proof"):
    """A whole request as it goes over the wire."""
    data = head(name, version, number, client) + encode(name + "Request", version, values)
    return struct.pack(">i", len(data)) + data


@functools.cache
def keys():
    """{number of a key: its name}"""
    with zipfile.ZipFile(_jar()) as jar:
        names = [n.removeprefix("common/message/").removesuffix("Request.json") for n in jar.namelist()
                 if n.startswith("common/message/") and n.endswith("Request.json")]
    return {load(n + "Request")["apiKey"]: n for n in names}


class Connection:
    def __init__(self, port, host="127.0.0.1", client="proof", timeout=30):
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client, self.number = client, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, name, version, values):
        self.number += 1
        self.socket.sendall(frame(name, version, values, self.number, self.client))

    def receive(self, name, version):
        size = struct.unpack(">i", self._exactly(4))[0]
        data = self._exactly(size)
        assert struct.unpack(">i", data[:4])[0] == self.number, "an answer to another request"
        tagged = within(load(name + "Response").get("flexibleVersions"), version) and name != "ApiVersions"
        if tagged and data[4:5] != b"\0":
            raise ValueError("tags in the header of an answer")
        return decode(name + "Response", version, data[5 if tagged else 4:])

    def call(self, name, version, values=None):
        """The answer; None when the connection was closed instead."""
        self.send(name, version, values or {})
        try:
            return self.receive(name, version)
        except (ConnectionError, EOFError):
            return None

    def _exactly(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data
