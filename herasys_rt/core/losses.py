"""Values that the object store has lost: nobody is given them any more.

What was complete and lies in one is forgotten, so that whoever comes computes it again.
What needs one fails, because its producer's run holds nothing else: with an error that says
that the run may be submitted again.
"""

from __future__ import annotations

from collections.abc import Collection

from herasys_rt.core import flights, outcomes, reuse
from herasys_rt.core.events import ValuesLost
from herasys_rt.core.state import Flight, State, open_fragments
from herasys_rt.core.timers import clear_timer
from herasys_rt.errors import ErrorInfo

_ERROR = ErrorInfo(
    "value_lost",
    "a large value that it needs was lost from the object store",
    "Submit the run again: what is lost is computed again.",
    retryable=True,
)


def lose(state: State, event: ValuesLost) -> None:
    """Forget values, fail what waits for its turn with one, and let nobody join what is
    at work with one or is to be made of one: it may have it already, or fail."""
    places = frozenset(event.places)
    state.table.drop(lambda e: e.value.place in places or e.lent.place in places)
    for flight in list(state.flights.values()):
        if flight.state == "aborting" or not _needs(flight, places):
            continue  # A flight that ended meanwhile has no payload.
        if flight.batch is not None:
            assert flight.payload is not None
            flight.payload.lost = True
            flights.conceal(state, flight)
            continue
        if flight.state == "queued":
            flight.pool.queues[flight.verb].remove(flight.id)
        clear_timer(state, flight)
        outcomes.fail(state, flight, _ERROR)
    for fragment in open_fragments(state):
        for node in fragment.counted():
            result = node.result
            if result is not None and result.value and result.value.place in places:
                flights.doubt(state, node)


def _needs(flight: Flight, places: Collection[str]) -> bool:
    """Whether a flight cannot do without one of these; items that it borrows it can: its
    host computes what is not there."""
    payload = flight.payload
    return payload is not None and (
        payload.inputs.place in places
        or any(value.place in places for value in reuse.taken(payload))
    )
