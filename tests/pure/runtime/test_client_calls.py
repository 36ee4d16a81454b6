"""What a client may ask for, waits for and leaves, over real sockets."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    InputError,
    ResultTimeoutError,
    RunCancelledError,
    RuntimeStateError,
)
from tests.pure.runtime.path_lab import (
    answer,
)


def test_wrong_inputs_are_refused_before_anything_is_sent(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    with pytest.raises(InputError):
        client.submit(answer)
    with pytest.raises(InputError):
        client.submit(answer, question=7)
    assert engine.seen == []


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
