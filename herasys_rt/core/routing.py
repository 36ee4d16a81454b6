"""The walk that decides each node's path when its graph becomes known."""

from __future__ import annotations

from collections.abc import Sequence

from herasys_rt.core import flights, flow, limits, relatives
from herasys_rt.core.conditions import Verdict, judge
from herasys_rt.core.events import NodesRevealed, RunSubmitted
from herasys_rt.core.fusion import Key, Listed, Revisions
from herasys_rt.core.plan import Plan
from herasys_rt.core.state import Fragment, Node, State
from herasys_rt.core.transitions import move


def keys_of(
    state: State, event: RunSubmitted | NodesRevealed, plan: Plan
) -> tuple[Sequence[Key | None], Sequence[Revisions]]:
    """Each node's fusion key, None where it may not fuse, and the revisions its inputs'
    keys name (needed where a plan is not flat)."""
    count = len(plan.keyed)
    signatures, collections = event.signatures, event.collections
    revisions: Sequence[Revisions] = ((),) * count
    if (
        not state.config.fusion
        or len(signatures) != count
        or (collections and len(collections) != count)
    ):
        return (None,) * count, revisions
    if collections:
        revisions = [state.revisions_of(names) for names in collections]
    keys: list[Key | None] = [
        (signature, its) if signature and keyed else None
        for signature, its, keyed in zip(signatures, revisions, plan.keyed, strict=True)
    ]
    return keys, revisions


def value_parts_of(
    state: State, event: RunSubmitted | NodesRevealed, plan: Plan
) -> tuple[Sequence[bytes], Sequence[tuple[str, ...]]]:
    """What each node's key by value is made with: its seed and the collections that it
    reads itself; nothing where nothing may fuse by value."""
    count = len(plan.pure)
    seeds, own = event.seeds, event.own_collections
    if not state.config.fusion or len(seeds) != count or (own and len(own) != count):
        return (), ()
    return seeds, own


def passing_of(event: RunSubmitted | NodesRevealed, plan: Plan) -> frozenset[int]:
    """The positions whose structural keys name the run: those below a node that may not
    fuse, such as an answer that was drawn."""
    signed = event.seeds or event.signatures
    if len(signed) != len(plan.pure):
        return frozenset()
    alone = {
        i for i, name in enumerate(signed) if not name and (event.seeds or not plan.pure[i])
    }
    if not alone:
        return frozenset()
    passing: set[int] = set()
    for i, above in enumerate(plan.takes):
        area = plan.region[i]
        giver = plan.areas[area].giver if area >= 0 else -1
        if any(parent in alone or parent in passing for parent in (giver, *above)):
            passing.add(i)
    return frozenset(passing)


def route(state: State, fragment: Fragment) -> None:
    """Decide each node's path.

    Walking up from the sinks: a needed node takes a completed result, or joins a live
    flight, or needs its inputs and becomes a flight of its own; a node that nobody needs
    takes a completed result for the record, or is skipped. A node joined to a flight
    without payload keeps its ancestors: it may have to feed that flight. A conditional
    node whose conditions are open, and a template, is needed like any other, and waits.
    """
    nodes, plan, keys = fragment.nodes, fragment.plan, fragment.keys
    table, live = state.table, state.table.live
    flat, root, reuses = plan.flat, plan.root, plan.reuses
    if not flat:
        _judge_all(state, fragment)
    if plan.limits:
        limits.part(state, fragment)
        keys = fragment.keys
    own: list[Node] = []
    needy = bytearray(len(nodes))
    for position in range(len(nodes) - 1, -1, -1):
        node, key = nodes[position], keys[position]
        if node.state == "skipped":
            continue
        wanted = root[position] or _wanted(fragment, position, needy)
        waits = not flat and (node.needs is None or plan.region[position] >= 0)
        listed: Listed | None = None
        if key is not None and reuses[position] and not waits:
            listed = table.result(key, state.now)
        if listed is not None and limits.takes(state, node, listed.result):
            flow.take(state, node, listed.entry, listed.result)
            node.told = True
        elif not wanted:
            move(node, "skipped", state.now)
        elif waits:
            needy[position] = True
        elif key is not None and (flight := live.get(key)) is not None:
            flights.join(state, flight, node, key)
            needy[position] = flight.payload is None
        else:
            needy[position] = True
            own.append(node)
    assert plan.pools is not None
    for node in reversed(own):
        key = keys[node.position]
        if key is not None and (flight := live.get(key)) is not None:
            flights.join(state, flight, node, key)
        else:
            flights.launch(state, node, key, plan.pools[node.position])
    _feed_first(state, fragment)
    if not flat:
        _consider_all(state, fragment)


def _judge_all(state: State, fragment: Fragment) -> None:
    """Decide what the facts of the inputs decide."""
    for node in fragment.nodes:
        if node.needs is None:
            verdict = judge(node)
            if verdict is Verdict.SKIP:
                move(node, "skipped", state.now)
                flow.settled(state, node)
            elif not isinstance(verdict, Verdict):
                node.needs = verdict


def _wanted(fragment: Fragment, position: int, needy: bytearray) -> bool:
    plan, nodes = fragment.plan, fragment.nodes
    for below in plan.successors[position]:
        if needy[below] and (plan.flat or relatives.asks(nodes[below], position)):
            return True
    return False


def _feed_first(state: State, fragment: Fragment) -> None:
    """Count what each unfinished node misses and start those that miss nothing."""
    nodes = fragment.nodes
    for node in nodes:
        if node.flight is not None:
            assert node.needs is not None
            missing = 0
            for parent in node.needs:
                missing += not nodes[parent].told
            node.missing = missing
    for node in nodes:
        if not node.missing:
            flights.capture(state, node)


def _consider_all(state: State, fragment: Fragment) -> None:
    """Let everything go on that is decided already and was left waiting."""
    news: list[Node] = []
    for node in fragment.nodes:
        if node.state == "waiting" and node.flight is None:
            flow.consider(state, node, news)
    flow.spread(state, news)
