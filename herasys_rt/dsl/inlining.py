"""Workflows in workflows: the nodes of one taken over into the trace of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from herasys_rt.dsl.symbols import Node
from herasys_rt.dsl.trace import Trace
from herasys_rt.graph.facts import is_true
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    Guard,
    InputRef,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Region,
    WorkflowSpec,
)

Condition = InputRef | NodeRef | ItemRef


def inline(
    trace: Trace, spec: WorkflowSpec, prefix: str, args: Mapping[str, Arg]
) -> dict[str, Node | Any]:
    """Add all nodes and regions of another workflow, ids prefixed; gives its outputs.

    ``args`` are its inputs as arguments of the trace. A branch that an input decides by
    a literal is decided here. An output that is a literal then is given as that value.
    """
    return _Inlining(trace, spec, prefix, args).run()


@dataclass
class _Inlining:
    trace: Trace
    spec: WorkflowSpec
    prefix: str
    args: Mapping[str, Arg]
    deciding: dict[str, Arg] = field(default_factory=dict[str, Arg])
    taken: set[str] = field(default_factory=set[str])

    def run(self) -> dict[str, Node | Any]:
        self.deciding = self._settled_conditions()
        for node in self.spec.nodes:
            self._take_node(node)
        outputs: dict[str, Node | Any] = {}
        for name, arg in self.spec.outputs.items():
            moved = self.moved(arg)
            if isinstance(moved, Lit):
                outputs[name] = moved.value
            else:
                shown = f"output {name} of {self.prefix}"
                outputs[name] = self.trace.symbol(moved, shown)
        return outputs

    def _settled_conditions(self) -> dict[str, Arg]:
        """Of each input that guards ask: what they may ask instead."""
        conditions = [g.condition for node in self.spec.nodes for g in node.guards]
        names = [ref.name for ref in conditions if isinstance(ref, InputRef)]
        settled: dict[str, Arg] = {}
        for name in dict.fromkeys(names):
            arg = self.args[name]
            if isinstance(arg, Lit):
                settled[name] = arg
            elif self.trace.region_in(arg):
                problem = f"input {name!r} decides which of its nodes run, once per item"
                fits = "filter the list before, or write an @agent"
                self.trace.record(f"{self.prefix}.{name}", problem, fits)
                settled[name] = Lit(True)
            else:
                settled[name] = self.trace.settled(arg, f"{self.prefix}.{name}")
        return settled

    def _take_region(self, region: Region) -> None:
        """Once, with its first node: what gives its list is there by then."""
        if region.id in self.taken:
            return
        self.taken.add(region.id)
        if self.trace.in_mapping:
            problem = f"has a map_over inside ({region.id}) and stands in one itself"
            self.trace.record(self.prefix, problem, "regions do not nest")
        items = self.moved(region.items)
        if not isinstance(items, Lit):
            items = self.trace.settled(items, f"{self.prefix}.{region.id}.items")
        self.trace.add_region(Region(self._renamed(region.id), items, region.max_items))

    def _take_node(self, node: NodeSpec) -> None:
        guards: list[Guard] = []
        for guard in node.guards:
            condition = self._condition(guard.condition)
            if isinstance(condition, Lit):
                if is_true(condition.value) != guard.holds:
                    return
            elif isinstance(condition, InputRef | NodeRef):
                guards.append(Guard(condition, guard.holds))
        if node.region:
            self._take_region(self.spec.region_index[node.region])
        moved = msgspec.structs.replace(
            node,
            id=self._renamed(node.id),
            args={port: self.moved(arg) for port, arg in node.args.items()},
            region=self._renamed(node.region) if node.region else "",
            guards=tuple(guards),
        )
        self.trace.mark_inlined(moved.id)
        self.trace.add_node(moved)

    def _renamed(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def _condition(self, condition: Condition) -> Arg:
        if isinstance(condition, InputRef) and condition.name in self.deciding:
            return self.deciding[condition.name]
        return self.moved(condition)

    def moved(self, arg: Arg) -> Arg:
        """An inner argument as the outer workflow sees it."""
        match arg:
            case Lit():
                return arg
            case InputRef(name):
                return self.args[name]
            case NodeRef(node):
                return NodeRef(self._renamed(node))
            case ItemRef(region):
                return ItemRef(self._renamed(region))
            case ListRef(items):
                return ListRef(tuple(self.moved(item) for item in items))
            case Expr(function, args):
                return Expr(function, {k: self.moved(v) for k, v in args.items()})
            case ChoiceRef():
                return self._choice(arg)

    def _choice(self, arg: ChoiceRef) -> Arg:
        condition = self._condition(arg.condition)
        if isinstance(condition, Lit):
            return self.moved(arg.then if is_true(condition.value) else arg.otherwise)
        then, otherwise = self.moved(arg.then), self.moved(arg.otherwise)
        if isinstance(condition, InputRef | NodeRef):
            return ChoiceRef(condition, then, otherwise)
        parts = {"condition": condition, "then": then, "otherwise": otherwise}
        return Expr("choose", parts)
