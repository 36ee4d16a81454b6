"""Completed results beyond the table: what a store keeps and offers, and purges.

A store outside of the kernel may keep results longer than the table does. The kernel
tells it what is worth keeping (`KeepResult`) and takes what it offers (`Hint`) only when
nothing was purged in between and every collection is as it was. A purge moves the table's
``generation``, so that what was offered before it comes too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from herasys_rt.core import borrowing, flights
from herasys_rt.core.commands import DropKept, KeepResult
from herasys_rt.core.events import CachePurged, Hint
from herasys_rt.core.fusion import Key, Owner, Result
from herasys_rt.core.state import FOREVER, Flight, Fragment, Payload, State, open_fragments
from herasys_rt.core.values import Value

T = TypeVar("T")


def take(state: State, fragment: Fragment, hints: Iterable[Hint]) -> None:
    """Put offered results into the table where they still hold; `settle` afterwards."""
    table, keys, nodes = state.table, fragment.keys, fragment.plan.spec.nodes
    for hint in hints:
        key = keys[hint.node] if hint.node < len(keys) else None
        if (
            key is None
            or hint.generation != table.generation
            or hint.revisions != key[1]
            or hint.ttl_s <= 0
        ):
            table.hints_ignored += 1
            continue
        if table.result(key, state.now) is not None:
            continue  # What the store has came from here.
        result = Result(
            value=hint.value,
            meta=hint.meta,
            exact=True,
            expires_s=state.now + hint.ttl_s,
            instance="",
            queued_s=0.0,
            run_s=hint.run_s,
            attempts=0,
            tokens=hint.tokens,
            born_s=state.now - hint.age_s,
            eldest_s=state.now - hint.eldest_age_s,
        )
        owner = Owner(nodes[hint.node].operator, hint.tenant)
        size = hint.value.size + len(hint.meta)
        if table.store({key: result}, hint.value, size, state.now, owner) is not None:
            table.hints_taken += 1


def settle(state: State, hints: Iterable[Hint]) -> None:
    """Let go of what was offered and not taken, or has no room."""
    state.table.trim()
    for hint in hints:
        state.ledger.discard(hint.value)


def keep(state: State, key: Key, result: Result, owner: Owner, *, passing: bool) -> None:
    """Tell the store of a result that the table lists under one more structural key, where
    there is a store.

    Not of what is ``passing`` (`Flight`), nor of what depends on a collection whose
    revision no database has told: nobody could say later whether it has moved.
    """
    signature, revisions = key
    if (
        passing
        or not state.config.reuse_store
        or any(not revision for _, revision in revisions)
    ):
        return
    assert result.value is not None
    state.out.append(
        KeepResult(
            signature=signature,
            revisions=revisions,
            generation=state.table.generation,
            value=result.value,
            meta=result.meta,
            ttl_s=max(0.0, result.expires_s - state.now),
            tenant=owner.tenant,
            operator=owner.operator,
            run_s=result.run_s,
            tokens=result.tokens,
            age_s=state.now - result.born_s,
            eldest_age_s=state.now - result.eldest_s,
        )
    )


def purge(state: State, event: CachePurged) -> None:
    """Drop completed results; what is at work is neither kept nor shared any more.

    Who asked for it before still gets it, as does who holds a dropped result; what is
    made of either is not kept.
    """
    chosen = chosen_by(event)
    gone = set(
        state.table.purge(
            lambda entry: any(chosen(key, entry.owner.tenant) for key in entry.results)
        )
    )
    digests = {entry.value.digest for entry in gone}
    stale = _conceal_items(state, event, {entry.lent.digest for entry in gone})
    for flight in state.flights.values():
        payload = flight.payload
        of_gone = payload is not None and any(v.digest in digests for v in taken(payload))
        if flight in stale or of_gone or _is_picked(flight, chosen):
            _conceal(state, flight)
    for fragment in open_fragments(state):
        for node in fragment.counted():
            if node.entry in gone and node.result is not None:
                node.result.exact = False
                flights.doubt(state, node)
        tenant, positions = fragment.run.tenant, range(len(fragment.plan.pure))
        picked = {at for at in positions if chosen(_name_of(fragment, at), tenant)}
        _unname(fragment, picked | (fragment.doubted or set()))
    if state.config.reuse_store:
        state.out.append(
            DropKept(
                state.table.generation, event.tenant, event.collection, event.signature
            )
        )


def chosen_by(purge: CachePurged | DropKept) -> Callable[[Key, str], bool]:
    """Tells of a key and the tenant its result was made for whether they are among what is
    purged: all that is named must fit."""

    def chosen(key: Key, tenant: str) -> bool:
        signature, revisions = key
        return (
            purge.tenant in (None, tenant)
            and purge.signature in (b"", signature)
            and (
                purge.collection is None
                or any(name == purge.collection for name, _ in revisions)
            )
        )

    return chosen


def report(state: State, tenant: str | None = None) -> dict[str, object]:
    """The reuse cache and what it saved, as plain data.

    ``entries`` and ``bytes`` of at most ``max_bytes``, ``held_bytes`` by operator,
    ``generation`` (how many purges there were), ``hints`` taken from the store and
    ignored, the totals of `savings.Counts`, and these by operator and tenant in
    ``operators`` (of one ``tenant``; None: of all).
    """
    table = state.table
    return {
        "entries": table.entries,
        "bytes": table.bytes,
        "max_bytes": table.max_bytes,
        "held_bytes": dict(sorted(table.held_bytes.items())),
        "generation": table.generation,
        "hints": {"taken": table.hints_taken, "ignored": table.hints_ignored},
        "nodes": state.savings.total().plain(),
        "operators": state.savings.told(tenant),
    }


def owner_of(state: State, flight: Flight) -> Owner:
    """Whose result a flight's is: the operator's, for the tenant that gave its inputs."""
    payload = flight.payload
    assert payload is not None
    node = state.plans[payload.spec_id].spec.nodes[payload.node]
    return Owner(node.operator, payload.tenant)


def lasts_s(state: State, flight: Flight) -> float:
    """When a flight's result that comes now stops being reusable, whatever its inputs were
    made of: after what its node says, else its verb, or with the first of the items that
    it has borrowed."""
    payload, ttl_s = flight.payload, flight.options.cache_ttl_s
    assert payload is not None
    if ttl_s is None:
        ttl_s = state.config.reuse_ttl_s.get(flight.verb, FOREVER)
    own_s = state.now + ttl_s
    return own_s if own_s < payload.lasts_s else payload.lasts_s


def taken(payload: Payload) -> Iterator[Value]:
    """The results that a payload was made of."""
    for _, value in payload.upstream:
        yield value
    for _, values in payload.gathered:
        yield from values
    yield from (value for value in (payload.items, payload.item) if value is not None)


def _conceal(state: State, flight: Flight) -> None:
    """Let nobody find a flight, or join what its members' fragments make of its result."""
    flights.conceal(state, flight)
    if flight.payload is not None:
        flight.payload.exact = False
    for claim in flight.claims:
        claim.exact = False
    for node in flight.members.values():
        flights.doubt(state, node)
        _unname(node.fragment, {node.position})


def _name_of(fragment: Fragment, position: int) -> Key:
    """The structural key of a node that begins later, as far as there is one; those in
    flights have their keys there."""
    key = fragment.keys[position] if fragment.keys else None
    revisions = fragment.revisions[position] if fragment.revisions else ()
    return key if key is not None else (b"", revisions)


def _unname(fragment: Fragment, positions: set[int]) -> None:
    """What these nodes still compute is found by nobody: neither by structure nor by value
    nor item by item."""

    def without(names: Sequence[T], nothing: T) -> Sequence[T]:
        return [nothing if at in positions else name for at, name in enumerate(names)]

    fragment.keys = without(fragment.keys, None)
    fragment.seeds = without(fragment.seeds, b"")
    fragment.item_seeds = without(fragment.item_seeds, b"")


def _is_picked(flight: Flight, chosen: Callable[[Key, str], bool]) -> bool:
    return any(chosen(key, _payer(flight)) for key in flight.all_keys())


def _conceal_items(state: State, event: CachePurged, gone: set[bytes]) -> set[Flight]:
    """Let nobody find the items that purged flights compute; gives these flights, and
    those whose output has such items, or items that lay in values that are ``gone``."""
    chosen = chosen_by(event)
    whole = event.collection is None and not event.signature
    stale: set[Flight] = set()
    shared = [f.sharing for f in state.flights.values() if f.sharing is not None]
    for sharing in sorted(shared, key=lambda each: each.number):  # lenders first
        flight, payload = sharing.flight, sharing.flight.payload
        assert payload is not None
        if (
            _is_picked(flight, chosen)
            or (whole and event.tenant in (None, _payer(flight)))
            or any(value.digest in gone for value in payload.lent)
            or any(wait.lender.flight in stale for wait in sharing.waits.values())
        ):
            stale.add(flight)
            borrowing.conceal(state, sharing)
    return stale


def _payer(flight: Flight) -> str:
    if flight.payload is not None:
        return flight.payload.tenant
    return flight.leader.run.tenant if flight.leader is not None else ""
