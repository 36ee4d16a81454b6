"""The loops together: what a client sees, over real sockets and without Ray."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import zmq

from herasys_rt.client.client import Client
from herasys_rt.client.link import Link
from herasys_rt.dsl import workflow
from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    InputError,
    ResultTimeoutError,
    RunCancelledError,
    RuntimeStateError,
)
from herasys_rt.graph.hashing import HASHES
from herasys_rt.links import Endpoint, Inbox, Outbox, host_identity
from herasys_rt.messages import HostLost, Ping, ToScheduler, Welcome
from operators import embed, generate, retrieve

under_both_hashes = pytest.mark.parametrize("fusion_hash", HASHES)


@workflow
def answer(question: str):
    return generate("Say: {question}", question=question, max_tokens=8)


@workflow
def both(question: str):
    first = generate("1: {question}", question=question, max_tokens=8)
    second = generate("2: {question}", question=question, max_tokens=8)
    return {"first": first, "second": second}


@workflow
def rag(question: str):
    found = retrieve(embed(question), collection="docs", top_k=1)
    return generate("{found} {question}", found=found, question=question)


def await_fuser(client: Any) -> None:
    """Until the fuser serves (the client was told its door in the welcome or later) and
    knows every model's fingerprint: what it signs before is equal to nothing after."""

    def serves(status: dict[str, Any]) -> bool:
        instances = [i for pool in status["pools"] for i in pool["instances"]]
        return status["fuser"] == "up" and all(i["state"] == "up" for i in instances)

    while not serves(client.status()):
        pass


def await_accepted(client: Any, count: int) -> None:
    """Until the kernel has taken ``count`` runs."""
    while client.status()["counters"]["runs"]["accepted"] < count:
        pass


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
    assert [run.result(10) for run in runs] == ["ours", "theirs"]


@under_both_hashes
def test_streamed_pieces_concatenate_to_the_result_also_for_a_late_joiner(
    start_runtime, hand_engine
):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    await_fuser(client)
    early = client.submit(answer, _stream=True, question="q")
    (item,) = engine.wait_for(1)
    assert engine.sink is not None
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


def test_a_run_repeated_after_a_loss_streams_each_character_once(
    start_runtime, hand_engine
):
    engine, again = hand_engine(), hand_engine()
    runtime = start_runtime(llm=engine)
    run = runtime.connect().submit(answer, _stream=True, question="q")
    (item,) = engine.wait_for(1)
    engine.sink.started(item.key)
    engine.sink.piece(item.key, "abc", 1)
    pieces = run.stream()
    assert next(pieces) == "abc"
    runtime.lose_host("llm")
    runtime.start_host("llm", again)
    (item,) = again.wait_for(1)
    again.sink.piece(item.key, "ab", 1)
    again.sink.piece(item.key, "cde", 1)
    assert next(pieces) == "de"
    again.finish(item, "abcdef")
    assert [*pieces] == ["f"]


def test_a_host_that_was_given_up_too_early_comes_back_and_serves(
    start_runtime, hand_engine
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    run = client.submit(answer, question="q")
    (first,) = engine.wait_for(1)
    # Told late, of a process before: the host itself lives on.
    runtime.outbox.send(runtime.endpoint, HostLost("llm", 0, "killed"))
    _, again = engine.wait_for(2)
    assert first.key in engine.aborted
    engine.finish(again, "served")
    assert run.result(10) == "served"
    assert run.report()["nodes"][0]["instance"] == "llm-0.2"


def test_the_end_of_a_predecessor_told_late_changes_nothing(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    run = client.submit(answer, question="q")
    (item,) = engine.wait_for(1)
    pid = client.status()["pools"][0]["instances"][0]["pid"]
    runtime.outbox.send(runtime.endpoint, HostLost("llm", 0, "killed", pid=pid + 1))
    client.status()
    engine.finish(item, "served")
    assert run.result(10) == "served"
    assert run.report()["nodes"][0]["instance"] == "llm-0"


def test_a_client_that_left_is_forgotten_by_every_process(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    watcher, client = runtime.connect(), runtime.connect()
    await_fuser(watcher)
    run = client.submit(answer, _stream=True, question="q")
    (item,) = engine.wait_for(1)
    engine.sink.piece(item.key, "a", 1)
    engine.finish(item, "ab")
    assert run.result(10) == "ab"
    left = client._link._inbox.endpoint
    client.close()
    while any(left in outbox.peers() for outbox in runtime.outboxes):
        watcher.status()


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


def test_wrong_inputs_are_refused_before_anything_is_sent(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    with pytest.raises(InputError):
        client.submit(answer)
    with pytest.raises(InputError):
        client.submit(answer, question=7)
    assert engine.seen == []


def test_a_node_without_a_pool_refuses_the_run(start_runtime, hand_engine):
    client = start_runtime(llm=hand_engine()).connect()
    with pytest.raises(HerasysError, match="embedding") as caught:
        client.submit(rag, question="q").result(10)
    assert caught.value.code in ("no_pool", "unknown_model")


@under_both_hashes
def test_without_a_fuser_runs_are_served_directly(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(fuser=False, llm=engine).connect()
    run = client.submit(answer, question="q")
    (item,) = engine.wait_for(1)
    engine.finish(item, "direct")
    assert run.result(10) == "direct"


@under_both_hashes
def test_runs_survive_the_loss_of_the_fuser(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    await_fuser(client)
    before = client.submit(answer, question="before")
    engine.wait_for(1)
    runtime.lose_fuser()
    after = client.submit(answer, question="after")
    for item in engine.wait_for(2):
        engine.finish(item, item.args["var:question"])
    assert before.result(10) == "before"
    assert after.result(10) == "after"
    runtime.start_fuser()
    await_fuser(client)
    third = client.submit(answer, question="third")
    engine.finish(engine.wait_for(3)[2], "again")
    assert third.result(10) == "again"


def test_result_gives_up_in_time_and_the_run_goes_on(start_runtime, hand_engine):
    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(answer, question="q")
    with pytest.raises(ResultTimeoutError):
        run.result(timeout_s=0)
    (item,) = engine.wait_for(1)
    ending = threading.Timer(0.01, lambda: engine.finish(item, "late"))
    ending.start()
    assert run.result(timeout_s=float("inf")) == "late"
    ending.join()


@pytest.mark.parametrize("timeout_s", [-1, -0.5, float("nan"), "5", True, [1]])
def test_a_time_to_wait_that_is_none_is_refused(start_runtime, hand_engine, timeout_s):
    import asyncio

    from herasys_rt.client.run import AsyncRun

    run = start_runtime(llm=hand_engine()).connect().submit(answer, question="q")
    for ask in (run.result, run.report):
        with pytest.raises(InputError, match="0 or more, not") as caught:
            ask(timeout_s)
        assert caught.value.hint
    with pytest.raises(InputError, match="0 or more, not"):
        asyncio.run(AsyncRun(run).result(timeout_s))


@pytest.mark.parametrize("concurrency", ["a", 0, -1, True, 1.5, None])
def test_map_refuses_a_concurrency_that_is_none(start_runtime, hand_engine, concurrency):
    client = start_runtime(llm=hand_engine()).connect()
    with pytest.raises(InputError, match="a whole number of at least 1, not") as caught:
        client.map(answer, [], concurrency=concurrency)
    assert caught.value.hint


def test_map_keeps_order_and_bounds_what_runs(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    runs: list[Any] = []

    def consume() -> None:
        inputs = [{"question": f"q{i}"} for i in range(6)] + [{"question": 7}]
        runs.extend(client.map(answer, inputs, concurrency=3))

    thread = threading.Thread(target=consume)
    thread.start()
    for count in range(3, 7):
        seen = engine.wait_for(count)
        assert len(seen) <= count
        engine.finish(seen[count - 1], seen[count - 1].args["var:question"].upper())
    for item in list(engine.items.values()):
        engine.finish(item, item.args["var:question"].upper())
    thread.join(10)
    assert [run.result() for run in runs[:6]] == [f"Q{i}" for i in range(6)]
    with pytest.raises(HerasysError) as caught:
        runs[6].result()
    assert caught.value.code == "invalid_input"


def test_a_link_that_breaks_fails_its_runs_and_takes_no_more(
    start_runtime, hand_engine, monkeypatch, caplog
):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    broken, other = (client.submit(answer, question=q) for q in "ab")
    item = engine.wait_for(2)[0]
    monkeypatch.setattr(broken, "finish", lambda message: 1 / 0)
    monkeypatch.setattr(other, "finish", lambda message: 1 / 0)
    engine.finish(item, "x")
    for run in (broken, other):
        with pytest.raises(RuntimeStateError, match="ZeroDivisionError"):
            run.result(10)
    with pytest.raises(RuntimeStateError):
        client.submit(answer, question="c")
    assert "link broke" in caplog.text


def test_a_closing_client_cancels_its_runs(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    run = client.submit(answer, question="q")
    engine.wait_for(1)
    client.close()
    with pytest.raises(RunCancelledError):
        run.result(10)
    with pytest.raises(RuntimeStateError):
        client.submit(answer, question="q")


def test_a_stopping_runtime_tells_its_clients(start_runtime, hand_engine):
    from herasys_rt.messages import Stop

    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    run = runtime.connect().submit(answer, question="q")
    engine.wait_for(1)
    runtime.outbox.send(runtime.endpoint, Stop())
    with pytest.raises(HerasysError) as caught:
        run.result(10)
    assert caught.value.code == "runtime_state"


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


@pytest.mark.parametrize(
    "option",
    [
        {"_stream": "yes"},
        {"_priority": "high"},
        {"_priority": 1.5},
        {"_priority": None},
        {"_priority": 2**31},
        {"_deadline_s": "5"},
        {"_deadline_s": True},
        {"_deadline_s": float("nan")},
        {"_deadline_s": 0},
    ],
    ids=repr,
)
def test_an_option_that_is_none_is_refused_before_anything_is_sent(
    start_runtime, hand_engine, option: dict[str, Any]
):
    client = start_runtime(llm=hand_engine()).connect()
    with pytest.raises(InputError, match=repr(next(iter(option.values())))):
        client.submit(answer, question="q", **option)
    assert client.status()["counters"]["runs"]["accepted"] == 0


def test_a_run_id_at_work_gives_its_handle_and_a_used_one_is_refused(
    start_runtime, hand_engine
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client, other = runtime.connect(), runtime.connect()
    run = client.submit(answer, question="q", _run_id="mine")
    (item,) = engine.wait_for(1)
    assert client.submit(answer, question="q", _run_id="mine") is run
    with pytest.raises(HerasysError, match="another client") as caught:
        other.submit(answer, question="q", _run_id="mine").result(10)
    assert caught.value.code == "run_id_used"
    engine.finish(item, "once")
    assert run.result(10) == "once"
    with pytest.raises(HerasysError, match="has ended") as caught:
        client.submit(answer, question="q", _run_id="mine").result(10)
    assert caught.value.code == "run_id_used"
    assert len(engine.seen) == 1


@pytest.mark.parametrize("run_id", ["", "x" * 201, 7, "\ud800"])
def test_a_run_id_that_cannot_travel_is_refused(start_runtime, hand_engine, run_id):
    client = start_runtime(llm=hand_engine()).connect()
    with pytest.raises(InputError) as caught:
        client.submit(answer, question="q", _run_id=run_id)
    assert caught.value.code == "invalid_run_id"


def test_what_is_no_workflow_is_told(start_runtime, hand_engine):
    client = start_runtime(llm=hand_engine()).connect()
    with pytest.raises(InputError, match="function is no workflow"):
        client.submit(lambda: 1)  # pyright: ignore[reportArgumentType]


def test_inputs_of_map_are_inputs_and_never_options(start_runtime, hand_engine):
    client = start_runtime(llm=hand_engine()).connect()
    rows: list[Any] = [{"question": "q", "_run_id": "x"}, {"_stream": True}, "text", None]
    codes = [run.report(10)["error"]["code"] for run in client.map(answer, rows)]
    assert codes == ["invalid_input"] * 4


def test_leaving_map_does_not_wait_for_an_input_that_never_comes(
    start_runtime, hand_engine, monkeypatch
):
    from herasys_rt.client import window as module

    monkeypatch.setattr(module, "_FEEDER_PATIENCE_S", 0.05)
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    given = threading.Event()

    def inputs() -> Any:
        yield {"question": "one"}
        engine.finish(engine.wait_for(1)[0], "1")
        given.wait()
        yield {"question": "two"}

    before = set(threading.enumerate())
    runs: Any = client.map(answer, inputs())
    assert next(runs).result(10) == "1"
    runs.close()
    given.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert len(engine.seen) == 1, "what came after leaving is not submitted"


def test_a_done_callback_that_raises_harms_nobody(start_runtime, hand_engine, caplog):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    run = client.submit(answer, question="q")

    def broken(_: Any) -> None:
        raise ZeroDivisionError("mine")

    run.add_done_callback(broken)
    engine.finish(engine.wait_for(1)[0], "one")
    assert run.result(10) == "one"
    after = client.submit(answer, question="r")
    engine.finish(engine.wait_for(2)[1], "two")
    assert after.result(10) == "two"
    assert f"a done callback of run {run.id} failed" in caplog.text


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


def test_a_run_that_a_goodbye_overtakes_does_not_go_on(start_runtime, hand_engine):
    """The goodbye comes directly and once more behind the run, through the fuser."""
    from herasys_rt.core.events import RunSubmitted, SpecRegistered
    from herasys_rt.core.values import Value
    from herasys_rt.graph import codec
    from herasys_rt.messages import Goodbye

    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    watching = runtime.connect()
    inputs = codec.encode({"question": "q"})
    value = Value(codec.digest(inputs), len(inputs), inline=inputs)
    for message in (
        SpecRegistered(answer.spec),
        RunSubmitted("late", answer.spec.id, "left", "default", value),
    ):
        runtime.outbox.post(runtime.endpoint, message)
    runtime.outbox.flush()
    engine.wait_for(1)
    runtime.outbox.send(runtime.endpoint, Goodbye("left"))
    while watching.status()["counters"]["runs"]["active"]:
        pass
    assert watching.status()["counters"]["runs"]["cancelled"] == 1


@pytest.mark.parametrize("tenant", ["", 5, "\ud800", "x" * 201])
def test_a_tenant_that_is_no_name_is_refused_before_anything_starts(tenant):
    from herasys_rt import connect

    with pytest.raises(InputError) as caught:
        connect(tenant=tenant)
    assert caught.value.code == "invalid_tenant"


def test_cancelling_an_asynchronous_map_cancels_its_runs(start_runtime, hand_engine):
    import asyncio

    from herasys_rt.client.client import AsyncClient

    engine = hand_engine()
    client = start_runtime(llm=engine).connect()

    async def consume() -> None:
        inputs = [{"question": f"q{i}"} for i in range(9)]
        async for _ in AsyncClient(client).map(answer, inputs, concurrency=2):
            raise AssertionError("nothing has ended")

    async def main() -> None:
        task = asyncio.ensure_future(consume())
        await asyncio.to_thread(engine.wait_for, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    while client.status()["counters"]["runs"]["active"]:
        pass
    assert len(engine.seen) == 2


def test_a_cancelled_asynchronous_stream_ends_at_once(start_runtime, hand_engine):
    import asyncio

    from herasys_rt.client.run import AsyncRun

    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(answer, _stream=True, question="q")
    (item,) = engine.wait_for(1)
    threads = set(threading.enumerate())

    async def main() -> None:
        got: asyncio.Queue[str] = asyncio.Queue()

        async def follow() -> None:
            async for piece in AsyncRun(run).stream():
                got.put_nowait(piece)

        task = asyncio.ensure_future(follow())
        engine.sink.started(item.key)
        engine.sink.piece(item.key, "one ", 1)
        assert await got.get() == "one "
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert set(threading.enumerate()) == threads

    asyncio.run(main())
    engine.sink.piece(item.key, "two", 1)
    engine.finish(item, "one two")
    assert run.result(10) == "one two", "the run goes on, and nobody misses the listener"


def test_asynchronous_streams_end_as_their_runs_do(start_runtime, hand_engine):
    import asyncio

    from herasys_rt.client.run import AsyncRun

    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    runs = [client.submit(answer, _stream=True, question=q) for q in "ab"]
    good, bad = engine.wait_for(2)
    pieces: list[str] = []

    async def follow(run: Any) -> None:
        async for piece in AsyncRun(run).stream():
            pieces.append(piece)

    async def main() -> None:
        tasks = [asyncio.ensure_future(follow(run)) for run in runs]
        engine.finish(good, "all of it")
        engine.fail(bad, ErrorInfo("broken", "it broke"))
        await tasks[0]
        with pytest.raises(HerasysError, match="it broke"):
            await tasks[1]

    asyncio.run(main())
    assert "".join(pieces) == "all of it"


def test_a_loop_closed_under_a_stream_harms_no_run(start_runtime, hand_engine):
    import asyncio

    from herasys_rt.client.run import AsyncRun

    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    run = client.submit(answer, _stream=True, question="q")
    (item,) = engine.wait_for(1)
    loop = asyncio.new_event_loop()
    stream: Any = AsyncRun(run).stream()
    engine.sink.started(item.key)
    engine.sink.piece(item.key, "one ", 1)
    assert loop.run_until_complete(anext(stream)) == "one "
    loop.close()
    engine.sink.piece(item.key, "two", 1)
    engine.finish(item, "one two")
    assert run.result(10) == "one two"
    with pytest.raises(StopIteration):
        stream.aclose().send(None)


class Deaf:
    """A scheduler that welcomes one client and answers nothing after that."""

    def __init__(self, folder: Path) -> None:
        self.inbox: Inbox[Any] = Inbox(folder, "sched", ToScheduler)
        self._outbox = Outbox()
        self._thread = threading.Thread(target=self._welcome, daemon=True)
        self._thread.start()

    def _welcome(self) -> None:
        (hello,) = self.inbox.receive(10)
        self._outbox.send(hello.endpoint, Welcome(None))

    def die(self) -> None:
        """As a process that is killed: what it had open is closed, nobody is told."""
        self._thread.join()
        self.inbox.close()
        self._outbox.close()


def test_a_scheduler_that_is_killed_is_noticed_by_its_connection(short_folder):
    scheduler = Deaf(short_folder)
    link = Link(scheduler.inbox.endpoint, "default")
    link.open()
    client = Client(link, "test", lambda: None)
    run = client.submit(answer, question="q")
    scheduler.die()
    with pytest.raises(RuntimeStateError, match="its scheduler has ended") as caught:
        run.result(15)  # Less than what silence alone takes to tell.
    assert caught.value.retryable and "connect again" in caught.value.hint
    with pytest.raises(RuntimeStateError, match="its scheduler has ended"):
        client.submit(answer, question="q")
    client.close()


def listening(outbox: Outbox, peer: Endpoint) -> Any:
    """A socket at the peer's address to which the outbox has come through."""
    socket = zmq.Context.instance().socket(zmq.PULL)
    socket.bind(peer.ipc)
    for _ in range(100):
        outbox.send(peer, Ping("client"))  # One may still go the former's way.
        if socket.poll(100):
            return socket
    pytest.fail("nothing comes through")


def test_a_connection_that_comes_back_is_not_lost(short_folder):
    outbox = Outbox()
    peer = Endpoint(host_identity(), f"ipc://{short_folder / 'peer'}")
    watch = outbox.watch(peer)
    first = listening(outbox, peer)
    assert not watch.lost()
    first.close(linger=0)
    while not watch.lost():
        pass
    second = listening(outbox, peer)
    while watch.lost():
        pass
    watch.close()
    outbox.close()
    second.close(linger=0)


def test_what_becomes_of_a_peer_that_is_watched_no_more_holds_up_nothing(short_folder):
    outbox = Outbox()
    peer = Endpoint(host_identity(), f"ipc://{short_folder / 'peer'}")
    watch = outbox.watch(peer)
    socket = listening(outbox, peer)
    watch.close()
    for _ in range(3):
        socket.close(linger=0)
        socket = listening(outbox, peer)
    outbox.close()
    socket.close(linger=0)
