"""A state that is wrong in any one way is found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from herasys_rt.core.invariants import validate
from herasys_rt.core.state import Flight, State
from herasys_rt.errors import InternalError
from tests.pure.core.kernel_lab import BUSY, Lab, item, placed, spec_of

CHAIN = spec_of("q embed", "s search q", "a llm s")
ANSWER = spec_of("a llm")


def busy_state() -> State:
    """Something of everything: waiting, joined, queued, running, aborting, reused."""
    lab = Lab()
    lab.submit("r1", CHAIN)
    lab.submit("r2", CHAIN)
    lab.finish(lab.running()[0], placed("vector"))
    lab.submit("r3", CHAIN)
    lab.submit("x0", ANSWER, "0")
    lab.submit("x1", ANSWER, "1", priority=1)
    lab.submit("x2", ANSWER, "2")
    lab.submit("x3", ANSWER, "2", priority=-1)
    lab.fail(lab.running()[-1], BUSY)
    lab.cancel("x1")
    lab.finish(item(lab.submit("e1", spec_of("q embed"), "e")), placed("idle"))
    validate(lab.state)
    return lab.state


def flight_in(state: State, wanted: str) -> Flight:
    return next(f for f in state.flights.values() if f.state == wanted)


def lose_slot(state: State) -> None:
    state.instances["pg-1"].busy = 0


def free_too_much(state: State) -> None:
    state.pools["embed"].free.clear()


def miscount_idle(state: State) -> None:
    state.pools["llm"].idle_slots += 1


def miscount_batch(state: State) -> None:
    batch = flight_in(state, "starting").batch
    assert batch is not None
    batch.left += 1


def drop_from_queue(state: State) -> None:
    flight = flight_in(state, "queued")
    flight.pool.queues[flight.verb].remove(flight.id)


def stale_rank(state: State) -> None:
    flight = flight_in(state, "queued")
    flight.rank = (-9, 0.0, flight.arrival)
    flight.pool.queues[flight.verb].update(flight.id, flight.rank)


def broken_heap(state: State) -> None:
    queue = state.pools["llm"].queues["llm.generate"]
    queue.push(10**9, (-99, 0.0, 0))
    queue.remove(10**9)
    queue._entries.reverse()  # pyright: ignore[reportPrivateUsage]


def forget_member(state: State) -> None:
    flight = next(f for f in state.flights.values() if len(f.members) > 1)
    del flight.members[max(flight.members)]


def headless(state: State) -> None:
    flight_in(state, "queued").leader = None


def ended_run_in_flight(state: State) -> None:
    state.runs["r2"].active = False


def leaked_node(state: State) -> None:
    node = state.runs["r1"].nodes[2]
    flight = node.flight
    assert flight is not None
    del flight.members[node.seat]
    node.flight = None


def lost_waiter(state: State) -> None:
    state.runs["r1"].nodes[1].state = "skipped"


def miscount_missing(state: State) -> None:
    state.runs["r1"].nodes[2].missing = 2


def miscount_open(state: State) -> None:
    state.runs["r1"].open = 2


def unqueued(state: State) -> None:
    flight = flight_in(state, "waiting")
    flight.payload = flight_in(state, "starting").payload


def dead_flight_listed(state: State) -> None:
    state.table.live[(b"dead", ())] = flight_in(state, "queued")


def unlisted_flight(state: State) -> None:
    key = flight_in(state, "waiting").key
    assert key is not None
    del state.table.live[key]


def miscount_pins(state: State) -> None:
    next(iter(state.table.completed.values())).pins += 1


def miscount_bytes(state: State) -> None:
    state.table.bytes += 1


def over_bounds(state: State) -> None:
    state.table.max_entries = 0


def miscount_references(state: State) -> None:
    state.ledger.counts["vector"] += 1


def miscount_nodes(state: State) -> None:
    state.totals.skipped += 1


def miscount_runs(state: State) -> None:
    state.totals.runs_succeeded += 1


def ended_and_active(state: State) -> None:
    state.ended["r1"] = None


def leftover_work(state: State) -> None:
    state.agenda.append(flight_in(state, "waiting"))


def client_unknown(state: State) -> None:
    del state.clients["client"]["r1"]


WRONGS: list[Callable[[State], None]] = [
    lose_slot,
    free_too_much,
    miscount_idle,
    miscount_batch,
    drop_from_queue,
    stale_rank,
    broken_heap,
    forget_member,
    headless,
    ended_run_in_flight,
    leaked_node,
    lost_waiter,
    miscount_missing,
    miscount_open,
    unqueued,
    dead_flight_listed,
    unlisted_flight,
    miscount_pins,
    miscount_bytes,
    over_bounds,
    miscount_references,
    miscount_nodes,
    miscount_runs,
    ended_and_active,
    leftover_work,
    client_unknown,
]


@pytest.mark.parametrize("wrong", WRONGS, ids=lambda wrong: wrong.__name__)
def test_validate_finds_a_state_that_is_wrong(wrong: Callable[[State], None]) -> None:
    state = busy_state()
    wrong(state)
    with pytest.raises(InternalError) as caught:
        validate(state)
    assert caught.value.fields["faults"]
