"""How old what a node takes may be: its own ``cache_ttl_s`` counts, whoever made it.

A result is *born* when it was computed; items that it borrowed count as itself. Its
*eldest* is the birth of the first of all that it was made of, itself among them. By
structure a node takes and joins nothing whose birth is past its own limit, or whose eldest
is past the limit of a node above it: which of the results above is the eldest nobody
knows, so each limit is held against it. By value only the node's own limit counts: what
stands above it was not taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from herasys_rt.core.fusion import Key, Result
    from herasys_rt.core.items import Sharing
    from herasys_rt.core.state import Flight, Fragment, Node, Payload, State
    from herasys_rt.graph.spec import NodeSpec


class Limit(NamedTuple):
    """Seconds: the node's own limit, and the least of those of the nodes above it
    (infinity: none)."""

    own_s: float
    above_s: float


def limits_of(
    nodes: Sequence[NodeSpec], asks: Sequence[tuple[int, ...]]
) -> tuple[Limit, ...]:
    """The limit of each node, by position; empty where none has one."""
    if all(node.options.cache_ttl_s is None for node in nodes):
        return ()
    limits: list[Limit] = []
    for node, above in zip(nodes, asks, strict=True):
        own_s = node.options.cache_ttl_s
        above_s = min([min(limits[parent]) for parent in above], default=math.inf)
        limits.append(Limit(math.inf if own_s is None else own_s, above_s))
    return tuple(limits)


def takes(state: State, node: Node, result: Result) -> bool:
    """Whether a node may take a completed result by structure."""
    limits = node.fragment.plan.limits
    return not limits or _holds(
        limits[node.position], result.born_s, result.eldest_s, state.now
    )


def joins(state: State, node: Node, key: Key, flight: Flight) -> bool:
    """Whether a node may join the live flight that a key leads to.

    One without payload it may: `feeds` looks at what that is made of. One that waits for
    items of others may borrow from whoever borrowed before.
    """
    limits, payload = node.fragment.plan.limits, flight.payload
    if not limits or payload is None:
        return True
    limit = limits[node.position]
    if flight.state == "borrowing" and limit.own_s < math.inf:
        return False
    eldest_s = payload.eldest_s
    for claim in flight.claims:
        if claim.key == key:
            eldest_s = claim.eldest_s
    return _holds(limit, payload.born_s, eldest_s, state.now)


def part(state: State, fragment: Fragment) -> None:
    """Take the keys of nodes away that lead to flights which they must not join."""
    live = state.table.live
    fragment.keys = [
        None
        if key is not None
        and (flight := live.get(key)) is not None
        and not joins(state, node, key, flight)
        else key
        for node, key in zip(fragment.nodes, fragment.keys, strict=True)
    ]


def feeds(state: State, feeder: Node, payload: Payload) -> bool:
    """Whether what a node has got will do for all members of its flight. For itself it
    does: it took none of it too late."""
    flight = feeder.flight
    assert flight is not None
    return not any(
        node is not feeder
        and (limits := node.fragment.plan.limits)
        and state.now - payload.eldest_s >= limits[node.position].above_s
        for node in flight.members.values()
    )


def takes_value(state: State, flight: Flight, born_s: float) -> bool:
    """Whether all members of a flight may take what was born then by value."""
    own_s = _own_s(flight)
    return own_s == math.inf or state.now - born_s < own_s


def merges(state: State, flight: Flight, twin: Flight) -> bool:
    """Whether all members of a flight may join a live one that computes the same value."""
    assert twin.payload is not None
    if twin.state == "borrowing" and _own_s(flight) < math.inf:
        return False
    return takes_value(state, flight, twin.payload.born_s)


def borrows(flight: Flight, lender: Sharing) -> bool:
    """Whether a flight may wait for the items that another one computes: of one that
    borrows itself nobody knows when they were born."""
    return not (lender.waits or lender.taken) or _own_s(flight) == math.inf


def _holds(limit: Limit, born_s: float, eldest_s: float, now: float) -> bool:
    own_s, above_s = limit
    return (own_s == math.inf or now - born_s < own_s) and (
        above_s == math.inf or now - eldest_s < above_s
    )


def _own_s(flight: Flight) -> float:
    """The least of the members' own limits."""
    least_s = math.inf
    for node in flight.members.values():
        limits = node.fragment.plan.limits
        if limits:
            least_s = min(least_s, limits[node.position].own_s)
    return least_s
