"""Workflows on their way: every table of them is bounded, and one that was forgotten
somewhere is told again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.client import unanswered
from herasys_rt.core.events import SpecRegistered
from herasys_rt.dsl import agent, workflow
from herasys_rt.errors import HerasysError
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.runtime import fuser
from operators import generate
from tests.pure.runtime.path_lab import await_fuser


@workflow
def answer(question: str):
    return generate("Say: {question}", question=question, max_tokens=8)


@agent
async def twice(run: Any, question: str):
    first = await run.call(generate("1: {q}", q=question, max_tokens=8))
    return await run.call(generate("2: {q}", q=first, max_tokens=9))


def fresh(number: int) -> WorkflowSpec:
    """A workflow that nobody has met before."""
    return replace(answer.spec, name=f"answer-{number}")


def remember(runtime: Any, count: int) -> None:
    """Let the kernel remember so many workflows; before it is told anything."""
    runtime.state.config = replace(runtime.state.config, remembered_specs=count)


def serve(engine: Any, count: int, text: str) -> None:
    """End the item that comes as number ``count``."""
    engine.finish(engine.wait_for(count)[count - 1], text)


def test_a_thousand_workflows_leave_bounded_tables_and_an_old_one_works(
    start_runtime, hand_engine, monkeypatch
):
    monkeypatch.setattr(fuser, "_KNOWN_SPECS", 50)
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    remember(runtime, 100)
    client = runtime.connect()
    await_fuser(client)
    first = client.submit(fresh(0), question="0")
    serve(engine, 1, "first")
    assert first.result(10) == "first"
    for number in range(1, 1_000):
        runtime.outbox.post(runtime.fuser, SpecRegistered(fresh(number)))
    runtime.outbox.flush()
    while fresh(999).id not in runtime.state.plans:
        client.status()  # waits for the scheduler's turn
    again = client.submit(fresh(0), question="again")
    serve(engine, 2, "again")
    assert again.result(10) == "again"
    loop, signing = runtime.loop, runtime.fuser_loop
    assert len(loop._specs) == len(runtime.state.plans) <= 100
    assert len(signing._specs) <= 50 and len(signing._signers) <= 50


@pytest.mark.parametrize("with_fuser", [True, False])
def test_a_run_of_a_workflow_the_scheduler_forgot_brings_it_along(
    start_runtime, hand_engine, with_fuser
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine, fuser=with_fuser)
    remember(runtime, 1)
    client = runtime.connect()
    if with_fuser:
        await_fuser(client)
    for number, name in enumerate([0, 1, 0, 1]):
        run = client.submit(fresh(name), question=str(number))
        serve(engine, number + 1, f"answer {number}")
        assert run.result(10) == f"answer {number}"
    assert len(runtime.state.plans) == 1
    assert [len(host._specs) for host in runtime.host_loops] == [1]


def test_a_run_of_a_workflow_the_fuser_forgot_brings_it_along(
    start_runtime, hand_engine, monkeypatch
):
    monkeypatch.setattr(fuser, "_KNOWN_SPECS", 1)
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    await_fuser(client)
    for number, name in enumerate([0, 1, 0]):
        run = client.submit(fresh(name), question=str(number))
        serve(engine, number + 1, f"answer {number}")
        assert run.result(10) == f"answer {number}"


@pytest.mark.parametrize("with_fuser", [True, False])
def test_a_step_of_an_agent_brings_its_forgotten_workflow_along(
    start_runtime, hand_engine, with_fuser
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine, fuser=with_fuser)
    remember(runtime, 1)
    client = runtime.connect()
    if with_fuser:
        await_fuser(client)
    for number in range(2):
        run = client.submit(twice, question=str(number))
        serve(engine, 2 * number + 1, f"first {number}")
        serve(engine, 2 * number + 2, f"second {number}")
        assert run.result(10) == f"second {number}"


def test_a_client_remembers_a_bounded_number_of_workflows(
    start_runtime, hand_engine, monkeypatch
):
    monkeypatch.setattr(unanswered, "_KNOWN_SPECS", 2)
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    for number, name in enumerate([0, 1, 2, 0]):
        run = client.submit(fresh(name), question=str(number))
        serve(engine, number + 1, "text")
        assert run.result(10) == "text"
    left = client._link._unanswered
    assert len(left._known_specs) <= 2
    assert not left._sent_again and not left._submitted


@pytest.mark.parametrize("with_fuser", [True, False])
def test_a_workflow_that_does_not_hold_is_told_twice_and_then_the_run_fails(
    start_runtime, hand_engine, with_fuser
):
    runtime = start_runtime(llm=hand_engine(), fuser=with_fuser)
    client = runtime.connect()
    if with_fuser:
        await_fuser(client)
    (node,) = answer.spec.nodes
    wrong = replace(answer.spec, nodes=(node, node))
    with pytest.raises(HerasysError) as caught:
        client.submit(wrong, question="q").result(10)
    assert caught.value.code in ("unknown_spec", "invalid_graph")
    assert not client._link._unanswered._sent_again
