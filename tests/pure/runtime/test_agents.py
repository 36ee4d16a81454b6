"""Agents over the real loops: what is revealed, recorded, cancelled and bounded."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from herasys_rt.dsl import agent, tool, workflow
from herasys_rt.errors import ErrorInfo, HerasysError, RunCancelledError
from operators import generate


@agent
async def research(run, question: str):
    plan = await run.call(generate("Plan: {q}", q=question, label="plan"))
    found = await run.gather(
        *[generate("Look up {line}", line=line, label="look") for line in plan.lines()[:2]]
    )
    return await run.call(generate("Sum up {found}", found=found, label="sum"))


class Answering:
    """Ends items of a hand engine by a function, on a thread of the test's."""

    def __init__(self, engine: Any, answer: Any) -> None:
        self.engine = engine
        self._answer = answer
        self._done = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            with self.engine.arrived:
                self.engine.arrived.wait_for(
                    lambda: len(self.engine.seen) > self._done or self._stop.is_set(), 0.1
                )
                fresh = self.engine.seen[self._done :]
                self._done = len(self.engine.seen)
            for item in fresh:
                self.engine.finish(item, self._answer(item))

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def prompt_of(item: Any) -> str:
    text = item.args["prompt"]
    for name, value in item.args.items():
        if name.startswith("var:"):
            text = text.replace("{" + name[4:] + "}", str(value))
    return text


def test_an_agent_reveals_its_graph_and_gives_its_result(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()

    def answer(item: Any) -> str:
        text = prompt_of(item)
        return "1. first\n2. second\n3. third" if text.startswith("Plan") else text.upper()

    with Answering(engine, answer):
        run = client.submit(research, question="why?")
        assert run.result(20) == "SUM UP ['LOOK UP FIRST', 'LOOK UP SECOND']"
    nodes = {node["id"]: node for node in run.report()["nodes"]}
    assert list(nodes) == ["0/plan", "1/look", "2/look", "3/sum"]
    assert {node["state"] for node in nodes.values()} == {"succeeded"}
    assert nodes["1/look"]["parents"] == ["0/plan"]
    assert sorted(nodes["3/sum"]["parents"]) == ["1/look", "2/look"]


def test_the_same_step_is_the_same_spec_however_often_it_is_taken(
    start_runtime, hand_engine
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    before = len(runtime.loop._specs)
    with Answering(engine, lambda item: prompt_of(item)):
        for question in ("one", "two", "three"):
            client.submit(research, question=question).result(20)
    assert len(runtime.loop._specs) - before == 4  # the agent and its three steps


def test_equal_steps_of_two_agents_are_executed_once(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    with Answering(engine, lambda item: "same"):
        client.submit(research, question="q").result(20)
        executed = len(engine.seen)
        again = client.submit(research, question="q")
        assert again.result(20) == "same"
    assert len(engine.seen) == executed
    assert all(node["reused"] for node in again.report()["nodes"])


def test_a_failed_step_can_be_caught_and_the_run_goes_on(start_runtime, hand_engine):
    @agent
    async def careful(run, question: str):
        try:
            return await run.call(generate("{q}", q=question))
        except HerasysError as e:
            return f"caught {e.code}"

    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(careful, question="q")
    engine.fail(engine.wait_for(1)[0], ErrorInfo("prompt_too_long", "too long"))
    assert run.result(20) == "caught prompt_too_long"
    assert run.report()["nodes"][0]["state"] == "failed"


def test_a_step_that_fails_uncaught_fails_the_run_with_its_code(start_runtime, hand_engine):
    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(research, question="q")
    engine.fail(engine.wait_for(1)[0], ErrorInfo("broken", "it broke", "Mend it."))
    with pytest.raises(HerasysError, match="it broke") as caught:
        run.result(20)
    assert caught.value.code == "broken"


def test_an_error_of_the_agents_own_code_names_its_place(start_runtime, hand_engine):
    @agent
    async def clumsy(run, question: str):
        return question.no_such_thing  # pyright: ignore

    run = start_runtime(llm=hand_engine()).connect().submit(clumsy, question="q")
    with pytest.raises(HerasysError, match=r"AttributeError.*test_agents\.py") as caught:
        run.result(20)
    assert caught.value.code == "agent_failed"


def test_cancelling_the_run_cancels_calls_in_flight_and_the_coroutine(
    start_runtime, hand_engine
):
    ended = threading.Event()

    @agent
    async def patient(run, question: str):
        try:
            return await run.call(generate("{q}", q=question))
        finally:
            ended.set()

    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(patient, question="q")
    (item,) = engine.wait_for(1)
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(20)
    assert ended.wait(10)
    with engine.arrived:
        assert engine.arrived.wait_for(lambda: item.key in engine.aborted, 10)


def test_a_step_after_the_runs_end_is_refused_at_once(start_runtime, hand_engine):
    refused: list[HerasysError] = []
    ended = threading.Event()

    @agent
    async def tidy(run, question: str):
        try:
            return await run.call(generate("{q}", q=question))
        finally:
            try:
                await run.call(generate("tidy up after {q}", q=question))
            except HerasysError as e:
                refused.append(e)
            ended.set()

    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(tidy, question="q")
    engine.wait_for(1)
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(20)
    assert ended.wait(10)
    assert [e.code for e in refused] == ["cancelled"]
    assert len(engine.seen) == 1


def test_closing_leaves_a_coroutine_behind_that_takes_no_cancel(
    start_runtime, hand_engine, monkeypatch, caplog
):
    monkeypatch.setattr("herasys_rt.client.agents._END_S", 0.01)
    blocked, go_on = threading.Event(), threading.Event()

    @agent
    async def deaf(run, question: str):
        blocked.set()
        go_on.wait(10)

    client = start_runtime(llm=hand_engine()).connect()
    client.submit(deaf, question="q")
    assert blocked.wait(10)
    thread = client._agents._thread
    client.close()
    assert "left behind" in caplog.text
    go_on.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_race_gives_the_first_success_and_cancels_the_rest(start_runtime, hand_engine):
    @agent
    async def hasty(run, question: str):
        return await run.race(
            generate("slow {q}", q=question), generate("fast {q}", q=question)
        )

    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(hasty, question="q")
    items = {prompt_of(item).split()[0]: item for item in engine.wait_for(2)}
    engine.finish(items["fast"], "quick")
    assert run.result(20) == "quick"
    with engine.arrived:
        assert engine.arrived.wait_for(lambda: items["slow"].key in engine.aborted, 10)
    states = sorted(node["state"] for node in run.report()["nodes"])
    assert states == ["cancelled", "succeeded"]


def test_the_first_failure_of_a_gather_cancels_the_others(start_runtime, hand_engine):
    @agent
    async def both(run, question: str):
        return await run.gather(
            generate("one {q}", q=question), generate("two {q}", q=question)
        )

    engine = hand_engine()
    run = start_runtime(llm=engine).connect().submit(both, question="q")
    items = engine.wait_for(2)
    engine.fail(items[0], ErrorInfo("broken", "it broke"))
    with pytest.raises(HerasysError, match="it broke"):
        run.result(20)
    with engine.arrived:
        assert engine.arrived.wait_for(lambda: items[1].key in engine.aborted, 10)


def test_sub_agents_and_workflows_are_steps_of_the_same_run(start_runtime, hand_engine):
    @workflow
    def shout(text: str):
        return generate("Shout {t}", t=text)

    @agent
    async def inner(run, text: str):
        run.state["inner"] = True
        return await run.call(shout(text))

    @agent
    async def outer(run, text: str):
        said = await run.call(inner(text=text))
        return {"said": said, "state": run.state["inner"]}

    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    with Answering(engine, lambda item: "HEY"):
        run = client.submit(outer, text="hey")
        assert run.result(20) == {"said": "HEY", "state": True}
    assert len(run.report()["nodes"]) == 1


def test_an_agent_that_does_not_end_is_ended(start_runtime, hand_engine):
    @agent(max_calls=3)
    async def endless(run, question: str):
        while True:
            question = await run.call(generate("{q}", q=question))

    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    with Answering(engine, lambda item: prompt_of(item) + "!"):
        run = client.submit(endless, question="q")
        with pytest.raises(HerasysError, match="more than 3 calls") as caught:
            run.result(20)
    assert caught.value.code == "agent_limit"
    assert len(run.report()["nodes"]) == 3


def test_a_bounded_loop_that_is_not_left_is_an_error(start_runtime, hand_engine):
    @agent
    async def looping(run, question: str):
        async for _ in run.steps(2):
            question = await run.call(generate("{q}", q=question))
        return question

    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    with (
        Answering(engine, lambda item: prompt_of(item)),
        pytest.raises(HerasysError, match="within 2 rounds"),
    ):
        client.submit(looping, question="q").result(20)


def test_faults_of_a_step_are_raised_where_it_is_called(start_runtime, hand_engine):
    @agent
    async def wrong(run, question: str):
        return await run.call(generate("{missing}", max_tokens=0))

    run = start_runtime(llm=hand_engine()).connect().submit(wrong, question="q")
    with pytest.raises(HerasysError, match="missing") as caught:
        run.result(20)
    assert caught.value.code == "invalid_graph"


@pytest.mark.parametrize(
    "result",
    [object(), float("nan"), [float("inf")], "\ud800", {1: "one"}, 2**70],
    ids=["object", "nan", "inf", "surrogate", "key", "integer"],
)
def test_a_result_that_cannot_be_given_is_that_runs_error(
    start_runtime, hand_engine, result: Any
):
    @agent
    async def odd(run, question: str):
        return result

    run = start_runtime(llm=hand_engine()).connect().submit(odd, question="q")
    with pytest.raises(HerasysError, match="agent 'odd'") as caught:
        run.result(20)
    assert caught.value.code == "not_codable"


def test_agents_go_on_while_the_fuser_is_lost_and_found(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    run = client.submit(research, question="q")
    first = engine.wait_for(1)[0]
    runtime.lose_fuser()
    engine.finish(first, "- one\n- two")
    for item in engine.wait_for(3)[1:]:
        engine.finish(item, "found")
    runtime.start_fuser()
    engine.finish(engine.wait_for(4)[3], "sum")
    assert run.result(20) == "sum"


def test_several_agents_of_one_client_run_at_once(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    with Answering(engine, lambda item: prompt_of(item)):
        inputs = [{"question": f"q{i}"} for i in range(20)]
        runs = list(client.map(research, inputs, concurrency=5))
    assert all("q" in run.result() for run in runs)


def test_outside_of_an_agent_calling_one_is_refused():
    with pytest.raises(HerasysError, match="outside of an agent"):
        research(question="q")
    with pytest.raises(HerasysError, match="not asynchronous"):
        agent(lambda run: None)  # pyright: ignore


def test_a_tool_in_an_agent_is_a_step(start_runtime, hand_engine):
    @tool(pure=True, version="1")
    def double(n: int) -> int:
        """Twice a number."""
        return 2 * n

    @agent
    async def use(run, n: int):
        return await run.call(double(n))

    client = start_runtime(llm=hand_engine()).connect()
    with pytest.raises(HerasysError) as caught:
        client.submit(use, n=2).result(20)
    assert caught.value.code == "no_pool"  # The step is a node of resource python.
