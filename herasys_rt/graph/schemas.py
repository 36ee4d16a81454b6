"""JSON schemas of structured answers: what is supported, and what guides the model.

A schema travels as JSON text, because the order of its properties is the order in which
the model writes them. It is refused when a graph is built if it says anything that
guided decoding would not hold the model to; what guides the model (`guide`) is never
wider than the schema itself, so that every finished answer is valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

Schema = dict[str, Any]

LONGEST_CHARS = 64 * 1024
"""Most characters of a schema's text."""
DEEPEST = 32
"""Most schemas inside each other."""
EXACT_INT = 2**53 - 1
"""Integers up to here are exact in every JSON reader; unbounded ones end here."""
LARGEST_NUMBER = 1e15
"""Numbers without a bound end here, written without an exponent."""
NUMBER_STEP = 1e-9
"""Numbers that cannot be negative have at most nine decimals."""

FORMATS = frozenset(
    (
        *("date", "date-time", "time", "duration"),
        *("email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    )
)
_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated"),
        *("readOnly", "writeOnly", "$comment", "$schema", "discriminator"),
    )
)
_SUPPORTED = frozenset(
    (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf"),
        *("$ref", "$defs", "definitions"),
        *("properties", "required", "additionalProperties"),
        *("items", "prefixItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties")
"""Keywords with schemas inside: by name, in a list, one."""
_INSTEAD = {
    "uniqueItems": "bound the list with maxItems and remove duplicates afterwards",
    "patternProperties": "use additionalProperties with one schema for every value",
    "minProperties": "name the properties and require them",
    "maxProperties": "name the properties and require them",
    "not": "list what is allowed: enum or anyOf",
    "if": "write the cases as anyOf",
    "contains": "describe all items with 'items'",
    "$id": "leave it out",
}
_BOUNDS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)
_UNGUIDED = re.compile(r"\(\?(?:[=!]|<[=!]|P=)|\\[1-9]")
"""Look-around and back references: no grammar knows them."""


class SchemaFault(NamedTuple):
    """What is wrong with a schema: where (a JSON pointer), what, and what to do instead."""

    where: str
    problem: str
    fits: str = ""


def schema_text(given: object) -> tuple[str, list[SchemaFault]]:
    """The JSON text of a schema, and every fault of it.

    ``given`` is a pydantic model class (anything with ``model_json_schema``) or a dict.
    Equal schemas give equal text; only the order of keys matters.
    """
    maker = getattr(given, "model_json_schema", None)
    if maker is not None:
        given = maker()
    if not isinstance(given, dict):
        fits = "a pydantic model class or a dict with a JSON schema"
        return "", [SchemaFault("", f"is {type(given).__name__}, no schema", fits)]
    try:
        text = json.dumps(given, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as e:
        return "", [SchemaFault("", f"cannot be written as JSON: {e}")]
    return text, faults_of(json.loads(text))


def faults_of(schema: Schema) -> list[SchemaFault]:
    """Every fault of a schema; an empty list when answers can be held to it."""
    size = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    if size > LONGEST_CHARS:
        return [
            SchemaFault("", f"has {size} characters, at most {LONGEST_CHARS} are taken")
        ]
    malformed = _malformed(schema)
    if malformed is not None:
        return [malformed]
    return list(_faults(schema, schema, "#", 0))


def guide(schema: Schema) -> Schema:
    """The schema that guides the model: as narrow as ``schema`` or narrower.

    Objects have no other properties than the named ones; numbers are finite, with a
    bounded count of digits; where anything may stand, a scalar does.
    """
    return cast("Schema", _guided(schema))


def bounded(schema: Schema, chars: int) -> Schema:
    """The schema with at most ``chars`` characters in every text that has no bound."""
    return cast("Schema", _bounded(schema, chars))


def embedded(schema: Schema, name: str, shared: Schema) -> Schema:
    """The schema as a part of another one whose ``$defs`` are ``shared``: its own
    definitions go there under names that begin with ``name``."""

    def moved(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        inner = _rebuilt(cast("Schema", part), moved)
        ref = inner.get("$ref")
        if ref is not None:
            target = ref.split("/")[-1] if ref != "#" else ""
            inner["$ref"] = f"#/$defs/{name}.{target}"
        return inner

    whole = cast("Schema", moved(schema))
    for keyword in ("$defs", "definitions"):
        for target, part in whole.pop(keyword, {}).items():
            shared[f"{name}.{target}"] = part
    if '"$ref": "#"' in json.dumps(schema):
        shared[f"{name}."] = whole
    return whole


def value_fault(value: Any, schema: Schema) -> str | None:
    """Why a value is not valid; None when it is. Formats are not looked at."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match as best  # pyright: ignore[reportUnknownVariableType]

    error = cast("Any", best(Draft202012Validator(schema).iter_errors(value)))  # pyright: ignore
    if error is None:
        return None
    where = "/".join(str(part) for part in error.absolute_path)
    return f"{where or 'the value'}: {error.message[:200]}"


# Faults


def _malformed(schema: Schema) -> SchemaFault | None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)  # pyright: ignore
    except SchemaError as e:
        where = "/".join(["#", *(str(part) for part in e.absolute_path)])
        return SchemaFault(where, f"is no JSON schema: {e.message[:200]}")
    except RecursionError:
        return SchemaFault("", f"is nested deeper than {DEEPEST}")
    return None


def _faults(schema: Any, root: Schema, where: str, depth: int) -> Iterator[SchemaFault]:
    if isinstance(schema, bool):
        return
    if depth > DEEPEST:
        yield SchemaFault(where, f"is nested deeper than {DEEPEST}")
        return
    known = cast("Schema", schema)
    for keyword in known:
        if keyword not in _SUPPORTED and keyword not in _ANNOTATIONS:
            fits = _INSTEAD.get(keyword, "leave it out and check it afterwards")
            yield SchemaFault(where, f"{keyword!r} is not supported", fits)
    yield from _bound_faults(known, where)
    yield from _text_faults(known, where)
    yield from _object_faults(known, where)
    yield from _choice_faults(known, root, where)
    for name, part in _parts(known):
        yield from _faults(part, root, f"{where}/{name}", depth + 1)


def _bound_faults(schema: Schema, where: str) -> Iterator[SchemaFault]:
    for low, high in _BOUNDS:
        if low in schema and high in schema and schema[low] > schema[high]:
            problem = f"{low} {schema[low]} is above {high} {schema[high]}"
            yield SchemaFault(where, problem)
    step = schema.get("multipleOf", 1)
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1))
    if "multipleOf" in schema and (low < 0 or step != int(step)):
        problem = "multipleOf is supported for whole steps and from 0 upwards"
        yield SchemaFault(where, problem, "add minimum: 0, count in the smallest unit")


def _text_faults(schema: Schema, where: str) -> Iterator[SchemaFault]:
    pattern = schema.get("pattern")
    if pattern is not None and _UNGUIDED.search(pattern):
        problem = f"pattern {pattern!r} uses look-around or back references"
        yield SchemaFault(where, problem, "write it without them")
    name = schema.get("format")
    if name is not None and name not in FORMATS:
        fits = f"one of {', '.join(sorted(FORMATS))}, or a pattern"
        yield SchemaFault(where, f"format {name!r} is not supported", fits)


def _object_faults(schema: Schema, where: str) -> Iterator[SchemaFault]:
    properties: Schema | None = schema.get("properties")
    if properties is None:
        return
    for name in schema.get("required", ()):
        if name not in properties:
            fits = "describe it under properties"
            yield SchemaFault(where, f"requires {name!r}, which has no schema", fits)


def _choice_faults(schema: Schema, root: Schema, where: str) -> Iterator[SchemaFault]:
    ref = schema.get("$ref")
    if ref is not None and referred(ref, root) is None:
        problem = f"refers to {ref!r}, which is not in the schema"
        yield SchemaFault(where, problem, "a reference looks like #/$defs/NAME")
    if "enum" in schema and not schema["enum"]:
        yield SchemaFault(where, "enum is empty")
    if len(schema.get("allOf", ())) > 1:
        fits = "write one schema with all that must hold"
        yield SchemaFault(where, "allOf of several schemas is not supported", fits)
    branches = schema.get("oneOf")
    if branches and not _disjoint(branches, root):
        problem = "oneOf of schemas that one value may satisfy together is not supported"
        yield SchemaFault(where, problem, "use anyOf, or a constant in each that tells it")


def _disjoint(branches: list[Any], root: Schema) -> bool:
    """Whether types, or the constants of one required property, tell branches apart."""
    found = [_resolved(branch, root) for branch in branches]
    types = [branch.get("type") for branch in found]
    plain = [kind for kind in types if isinstance(kind, str)]
    numeric = {"integer", "number"} <= set(plain)
    if len(plain) == len(found) == len(set(plain)) and not numeric:
        return True
    shared: set[str] = set(found[0].get("properties", ()))
    for branch in found:
        shared &= set(branch.get("required", ()))
    return any(_told_apart(found, name, root) for name in sorted(shared))


def _told_apart(branches: list[Schema], name: str, root: Schema) -> bool:
    seen: list[str] = []
    for branch in branches:
        tag = _resolved(branch["properties"].get(name, {}), root)
        values = tag.get("enum", [tag["const"]] if "const" in tag else [])
        if not values:
            return False
        seen.extend(json.dumps(value) for value in values)
    return len(seen) == len(set(seen))


def _resolved(schema: Any, root: Schema) -> Schema:
    for _ in range(DEEPEST):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = referred(cast("Schema", schema)["$ref"], root)
    return cast("Schema", schema) if isinstance(schema, dict) else {}


def referred(ref: str, root: Schema) -> Any:
    """What a local reference of a schema refers to; None for any other."""
    if ref == "#":
        return root
    parts = ref.split("/")
    if len(parts) != 3 or parts[0] != "#" or parts[1] not in ("$defs", "definitions"):
        return None
    name = parts[2].replace("~1", "/").replace("~0", "~")
    return root.get(parts[1], {}).get(name)


def _parts(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside a schema, each with its place."""
    for keyword in _MAPS:
        for name, part in schema.get(keyword, {}).items():
            yield f"{keyword}/{name}", part
    for keyword in _SINGLES:
        if keyword in schema:
            yield keyword, schema[keyword]
    for keyword in _LISTS:
        for i, part in enumerate(schema.get(keyword, ())):
            yield f"{keyword}/{i}", part


# Guiding

_SCALAR: Schema = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "number",
            "minimum": -LARGEST_NUMBER,
            "maximum": LARGEST_NUMBER,
        },
        {"type": "boolean"},
        {"type": "null"},
    ]
}


def _guided(schema: Any) -> Any:
    if schema is True or (isinstance(schema, dict) and not (set(schema) - _ANNOTATIONS)):  # pyright: ignore[reportUnknownArgumentType]
        return _SCALAR
    if schema is False:
        return False
    narrow = {k: v for k, v in cast("Schema", schema).items() if k not in _ANNOTATIONS}
    narrow = _rebuilt(narrow, _guided)
    if "oneOf" in narrow:  # its schemas exclude each other, or it was refused
        narrow["anyOf"] = narrow.pop("oneOf")
    if "enum" not in narrow and "const" not in narrow:
        _narrow_types(narrow)
    return narrow


def _rebuilt(schema: Schema, change: Callable[[Any], Any]) -> Schema:
    """A copy with every schema directly inside changed."""
    copy = dict(schema)
    for keyword in _MAPS:
        if keyword in copy:
            parts = cast("Schema", copy[keyword])
            copy[keyword] = {name: change(part) for name, part in parts.items()}
    for keyword in _LISTS:
        if keyword in copy:
            copy[keyword] = [change(part) for part in copy[keyword]]
    for keyword in _SINGLES:
        if keyword in copy:
            copy[keyword] = change(copy[keyword])
    return copy


def _bounded(schema: Any, chars: int) -> Any:
    if not isinstance(schema, dict):
        return schema
    copy = _rebuilt(cast("Schema", schema), lambda part: _bounded(part, chars))
    kind = copy.get("type", ())
    fixed = ("enum", "const", "pattern", "format", "maxLength")
    if (kind == "string" or "string" in kind) and not any(k in copy for k in fixed):
        copy["maxLength"] = max(chars, copy.get("minLength", 0))
    return copy


def _narrow_types(schema: Schema) -> None:
    kind = schema.get("type", ())
    kinds = {kind} if isinstance(kind, str) else set(kind)
    if "properties" in schema:
        schema["additionalProperties"] = False
    elif "object" in kinds:
        schema.setdefault("additionalProperties", _SCALAR)
    if "array" in kinds:
        schema.setdefault("items", False if "prefixItems" in schema else _SCALAR)
    if kinds & {"integer", "number"}:
        _bound_numbers(schema, whole="number" not in kinds)


def _bound_numbers(schema: Schema, whole: bool) -> None:
    most = EXACT_INT if whole else LARGEST_NUMBER
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        schema["minimum"] = low = -most if high is None or high > -most else 10 * high
    if high is None:
        schema["maximum"] = most if low < most else 10 * low
    if not whole and low >= 0:  # the grammar knows no negative multiples
        schema.setdefault("multipleOf", NUMBER_STEP)
