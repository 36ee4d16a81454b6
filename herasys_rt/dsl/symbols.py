"""Symbolic values: what stands for inputs and outputs while a workflow is traced.

A symbol has a type and no value. It may be passed on, alone or in lists and dicts, and
pieces may be taken from it (``node["key"]``, ``node[0]``, ``node[:3]``, ``node.lines()``):
those are symbols again, computed where they are consumed. Asking a symbol for a value is a
fault of the workflow, reported together with all others.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from herasys_rt.errors import Fault, HerasysError
from herasys_rt.graph.shapes import LISTS, Shape
from herasys_rt.graph.spec import Arg
from herasys_rt.graph.types import PortType

_NO_VALUE = "has no value while the workflow is traced"
_BRANCH = (
    "when(condition, then, otherwise) decides by a value when the workflow runs, "
    "map_over(items, function) works on every item of a list, and an @agent is ordinary "
    "code that sees values"
)
_COMPARE = (
    "equals(a, b), less_than(a, b), more_than(a, b), contains(a, b) and negate(a) give "
    f"conditions; {_BRANCH}"
)
_LOOP = f"map_over(items, function) makes a step for every item; {_BRANCH}"
_TEXT = "put {name} into the template and pass name=... to the operator"
_ELSEWHERE = "prepare the value before submitting and pass it as an input"


class Recorder(Protocol):
    """Where symbols report misuse: the trace that made them."""

    def record(self, where: str, problem: str, fits: str = "") -> Fault:
        """Note a fault and let the tracing go on."""
        ...

    def stop(self, fault: Fault) -> HerasysError:
        """The error with which tracing cannot go on after ``fault``."""
        ...

    def express(self, function: str, /, **given: object) -> Node:
        """The symbol of an expression over symbols and literals."""
        ...


class Symbol:
    """A value that will exist when a run executes."""

    __slots__ = ("_name", "_ref", "_region", "_shape", "_trace")

    def __init__(
        self, trace: Recorder, ref: Arg, shape: Shape, name: str, region: str = ""
    ) -> None:
        self._trace = trace
        self._ref = ref
        self._shape = shape
        self._name = name
        self._region = region

    def __repr__(self) -> str:
        return f"<{self._name}: {self._shape}>"

    __hash__ = object.__hash__

    # What cannot go on without a value.

    def _refuse(self, doing: str, instead: str = _BRANCH) -> NoReturn:
        fault = self._trace.record(self._name, f"{_NO_VALUE}, so {doing}", instead)
        raise self._trace.stop(fault)

    def __bool__(self) -> NoReturn:
        self._refuse("nothing can branch on it")

    def __eq__(self, other: object) -> NoReturn:
        self._refuse("it cannot be compared", _COMPARE)

    def __ne__(self, other: object) -> NoReturn:
        self._refuse("it cannot be compared", _COMPARE)

    def __lt__(self, other: object) -> NoReturn:
        self._refuse("it cannot be compared", _COMPARE)

    __le__ = __gt__ = __ge__ = __lt__

    def __iter__(self) -> NoReturn:
        self._refuse("nothing can loop over it", _LOOP)

    def __len__(self) -> NoReturn:
        self._refuse(
            "its length is unknown", "length(items) gives it when the run is there"
        )

    def __contains__(self, item: object) -> NoReturn:
        self._refuse("nothing can be looked up in it", _COMPARE)

    def __index__(self) -> NoReturn:
        self._refuse("it is no number yet", _ELSEWHERE)

    __int__ = __float__ = __index__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # protocols probe for these; absence is the answer
            raise AttributeError(name)
        self._refuse(f".{name} cannot be read", _ELSEWHERE)

    # Pieces of it, computed where they are consumed.

    def __getitem__(self, key: str | int | slice) -> Node:
        """A value of a dict, an item of a list, or a part of a list.

        A key or position that is not there fails the node that uses it
        (``expression_failed``).
        """
        kind = self._shape.type
        if isinstance(key, slice):
            if kind not in LISTS or key.step is not None:
                self._refuse("no part can be taken from it", "lists have parts, [a:b]")
            return self._trace.express("slice", items=self, start=key.start, stop=key.stop)
        taken = kind in LISTS or kind == PortType.EMBEDDED
        if not taken or isinstance(key, bool) or not isinstance(key, str | int):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._refuse(f"no item {key!r} can be taken from it", _ELSEWHERE)
        if kind not in (PortType.JSON, PortType.ANY):
            named = kind == PortType.EMBEDDED
            if isinstance(key, str) != named:
                only = "'chunks' and 'vectors'" if named else "positions"
                self._refuse(f"no item {key!r} can be taken from it", f"it has {only}")
        return self._trace.express("field", value=self, key=key)

    def lines(self) -> Node:
        """The lines of a text that are not blank, trimmed, without list marks in front."""
        if self._shape.type not in (PortType.TEXT, PortType.ANY):
            self._refuse("it has no lines", "only a text has")
        return self._trace.express("lines", text=self)

    # What can go on, so that the faults after it are found too.

    def __str__(self) -> str:
        self._trace.record(self._name, f"{_NO_VALUE}, so it is no text yet", _TEXT)
        return repr(self)

    def __format__(self, spec: str) -> str:
        return str(self)

    def _compute(self, other: object = None) -> Any:
        self._trace.record(
            self._name, f"{_NO_VALUE}, so nothing can be computed from it", _ELSEWHERE
        )
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _compute
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _compute
    __mod__ = __rmod__ = __pow__ = __rpow__ = __or__ = __ror__ = __and__ = _compute
    __neg__ = __pos__ = __abs__ = __invert__ = _compute


class Input(Symbol):
    """An input of the workflow."""

    __slots__ = ()


class Node(Symbol):
    """A value of the workflow: an operator's output, an item, a choice or an expression.

    Pass it to an operator, or return it.
    """

    __slots__ = ()


def ref_of(symbol: Symbol) -> Arg:
    """What the symbol stands for."""
    return symbol._ref  # pyright: ignore[reportPrivateUsage]


def type_of(symbol: Symbol) -> PortType:
    """The type of the value that will be there."""
    return symbol._shape.type  # pyright: ignore[reportPrivateUsage]


def shape_of_symbol(symbol: Symbol) -> Shape:
    """The type of the value that will be there, and whether it may be None."""
    return symbol._shape  # pyright: ignore[reportPrivateUsage]


def region_of(symbol: Symbol) -> str:
    """The id of the region whose item the value belongs to; ``""`` outside of regions."""
    return symbol._region  # pyright: ignore[reportPrivateUsage]


def trace_of(symbol: Symbol) -> Recorder:
    """The trace that the symbol belongs to."""
    return symbol._trace  # pyright: ignore[reportPrivateUsage]
