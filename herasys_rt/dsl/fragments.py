"""Fragments: what a step of an agent reveals, as a small spec of its own.

A step is revealed with everything it is made from that has no value yet. What was taken
before comes in by its value, and effects are made once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from herasys_rt.dsl.building import ANY_VALUE, holds_symbol, symbols_in
from herasys_rt.dsl.symbols import Node, ref_of, trace_of
from herasys_rt.dsl.trace import Trace
from herasys_rt.dsl.tracked import NOWHERE, Origin, origin_of, plain
from herasys_rt.errors import Fault, GraphError, HerasysError, UsageError
from herasys_rt.graph.prompts import VAR
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
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
    WorkflowSpec,
    leaves,
)
from herasys_rt.graph.types import PortType
from herasys_rt.graph.validation import validate_spec


class Revealed(NamedTuple):
    """A fragment that succeeded: its output and the nodes it came from."""

    value: Any
    origin: Origin


class AgentTrace(Trace):
    """Gathers the steps that an agent declares, where their literals came from, and what
    became of those that were taken."""

    unique_labels = False

    def __init__(self, name: str, share: str) -> None:
        super().__init__(name, share)
        self._origins: dict[int, tuple[Lit, Origin]] = {}  # by the literal's identity
        self._kept: dict[str, Revealed] = {}
        self._effects: set[str] = set()

    def lower(self, value: object, port: Port, where: str) -> Arg | None:
        """See `Trace.lower`; remembers where a literal came from."""
        if holds_symbol(value):
            return super().lower(value, port, where)  # which comes back for its items
        arg = super().lower(plain(value), port, where)
        origin = origin_of(value)
        if origin and isinstance(arg, Lit):
            self._origins[id(arg)] = arg, origin
        return arg

    def stop(self, fault: Fault) -> HerasysError:
        """What to raise where the coroutine is. It may go on: the fault is none of its
        next step."""
        self.faults.remove(fault)
        told = Fault(fault.where, fault.problem, "await run.call(step) gives its value")
        return GraphError.of(self.name, [told])

    def keep(self, step: Node, revealed: Revealed) -> None:
        """Note the value of a step: steps that are made from it take the value."""
        ref = ref_of(step)
        if isinstance(ref, NodeRef) and not self._nodes[ref.node].region:
            self._kept[ref.node] = revealed

    def fragment(self, step: Node) -> tuple[WorkflowSpec, dict[str, Any], Origin]:
        """The spec that reveals a step, its inputs, and the origins of its values.

        Values are lifted out of the nodes into inputs, and ids count from 1 in each
        fragment: the same step in the source is the same spec however often it is taken.
        Without a node to execute, the spec is not checked.
        Errors: `GraphError` with all faults, `UsageError` for an effect made before.
        """
        nodes = self._closure(step)
        faults, self.faults = self.faults, []
        if faults:
            raise GraphError.of(self.name, faults)
        self._check_effects(nodes)
        lift = _Lift(_renamed(nodes), self._kept, self._nodes)
        lowered = tuple(lift.node(node) for node in nodes)
        output = lift.arg(self.output_of(step), None, "output")
        regions = tuple(lift.region(region) for region in self.regions_of(nodes))
        spec = WorkflowSpec(
            name=self.name,
            inputs=tuple(lift.declared),  # Complete only now: lifting adds to them.
            nodes=lowered,
            outputs={"output": output},
            share=self.share,
            regions=regions,
        )
        faults = validate_spec(spec) if nodes else []
        if faults:
            raise GraphError.of(self.name, faults)
        self._effects.update(node.id for node in nodes if node.purity == "effect")
        return spec, lift.values, lift.origin | self._origin_of(step, nodes)

    def _closure(self, step: Node) -> list[NodeSpec]:
        """The node and everything it is made from that has no value yet, in the order of
        declaration."""
        ref = ref_of(step)
        itself = ref.node if isinstance(ref, NodeRef) else ""
        wanted = {part.node for part in leaves(ref) if isinstance(part, NodeRef)}
        found: list[NodeSpec] = []
        for node in reversed(list(self._nodes.values())):
            if node.id not in wanted or (node.id in self._kept and node.id != itself):
                continue
            found.append(node)
            wanted.update(node.parents)
            region = self.region_of(node)
            if region is not None and isinstance(region.items, NodeRef):
                wanted.add(region.items.node)
        return found[::-1]

    def _check_effects(self, nodes: list[NodeSpec]) -> None:
        for node in nodes:
            if node.id in self._effects:
                raise UsageError(
                    f"step {node.id!r} is an effect, and an earlier step has made it",
                    hint="An effect happens once: take it first, value = await "
                    "run.call(step), and pass the value on. To make it again, call the "
                    "operator again.",
                )

    def _origin_of(self, step: Node, nodes: list[NodeSpec]) -> Origin:
        """Where the literals of these nodes and of the step itself came from."""
        args = [arg for node in nodes for arg in node.args.values()]
        args += [ref_of(step), *(region.items for region in self.regions_of(nodes))]
        ids = [id(leaf) for arg in args for leaf in leaves(arg)]
        found = [self._origins[part][1] for part in ids if part in self._origins]
        return NOWHERE.union(*found)


def step_trace(step: Node) -> AgentTrace:
    """Where an agent's step was declared. Errors: `UsageError` for a workflow's node."""
    trace = trace_of(step)
    if not isinstance(trace, AgentTrace):
        raise UsageError(
            f"{step!r} belongs to a workflow, not to this agent",
            hint="Call the operator inside the agent.",
        )
    return trace


def together(steps: Mapping[str, Any]) -> Any:
    """The outputs of a workflow as one step; as they are when there is none among them."""
    first = next(symbols_in(dict(steps)), None)
    if not isinstance(first, Node):
        return steps
    trace = step_trace(first)
    arg = trace.lower(dict(steps), ANY_VALUE, "run.call")
    return trace.symbol(arg or Lit(None), "outputs")


def text_node(spec: WorkflowSpec) -> str | None:
    """The node whose text a fragment gives; None when it gives no text or not that of one
    node."""
    output = spec.outputs["output"]
    if isinstance(output, NodeRef):
        node = spec.nodes[spec.index[output.node]]
        if node.output is PortType.TEXT and not node.region:
            return node.id
    return None


def _renamed(nodes: list[NodeSpec]) -> dict[str, str]:
    """Ids within a fragment: the label, else the operator's name with a number."""
    taken: dict[str, int] = {}
    renamed: dict[str, str] = {}
    for node in nodes:
        name = node.label or node.operator.rpartition("@")[0] or node.id
        taken[name] = taken.get(name, 0) + 1
        renamed[node.id] = name if taken[name] == 1 else f"{name}_{taken[name]}"
    return renamed


class _Lift:
    """Moves values out of arguments, and those of steps that were taken, into the
    fragment's inputs. ``origin`` is where the latter came from."""

    def __init__(
        self,
        renamed: Mapping[str, str],
        kept: Mapping[str, Revealed],
        nodes: Mapping[str, NodeSpec],
    ) -> None:
        self._renamed = renamed
        self._kept = kept
        self._nodes = nodes
        self._taken: dict[str, InputRef] = {}
        self.declared: list[InputSpec] = []
        self.values: dict[str, Any] = {}
        self.origin = NOWHERE

    def node(self, node: NodeSpec) -> NodeSpec:
        """The node as the fragment has it."""
        return msgspec.structs.replace(
            node,
            id=self._renamed[node.id],
            args={name: self.arg(arg, node, name) for name, arg in node.args.items()},
            guards=tuple(
                Guard(self.condition(guard.condition), guard.holds) for guard in node.guards
            ),
        )

    def arg(self, arg: Arg, node: NodeSpec | None, name: str) -> Arg:
        """The argument with its values lifted and its nodes renamed."""
        match arg:
            case Lit(value):
                return self._lifted(value, node, name)
            case NodeRef(source):
                return self._seen(source)
            case ListRef(items):
                return ListRef(tuple(self.arg(item, None, name) for item in items))
            case ChoiceRef(condition, then, otherwise):
                return ChoiceRef(
                    self.condition(condition),
                    self.arg(then, None, name),
                    self.arg(otherwise, None, name),
                )
            case Expr(function, args):
                return Expr(function, {k: self.arg(v, None, k) for k, v in args.items()})
            case _:
                return arg

    def condition(
        self, condition: InputRef | NodeRef | ItemRef
    ) -> InputRef | NodeRef | ItemRef:
        """A condition with its node renamed."""
        return self._seen(condition.node) if isinstance(condition, NodeRef) else condition

    def region(self, region: Region) -> Region:
        """A region with its list lifted or its node renamed."""
        items = self.arg(region.items, None, "items")
        assert isinstance(items, InputRef | NodeRef | Lit)
        return msgspec.structs.replace(region, items=items)

    def _lifted(self, value: Any, node: NodeSpec | None, name: str) -> Lit | InputRef:
        if not isinstance(value, str | list | dict | bytes) and not hasattr(value, "shape"):
            return Lit(value)
        port = next((p for p in node.ports if p.name == name), None) if node else None
        if port is not None and not port.required and value == port.default:
            return Lit(value)
        if port is None:
            return self._declared(PortType.ANY, value)
        variable = port.name.startswith(VAR) and not port.constraint.non_empty
        return self._declared(port.type, value, open=variable)

    def _seen(self, source: str) -> NodeRef | InputRef:
        """A node of the fragment, or the value of one that was revealed before."""
        if source in self._renamed:
            return NodeRef(self._renamed[source])
        if source not in self._taken:
            kept = self._kept[source]
            self.origin |= kept.origin
            kind, value = self._nodes[source].output, plain(kept.value)
            blank = value is None or value == ""
            self._taken[source] = self._declared(kind, value, open=blank)
        return self._taken[source]

    def _declared(self, kind: PortType, value: Any, *, open: bool = False) -> InputRef:
        """A fresh input. An ``open`` one has a default: a required text must not be blank
        in a prompt, as a question that a user forgot; what an agent came by may be."""
        fresh = f"v{len(self.declared)}"
        kind = PortType.ANY if open else kind
        self.declared.append(InputSpec(fresh, kind, not open, optional=value is None))
        self.values[fresh] = value
        return InputRef(fresh)
