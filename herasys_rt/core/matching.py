"""What is looked up once inputs are known: work that is equal by value.

A flight that got its payload and is about to be queued takes the completed result of its
key by value, or all its members join the live flight that has this key. Whatever is found
counts for the flight's structural key as well: twins by structure find it from then on.
"""

from __future__ import annotations

from msgspec.structs import replace

from herasys_rt.core import flights, flow, limits, remaining, reuse
from herasys_rt.core.fusion import Claim, Key, Listed, agree
from herasys_rt.core.state import Flight, State


def match(state: State) -> None:
    """Look up every flight that got its payload in this event; one that finds nothing is
    found by its key from now on.

    What is taken may complete the inputs of further nodes: those are looked up too.
    """
    table = state.table
    for flight in state.agenda:  # grows while it is read
        key = flight.value_key
        if key is None or flight.attempt > 1 or flight.state != "waiting":
            continue
        listed = table.result(key, state.now)
        if (
            listed is not None
            and flight.may_take
            and limits.takes_value(state, flight, listed.result.born_s)
        ):
            _take(state, flight, key, listed)
        elif (twin := table.live.setdefault(key, flight)) is not flight:
            if limits.merges(state, flight, twin):
                _merge(state, flight, twin)
            else:
                flight.value_key = None  # the twin's, which it must not have


def _take(state: State, flight: Flight, key: Key, listed: Listed) -> None:
    """Give every member a completed result. It is theirs with what their own inputs were
    made of: only the value was computed elsewhere."""
    payload, table = flight.payload, state.table
    assert payload is not None
    result = replace(
        listed.result,
        exact=payload.exact and agree(flight.key, flight.revisions, key[1]),
        expires_s=min(payload.expires_s, listed.result.expires_s),
        eldest_s=min(payload.eldest_s, listed.result.born_s),
    )
    own = flight.key
    if (
        own is not None
        and result.exact
        and result.expires_s > state.now
        and table.also(listed.entry, own, result, state.now)
    ):
        reuse.keep(state, own, result, listed.entry.owner, passing=flight.passing)
    members = flights.retire(state, flight)
    for node in members:
        node.fused_into = ""
        flow.take(state, node, listed.entry, result)
    flow.spread(state, members)
    remaining.finished(state, members, None, result)


def _merge(state: State, flight: Flight, twin: Flight) -> None:
    """Let every member join a live flight that computes the same value."""
    payload = flight.payload
    assert payload is not None
    claim = Claim(
        flight.key,
        flight.revisions,
        payload.exact,
        payload.expires_s,
        payload.eldest_s,
        flight.passing,
    )
    members = flights.retire(state, flight)
    flights.adopt(state, twin, members, claim)
