"""Whether a spec is well formed: names, references, types on edges, ranges, order.

Both a traced workflow and a spec that arrives over the wire pass through here, so that
the rules of a graph have one home (`graph.arguments` and `graph.branches` are parts of
it). `check_inputs` and `parse_input_text`, which hold a run's inputs against a spec, live
in `graph.inputs` and are offered here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from herasys_rt.errors import Fault
from herasys_rt.graph import codec
from herasys_rt.graph.arguments import (
    argument_faults,
    described,
    givers,
    list_fault,
    reference_faults,
)
from herasys_rt.graph.branches import branch_faults
from herasys_rt.graph.checks import finite_fault, nearest
from herasys_rt.graph.inputs import check_inputs, describe_inputs, parse_input_text
from herasys_rt.graph.reductions import REDUCTIONS
from herasys_rt.graph.shapes import Scope
from herasys_rt.graph.spec import (
    InputSpec,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    Region,
    Retry,
    WorkflowSpec,
    node_refs,
)
from herasys_rt.graph.topology import topological_order
from herasys_rt.graph.types import PortType, describe, value_fault

__all__ = ["check_inputs", "describe_inputs", "parse_input_text", "validate_spec"]

PURITIES = ("pure", "sampled", "effect")
SHARES = ("tenant", "public")
_PRIORITY_MAX = 2**31 - 1


def validate_spec(spec: WorkflowSpec, *, complete: bool = True) -> list[Fault]:
    """Every fault of a spec, in reading order; an empty list when it can run.

    The spec of an agent has inputs and nothing else. Of one that is not ``complete``,
    because parts of it were refused already, nobody can say which nodes nobody needs.
    """
    faults = list(_heading_faults(spec))
    if spec.agent:
        if spec.nodes or spec.outputs or spec.regions:
            faults.append(Fault(spec.name, "is an agent's and may hold inputs only"))
        return faults
    scope = Scope.of(spec)
    for region in spec.regions:
        faults.extend(_region_faults(spec, region, scope))
    for position, node in enumerate(spec.nodes):
        before = {n.id: n for n in spec.nodes[:position]}
        here = replace(scope, region=node.region, earlier=before)
        faults.extend(_node_faults(spec, node, here))
    faults.extend(_output_faults(spec, scope))
    faults.extend(branch_faults(spec))
    faults.extend(_order_faults(spec))
    if complete and not faults:  # only a sound graph tells who reaches an output
        faults.extend(_dead_faults(spec))
    return faults


def needed_nodes(spec: WorkflowSpec) -> set[str]:
    """Ids of the nodes that an output or an effect depends on, themselves included."""
    parents = {node.id: spec.parents_of(node) for node in spec.nodes}
    reach = [ref.node for ref in node_refs(spec.outputs)]
    reach.extend(node.id for node in spec.nodes if node.purity == "effect")
    needed: set[str] = set()
    while reach:
        node_id = reach.pop()
        if node_id not in needed:
            needed.add(node_id)
            reach.extend(parents.get(node_id, ()))
    return needed


def _heading_faults(spec: WorkflowSpec) -> Iterator[Fault]:
    if not spec.name.strip():
        yield Fault("workflow", "has no name")
    if spec.share not in SHARES:
        yield Fault("share", f"is {spec.share!r}", f"one of {', '.join(SHARES)}")
    yield from _twice("input", [item.name for item in spec.inputs])
    yield from _twice("node", [node.id for node in spec.nodes])
    yield from _twice("region", [region.id for region in spec.regions])
    for item in spec.inputs:
        fault = None if item.required else _default_fault(item)
        if fault:
            yield Fault(f"input {item.name}", f"default: {fault}")


def _default_fault(item: InputSpec) -> str | None:
    if item.default is None:
        loose = item.optional or item.type in (PortType.ANY, PortType.JSON)
        return None if loose else f"expected {item.type.value}, got None"
    return (
        codec.fault_of(item.default, item.name)
        or finite_fault(item.default, item.name)
        or value_fault(item.default, item.type)
    )


def _twice(what: str, names: list[str]) -> Iterator[Fault]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Fault(f"{what} {name}", f"{names.count(name)} of this name")


# Regions


def _region_faults(spec: WorkflowSpec, region: Region, scope: Scope) -> Iterator[Fault]:
    where = f"region {region.id}"
    if not region.id:
        yield Fault("a region", "has no id")
    if not _is_count(region.max_items, 1):
        problem = f"max_items is {describe(region.max_items)}"
        yield Fault(where, problem, "a whole number from 1")
    if not any(node.region == region.id for node in spec.nodes):
        yield Fault(where, "has no nodes")
    unknown = list(reference_faults(region.items, where, scope))
    yield from unknown
    fault = None if unknown else list_fault(region.items, scope)
    if fault:
        yield Fault(where, f"goes over no list: {fault}")
    items = region.items
    if isinstance(items, Lit):
        yield from _literal_list_faults(where, region, items.value)
    elif isinstance(items, NodeRef):
        source = scope.nodes.get(items.node)
        if source is not None and source.region:
            problem = f"goes over {described(items)}, which is in a region itself"
            yield Fault(where, problem, "regions do not nest")


def _literal_list_faults(where: str, region: Region, value: Any) -> Iterator[Fault]:
    fault = codec.fault_of(value, "items") or finite_fault(value, "items")
    if fault:
        yield Fault(where, fault)
    elif isinstance(value, list | tuple):
        count = len(value)  # pyright: ignore[reportUnknownArgumentType]
        if _is_count(region.max_items, 1) and count > region.max_items:
            yield Fault(where, f"has {count} items, at most {region.max_items} are allowed")


# Nodes


def _node_faults(spec: WorkflowSpec, node: NodeSpec, scope: Scope) -> Iterator[Fault]:
    where = node.id or "a node without id"
    if not node.id or not node.operator or not node.verb or not node.resource:
        yield Fault(where, "id, operator, verb and resource must not be empty")
    if node.purity not in PURITIES:
        yield Fault(where, f"purity is {node.purity!r}", f"one of {', '.join(PURITIES)}")
    if node.region and node.region not in spec.region_index:
        problem = f"is in region {node.region!r}, which does not exist"
        yield Fault(where, problem, nearest(node.region, spec.region_index))
    if node.sample is not None and (node.sampling is None or node.purity != "pure"):
        yield Fault(where, "has the number of a sample and does not sample")
    yield from _option_faults(node)
    ports = {port.name: port for port in node.ports}
    for name in node.args:
        if name not in ports:
            yield Fault(where, f"has no argument {name!r}", nearest(name, ports))
    for name, port in ports.items():
        spot = f"{where}.{name}"
        if name in node.args:
            yield from argument_faults(node.args[name], port, spot, scope)
        elif port.required:
            problem = f"missing; it takes {port.type}"
            yield Fault(spot, problem, givers(port.type, scope))
    for i, guard in enumerate(node.guards):
        yield from reference_faults(guard.condition, f"{where}: condition {i + 1}", scope)
    named = [node.collection] if node.collection is not None else []
    named += [node.sampling.amount, node.sampling.seed] if node.sampling else []
    for name in named:
        if name not in ports or not ports[name].is_param:
            yield Fault(where, f"refers to {name!r}, which is none of its parameters")
    if node.list_port is not None and node.list_port not in ports:
        yield Fault(where, f"refers to {node.list_port!r}, which is none of its ports")
    yield from _reduction_faults(node, where, ports)


def _reduction_faults(
    node: NodeSpec, where: str, ports: Mapping[str, Port]
) -> Iterator[Fault]:
    reduction = node.reduction
    if reduction is None:
        return
    if reduction.function not in REDUCTIONS:
        problem = f"there is no reduction {reduction.function!r}"
        yield Fault(where, problem, nearest(reduction.function, REDUCTIONS))
    if node.list_port is None:
        yield Fault(where, "has a reduction and no list port")
    for name in reduction.params:
        if name not in ports or name == node.list_port:
            problem = f"its reduction reads {name!r}, which is none of its parameters"
            yield Fault(where, problem)


def _option_faults(node: NodeSpec) -> Iterator[Fault]:
    options = node.options
    for name in ("timeout_s", "cache_ttl_s"):
        value = getattr(options, name)
        if value is not None and not _is_span(value, above=0.0):
            shown = "cache" if name == "cache_ttl_s" else name
            problem = f"must be a number of seconds above 0, got {describe(value)}"
            yield Fault(f"{node.id}.{shown}", problem)
    if not _is_count(options.priority, -_PRIORITY_MAX, _PRIORITY_MAX):
        problem = f"must be a whole number of 32 bits, got {describe(options.priority)}"
        yield Fault(f"{node.id}.priority", problem)
    if options.retry is not None:
        yield from _retry_faults(f"{node.id}.retry", options.retry)


def _retry_faults(where: str, retry: Retry) -> Iterator[Fault]:
    if not _is_count(retry.max_attempts, 1, 100):
        got = describe(retry.max_attempts)
        yield Fault(f"{where}.max_attempts", f"must be a whole number 1 to 100, got {got}")
    for name, low, high in (
        ("initial_interval_s", 0.0, math.inf),
        ("backoff_factor", 1.0, math.inf),
        ("max_interval_s", 0.0, math.inf),
        ("jitter", 0.0, 1.0),
    ):
        value = getattr(retry, name)
        if not _is_span(value) or not low <= value <= high:
            bounds = f"from {low:g}" + ("" if high == math.inf else f" to {high:g}")
            problem = f"must be a number {bounds}, got {describe(value)}"
            yield Fault(f"{where}.{name}", problem)
    codes: Any = retry.retry_on
    if not isinstance(codes, tuple) or not all(isinstance(c, str) and c for c in codes):  # pyright: ignore[reportUnknownVariableType]
        problem = f"must be error codes, got {describe(codes)}"
        yield Fault(f"{where}.retry_on", problem, "for example 'node_timeout'")


def _is_count(value: Any, low: int, high: int = 2**53) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and low <= value <= high


def _is_span(value: Any, above: float = -math.inf) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > above


# The whole


def _output_faults(spec: WorkflowSpec, scope: Scope) -> Iterator[Fault]:
    if not spec.outputs:
        yield Fault("output", "the workflow has none", "return a node, or a dict of nodes")
    for name, arg in spec.outputs.items():
        where = f"output {name}"
        broken = list(reference_faults(arg, where, scope))
        yield from broken
        if not broken and not node_refs({name: arg}):
            problem = f"is {described(arg)}, which no node makes"
            yield Fault(where, problem, "return a node, or a dict of nodes")


def _order_faults(spec: WorkflowSpec) -> Iterator[Fault]:
    position = spec.index
    late = [
        (node.id, parent)
        for i, node in enumerate(spec.nodes)
        for parent in spec.parents_of(node)
        if position.get(parent, -1) >= i
    ]
    if not late:
        return
    _, cyclic = topological_order(spec)
    if cyclic:
        yield Fault(f"nodes {', '.join(cyclic)}", "depend on each other in a cycle")
    for node_id, parent in () if cyclic else late:
        yield Fault(node_id, f"stands before node {parent!r}, whose output it takes")


def _dead_faults(spec: WorkflowSpec) -> Iterator[Fault]:
    needed = needed_nodes(spec)
    for node in spec.nodes:
        if node.id not in needed:
            problem = "no output depends on it"
            yield Fault(node.id, problem, "return it, pass it on or remove it")
