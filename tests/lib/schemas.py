"""Kafka's messages in every version, by the schemas that Kafka's own client library carries (`common/message/*.json` in its jar).

`Schemas(jar).request("JoinGroup")` gives a message that encodes a dict and decodes bytes in any version; fields that are left out
have the schema's defaults. So what a broker is sent and answers is in Kafka's own words, and none of ours."""

import io
import json
import re
import struct
import uuid
import zipfile

FIXED = {"bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d"}


def _range(text):
    if text in (None, "none"):
        return 1, 0
    low, _, high = text.partition("-")
    return int(low.rstrip("+")), (1 << 15 if low.endswith("+") else int(high or low))


def _within(version, text):
    low, high = _range(text)
    return low <= version <= high


class Schemas:
    def __init__(self, jar):
        self.jar = zipfile.ZipFile(jar)

    def _load(self, name):
        text = self.jar.read(f"common/message/{name}.json").decode()
        return json.loads(re.sub(r"(?m)^\s*//.*$", "", text))

    def request(self, name):
        return Message(self._load(name + "Request"))

    def response(self, name):
        return Message(self._load(name + "Response"))


class Message:
    def __init__(self, schema):
        self.schema = schema
        self.key = schema["apiKey"]
        self.low, self.high = _range(schema["validVersions"])
        self.structs = {s["name"]: s["fields"] for s in schema.get("commonStructs", [])}

    def flexible(self, version):
        return _within(version, self.schema.get("flexibleVersions"))

    def encode(self, version, values):
        out = io.BytesIO()
        self._put_struct(out, self.schema["fields"], version, values)
        return out.getvalue()

    def decode(self, version, data):
        source = io.BytesIO(bytes(data))
        values = self._take_struct(source, self.schema["fields"], version)
        rest = source.read()
        if rest:
            raise ValueError(f"{len(rest)} bytes behind the message")
        return values

    def _fields(self, field):
        name = field["type"].removeprefix("[]")
        return field.get("fields") or self.structs.get(name)

    # Writing

    def _put_struct(self, out, fields, version, values):
        unknown = set(values) - {f["name"] for f in fields}
        if unknown:
            raise KeyError(f"no fields {unknown}")
        for field in fields:
            if _within(version, field["versions"]) and "tag" not in field:
                self._put(out, field, version, values.get(field["name"], self._default(field, version)))
        if self.flexible(version):
            out.write(b"\0")

    def _default(self, field, version):
        kind, default = field["type"], field.get("default")
        if default == "null":
            return None
        if kind.startswith("[]"):
            return []
        if kind == "string":
            return default or ""
        if kind in ("bytes", "records"):
            return b""
        if kind == "uuid":
            return uuid.UUID(int=0)
        if kind == "bool":
            return default in (True, "true")
        if kind in FIXED:
            return int(str(default), 0) if default is not None else 0
        return {}

    def _put_length(self, out, length, version, wide):
        if self.flexible(version):
            _put_uvarint(out, 0 if length is None else length + 1)
        else:
            out.write(struct.pack(">i" if wide else ">h", -1 if length is None else length))

    def _put(self, out, field, version, value):
        kind = field["type"]
        if kind.startswith("[]"):
            self._put_length(out, None if value is None else len(value), version, True)
            one = dict(field, type=kind[2:])
            for v in value or []:
                self._put(out, one, version, v)
        elif kind == "string":
            data = None if value is None else value.encode()
            self._put_length(out, None if data is None else len(data), version, False)
            out.write(data or b"")
        elif kind in ("bytes", "records"):
            self._put_length(out, None if value is None else len(value), version, True)
            out.write(value or b"")
        elif kind == "uuid":
            out.write(value.bytes)
        elif kind in FIXED:
            out.write(struct.pack(">" + FIXED[kind], value))
        else:
            self._put_struct(out, self._fields(field), version, value)

    # Reading

    def _take_struct(self, source, fields, version):
        values = {}
        for field in fields:
            if _within(version, field["versions"]) and "tag" not in field:
                values[field["name"]] = self._take(source, field, version)
        if self.flexible(version):
            tagged = {f["tag"]: f for f in fields if "tag" in f and _within(version, f["taggedVersions"])}
            for _ in range(_take_uvarint(source)):
                tag, size = _take_uvarint(source), _take_uvarint(source)
                data = io.BytesIO(source.read(size))
                if tag in tagged:
                    values[tagged[tag]["name"]] = self._take(data, tagged[tag], version)
        return values

    def _take_length(self, source, version, wide):
        if self.flexible(version):
            length = _take_uvarint(source) - 1
        else:
            length = struct.unpack(">i" if wide else ">h", source.read(4 if wide else 2))[0]
        return None if length < 0 else length

    def _take(self, source, field, version):
        kind = field["type"]
        if kind.startswith("[]"):
            length = self._take_length(source, version, True)
            one = dict(field, type=kind[2:])
            return None if length is None else [self._take(source, one, version) for _ in range(length)]
        if kind == "string":
            length = self._take_length(source, version, False)
            return None if length is None else source.read(length).decode()
        if kind in ("bytes", "records"):
            length = self._take_length(source, version, True)
            return None if length is None else source.read(length)
        if kind == "uuid":
            return uuid.UUID(bytes=source.read(16))
        if kind in FIXED:
            return struct.unpack(">" + FIXED[kind], source.read(struct.calcsize(FIXED[kind])))[0]
        return self._take_struct(source, self._fields(field), version)


def _put_uvarint(out, value):
    while value >= 0x80:
        out.write(bytes([value & 0x7F | 0x80]))
        value >>= 7
    out.write(bytes([value]))


def _take_uvarint(source):
    value = shift = 0
    while True:
        byte = source.read(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value


class Client:
    """A connection that speaks by the schemas."""

    def __init__(self, schemas, connection):
        self.schemas, self.connection = schemas, connection

    def send(self, name, version, values):
        request = self.schemas.request(name)
        body = request.encode(version, values)
        if request.flexible(version):
            body = b"\0" + body
        self.connection.send(request.key, version, body)
        return name, version

    def receive(self, sent):
        name, version = sent
        response = self.schemas.response(name)
        _, reader = self.connection.receive()
        data = bytes(reader.data)
        if response.flexible(version) and name != "ApiVersions":
            if data[0] != 0:
                raise ValueError("tags in a response header")
            data = data[1:]
        return response.decode(version, data)

    def call(self, name, version, values):
        return self.receive(self.send(name, version, values))
