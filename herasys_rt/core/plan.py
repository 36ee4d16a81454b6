"""What the kernel needs of a spec, computed once per spec."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import NodeSpec, WorkflowSpec, node_refs
from herasys_rt.graph.topology import Topology, topology_of

if TYPE_CHECKING:
    from herasys_rt.core.state import Pool


@dataclass(slots=True, eq=False)
class Plan:
    """A spec with its topology and, per position, the facts that decide a node's path.

    ``root`` marks nodes a run must not end without: its outputs and its effects.
    ``listens`` marks streaming outputs. ``pools`` is None until resolved, and again
    whenever a pool was declared.
    """

    spec: WorkflowSpec
    spec_id: str
    topology: Topology
    root: tuple[bool, ...]
    pure: tuple[bool, ...]
    effect: tuple[bool, ...]
    listens: tuple[bool, ...]
    pools: tuple[Pool, ...] | None = field(default=None)


def spec_fault(spec: WorkflowSpec) -> ErrorInfo | None:
    """Why the kernel cannot run a spec that no tracer made; None when it can."""
    seen: set[str] = set()
    problem = ""
    for node in spec.nodes:
        problem = problem or next(
            (f"node {node.id!r} comes before {p!r}" for p in node.parents if p not in seen),
            f"two nodes are called {node.id!r}" if node.id in seen else "",
        )
        seen.add(node.id)
    for ref in node_refs(spec.outputs):
        if ref.node not in seen:
            problem = problem or f"an output is read from {ref.node!r}, which is no node"
    if not problem:
        return None
    return ErrorInfo(
        "invalid_graph",
        f"workflow {spec.name!r} cannot run: {problem}",
        "Register what tracing a workflow gives: nodes in topological order.",
    )


def plan_of(spec: WorkflowSpec) -> Plan:
    """The plan of a spec whose nodes are in topological order."""
    topology = topology_of(spec)
    outputs = set(topology.outputs)
    effect = tuple(node.purity == "effect" for node in spec.nodes)
    return Plan(
        spec=spec,
        spec_id=spec.id,
        topology=topology,
        root=tuple(i in outputs or effect[i] for i in range(len(spec.nodes))),
        pure=tuple(node.purity == "pure" for node in spec.nodes),
        effect=effect,
        listens=tuple(n.streams and i in outputs for i, n in enumerate(spec.nodes)),
    )


def resolve_pools(plan: Plan, pools: Iterable[Pool]) -> ErrorInfo | None:
    """Choose each node's pool into ``plan.pools``; the error when a node has none."""
    if plan.pools is not None:
        return None
    known = tuple(pools)
    chosen: list[Pool] = []
    for node in plan.spec.nodes:
        pool = pool_for(node, known)
        if isinstance(pool, ErrorInfo):
            return pool
        chosen.append(pool)
    plan.pools = tuple(chosen)
    return None


def pool_for(node: NodeSpec, pools: tuple[Pool, ...]) -> Pool | ErrorInfo:
    """The pool that serves a node, or why none does.

    Of the pools that have the resource and the verb: the one that answers to the node's
    model, or without a model the default one, or the only one.
    """
    able = [
        pool
        for pool in pools
        if pool.decl.resource == node.resource and node.verb in pool.decl.verbs
    ]
    if not able:
        return _no_pool(node, pools)
    if node.model is None:
        fit = [pool for pool in able if pool.decl.default] or able
        return fit[0] if len(fit) == 1 else _ambiguous(node, fit)
    fit = [pool for pool in able if node.model in pool.decl.names]
    fit = [pool for pool in fit if pool.decl.default] or fit
    return fit[0] if fit else _unknown_model(node, able)


def _no_pool(node: NodeSpec, pools: tuple[Pool, ...]) -> ErrorInfo:
    have = "; ".join(
        f"{p.decl.pool} ({p.decl.resource}: {', '.join(p.decl.verbs) or 'no verbs'})"
        for p in pools
    )
    return ErrorInfo(
        "no_pool",
        f"node {node.id!r} needs {node.verb} of resource {node.resource!r} and no pool "
        f"offers it; pools: {have or 'none'}",
        "Add a pool of that resource to the configuration.",
    )


def _ambiguous(node: NodeSpec, pools: list[Pool]) -> ErrorInfo:
    names = ", ".join(pool.decl.pool for pool in pools)
    return ErrorInfo(
        "no_pool",
        f"node {node.id!r} names no model and of the pools of resource "
        f"{node.resource!r} ({names}) not exactly one is the default",
        "Name a model in the workflow, or say 'default: true' for one pool.",
    )


def _unknown_model(node: NodeSpec, able: list[Pool]) -> ErrorInfo:
    have = "; ".join(
        f"{p.decl.pool}: {', '.join(p.decl.names) or 'no model'}" for p in able
    )
    return ErrorInfo(
        "unknown_model",
        f"node {node.id!r} wants model {node.model!r} for {node.verb}; pools answer to "
        f"{have}",
        "Use one of these names, or add a pool with that model to the configuration.",
    )
