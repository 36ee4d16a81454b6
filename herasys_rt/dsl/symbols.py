"""Symbolic values: what stands for inputs and outputs while a workflow is traced.

A symbol has a type and no value. It may be passed on, alone or in a list; asking it for
a value is a fault of the workflow, reported together with all others.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from herasys_rt.errors import Fault, HerasysError
from herasys_rt.graph.spec import InputRef, NodeRef
from herasys_rt.graph.types import PortType

_NO_VALUE = "has no value while the workflow is traced"
_BRANCH = "return both results in a dict, or decide outside and submit one of two workflows"
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


class Symbol:
    """A value that will exist when a run executes."""

    __slots__ = ("_name", "_ref", "_trace", "_type")

    def __init__(
        self, trace: Recorder, ref: InputRef | NodeRef, kind: PortType, name: str
    ) -> None:
        self._trace = trace
        self._ref = ref
        self._type = kind
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}: {self._type.value}>"

    __hash__ = object.__hash__

    # What cannot go on without a value.

    def _refuse(self, doing: str, instead: str = _BRANCH) -> NoReturn:
        fault = self._trace.record(self._name, f"{_NO_VALUE}, so {doing}", instead)
        raise self._trace.stop(fault)

    def __bool__(self) -> NoReturn:
        self._refuse("nothing can branch on it")

    def __eq__(self, other: object) -> NoReturn:
        self._refuse("it cannot be compared")

    def __ne__(self, other: object) -> NoReturn:
        self._refuse("it cannot be compared")

    def __lt__(self, other: object) -> NoReturn:
        self._refuse("it cannot be compared")

    __le__ = __gt__ = __ge__ = __lt__

    def __iter__(self) -> NoReturn:
        self._refuse("nothing can loop over it", _ELSEWHERE)

    def __len__(self) -> NoReturn:
        self._refuse("its length is unknown", _ELSEWHERE)

    def __contains__(self, item: object) -> NoReturn:
        self._refuse("nothing can be looked up in it")

    def __getitem__(self, key: object) -> NoReturn:
        self._refuse("no item can be taken from it", _ELSEWHERE)

    def __index__(self) -> NoReturn:
        self._refuse("it is no number yet", _ELSEWHERE)

    __int__ = __float__ = __index__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # protocols probe for these; absence is the answer
            raise AttributeError(name)
        self._refuse(f".{name} cannot be read", _ELSEWHERE)

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
    """The output of an operator: pass it to another one, or return it."""

    __slots__ = ()


def ref_of(symbol: Symbol) -> InputRef | NodeRef:
    """What the symbol stands for."""
    return symbol._ref  # pyright: ignore[reportPrivateUsage]


def type_of(symbol: Symbol) -> PortType:
    """The type of the value that will be there."""
    return symbol._type  # pyright: ignore[reportPrivateUsage]


def trace_of(symbol: Symbol) -> Recorder:
    """The trace that the symbol belongs to."""
    return symbol._trace  # pyright: ignore[reportPrivateUsage]
