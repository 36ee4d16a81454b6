"""The kernel under everything a driver may do, and faults that must not pass.

Each fault is put into the kernel by patching one of its functions. The state machine must
fail with it by its own model alone: with the invariants it fails no later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from herasys_rt.core import (
    borrowing,
    ends,
    flights,
    flow,
    graph_invariants,
    limits,
    losses,
    outcomes,
    plan,
    pools,
    ranks,
    runs,
    value_keys,
)
from herasys_rt.core.commands import FinishRun
from herasys_rt.core.fusion import Claim, Entry, FusionTable, Key
from herasys_rt.core.heap import IndexedHeap, Rank
from herasys_rt.core.instances import Instance, Pool
from herasys_rt.core.items import ItemTable, Sharing
from herasys_rt.core.ledger import Ledger
from herasys_rt.core.needs import Needs
from herasys_rt.core.state import Flight, Fragment, Node, Payload, Run, RunStatus, State
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo, InternalError
from herasys_rt.graph.spec import NodeSpec, WorkflowSpec
from tests.pure.core.kernel_machine import KernelMachine

CALM = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    phases=[Phase.generate],
)

Patch = pytest.MonkeyPatch


class ModelOnly(KernelMachine):
    """The machine without the invariants."""

    validating = False


def test_kernel_keeps_its_promises_under_any_sequence_of_events() -> None:
    run_state_machine_as_test(KernelMachine, settings=CALM)


def lost_waiter(patch: Patch) -> None:
    """A successor is not told that its last input is there when it joined a flight."""
    feed = flow.feed

    def faulty(state: State, node: Node) -> None:
        if not node.fused_into:
            feed(state, node)

    patch.setattr(flow, "feed", faulty)


def double_release(patch: Patch) -> None:
    """The value of an outcome delivered twice is let go although it is known."""

    def faulty(ledger: Ledger, value: Value) -> None:
        if value.place:
            ledger._pending[value.place] = None  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Ledger, "discard", faulty)


def stale_attempt_accepted(patch: Patch) -> None:
    """An outcome counts for whatever attempt is under way."""

    def faulty(state: State, flight_id: int, attempt: int, instance: str) -> Flight | None:
        flight = state.flights.get(flight_id)
        return flight if flight is not None and flight.batch is not None else None

    patch.setattr(outcomes, "current", faulty)


def over_capacity(patch: Patch) -> None:
    """A started batch occupies nothing when it has a single item."""
    start = pools.start

    def faulty(state: State, pool: Pool, instance: Instance, taken: list[Flight]) -> None:
        start(state, pool, instance, taken)
        if len(taken) == 1 and len(instance.flights) < 4:
            instance.busy -= 1
            pool.idle_slots += 1
            pool.free[instance.id] = instance

    patch.setattr(pools, "start", faulty)


def forgotten_member(patch: Patch) -> None:
    """The last member of an ended flight is not told."""
    retire = flights.retire

    def faulty(state: State, flight: Flight) -> list[Node]:
        return retire(state, flight)[:3]

    patch.setattr(flights, "retire", faulty)


def wrong_order(patch: Patch) -> None:
    """A flight keeps the rank of its leader when a more urgent member joins."""
    patch.setattr(ranks, "_rerank", lambda flight: None)  # pyright: ignore


def wrong_heap_order(patch: Patch) -> None:
    """The queue lets the latest go first."""
    push = IndexedHeap.push

    def faulty(heap: IndexedHeap, item: int, rank: Rank) -> None:
        push(heap, item, (rank[0], -rank[1], -rank[2]))

    patch.setattr(IndexedHeap, "push", faulty)


def leaked_flight(patch: Patch) -> None:
    """A waiting flight whose last member left is forgotten, not dropped."""
    drop = flights.drop

    def faulty(state: State, flight: Flight) -> None:
        if flight.payload is not None:
            drop(state, flight)

    patch.setattr(flights, "drop", faulty)


def missed_terminal_event(patch: Patch) -> None:
    """A cancelled run whose client is gone ends without a word."""
    end_run = ends.end_run

    def faulty(
        state: State, run: Run, status: RunStatus, error: ErrorInfo | None = None
    ) -> None:
        end_run(state, run, status, error)
        if error is not None and "is gone" in error.message:
            assert isinstance(state.out.pop(), FinishRun)

    patch.setattr(ends, "end_run", faulty)


def branch_not_taken_started(patch: Patch) -> None:
    """A guard that asks for false is not looked at."""
    needs_of = plan.needs_of

    def faulty(spec: WorkflowSpec, node: NodeSpec) -> Needs:
        needs = needs_of(spec, node)
        asked = tuple(guard for guard in needs.guards if guard[1])
        return needs._replace(guards=asked)

    patch.setattr(plan, "needs_of", faulty)


def lost_element(patch: Patch) -> None:
    """The last element of a long list is forgotten."""
    length_of = flow.length_of

    def faulty(node: Node) -> int:
        length = length_of(node)
        return length - 1 if length > 1 else length

    patch.setattr(flow, "length_of", faulty)
    patch.setattr(graph_invariants, "length_of", length_of)


def forgotten_workflow(patch: Patch) -> None:
    """A workflow of a run at work is forgotten."""

    def faulty(state: State) -> Iterator[Fragment]:
        return iter(())

    patch.setattr(runs, "open_fragments", faulty)


def forgotten_borrower(patch: Patch) -> None:
    """The last of several that wait for a flight's items is not told of them."""
    lend = borrowing.lend

    def faulty(state: State, lender: Sharing, value: Value, *times_s: float) -> None:
        if len(lender.borrowers) > 1:
            lender.borrowers.popitem()
        lend(state, lender, value, *times_s)

    patch.setattr(borrowing, "lend", faulty)


def item_of_an_evicted_result(patch: Patch) -> None:
    """Items are found in results that are gone."""
    patch.setattr(ItemTable, "forget", lambda table, entry: None)  # pyright: ignore


def wrong_item(patch: Patch) -> None:
    """Of a lender's items the first one is taken."""
    borrow = borrowing._borrow  # pyright: ignore[reportPrivateUsage]

    def faulty(
        state: State,
        sharing: Sharing,
        key: bytes,
        value: Value,
        index: int,
        *times_s: float,
    ) -> None:
        borrow(state, sharing, key, value, min(index, 0), *times_s)

    patch.setattr(borrowing, "_borrow", faulty)


def items_of_a_dropped_flight(patch: Patch) -> None:
    """Whoever waits for the items of a flight that fails or is dropped goes on waiting."""
    patch.setattr(borrowing, "withdraw", lambda state, flight: None)  # pyright: ignore


def forgotten_merged_member(patch: Patch) -> None:
    """Of a flight that is merged into another one the last member is left behind."""
    adopt = flights.adopt

    def faulty(state: State, flight: Flight, members: list[Node], claim: Claim) -> None:
        adopt(state, flight, members[:-1], claim)

    patch.setattr(flights, "adopt", faulty)


def stale_second_key(patch: Patch) -> None:
    """A flight that ends is still found by its other keys."""

    def faulty(table: FusionTable, flight: Flight) -> None:
        if flight.key is not None and table.live.get(flight.key) is flight:
            del table.live[flight.key]

    patch.setattr(FusionTable, "forget", faulty)


def equal_whatever_the_item(patch: Patch) -> None:
    """The item of an element does not count."""
    item = value_keys._item  # pyright: ignore[reportPrivateUsage]

    def faulty(node: Node, payload: Payload) -> bytes | None:
        return b"item" if item(node, payload) is not None else None

    patch.setattr(value_keys, "_item", faulty)


def equal_whatever_the_parents(patch: Patch) -> None:
    """What the parents gave does not count."""

    def faulty(state: State, feeder: Node, flight: Flight) -> Key | None:
        seeds = feeder.fragment.seeds
        if not seeds or not seeds[feeder.position] or feeder.element >= 0:
            return None
        return (b"value" + seeds[feeder.position], ())

    patch.setattr(flights, "value_key_of", faulty)


def older_than_the_node_says(patch: Patch) -> None:
    """However old it may be, a node takes what a twin keeps for longer."""
    patch.setattr(limits, "takes", lambda *_: True)
    patch.setattr(limits, "takes_value", lambda *_: True)


def offered_when_lost(patch: Patch) -> None:
    """What the object store has lost stays in the table."""
    patch.setattr(FusionTable, "drop", lambda table, chosen: [])  # pyright: ignore


def tried_again_without_inputs(patch: Patch) -> None:
    """An item whose inputs are lost is queued again."""
    patch.setattr(losses, "_needs", lambda flight, places: False)  # pyright: ignore


def lent_from_what_is_not_aligned(patch: Patch) -> None:
    """Items are looked for in a value that was made of them."""
    keep = FusionTable.keep_items

    def faulty(
        table: FusionTable,
        entry: Entry,
        sharing: Sharing,
        _: Value,
        expires_s: float,
        born_s: float,
    ) -> None:
        keep(table, entry, sharing, entry.value, expires_s, born_s)

    patch.setattr(FusionTable, "keep_items", faulty)


def items_equal_whatever_a_node_gave(patch: Patch) -> None:
    """Of what decides an item only the list counts that it is of."""

    def faulty(feeder: Node, payload: Payload) -> bytes:
        seeds = feeder.fragment.item_seeds
        return seeds[feeder.position] if seeds else b""

    patch.setattr(borrowing, "item_seed_of", faulty)


FAULTS: list[Callable[[Patch], None]] = [
    lost_waiter,
    double_release,
    stale_attempt_accepted,
    over_capacity,
    forgotten_member,
    wrong_order,
    wrong_heap_order,
    leaked_flight,
    missed_terminal_event,
    branch_not_taken_started,
    lost_element,
    forgotten_workflow,
    forgotten_borrower,
    item_of_an_evicted_result,
    wrong_item,
    items_of_a_dropped_flight,
    forgotten_merged_member,
    stale_second_key,
    equal_whatever_the_item,
    equal_whatever_the_parents,
    older_than_the_node_says,
    offered_when_lost,
    tried_again_without_inputs,
    lent_from_what_is_not_aligned,
    items_equal_whatever_a_node_gave,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_machine_finds_the_seeded_fault(
    fault: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, InternalError, KeyError)):
        run_state_machine_as_test(ModelOnly, settings=settings(CALM, max_examples=500))
