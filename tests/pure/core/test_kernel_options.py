"""Options of nodes and runs: time-outs, retries with delays, deadlines, priority, cache."""

from __future__ import annotations

import pytest

from herasys_rt.core.commands import (
    AbortItem,
    Command,
    FinishRun,
    KeepResult,
    StartBatch,
    WakeAt,
)
from herasys_rt.core.events import (
    PoolFailed,
    RunSubmitted,
    SpecRegistered,
    TimePassed,
)
from herasys_rt.core.kernel import KernelConfig, counters
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import NodeOptions, Retry, WorkflowSpec
from tests.pure.core.kernel_lab import (
    BROKEN,
    BUSY,
    Lab,
    aborts,
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
    wakes,
)

ANSWER = spec_of("a llm")
STEADY = Retry(max_attempts=3, initial_interval_s=4.0, backoff_factor=2.0, jitter=0.0)


def answer_with(**options: object) -> WorkflowSpec:
    return spec_of("a llm", options={"a": NodeOptions(**options)})  # pyright: ignore


def write_with(**options: object) -> WorkflowSpec:
    return spec_of("w write", options={"w": NodeOptions(**options)})  # pyright: ignore


# ---- time-outs


def test_an_attempt_that_takes_too_long_is_aborted_and_tried_again_elsewhere() -> None:
    lab = Lab()
    out = lab.submit("r1", answer_with(timeout_s=10.0))
    first = item(out)
    assert wakes(out) == [lab.now + 10.0]
    lab.up("llm-2", "llm")
    out = lab.pass_time(9.0)
    second = item(out)
    assert aborts(out) == [("llm-1", first.flight, 1)]
    assert (second.attempt, lab.where(second)) == (2, "llm-2")
    lab.aborted(first)
    end = ended(lab.finish(second))
    assert (end.status, record(end, "a").attempts) == ("succeeded", 2)


def test_what_an_attempt_holds_of_its_instance_the_next_one_holds_too() -> None:
    lab = Lab()
    spec = answer_with(timeout_s=10.0)
    lab.send(SpecRegistered(spec))
    run = RunSubmitted("r1", spec.id, "c", "t", inline(b"i"), kv_tokens=(100,))
    first = item(lab.send(run))
    lab.up("llm-2", "llm")
    second = item(lab.pass_time(10.0))
    held = [lab.state.instances[name].reserved for name in ("llm-1", "llm-2")]
    assert held == [100, 100], "the first one has not let go"
    lab.aborted(first)
    lab.finish(second)
    assert [lab.state.instances[f"llm-{n}"].reserved for n in (1, 2)] == [0, 0]


def test_an_instance_that_never_lets_go_does_not_hold_up_the_run() -> None:
    lab = Lab(KernelConfig(max_attempts=1))
    first = item(lab.submit("r1", answer_with(timeout_s=10.0)))
    out = lab.pass_time(10.0)
    end = ended(out)
    assert end.error is not None and (end.status, end.failed_node) == ("failed", "a")
    assert end.error.code == "node_timeout" and end.error.retryable
    assert "10 s" in end.error.message and "llm-1" in end.error.message
    assert aborts(out) == [("llm-1", first.flight, 1)]
    assert items(lab.submit("r2", ANSWER, "2")) == [], "the slot is still in use"
    assert len(items(lab.aborted(first))) == 1


def test_time_outs_are_counted_as_tries() -> None:
    lab = Lab(KernelConfig(max_attempts=2), slots=2)
    lab.submit("r1", answer_with(timeout_s=10.0))
    assert item(lab.pass_time(10.0)).attempt == 2
    end = ended(lab.pass_time(10.0))
    assert end.error is not None and end.error.code == "node_timeout"
    assert record(end, "a").attempts == 2


def test_a_result_that_comes_after_its_time_is_kept_for_others() -> None:
    lab = Lab(KernelConfig(max_attempts=1))
    first = item(lab.submit("r1", answer_with(timeout_s=10.0)))
    lab.pass_time(10.0)
    assert lab.finish(first, inline(b"late")) == []
    assert ended(lab.submit("r2", ANSWER)).outputs == ((0, inline(b"late")),)


def test_a_member_that_allows_more_time_gives_it_to_all() -> None:
    lab = Lab()
    holder = item(lab.submit("r0", ANSWER, "slot holder"))
    lab.submit("r1", answer_with(timeout_s=5.0))
    lab.submit("r2", answer_with(timeout_s=50.0))
    assert wakes(lab.finish(holder)) == [lab.now + 50.0]
    holder = lab.running()[0]
    lab.submit("r3", answer_with(timeout_s=5.0), "3")
    lab.submit("r4", ANSWER, "3")
    out = lab.finish(holder)
    assert len(items(out)) == 1 and wakes(out) == []


def test_all_members_move_on_together_when_time_is_up() -> None:
    lab = Lab(slots=2)
    spec = answer_with(timeout_s=10.0)
    lab.submit("r1", spec)
    lab.submit("r2", spec)
    again = item(lab.pass_time(10.0))
    lab.submit("r3", spec)
    ends = only(lab.finish(again), FinishRun)
    assert [end.run_id for end in ends] == ["r1", "r2", "r3"]
    assert [end.nodes[0].fused_into for end in ends] == ["", "r1/a", "r1/a"]


def test_an_effect_that_takes_too_long_is_reported_not_repeated() -> None:
    """Known fault 8."""
    lab = Lab(slots=2)
    lab.submit("r1", write_with(timeout_s=10.0, retry=STEADY))
    out = lab.pass_time(10.0)
    end = ended(out)
    assert items(out) == [] and end.error is not None
    assert (end.error.code, end.error.retryable) == ("node_timeout", False)
    assert "not known" in end.error.message


def test_waiting_in_a_queue_is_no_part_of_a_time_out() -> None:
    lab = Lab()
    holder = item(lab.submit("r0", ANSWER, "slot holder"))
    lab.submit("r1", answer_with(timeout_s=5.0))
    lab.pass_time(100.0)
    started = item(lab.finish(holder))
    assert ended(lab.finish(started)).status == "succeeded"


@pytest.mark.parametrize("how", ["finish", "fail", "cancel", "lose"])
def test_nothing_is_due_for_an_attempt_that_has_ended(how: str) -> None:
    lab = Lab()
    started = item(lab.submit("r1", answer_with(timeout_s=10.0)))
    match how:
        case "finish":
            lab.finish(started)
        case "fail":
            lab.fail(started)
        case "cancel":
            lab.cancel("r1")
        case _:
            lab.down("llm-1")
    assert not lab.state.due
    assert lab.pass_time(20.0) == []


def test_a_started_value_stays_while_the_aborted_attempt_may_still_use_it() -> None:
    lab = Lab(KernelConfig(max_attempts=1, reuse_max_entries=0))
    first = item(lab.submit("r1", answer_with(timeout_s=5.0), inputs=placed("in")))
    assert releases(lab.pass_time(5.0)) == []
    assert releases(lab.aborted(first)) == ["in"]


# ---- retries


def test_retries_are_delayed_by_growing_intervals_and_keep_their_place() -> None:
    lab = Lab()
    retry = Retry(initial_interval_s=10.0, backoff_factor=2.0, jitter=0.0)
    first = item(lab.submit("r1", answer_with(retry=retry)))
    out = lab.fail(first, BUSY)
    due_s = lab.now + 10.0
    assert out == [WakeAt(due_s)]
    later = item(lab.submit("r2", ANSWER, "2"))
    assert lab.pass_time(2.0) == [WakeAt(due_s)], "too early"
    lab.submit("r3", ANSWER, "3")
    assert lab.pass_time(5.0) == []
    second = item(lab.finish(later))
    assert (second.run_id, second.attempt) == ("r1", 2), "before r3"
    out = lab.fail(second, BUSY)
    assert wakes(out) == [lab.now + 20.0]


def test_the_delay_is_bounded_and_jitter_only_shortens_it() -> None:
    for jitter in (0.0, 0.5, 1.0):
        retry = Retry(9, 10.0, 10.0, 15.0, jitter)
        lab = Lab()
        again = item(lab.submit("r1", answer_with(retry=retry)))
        for most in (10.0, 15.0, 15.0):
            lab.fail(again, BUSY)
            wait_s = lab.state.wake_s - lab.now
            assert (1 - jitter) * most - 1e-9 <= wait_s <= most + 1e-9
            again = item(lab.pass_time(most))


def test_jitter_differs_between_flights_and_is_the_same_in_a_replay() -> None:
    def delays() -> list[float]:
        lab = Lab(slots=4)
        retry = Retry(3, 10.0, 2.0, 30.0, 1.0)
        started = [
            item(lab.submit(f"r{i}", answer_with(retry=retry), f"{i}")) for i in range(4)
        ]
        waits: list[float] = []
        for one in started:
            lab.fail(one, BUSY)
            rank = lab.state.due.rank(one.flight)
            waits.append(round(rank[1] - lab.now, 6))
        return waits

    assert delays() == delays() and len(set(delays())) == 4


def test_a_retry_names_the_codes_it_is_for() -> None:
    lab = Lab()
    spec = answer_with(retry=Retry(3, 1.0, retry_on=("broken",)))
    again = item(lab.submit("r1", spec))
    assert ended(lab.fail(again, BUSY)).error == BUSY
    started = item(lab.submit("r2", spec, "2"))
    assert only(lab.fail(started, BROKEN), FinishRun) == []
    assert item(lab.pass_time(1.0)).attempt == 2


def test_the_retry_of_a_node_overrides_the_number_of_attempts() -> None:
    lab = Lab(KernelConfig(max_attempts=1))
    again = item(lab.submit("r1", answer_with(retry=STEADY)))
    for attempt in (2, 3):
        lab.fail(again, BUSY)
        again = item(lab.pass_time(8.0))
        assert again.attempt == attempt
    end = ended(lab.fail(again, BUSY))
    assert (end.error, record(end, "a").attempts) == (BUSY, 3)
    once = answer_with(retry=Retry(max_attempts=1))
    assert ended(lab.fail(item(lab.submit("r2", once, "2")), BUSY)).error == BUSY


def test_an_effect_is_not_retried_whatever_its_options_say() -> None:
    """Known fault 8."""
    lab = Lab()
    started = item(lab.submit("r1", write_with(retry=Retry(9, 0.0, retry_on=("busy",)))))
    assert ended(lab.fail(started, BUSY)).error == BUSY


def test_a_delay_of_nothing_is_no_delay() -> None:
    lab = Lab()
    started = item(lab.submit("r1", answer_with(retry=Retry(3, 0.0))))
    assert item(lab.fail(started, BUSY)).attempt == 2


def test_work_that_rests_can_be_joined_promoted_and_cancelled() -> None:
    lab = Lab()
    spec = answer_with(retry=STEADY)
    lab.fail(item(lab.submit("r1", spec)), BUSY)
    lab.submit("r2", spec)
    lab.cancel("r1")
    again = item(lab.pass_time(8.0))
    assert (again.attempt, ended(lab.finish(again)).run_id) == (2, "r2")
    lab.fail(item(lab.submit("r3", spec, "3")), BUSY)
    lab.cancel("r3")
    assert not lab.state.flights and not lab.state.due


def test_work_that_rested_fails_when_its_pool_is_gone_by_then() -> None:
    lab = Lab()
    gone = ErrorInfo("gone", "no instance")
    lab.fail(item(lab.submit("r1", answer_with(retry=STEADY))), BUSY)
    lab.down("llm-1")
    lab.send(PoolFailed("llm", gone))
    assert ended(lab.pass_time(8.0)).error == gone


def test_losing_an_instance_is_no_failed_try_and_is_not_delayed() -> None:
    lab = Lab()
    lab.submit("r1", answer_with(retry=Retry(max_attempts=1, initial_interval_s=9.0)))
    lab.up("llm-2", "llm")
    assert item(lab.down("llm-1")).attempt == 2


# ---- deadlines


def test_a_run_that_is_not_over_at_its_deadline_fails() -> None:
    lab = Lab()
    chain = spec_of("q embed", "a llm q")
    out = lab.submit("r1", chain, deadline_s=30.0)
    assert wakes(out) == [lab.now + 30.0]
    answer = item(lab.finish(item(out)))
    out = lab.pass_time(29.0)
    end = ended(out)
    assert end.error is not None and end.status == "failed"
    assert end.error.code == "deadline_exceeded" and "30 s" in end.error.message
    assert aborts(out) == [("llm-1", answer.flight, 1)]
    assert record(end, "a").state == "cancelled"


def test_a_deadline_does_not_reorder() -> None:
    lab = Lab()
    lab.submit("r0", ANSWER, "0")
    lab.submit("r1", ANSWER, "1")
    lab.submit("r2", ANSWER, "2", deadline_s=5.0)
    assert item(lab.finish(lab.running()[0])).run_id == "r1"


def test_a_run_that_ended_has_no_deadline() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", ANSWER, deadline_s=5.0)))
    assert not lab.state.due and not lab.state.deadlines
    assert lab.pass_time(10.0) == []


@pytest.mark.parametrize("deadline_s", [0.0, -1.0])
def test_a_deadline_that_has_passed_is_due_at_once(deadline_s: float) -> None:
    lab = Lab()
    lab.submit("r1", ANSWER, deadline_s=deadline_s)
    assert ended(lab.pass_time(0.0)).status == "failed"


@pytest.mark.parametrize("deadline_s", [float("nan"), float("inf")])
def test_a_deadline_that_is_no_time_is_none(deadline_s: float) -> None:
    lab = Lab()
    assert wakes(lab.submit("r1", ANSWER, deadline_s=deadline_s)) == []


def test_whoever_shares_work_with_an_overdue_run_goes_on() -> None:
    lab = Lab()
    started = item(lab.submit("r1", ANSWER, deadline_s=5.0))
    lab.submit("r2", ANSWER)
    out = lab.pass_time(5.0)
    assert ended(out).run_id == "r1" and aborts(out) == []
    assert ended(lab.finish(started)).run_id == "r2"


# ---- being woken


def test_the_kernel_asks_to_be_woken_only_when_that_is_earlier_than_asked_before() -> None:
    lab = Lab(slots=4)
    assert wakes(lab.submit("r1", ANSWER, "1", deadline_s=50.0)) == [lab.now + 50.0]
    first = lab.now + 50.0
    assert wakes(lab.submit("r2", ANSWER, "2", deadline_s=90.0)) == []
    assert wakes(lab.submit("r3", ANSWER, "3", deadline_s=10.0)) == [lab.now + 10.0]
    lab.cancel("r3")
    assert lab.pass_time(10.0) == [WakeAt(first)], "asks again for what is left"
    assert only(lab.pass_time(100.0), WakeAt) == []
    assert lab.nodes()["cancelled"] == 3


def test_everything_due_is_treated_at_once_in_the_order_of_time() -> None:
    lab = Lab(slots=4)
    lab.submit("r1", ANSWER, "1", deadline_s=30.0)
    lab.submit("r2", ANSWER, "2", deadline_s=10.0)
    ends = only(lab.pass_time(60.0), FinishRun)
    assert [end.run_id for end in ends] == ["r2", "r1"]


def test_time_that_passes_with_nothing_due_changes_nothing() -> None:
    lab = Lab()
    assert lab.send(TimePassed()) == []


# ---- priority and cache


def test_the_priority_of_a_node_is_added_to_its_runs() -> None:
    lab = Lab()
    lab.submit("r0", ANSWER, "0")
    lab.submit("r1", answer_with(priority=1), "1", priority=1)
    lab.submit("r2", answer_with(priority=3), "2")
    lab.submit("r3", ANSWER, "3", priority=1)
    served = [end.run_id for end in lab.finish_all()]
    assert served == ["r0", "r2", "r1", "r3"]


def test_a_result_that_is_not_to_be_cached_is_neither_kept_nor_taken_from_there() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", answer_with(cache=False))))
    assert not lab.state.table.completed
    lab.finish(item(lab.submit("r2", ANSWER)))
    assert len(items(lab.submit("r3", answer_with(cache=False)))) == 1


def test_what_is_made_of_a_result_that_is_not_cached_is_made_anew() -> None:
    """Also where somebody else's workflow keeps what this one wants anew."""
    private = spec_of("s search", "a llm s", options={"s": NodeOptions(cache=False)})
    public = spec_of("s search", "a llm s", name="public")
    lab = Lab(KernelConfig(reuse_store=True))
    for run_id, spec in (("r1", private), ("r2", private), ("r3", public)):
        answer = item(lab.finish(item(lab.submit(run_id, spec))))
        assert bool(only(lab.finish(answer), KeepResult)) == (spec is public)
    assert item(lab.submit("r4", private)).node == 0
    lab.finish_all()
    assert ended(lab.submit("r5", public)).nodes[1].reused


def test_a_result_that_is_over_when_it_comes_is_not_kept() -> None:
    lab = Lab(KernelConfig(reuse_store=True, reuse_ttl_s={"pg.search": 5.0}))
    answer = item(lab.finish(item(lab.submit("r1", spec_of("s search", "a llm s")))))
    lab.pass_time(5.0)
    assert only(lab.finish(answer), KeepResult) == []
    assert counters(lab.state)["reuse"]["entries"] == 1, "the search, until it is looked up"


def test_nodes_that_are_not_cached_still_share_work_under_way() -> None:
    lab = Lab()
    spec = answer_with(cache=False)
    lab.submit("r1", spec)
    assert items(lab.submit("r2", spec)) == []
    assert counters(lab.state)["reuse"] == {"entries": 0, "bytes": 0}


def test_a_cached_result_stays_as_long_as_its_node_says() -> None:
    lab = Lab(KernelConfig(reuse_ttl_s={"llm.generate": 5.0}))
    spec = answer_with(cache_ttl_s=20.0)
    lab.finish(item(lab.submit("r1", spec)))
    lab.now += 10
    assert ended(lab.submit("r2", spec)).nodes[0].reused
    lab.now += 10
    assert len(items(lab.submit("r3", spec))) == 1


@pytest.mark.parametrize(
    "options",
    [
        NodeOptions(timeout_s=float("nan")),
        NodeOptions(cache_ttl_s=-1.0),
        NodeOptions(retry=Retry(jitter=float("nan"))),
    ],
)
def test_options_that_are_no_numbers_are_refused(options: NodeOptions) -> None:
    error = refused(Lab().submit("r1", spec_of("a llm", options={"a": options})))
    assert error.code == "invalid_graph" and "option of node 'a'" in error.message


def test_runs_without_options_never_ask_to_be_woken() -> None:
    lab = Lab()
    lab.submit("r1", spec_of("q embed", "s search q", "a llm s"))
    lab.finish_all()
    log: list[Command] = lab.log
    assert wakes(log) == [] and only(log, AbortItem) == [] and only(log, StartBatch)
