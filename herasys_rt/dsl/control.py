"""Control flow as part of the graph: `when` for branches, `map_over` for lists.

    @workflow
    def answer(question: str):
        passages = retrieve(embed(question), collection="docs", top_k=4)
        notes = map_over(passages, lambda p: generate("Note: {p}", p=p["text"]))
        return when(
            is_empty(passages),
            lambda: generate("Say that nothing is known about {q}.", q=question),
            lambda: generate("{notes}\\n{q}", notes=notes, q=question),
        )

Branches and functions are traced once; what they decide or go over is known when the
workflow runs. The expressions below (`equals`, `length` ...) are computed where they are
consumed and are no steps of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from herasys_rt.dsl.frames import Decision, Mapping
from herasys_rt.dsl.symbols import Node, Symbol
from herasys_rt.dsl.trace import Trace, current_trace
from herasys_rt.graph.facts import is_true
from herasys_rt.graph.shapes import LISTS, Shape, literal_shape, shape_of
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    Port,
)
from herasys_rt.graph.types import PortType

_ANY = Port("", PortType.ANY, optional=True)
MAX_ITEMS = 10_000
"""How long a list `map_over` goes over unless it is told otherwise."""


def when(condition: Any, then: Any, otherwise: Any = None) -> Any:
    """``then`` when the condition is true, else ``otherwise``: the other one never runs.

    ``condition`` is an input, a node or an expression; what is not a bool counts by its
    truth: 0, None, an empty list and a blank text are false. A condition that is known
    already (a literal, or what a branch around this one is about) decides at once.
    ``then`` and ``otherwise`` are functions without arguments, whose nodes run only when
    their side is taken, or values and nodes that are there in any case. Both sides must
    have types that go together; without ``otherwise`` the value is None when the
    condition is false. An expression that nodes depend on becomes a small node of its own.
    """
    if not isinstance(condition, Symbol):
        return _taken(is_true(condition), then, otherwise)
    trace = current_trace("when() was called")
    decision = trace.decide(condition)
    known = trace.decided(decision)
    if known is not None:
        return _taken(known, then, otherwise)
    sides: list[Arg] = []
    for name, side, holds in (("then", then, True), ("otherwise", otherwise, False)):
        with trace.branch(decision, holds):
            value = side() if _is_function(side) else side
        lowered = trace.lower(value, _ANY, f"when: {name}")
        sides.append(Lit(None) if lowered is None else lowered)
    if sides == [Lit(None), Lit(None)]:
        trace.record("when", "gives None on both sides", "return a node from a branch")
    return trace.symbol(_choice(decision, *sides), "when()")


def map_over(
    items: Any,
    function: Callable[[Any], Any],
    *,
    label: str = "",
    max_items: int = MAX_ITEMS,
) -> Node:
    """A list of what ``function`` gives for each item of a list, in the items' order.

    ``items`` is an input, a node, an expression or a list. ``function`` is called once,
    now, with a symbol for the item (of TEXTS a text, of CHUNKS a dict ...) and may use
    everything around it; the nodes it makes run once per item, side by side. Of an empty
    list the result is empty. A list longer than ``max_items`` fails the run
    (``too_many_items``). ``label`` names the region in reports. Regions do not nest.
    """
    trace = current_trace("map_over() was called")
    limit = _limit(trace, max_items)
    arg, shape = _items(trace, items)
    with trace.mapping(arg, shape, label, limit) as mapping:
        returned = function(trace.item_of(mapping))
        body = trace.lower(returned, _ANY, f"{mapping.id}: what its function gives")
        if body is not None and trace.region_in(body) != mapping.id:
            problem = "gives nothing that depends on the item or is made for it"
            trace.record(mapping.id, problem, "return what a call with the item gives")
            body = None
        single = shape_of(body, trace.scope) if body is not None else None
    if body is None or single is None:
        return trace.symbol(Lit([]), mapping.id)
    return trace.symbol(_gathered(trace, mapping, body, single), mapping.id)


# Expressions


def equals(left: Any, right: Any) -> Any:
    """Whether two values are equal; 1 equals 1.0."""
    return _express("equals", left=left, right=right)


def contains(container: Any, piece: Any) -> Any:
    """Whether a text has ``piece`` in it, a list has it as an item, or a dict as a key."""
    return _express("contains", container=container, piece=piece)


def is_empty(value: Any) -> Any:
    """Whether a list or dict has no items, a text is blank, or a value is None."""
    return _express("is_empty", value=value)


def negate(value: Any) -> Any:
    """Whether a value is false, by its truth as in `when`."""
    return _express("negate", value=value)


def less_than(left: Any, right: Any) -> Any:
    """Whether a number is below another."""
    return _express("less_than", left=left, right=right)


def more_than(left: Any, right: Any) -> Any:
    """Whether a number is above another."""
    return _express("more_than", left=left, right=right)


def all_of(*conditions: Any) -> Any:
    """Whether all values are true, by their truth as in `when`."""
    return _express("all_of", conditions=list(conditions))


def any_of(*conditions: Any) -> Any:
    """Whether one of the values is true, by their truth as in `when`."""
    return _express("any_of", conditions=list(conditions))


def length(value: Any) -> Any:
    """How many items a list or dict has, or characters a text."""
    return _express("length", value=value)


def join(items: Any, separator: str = "\n") -> Any:
    """The items of a list as one text with ``separator`` between them."""
    return _express("join", items=items, separator=separator)


def flatten(lists: Any) -> Any:
    """The items of a list's lists as one list."""
    return _express("flatten", items=lists)


def texts_of(records: Any) -> Any:
    """The texts of chunks or documents as a list."""
    return _express("texts_of", items=records)


def as_text(value: Any) -> Any:
    """A value as prompts show it: chunks as passages, texts one a line, else JSON."""
    return _express("text", value=value)


def _express(function: str, **given: Any) -> Node:
    return current_trace(f"{function}() was called").express(function, **given)


def _taken(holds: bool, then: Any, otherwise: Any) -> Any:
    """The side of a choice that is known while the workflow is traced."""
    side = then if holds else otherwise
    return side() if _is_function(side) else side


def _is_function(side: Any) -> bool:
    return callable(side) and not isinstance(side, Symbol)


def _choice(decision: Decision, then: Arg, otherwise: Arg) -> Arg:
    condition = decision.arg
    settled = decision.ref is not None and not decision.per_item
    if settled and isinstance(condition, InputRef | NodeRef):
        return ChoiceRef(condition, then, otherwise)
    parts: dict[str, Arg] = {
        "condition": condition,
        "then": then,
        "otherwise": otherwise,
    }
    return Expr("choose", parts)


def _limit(trace: Trace, max_items: Any) -> int:
    if isinstance(max_items, int) and not isinstance(max_items, bool) and max_items >= 1:
        return max_items
    trace.record("map_over", f"max_items is {max_items!r}", "a whole number from 1")
    return MAX_ITEMS


def _items(trace: Trace, items: Any) -> tuple[Arg, Shape]:
    """The list to go over and its shape; an empty list after a fault."""
    arg = trace.lower(items, _ANY, "map_over: the list")
    nothing = Lit([])
    if arg is None:
        return nothing, literal_shape([])
    shape = shape_of(arg, trace.scope)
    if isinstance(arg, Lit) and not isinstance(arg.value, list):
        problem = f"goes over {type(items).__name__}"
    elif shape.optional:
        problem = f"goes over {items!r}, which may be None"
    elif shape.type not in LISTS:
        problem = f"goes over {items!r}"
    else:
        return arg, shape
    fits = "a list: texts, chunks, documents, records or JSON"
    if shape.type == PortType.VECTORS:
        fits = "vectors are one array: go over the texts that they come from"
    trace.record("map_over", problem, fits)
    return nothing, literal_shape([])


def _gathered(trace: Trace, mapping: Mapping, body: Arg, single: Shape) -> Arg:
    """The list of what a region's function gives, seen from outside of the region."""
    if isinstance(body, NodeRef):
        made: Arg = body
    else:
        made = Expr(
            "each",
            {
                "items": mapping.items,
                "item": ItemRef(mapping.id),
                "body": _outside(trace, mapping, body),
            },
        )
    if single.type == PortType.VECTOR and not single.optional:
        return Expr("stack", {"vectors": made})
    return made


def _outside(trace: Trace, mapping: Mapping, arg: Arg) -> Arg:
    """An argument of inside a region for the body of an ``each`` outside of it."""
    match arg:
        case NodeRef(node) if trace.is_in(node, mapping.id):
            return Expr("own", {"node": arg, "item": ItemRef(mapping.id)})
        case ListRef(items):
            return ListRef(tuple(_outside(trace, mapping, item) for item in items))
        case ChoiceRef(condition, then, otherwise):
            then = _outside(trace, mapping, then)
            otherwise = _outside(trace, mapping, otherwise)
            return ChoiceRef(condition, then, otherwise)
        case Expr(function, args):
            inner = {name: _outside(trace, mapping, part) for name, part in args.items()}
            return Expr(function, inner)
        case _:
            return arg
