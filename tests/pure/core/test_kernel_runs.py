"""Runs: accepted or refused, ended exactly once, accounted for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.core.commands import (
    AcceptRun,
    AddSubscriber,
    FinishRun,
    NodeRecord,
    ReleaseValue,
    StartBatch,
    Subscriber,
    WorkItem,
)
from herasys_rt.core.events import ClientGone, PoolDeclared, RunSubmitted, SpecRegistered
from herasys_rt.core.kernel import KernelConfig, counters
from herasys_rt.errors import HerasysError, error_from_info
from herasys_rt.graph.spec import NodeRef
from tests.pure.core.kernel_lab import (
    BROKEN,
    Lab,
    aborts,
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
    states,
)

CHAIN = spec_of("q embed", "s search q", "a llm s")
ANSWER = spec_of("a llm")


def test_a_chain_runs_node_by_node_and_hands_values_down() -> None:
    lab = Lab()
    inputs = inline(b"question")
    first = lab.submit("r1", CHAIN, inputs=inputs)
    assert first == [
        AcceptRun("r1", "client"),
        StartBatch(
            "embed-1",
            (WorkItem(1, 1, CHAIN.id, 0, "r1", "tenant", inputs),),
            "workflow_fcfs, least_loaded, size_limited",
        ),
    ]
    vector, chunks, text = inline(b"vector"), inline(b"chunks"), inline(b"text")
    search = item(lab.finish(item(first), vector))
    assert (search.node, search.upstream, search.inputs) == (1, ((0, vector),), inputs)
    answer = item(lab.finish(search, chunks, meta=b"sources"))
    lab.begin(answer)
    assert lab.finish(answer, text, meta=b"tokens", run_s=2.5) == [
        FinishRun(
            "r1",
            "client",
            "succeeded",
            (
                NodeRecord(
                    "q",
                    "embed@1",
                    "succeeded",
                    "embed-1",
                    0.0,
                    0.5,
                    attempts=1,
                    share=1.0,
                    billed_s=0.5,
                ),
                NodeRecord(
                    "s",
                    "search@1",
                    "succeeded",
                    "pg-1",
                    0.0,
                    0.5,
                    attempts=1,
                    meta=b"sources",
                    share=1.0,
                    billed_s=0.5,
                ),
                NodeRecord(
                    "a",
                    "llm@1",
                    "succeeded",
                    "llm-1",
                    0.0,
                    2.5,
                    attempts=1,
                    meta=b"tokens",
                    share=1.0,
                    billed_s=2.5,
                ),
            ),
            ((2, text),),
        )
    ]


def test_queued_time_is_counted_from_ready_to_start() -> None:
    lab = Lab()
    first = item(lab.submit("r1", ANSWER, "one"))
    lab.submit("r2", ANSWER, "two")
    second = item(lab.finish(first))
    lab.begin(second)
    assert record(ended(lab.finish(second)), "a").queued_s == 1.0


def test_several_outputs_are_gathered_in_one_end() -> None:
    lab = Lab()
    spec = spec_of("x embed", "y search", outputs="x y")
    one, two = items(lab.submit("r1", spec))
    assert not only(lab.finish(two, inline(b"y")), FinishRun)
    end = ended(lab.finish(one, inline(b"x")))
    assert end.outputs == ((0, inline(b"x")), (1, inline(b"y")))


def test_nodes_that_no_output_needs_are_skipped_but_effects_are_not() -> None:
    lab = Lab()
    spec = spec_of("idle embed", "w write", "a llm", outputs="a")
    started = items(lab.submit("r1", spec))
    assert [i.node for i in started] == [1, 2]
    assert not only(lab.finish(started[1]), FinishRun)
    end = ended(lab.finish(started[0]))
    assert states(end) == {"idle": "skipped", "w": "succeeded", "a": "succeeded"}


def test_a_run_without_anything_to_execute_ends_at_once() -> None:
    lab = Lab()
    spec = spec_of("q embed", outputs="none")
    out = lab.submit("r1", spec)
    assert [type(c) for c in out] == [AcceptRun, FinishRun]
    assert (ended(out).status, ended(out).outputs) == ("succeeded", ())
    empty = lab.submit("r2", spec_of(outputs="none"))
    assert ended(empty).nodes == ()


def test_submitting_a_known_run_is_acknowledged_and_nothing_else() -> None:
    lab = Lab()
    first = lab.submit("r1", ANSWER)
    assert lab.submit("r1", ANSWER) == [AcceptRun("r1", "client")]
    lab.finish(item(first))
    assert lab.nodes() == {"submitted": 1, "executed": 1}


def test_a_run_id_that_has_ended_or_is_another_clients_is_refused() -> None:
    lab = Lab()
    first = lab.submit("r1", ANSWER)
    error = refused(lab.submit("r1", ANSWER, client="other"))
    assert error.code == "run_id_used" and "another client" in error.message
    lab.finish(item(first))
    error = refused(lab.submit("r1", ANSWER))
    assert error.code == "run_id_used" and "has ended" in error.message
    assert lab.nodes() == {"submitted": 1, "executed": 1}


def test_unknown_spec_is_refused_and_may_be_tried_again() -> None:
    lab = Lab()
    event = RunSubmitted("r1", "spec-none", "client", "tenant", inline(b"q"))
    error = refused(lab.send(event))
    assert (error.code, error.retryable) == ("unknown_spec", True)
    assert accepts(lab.submit("r1", ANSWER)) == ["r1"]


@pytest.mark.parametrize(
    ("swap", "problem"),
    [
        ({"nodes": CHAIN.nodes[::-1]}, "node 'a' comes before 's'"),
        ({"nodes": CHAIN.nodes[:1] * 2}, "two nodes are called 'q'"),
        ({"outputs": {"output": NodeRef("z")}}, "read from 'z', which is no node"),
    ],
)
def test_a_spec_that_cannot_run_is_refused_and_harms_nobody(
    swap: dict[str, Any], problem: str
) -> None:
    lab = Lab()
    error = refused(lab.submit("r1", replace(CHAIN, **swap), signed=False))
    assert error.code == "invalid_graph" and problem in error.message
    assert accepts(lab.submit("r2", CHAIN)) == ["r2"]


def test_beyond_the_bound_a_run_is_refused_with_when_to_retry() -> None:
    """Known fault 14."""
    lab = Lab(KernelConfig(max_active_runs=2))
    for run_id in ("r1", "r2"):
        assert accepts(lab.submit(run_id, ANSWER, run_id)) == [run_id]
    error = refused(lab.submit("r3", ANSWER, "r3"))
    assert (error.code, error.retryable) == ("overloaded", True)
    assert "2 runs are active" in error.message and "again in" in error.hint
    assert error_from_info(error).retryable
    lab.cancel("r1")
    assert accepts(lab.submit("r3", ANSWER, "r3")) == ["r3"]


@pytest.mark.parametrize(
    ("line", "code", "facts"),
    [
        ("a llm@nosuch", "unknown_model", ["'nosuch'", "llm: smol", "'a'"]),
        ("a rerank@mini", "unknown_model", ["'mini'", "rank: late"]),
        ("a search@smol", "unknown_model", ["pg: no model"]),
    ],
)
def test_a_model_that_no_pool_answers_to_is_refused_with_those_that_exist(
    line: str, code: str, facts: list[str]
) -> None:
    error = refused(Lab().submit("r1", spec_of(line)))
    assert error.code == code and error.hint
    assert all(fact in error.message for fact in facts)


def test_a_verb_that_no_pool_offers_is_refused_with_the_pools() -> None:
    lab = Lab()
    lab.send(PoolDeclared("pg", "retrieval", verbs=("pg.search",)))
    error = refused(lab.submit("r1", spec_of("w write")))
    assert error.code == "no_pool" and "pg (retrieval: pg.search)" in error.message


def test_a_node_without_model_goes_to_the_default_pool_of_several() -> None:
    lab = Lab()
    other = PoolDeclared("big", "llm", ("big",), verbs=("llm.generate",))
    lab.send(other)
    assert refused(lab.submit("r1", ANSWER)).code == "no_pool"
    lab.send(PoolDeclared("big", "llm", ("big",), True, verbs=("llm.generate",)))
    lab.up("big-1", "big")
    assert lab.where(item(lab.submit("r1", ANSWER))) == "big-1"
    assert lab.where(item(lab.submit("r2", spec_of("a llm@smol"), "other"))) == "llm-1"


def test_failure_ends_the_run_with_the_node_and_its_error() -> None:
    """Known fault 11: the blame stays with the instance that failed."""
    lab = Lab()
    spec = spec_of("x embed", "y search", "a llm x y")
    embed, search = items(lab.submit("r1", spec))
    lab.finish(embed)
    out = lab.fail(search)
    end = ended(out)
    assert (end.status, end.failed_node, end.error) == ("failed", "y", BROKEN)
    assert states(end) == {"x": "succeeded", "y": "failed", "a": "cancelled"}
    assert (record(end, "x").instance, record(end, "y").instance) == ("embed-1", "pg-1")
    assert lab.nodes() == {"submitted": 3, "executed": 2, "cancelled": 1, "failed": 1}


def test_failure_stops_the_rest_of_that_run() -> None:
    lab = Lab()
    embed, search = items(lab.submit("r1", spec_of("x embed", "y search", "a llm x y")))
    assert aborts(lab.fail(embed)) == [("pg-1", search.flight, 1)]
    lab.aborted(search)
    assert not lab.state.flights


# ---- cancelling


@pytest.mark.parametrize("steps", range(6))
def test_cancel_at_every_step_ends_the_run_and_leaves_nothing_running(steps: int) -> None:
    """Known faults 1 and 2."""
    lab = Lab()
    lab.submit("r1", CHAIN)
    for step in range(steps):
        running = lab.running()[0]
        lab.finish(running) if step % 2 else lab.begin(running)
    end = ended(lab.cancel("r1"))
    assert end.status == "cancelled" and end.error is not None
    assert "cancelled" in set(states(end).values())
    for running in lab.running():
        lab.aborted(running)
    assert not lab.state.flights and not lab.state.runs
    assert lab.cancel("r1") == []


def test_cancelling_what_waits_for_inputs_ends_it_at_once() -> None:
    """Known fault 2."""
    lab = Lab(up="")
    lab.submit("r1", CHAIN)
    assert states(ended(lab.cancel("r1"))) == dict.fromkeys("qsa", "cancelled")


def test_a_cancel_that_overtakes_its_submit_is_not_lost() -> None:
    """Known fault 1."""
    lab = Lab()
    assert lab.cancel("r1") == [] and lab.cancel("r1") == []
    out = lab.submit("r1", CHAIN)
    assert [type(c) for c in out] == [AcceptRun, FinishRun]
    assert ended(out).status == "cancelled"
    assert states(ended(out)) == dict.fromkeys("qsa", "cancelled")
    assert refused(lab.submit("r1", CHAIN)).code == "run_id_used"
    assert lab.nodes() == {"submitted": 3, "cancelled": 3}


def test_an_early_cancel_holds_even_for_an_unknown_workflow() -> None:
    lab = Lab()
    lab.cancel("r1")
    event = RunSubmitted("r1", "spec-none", "client", "tenant", placed("big"))
    out = lab.send(event)
    assert ended(out).status == "cancelled" and releases(out) == ["big"]


def test_cancel_says_why() -> None:
    lab = Lab()
    lab.submit("r1", ANSWER)
    error = ended(lab.cancel("r1")).error
    assert error is not None
    raised: HerasysError = error_from_info(error)
    assert "cancelled by the client" in raised.message and error.code == "cancelled"


def test_a_client_that_is_gone_ends_its_runs_and_no_others() -> None:
    lab = Lab()
    for run_id, client in (("r1", "x"), ("r2", "y"), ("r3", "x")):
        lab.submit(run_id, ANSWER, run_id, client=client)
    out = lab.send(ClientGone("x"))
    assert [(c.run_id, c.status) for c in only(out, FinishRun)] == [
        ("r1", "cancelled"),
        ("r3", "cancelled"),
    ]
    assert list(lab.state.runs) == ["r2"]
    assert lab.send(ClientGone("x")) == []


def test_abort_and_completion_may_race_in_either_order() -> None:
    """Known fault 7."""
    lab = Lab()
    first = item(lab.submit("r1", ANSWER, "one"))
    lab.submit("r2", ANSWER, "two")
    assert aborts(lab.cancel("r1")) == [("llm-1", first.flight, 1)]
    second = item(lab.finish(first, placed("late")))
    assert lab.aborted(first) == []
    lab.cancel("r2")
    assert lab.aborted(second) == []
    out = lab.finish(second, placed("later"))
    assert releases(out) == ["later"] and lab.running() == []


def test_an_aborted_item_keeps_its_slot_until_it_ends() -> None:
    lab = Lab()
    first = item(lab.submit("r1", ANSWER, "one"))
    lab.cancel("r1")
    assert items(lab.submit("r2", ANSWER, "two")) == []
    assert len(items(lab.aborted(first))) == 1


# ---- streams


def test_streaming_runs_subscribe_at_the_start_and_when_they_join_late() -> None:
    lab = Lab()
    lab.submit("r0", ANSWER, "other")
    lab.submit("r1", ANSWER, stream=True, client="x")
    lab.submit("r2", ANSWER, stream=False, client="y")
    lab.submit("r3", ANSWER, stream=True, client="z")
    started = item(lab.finish(lab.running()[0]))
    assert started.subscribers == (Subscriber("x", "r1", 0), Subscriber("z", "r3", 0))
    late = lab.submit("r4", ANSWER, stream=True, client="late")
    assert late == [
        AcceptRun("r4", "late"),
        AddSubscriber("llm-1", started.flight, 1, Subscriber("late", "r4", 0)),
    ]


def test_only_outputs_are_streamed() -> None:
    lab = Lab()
    started = item(lab.submit("r1", spec_of("a llm", "e embed a"), stream=True))
    assert started.subscribers == ()


# ---- values


def test_placed_values_are_released_once_after_the_end_is_told() -> None:
    lab = Lab(KernelConfig(reuse_max_entries=0))
    spec = spec_of("q embed", "a dice q")
    embed = item(lab.submit("r1", spec, inputs=placed("inputs")))
    dice = item(lab.finish(embed, placed("vector")))
    out = lab.finish(dice, placed("text"))
    assert isinstance(out[0], FinishRun)
    assert sorted(releases(out)) == ["inputs", "text", "vector"]
    assert out[1:] == [ReleaseValue(place) for place in releases(out)]


def test_inputs_of_a_refused_or_repeated_run_are_released_once() -> None:
    lab = Lab()
    out = lab.send(RunSubmitted("r1", "spec-none", "c", "t", placed("refused")))
    assert releases(out) == ["refused"]
    lab.submit("r2", ANSWER, inputs=placed("kept"))
    assert releases(lab.submit("r2", ANSWER, inputs=placed("kept"))) == []
    assert releases(lab.submit("r2", ANSWER, inputs=placed("again"))) == ["again"]


def test_a_stale_outcome_changes_nothing_and_its_value_is_released() -> None:
    lab = Lab()
    first = item(lab.submit("r1", ANSWER))
    lab.finish(first, placed("text"))
    assert releases(lab.finish(first, placed("text"))) == []
    assert releases(lab.finish(first, placed("other"))) == ["other"]
    assert releases(lab.finish(first, placed("other"))) == []
    assert counters(lab.state)["events"] == {"stale": 3}


# ---- bounds


def test_only_a_bounded_number_of_ended_runs_is_remembered() -> None:
    lab = Lab(KernelConfig(remembered_runs=2))
    for run_id in ("r1", "r2", "r3"):
        lab.submit(run_id, ANSWER)
        lab.finish_all()
    assert list(lab.state.ended) == ["r2", "r3"]
    for run_id in ("x1", "x2", "x3"):
        lab.cancel(run_id)
    assert list(lab.state.cancelled_early) == ["x2", "x3"]


def test_thousands_of_runs_leave_memory_where_it_started() -> None:
    """Known fault 16: nothing grows but what is bounded."""
    import gc

    from herasys_rt.core.events import InstanceUp, ItemFinished
    from herasys_rt.core.kernel import handle, new_state
    from herasys_rt.policies import build
    from tests.pure.core.kernel_lab import POOLS, signatures_of

    config = KernelConfig(remembered_runs=100, reuse_max_entries=50)
    state = new_state(config, *build())
    for name in ("embed", "pg", "llm"):
        handle(state, POOLS[name], 0.0)
        handle(state, InstanceUp(f"{name}-1", name, 1), 0.0)
    handle(state, SpecRegistered(CHAIN), 0.0)

    def serve(many: range) -> None:
        for at in many:
            run_id, salt = f"r{at}", str(at // 2)
            event = RunSubmitted(
                run_id,
                CHAIN.id,
                "client",
                "tenant",
                placed(f"in-{at}"),
                signatures_of(CHAIN, salt, run_id),
            )
            out = handle(state, event, float(at))
            while started := items(out):
                (one,) = started
                instance = only(out, StartBatch)[0].instance
                value = placed(f"{one.flight}")
                done = ItemFinished(one.flight, one.attempt, instance, value, 0.1)
                out = handle(state, done, float(at))

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    serve(range(200))
    before = objects()
    serve(range(200, 3_200))
    assert objects() - before < 150
    assert len(state.table.completed) <= 50 and not state.flights and not state.runs
    assert len(state.ledger.counts) <= 50


def test_retry_hint_names_a_time_within_a_minute() -> None:
    lab = Lab(KernelConfig(max_active_runs=1))
    lab.submit("r1", ANSWER, "1")
    hint = refused(lab.submit("r2", ANSWER, "2")).hint
    assert 0.05 <= float(hint.split("again in ")[1].split(" s")[0]) <= 60
