"""Pools: order, batches, placement, retries, lost instances."""

from __future__ import annotations

import pytest

from herasys_rt.core.commands import Command, FinishRun, StartBatch
from herasys_rt.core.events import ItemFinished, PoolDeclared, PoolFailed
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import WorkflowSpec
from tests.pure.core.kernel_lab import (
    BROKEN,
    BUSY,
    Lab,
    accepts,
    ended,
    inline,
    item,
    items,
    only,
    placed,
    record,
    refused,
    releases,
    spec_of,
)

ANSWER = spec_of("a llm")
EMBED = spec_of("q embed")
GONE = ErrorInfo("model_unavailable", "the model does not load", "look at the log")


def fill(lab: Lab, many: int, spec: WorkflowSpec = EMBED) -> None:
    for at in range(many):
        lab.submit(f"r{at}", spec, f"{at}")


def batches(commands: list[Command]) -> list[tuple[str, list[str]]]:
    started = only(commands, StartBatch)
    return [(batch.instance, [i.run_id for i in batch.items]) for batch in started]


# ---- order


def test_nodes_of_the_oldest_run_go_first() -> None:
    lab = Lab()
    two = spec_of("a llm", "b llm a")
    first = item(lab.submit("r1", two, "1"))
    lab.submit("r2", two, "2")
    assert item(lab.finish(first)).run_id == "r1"


def test_priority_goes_before_arrival() -> None:
    lab = Lab()
    fill(lab, 3, ANSWER)
    lab.submit("urgent", ANSWER, "urgent", priority=1)
    lab.submit("idle", ANSWER, "idle", priority=-1)
    served = [end.run_id for end in lab.finish_all()]
    assert served == ["r0", "urgent", "r1", "r2", "idle"]


def test_a_priority_takes_nothing_from_another_tenant() -> None:
    lab = Lab()
    lab.submit("first", ANSWER, "0", tenant="a")
    for name in ("b1", "a1", "b2", "a2"):
        lab.submit(name, ANSWER, name, tenant=name[0])
    lab.submit("a9", ANSWER, "a9", tenant="a", priority=9)
    served = [end.run_id for end in lab.finish_all()]
    assert served == ["first", "b1", "a9", "b2", "a1", "a2"]


def test_a_low_priority_lets_only_its_own_tenant_pass() -> None:
    lab = Lab()
    lab.submit("first", ANSWER, "0", tenant="a")
    lab.submit("a-", ANSWER, "a-", tenant="a", priority=-5)
    for name in ("b1", "a1", "b2"):
        lab.submit(name, ANSWER, name, tenant=name[0])
    served = [end.run_id for end in lab.finish_all()]
    assert served == ["first", "a1", "b1", "a-", "b2"]


def test_a_flight_is_as_urgent_as_its_most_urgent_member() -> None:
    lab = Lab()
    fill(lab, 4, ANSWER)
    lab.submit("urgent", ANSWER, "3", priority=1)
    lab.submit("urgent too", ANSWER, "2", priority=1)
    lab.cancel("urgent too")
    order = [end.run_id for end in lab.finish_all()]
    assert order == ["r0", "r3", "urgent", "r1", "r2"]


def test_equal_keys_go_in_the_order_they_became_ready() -> None:
    lab = Lab(slots=2)
    spec = spec_of("x llm", "y llm", "z llm", "w llm", outputs="x y z w")
    lab.submit("r1", spec, signed=False)
    order = [i.node for i in lab.running()]
    while running := lab.running():
        order += [i.node for i in items(lab.finish(running[0]))]
    assert order == [0, 1, 2, 3]


# ---- batches


def test_batched_pools_take_up_to_their_limit_into_one_slot() -> None:
    lab = Lab()
    fill(lab, 7)
    first = lab.running()[0]
    (batch,) = batches(lab.finish(first))
    assert batch == ("embed-1", ["r1", "r2", "r3", "r4"])


def test_a_batch_holds_its_slot_until_its_last_item_ended() -> None:
    """A bad item is that item's outcome (known fault 12 in small)."""
    lab = Lab()
    fill(lab, 6)
    lab.finish(lab.running()[0])
    one, two, three, four = lab.running()
    assert ended(lab.fail(one)).run_id == "r1"
    assert batches(lab.finish(two)) == batches(lab.finish(three)) == []
    assert batches(lab.finish(four)) == [("embed-1", ["r5"])]


def test_idle_instances_share_the_queue_evenly() -> None:
    lab = Lab(up="embed")
    lab.up("embed-2", "embed")
    wide = spec_of(*[f"e{at} embed" for at in range(5)], outputs="e0 e1 e2 e3 e4")
    out = lab.submit("r1", wide, signed=False)
    shared = [(c.instance, [i.node for i in c.items]) for c in only(out, StartBatch)]
    assert shared == [("embed-1", [0, 1, 2]), ("embed-2", [3, 4])]


def test_idle_slots_of_one_instance_share_the_queue_evenly() -> None:
    lab = Lab(up="")
    fill(lab, 5)
    out = lab.up("embed-1", "embed", 2)
    assert [len(runs) for _, runs in batches(out)] == [3, 2]


def test_only_equal_verbs_share_a_batch() -> None:
    lab = Lab(up="")
    lab.send(
        PoolDeclared(
            "embed",
            "retrieval",
            batched=True,
            batch_limit=8,
            verbs=("pg.search", "pg.write"),
        )
    )
    lab.send(PoolDeclared("pg", "none"))
    for at, kind in enumerate(("search", "write", "search")):
        lab.submit(f"r{at}", spec_of(f"n {kind}"), f"{at}")
    assert batches(lab.up("e", "embed", 1)) == [("e", ["r0", "r2"])]


def test_continuous_pools_take_one_item_per_slot() -> None:
    lab = Lab(slots=2)
    fill(lab, 3, ANSWER)
    assert [i.run_id for i in lab.running()] == ["r0", "r1"]
    assert item(lab.finish(lab.running()[1])).run_id == "r2"


def test_the_least_loaded_instance_is_chosen_ties_by_name() -> None:
    lab = Lab(slots=2)
    lab.up("llm-0", "llm", 4)
    fill(lab, 5, ANSWER)
    chosen = [lab.where(i) for i in lab.running()]
    assert chosen == ["llm-0", "llm-1", "llm-0", "llm-0", "llm-1"]


# ---- failures and retries


def test_a_retryable_failure_is_tried_again_elsewhere_and_keeps_its_place() -> None:
    """Known fault 9: the kernel alone retries."""
    lab = Lab()
    lab.up("llm-2", "llm")
    fill(lab, 4, ANSWER)
    first = lab.running()[0]
    assert lab.where(first) == "llm-1"
    assert item(lab.fail(first, BUSY)).run_id == "r0", "r0 stays before r2"
    again = lab.running()[-1]
    assert (again.flight, again.attempt, lab.where(again)) == (first.flight, 2, "llm-1")
    out = lab.finish(lab.running()[0])
    assert item(out).run_id == "r2"


def test_a_retry_keeps_its_place_among_the_nodes_of_its_run() -> None:
    lab = Lab()
    spec = spec_of("x llm", "y llm -", "z llm - -", outputs="x y z")
    first = item(lab.submit("r1", spec))
    again = item(lab.fail(first, BUSY))
    assert (again.flight, again.attempt) == (first.flight, 2)


def test_a_retry_prefers_another_free_instance() -> None:
    lab = Lab()
    first = item(lab.submit("r1", ANSWER))
    lab.up("llm-9", "llm")
    second = item(lab.fail(first, BUSY))
    assert (second.attempt, lab.where(second)) == (2, "llm-9")
    assert second.upstream == first.upstream and second.inputs == first.inputs


def test_a_batch_leaves_out_what_just_failed_on_its_instance() -> None:
    lab = Lab(up="")
    for at in range(2):
        lab.submit(f"r{at}", EMBED, f"{at}")
    one, two = items(lab.up("embed-1", "embed"))
    lab.fail(two, BUSY)
    lab.submit("r2", EMBED, "2")
    lab.up("embed-2", "embed", 1)
    assert lab.where(lab.running()[-1]) == "embed-2"
    lab.finish(one)
    assert {i.run_id for i in lab.running()} == {"r1", "r2"}


def test_tries_are_counted_and_the_last_error_is_delivered() -> None:
    lab = Lab(KernelConfig(max_attempts=3))
    lab.submit("r1", ANSWER)
    lab.submit("r2", ANSWER)
    for attempt in (1, 2):
        (again,) = items(lab.fail(lab.running()[0], BUSY))
        assert again.attempt == attempt + 1
    ends = only(lab.fail(lab.running()[0], BUSY), FinishRun)
    assert [(e.run_id, e.error) for e in ends] == [("r1", BUSY), ("r2", BUSY)]
    assert record(ends[0], "a").attempts == 3


def test_an_effect_is_not_tried_again() -> None:
    """Known fault 8."""
    lab = Lab()
    end = ended(lab.fail(item(lab.submit("r1", spec_of("w write"))), BUSY))
    assert (end.error, end.failed_node) == (BUSY, "w")


def test_an_item_its_engine_dropped_by_itself_is_tried_again() -> None:
    lab = Lab(KernelConfig(max_attempts=2))
    again = item(lab.aborted(item(lab.submit("r1", ANSWER))))
    error = ended(lab.aborted(again)).error
    assert error is not None and error.code == "item_dropped"


def test_outcomes_of_an_earlier_attempt_are_ignored() -> None:
    lab = Lab()
    first = item(lab.submit("r1", ANSWER))
    second = item(lab.fail(first, BUSY))
    assert lab.finish(first, inline(b"old")) == []
    assert lab.fail(first, BROKEN) == [] and lab.begin(first) == []
    assert ended(lab.finish(second, inline(b"new"))).outputs == ((0, inline(b"new")),)


def test_an_outcome_from_another_instance_is_ignored() -> None:
    lab = Lab()
    one = item(lab.submit("r1", ANSWER))
    out = lab.send(ItemFinished(one.flight, 1, "llm-7", placed("forged"), 1.0))
    assert releases(out) == ["forged"] and len(lab.running()) == 1


# ---- lost instances


def test_work_of_a_lost_instance_moves_without_burning_tries() -> None:
    """Known faults 10 and 12."""
    lab = Lab(KernelConfig(max_attempts=1), slots=2)
    fill(lab, 2, ANSWER)
    lab.up("llm-2", "llm", 2)
    moved = items(lab.down("llm-1"))
    assert [(i.run_id, i.attempt, lab.where(i)) for i in moved] == [
        ("r0", 2, "llm-2"),
        ("r1", 2, "llm-2"),
    ]
    assert [end.status for end in lab.finish_all()] == ["succeeded"] * 2


def test_work_waits_while_a_pool_has_no_instance() -> None:
    """Known fault 10."""
    lab = Lab(KernelConfig(max_attempts=1))
    lab.submit("r1", ANSWER)
    for at in range(3):
        assert items(lab.down(f"llm-{at + 1}")) == []
        lab.submit(f"w{at}", ANSWER, f"{at}")
        assert len(items(lab.up(f"llm-{at + 2}", "llm"))) == 1
    assert len(lab.finish_all()) == 4


def test_members_and_late_joiners_survive_a_lost_instance() -> None:
    """Known fault 3."""
    lab = Lab()
    lab.begin(item(lab.submit("r1", ANSWER)))
    lab.submit("r2", ANSWER)
    lab.down("llm-1")
    lab.submit("r3", ANSWER)
    lab.cancel("r1")
    lab.up("llm-2", "llm")
    assert [end.run_id for end in lab.finish_all()] == ["r2", "r3"]


def test_a_flight_lost_too_often_fails_naming_the_instances() -> None:
    lab = Lab(KernelConfig(max_losses=3))
    lab.submit("r1", ANSWER)
    for at in range(1, 4):
        lab.up(f"llm-{at + 1}", "llm")
        assert len(items(lab.down(f"llm-{at}"))) == 1
    end = ended(lab.down("llm-4"))
    assert end.error is not None and end.error.code == "instance_lost"
    assert "llm-1, llm-2, llm-3, llm-4" in end.error.message
    assert record(end, "a").instance == "llm-4"


def test_an_effect_on_a_lost_instance_is_reported_not_repeated() -> None:
    """Known fault 8."""
    lab = Lab()
    lab.submit("r1", spec_of("w write"))
    lab.up("pg-2", "pg")
    out = lab.down("pg-1")
    end = ended(out)
    assert items(out) == [] and end.error is not None
    assert end.error.code == "effect_unknown" and not end.error.retryable
    assert "may or may not have happened" in end.error.message


def test_a_lost_instance_frees_what_was_being_aborted() -> None:
    lab = Lab()
    one = item(lab.submit("r1", ANSWER))
    lab.cancel("r1")
    assert lab.down("llm-1") == [] and not lab.state.flights
    assert releases(lab.finish(one, placed("late"))) == ["late"]


def test_losing_one_instance_with_several_members_of_one_run_ends_it_once() -> None:
    lab = Lab()
    spec = spec_of("v write", "w write", outputs="v w")
    lab.up("pg-2", "pg", 2)
    lab.down("pg-1")
    lab.submit("r1", spec)
    end = ended(lab.down("pg-2"))
    assert {record(end, "v").state, record(end, "w").state} == {"failed", "cancelled"}
    assert not lab.state.flights


def test_unknown_and_repeated_instances_change_nothing() -> None:
    lab = Lab()
    assert lab.down("nobody") == [] and lab.up("x-1", "nopool") == []
    assert lab.up("llm-1", "llm", 8) == []
    assert lab.state.pools["llm"].idle_slots == 1


# ---- pools that are gone


def test_a_failed_pool_fails_what_is_queued_there_and_refuses_new_runs() -> None:
    lab = Lab(up="embed")
    fill(lab, 2, ANSWER)
    ends = only(lab.send(PoolFailed("llm", GONE)), FinishRun)
    assert [(e.run_id, e.error) for e in ends] == [("r0", GONE), ("r1", GONE)]
    assert refused(lab.submit("r2", ANSWER)) == GONE
    lab.up("llm-1", "llm")
    assert accepts(lab.submit("r2", ANSWER)) == ["r2"]


def test_what_becomes_ready_for_a_failed_pool_fails_then() -> None:
    lab = Lab(up="embed")
    embed = item(lab.submit("r1", spec_of("q embed", "a llm q")))
    assert lab.send(PoolFailed("llm", GONE)) == []
    end = ended(lab.finish(embed))
    assert (end.error, end.failed_node) == (GONE, "a")


def test_a_failed_pool_serves_on_until_its_last_instance_is_gone() -> None:
    lab = Lab()
    fill(lab, 2, ANSWER)
    assert lab.send(PoolFailed("llm", GONE)) == []
    assert item(lab.finish(lab.running()[0])).run_id == "r1"
    assert ended(lab.down("llm-1")).error == GONE


@pytest.mark.parametrize("slots", [0, -1])
def test_an_instance_without_slots_takes_nothing(slots: int) -> None:
    lab = Lab(up="")
    lab.submit("r1", ANSWER)
    assert lab.up("llm-1", "llm", slots) == []
