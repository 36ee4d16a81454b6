"""How flights share the items of their lists.

A flight that is about to be queued looks for each of its items. One that lies in a
completed result is borrowed from there. One that a flight which looked earlier computes is
waited for: when that one succeeds, it is borrowed, and otherwise looked for again. Whatever
is left the flight computes, and others find it. Waits go to earlier flights only, so that
none waits for itself.
"""

from __future__ import annotations

from herasys_rt.core import limits, relatives
from herasys_rt.core.commands import SharedItems
from herasys_rt.core.items import Sharing, Wait, item_keys
from herasys_rt.core.lists import Texts
from herasys_rt.core.ranks import press, unpress
from herasys_rt.core.state import Flight, Node, State, Template
from herasys_rt.core.value_keys import item_seed_of
from herasys_rt.core.values import Value

LONGEST_CHAIN = 4
"""A flight waits for one that waits itself, and so on, at most so often: in a longer chain
the last ones would wait longer than computing their items takes."""

MOST_LENDERS = 32
"""From so many values a flight borrows at most: its host has to fetch each of them."""

_SAME_LIST = -1


def sharing_of(feeder: Node, flight: Flight) -> Sharing | None:
    """The sharing of a flight that gets its payload from ``feeder``; None where items are
    not shared or nobody has told them."""
    assert flight.payload is not None
    seed = item_seed_of(feeder, flight.payload)
    digests = _digests(feeder) if seed else ()
    return Sharing(flight, item_keys(seed, digests)) if digests else None


def ready(state: State, flight: Flight) -> bool:
    """Whether a flight waits for nobody's items. Looks for them, the first time."""
    sharing, payload = flight.sharing, flight.payload
    assert sharing is not None and payload is not None
    if sharing.number < 0:
        sharing.number = state.next_sharing
        state.next_sharing += 1
        for at, key in enumerate(sharing.keys):
            sharing.places.setdefault(key, at)
        _look(state, sharing, list(sharing.places))
    if sharing.waits:
        return False
    if payload.shared is None:
        payload.shared = SharedItems(len(sharing.keys), payload.lent, _borrowed(sharing))
    return True


def lend(
    state: State, lender: Sharing, value: Value, expires_s: float, born_s: float
) -> None:
    """A flight succeeded: whoever waits for its items, born ``born_s``, borrows them, for
    results that last no longer than ``expires_s``."""
    conceal(state, lender)
    for _, borrower in sorted(lender.borrowers.items()):
        for key in borrower.waits.pop(lender.number).keys:
            at = lender.places[key]
            _borrow(state, borrower, key, value, at, expires_s, born_s)
        if not borrower.waits:
            state.agenda.append(borrower.flight)
    lender.borrowers.clear()


def withdraw(state: State, lender: Sharing) -> None:
    """A flight computes nothing any more: it waits for nobody, and whoever waits for its
    items looks for them again. Nothing happens when it has succeeded."""
    conceal(state, lender)
    for wait in lender.waits.values():
        del wait.lender.borrowers[lender.number]
        unpress(wait.lender, lender)
    lender.waits.clear()
    waiting = sorted(lender.borrowers.items())
    lender.borrowers.clear()
    for _, borrower in waiting:
        _look(state, borrower, borrower.waits.pop(lender.number).keys)
        if borrower.waits:
            press(borrower)
        else:
            state.agenda.append(borrower.flight)


def conceal(state: State, sharing: Sharing) -> None:
    """Nobody finds the items that a flight computes any more; whoever waits for them
    still gets them."""
    for key in sharing.claims:
        del state.table.items.live[key]
    sharing.claims.clear()


def _look(state: State, sharing: Sharing, keys: list[bytes]) -> None:
    """Borrow each item, or wait for it, or compute it."""
    table, flight = state.table.items, sharing.flight
    may_take = flight.may_take
    for key in keys:
        held = table.find(key, state.now) if may_take else None
        if held is not None and not limits.takes_value(
            state, flight, held.entry.items_born_s
        ):
            held = None
        room = len(sharing.slots) + len(sharing.waits) < MOST_LENDERS
        if held is not None and (room or held.entry.lent.digest in sharing.slots):
            entry = held.entry
            state.table.touch(entry)
            _borrow(
                state,
                sharing,
                key,
                entry.lent,
                held.position,
                entry.items_expire_s,
                entry.items_born_s,
            )
            continue
        lender = table.live.get(key)
        if lender is None:
            table.live[key] = sharing
            sharing.claims[key] = None
        elif lender.number in sharing.waits or (
            room
            and lender.number < sharing.number
            and _depth(lender) < LONGEST_CHAIN
            and limits.borrows(flight, lender)
        ):
            wait = sharing.waits.get(lender.number)
            if wait is None:
                wait = sharing.waits[lender.number] = Wait(lender)
                lender.borrowers[sharing.number] = sharing
            wait.keys.append(key)
    sharing.depth = 1 + max((_depth(w.lender) for w in sharing.waits.values()), default=0)


def _depth(sharing: Sharing) -> int:
    return sharing.depth if sharing.waits else 0


def _borrow(
    state: State,
    sharing: Sharing,
    key: bytes,
    value: Value,
    index: int,
    expires_s: float,
    born_s: float,
) -> None:
    payload = sharing.flight.payload
    assert payload is not None
    slot = sharing.slots.get(value.digest)
    if slot is None:
        slot = sharing.slots[value.digest] = len(payload.lent)
        payload.lent = (*payload.lent, value.bare())
        if value.place:
            payload.placed = (*payload.placed, value)
            state.ledger.acquire(value)
    payload.lasts_s = min(payload.lasts_s, expires_s)
    payload.born_s = min(payload.born_s, born_s)
    sharing.taken[key] = slot, index


def _borrowed(sharing: Sharing) -> tuple[tuple[int, int, int], ...]:
    """Every position whose item is not computed, as `SharedItems` has them."""
    found: list[tuple[int, int, int]] = []
    for at, key in enumerate(sharing.keys):
        first = sharing.places[key]
        if first < at:
            found.append((at, _SAME_LIST, first))
        elif key in sharing.taken:
            found.append((at, *sharing.taken[key]))
    return tuple(found)


def _digests(node: Node) -> tuple[bytes, ...]:
    """The digests of the items at a node's list port; empty where somebody is unknown."""
    fragment, source = node.fragment, node.fragment.plan.lists[node.position]
    if source is None:
        return ()
    if isinstance(source, Texts):
        return _texts(node, source.of)
    if isinstance(source, str):
        fact = fragment.facts.get(source)
        return fact.items if fact is not None else ()
    if isinstance(source, int):
        giver = relatives.seen(node, source)
        if isinstance(giver, Template):
            return tuple([_value(element).digest for element in giver.elements])
        return _value(giver).items
    return tuple(
        [
            part if isinstance(part, bytes) else _value(relatives.seen(node, part)).digest
            for part in source
        ]
    )


def _texts(node: Node, of: str | int) -> tuple[bytes, ...]:
    if isinstance(of, int):
        return _value(relatives.seen(node, of)).texts
    fact = node.fragment.facts.get(of)
    return fact.texts if fact is not None else ()


def _value(node: Node) -> Value:
    assert node.result is not None and node.result.value is not None
    return node.result.value
