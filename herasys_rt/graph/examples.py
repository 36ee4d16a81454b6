"""Values that are valid for a schema, made without a model."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

from herasys_rt.graph.schemas import DEEPEST, Schema, referred, value_fault

Pick = Callable[[int], int]
"""Chooses a number below the given one; the same choices give the same example."""


def _uuid(pick: Pick) -> str:
    return str(uuid.UUID(int=pick(2**64) << 64 | pick(2**64), version=4))


def _date(pick: Pick) -> str:
    return f"{2000 + pick(30)}-{1 + pick(12):02}-{1 + pick(28):02}"


def _time(pick: Pick) -> str:
    return f"{pick(24):02}:{pick(60):02}:{pick(60):02}Z"


def _host(pick: Pick) -> str:
    return f"host-{pick(10_000)}.example.org"


_MADE: dict[str, Callable[[Pick], str]] = {
    "date": _date,
    "time": _time,
    "date-time": lambda pick: f"{_date(pick)}T{_time(pick)}",
    "duration": lambda pick: f"P{1 + pick(30)}DT{pick(24)}H",
    "email": lambda pick: f"user-{pick(10_000)}@example.org",
    "hostname": _host,
    "ipv4": lambda pick: f"192.0.2.{pick(256)}",  # for documentation: RFC 5737
    "ipv6": lambda pick: f"2001:db8::{pick(2**16):x}",  # likewise: RFC 3849
    "uri": lambda pick: f"https://{_host(pick)}/page",
    "uuid": _uuid,
}
"""Format -> a text that has it."""


def example(schema: Schema, pick: Pick) -> Any:
    """A value that is valid for a supported schema; ``pick(n)`` chooses below n.

    Texts with a pattern come from the schema's own examples, those with a format from
    there or are made. Errors: `ValueError` naming the place in the schema when there is no
    such text, or when every value would be endless.
    """
    return _Example(schema, pick).of(schema, 0, "#")


class _Example:
    """Makes one valid value, walking down the schema."""

    def __init__(self, root: Schema, pick: Pick) -> None:
        self._root = root
        self._pick = pick

    def of(self, schema: Any, depth: int, where: str) -> Any:
        if depth > 2 * DEEPEST:
            raise ValueError("every value of the schema would be endless")
        if not isinstance(schema, dict):
            return None
        known = cast("Schema", schema)
        if "$ref" in known:
            ref = known["$ref"]
            return self.of(referred(ref, self._root), depth + 1, ref)
        if "const" in known:
            return known["const"]
        if "enum" in known:
            return known["enum"][self._pick(len(known["enum"]))]
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in known:
                taken = self._branch(known[keyword], depth)
                return self.of(
                    known[keyword][taken], depth + 1, f"{where}/{keyword}/{taken}"
                )
        return self._typed(known, depth, where)

    def _branch(self, branches: list[Any], depth: int) -> int:
        """Any branch near the top; further down the ones that come to an end first."""
        if depth < 4:
            return self._pick(len(branches))
        return min(range(len(branches)), key=lambda i: "$ref" in json.dumps(branches[i]))

    def _typed(self, schema: Schema, depth: int, where: str) -> Any:
        kind = schema.get("type", "null")
        kind = kind if isinstance(kind, str) else kind[self._pick(len(kind))]
        match kind:
            case "object":
                return self._object(schema, depth, where)
            case "array":
                return self._array(schema, depth, where)
            case "string":
                return self._text(schema, where)
            case "integer" | "number":
                return self._number(schema, whole=kind == "integer")
            case "boolean":
                return bool(self._pick(2))
            case _:
                return None

    def _object(self, schema: Schema, depth: int, where: str) -> Schema:
        required = schema.get("required", ())
        named = cast("Mapping[str, Any]", schema.get("properties", {}))
        kept = [name for name in named if depth < 4 or name in required]
        inside = f"{where}/properties"
        return {name: self.of(named[name], depth + 1, f"{inside}/{name}") for name in kept}

    def _array(self, schema: Schema, depth: int, where: str) -> list[Any]:
        first = [
            self.of(part, depth + 1, f"{where}/prefixItems/{i}")
            for i, part in enumerate(schema.get("prefixItems", ()))
        ]
        least = schema.get("minItems", 0)
        count = max(least, min(schema.get("maxItems", 2), 2)) if depth < 4 else least
        items = schema.get("items", not first)
        if items is False:
            return first
        more = range(len(first), count)
        return first + [self.of(items, depth + 1, f"{where}/items") for _ in more]

    def _text(self, schema: Schema, where: str) -> str:
        if "pattern" in schema or "format" in schema:
            return self._formed(schema, where)
        text = f"text-{self._pick(10_000)}"
        least, most = schema.get("minLength", 0), schema.get("maxLength", len(text))
        return text.ljust(least, "x")[: max(most, least)]

    def _formed(self, schema: Schema, where: str) -> str:
        """A text with a pattern or a format: an example, or one of that format."""
        known: list[Any] = [*schema.get("examples", ()), schema.get("default")]
        if "format" in schema:
            known.append(_MADE[schema["format"]](self._pick))
        for found in known:
            if isinstance(found, str) and value_fault(found, schema) is None:
                return found
        asked = [f"{k} {schema[k]!r}" for k in ("pattern", "format") if k in schema]
        raise ValueError(
            f"{where} asks for a text with {' and '.join(asked)}, "
            "and has no example of one under 'examples'"
        )

    def _number(self, schema: Schema, whole: bool) -> float | int:
        step = schema.get("multipleOf", 1 if whole else 0.5)
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        if low is None:
            low = 0 if high is None else high - 10 * step
        first = -(-low // step) * step
        found = [first + i * step for i in range(12)]
        if whole:
            found = [int(value) for value in found]
        fitting = [value for value in found if value_fault(value, schema) is None]
        if not fitting:
            middle = low if high is None else (low + high) / 2
            return int(middle) if whole else middle
        return fitting[self._pick(len(fitting))]
