"""What the kernel needs of a spec, computed once per spec."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from herasys_rt.core.limits import Limit, limits_of
from herasys_rt.core.lists import ListSource, Texts, list_source
from herasys_rt.core.needs import Needs, conditions_on_items, needs_of
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.facts import items_of
from herasys_rt.graph.hashing import SHA256, Hash
from herasys_rt.graph.preimage import item_args
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    ItemRef,
    Lit,
    NodeOptions,
    NodeRef,
    NodeSpec,
    Region,
    WorkflowSpec,
    leaves,
    node_refs,
)
from herasys_rt.graph.topology import Topology, topology_of

if TYPE_CHECKING:
    from herasys_rt.core.instances import Pool

OUTSIDE = -1
"""The region of a node that is in none."""


class Area(NamedTuple):
    """A region: where its list comes from, and how long it may be.

    Of ``giver`` (position of a node, or -1), ``source`` (name of an input, or ``""``)
    and ``length`` (of a literal; -1 when that is no list) the first that is set counts.
    ``items`` are the digests of a literal's items, if they have any.
    """

    id: str
    giver: int
    source: str
    length: int
    max_items: int
    items: tuple[bytes, ...] = ()


@dataclass(slots=True, eq=False)
class Plan:
    """A spec with its topology and, per position, the facts that decide a node's path.

    ``parents`` are the positions that a node takes outputs from or whose truth it asks,
    ``takes`` those of them that decide its value: not what only its guards ask;
    ``asks`` these and the one that gives its region's list, ``successors`` the reverse
    of ``asks``. ``region`` is an index into ``areas`` or `OUTSIDE`. ``needs`` is None for
    a node that is not conditional; ``fickle`` marks nodes of regions for which elements
    may differ in what they need, or in whether they run. A ``flat`` plan has neither
    regions nor conditions, a ``timed`` one has a node with a timeout. ``asked`` are the
    inputs whose facts decide. ``itemised`` marks nodes whose output's items are looked at
    one by one: a region goes over it, or it stands at a list port; ``texts`` those whose
    records' texts are. ``lists`` says what stands at each node's list port, and
    ``item_takes`` which nodes decide each item of its output besides, and whether the item
    of the node's region does.

    ``root`` marks nodes a run must not end without: its outputs and its effects; ``roots``
    counts them, ``size`` all nodes outside of regions.
    ``pure`` marks those that may fuse when they are signed, ``keyed`` those of them that
    may do so by structure: not in a region. ``reuses`` marks those that may take completed
    results by structure: neither they nor their ancestors are kept out of the cache. What
    is kept out of it takes nothing from there, nor do those that it is made for.
    ``limits`` are how old what nodes take may be, empty where none says so.
    ``listens`` marks streaming outputs. ``pools`` is None until resolved, and again
    whenever a pool was declared.
    """

    spec: WorkflowSpec
    spec_id: str
    topology: Topology
    parents: tuple[tuple[int, ...], ...]
    takes: tuple[tuple[int, ...], ...]
    asks: tuple[tuple[int, ...], ...]
    successors: tuple[tuple[int, ...], ...]
    root: tuple[bool, ...]
    roots: int
    size: int
    pure: tuple[bool, ...]
    keyed: tuple[bool, ...]
    reuses: tuple[bool, ...]
    limits: tuple[Limit, ...]
    effect: tuple[bool, ...]
    listens: tuple[bool, ...]
    options: tuple[NodeOptions, ...]
    priority: tuple[int, ...]
    timed: bool
    region: tuple[int, ...]
    areas: tuple[Area, ...]
    needs: tuple[Needs | None, ...]
    fickle: tuple[bool, ...]
    flat: bool
    asked: frozenset[str]
    itemised: tuple[bool, ...]
    texts: tuple[bool, ...]
    lists: tuple[ListSource, ...]
    item_takes: tuple[tuple[tuple[int, ...], bool], ...]
    pools: tuple[Pool, ...] | None = field(default=None)


def spec_fault(spec: WorkflowSpec) -> ErrorInfo | None:
    """Why the kernel cannot run a spec that no tracer made; None when it can."""
    problem = next(_problems(spec), "")
    if not problem:
        return None
    return ErrorInfo(
        "invalid_graph",
        f"workflow {spec.name!r} cannot run: {problem}",
        "Register what tracing a workflow gives: nodes in topological order.",
    )


def plan_of(spec: WorkflowSpec, hashing: Hash = SHA256) -> Plan:
    """The plan of a spec whose nodes are in topological order; ``hashing`` names the items
    of literal lists."""
    nodes, index, count = spec.nodes, spec.index, len(spec.nodes)
    topology = topology_of(spec)
    outputs = set(topology.outputs)
    effect = tuple(node.purity == "effect" for node in nodes)
    areas = tuple(_area(spec, region, hashing) for region in spec.regions)
    area_at = {region.id: i for i, region in enumerate(spec.regions)}
    region = tuple(area_at.get(node.region, OUTSIDE) for node in nodes)
    givers = [areas[r].giver if r >= 0 else -1 for r in region]
    parents = tuple(tuple(index[p] for p in node.parents) for node in nodes)
    asks = tuple(_with(giver, above) for giver, above in zip(givers, parents, strict=True))
    successors: list[list[int]] = [[] for _ in nodes]
    for position, above in enumerate(asks):
        for parent in above:
            successors[parent].append(position)
    root = tuple(i in outputs or effect[i] for i in range(count))
    pure = tuple(_fusible(node) for node in nodes)
    needs = _conditional([needs_of(spec, node) for node in nodes], asks)
    lists = tuple(list_source(spec, node, hashing) for node in nodes)
    return Plan(
        spec=spec,
        spec_id=spec.id,
        topology=topology,
        parents=parents,
        takes=tuple(_takes(spec, node) for node in nodes),
        asks=asks,
        successors=tuple(tuple(below) for below in successors),
        root=root,
        roots=sum(root),
        size=sum(r < 0 for r in region),
        pure=pure,
        keyed=tuple(p and r < 0 for p, r in zip(pure, region, strict=True)),
        reuses=_reusing(nodes, asks),
        limits=limits_of(nodes, asks),
        effect=effect,
        listens=tuple(
            n.streams and i in outputs and region[i] < 0 for i, n in enumerate(nodes)
        ),
        options=tuple(node.options for node in nodes),
        priority=tuple(node.options.priority for node in nodes),
        timed=any(node.options.timeout_s is not None for node in nodes),
        region=region,
        areas=areas,
        needs=needs,
        fickle=_fickle(needs, region),
        flat=not any(r >= 0 for r in region) and not any(n is not None for n in needs),
        asked=frozenset(spec.asked_inputs),
        itemised=_itemised(areas, lists, region),
        texts=_marked(count, {source.of for source in lists if isinstance(source, Texts)}),
        lists=lists,
        item_takes=tuple(_item_takes(spec, node) for node in nodes),
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


def _fusible(node: NodeSpec) -> bool:
    """Whether equal nodes may share: pure ones, and sampled ones that opted in."""
    return node.purity == "pure" or (node.purity == "sampled" and node.sample is not None)


def _reusing(
    nodes: tuple[NodeSpec, ...], asks: tuple[tuple[int, ...], ...]
) -> tuple[bool, ...]:
    reuses: list[bool] = []
    for node, above in zip(nodes, asks, strict=True):
        reuses.append(node.options.cache and all(reuses[parent] for parent in above))
    return tuple(reuses)


def _takes(spec: WorkflowSpec, node: NodeSpec) -> tuple[int, ...]:
    """Positions of the nodes that a node's arguments name, in order, once each."""
    return tuple(dict.fromkeys(spec.index[ref.node] for ref in node_refs(node.args)))


def _item_takes(spec: WorkflowSpec, node: NodeSpec) -> tuple[tuple[int, ...], bool]:
    """As `_takes`, of the arguments that decide each item of a list's output; and whether
    one of these is the item of the node's region."""
    if node.list_port is None:
        return (), False
    args = item_args(node)
    found = dict.fromkeys(spec.index[ref.node] for ref in node_refs(args))
    return tuple(found), any(_item_leaves(arg) for arg in args.values())


def _with(giver: int, parents: tuple[int, ...]) -> tuple[int, ...]:
    return parents if giver < 0 or giver in parents else (giver, *parents)


def _area(spec: WorkflowSpec, region: Region, hashing: Hash) -> Area:
    giver, source, length = -1, "", -1
    items: tuple[bytes, ...] = ()
    match region.items:
        case NodeRef(node):
            giver = spec.index[node]
        case InputRef(name):
            source = name
        case Lit(value):
            if isinstance(value, list | tuple):
                length = len(cast("list[Any]", value))
                items = items_of(value, hashing)
    return Area(region.id, giver, source, length, region.max_items, items)


def _itemised(
    areas: tuple[Area, ...], lists: tuple[ListSource, ...], region: tuple[int, ...]
) -> tuple[bool, ...]:
    """Marks nodes whose output's items somebody looks at one by one. A region's outputs
    are items already, for whoever takes them together."""
    wanted = {a.giver for a in areas if a.giver >= 0 and region[a.giver] == OUTSIDE}
    for position, source in enumerate(lists):
        if isinstance(source, int) and region[source] in (OUTSIDE, region[position]):
            wanted.add(source)
    return _marked(len(region), wanted)


def _marked(count: int, wanted: Collection[str | int]) -> tuple[bool, ...]:
    return tuple(position in wanted for position in range(count))


def _conditional(
    all_needs: list[Needs], asks: tuple[tuple[int, ...], ...]
) -> tuple[Needs | None, ...]:
    """The needs of the conditional nodes; None for the others."""
    chosen: list[Needs | None] = []
    for needs, above in zip(all_needs, asks, strict=True):
        doubtful = any(chosen[parent] is not None for parent in above)
        chosen.append(needs if doubtful or needs.guards or needs.choices else None)
    return tuple(chosen)


def _fickle(needs: tuple[Needs | None, ...], region: tuple[int, ...]) -> tuple[bool, ...]:
    """Marks nodes whose guards, choices or parents differ from element to element."""
    fickle: list[bool] = []
    for position, mine in enumerate(needs):
        area = region[position]
        fickle.append(
            mine is not None and area >= 0 and _differs(mine, area, region, fickle)
        )
    return tuple(fickle)


def _differs(needs: Needs, area: int, region: tuple[int, ...], fickle: list[bool]) -> bool:
    def inside(condition: int | str) -> bool:
        return isinstance(condition, int) and region[condition] == area

    return (
        any(region[p] == area and fickle[p] for p in needs.always)
        or any(inside(condition) for condition, _ in needs.guards)
        or any(
            inside(choice.condition)
            or _differs(choice.then, area, region, fickle)
            or _differs(choice.otherwise, area, region, fickle)
            for choice in needs.choices
        )
    )


def _problems(spec: WorkflowSpec) -> Iterator[str]:
    """What is wrong with a spec, in reading order."""
    seen: set[str] = set()
    regions = {region.id: region for region in spec.regions}
    if len(regions) != len(spec.regions):
        yield "two regions have one name"
    for node in spec.nodes:
        if node.id in seen:
            yield f"two nodes are called {node.id!r}"
        for parent in node.parents:
            if parent not in seen:
                yield f"node {node.id!r} comes before {parent!r}"
        if node.region:
            yield from _region_problems(spec, node, regions.get(node.region), seen)
        yield from _item_problems(node)
        yield from _option_problems(node)
        seen.add(node.id)
    for region in spec.regions:
        if isinstance(region.items, NodeRef) and region.items.node not in seen:
            yield f"region {region.id!r} goes over {region.items.node!r}, which is no node"
    for ref in node_refs(spec.outputs):
        if ref.node not in seen:
            yield f"an output is read from {ref.node!r}, which is no node"
    if any(
        isinstance(leaf, ItemRef) for arg in spec.outputs.values() for leaf in leaves(arg)
    ):
        yield "an output is read from an item of a region"
    if conditions_on_items(spec):
        yield "a condition on an item is not supported"


def _region_problems(
    spec: WorkflowSpec, node: NodeSpec, region: Region | None, seen: set[str]
) -> Iterator[str]:
    if region is None:
        yield f"node {node.id!r} is in region {node.region!r}, which is none"
    elif isinstance(region.items, NodeRef):
        giver = region.items.node
        position = spec.index.get(giver, -1)
        if position >= 0 and spec.nodes[position].region == region.id:
            yield f"region {region.id!r} goes over its own node {giver!r}"
        elif giver not in seen:
            yield f"node {node.id!r} comes before {giver!r}, which gives its list"


def _item_problems(node: NodeSpec) -> Iterator[str]:
    for arg in node.args.values():
        for leaf in _item_leaves(arg):
            if leaf.region != node.region:
                yield f"node {node.id!r} takes an item of region {leaf.region!r}"


def _item_leaves(arg: Arg) -> list[ItemRef]:
    return [leaf for leaf in leaves(arg) if isinstance(leaf, ItemRef)]


def _option_problems(node: NodeSpec) -> Iterator[str]:
    """Numbers that no clock can count with."""
    options, retry = node.options, node.options.retry
    numbers: list[float | None] = [options.timeout_s, options.cache_ttl_s]
    if retry is not None:
        numbers += [retry.initial_interval_s, retry.backoff_factor]
        numbers += [retry.max_interval_s, retry.jitter]
    if any(n is not None and (math.isnan(n) or n < 0) for n in numbers):
        yield f"an option of node {node.id!r} is negative or no number"
