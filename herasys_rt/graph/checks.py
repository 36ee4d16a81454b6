"""Whether one value may stand at one port: type, range, emptiness, finiteness.

The single home of these rules: graphs are checked by them when they are built, inputs
when a run is submitted.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from herasys_rt.graph.spec import Constraint, Port
from herasys_rt.graph.types import PortType, describe, value_fault

ITEM_TYPES: dict[PortType, PortType] = {
    PortType.TEXTS: PortType.TEXT,
    PortType.CHUNKS: PortType.JSON,
    PortType.DOCUMENTS: PortType.JSON,
    PortType.RECORDS: PortType.JSON,
    PortType.JSON: PortType.ANY,
    PortType.ANY: PortType.ANY,
}
"""Port types that take a list of arguments, and what each item of the list must be."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` for the known name closest to ``name``, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def widened(value: Any, wanted: PortType) -> Any:
    """The value as its port takes it: an int where a float is wanted becomes one."""
    if wanted == PortType.FLOAT and type(value) is int:
        return float(value)
    return value


def port_fault(value: Any, port: Port) -> str | None:
    """Why a concrete value may not stand at a port; None when it may."""
    if value is None:
        return None if port.optional else f"expected {port.type.value} and got None"
    return value_fault(value, port.type) or constraint_fault(value, port.constraint)


def constraint_fault(value: Any, constraint: Constraint) -> str | None:
    """Why a value of the right type breaks a constraint; None when it does not."""
    if constraint.non_empty and is_empty(value):
        return "is empty"
    if constraint.choices and not (isinstance(value, str) and value in constraint.choices):
        allowed = ", ".join(repr(c) for c in constraint.choices)
        return f"must be one of {allowed}, got {describe(value)}"
    if isinstance(value, int | float):
        return _range_fault(value, constraint)
    return None


def is_empty(value: Any) -> bool:
    """Whether a value is blank text, or a list or array without items."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, np.ndarray):
        return value.size == 0
    return isinstance(value, list | tuple | dict) and not value


def finite_fault(value: Any, path: str) -> str | None:
    """The path of the first NaN or infinity in a value; None when all is finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{path} is {value}, no finite number"
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        return None if finite else f"{path} holds NaN or infinite numbers"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        faults = (finite_fault(item, f"{path}.{key}") for key, item in items)
    elif isinstance(value, list | tuple):
        parts = cast("list[Any]", value)
        faults = (finite_fault(item, f"{path}[{i}]") for i, item in enumerate(parts))
    else:
        return None
    return next((fault for fault in faults if fault), None)


def _range_fault(value: float, constraint: Constraint) -> str | None:
    low, high = constraint.minimum, constraint.maximum
    if low is not None and value < low:
        return f"must be at least {low:g}, got {value}"
    if high is not None and value > high:
        return f"must be at most {high:g}, got {value}"
    return None
