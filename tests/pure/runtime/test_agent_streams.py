"""What an agent streams: the texts of its calls that stream, wherever it runs."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.client.client import AsyncClient, Client
from herasys_rt.dsl import agent
from herasys_rt.errors import ErrorInfo, HerasysError, UsageError
from operators import embed, generate


@pytest.fixture(params=["here", "in a frontend"])
def client(request: Any, start_runtime, hand_engine, connect_hosted) -> Any:
    """``(client, engine)`` with agents in either place."""
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    if request.param == "here":
        return runtime.connect(), engine
    return connect_hosted(runtime)[0], engine


Ends = tuple[Client, Any]


def say(engine: Any, item: Any, *texts: str) -> None:
    engine.sink.started(item.key)
    for text in texts:
        engine.sink.piece(item.key, text, 1)


@agent
async def answer(run, question: str):
    plan = await run.call(generate("Plan {q}", q=question))
    return await run.call(generate("Answer {p}", p=plan), stream=True)


def test_the_text_of_a_streaming_call_comes_as_it_is_produced(client: Ends):
    connected, engine = client
    run = connected.submit(answer, _stream=True, question="why?")
    plan = engine.wait_for(1)[0]
    say(engine, plan, "not ", "shown")
    engine.finish(plan, "not shown")
    item = engine.wait_for(2)[1]
    pieces = run.stream()
    say(engine, item, "Grüße ")
    assert next(pieces) == "Grüße "
    say(engine, item, "👩‍🚀")
    assert next(pieces) == "👩‍🚀"
    engine.finish(item, "Grüße 👩‍🚀!")
    assert [*pieces] == ["!"]
    assert run.result(20) == "Grüße 👩‍🚀!"
    assert [*run.stream()] == ["Grüße 👩‍🚀!"]


@agent
async def several(run, question: str):
    import asyncio

    first = asyncio.ensure_future(run.call(generate("one {q}", q=question), stream=True))
    await asyncio.sleep(0)
    second = await run.call(generate("two {q}", q=question), stream=True)
    return [await first, second, await run.call(generate("three {q}", q=question))]


def test_texts_of_overlapping_calls_follow_one_another_whole(client: Ends):
    connected, engine = client
    run = connected.submit(several, _stream=True, question="q")
    items = {item.args["prompt"][:3]: item for item in engine.wait_for(2)}
    say(engine, items["two"], "second")
    engine.finish(items["two"], "second.")
    pieces = run.stream()
    say(engine, items["one"], "fir")
    assert next(pieces) == "fir"
    engine.finish(items["one"], "first, ")
    engine.finish(engine.wait_for(3)[2], "third")
    assert "fir" + "".join(pieces) == "first, second."
    assert run.result(20) == ["first, ", "second.", "third"]


def test_text_that_was_computed_before_is_streamed_at_once(client: Ends):
    connected, engine = client
    for number in range(2):
        run = connected.submit(answer, _stream=True, question="same")
        if not number:
            engine.finish(engine.wait_for(1)[0], "plan")
            engine.finish(engine.wait_for(2)[1], "the answer")
        assert "".join(run.stream()) == run.result(20) == "the answer"
    assert len(engine.seen) == 2


@agent
async def careful(run, question: str):
    try:
        await run.call(generate("try {q}", q=question), stream=True)
    except HerasysError:
        pass
    return await run.call(generate("again {q}", q=question), stream=True)


def test_of_a_call_that_failed_what_was_streamed_stays(client: Ends):
    connected, engine = client
    run = connected.submit(careful, _stream=True, question="q")
    item = engine.wait_for(1)[0]
    pieces = run.stream()
    say(engine, item, "half a ")
    assert next(pieces) == "half a "
    engine.fail(item, ErrorInfo("broken", "it broke"))
    engine.finish(engine.wait_for(2)[1], "whole")
    assert [*pieces] == ["whole"]


def test_a_stream_of_a_run_that_fails_ends_with_its_error(client: Ends):
    connected, engine = client
    run = connected.submit(answer, _stream=True, question="q")
    engine.finish(engine.wait_for(1)[0], "plan")
    item = engine.wait_for(2)[1]
    pieces = run.stream()
    say(engine, item, "half")
    assert next(pieces) == "half"
    engine.fail(item, ErrorInfo("broken", "it broke"))
    with pytest.raises(HerasysError, match="it broke"):
        next(pieces)


def test_without_streaming_calls_or_streaming_the_result_comes_at_once(client: Ends):
    connected, engine = client
    run = connected.submit(answer, question="q")
    engine.finish(engine.wait_for(1)[0], "plan")
    item = engine.wait_for(2)[1]
    say(engine, item, "half")
    engine.finish(item, "half and half")
    assert [*run.stream()] == ["half and half"]
    silent = connected.submit(quiet, _stream=True, text="hush")
    assert [*silent.stream()] == ["hush"]
    other = connected.submit(counting, _stream=True, text="hush")
    assert [*other.stream()] == []
    assert other.result(20) == 4


@agent
async def quiet(run, text: str):
    return text


@agent
async def counting(run, text: str):
    return len(text)


@agent
async def wrong(run, text: str, how: str):
    if how == "agent":
        return await run.call(quiet(text=text), stream=True)
    if how == "vector":
        return await run.call(embed(text), stream=True)
    return await run.call(generate("{t}", t=text, n=3, temperature=1.0), stream=True)


@pytest.mark.parametrize("how", ["agent", "vector", "several"])
def test_a_step_that_gives_no_one_text_cannot_stream(start_runtime, hand_engine, how):
    run = start_runtime(llm=hand_engine()).connect().submit(wrong, text="q", how=how)
    with pytest.raises(UsageError, match=r"stream"):
        run.result(20)


async def test_the_asynchronous_twin_streams_an_agent(start_runtime, hand_engine):
    import asyncio

    engine = hand_engine()
    client = AsyncClient(start_runtime(llm=engine).connect())
    run = await client.submit(answer, _stream=True, question="q")
    engine.finish((await asyncio.to_thread(engine.wait_for, 1))[0], "plan")
    item = (await asyncio.to_thread(engine.wait_for, 2))[1]
    say(engine, item, "ab")
    engine.finish(item, "abc")
    assert "".join([piece async for piece in run.stream()]) == await run.result() == "abc"
