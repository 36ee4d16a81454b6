"""The two facts of a value that decisions need: whether it is true, and how long it is.

Branches are decided by truth and regions sized by length, by whoever has no access to the
value itself; so whoever makes a value tells both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import numpy as np

from herasys_rt.graph.spec import WorkflowSpec


class Fact(msgspec.Struct, frozen=True):
    """The two facts of a run's input; see `fact_of`."""

    truth: bool = True
    length: int = -1
    items: tuple[bytes, ...] = ()


def fact_of(value: Any) -> tuple[bool, int]:
    """``(truth, length)`` of a value.

    Truth is as Python's `bool` says, but a blank text is false and an array is true when
    it is not empty. The length is that of a list, and -1 for anything else.
    """
    return is_true(value), _length(value)


def is_true(value: Any) -> bool:
    """Whether a value counts as true in a condition; see `fact_of`."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, np.ndarray):
        return cast("np.ndarray[Any, Any]", value).size > 0
    return bool(value)


def facts_of(spec: WorkflowSpec, inputs: Mapping[str, Any]) -> dict[str, Fact]:
    """The facts of the inputs that regions, guards and choices of ``spec`` ask for.

    ``inputs`` are checked inputs with defaults filled in.
    """
    return {name: Fact(*fact_of(inputs[name])) for name in spec.asked_inputs}


def _length(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list | tuple) else -1
