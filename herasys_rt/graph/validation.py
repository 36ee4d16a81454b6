"""Whether a spec is well formed: names, references, types on edges, ranges, order.

Both a traced workflow and a spec that arrives over the wire pass through here, so that
the rules of a graph have one home. `check_inputs` and `parse_input_text`, which hold a
run's inputs against a spec, live in `graph.inputs` and are offered here too.
"""

from __future__ import annotations

from collections.abc import Iterator

from herasys_rt.errors import Fault
from herasys_rt.graph import codec
from herasys_rt.graph.checks import (
    ITEM_TYPES,
    constraint_fault,
    finite_fault,
    nearest,
    port_fault,
)
from herasys_rt.graph.inputs import check_inputs, describe_inputs, parse_input_text
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    InputSpec,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    WorkflowSpec,
    node_refs,
)
from herasys_rt.graph.topology import topological_order
from herasys_rt.graph.types import PortType, fits, value_fault

__all__ = ["check_inputs", "describe_inputs", "parse_input_text", "validate_spec"]

PURITIES = ("pure", "sampled", "effect")
SHARES = ("tenant", "public")


def validate_spec(spec: WorkflowSpec) -> list[Fault]:
    """Every fault of a spec, in reading order; an empty list when it can run."""
    faults = list(_heading_faults(spec))
    for node in spec.nodes:
        faults.extend(_node_faults(spec, node))
    faults.extend(_output_faults(spec))
    faults.extend(_order_faults(spec))
    if not faults:  # only a sound graph tells who reaches an output
        faults.extend(_dead_faults(spec))
    return faults


def needed_nodes(spec: WorkflowSpec) -> set[str]:
    """Ids of the nodes that an output or an effect depends on, themselves included."""
    parents = {node.id: node.parents for node in spec.nodes}
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


def _node_faults(spec: WorkflowSpec, node: NodeSpec) -> Iterator[Fault]:
    where = node.id or "a node without id"
    if not node.id or not node.operator or not node.verb or not node.resource:
        yield Fault(where, "id, operator, verb and resource must not be empty")
    if node.purity not in PURITIES:
        yield Fault(where, f"purity is {node.purity!r}", f"one of {', '.join(PURITIES)}")
    ports = {port.name: port for port in node.ports}
    for name in node.args:
        if name not in ports:
            yield Fault(where, f"has no argument {name!r}", nearest(name, ports))
    for name, port in ports.items():
        if name in node.args:
            yield from _argument_faults(spec, node, port, node.args[name])
        elif port.required:
            fits_here = _givers(spec, node.id, port.type)
            yield Fault(f"{where}.{name}", f"missing; it takes {port.type}", fits_here)
    named = [node.collection] if node.collection is not None else []
    named += [node.sampling.amount, node.sampling.seed] if node.sampling else []
    for name in named:
        if name not in ports or not ports[name].is_param:
            yield Fault(where, f"refers to {name!r}, which is none of its parameters")


def _argument_faults(
    spec: WorkflowSpec, node: NodeSpec, port: Port, arg: Arg
) -> Iterator[Fault]:
    where = f"{node.id}.{port.name}"
    if isinstance(arg, ListRef):
        yield from _list_faults(spec, node, port, arg)
    else:
        yield from _part_faults(spec, node, port, port.type, arg, where)


def _list_faults(
    spec: WorkflowSpec, node: NodeSpec, port: Port, arg: ListRef
) -> Iterator[Fault]:
    where = f"{node.id}.{port.name}"
    item_type = ITEM_TYPES.get(port.type)
    if item_type is None:
        yield Fault(where, f"takes {port.type}, not a list of arguments")
        return
    if port.constraint.non_empty and not arg.items:
        yield Fault(where, "is empty")
    item = Port(port.name, item_type, is_param=port.is_param, optional=True)
    for i, part in enumerate(arg.items):
        yield from _part_faults(spec, node, item, item_type, part, f"{where}[{i}]")


def _part_faults(
    spec: WorkflowSpec,
    node: NodeSpec,
    port: Port,
    wanted: PortType,
    arg: Lit | InputRef | NodeRef,
    where: str,
) -> Iterator[Fault]:
    match arg:
        case Lit(value):
            fault = codec.fault_of(value, "value") or finite_fault(value, "value")
            fault = fault or port_fault(value, port)
            if fault:
                yield Fault(where, fault)
        case InputRef(name):
            yield from _input_ref_faults(spec, node, port, name, where)
        case NodeRef(source):
            position = spec.index.get(source)
            if position is None:
                yield Fault(where, f"refers to node {source!r}, which does not exist")
            elif port.is_param:
                problem = f"is a parameter and cannot take the output of node {source!r}"
                yield Fault(where, problem, "a literal or an input of the workflow")
            elif not fits(spec.nodes[position].output, wanted):
                given = spec.nodes[position].output
                problem = f"takes {wanted}, got {given} from node {source!r}"
                yield Fault(where, problem, _givers(spec, node.id, wanted))


def _input_ref_faults(
    spec: WorkflowSpec, node: NodeSpec, port: Port, name: str, where: str
) -> Iterator[Fault]:
    declared = next((item for item in spec.inputs if item.name == name), None)
    if declared is None:
        known = [item.name for item in spec.inputs]
        yield Fault(where, f"refers to input {name!r}, which is none", nearest(name, known))
        return
    loose = declared.type in (PortType.ANY, PortType.JSON)
    if not (loose or fits(declared.type, port.type)):
        problem = f"takes {port.type}, got {declared.type} from input {name!r}"
        yield Fault(where, problem, _givers(spec, node.id, port.type))
    elif declared.optional and not (loose or port.optional):
        yield Fault(where, f"takes {port.type}, and input {name!r} may be None")
    elif not declared.required and declared.default is not None:
        fault = constraint_fault(declared.default, port.constraint)
        if fault:
            yield Fault(where, f"default of input {name!r} {fault}")


def _givers(spec: WorkflowSpec, taker: str, wanted: PortType) -> str:
    """What in the workflow would have fitted, for the reader of a fault."""
    names = [f"input {i.name!r}" for i in spec.inputs if _gives(i.type, wanted)]
    names += [
        f"node {n.id!r}"
        for n in spec.nodes[: spec.index.get(taker, len(spec.nodes))]
        if _gives(n.output, wanted)
    ]
    if not names:
        return f"nothing before it gives {wanted}"
    return f"{wanted} comes from {', '.join(names)}"


def _gives(produced: PortType, wanted: PortType) -> bool:
    return produced != PortType.ANY and fits(produced, wanted)


def _output_faults(spec: WorkflowSpec) -> Iterator[Fault]:
    if not spec.outputs:
        yield Fault("output", "the workflow has none", "return a node, or a dict of nodes")
    known_inputs = [item.name for item in spec.inputs]
    for name, arg in spec.outputs.items():
        where = f"output {name}"
        parts = arg.items if isinstance(arg, ListRef) else (arg,)
        for part in parts:
            if isinstance(part, NodeRef) and part.node not in spec.index:
                problem = f"is read from node {part.node!r}, which does not exist"
                yield Fault(where, problem, nearest(part.node, spec.index))
            if isinstance(part, InputRef) and part.name not in known_inputs:
                problem = f"is read from input {part.name!r}, which is none"
                yield Fault(where, problem, nearest(part.name, known_inputs))


def _order_faults(spec: WorkflowSpec) -> Iterator[Fault]:
    position = spec.index
    late = [
        (node.id, parent)
        for i, node in enumerate(spec.nodes)
        for parent in node.parents
        if position.get(parent, -1) >= i
    ]
    if not late:
        return
    _, cyclic = topological_order(list(spec.nodes))
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
