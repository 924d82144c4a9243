"""JSON Schema, as much of it as schemas made from Rust types use: type, enum, const, properties, required, additionalProperties, items,
prefixItems, bounds, anyOf, oneOf, allOf and $ref within the document. A keyword that isn't known here is a problem, not passed over."""

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
NOTES = {"$schema", "$defs", "title", "description", "format", "default", "examples"}
KNOWN = NOTES | {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems",
                 "minimum", "maximum", "anyOf", "oneOf", "allOf", "$ref"}


def problems(schema, value, root=None, path="$"):
    """What of `value` isn't as `schema` says: a list of sentences."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return [] if schema else [f"{path}: nothing is allowed here"]
    found = [f"{path}: the schema's keyword {word} isn't known" for word in set(schema) - KNOWN]
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        found += problems(target, value, root, path)
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(is_of(kind, value) for kind in kinds):
            return found + [f"{path}: {value!r:.60} isn't {' or '.join(kinds)}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} isn't one of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{path}: {value!r} isn't {schema['const']!r}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            found.append(f"{path}: {value} is out of bounds")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{path}: {name} is missing" for name in schema.get("required", []) if name not in value]
        for name, inner in value.items():
            found += problems(known.get(name, schema.get("additionalProperties", True)), inner, root, f"{path}.{name}")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{path}: {len(value)} items")
        first = schema.get("prefixItems", [])
        for index, inner in enumerate(value):
            one = first[index] if index < len(first) else schema.get("items", True)
            found += problems(one, inner, root, f"{path}[{index}]")
    for inner in schema.get("allOf", []):
        found += problems(inner, value, root, path)
    for word in ("anyOf", "oneOf"):
        if word in schema and all(problems(inner, value, root, path) for inner in schema[word]):
            found.append(f"{path}: {value!r:.60} is none of {word}")
    return found


def is_of(kind, value):
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, TYPES[kind])
