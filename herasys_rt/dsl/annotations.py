"""From a function's annotations to the declared inputs and outputs of a workflow."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Union

from herasys_rt.dsl.symbols import Symbol
from herasys_rt.errors import Fault
from herasys_rt.graph import codec
from herasys_rt.graph.checks import widened
from herasys_rt.graph.shapes import Shape
from herasys_rt.graph.spec import InputSpec
from herasys_rt.graph.types import PortType, fits

KNOWN = "str, int, float, bool, list[str], list[dict], dict, Any, each also '| None'"

_PLAIN: dict[Any, PortType] = {
    str: PortType.TEXT,
    int: PortType.INT,
    float: PortType.FLOAT,
    bool: PortType.BOOL,
    dict: PortType.JSON,
    list: PortType.JSON,
    Any: PortType.ANY,
    object: PortType.ANY,
}
_ITEMS: dict[Any, PortType] = {str: PortType.TEXTS, dict: PortType.RECORDS}
_NONE = type(None)


def declared_inputs(
    function: Callable[..., Any],
) -> tuple[list[InputSpec], list[Fault]]:
    """The inputs that a workflow's function declares, and what is wrong with them.

    The type comes from the annotation (none: ANY): the plain types that `KNOWN` lists, a
    `PortType` itself, or ``Annotated[..., PortType.X]``. Lists of dicts may be documents,
    chunks, messages or whatever else is made of records: what their keys must be, the
    ports say that they feed. Defaults are copied.
    """
    inputs: list[InputSpec] = []
    faults: list[Fault] = []
    for parameter in inspect.signature(function).parameters.values():
        where = f"input {parameter.name}"
        problem = _unfit(parameter)
        if problem:
            faults.append(Fault(where, problem))
            continue
        try:
            kind, optional = _type_of(parameter.annotation, function)
        except (TypeError, ValueError, NameError, SyntaxError, AttributeError) as e:
            faults.append(Fault(where, f"annotation {e}", f"known are {KNOWN}"))
            kind, optional = PortType.ANY, False
        required = parameter.default is inspect.Parameter.empty
        default = None
        if not required:
            fault = codec.fault_of(parameter.default, "default")
            if fault:
                faults.append(Fault(where, fault))
            else:
                default = widened(codec.frozen(parameter.default), kind)
        inputs.append(InputSpec(parameter.name, kind, required, default, optional))
    return inputs, faults


class DeclaredOutput:
    """What a workflow's function says it returns; `fault` holds outputs against it.

    One type stands for the single output, ``dict[str, T]`` for all of several, a
    `TypedDict` for each by name. Without an annotation, and of ``Node``, ``Any`` or a bare
    ``dict``, anything goes.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.faults: list[Fault] = []
        self._named: dict[str, Shape] | None = None
        self._every: Shape | None = None
        self._single: Shape | None = None
        try:
            self._read(function)
        except (TypeError, ValueError, NameError, SyntaxError, AttributeError) as e:
            fits_here = f"known are {KNOWN}, Node, and dicts of them"
            self.faults.append(Fault("output", f"return annotation {e}", fits_here))

    def check(self, outputs: dict[str, Shape]) -> list[Fault]:
        """What keeps outputs of these shapes from being what was declared."""
        found: list[Fault] = []
        if self._single is not None and list(outputs) != ["output"]:
            problem = f"is {self._single} by its annotation, and a dict is returned"
            found.append(Fault("output", problem))
        for name in self._named or ():
            if name not in outputs:
                found.append(Fault(f"output {name}", "is declared and not returned"))
        for name, shape in outputs.items():
            if self._named is not None and name not in self._named:
                found.append(Fault(f"output {name}", "is returned and not declared"))
            wanted = self._wanted(name)
            if wanted is not None and _misfit(shape, wanted):
                problem = f"is declared as {wanted} and is {shape}"
                found.append(Fault(f"output {name}", problem))
        return found

    def _wanted(self, name: str) -> Shape | None:
        if self._named is not None:
            return self._named.get(name)
        return self._every or self._single

    def _read(self, function: Callable[..., Any]) -> None:
        annotation: Any = inspect.signature(function).return_annotation
        if isinstance(annotation, str):
            annotation = _evaluated(annotation, function)
        if _says_nothing(annotation):
            return
        if typing.is_typeddict(annotation):
            hints = typing.get_type_hints(annotation, include_extras=True)
            self._named = {
                name: Shape(*_resolved(hint))
                for name, hint in hints.items()
                if not _says_nothing(hint)
            }
            return
        if typing.get_origin(annotation) is dict:
            value: Any = typing.get_args(annotation)[1]
            if not _says_nothing(value):
                self._every = Shape(*_resolved(value))
            return
        self._single = Shape(*_resolved(annotation))


def _says_nothing(annotation: Any) -> bool:
    if annotation in (inspect.Signature.empty, Any, object, dict, None):
        return True
    if typing.get_origin(annotation) is list:
        return any(_says_nothing(arg) for arg in typing.get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, Symbol)


def _misfit(shape: Shape, wanted: Shape) -> bool:
    if shape.optional and not wanted.optional:
        return True
    if (shape.type, wanted.type) == (PortType.JSON, PortType.RECORDS):
        return False  # JSON may be a list of dicts, and nothing takes an output further
    return not fits(shape.type, wanted.type)


def _unfit(parameter: inspect.Parameter) -> str:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return "inputs are declared one by one, without * or **"
    if parameter.name.startswith("_"):
        return "names with a leading underscore are reserved"
    return ""


def _type_of(annotation: Any, function: Callable[..., Any]) -> tuple[PortType, bool]:
    if annotation is inspect.Parameter.empty:
        return PortType.ANY, True
    if isinstance(annotation, str):
        annotation = _evaluated(annotation, function)
    return _resolved(annotation)


def _evaluated(text: str, function: Callable[..., Any]) -> Any:
    """What an annotation kept as text means where the function was written."""
    module = sys.modules.get(function.__module__)
    scope: dict[str, Any] = dict(vars(module)) if module else {}
    scope.update(getattr(function, "__globals__", {}))
    scope.update(_captured(function))
    try:
        return eval(text, scope)
    except Exception as e:
        raise NameError(f"{text!r} cannot be read: {e}") from e


def _captured(function: Callable[..., Any]) -> dict[str, Any]:
    """The names that a nested function took along and that have a value by now."""
    code = getattr(function, "__code__", None)
    names: tuple[str, ...] = getattr(code, "co_freevars", ())
    captured: dict[str, Any] = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        try:
            captured[name] = cell.cell_contents
        except ValueError:  # assigned after the decorator has run
            continue
    return captured


def _resolved(annotation: Any) -> tuple[PortType, bool]:
    """(type, whether None is allowed) of an evaluated annotation."""
    if isinstance(annotation, PortType):
        return annotation, False
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        marks = [m for m in annotation.__metadata__ if isinstance(m, PortType)]
        inner = annotation.__origin__
        return (marks[0], _is_optional(inner)) if marks else _resolved(inner)
    if origin in (Union, types.UnionType):
        return _resolved_union(annotation)
    args = typing.get_args(annotation)
    if origin is list and args:
        item = typing.get_origin(args[0]) or args[0]
        return _ITEMS.get(item, PortType.JSON), False
    plain = _PLAIN.get(origin or annotation)
    if plain is None:
        raise TypeError(f"{getattr(annotation, '__name__', annotation)} is no input type")
    return plain, plain is PortType.ANY


def _resolved_union(annotation: Any) -> tuple[PortType, bool]:
    args = typing.get_args(annotation)
    kinds = {_resolved(arg)[0] for arg in args if arg is not _NONE}
    if kinds == {PortType.INT, PortType.FLOAT}:
        kinds = {PortType.FLOAT}
    kind = kinds.pop() if len(kinds) == 1 else PortType.ANY
    return kind, _NONE in args or kind is PortType.ANY


def _is_optional(annotation: Any) -> bool:
    return _NONE in typing.get_args(annotation)
