"""Values computed where they are consumed: the functions behind `Expr`, and `resolve`.

Each function is pure and cheap, and the registry is closed: an expression in a spec from
the wire can do nothing else. Three are forms of the language rather than functions:

- ``choose(condition, then, otherwise)`` computes only the side that is taken;
- ``each(items, item, body)`` computes ``body`` once per item of the list ``items``, with
  the reference ``item`` standing for the item;
- ``own(node, item)``, in such a body, is of a region's node the one output that belongs to
  the item.

What an expression cannot compute is its consumer's error: a `NodeError` with the code
``expression_failed``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from herasys_rt.errors import InternalError, NodeError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import is_empty
from herasys_rt.graph.facts import is_true
from herasys_rt.graph.shapes import LISTS
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
)
from herasys_rt.graph.template import TemplateError, template_parts
from herasys_rt.graph.text import lines_of, text_of, texts_of
from herasys_rt.graph.types import PortType, describe

FORMS = ("choose", "each", "own")
"""Expressions that decide themselves which of their arguments are computed."""

_MISSING: Any = object()


class ExpressionFault(Exception):
    """Why a function has no result for its arguments; `resolve` adds where."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


class Parameter(NamedTuple):
    """What a function's argument may be: any of ``types`` (empty: whatever there is)."""

    types: tuple[PortType, ...] = ()
    required: bool = True
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the registry: its arguments by name, and what computes it.

    ``variadic`` takes further arguments of any name and type.
    """

    name: str
    parameters: Mapping[str, Parameter]
    variadic: bool
    compute: Callable[..., Any]


FUNCTIONS: dict[str, Function] = {}
"""Every function that an `Expr` may name, the forms aside."""


def resolve(
    args: Mapping[str, Arg],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    *,
    item: Any = _MISSING,
) -> dict[str, Any]:
    """Concrete argument values.

    ``inputs`` are the run's, ``outputs`` the values of nodes by id: of a node in another
    region the list of its outputs in the items' order; a node on a branch not taken is
    left out. ``item`` is the item of the region that the arguments' node is in. Of a
    choice only the taken side is looked at.

    Errors: `NodeError` (``expression_failed``) naming argument and expression.
    """
    scope = _Scope(inputs, outputs, item)
    values: dict[str, Any] = {}
    for name, arg in args.items():
        try:
            values[name] = _value(arg, scope)
        except _Located as e:
            raise NodeError(
                f"{name.removeprefix('var:')!r} cannot be computed: {e.function}: "
                f"{e.fault.problem}",
                code="expression_failed",
                hint=e.fault.hint or "Look at the value that the expression was given.",
                argument=name,
                expression=e.function,
            ) from None
    return values


@dataclass(frozen=True, slots=True)
class _Scope:
    """What references mean while an argument is computed."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    item: Any
    items: Mapping[str, Any] = field(default_factory=dict[str, Any])
    at: Mapping[str, int] = field(default_factory=dict[str, int])

    def node(self, name: str) -> Any:
        if name not in self.outputs:
            raise InternalError(f"node {name!r} has no value where it is used")
        return self.outputs[name]

    def bound(self, region: str) -> Any:
        if region in self.items:
            return self.items[region]
        if self.item is _MISSING:
            raise InternalError(f"no item of region {region!r} where it is used")
        return self.item


class _Located(Exception):
    """A fault with the expression that it arose in."""

    def __init__(self, function: str, fault: ExpressionFault) -> None:
        super().__init__(function)
        self.function = function
        self.fault = fault


def _value(arg: Arg, scope: _Scope) -> Any:
    match arg:
        case Lit(value):
            return value
        case InputRef(name):
            return scope.inputs[name]
        case NodeRef(node):
            return scope.node(node)
        case ItemRef(region):
            return scope.bound(region)
        case ListRef(items):
            return [_value(item, scope) for item in items]
        case ChoiceRef(condition, then, otherwise):
            taken = then if is_true(_value(condition, scope)) else otherwise
            return _value(taken, scope)
        case Expr():
            return _computed(arg, scope)


def _computed(expr: Expr, scope: _Scope) -> Any:
    try:
        if expr.function == "choose":
            taken = is_true(_value(expr.args["condition"], scope))
            return _value(expr.args["then" if taken else "otherwise"], scope)
        if expr.function == "each":
            return _each(expr, scope)
        if expr.function == "own":
            return _own(expr, scope)
        function = FUNCTIONS.get(expr.function)
        if function is None:
            raise ExpressionFault("there is no such expression", _known())
        given = {name: _value(arg, scope) for name, arg in expr.args.items()}
        result = call(function, given)
    except ExpressionFault as e:
        raise _Located(expr.function, e) from None
    return result


def call(function: Function, given: Mapping[str, Any]) -> Any:
    """The function's result. Errors: `ExpressionFault`."""
    fixed = {n: given[n] for n in function.parameters if n in given}
    if function.variadic:
        return function.compute({n: v for n, v in given.items() if n not in fixed}, **fixed)
    return function.compute(**fixed)


def _each(expr: Expr, scope: _Scope) -> list[Any]:
    bound = expr.args["item"]
    if not isinstance(bound, ItemRef):
        raise ExpressionFault("'item' is no reference to an item")
    made: list[Any] = []
    for position, item in enumerate(_list("items", _value(expr.args["items"], scope))):
        inner = replace(
            scope,
            items={**scope.items, bound.region: item},
            at={**scope.at, bound.region: position},
        )
        made.append(_value(expr.args["body"], inner))
    return made


def _own(expr: Expr, scope: _Scope) -> Any:
    outputs, item = _list("node", _value(expr.args["node"], scope)), expr.args["item"]
    position = scope.at.get(item.region) if isinstance(item, ItemRef) else None
    if position is None or position >= len(outputs):
        raise ExpressionFault(f"has no output for item {position} of {len(outputs)}")
    return outputs[position]


def _known() -> str:
    return f"Known expressions: {', '.join(sorted([*FUNCTIONS, *FORMS]))}."


# The functions. Parameters without a type in `_declared` take any value.


def _declared(**types: tuple[PortType, ...]) -> Callable[[Callable[..., Any]], Any]:
    """Register a function under its name, with the types of its arguments.

    A first parameter called ``values`` gets the arguments that have no name of their own.
    """

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        name = compute.__name__.strip("_")
        parameters = dict(inspect.signature(compute).parameters)
        variadic = parameters.pop("values", None) is not None
        FUNCTIONS[name] = Function(
            name,
            {
                key: Parameter(
                    types.get(key, ()),
                    required=parameter.default is inspect.Parameter.empty,
                    optional=key not in types or parameter.default is None,
                )
                for key, parameter in parameters.items()
            },
            variadic,
            compute,
        )
        return compute

    return register


_TEXT = (PortType.TEXT,)
_INT = (PortType.INT,)
_NUMBER = (PortType.FLOAT,)
_HOLDERS = (*LISTS, PortType.EMBEDDED)


@_declared()
def _text(value: Any) -> str:
    try:
        return text_of(value)
    except ValueError as e:
        raise ExpressionFault(str(e)) from e


@_declared(template=_TEXT)
def _render(values: Mapping[str, Any], template: str) -> str:
    try:
        parts = list(template_parts(_string("template", template)))
    except TemplateError as e:
        raise ExpressionFault(e.message, e.hint) from e
    pieces: list[str] = []
    for name, literal in parts:
        if name and name not in values:
            raise ExpressionFault(f"{{{name}}} has no value", f"Pass {name}=...")
        pieces.append(_text(values[name]) if name else literal)
    return "".join(pieces)


@_declared(items=LISTS, separator=_TEXT)
def _join(items: Any, separator: str = "\n") -> str:
    return _string("separator", separator).join(
        _text(item) for item in _list("items", items)
    )


@_declared(text=_TEXT)
def _lines(text: Any) -> list[str]:
    return lines_of(_string("text", text))


@_declared(text=_TEXT)
def _parse_json(text: Any) -> Any:
    source = _unfenced(_string("text", text))
    try:
        value = json.loads(source, parse_constant=_refuse_constant)
    except json.JSONDecodeError as e:
        raise ExpressionFault(
            f"the text is no JSON: {e.msg} at character {e.pos} of {describe(source)}",
            "Ask the model for JSON only, or use structured output.",
        ) from e
    except RecursionError as e:
        raise ExpressionFault("the JSON is nested too deeply") from e
    fault = codec.fault_of(value, "the JSON")
    if fault:
        raise ExpressionFault(fault)
    return value


@_declared(value=_HOLDERS)
def _field(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        record = cast("dict[str, Any]", value)
        if not isinstance(key, str) or key not in record:
            keys = ", ".join(map(repr, record)) or "none"
            raise ExpressionFault(f"there is no {key!r}", f"The keys are {keys}.")
        return record[key]
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if not isinstance(key, int) or isinstance(key, bool):
            raise ExpressionFault(f"a list has no {key!r}, only positions")
        if not -len(items) <= key < len(items):
            raise ExpressionFault(f"there is no item {key} among {len(items)}")
        return items[key]
    raise ExpressionFault(f"{key!r} cannot be read from {describe(value)}")


@_declared(items=LISTS, start=_INT, stop=_INT)
def _slice(items: Any, start: int | None = None, stop: int | None = None) -> list[Any]:
    return _list("items", items)[start:stop]


@_declared(items=LISTS)
def _flatten(items: Any) -> list[Any]:
    return [x for part in _list("items", items) for x in _list("an item", part)]


@_declared(items=LISTS)
def _texts_of(items: Any) -> list[str]:
    try:
        return texts_of(_list("items", items))
    except ValueError as e:
        raise ExpressionFault(str(e)) from e


@_declared(vectors=LISTS)
def _stack(vectors: Any) -> Any:
    rows = [np.asarray(row) for row in _list("vectors", vectors)]
    if not rows:
        return np.zeros((0, 0), np.float32)
    if any(row.ndim != 1 or row.shape != rows[0].shape for row in rows):
        shapes = ", ".join(sorted({str(row.shape) for row in rows}))
        raise ExpressionFault(f"vectors of the shapes {shapes} cannot stand together")
    return np.stack(rows)


@_declared()
def _record(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(values)


@_declared(value=(*LISTS, PortType.TEXT))
def _length(value: Any) -> int:
    if isinstance(value, str | list | tuple | dict):
        return len(cast("list[Any]", value))
    raise ExpressionFault(f"{describe(value)} has no length")


@_declared()
def _equals(left: Any, right: Any) -> bool:
    return _same(left, right)


@_declared(container=(*LISTS, PortType.TEXT))
def _contains(container: Any, piece: Any) -> bool:
    if isinstance(container, str):
        return _string("piece", piece) in container
    if isinstance(container, dict):
        return piece in cast("dict[str, Any]", container)
    return any(_same(item, piece) for item in _list("container", container))


@_declared()
def _is_empty(value: Any) -> bool:
    return value is None or is_empty(value)


@_declared()
def _negate(value: Any) -> bool:
    return not is_true(value)


@_declared(left=_NUMBER, right=_NUMBER)
def _less_than(left: Any, right: Any) -> bool:
    return _number("left", left) < _number("right", right)


@_declared(left=_NUMBER, right=_NUMBER)
def _more_than(left: Any, right: Any) -> bool:
    return _number("left", left) > _number("right", right)


@_declared(conditions=LISTS)
def _all_of(conditions: Any) -> bool:
    return all(is_true(value) for value in _list("conditions", conditions))


@_declared(conditions=LISTS)
def _any_of(conditions: Any) -> bool:
    return any(is_true(value) for value in _list("conditions", conditions))


# What the functions ask of their arguments.


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ExpressionFault(f"{name} is {describe(value)}, not text")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionFault(f"{name} is {describe(value)}, not a number")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ExpressionFault(f"{name} is {describe(value)}, not a list")
    return list(cast("list[Any]", value))


def _same(left: Any, right: Any) -> bool:
    """Whether two values are equal: numbers by size (1 equals 1.0, and not true),
    everything else by content."""
    numeric = (int, float)
    if isinstance(left, numeric) and isinstance(right, numeric):
        return isinstance(left, bool) == isinstance(right, bool) and left == right
    return codec.canonical(left) == codec.canonical(right)


def _unfenced(text: str) -> str:
    """The text without the code fence that models like to put around JSON."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```") and len(body) >= 6:
        head, newline, rest = body[3:-3].partition("\n")
        if newline and head.strip().lower() in ("", "json"):
            return rest.strip()
    return body


def _refuse_constant(name: str) -> Any:
    raise ExpressionFault(f"the JSON holds {name}, which is no number")
