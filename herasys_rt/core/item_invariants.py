"""What must hold of shared items between any two events.

Part of `herasys_rt.core.invariants`, which says how these checks are used.
"""

from __future__ import annotations

from collections.abc import Iterator

from herasys_rt.core.items import Sharing
from herasys_rt.core.state import Flight, State


def items(state: State) -> Iterator[str]:
    """The item table lists what is computed and what lies in completed results; flights
    wait for earlier ones that will tell them."""
    table = state.table.items
    claimed = 0
    for flight in state.flights.values():
        sharing = flight.sharing
        if (flight.state == "borrowing") != (sharing is not None and bool(sharing.waits)):
            yield f"flight {flight.id} is {flight.state} and waits for items or not"
        if sharing is None:
            continue
        if sharing.flight is not flight:
            yield f"flight {flight.id} shares items of another one"
        ended = flight.state == "aborting"
        if ended and (sharing.claims or sharing.borrowers or sharing.waits):
            yield f"flight {flight.id} is being aborted and lends or borrows"
        claimed += len(sharing.claims)
        if any(table.live.get(key) is not sharing for key in sharing.claims):
            yield f"flight {flight.id} computes items that nobody finds"
        yield from _waits(state, flight, sharing)
    if claimed != len(table.live):
        yield f"{len(table.live)} items are being computed, {claimed} by somebody"
    kept = 0
    for entry in state.table.listed():
        if len(set(entry.items)) != len(entry.items):
            yield "a completed result has an item twice"
        kept += sum(
            key in table.held and table.held[key].entry is entry for key in entry.items
        )
    if kept != len(table.held):
        yield f"{len(table.held)} items are held, {kept} by completed results"


def _waits(state: State, flight: Flight, sharing: Sharing) -> Iterator[str]:
    """Whoever waits is known to whom it waits for, and the other way round."""
    for number, wait in sharing.waits.items():
        lender = wait.lender
        if lender.number != number or number >= sharing.number:
            yield f"flight {flight.id} waits for a later one"
        if lender.borrowers.get(sharing.number) is not sharing:
            yield f"flight {flight.id} waits and will not be told"
        if state.flights.get(lender.flight.id) is not lender.flight:
            yield f"flight {flight.id} waits for one that has ended"
        if not wait.keys or any(key not in lender.places for key in wait.keys):
            yield f"flight {flight.id} waits for items that nobody computes"
    for number, borrower in sharing.borrowers.items():
        if borrower.number != number or sharing.number not in borrower.waits:
            yield f"flight {flight.id} lends to one that does not wait"
