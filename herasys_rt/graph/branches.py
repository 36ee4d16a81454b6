"""Whether every value is there where it is used: branches, and joins across them.

A node under guards runs only when all of them hold. Whoever takes its output must be
under the same guards, or take it through a choice on the same condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from herasys_rt.errors import Fault
from herasys_rt.graph.arguments import described
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    ItemRef,
    ListRef,
    NodeRef,
    NodeSpec,
    WorkflowSpec,
)

Condition = InputRef | NodeRef | ItemRef
Known = Mapping[Condition, bool]
"""Conditions whose value is known at a place, because it is under guards on them."""

_TAKE = "take what when() gives, or move the taker into that branch"


def branch_faults(spec: WorkflowSpec) -> Iterator[Fault]:
    """Guards that cannot decide, and values that may not be there where they are used."""
    nodes = {node.id: node for node in spec.nodes}
    for node in spec.nodes:
        known: dict[Condition, bool] = {}
        for guard in node.guards:
            yield from _condition_faults(node, guard.condition, nodes)
            yield from _missing(guard.condition, known, f"{node.id}: its condition", nodes)
            if known.get(guard.condition, guard.holds) != guard.holds:
                asked = described(guard.condition)
                problem = f"never runs: it asks {asked} to be true and false"
                yield Fault(node.id, problem, "remove one of the branches")
            known[guard.condition] = guard.holds
        region = spec.region_index.get(node.region)
        if region is not None:
            where = f"{node.id}: the list of {region.id}"
            yield from _missing(region.items, known, where, nodes)
        for port, arg in node.args.items():
            yield from _missing(arg, known, f"{node.id}.{port}", nodes)
    for name, arg in spec.outputs.items():
        yield from _missing(arg, {}, f"output {name}", nodes)


def _condition_faults(
    node: NodeSpec, condition: Condition, nodes: Mapping[str, NodeSpec]
) -> Iterator[Fault]:
    source = nodes.get(condition.node) if isinstance(condition, NodeRef) else None
    if isinstance(condition, ItemRef) or (source is not None and source.region):
        problem = f"is decided by {described(condition)}, once per item"
        fits = "filter the list before, decide in one step for all, or write an @agent"
        yield Fault(f"{node.id}: its condition", problem, fits)


def _missing(
    arg: Arg, known: Known, where: str, nodes: Mapping[str, NodeSpec]
) -> Iterator[Fault]:
    """Nodes of an argument that may not have run although they are asked."""
    match arg:
        case NodeRef(name):
            yield from _unmet(name, known, where, nodes)
        case ChoiceRef(condition, then, otherwise):
            yield from _missing(condition, known, where, nodes)
            for side, holds in ((then, True), (otherwise, False)):
                if known.get(condition, holds) == holds:
                    yield from _missing(side, {**known, condition: holds}, where, nodes)
        case ListRef(items):
            for i, item in enumerate(items):
                yield from _missing(item, known, f"{where}[{i}]", nodes)
        case Expr(_, args):
            for part in args.values():
                yield from _missing(part, known, where, nodes)
        case _:
            return


def _unmet(
    name: str, known: Known, where: str, nodes: Mapping[str, NodeSpec]
) -> Iterator[Fault]:
    node = nodes.get(name)
    for guard in node.guards if node is not None else ():
        holds = known.get(guard.condition)
        if holds == guard.holds:
            continue
        asked = f"{described(guard.condition)} is {'true' if guard.holds else 'false'}"
        if holds is None:
            problem = f"takes node {name!r}, which runs only when {asked}"
            yield Fault(where, problem, _TAKE)
        else:
            problem = f"takes node {name!r} of the branch not taken: there {asked}"
            yield Fault(where, problem, _TAKE)
        return
