"""The parts of a graph while a function is traced: symbols, nodes, regions, arguments."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from herasys_rt.dsl.frames import Branch, Decision, Mapping
from herasys_rt.dsl.symbols import Input, Node, Symbol, ref_of, region_of, trace_of
from herasys_rt.errors import Fault, GraphError, HerasysError, UsageError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import widened
from herasys_rt.graph.shapes import ANYTHING, Scope, Shape, item_shape, shape_of
from herasys_rt.graph.spec import (
    Arg,
    Expr,
    Guard,
    InputRef,
    InputSpec,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    Region,
    Sampling,
    leaves,
)
from herasys_rt.graph.types import PortType

VALUE_OPERATOR, VALUE_VERB = "value@1", "text.value"
"""The node that an expression becomes where a guard or a region asks for its value."""

ANY_VALUE = Port("", PortType.ANY, optional=True)
"""Where anything may stand, also None."""

_LABEL = re.compile(r"[A-Za-z_][\w.\-]{0,99}", re.ASCII)


class Builder:
    """The inputs, nodes, regions and faults of a workflow that is being declared.

    Faults are recorded and building goes on wherever it can. ``unique_labels`` says that
    two nodes of one label are a fault; otherwise the second one's id is numbered.
    """

    unique_labels = True

    def __init__(self, name: str, share: str) -> None:
        self.name = name
        self.share = share
        self.faults: list[Fault] = []
        self._inputs: dict[str, InputSpec] = {}
        self._nodes: dict[str, NodeSpec] = {}
        self._regions: dict[str, Region] = {}
        self._inlined: set[str] = set()
        self._names: set[str] = set()
        self._samples: dict[bytes, int] = {}
        self._branches: tuple[Branch, ...] = ()
        self._mappings: tuple[Mapping, ...] = ()
        self._stopped: HerasysError | None = None
        self._finished = False

    def record(self, where: str, problem: str, fits: str = "") -> Fault:
        """Note a fault; equal ones once."""
        fault = Fault(where, problem, fits)
        if fault not in self.faults:
            self.faults.append(fault)
        return fault

    def stop(self, fault: Fault) -> HerasysError:
        """The error that ends the tracing; after it, one that explains a stray symbol."""
        if self._finished:
            return UsageError(
                f"{fault.where} is a placeholder of workflow {self.name!r}, not a value",
                hint="Submit the workflow and read the run's result instead.",
            )
        self._stopped = GraphError.of(self.name, [fault])
        return self._stopped

    # Symbols

    def add_input(self, declared: InputSpec) -> Input:
        """Declare an input; gives the symbol that stands for it."""
        self._inputs[declared.name] = declared
        ref = InputRef(declared.name)
        shape = shape_of(ref, self.scope)
        return Input(self, ref, shape, f"input {declared.name}")

    def express(self, function: str, /, **given: object) -> Node:
        """The symbol of an expression; see `graph.expressions` for the functions."""
        lowered = {
            name: self.lower(value, ANY_VALUE, f"{function}.{name}")
            for name, value in given.items()
        }
        args: dict[str, Arg] = {n: a for n, a in lowered.items() if a is not None}
        return self.symbol(Expr(function, args), f"{function}()")

    def symbol(self, arg: Arg, name: str) -> Node:
        """The symbol of an argument."""
        return Node(self, arg, shape_of(arg, self.scope), name, self.region_in(arg))

    def output_of(self, symbol: Symbol) -> Arg:
        """What a symbol stands for, as an argument of something outside of regions."""
        return self._refer(symbol, "output") or Lit(None)

    def region_in(self, arg: Arg) -> str:
        """The innermost region being traced whose current item an argument depends on."""
        used: set[str] = set()
        for leaf in leaves(arg):
            if isinstance(leaf, ItemRef):
                used.add(leaf.region)
            elif isinstance(leaf, NodeRef) and leaf.node in self._nodes:
                used.add(self._nodes[leaf.node].region)
        active = [mapping.id for mapping in self._mappings if mapping.id in used]
        return active[-1] if active else ""

    @property
    def scope(self) -> Scope:
        """What names mean at this point of the tracing."""
        return Scope(
            inputs=self._inputs,
            nodes=self._nodes,
            regions=self._regions,
            region=self._mappings[0].id if self._mappings else "",
            items={mapping.id: mapping.item for mapping in self._mappings},
        )

    # Nodes

    def name_node(self, operator: str, label: str) -> str:
        """An id that is free: the label, else the operator's name with a number."""
        if label and not _LABEL.fullmatch(label):
            self.record(operator, f"label {label!r} is no name", "letters, digits, _ - .")
            label = ""
        if label and label in self._names and self.unique_labels:
            self.record(label, "two nodes have this label", "labels must differ")
        name = label or operator
        numbered = (f"{name}_{n}" for n in range(2, len(self._names) + 3))
        free = next(n for n in (name, *numbered) if n not in self._names)
        self._names.add(free)
        return free

    def add_node(self, node: NodeSpec) -> Node:
        """Take a lowered node; gives the symbol that stands for its output.

        The node comes into the region and under the guards of where it is made.
        """
        region = ""
        if len(self._mappings) > 1:
            problem = f"is made for every item of {self._mappings[-1].id!r}, inside "
            problem += f"map_over {self._mappings[0].id!r}: regions do not nest"
            fits = "flatten the lists first and map over the result, or write an @agent"
            self.record(node.id, problem, fits)
        if self._mappings:
            region = self._enter_region(self._mappings[0])
        guards = self._guards(self._branches, node.id) + node.guards
        node = msgspec.structs.replace(node, region=region or node.region, guards=guards)
        return self._keep(node)

    def add_region(self, region: Region) -> None:
        """Take over a region whose nodes come from another workflow."""
        self._regions[region.id] = region

    def region_of(self, node: NodeSpec) -> Region | None:
        """The region that a node is in; None outside of regions."""
        return self._regions.get(node.region)

    def regions_of(self, nodes: Iterable[NodeSpec]) -> list[Region]:
        """The regions that these nodes are in, once each."""
        found = {node.region: self._regions[node.region] for node in nodes if node.region}
        return list(found.values())

    def mark_inlined(self, node_id: str) -> None:
        """Say that a node came with another workflow: unneeded, it is left out."""
        self._inlined.add(node_id)

    def _keep(self, node: NodeSpec) -> Node:
        node = resolve_purity(node)
        if node.sample is not None:
            node = msgspec.structs.replace(node, sample=self._sample_of(node))
        self._nodes[node.id] = node
        return self.symbol(NodeRef(node.id), f"node {node.id}")

    def _sample_of(self, node: NodeSpec) -> int:
        """How many equal calls came before: samples of one workflow differ by this."""
        facts = [node.operator, node.resource, node.model, node.args, node.region]
        key = codec.encode(facts)
        self._samples[key] = self._samples.get(key, -1) + 1
        return self._samples[key]

    # Branches

    def decide(self, condition: Symbol) -> Decision:
        """The decision that branches on a condition make."""
        arg = self._refer(condition, "when: the condition") or Lit(None)
        return Decision(condition, bool(self.region_in(arg)), self._deciding(arg))

    def decided(self, decision: Decision) -> bool | None:
        """How a decision falls where the branches around it tell; else None."""
        for branch in self._branches:
            if branch.decision.arg == decision.arg:
                return branch.holds
        return None

    @contextmanager
    def branch(self, decision: Decision, holds: bool) -> Generator[None]:
        """While this is entered, nodes run only when the decision is as ``holds`` says."""
        before = self._branches
        self._branches = (*before, Branch(decision, holds))
        try:
            yield
        finally:
            self._branches = before

    def settled(self, arg: Arg, name: str) -> InputRef | NodeRef:
        """The argument as something that a guard may ask: an expression becomes a node."""
        return self._deciding(arg) or self._value_node(arg, name, self._branches)

    def _deciding(self, arg: Arg) -> InputRef | NodeRef | None:
        """The argument when a guard or a region may ask it as it is."""
        match arg:
            case InputRef():
                return arg
            case NodeRef(name) if name in self._nodes and not self._nodes[name].region:
                return arg
            case _:
                return None

    def _guards(self, branches: Sequence[Branch], node_id: str) -> tuple[Guard, ...]:
        guards: list[Guard] = []
        for i, branch in enumerate(branches):
            decision = branch.decision
            if decision.per_item:
                problem = f"would run for some items only: {decision.symbol!r} decides"
                fits = "filter the list before, decide inside the step, or write an @agent"
                self.record(node_id, problem, fits)
                continue
            if decision.ref is None:
                arg = ref_of(decision.symbol)
                decision.ref = self._value_node(arg, "condition", branches[:i])
            guard = Guard(decision.ref, branch.holds)
            if guard not in guards:
                guards.append(guard)
        return tuple(guards)

    def _value_node(self, arg: Arg, name: str, branches: Sequence[Branch]) -> NodeRef:
        """A node whose output is the value of an argument, outside of regions."""
        guards = self._guards(branches, name)
        for known in self._nodes.values():
            same = known.operator == VALUE_OPERATOR and known.args == {"value": arg}
            if same and known.guards == guards:
                return NodeRef(known.id)
        node = NodeSpec(
            id=self.name_node(name, ""),
            operator=VALUE_OPERATOR,
            verb=VALUE_VERB,
            resource="python",
            args={"value": arg},
            ports=(Port("value", PortType.ANY, optional=True),),
            output=shape_of(arg, self.scope).type,
            guards=guards,
        )
        self._keep(node)
        return NodeRef(node.id)

    # Regions

    @contextmanager
    def mapping(
        self, items: Arg, shape: Shape, label: str, limit: int
    ) -> Generator[Mapping]:
        """While this is entered, nodes are made once per item of ``items``."""
        before = self._mappings
        mapping = Mapping(
            id=self.name_node("map_over", label),
            items=items,
            item=item_shape(shape) or ANYTHING,
            max_items=limit,
            around=self._branches,
        )
        self._mappings = (*before, mapping)
        try:
            yield mapping
        finally:
            self._mappings = before

    def is_in(self, node_id: str, region: str) -> bool:
        """Whether a node is in a region."""
        node = self._nodes.get(node_id)
        return node is not None and node.region == region

    @property
    def in_mapping(self) -> bool:
        """Whether the function of a `map_over` is being traced."""
        return bool(self._mappings)

    def item_of(self, mapping: Mapping) -> Node:
        """The symbol of the current item."""
        return self.symbol(ItemRef(mapping.id), f"item of {mapping.id}")

    def _enter_region(self, mapping: Mapping) -> str:
        """The region's id; the region is made when its first node is."""
        if mapping.region is None:
            items = mapping.items
            if not isinstance(items, Lit):
                known = self._deciding(items)
                items = known or self._value_node(items, "items", mapping.around)
            mapping.items = items
            mapping.region = Region(mapping.id, items, mapping.max_items)
            self._regions[mapping.id] = mapping.region
        return mapping.id

    # Arguments

    def lower(self, value: object, port: Port, where: str) -> Arg | None:
        """The argument that a value given for ``port`` becomes; None after a fault.

        Symbols become references, literals are copied, so that later changes to them are
        not seen. A list or dict with symbols in it becomes a list or dict of arguments.
        """
        if isinstance(value, Symbol):
            return self._refer(value, where)
        if not holds_symbol(value):
            plain = list(cast("tuple[Any]", value)) if isinstance(value, tuple) else value
            return self._literal(plain, port, where)
        if isinstance(value, dict):
            return self._lower_dict(cast("dict[Any, object]", value), where)
        if isinstance(value, list | tuple):
            items = list(cast("list[object]", value))
            item_port = Port(port.name, PortType.ANY)
            parts = [
                self.lower(item, item_port, f"{where}[{i}]") for i, item in enumerate(items)
            ]
            known = [part for part in parts if part is not None]
            return ListRef(tuple(known)) if len(known) == len(parts) else None
        kind = type(value).__name__
        self.record(where, f"a {kind} holds a node or an input", "use a list or a dict")
        return None

    def _lower_dict(self, value: dict[Any, object], where: str) -> Arg | None:
        parts: dict[str, Arg] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self.record(where, f"has the key {key!r}", "keys must be strings")
                return None
            part = self.lower(item, ANY_VALUE, f"{where}.{key}")
            if part is None:
                return None
            parts[key] = part
        return Expr("record", parts)

    def _refer(self, symbol: Symbol, where: str) -> Arg | None:
        if trace_of(symbol) is not self:
            problem = f"{symbol!r} belongs to another workflow"
            self.record(where, problem, "call that workflow here to take its nodes over")
            return None
        region = region_of(symbol)
        if region and all(mapping.id != region for mapping in self._mappings):
            problem = f"{symbol!r} belongs to one item of {region!r} and is used outside"
            fits = "return it from the function: map_over gives the list of all of them"
            self.record(where, problem, fits)
            return None
        return ref_of(symbol)

    def _literal(self, value: object, port: Port, where: str) -> Arg | None:
        fault = codec.fault_of(value, "value")
        if fault:
            self.record(where, fault, "None, bool, int, float, str, list, dict, ndarray")
            return None
        return Lit(widened(codec.frozen(value), port.type))


def resolve_purity(node: NodeSpec) -> NodeSpec:
    """The node with its purity settled when literals already decide whether it samples."""
    if node.purity != "pure" or node.sampling is None or node.sample is not None:
        return node
    amount = node.args.get(node.sampling.amount)
    seed = node.args.get(node.sampling.seed, Lit(None))
    if not (isinstance(amount, Lit) and isinstance(seed, Lit)):
        return node
    numeric = isinstance(amount.value, int | float)
    if numeric and Sampling.draws(amount.value, seed.value):
        return msgspec.structs.replace(node, purity="sampled")
    return node


def holds_symbol(value: object) -> bool:
    """Whether a value is a symbol, or a list or dict with one inside."""
    return next(iter(symbols_in(value)), None) is not None


def symbols_in(value: object, depth: int = 0) -> Generator[Symbol]:
    """The symbols in a value, its lists and dicts."""
    if isinstance(value, Symbol):
        yield value
    if depth > 50:  # the codec refuses what is nested this deeply
        return
    parts: list[object] = []
    if isinstance(value, dict):
        parts = list(cast("dict[object, object]", value).values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(cast("list[object]", value))
    for part in parts:
        yield from symbols_in(part, depth + 1)
