"""What the members of one flight see of it, through the whole control path."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest

from herasys_rt.client.run import Run
from herasys_rt.config import PoolConfig
from herasys_rt.dsl import retry, workflow
from herasys_rt.engines import modelled
from herasys_rt.engines.protocol import Item, Outcome
from herasys_rt.errors import ErrorInfo, HerasysError, RunCancelledError
from operators import embed_documents, generate, store
from tests.pure.runtime.path_lab import answer, await_accepted, await_fuser, streaming

BROKEN = ErrorInfo("broken", "it broke", "Mend it.")
BUSY = ErrorInfo("busy", "it was busy", retryable=True)


@workflow
def reply(question: str):
    """The same work as `answer`, in another workflow."""
    return generate("Say: {question}", question=question, max_tokens=8)


@workflow
def rewritten(question: str):
    words = generate("Rewrite: {question}", question=question, max_tokens=8)
    return generate("Answer: {words}", words=words, max_tokens=8)


@workflow
def persistent(question: str):
    most = retry(max_attempts=3, initial_interval_s=0.0)
    return generate("Try: {question}", question=question, max_tokens=8, retry=most)


@workflow
def kept(documents: list[dict[str, Any]]):
    most = retry(max_attempts=5, initial_interval_s=0.0, retry_on=("busy",))
    return store(embed_documents(documents), collection="docs", retry=most)


def fused(start_runtime: Any, engine: Any, count: int, *workflows: Any) -> list[Run]:
    """So many runs that are members of one flight, which is with the engine."""
    runtime = start_runtime(llm=engine)
    clients = [runtime.connect() for _ in range(count)]
    for client in clients:
        await_fuser(client)
    asked = [workflows[i % len(workflows)] for i in range(count)]
    runs = [
        client.submit(flow, _labels={"number": str(i)}, question="q")
        for i, (client, flow) in enumerate(zip(clients, asked, strict=True))
    ]
    engine.wait_for(1)
    await_accepted(clients[0], count)
    return runs


def test_the_engine_stops_when_the_last_member_has_left(start_runtime, hand_engine):
    engine = hand_engine()
    runs = fused(start_runtime, engine, 3, answer)
    (item,) = engine.seen
    for run in runs[:2]:
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result(10)
    assert engine.aborted == [] and item.key in engine.items
    runs[2].cancel()
    with pytest.raises(RunCancelledError):
        runs[2].result(10)
    with engine.arrived:
        assert engine.arrived.wait_for(lambda: engine.aborted == [item.key], 10)
    assert len(engine.seen) == 1 and not engine.items


def test_a_modelled_engine_is_idle_when_the_last_member_has_left(start_runtime):
    options = {"base_s": 3600.0}
    pool = PoolConfig(name="llm", resource="llm", engine="modelled", options=options)
    engine = modelled.create(pool)
    client = start_runtime(llm=engine).connect()
    await_fuser(client)
    runs = [client.submit(answer, question="q") for _ in range(2)]
    await_accepted(client, 2)
    while engine.snapshot().running != 1:
        client.status()
    runs[0].cancel()
    with pytest.raises(RunCancelledError):
        runs[0].result(10)
    assert engine.snapshot().running == 1
    runs[1].cancel()
    with pytest.raises(RunCancelledError):
        runs[1].result(10)
    while engine.snapshot().running:
        client.status()
    assert client.status()["counters"]["pools"]["llm"]["running"] == 0


@workflow
def chain(question: str):
    first = generate("First: {question}", question=question, max_tokens=8)
    return generate("Then: {first}", first=first, max_tokens=8)


STEPS = ["submitted", "queued", "accepted", "started", "streaming", "between", "joined"]


@pytest.mark.parametrize("step", STEPS)
def test_a_cancel_at_any_step_ends_the_run_and_nothing_goes_on(
    start_runtime, hand_engine, step: str
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    await_fuser(client)
    others: list[Run] = []
    if step == "queued":  # the engine takes four at a time
        others = [client.submit(answer, question=str(i)) for i in range(4)]
        engine.wait_for(4)
    if step == "joined":  # somebody else asked first
        others = [client.submit(chain, question="q")]
        engine.wait_for(1)
    run = client.submit(chain, _stream=True, question="q")
    if step != "submitted":
        await_accepted(client, len(others) + 1)
    if step in ("started", "streaming", "between"):
        (item,) = engine.wait_for(1)
        assert engine.sink is not None
        engine.sink.started(item.key)
        if step == "streaming":
            engine.sink.piece(item.key, "a", 1)
        if step == "between":
            engine.finish(item, "first")
            engine.wait_for(2)
    run.cancel()
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(10)
    states = {node["state"] for node in run.report()["nodes"]}
    assert states <= {"cancelled", "skipped", "succeeded"}
    for other in others:
        other.cancel()
        with pytest.raises(RunCancelledError):
            other.result(10)
    while client.status()["counters"]["pools"]["llm"]["running"]:
        pass
    assert not engine.items
    state = runtime.state
    assert not state.runs and not state.flights and not state.table.live


def test_a_failure_is_told_to_every_member_once_in_its_own_words(
    start_runtime, hand_engine
):
    engine = hand_engine()
    runs = fused(start_runtime, engine, 4, answer, reply)
    ends: Counter[str] = Counter()
    for run in runs:
        run.add_done_callback(lambda run: ends.update([run.id]))
    engine.fail(engine.seen[0], BROKEN)
    for run in runs:
        with pytest.raises(HerasysError) as caught:
            run.result(10)
        assert caught.value.code == "broken" and run.id in caught.value.message
        report = run.report(10)
        assert report["status"] == "failed" and report["error"]["hint"] == "Mend it."
        assert [node["state"] for node in report["nodes"]] == ["failed"]
    assert len(engine.seen) == 1
    assert ends == Counter({run.id: 1 for run in runs})


def test_a_flight_is_tried_again_once_for_all_its_members(start_runtime, hand_engine):
    engine = hand_engine()
    runs = fused(start_runtime, engine, 3, persistent)
    for tries in (1, 2):
        engine.fail(engine.wait_for(tries)[-1], BUSY)
    engine.finish(engine.wait_for(3)[-1], "at last")
    assert [run.result(10) for run in runs] == ["at last"] * 3
    assert len(engine.seen) == 3


def test_when_all_tries_are_used_up_every_member_fails_with_the_last_error(
    start_runtime, hand_engine
):
    engine = hand_engine()
    runs = fused(start_runtime, engine, 3, persistent)
    for tries in (1, 2, 3):
        engine.fail(engine.wait_for(tries)[-1], BUSY)
    for run in runs:
        with pytest.raises(HerasysError) as caught:
            run.result(10)
        assert caught.value.code == "busy"
    assert len(engine.seen) == 3


def test_every_member_has_a_report_of_its_own(start_runtime, hand_engine):
    engine = hand_engine()
    runs = fused(start_runtime, engine, 3, answer, reply)
    sources = [{"id": "a#0", "source": "a", "text": "t", "score": 1.0}]
    engine.finish(
        engine.seen[0], "said", usage={"completion_tokens": 2}, sources=sources, run_s=0.5
    )
    reports = [run.report(10) for run in runs]
    assert [report["run_id"] for report in reports] == [run.id for run in runs]
    assert [report["labels"]["number"] for report in reports] == ["0", "1", "2"]
    for report in reports:
        assert report["output"] == "said" and report["sources"] == sources
        assert report["usage"] == {"completion_tokens": 2}
    nodes = [report["nodes"][0] for report in reports]
    led = [node for node in nodes if node["fused_into"] is None]
    (leader,) = [report["run_id"] for report in reports if report["nodes"][0] in led]
    assert [node["fused_into"] for node in nodes].count(f"{leader}/generate") == 2
    # Engine seconds are those of who executed: summed over runs they count once.
    assert sorted(node["run_s"] for node in nodes) == [0.0, 0.0, 0.5]
    # Bills are equal parts: who comes first pays no more than who joins.
    assert [node["share"] for node in nodes] == [0.333333] * 3
    for report in reports:
        assert report["billed"] == {"engine_s": 0.166667, "completion_tokens": 0.666667}


def test_a_member_that_joins_by_value_streams_from_the_beginning(
    start_runtime, hand_engine
):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    await_fuser(client)
    early = client.submit(rewritten, _stream=True, question="How are you?")
    (first,) = engine.wait_for(1)
    engine.finish(first, "the same words")
    answering = engine.wait_for(2)[-1]
    assert engine.sink is not None
    engine.sink.started(answering.key)
    engine.sink.piece(answering.key, "Fine, ", 2)
    assert next(pieces := early.stream()) == "Fine, "
    late = client.submit(rewritten, _stream=True, question="How do you do?")
    engine.finish(engine.wait_for(3)[-1], "the same words")
    late_pieces = late.stream()
    assert next(late_pieces) == "Fine, "
    engine.sink.piece(answering.key, "thanks.", 1)
    engine.finish(answering, "Fine, thanks.")
    assert [*pieces] == [*late_pieces] == ["thanks."]
    assert len(engine.seen) == 3


def test_the_text_goes_on_for_the_others_when_who_asked_first_leaves(
    start_runtime, hand_engine
):
    engine = hand_engine()
    client, first, item = streaming(start_runtime, engine)
    engine.sink.started(item.key)
    engine.sink.piece(item.key, "one ", 1)
    second = client.submit(answer, _stream=True, question="q")
    pieces = second.stream()
    assert next(pieces) == "one "
    first.cancel()
    with pytest.raises(RunCancelledError):
        list(first.stream())
    engine.sink.piece(item.key, "two ", 1)
    assert next(pieces) == "two "
    third = client.submit(answer, _stream=True, question="q")
    late = third.stream()
    assert next(late) == "one two "
    engine.finish(item, "one two three")
    assert [*pieces] == [*late] == ["three"]
    assert engine.aborted == []


def test_a_stream_of_a_flight_that_fails_ends_with_the_error_for_everybody(
    start_runtime, hand_engine
):
    engine = hand_engine()
    client, early, item = streaming(start_runtime, engine)
    engine.sink.piece(item.key, "half", 1)
    late = client.submit(answer, _stream=True, question="q")
    streams = [run.stream() for run in (early, late)]
    assert [next(pieces) for pieces in streams] == ["half", "half"]
    engine.fail(item, BROKEN)
    for pieces in streams:
        with pytest.raises(HerasysError) as caught:
            next(pieces)
        assert caught.value.code == "broken"


def test_a_run_signed_by_the_next_fuser_joins_what_the_one_before_signed(
    start_runtime, hand_engine
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    await_fuser(client)
    before = client.submit(answer, question="q")
    (item,) = engine.wait_for(1)
    runtime.lose_fuser()
    while client.status()["fuser"] == "up":
        pass
    unsigned = client.submit(answer, question="q")
    engine.finish(engine.wait_for(2)[1], "alone")
    assert unsigned.result(10) == "alone"
    runtime.start_fuser()
    await_fuser(client)
    after = client.submit(answer, question="q")
    await_accepted(client, 3)
    engine.finish(item, "once")
    assert before.result(10) == after.result(10) == "once"
    assert after.report()["nodes"][0]["fused_into"] == f"{before.id}/generate"


def test_an_effect_happens_at_most_once_per_run_and_once_for_each(
    start_runtime, hand_engine
):
    pool = PoolConfig(name="embedding", resource="embedding", engine="modelled")
    writer = hand_engine()
    runtime = start_runtime(embedding=modelled.create(pool), search=writer)
    client = runtime.connect()
    await_fuser(client)
    documents = [{"id": "a", "text": "the same"}]
    runs = [client.submit(kept, documents=documents) for _ in range(2)]
    failing, other = writer.wait_for(2)
    writer.fail(failing, BUSY)
    writer.finish(other, {"revision": 1}, revisions={"docs": 1})
    ends = sorted(run.report(10)["status"] for run in runs)
    assert ends == ["failed", "succeeded"] and len(writer.seen) == 2
    lost = client.submit(kept, documents=documents)
    writer.wait_for(3)
    again = hand_engine()
    runtime.lose_host("search")
    with pytest.raises(HerasysError) as caught:
        lost.result(10)
    assert caught.value.code == "effect_unknown"
    runtime.start_host("search", again)
    last = client.submit(kept, documents=documents)
    (item,) = again.wait_for(1)
    again.finish(item, {"revision": 2}, revisions={"docs": 2})
    last.result(10)
    assert len(again.seen) == 1


class Storm:
    """Works on the items of a hand-driven engine, from a thread of its own: begins one and
    ends one in random order."""

    def __init__(self, engine: Any, seed: int) -> None:
        self._engine = engine
        self._random = random.Random(seed)
        self._begun: set[str] = set()
        self._over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        with self._engine.arrived:
            self._over = True
            self._engine.arrived.notify_all()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        engine = self._engine
        while True:
            with engine.arrived:
                engine.arrived.wait_for(lambda: self._over or engine.items)
                if self._over:
                    return
                key = self._random.choice(sorted(engine.items))
                begins = key not in self._begun
                # When it ends, an abort comes too late from here on.
                item = engine.items[key] if begins else engine.items.pop(key)
            if begins:
                self._begun.add(key)
                engine.sink.started(key)
                engine.sink.piece(key, text_of(item.args["var:question"])[:3], 1)
            else:
                self._finish(item)

    def _finish(self, item: Item) -> None:
        text = text_of(item.args["var:question"])
        sink = self._engine.sink
        kind = self._random.random()
        if kind < 0.15:
            sink.finished(item.key, Outcome(error=BUSY))
        elif kind < 0.2:
            sink.finished(item.key, Outcome(error=BROKEN))
        else:
            sink.piece(item.key, text[3:], 1)
            sink.finished(item.key, Outcome(value=text, usage={"completion_tokens": 2}))


def text_of(question: str) -> str:
    return f"so {question} it is"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_storm_of_joins_and_cancels_leaves_nothing_and_nobody_waiting(
    start_runtime, hand_engine, seed: int
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    clients = [runtime.connect(tenant) for tenant in ("a", "a", "b")]
    for client in clients:
        await_fuser(client)
    storm = Storm(engine, seed)
    ends: Counter[str] = Counter()
    told: list[list[Run]] = [[] for _ in clients]

    def ask(at: int) -> None:
        choose = random.Random(10 * seed + at)
        for _ in range(60):
            question, stream = f"q{choose.randrange(4)}", choose.random() < 0.5
            flow = choose.choice([answer, reply])
            run = clients[at].submit(flow, _stream=stream, question=question)
            run.add_done_callback(lambda run: ends.update([run.id]))
            told[at].append(run)
            if choose.random() < 0.4:
                choose.choice(told[at][-3:]).cancel()
            if choose.random() < 0.4:
                choose.choice(told[at]).report(30)
            if choose.random() < 0.1:
                clients[at].purge_cache()

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    runs = [run for mine in told for run in mine]
    for run in runs:
        report = run.report(30)
        assert report["status"] in ("succeeded", "failed", "cancelled")
        if report["status"] == "succeeded":
            question = run._inputs["question"]
            assert run.result() == "".join(run.stream()) == text_of(question)
        elif report["status"] == "failed":
            assert report["error"]["code"] in ("broken", "busy")
    storm.end()
    assert ends == Counter({run.id: 1 for run in runs})
    while (counted := clients[0].status()["counters"])["pools"]["llm"]["running"]:
        pass
    nodes = counted["nodes"]
    assert nodes["unfinished"] == counted["pools"]["llm"]["queued"] == 0
    assert (
        nodes["submitted"]
        == len(runs)
        == sum(
            nodes[way] for way in ("executed", "fused", "reused", "skipped", "cancelled")
        )
    )
    assert not engine.items
    state = runtime.state
    assert not state.runs and not state.flights and not state.table.live
