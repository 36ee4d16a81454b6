"""Agents in frontends, over the real loops: the same as in the client, and their losses.

The frontends are threads here; `real/test_frontends.py` has them in Ray actors.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from herasys_rt.dsl import agent, tool, workflow
from herasys_rt.errors import (
    ErrorInfo,
    FrontendLostError,
    HerasysError,
    RunCancelledError,
    UsageError,
)
from herasys_rt.messages import Goodbye
from operators import generate


def prompt_of(item: Any) -> str:
    text = item.args["prompt"]
    for name, value in item.args.items():
        if name.startswith("var:"):
            text = text.replace("{" + name[4:] + "}", str(value))
    return text


def serve(engine: Any, count: int, answer: Any) -> None:
    """Answer the first ``count`` items of a hand engine by a function of the prompt."""
    for number in range(count):
        item = engine.wait_for(number + 1)[number]
        engine.finish(item, answer(prompt_of(item)))


def plan_or_shout(text: str) -> str:
    return "1. first\n2. second" if text.startswith("Plan") else text.upper()


@workflow
def shout(text: str):
    return generate("Shout {t}", t=text, label="shout")


@agent
async def inner(run, text: str):
    return await run.call(shout(text))


@agent
async def research(run, question: str):
    plan = await run.call(generate("Plan: {q}", q=question, label="plan"))
    found = await run.gather(
        *[generate("Look up {line}", line=line, label="look") for line in plan.lines()[:2]]
    )
    said = await run.call(inner(text=found[0]))
    return await run.call(generate("Sum up {s}", s=said, label="sum"))


def story(run: Any) -> list[dict[str, Any]]:
    """The records of a run's nodes without what differs from run to run."""
    timed = ("queued_s", "run_s")
    nodes = run.report(20)["nodes"]
    return [{k: v for k, v in node.items() if k not in timed} for node in nodes]


def test_an_agent_gives_the_same_result_and_records_in_either_place(
    start_runtime, hand_engine, connect_hosted
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    here = runtime.connect("one tenant").submit(research, question="why?")
    serve(engine, 5, plan_or_shout)
    engine.seen.clear()
    client, keeper = connect_hosted(runtime, tenant="another tenant")
    there = client.submit(research, question="why?")
    serve(engine, 5, plan_or_shout)
    assert there.result(20) == here.result(20) == "SUM UP SHOUT LOOK UP FIRST"
    assert story(there) == story(here)
    assert len(story(there)) == 5
    assert set(keeper.frontends) == set(keeper.names)


def test_frontends_start_with_the_first_agent_and_runs_wait_for_them(
    start_runtime, hand_engine, connect_hosted
):
    engine = hand_engine()
    client, keeper = connect_hosted(start_runtime(llm=engine))
    plain = client.submit(shout, text="hey")
    serve(engine, 1, str.upper)
    assert plain.result(20) == "SHOUT HEY"
    assert keeper.frontends == {}
    keeper.held = True
    waiting = client.submit(inner, text="you")
    gone = client.submit(inner, text="nobody")
    gone.cancel()
    with pytest.raises(RunCancelledError):
        gone.result(20)
    keeper.held = False
    keeper.begin(keeper.names[0])
    serve(engine, 2, str.upper)
    assert waiting.result(20) == "SHOUT YOU"


def test_cancelling_the_run_cancels_calls_in_flight_and_the_coroutine(
    start_runtime, hand_engine, connect_hosted
):
    engine = hand_engine()
    client, _ = connect_hosted(start_runtime(llm=engine))
    run = client.submit(stubborn, question="q")
    (item,) = engine.wait_for(1)
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(20)
    assert ENDED.wait(10)
    with engine.arrived:
        assert engine.arrived.wait_for(lambda: item.key in engine.aborted, 10)


ENDED = threading.Event()


@agent
async def stubborn(run, question: str):
    from tests.pure.runtime import test_frontends

    try:
        with contextlib.suppress(HerasysError):
            await run.call(generate("{q}", q=question))
        await asyncio.Event().wait()  # It does not end when its call does.
    finally:
        test_frontends.ENDED.set()


def test_a_deadline_ends_an_agent_in_a_frontend(start_runtime, hand_engine, connect_hosted):
    engine = hand_engine()
    client, _ = connect_hosted(start_runtime(llm=engine))
    run = client.submit(inner, text="q", _deadline_s=0.5)
    with pytest.raises(HerasysError) as caught:
        run.result(20)
    assert caught.value.code == "deadline_exceeded"


def test_errors_of_steps_and_of_the_agents_own_code_are_told(
    start_runtime, hand_engine, connect_hosted
):
    @agent
    async def clumsy(run, question: str):
        return question.no_such_thing  # pyright: ignore

    engine = hand_engine()
    client, _ = connect_hosted(start_runtime(llm=engine))
    with pytest.raises(HerasysError, match=r"AttributeError.*test_frontends\.py") as caught:
        client.submit(clumsy, question="q").result(20)
    assert caught.value.code == "agent_failed"
    run = client.submit(inner, text="q")
    engine.fail(engine.wait_for(1)[0], ErrorInfo("broken", "it broke", "Mend it."))
    with pytest.raises(HerasysError, match="it broke") as caught:
        run.result(20)
    assert caught.value.code == "broken"


def test_a_killed_frontend_fails_its_runs_and_the_next_ones_go_to_its_heir(
    start_runtime, hand_engine, connect_hosted
):
    engine = hand_engine()
    client, keeper = connect_hosted(start_runtime(llm=engine))
    run = client.submit(inner, text="q")
    (item,) = engine.wait_for(1)
    keeper.kill(keeper.names[0])
    with pytest.raises(FrontendLostError, match="killed by the test") as caught:
        run.result(20)
    assert caught.value.retryable
    assert run.report()["nodes"][0]["state"] == "cancelled"
    with engine.arrived:
        assert engine.arrived.wait_for(lambda: item.key in engine.aborted, 10)
    again = client.submit(inner, text="q")
    serve(engine, 2, str.upper)
    assert again.result(20) == "SHOUT Q"


def test_runs_are_spread_and_a_loss_takes_only_those_of_its_own(
    start_runtime, hand_engine, connect_hosted
):
    engine = hand_engine()
    client, keeper = connect_hosted(start_runtime(llm=engine), 2)
    runs = [client.submit(inner, text=f"q{i}") for i in range(4)]
    engine.wait_for(4)
    keeper.kill(keeper.names[0])
    for item in list(engine.items.values()):
        engine.finish(item, "ok")
    ended = [run.report(20)["error"] for run in runs]
    assert [error and error["code"] for error in ended] == [
        *("frontend_lost", None, "frontend_lost", None)
    ]


def test_a_frontend_that_the_runtime_gives_up_fails_its_runs(
    start_runtime, hand_engine, connect_hosted
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client, keeper = connect_hosted(runtime)
    run = client.submit(inner, text="q")
    engine.wait_for(1)
    runtime.outbox.send(runtime.endpoint, Goodbye(keeper.names[0]))
    with pytest.raises(FrontendLostError, match="is gone"):
        run.result(20)


def test_a_run_whose_frontend_was_lost_before_it_was_accepted_does_not_hang(
    start_runtime, hand_engine, connect_hosted
):
    client, keeper = connect_hosted(start_runtime(llm=hand_engine()))
    hosted = client._agents
    name = hosted.place(inner)
    place, hosted.place = hosted.place, lambda _: name
    keeper.kill(name)
    run = client.submit(inner, text="q")
    hosted.place = place
    with pytest.raises(FrontendLostError):
        run.result(20)


def test_agents_in_frontends_go_on_while_the_fuser_is_lost_and_found(
    start_runtime, hand_engine, connect_hosted
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client, _ = connect_hosted(runtime)
    run = client.submit(research, question="q")
    first = engine.wait_for(1)[0]
    runtime.lose_fuser()
    engine.finish(first, "- one\n- two")
    for item in engine.wait_for(3)[1:]:
        engine.finish(item, "found")
    runtime.start_fuser()
    engine.finish(engine.wait_for(4)[3], "said")
    engine.finish(engine.wait_for(5)[4], "sum")
    assert run.result(20) == "sum"


def test_closing_the_client_ends_its_coroutines(start_runtime, hand_engine, connect_hosted):
    engine = hand_engine()
    client, _ = connect_hosted(start_runtime(llm=engine), 2)
    run = client.submit(inner, text="q")
    engine.wait_for(1)
    client.close()
    with pytest.raises(RunCancelledError):
        run.result(20)


def test_tools_and_captured_values_travel_with_an_agent(
    start_runtime, hand_engine, connect_hosted
):
    suffix = "!"

    @tool(pure=True, version="1")
    def double(n: int) -> int:
        """Twice a number."""
        return 2 * n

    @agent
    async def use(run, text: str):
        said = await run.call(generate("{t}", t=text + suffix))
        try:
            await run.call(double(2))
        except HerasysError as e:
            return [said, e.code]

    engine = hand_engine()
    client, _ = connect_hosted(start_runtime(llm=engine))
    run = client.submit(use, text="hey")
    serve(engine, 1, str.upper)
    assert run.result(20) == ["HEY!", "no_pool"]  # No pool here has resource python.


def test_an_agent_that_cannot_travel_is_refused_before_anything_runs(
    start_runtime, hand_engine, connect_hosted
):
    lock = threading.Lock()

    @agent
    async def stuck(run, text: str):
        with lock:
            return text

    client, _ = connect_hosted(start_runtime(llm=hand_engine()))
    with pytest.raises(UsageError, match="'stuck' cannot be sent") as caught:
        client.submit(stuck, text="q")
    assert caught.value.code == "not_shippable"
    (row,) = client.map(stuck, [{"text": "q"}])
    assert row.report()["error"]["code"] == "not_shippable"


def test_more_agents_than_a_frontend_keeps_still_run(
    start_runtime, hand_engine, connect_hosted, monkeypatch
):
    from herasys_rt.client import frontend, hosting

    monkeypatch.setattr(frontend, "KNOWN_AGENTS", 2)
    monkeypatch.setattr(hosting, "KNOWN_AGENTS", 2)

    def made(number: int) -> Any:
        @agent
        async def numbered(run, text: str):
            return f"{number} {text}"

        return numbered

    client, keeper = connect_hosted(start_runtime(llm=hand_engine()))
    agents = [made(number) for number in range(4)]
    for number in (0, 1, 2, 3, 0, 1, 3):
        assert client.submit(agents[number], text="x").result(20) == f"{number} x"
    (only,) = keeper.frontends.values()
    assert len(only._known) == 2
