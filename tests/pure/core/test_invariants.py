"""A state that is wrong in any one way is found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from herasys_rt.core.fusion import Claim
from herasys_rt.core.invariants import validate
from herasys_rt.core.state import Flight, State, Template
from herasys_rt.core.values import Fact
from herasys_rt.errors import InternalError
from herasys_rt.graph.spec import NodeOptions
from tests.pure.core.kernel_lab import BUSY, Lab, item, placed, spec_of

CHAIN = spec_of("q embed", "s search q", "a llm s")
ANSWER = spec_of("a llm")
MAP = spec_of("e rerank % in=r", "a llm e", regions={"r": "$xs"})
BRANCH = spec_of("c rerank", "t embed if=c", "j search c?t:-")


def busy_state() -> State:
    """Something of everything: waiting, joined, merged, queued, running, reused ..."""
    lab = Lab(seeded=True)
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
    lab.submit("m1", MAP, "m", facts={"xs": Fact(True, 3)})
    lab.submit("b1", BRANCH, "b", deadline_s=1_000.0)
    lab.submit_agent("g")
    lab.reveal("g", 0, spec_of("t write", options={"t": NodeOptions(timeout_s=500.0)}))
    lab.up("pg-2", "pg")
    lab.reveal("g", 1, spec_of("z rerank"), "g")
    lab.cancel_fragment("g", 1)
    lab.cancel_fragment("g", 5)
    for run_id in ("v1", "v2"):
        vector = item(lab.submit(run_id, spec_of("p embed", "o rerank p"), run_id))
        lab.finish(vector, replace(placed(f"vector of {run_id}"), digest=b"equal"))
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
    flight.pool.rank_anew(flight)


def broken_heap(state: State) -> None:
    queue = state.pools["llm"].queues["llm.generate"]
    queue.push(10**9, (0, -99.0, 0), "tenant")
    queue.remove(10**9)
    queue._places._entries.reverse()  # pyright: ignore[reportPrivateUsage]


def forget_member(state: State) -> None:
    flight = next(f for f in state.flights.values() if len(f.members) > 1)
    del flight.members[max(flight.members)]


def headless(state: State) -> None:
    flight_in(state, "queued").leader = None


def ended_run_in_flight(state: State) -> None:
    state.runs["r2"].fragments[0].active = False


def leaked_node(state: State) -> None:
    node = state.runs["r1"].fragments[0].nodes[2]
    flight = node.flight
    assert flight is not None
    del flight.members[node.seat]
    node.flight = None


def lost_waiter(state: State) -> None:
    state.runs["r1"].fragments[0].nodes[1].state = "skipped"


def miscount_missing(state: State) -> None:
    state.runs["r1"].fragments[0].nodes[2].missing = 2


def miscount_open(state: State) -> None:
    state.runs["r1"].fragments[0].open = 2


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
    state.table.listed()[0].pins += 1


def key_by_value_unlisted(state: State) -> None:
    flight = next(f for f in state.flights.values() if f.claims)
    assert flight.value_key is not None
    del state.table.live[flight.value_key]


def key_of_a_merged_flight_unlisted(state: State) -> None:
    flight = next(f for f in state.flights.values() if f.claims)
    key = flight.claims[0].key
    assert key is not None
    del state.table.live[key]


def key_by_value_before_the_inputs(state: State) -> None:
    flight = flight_in(state, "waiting")
    flight.value_key = (b"key", ())
    state.table.register(flight.value_key, flight)


def claim_of_another_flight(state: State) -> None:
    flight = next(f for f in state.flights.values() if f.claims)
    flight.members[0].claim = Claim(None, (), True, 0.0, 0.0)


def entry_with_a_key_that_does_not_lead_to_it(state: State) -> None:
    results = state.table.listed()[0].results
    results[b"key", ()] = next(iter(results.values()))


def key_that_leads_to_another_entry(state: State) -> None:
    completed = state.table.completed
    first, *_, last = completed
    completed[first] = completed[last]


def miscount_entries(state: State) -> None:
    state.table.entries += 1


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


def template_of(state: State) -> Template:
    whole = state.runs["m1"].fragments[0].nodes[0]
    assert isinstance(whole, Template)
    return whole


def lost_element(state: State) -> None:
    template_of(state).elements.pop()


def miscount_left(state: State) -> None:
    template_of(state).left -= 1


def ended_before_its_elements(state: State) -> None:
    template_of(state).state = "succeeded"


def elements_out_of_order(state: State) -> None:
    template_of(state).elements.reverse()


def no_elements(state: State) -> None:
    whole = template_of(state)
    whole.expanded = False
    whole.elements = []


def decided_and_left_open(state: State) -> None:
    node = state.runs["b1"].fragments[0].nodes[0]
    node.needs, node.state = (), "skipped"


def decided_wrongly(state: State) -> None:
    state.runs["b1"].fragments[0].nodes[1].needs = (0,)


def in_a_flight_with_open_conditions(state: State) -> None:
    state.runs["r1"].fragments[0].nodes[2].needs = None


def fragment_lost(state: State) -> None:
    del state.runs["g"].fragments[0]


def fragment_misnumbered(state: State) -> None:
    state.runs["g"].fragments[0].number = 4


def fragment_open_and_ended(state: State) -> None:
    agent = state.runs["g"].agent
    assert agent is not None
    agent.records[0] = ()


def fragment_ended_and_cancelled_early(state: State) -> None:
    agent = state.runs["g"].agent
    assert agent is not None
    agent.early[1] = "why"


def miscount_run_size(state: State) -> None:
    state.runs["g"].size += 1


def miscount_fragment_size(state: State) -> None:
    state.runs["m1"].fragments[0].size += 1
    state.runs["m1"].size += 1


def timer_of_nobody(state: State) -> None:
    state.due.push(10**9, (0, 5_000.0, 0))


def timer_lost(state: State) -> None:
    flight = next(f for f in state.flights.values() if f.timed)
    state.due.remove(flight.id)


def deadline_of_an_ended_run(state: State) -> None:
    state.deadlines[state.runs["b1"].seq] = state.runs["r1"]


def nobody_wakes_the_kernel(state: State) -> None:
    state.wake_s = 1e9


def rests_for_ever(state: State) -> None:
    flight = flight_in(state, "queued")
    flight.pool.queues[flight.verb].remove(flight.id)
    flight.state = "resting"


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
    key_by_value_unlisted,
    key_of_a_merged_flight_unlisted,
    key_by_value_before_the_inputs,
    claim_of_another_flight,
    entry_with_a_key_that_does_not_lead_to_it,
    key_that_leads_to_another_entry,
    miscount_entries,
    miscount_bytes,
    over_bounds,
    miscount_references,
    miscount_nodes,
    miscount_runs,
    ended_and_active,
    leftover_work,
    client_unknown,
    lost_element,
    miscount_left,
    ended_before_its_elements,
    elements_out_of_order,
    no_elements,
    decided_and_left_open,
    decided_wrongly,
    in_a_flight_with_open_conditions,
    fragment_lost,
    fragment_misnumbered,
    fragment_open_and_ended,
    fragment_ended_and_cancelled_early,
    miscount_run_size,
    miscount_fragment_size,
    timer_of_nobody,
    timer_lost,
    deadline_of_an_ended_run,
    nobody_wakes_the_kernel,
    rests_for_ever,
]


@pytest.mark.parametrize("wrong", WRONGS, ids=lambda wrong: wrong.__name__)
def test_validate_finds_a_state_that_is_wrong(wrong: Callable[[State], None]) -> None:
    state = busy_state()
    wrong(state)
    with pytest.raises(InternalError) as caught:
        validate(state)
    assert caught.value.fields["faults"]
