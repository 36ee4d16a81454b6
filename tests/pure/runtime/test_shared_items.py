"""Lists with equal items through the loops: each is embedded once, and nobody can tell."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from herasys_rt.dsl import map_over, workflow
from herasys_rt.engines.protocol import Item, Outcome, Snapshot
from herasys_rt.errors import ErrorInfo, HerasysError
from herasys_rt.graph import codec
from operators import embed_many, generate
from tests.pure.runtime.path_lab import (
    await_accepted,
    await_fuser,
    under_both_hashes,
)

pytestmark = under_both_hashes


@workflow
def index(chapters: list[str]):
    return embed_many(chapters)


@workflow
def index_as_queries(chapters: list[str]):
    return embed_many(chapters, kind="query")


@workflow
def summed_up(chapters: list[str]):
    return embed_many(map_over(chapters, lambda text: generate("{t}", t=text)))


@workflow
def index_with_preface(chapter: str):
    return embed_many(["preface", generate("{t}", t=chapter)])


class RecordingEngine:
    """An embedder that notes every text it is given. While ``held``, items wait."""

    verbs = frozenset({"embed"})

    def __init__(self) -> None:
        self.texts: list[list[str]] = []
        self.held: list[Item] | None = None
        self.running: set[str] = set()
        self.heard = threading.Condition()
        self.error: ErrorInfo | None = None

    def start(self, sink: Any) -> None:
        self.sink = sink

    def describe(self) -> dict[str, Any]:
        return {"fingerprint": "recording"}

    def submit(self, items: Any) -> None:
        for item in items:
            with self.heard:
                self.texts.append(list(item.args["text"]))
                self.heard.notify_all()
                if self.held is not None:
                    self.running.add(item.key)
                    self.held.append(item)
                    continue
            self.finish(item)

    def finish(self, item: Item) -> None:
        self.running.discard(item.key)
        if self.error is not None:
            self.sink.finished(item.key, Outcome(error=self.error))
            return
        texts = item.args["text"]
        self.sink.finished(
            item.key, Outcome(value=vectors(texts), usage={"items": len(texts)})
        )

    def wait_for(self, count: int) -> list[Item]:
        """The items held so far, once there are ``count``."""
        with self.heard:
            assert self.held is not None
            assert self.heard.wait_for(lambda: len(self.held or []) >= count, 10)
            return list(self.held)

    def abort(self, key: str) -> None:
        if key in self.running:
            self.running.discard(key)
            self.sink.finished(key, Outcome(aborted=True))

    def snapshot(self) -> Snapshot:
        return Snapshot(len(self.running), 0)

    def close(self) -> None:
        self.running.clear()


def vectors(texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What the engine gives for texts, each for itself."""
    rows = [[len(text), *text.encode()[:1], 0.5] for text in texts]
    return np.array(rows, dtype=np.float32).reshape(len(texts), 3)


def shared_items(run: Any) -> int:
    """How many items the record of a run's only node says were shared."""
    (node,) = run.report()["nodes"]
    return node["shared_items"]


@pytest.fixture
def engine() -> RecordingEngine:
    return RecordingEngine()


@pytest.fixture
def client(start_runtime: Any, engine: RecordingEngine) -> Any:
    client = start_runtime(embedding=engine).connect()
    await_fuser(client)
    return client


def test_documents_that_share_chapters_embed_the_shared_ones_once(client, engine):
    first, second = ["one", "two", "three"], ["zero", "three", "two", "é\n"]
    run = client.submit(index, chapters=first)
    np.testing.assert_array_equal(run.result(10), vectors(first))
    run = client.submit(index, chapters=second)
    assert codec.encode(run.result(10)) == codec.encode(vectors(second))
    assert engine.texts == [first, ["zero", "é\n"]]
    assert run.report()["usage"] == {"items": 2}
    assert shared_items(run) == 2


def test_a_document_whose_chapters_are_all_there_asks_no_engine(client, engine):
    client.submit(index, chapters=["one", "two"]).result(10)
    run = client.submit(index, chapters=["two", "one", "two"])
    assert codec.encode(run.result(10)) == codec.encode(vectors(["two", "one", "two"]))
    assert engine.texts == [["one", "two"]]
    assert run.report()["usage"] == {} and shared_items(run) == 3


def test_chapters_that_are_being_embedded_are_waited_for(client, engine):
    engine.held = []
    runs = [client.submit(index, chapters=["one", "two"])]
    (first,) = engine.wait_for(1)
    runs.append(client.submit(index, chapters=["two", "three"]))
    await_accepted(client, 2)
    engine.finish(first)
    _, second = engine.wait_for(2)
    engine.finish(second)
    assert [run.result(10).tolist() for run in runs] == [
        vectors(["one", "two"]).tolist(),
        vectors(["two", "three"]).tolist(),
    ]
    assert engine.texts == [["one", "two"], ["three"]]


def test_a_failed_lender_leaves_its_borrower_to_itself(client, engine):
    engine.held = []
    runs = [client.submit(index, chapters=["one", "two"])]
    (first,) = engine.wait_for(1)
    runs.append(client.submit(index, chapters=["two", "three"]))
    await_accepted(client, 2)
    engine.error = ErrorInfo("bad_chapter", "the first chapter is bad")
    engine.finish(first)
    _, second = engine.wait_for(2)
    engine.error = None
    engine.finish(second)
    with pytest.raises(HerasysError, match="first chapter"):
        runs[0].result(10)
    np.testing.assert_array_equal(runs[1].result(10), vectors(["two", "three"]))


def test_another_parameter_or_tenant_shares_nothing(start_runtime, engine):
    runtime = start_runtime(embedding=engine)
    ours, theirs = runtime.connect("ours"), runtime.connect("theirs")
    await_fuser(ours)
    ours.submit(index, chapters=["one", "two"]).result(10)
    ours.submit(index_as_queries, chapters=["two", "one"]).result(10)
    theirs.submit(index, chapters=["two", "one"]).result(10)
    assert engine.texts == [["one", "two"], ["two", "one"], ["two", "one"]]


def test_chapters_written_by_a_model_share_by_what_was_written(
    start_runtime, hand_engine, engine
):
    llm = hand_engine()
    client = start_runtime(embedding=engine, llm=llm).connect()
    await_fuser(client)
    run = client.submit(summed_up, chapters=["one", "two"])
    for item, said in zip(llm.wait_for(2), ["same", "other"], strict=True):
        llm.finish(item, said)
    run.result(10)
    run = client.submit(summed_up, chapters=["three", "four"])
    for item, said in zip(llm.wait_for(4)[2:], ["new", "same"], strict=True):
        llm.finish(item, said)
    np.testing.assert_array_equal(run.result(10), vectors(["new", "same"]))
    assert engine.texts == [["same", "other"], ["new"]]


def test_an_item_is_the_same_as_an_input_as_a_literal_and_as_an_answer(
    start_runtime, hand_engine, engine
):
    llm = hand_engine()
    client = start_runtime(embedding=engine, llm=llm).connect()
    await_fuser(client)
    client.submit(index, chapters=["preface", "said", "x"]).result(10)
    run = client.submit(index_with_preface, chapter="one")
    llm.finish(llm.wait_for(1)[0], "said")
    np.testing.assert_array_equal(run.result(10), vectors(["preface", "said"]))
    run = client.submit(summed_up, chapters=["two", "three"])
    for item, said in zip(llm.wait_for(3)[1:], ["x", "preface"], strict=True):
        llm.finish(item, said)
    np.testing.assert_array_equal(run.result(10), vectors(["x", "preface"]))
    assert engine.texts == [["preface", "said", "x"]]


def test_a_list_with_a_bad_item_fails_alone(client, engine):
    client.submit(index, chapters=["one"]).result(10)
    engine.error = ErrorInfo("empty_text", "text[0] is empty")
    with pytest.raises(HerasysError, match="is empty"):
        client.submit(index, chapters=["one", " "]).result(10)
    engine.error = None
    run = client.submit(index, chapters=[" ", "one"])
    np.testing.assert_array_equal(run.result(10), vectors([" ", "one"]))


def test_an_empty_list_is_computed_as_ever(client, engine):
    assert client.submit(index, chapters=[]).result(10).shape == (0, 3)
    assert engine.texts == [[]]
