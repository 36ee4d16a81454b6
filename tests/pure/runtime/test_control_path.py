"""The loops together: what a client sees, over real sockets and without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.dsl import workflow
from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    RunCancelledError,
)
from operators import generate
from tests.pure.runtime.path_lab import (
    answer,
    await_accepted,
    await_fuser,
    both,
    rag,
    streaming,
    under_both_hashes,
)


def test_a_run_gives_its_result_report_and_node_records(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    run = client.submit(answer, question="hello")
    (item,) = engine.wait_for(1)
    assert item.verb == "llm.generate"
    assert item.args["var:question"] == "hello"
    engine.finish(item, "Hello!", usage={"completion_tokens": 2})
    assert run.result(10) == "Hello!"
    report = run.report()
    assert report["status"] == "succeeded"
    assert report["error"] is None
    assert report["usage"] == {"completion_tokens": 2}
    (node,) = report["nodes"]
    assert node["state"] == "succeeded"
    assert node["instance"] == "llm-0"
    assert node["reused"] is False


def test_values_flow_along_edges_and_sources_come_from_provenance(
    start_runtime, hand_engine
):
    import numpy as np

    engines = {name: hand_engine() for name in ("embedding", "search", "llm")}
    client = start_runtime(**engines).connect()
    run = client.submit(rag, question="why?")
    (item,) = engines["embedding"].wait_for(1)
    engines["embedding"].finish(item, np.ones(3, dtype=np.float32))
    (item,) = engines["search"].wait_for(1)
    assert item.args["vector"].tolist() == [1, 1, 1]
    chunk = {"id": "a#0", "source": "a", "text": "because", "score": 0.5}
    engines["search"].finish(item, [chunk], sources=[chunk], revisions={"docs": 1})
    (item,) = engines["llm"].wait_for(1)
    assert item.args["var:found"] == [chunk]
    engines["llm"].finish(item, "Because.")
    assert run.result(10) == "Because."
    assert run.sources == [chunk]


@under_both_hashes
def test_equal_runs_at_once_are_executed_once_and_a_later_one_reuses(
    start_runtime, hand_engine
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    await_fuser(client)
    first, second = (client.submit(answer, question="same") for _ in range(2))
    (item,) = engine.wait_for(1)
    await_accepted(client, 2)
    engine.finish(item, "once")
    assert first.result(10) == second.result(10) == "once"
    assert second.report()["nodes"][0]["fused_into"] == f"{first.id}/generate"
    third = client.submit(answer, question="same")
    assert third.result(10) == "once"
    assert third.report()["nodes"][0]["reused"] is True
    assert len(engine.seen) == 1


@under_both_hashes
def test_tenants_never_share_a_flight(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    ours, theirs = runtime.connect("ours"), runtime.connect("theirs")
    await_fuser(ours)
    runs = [c.submit(answer, question="same") for c in (ours, theirs)]
    for item in engine.wait_for(2):
        engine.finish(item, item.trust_scope)
    assert [run.result(10) for run in runs] == ["tenant:ours", "tenant:theirs"]


def test_no_name_of_a_tenant_gives_it_the_scope_of_what_is_public(
    start_runtime, hand_engine
):
    @workflow(share="public")
    def told(question: str):
        return generate("Say: {question}", question=question, max_tokens=8)

    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    ours, public = runtime.connect("ours"), runtime.connect("public")
    await_fuser(ours)
    runs = [ours.submit(told, question="q"), public.submit(answer, question="q")]
    items = engine.wait_for(2)
    assert len({item.trust_scope for item in items}) == 2
    for item in items:
        engine.finish(item, "a")
    for run in runs:
        assert run.result(10) == "a"
    both = public.submit(told, question="q")  # by its author's word it is shared
    assert both.result(10) == "a" and both.report()["nodes"][0]["reused"]


@under_both_hashes
def test_streamed_pieces_concatenate_to_the_result_also_for_a_late_joiner(
    start_runtime, hand_engine
):
    engine = hand_engine()
    client, early, item = streaming(start_runtime, engine)
    engine.sink.started(item.key)
    engine.sink.piece(item.key, "Grüße ", 2)
    pieces = early.stream()
    assert next(pieces) == "Grüße "
    late = client.submit(answer, _stream=True, question="q")
    late_pieces = late.stream()
    assert next(late_pieces) == "Grüße "
    engine.sink.piece(item.key, "👩‍🚀", 1)
    assert next(pieces) == next(late_pieces) == "👩‍🚀"
    engine.finish(item, "Grüße 👩‍🚀")
    assert [*pieces] == [*late_pieces] == []
    assert early.result(10) == late.result(10) == "Grüße 👩‍🚀"


def test_cancelling_a_run_aborts_it_on_the_engine(start_runtime, hand_engine):
    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(answer, question="q")
    engine.wait_for(1)
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(10)
    assert run.report()["status"] == "cancelled"


@under_both_hashes
def test_cancelling_one_of_two_fused_runs_keeps_the_other(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    await_fuser(client)
    first, second = (client.submit(answer, question="same") for _ in range(2))
    (item,) = engine.wait_for(1)
    await_accepted(client, 2)
    first.cancel()
    with pytest.raises(RunCancelledError):
        first.result(10)
    engine.finish(item, "kept")
    assert second.result(10) == "kept"
    assert engine.aborted == []


def test_an_operators_error_reaches_the_run_with_its_code_and_place(
    start_runtime, hand_engine
):
    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(answer, question="q")
    (item,) = engine.wait_for(1)
    engine.fail(item, ErrorInfo("prompt_too_long", "9000 + 8 tokens exceed 2048", "Cut."))
    with pytest.raises(HerasysError) as caught:
        run.result(10)
    assert caught.value.code == "prompt_too_long"
    assert "9000 + 8" in caught.value.message
    assert "'generate'" in caught.value.message and "llm-0" in caught.value.message
    assert caught.value.hint == "Cut."


def test_a_node_without_a_pool_refuses_the_run(start_runtime, hand_engine):
    client = start_runtime(llm=hand_engine()).connect()
    with pytest.raises(HerasysError, match="embedding") as caught:
        client.submit(rag, question="q").result(10)
    assert caught.value.code in ("no_pool", "unknown_model")


@under_both_hashes
def test_the_journal_of_live_runs_replays_to_the_same_commands(
    start_runtime, hand_engine, monkeypatch
):
    from herasys_rt.core.journal import replay
    from herasys_rt.policies import build
    from herasys_rt.runtime import scheduler
    from herasys_rt.sim.replay import replay as simulated

    commanded: list[Any] = []

    def recording(state: Any, event: Any, now: float) -> Any:
        commands = handle(state, event, now)
        commanded.append(list(commands))
        return commands

    handle = scheduler.handle
    monkeypatch.setattr(scheduler, "handle", recording)
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    await_fuser(client)
    runs = [client.submit(answer, question=f"q{i % 2}") for i in range(4)]
    cancelled = client.submit(answer, question="never")
    cancelled.cancel()
    for item in engine.wait_for(2)[:2]:
        engine.finish(item, item.args["var:question"])
    assert [run.result(10) for run in runs] == ["q0", "q1", "q0", "q1"]
    assert cancelled.report(10)["status"] == "cancelled"
    runtime.close()
    assert replay(runtime.journal_path, build) == commanded
    assert simulated(runtime.journal_path, build) == commanded
    assert sum(map(len, commanded)) > 8


def test_runs_tell_the_kernel_what_a_profile_predicts(start_runtime, hand_engine):
    from herasys_rt.core.events import RunSubmitted
    from herasys_rt.core.journal import read_journal
    from herasys_rt.costs.batch import LinearBatch
    from herasys_rt.costs.forecast import UNKNOWN_S, ProfileForecast
    from herasys_rt.costs.profile import PoolProfile, Profile, VerbProfile

    verb = VerbProfile("embed", times=LinearBatch(0.25))
    pool = PoolProfile("embedding", "embedding", "modelled", "cpu", 1, (verb,))
    engines = {name: hand_engine() for name in ("embedding", "search", "llm")}
    runtime = start_runtime(fuser=False, **engines)
    runtime.start_fuser(ProfileForecast(Profile((pool,))))
    client = runtime.connect()
    await_fuser(client)
    run = client.submit(rag, question="q")
    engines["embedding"].wait_for(1)
    run.cancel()
    runtime.close()
    events = [event for _, event in read_journal(runtime.journal_path)]
    (told,) = [event.seconds for event in events if isinstance(event, RunSubmitted)]
    assert told == (0.25, UNKNOWN_S, UNKNOWN_S)


def test_predictions_go_by_the_lengths_that_outputs_had(start_runtime, hand_engine):
    from herasys_rt.costs.forecast import ProfileForecast
    from herasys_rt.costs.layered import StepParts
    from herasys_rt.costs.profile import PoolProfile, Profile, VerbProfile

    verb = VerbProfile("llm.generate", steps=StepParts(((0, 0.0), (1000, 1000.0))))
    forecast = ProfileForecast(
        Profile((PoolProfile("llm", "llm", "modelled", "cpu", 4, (verb,)),))
    )
    engine = hand_engine()
    runtime = start_runtime(fuser=False, ordering="srtf", llm=engine)
    runtime.start_fuser(forecast)
    client = runtime.connect()
    await_fuser(client)
    asked = {"question": "why"}
    (unseen_s,) = forecast.seconds(answer.spec, asked)  # its max_tokens, 8
    run = client.submit(answer, **asked)
    (item,) = engine.wait_for(1)
    engine.finish(item, "so", usage={"completion_tokens": 2})
    assert run.result(10) == "so"
    while forecast.seconds(answer.spec, asked) == (unseen_s,):
        pass  # until the fuser has heard
    (seen_s,) = forecast.seconds(answer.spec, asked)
    assert unseen_s - seen_s == pytest.approx(6 / 1000)  # a millisecond a token


def test_several_outputs_are_not_streamed_into_one_text(start_runtime, hand_engine):
    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(both, _stream=True, question="q")
    items = engine.wait_for(2)
    for item in items:
        engine.sink.started(item.key)
        engine.sink.piece(item.key, "text of its own", 1)
    for item in items:
        engine.finish(item, "text of its own")
    assert [*run.stream()] == []
    assert run.result(10) == {"first": "text of its own", "second": "text of its own"}
