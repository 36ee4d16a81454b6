"""The shape of a spec: successors, depth to the sink, order. Computed once per spec."""

from __future__ import annotations

from typing import NamedTuple

from herasys_rt.graph.spec import NodeSpec, WorkflowSpec, node_refs


class Topology(NamedTuple):
    """Positions refer to ``spec.nodes``.

    ``parents[i]`` and ``successors[i]`` list positions, once each: everything that ``i``
    waits for, be it for an argument, a guard or the list of its region (`parents_of`).
    ``depth[i]`` is the reverse topological depth d_v (layers to the sink; a sink has 0;
    HeraSys section 3.1); ``sinks`` are the nodes without successors; ``outputs`` the
    nodes that the run's outputs are read from.
    """

    parents: tuple[tuple[int, ...], ...]
    successors: tuple[tuple[int, ...], ...]
    depth: tuple[int, ...]
    sinks: tuple[int, ...]
    outputs: tuple[int, ...]


def topological_order(spec: WorkflowSpec) -> tuple[list[NodeSpec], list[str]]:
    """Nodes ordered so that parents come first (stable), and the ids left in cycles."""
    remaining = {node.id: node for node in spec.nodes}
    waiting = {
        node.id: {p for p in spec.parents_of(node) if p in remaining} for node in spec.nodes
    }
    ordered: list[NodeSpec] = []
    progress = True
    while remaining and progress:
        progress = False
        for node_id in list(remaining):
            if not waiting[node_id]:
                ordered.append(remaining.pop(node_id))
                for parents in waiting.values():
                    parents.discard(node_id)
                progress = True
    return ordered, list(remaining)


def topology_of(spec: WorkflowSpec) -> Topology:
    """The topology of a spec whose nodes are in topological order."""
    index = spec.index
    parents = tuple(tuple(index[p] for p in spec.parents_of(node)) for node in spec.nodes)
    successors: list[list[int]] = [[] for _ in spec.nodes]
    for position, above in enumerate(parents):
        for parent in above:
            successors[parent].append(position)
    depth = [0] * len(spec.nodes)
    for position in reversed(range(len(spec.nodes))):
        below = successors[position]
        depth[position] = 1 + max(depth[s] for s in below) if below else 0
    outputs: dict[int, None] = {}
    for ref in node_refs(spec.outputs):
        outputs[index[ref.node]] = None
    return Topology(
        parents=parents,
        successors=tuple(tuple(s) for s in successors),
        depth=tuple(depth),
        sinks=tuple(i for i, s in enumerate(successors) if not s),
        outputs=tuple(outputs),
    )
