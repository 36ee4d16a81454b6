"""An output put together from items that were computed elsewhere and the others.

The engine is given the items that are missing and nothing else; the output is what it
would have given for the whole list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from herasys_rt.core.commands import SharedItems
from herasys_rt.core.values import Value
from herasys_rt.errors import (
    EnvironmentFaultError,
    InternalError,
    NodeError,
    ValueLostError,
)
from herasys_rt.graph import codec
from herasys_rt.runtime.objects import ValueStore


class Assembly:
    """What is there of an item's output. ``missing`` are the positions to be computed.

    Items of a value that cannot be had are computed like those that nobody has; ``lost``
    are the places of those that are gone for good.
    """

    def __init__(self, shared: SharedItems, values: ValueStore) -> None:
        self.lost: list[str] = []
        lenders = [self._content(values, value) for value in shared.lenders]
        self._count = shared.count
        self._parts: dict[int, Any] = {}
        self._same: dict[int, int] = {}
        for position, lender, index in shared.borrowed:
            if lender < 0:
                self._same[position] = index
            elif (content := lenders[lender]) is not None:
                self._parts[position] = content[index]
        self._in_array = any(isinstance(content, np.ndarray) for content in lenders)
        there = self._parts.keys() | self._same.keys()
        self.missing = [i for i in range(shared.count) if i not in there]

    @property
    def shared(self) -> int:
        """How many items are not computed."""
        return self._count - len(self.missing)

    def lacking(self, args: Mapping[str, Any], port: str) -> dict[str, Any]:
        """The arguments with only the missing items in the list at ``port``."""
        items = args[port]
        if not isinstance(items, list | tuple) or len(cast(Any, items)) != self._count:
            raise InternalError(
                f"the list at {port!r} is not the one of {self._count} items that was told",
                hint="This should not have happened; please report it with the workflow.",
            )
        return {**args, port: [items[i] for i in self.missing]}

    def whole(self, computed: Any) -> Any:
        """The output, of what was computed for the missing items (anything, when there
        are none). Errors: `NodeError` when that is not one item for each."""
        if self.missing:
            self._check(computed)
            if len(self.missing) == self._count:
                return computed
        parts = dict(self._parts)
        for at, position in enumerate(self.missing):
            parts[position] = computed[at]
        for position, first in self._same.items():
            parts[position] = parts[first]
        ordered = [parts[i] for i in range(self._count)]
        in_array = isinstance(computed, np.ndarray) if self.missing else self._in_array
        return _stacked(ordered) if in_array else ordered

    def _content(self, values: ValueStore, value: Value) -> Any:
        """The decoded value; None when it cannot be had."""
        try:
            return codec.decode(values.unpack(value))
        except ValueLostError:
            self.lost.append(value.place)
        except EnvironmentFaultError:
            pass
        return None

    def _check(self, computed: Any) -> None:
        if not isinstance(computed, list | tuple | np.ndarray):
            raise _not_aligned(f"gave a {type(computed).__name__}")
        many = len(cast(Sequence[Any], computed))
        if many != len(self.missing):
            raise _not_aligned(f"gave {many} items for {len(self.missing)}")
        if self._parts and isinstance(computed, np.ndarray) != self._in_array:
            raise _not_aligned("gave a list once and an array once")


def _stacked(rows: list[Any]) -> NDArray[Any]:
    """Rows of one shape and type as an array."""
    kinds = {(np.shape(row), np.asarray(row).dtype) for row in rows}
    if len(kinds) > 1:
        raise _not_aligned("gave arrays of different shapes or types")
    return np.stack(rows)


def _not_aligned(problem: str) -> NodeError:
    return NodeError(
        f"an operator with a list port {problem}: its output has one item per item of "
        "that list",
        hint="Correct the operator, or declare it without list_port.",
        code="not_aligned",
    )
