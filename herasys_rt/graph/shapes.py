"""What type a value will have that an argument stands for, before anything runs.

The one home of type inference: the tracer asks it for the symbols that it hands out,
`validate_spec` for the edges of a spec from the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    InputSpec,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Region,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType, fits

LISTS = (
    PortType.TEXTS,
    PortType.CHUNKS,
    PortType.DOCUMENTS,
    PortType.RECORDS,
    PortType.JSON,
    PortType.ANY,
)
"""Types whose values are, or may turn out to be, lists that a region can go over."""

_ITEMS: dict[PortType, PortType] = {
    PortType.TEXTS: PortType.TEXT,
    PortType.CHUNKS: PortType.JSON,
    PortType.DOCUMENTS: PortType.JSON,
    PortType.RECORDS: PortType.JSON,
}
_ARRAYS = (PortType.VECTOR, PortType.VECTORS, PortType.EMBEDDED)


class Shape(NamedTuple):
    """A type, whether None may be there instead, and of a list the type of its items
    where the list's own type does not say it."""

    type: PortType
    optional: bool = False
    item: PortType | None = None

    def __str__(self) -> str:
        listed = f"list of {self.item}" if self.item is not None else str(self.type)
        return f"{listed} or None" if self.optional else listed


ANYTHING = Shape(PortType.ANY)
NOTHING = Shape(PortType.ANY, optional=True)
"""The shape of a literal None."""


@dataclass(frozen=True)
class Scope:
    """What names mean where an argument stands.

    ``region`` is the region of the node that the argument belongs to (its nodes are
    single values there, and lists everywhere else); ``items`` the shapes of items that an
    enclosing ``each`` has bound. ``earlier`` are the nodes that stand before (None:
    all), to be named in faults.
    """

    inputs: Mapping[str, InputSpec]
    nodes: Mapping[str, NodeSpec]
    regions: Mapping[str, Region]
    region: str = ""
    items: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    earlier: Mapping[str, NodeSpec] | None = None

    @classmethod
    def of(cls, spec: WorkflowSpec, region: str = "") -> Scope:
        """The scope of a node in ``region`` of a spec."""
        return cls(
            inputs={declared.name: declared for declared in spec.inputs},
            nodes={node.id: node for node in spec.nodes},
            regions=spec.region_index,
            region=region,
        )

    def within(self, each: Expr) -> Scope:
        """The scope of the body of an ``each`` expression."""
        item = each.args.get("item")
        items = dict(self.items)
        if isinstance(item, ItemRef):
            shape = shape_of(each.args.get("items", Lit(None)), self)
            items[item.region] = item_shape(shape) or ANYTHING
        return replace(self, items=items)


def shape_of(arg: Arg, scope: Scope) -> Shape:
    """The shape of an argument's value; ANY where a reference leads nowhere."""
    match arg:
        case Lit(value):
            return literal_shape(value)
        case InputRef(name):
            declared = scope.inputs.get(name)
            return ANYTHING if declared is None else input_shape(declared)
        case NodeRef(name):
            return _node_shape(scope.nodes.get(name), scope)
        case ItemRef(name):
            return _bound_shape(name, scope)
        case ListRef(items):
            return list_of([shape_of(item, scope) for item in items])
        case ChoiceRef(_, then, otherwise):
            return joined(shape_of(then, scope), shape_of(otherwise, scope)) or ANYTHING
        case Expr():
            return _expression_shape(arg, scope)


def input_shape(declared: InputSpec) -> Shape:
    """The shape of a declared input. One of type ANY or JSON is checked per run."""
    loose = declared.type in (PortType.ANY, PortType.JSON)
    return Shape(declared.type, declared.optional and not loose)


def literal_shape(value: Any) -> Shape:
    """The shape of a value that is there already."""
    if value is None:
        return NOTHING
    if isinstance(value, np.ndarray):
        dimensions = cast("np.ndarray[Any, Any]", value).ndim
        kinds = {1: PortType.VECTOR, 2: PortType.VECTORS}
        return Shape(kinds.get(dimensions, PortType.ANY))
    for kind, found in _LITERALS:
        if isinstance(value, kind):
            return Shape(found)
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return list_of([literal_shape(item) for item in items]) if items else ANYTHING
    return Shape(PortType.JSON if isinstance(value, dict) else PortType.ANY)


_LITERALS: tuple[tuple[type, PortType], ...] = (
    (bool, PortType.BOOL),  # before int, of which it is a kind
    (int, PortType.INT),
    (float, PortType.FLOAT),
    (str, PortType.TEXT),
)


def list_of(shapes: list[Shape]) -> Shape:
    """The shape of a list of values of these shapes."""
    if not shapes:
        return ANYTHING
    common: Shape | None = shapes[0]
    for shape in shapes[1:]:
        common = joined(common, shape) if common is not None else None
    if common is None or common.optional:
        arrays = any(shape.type in _ARRAYS for shape in shapes)
        return Shape(PortType.ANY if arrays else PortType.JSON)
    return gathered(common)


def gathered(shape: Shape) -> Shape:
    """The shape of the list that a region makes of one output of this shape per item."""
    if shape.type == PortType.TEXT and not shape.optional:
        return Shape(PortType.TEXTS)
    kind = PortType.ANY if shape.type in _ARRAYS else PortType.JSON
    known = shape.type not in (PortType.ANY, PortType.JSON) and not shape.optional
    return Shape(kind, item=shape.type if known else None)


def item_shape(shape: Shape) -> Shape | None:
    """The shape of an item of a list of this shape; None when it is no list."""
    if shape.item is not None:
        return Shape(shape.item)
    if shape.type not in LISTS:
        return None
    return Shape(_ITEMS.get(shape.type, PortType.ANY))


def joined(left: Shape, right: Shape) -> Shape | None:
    """The shape of a value that has one of two shapes; None when they do not go together.

    None goes with everything and makes it optional; ANY says nothing; the rest must be
    equal, or one must fit where the other is wanted.
    """
    optional = left.optional or right.optional
    if left == NOTHING or right == NOTHING:
        other = right if left == NOTHING else left
        return other._replace(optional=True)
    if PortType.ANY in (left.type, right.type):
        known = left if right.type == PortType.ANY else right
        same = left.type == right.type
        return Shape(known.type, optional, None if same else known.item)
    item = left.item if left.item == right.item else None
    for one, other in ((left, right), (right, left)):
        if fits(one.type, other.type) and not _swallows(one.type, other.type):
            return Shape(other.type, optional, item)
    return None


def _swallows(produced: PortType, wanted: PortType) -> bool:
    """JSON takes any record or list; that a text or a number fits as well would hide
    that the two sides of a choice have nothing in common."""
    scalars = (PortType.TEXT, PortType.INT, PortType.FLOAT, PortType.BOOL)
    return wanted == PortType.JSON and produced in scalars


def _node_shape(node: NodeSpec | None, scope: Scope) -> Shape:
    if node is None:
        return ANYTHING
    shape = Shape(node.output)
    return shape if node.region in ("", scope.region) else gathered(shape)


def _bound_shape(name: str, scope: Scope) -> Shape:
    if name in scope.items:
        return scope.items[name]
    region = scope.regions.get(name)
    if region is None:
        return ANYTHING
    outside = replace(scope, region="")
    return item_shape(shape_of(region.items, outside)) or ANYTHING


# Expressions

Shaper = Callable[[Mapping[str, Shape], Mapping[str, Arg]], Shape]
"""From the shapes of an expression's arguments, and the arguments, to its own shape."""


def _expression_shape(expr: Expr, scope: Scope) -> Shape:
    if expr.function == "each":
        return gathered(shape_of(expr.args.get("body", Lit(None)), scope.within(expr)))
    if expr.function == "own":
        source = expr.args.get("node")
        node = scope.nodes.get(source.node) if isinstance(source, NodeRef) else None
        return ANYTHING if node is None else Shape(node.output)
    shaper = SHAPERS.get(expr.function)
    if shaper is None:
        return ANYTHING
    shapes = {name: shape_of(arg, scope) for name, arg in expr.args.items()}
    return shaper(shapes, expr.args)


def _always(kind: PortType) -> Shaper:
    return lambda shapes, args: Shape(kind)


def _field(shapes: Mapping[str, Shape], args: Mapping[str, Arg]) -> Shape:
    whole, key = shapes.get("value", ANYTHING), args.get("key")
    if whole.type == PortType.EMBEDDED and isinstance(key, Lit):
        parts = {"chunks": PortType.CHUNKS, "vectors": PortType.VECTORS}
        return Shape(parts.get(str(key.value), PortType.ANY))
    return item_shape(whole) or ANYTHING


def _slice(shapes: Mapping[str, Shape], args: Mapping[str, Arg]) -> Shape:
    return shapes.get("items", ANYTHING)._replace(optional=False)


def _flatten(shapes: Mapping[str, Shape], args: Mapping[str, Arg]) -> Shape:
    inner = item_shape(shapes.get("items", ANYTHING)) or ANYTHING
    return Shape(PortType.JSON) if inner.type == PortType.ANY else inner


def _choose(shapes: Mapping[str, Shape], args: Mapping[str, Arg]) -> Shape:
    sides = shapes.get("then", ANYTHING), shapes.get("otherwise", ANYTHING)
    return joined(*sides) or ANYTHING


def _record(shapes: Mapping[str, Shape], args: Mapping[str, Arg]) -> Shape:
    types = {name: shape.type for name, shape in shapes.items()}
    if types == {"chunks": PortType.CHUNKS, "vectors": PortType.VECTORS}:
        return Shape(PortType.EMBEDDED)
    arrays = any(kind in _ARRAYS for kind in types.values())
    return Shape(PortType.ANY if arrays else PortType.JSON)


SHAPERS: dict[str, Shaper] = {
    "text": _always(PortType.TEXT),
    "render": _always(PortType.TEXT),
    "join": _always(PortType.TEXT),
    "lines": _always(PortType.TEXTS),
    "parse_json": _always(PortType.JSON),
    "length": _always(PortType.INT),
    "texts_of": _always(PortType.TEXTS),
    "stack": _always(PortType.VECTORS),
    "field": _field,
    "slice": _slice,
    "flatten": _flatten,
    "record": _record,
    "choose": _choose,
    **{
        name: _always(PortType.BOOL)
        for name in (
            *("equals", "contains", "is_empty", "negate", "less_than", "more_than"),
            *("all_of", "any_of"),
        )
    },
}
"""Function of an expression -> how its shape follows from its arguments'."""
