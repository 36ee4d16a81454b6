"""What is told of a fragment that ended: its nodes' records and its outputs."""

from __future__ import annotations

from herasys_rt.core import relatives
from herasys_rt.core.commands import NodeRecord
from herasys_rt.core.state import Fragment, Node, State, Template
from herasys_rt.core.values import Value

Outputs = tuple[
    tuple[tuple[int, Value], ...],
    tuple[tuple[int, tuple[Value, ...]], ...],
    tuple[int, ...],
]
"""(outputs, gathered outputs, positions without a value), as `FinishRun` has them."""


def outputs_of(fragment: Fragment) -> Outputs:
    """The outputs of a fragment that succeeded."""
    outputs: list[tuple[int, Value]] = []
    gathered: list[tuple[int, tuple[Value, ...]]] = []
    skipped: list[int] = []
    for position in fragment.plan.topology.outputs:
        node = fragment.nodes[position]
        if node.state == "skipped":
            skipped.append(position)
        elif isinstance(node, Template):
            gathered.append((position, tuple([_value(e) for e in node.elements])))
        else:
            outputs.append((position, _value(node)))
    return tuple(outputs), tuple(gathered), tuple(skipped)


def records_of(
    state: State, fragment: Fragment, nodes: list[Node]
) -> tuple[NodeRecord, ...]:
    """The records of a fragment's counted ``nodes``; counts them in the accounting."""
    if fragment.run.agent is None:
        return tuple([_record(state, node) for node in nodes])
    number = fragment.number
    return tuple([_record(state, node, number, _parents(node)) for node in nodes])


def _record(
    state: State, node: Node, fragment: int = 0, parents: tuple[str, ...] = ()
) -> NodeRecord:
    spec = node.fragment.plan.spec.nodes[node.position]
    name = spec.id if node.element < 0 else node.id
    totals, result, node_state = state.totals, node.result, node.state
    fused_into, reused = node.fused_into, node.reused
    counts = state.savings.of(spec.operator, node.run.tenant)
    counts.seen += 1
    instance, meta, queued_s, run_s, attempts = "", b"", 0.0, 0.0, 0
    share, billed_s = 0.0, 0.0
    if result is not None:
        meta = result.meta
        if not reused:
            instance = result.instance
            if node_state == "succeeded" or node_state == "failed":
                share = 1.0 / result.members
                billed_s = result.spent_s * share
            if not fused_into:
                queued_s, run_s = result.queued_s, result.run_s
                attempts = result.attempts
        if (reused or fused_into) and node_state == "succeeded":
            counts.spare(result)
    if node_state == "cancelled":
        totals.cancelled += 1
    elif node_state == "skipped":
        totals.skipped += 1
    elif reused:
        totals.reused += 1
        counts.reused += 1
    elif fused_into:
        totals.fused += 1
        counts.joined += 1
    else:
        totals.executed += 1
        counts.executed += 1
    if node_state == "failed":
        totals.failed += 1
    return NodeRecord(
        name,
        spec.operator,
        node_state,
        instance,
        queued_s,
        run_s,
        fused_into,
        reused,
        attempts,
        meta,
        fragment,
        parents,
        share,
        billed_s,
    )


def _parents(node: Node) -> tuple[str, ...]:
    """Ids of the nodes that an agent's node used: within its fragment, or when there are
    none, those that the values of the fragment came from."""
    found: list[str] = []
    for parent in relatives.above(node):
        if not relatives.asks(node, parent.position):
            continue
        many = isinstance(parent, Template)
        for each in parent.elements if many else [parent]:
            found.append(f"{node.fragment.number}/{each.id}")
    return tuple(found) or node.fragment.parents


def _value(node: Node) -> Value:
    assert node.result is not None and node.result.value is not None
    return node.result.value.bare()
