"""The value types that travel along edges, and what fits where.

A value on an edge is a plain Python value of the closed set that `graph.codec` can
write: None, bool, int, float, str, bytes, list, dict with string keys, ndarray. A
`PortType` names a shape within that set; edges are checked by it when a graph is built
and inputs when a run is submitted.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import numpy as np


class PortType(enum.StrEnum):
    """The type of a port.

    TEXT str; TEXTS list[str]; INT, FLOAT, BOOL scalars; VECTOR float32 ndarray of shape
    (dim,); VECTORS float32 (n, dim); CHUNKS list of dicts with at least ``id`` (str),
    ``text`` (str), ``source`` (str: what the chunk was cut from) and, from retrieval on,
    ``score`` (float, larger is better); DOCUMENTS list of dicts with ``id``, ``text`` and
    optional ``metadata``; RECORDS list of dicts of any keys, which may turn out to be one
    of the two; EMBEDDED dict(chunks=CHUNKS, vectors=VECTORS); JSON anything codable; ANY
    whatever arrives.
    """

    TEXT = "text"
    TEXTS = "texts"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    VECTOR = "vector"
    VECTORS = "vectors"
    CHUNKS = "chunks"
    DOCUMENTS = "documents"
    RECORDS = "records"
    EMBEDDED = "embedded"
    JSON = "json"
    ANY = "any"


_WIDENS: dict[PortType, frozenset[PortType]] = {
    PortType.INT: frozenset({PortType.FLOAT}),
    PortType.CHUNKS: frozenset({PortType.RECORDS}),
    PortType.DOCUMENTS: frozenset({PortType.RECORDS}),
    # Which keys they have is known with the value, which whoever takes it looks at.
    PortType.RECORDS: frozenset({PortType.CHUNKS, PortType.DOCUMENTS}),
}
"""Produced type -> other port types that take it besides itself, JSON and ANY."""


def fits(produced: PortType, wanted: PortType) -> bool:
    """Whether an edge may lead from a ``produced`` value to a ``wanted`` port."""
    if produced == wanted or PortType.ANY in (produced, wanted):
        return True
    if wanted == PortType.JSON:
        return produced not in (PortType.VECTOR, PortType.VECTORS)
    return wanted in _WIDENS.get(produced, frozenset())


def value_fault(value: Any, wanted: PortType) -> str | None:
    """Why a concrete value does not fit ``wanted``; None when it fits."""
    check = _CHECKS.get(wanted)
    if check is None or check(value):
        return None
    return f"expected {wanted.value}, got {describe(value)}"


def describe(value: Any) -> str:
    """A short name of a value for messages: its type and, if small, itself."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict)
        for item in value  # pyright: ignore[reportUnknownVariableType]
    )


def _has_texts(value: Any) -> bool:
    return _is_records(value) and all(isinstance(item.get("text"), str) for item in value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_CHECKS: dict[PortType, Callable[[Any], bool]] = {
    PortType.TEXT: _is_text,
    PortType.TEXTS: lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v),  # pyright: ignore
    PortType.INT: _is_int,
    PortType.FLOAT: _is_float,
    PortType.BOOL: _is_bool,
    PortType.VECTOR: lambda v: isinstance(v, np.ndarray) and v.ndim == 1,  # pyright: ignore
    PortType.VECTORS: lambda v: isinstance(v, np.ndarray) and v.ndim == 2,  # pyright: ignore
    PortType.CHUNKS: _has_texts,
    PortType.DOCUMENTS: _has_texts,
    PortType.RECORDS: _is_records,
    PortType.EMBEDDED: lambda v: isinstance(v, dict) and {"chunks", "vectors"} <= set(v),  # pyright: ignore
}
