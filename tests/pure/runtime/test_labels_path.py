"""Labels of runs on their way through the processes."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.client.client import AsyncClient
from herasys_rt.core.events import RunSubmitted
from herasys_rt.core.journal import read_journal
from herasys_rt.dsl import agent, workflow
from herasys_rt.errors import HerasysError, InputError
from operators import generate

LABELS = {"team": "search", "ticket": "HS-7"}


@workflow
def answer(question: str):
    return generate("{question}", question=question)


@agent
async def quick(run, question: str):
    return question


def test_labels_are_in_the_report_only_when_given(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    labelled = client.submit(answer, question="a", _labels=LABELS)
    plain = client.submit(answer, question="b")
    for item in engine.wait_for(2):
        engine.finish(item, "done")
    assert labelled.report(20)["labels"] == LABELS
    assert "labels" not in plain.report(20)
    assert client.submit(quick, question="c", _labels=LABELS).report(20)["labels"] == LABELS


def test_a_run_that_fails_keeps_its_labels(start_runtime, hand_engine):
    client = start_runtime(llm=hand_engine()).connect()
    run = client.submit(answer, question="a", _labels=LABELS)
    run.cancel()
    assert run.report(20)["labels"] == LABELS
    (refused,) = client.map(answer, [{"nope": 1}], labels=LABELS)
    assert refused.report()["labels"] == LABELS
    left = client.submit(answer, question="a", _labels=LABELS)
    client.close()
    assert left.report()["labels"] == LABELS


def test_every_run_of_a_map_has_its_labels(start_runtime, hand_engine):
    client = start_runtime(llm=hand_engine()).connect()
    runs = client.map(quick, [{"question": q} for q in "abc"], labels=LABELS)
    assert [run.report()["labels"] for run in runs] == [LABELS] * 3


async def test_the_asynchronous_twin_takes_labels(start_runtime, hand_engine):
    client = AsyncClient(start_runtime(llm=hand_engine()).connect())
    run = await client.submit(quick, question="q", _labels=LABELS)
    assert (await run.report(20))["labels"] == LABELS
    runs = [run async for run in client.map(quick, [{"question": "q"}], labels=LABELS)]
    assert (await runs[0].report())["labels"] == LABELS


def test_labels_that_are_none_are_refused_before_anything_runs(start_runtime, hand_engine):
    client = start_runtime(llm=hand_engine()).connect()
    bad: Any = {"team": 7}
    with pytest.raises(InputError, match="label 'team'"):
        client.submit(answer, question="a", _labels=bad)
    with pytest.raises(InputError, match="label 'team'"):
        client.map(answer, [], labels=bad)
    assert client.status()["counters"]["runs"]["accepted"] == 0


def test_labels_are_no_part_of_a_signature(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    for labels in ({}, LABELS, {"team": "ads"}):
        run = client.submit(answer, question="same", _labels=labels)
        if not labels:
            engine.finish(engine.wait_for(1)[0], "once")
        assert run.result(20) == "once"
    assert len(engine.seen) == 1
    runtime.close()
    recorded = [e for _, e in read_journal(runtime.journal_path)]
    submitted = [e for e in recorded if isinstance(e, RunSubmitted)]
    assert len({event.signatures for event in submitted}) == 1
    assert [event.labels for event in submitted] == [{}, LABELS, {"team": "ads"}]


@pytest.mark.parametrize("fuser", [True, False])
def test_a_peer_that_sends_more_than_labels_is_refused(start_runtime, hand_engine, fuser):
    runtime = start_runtime(llm=hand_engine(), fuser=fuser)
    client = runtime.connect()
    make = client._link.make_submit
    client._link.make_submit = lambda *args, **options: make(
        *args, **{**options, "labels": {"k": "v" * 1000}}
    )
    with pytest.raises(HerasysError, match="at most 256 characters"):
        client.submit(answer, question="a").result(20)
