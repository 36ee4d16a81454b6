"""Documents that share chunks, cut and embedded through the loops: each text once."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from herasys_rt.client.client import Client
from herasys_rt.config import PoolConfig
from herasys_rt.dsl import map_over, texts_of, workflow
from herasys_rt.engines.modelled import create
from herasys_rt.engines.modelled_tools import MAKERS
from herasys_rt.engines.protocol import Engine, Item
from herasys_rt.ingestion import ingest_spec
from operators import (
    chunk,
    chunk_documents,
    embed_documents,
    embed_many,
    generate,
    ingest,
)
from tests.pure.runtime.path_lab import (
    await_accepted,
    await_fuser,
    under_both_hashes,
)
from tests.pure.runtime.test_shared_items import RecordingEngine, vectors

pytestmark = under_both_hashes

WORDS = 4
"""Words of a chunk."""


@workflow
def one(text: str):
    return embed_many(chunk(text, max_tokens=WORDS, overlap=0))


@workflow
def each(texts: list[str]):
    return map_over(texts, lambda t: embed_many(chunk(t, max_tokens=WORDS, overlap=0)))


@workflow
def indexed(documents: list[dict[str, Any]]):
    return embed_documents(documents, chunk_tokens=WORDS, overlap=0)


@workflow
def each_indexed(shelves: list[list[dict[str, Any]]]):
    return map_over(shelves, lambda d: embed_documents(d, chunk_tokens=WORDS, overlap=0))


@workflow
def whole(documents: list[dict[str, Any]]):
    return embed_many(texts_of(documents))


@workflow
def embedded_and_read(documents: list[dict[str, Any]]):
    chunks = chunk_documents(documents, max_tokens=WORDS, overlap=0)
    return {
        "vectors": embed_many(texts_of(chunks)),
        "read": map_over(chunks, lambda c: generate("{id}: {t}", id=c["id"], t=c["text"])),
    }


@workflow
def ingested(documents: list[dict[str, Any]]):
    return ingest(documents, collection="docs", chunk_tokens=WORDS, overlap=0)


class CuttingEngine(RecordingEngine):
    """An embedder that notes every text it embeds, and cuts documents by words."""

    verbs = frozenset({"embed", "text.chunk"})

    def submit(self, items: Any) -> None:
        for item in items:
            if item.verb == "text.chunk":
                self.sink.finished(item.key, MAKERS[item.verb](item.args))
            else:
                super().submit([item])

    @property
    def embedded(self) -> list[str]:
        """All texts that were embedded, in order."""
        return [text for texts in self.texts for text in texts]


class Shelf(RecordingEngine):
    """A store that notes what it is given."""

    verbs = frozenset({"pg.write"})

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[Any] = []

    def submit(self, items: Any) -> None:
        for item in items:
            self.stored.append(item.args["embedded"])
        self.engine.submit(items)

    def start(self, sink: Any) -> None:
        self.engine = modelled("search", "retrieval")
        self.engine.start(sink)


def modelled(name: str, resource: Any) -> Engine:
    return create(PoolConfig(name=name, resource=resource, engine="modelled"))


def chapter(name: str) -> str:
    """A text that makes a chunk of its own."""
    return f"chapter {name} of it"


def text(names: str) -> str:
    """A document with a chapter per letter."""
    return " ".join(map(chapter, names))


def document(name: str, names: str) -> dict[str, str]:
    return {"id": name, "text": text(names)}


def expected(names: str) -> Any:
    return vectors([chapter(name) for name in names])


def chapters(names: str) -> list[str]:
    return sorted(map(chapter, names))


@pytest.fixture
def engine() -> CuttingEngine:
    return CuttingEngine()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def client(start_runtime: Any, engine: CuttingEngine, shelf: Shelf) -> Client:
    client = start_runtime(
        embedding=engine,
        search=shelf,
        python=modelled("python", "python"),
        llm=modelled("llm", "llm"),
    ).connect()
    await_fuser(client)
    return client


def test_documents_that_share_chunks_embed_the_shared_ones_once(client, engine):
    for names in ("abc", "bxc", "cab"):
        run = client.submit(one, text=text(names))
        np.testing.assert_array_equal(run.result(10), expected(names))
    assert engine.texts == [list(map(chapter, "abc")), [chapter("x")]]


def test_a_chunk_and_a_chapter_given_alone_are_the_same_text(client, engine):
    client.submit(one, text=text("ab")).result(10)

    @workflow
    def given(chapters: list[str]):
        return embed_many(chapters)

    run = client.submit(given, chapters=[chapter("x"), chapter("b")])
    np.testing.assert_array_equal(run.result(10), expected("xb"))
    assert engine.embedded == [chapter("a"), chapter("b"), chapter("x")]


def test_documents_of_one_run_share_chunks_with_each_other_and_with_the_next(
    client, engine
):
    for documents in (["abc", "bcd", "abc"], ["xd", "abc"]):
        run = client.submit(each, texts=[text(names) for names in documents])
        for given, names in zip(run.result(10), documents, strict=True):
            np.testing.assert_array_equal(given, expected(names))
    assert sorted(engine.embedded) == chapters("abcdx")


def test_documents_at_once_embed_the_union_of_their_chunks(client, engine):
    engine.held = []
    documents = ["abc", "bcd", "cde", "ab"]
    runs = [client.submit(one, text=text(names)) for names in documents]
    await_accepted(client, len(runs))
    finish_all(engine, "abcde")
    for run, names in zip(runs, documents, strict=True):
        np.testing.assert_array_equal(run.result(10), expected(names))
    assert sorted(engine.embedded) == chapters("abcde")


def test_regions_at_once_embed_the_union_of_their_chunks(client, engine):
    engine.held = []
    lists = [["abc", "bcd"], ["cde", "abc"]]
    runs = [client.submit(each, texts=[text(names) for names in row]) for row in lists]
    await_accepted(client, len(runs))
    finish_all(engine, "abcde")
    for run, row in zip(runs, lists, strict=True):
        for given, names in zip(run.result(10), row, strict=True):
            np.testing.assert_array_equal(given, expected(names))
    assert sorted(engine.embedded) == chapters("abcde")


def test_embedded_documents_share_chunks_and_keep_their_own_records(client, engine):
    client.submit(indexed, documents=[document("first", "abc")]).result(10)
    documents = [document("second", "bx"), document("third", "cx")]
    run = client.submit(indexed, documents=documents)
    given = run.result(10)
    assert [chunk["id"] for chunk in given["chunks"]] == [
        *("second#0", "second#1", "third#0", "third#1"),
    ]
    np.testing.assert_array_equal(given["vectors"], expected("bxcx"))
    assert engine.texts == [list(map(chapter, "abc")), [chapter("x")]]
    shared = {n["operator"]: n["shared_items"] for n in run.report()["nodes"]}
    assert shared == {"chunk_documents@1": 0, "embed_many@1": 3}


def test_documents_embedded_in_a_region_share_chunks(client, engine):
    shelves = ["abc", "bcd"]
    given = [[document(names, names)] for names in shelves]
    run = client.submit(each_indexed, shelves=given)
    for found, names in zip(run.result(10), shelves, strict=True):
        np.testing.assert_array_equal(found["vectors"], expected(names))
        assert {chunk["source"] for chunk in found["chunks"]} == {names}
    assert sorted(engine.embedded) == chapters("abcd")


def test_overlapping_ingests_embed_the_union_and_store_all(client, engine, shelf):
    first, second = [document("1", "abc")], [document("2", "xbc"), document("1", "abc")]
    client.submit(ingested, documents=first).result(10)
    told = client.submit(ingested, documents=second).result(10)
    assert (told["documents"], told["chunks"]) == (2, 6)
    assert engine.texts == [list(map(chapter, "abc")), [chapter("x")]]
    stored = shelf.stored[-1]
    assert [chunk["id"] for chunk in stored["chunks"]][:3] == ["2#0", "2#1", "2#2"]
    np.testing.assert_array_equal(stored["vectors"], expected("xbcabc"))


def test_ingests_at_once_from_the_command_embed_the_union(client, engine, shelf):
    engine.held = []
    fixed = {"collection": "docs", "chunk_tokens": WORDS, "overlap": 0}
    batches = [[document("1", "abc")], [document("2", "bcd")], [document("3", "abc")]]
    runs = [client.submit(ingest_spec(), documents=d, **fixed) for d in batches]
    await_accepted(client, len(runs))
    finish_all(engine, "abcd")
    assert [run.result(10)["chunks"] for run in runs] == [3, 3, 3]
    assert sorted(engine.embedded) == chapters("abcd")
    assert len(shelf.stored) == 3


def test_documents_that_are_inputs_share_their_texts(client, engine):
    client.submit(whole, documents=[document("1", "a"), document("2", "b")]).result(10)
    run = client.submit(whole, documents=[document("3", "b"), document("4", "c")])
    np.testing.assert_array_equal(run.result(10), expected("bc"))
    assert engine.embedded == [chapter("a"), chapter("b"), chapter("c")]


def test_chunks_of_equal_texts_are_embedded_once_and_read_one_by_one(client, engine):
    """A region goes by the whole chunk, which names its document, whatever is told of
    the texts besides."""
    documents = [document("1", "ab"), document("2", "b")]
    run = client.submit(embedded_and_read, documents=documents)
    outputs = run.result(10)
    assert engine.embedded == [chapter("a"), chapter("b")]
    assert len(set(outputs["read"])) == 3
    again = client.submit(embedded_and_read, documents=[document("2", "b")])
    assert again.result(10)["read"] == outputs["read"][2:]
    (read,) = [n for n in again.report()["nodes"] if n["operator"] == "generate@1"]
    assert read["reused"]


def test_tenants_share_no_chunks(start_runtime, engine):
    runtime = start_runtime(embedding=engine)
    for tenant in ("ours", "theirs"):
        client = runtime.connect(tenant)
        await_fuser(client)
        client.submit(indexed, documents=[document("1", "ab")]).result(10)
    assert engine.texts == [list(map(chapter, "ab"))] * 2


def finish_all(engine: CuttingEngine, names: str) -> None:
    """End what is held, one after the other, until each chapter was embedded."""
    done: set[str] = set()
    for count in itertools.count(1):
        item: Item = engine.wait_for(count)[count - 1]
        engine.finish(item)
        done.update(item.args["text"])
        if done == set(map(chapter, names)):
            return
