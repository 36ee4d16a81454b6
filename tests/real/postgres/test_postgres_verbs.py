"""The verbs besides pg.search and pg.write through the engine, on the real server."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.postgres import engine as pgvector
from herasys_rt.engines.postgres.server import EmbeddedPostgres
from herasys_rt.engines.postgres.sync import open_store
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.graph.codec import decode, encode
from tests.outcome_sink import OutcomeSink

pytestmark = pytest.mark.real

DIM = 8
SEARCHES = ("pg.search", "pg.text", "pg.hybrid")


class Changes(OutcomeSink):
    """An outcome sink that also waits for changes of collections."""

    def __init__(self) -> None:
        super().__init__()
        self.revision = 0
        self._told = threading.Condition()

    def collection_changed(self, collection: str, revision: int) -> None:
        with self._told:
            if collection == "docs":
                self.revision = revision
            self._told.notify_all()

    def wait_for(self, revision: int) -> None:
        with self._told:
            assert self._told.wait_for(lambda: self.revision >= revision, 30)


class Database:
    """An engine and a short way to ask it."""

    def __init__(self, dsn: str) -> None:
        self.sink = Changes()
        options = {"pool_size": 3}
        pool = PoolConfig(
            name="db", resource="retrieval", engine="pgvector", options=options
        )
        self.engine: Engine = pgvector.create(pool, dsn)
        self.engine.start(self.sink)
        self._asked = 0

    def begin(self, verb: str, **args: Any) -> str:
        self._asked += 1
        key = f"item-{self._asked}"
        given = decode(encode({"collection": "docs", **args}))
        self.engine.submit([Item(key, verb, given)])
        return key

    def ask(self, verb: str, **args: Any) -> Outcome:
        return self.sink.outcome(self.begin(verb, **args))

    def search(self, verb: str, text: str = "heap", at: int = 0, **more: Any) -> Outcome:
        vector = {"vector": vectors_of(6)[at]} if verb != "pg.text" else {}
        query = {"query": text} if verb != "pg.search" else {}
        return self.ask(verb, **{**vector, **query, "top_k": 3, **more})


def vectors_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def embedded(texts: list[str]) -> dict[str, Any]:
    chunks = [
        {"id": f"c{i}", "source": f"d{i // 2}", "text": text, "metadata": {"n": i}}
        for i, text in enumerate(texts)
    ]
    return {"chunks": chunks, "vectors": vectors_of(len(texts))}


TEXTS = ["a red heap", "a heap of heaps", "a tree", "sorting", "the heap sort", "none"]


@pytest.fixture
def db(dsn: str) -> Iterator[Database]:
    with open_store(dsn) as store:
        for facts in store.list():
            store.drop(facts.name)
    made = Database(dsn)
    assert made.ask("pg.write", embedded=embedded(TEXTS)).error is None
    yield made
    made.engine.close()
    assert made.sink.each_ended_once()


def code(outcome: Outcome) -> str:
    assert outcome.error is not None
    assert outcome.error.message and outcome.error.hint
    return outcome.error.code


def test_each_search_tells_its_chunks_sources_and_revision(db: Database):
    for verb in SEARCHES:
        outcome = db.search(verb)
        assert outcome.error is None
        assert outcome.value[0]["id"] in ("c0", "c1")
        assert list(outcome.revisions) == ["docs"]
        assert outcome.sources == [
            {k: c[k] for k in ("id", "source", "score", "text")} for c in outcome.value
        ]
        assert outcome.usage == {"items": 1, "chunks": len(outcome.value)}
        assert decode(encode(outcome.value)) == outcome.value
        none_given: dict[str, Any] = {
            "distance": None,
            "index": None,
            "ef_search": None,
            "filter": None,
        }
        none_given |= dict.fromkeys(("language", "k1", "b", "candidates"))
        assert db.search(verb, **none_given).value == outcome.value


def test_text_and_hybrid_take_what_they_promise(db: Database):
    found = db.search("pg.text", "heaps", filter={"n": 4}, k1=1, b=0, language="english")
    assert [c["id"] for c in found.value] == ["c4"]
    both = db.search(
        "pg.hybrid",
        "tree",
        vector_weight=0.0,
        text_weight=2,
        rrf_k=0,
        candidates=2,
        index="hnsw",
        ef_search=10,
    )
    assert (both.value[0]["id"], both.value[0]["score"]) == ("c2", 2.0)
    assert both.value[0]["text_rank"] == 1


def test_after_a_change_no_search_gives_what_was_before(db: Database):
    """Every change moves the revision that results are keyed by, and is told."""
    seen = db.search("pg.text").revisions["docs"]
    changes = [
        ("pg.write", {"embedded": embedded(["only one heap"])}),
        ("pg.delete", {"ids": ["c0", "nobody"]}),
        ("pg.delete", {"source": "d2"}),
        ("pg.write", {"embedded": embedded(["again"]), "replace": True}),
    ]
    for verb, args in changes:
        changed = db.ask(verb, **args)
        assert changed.error is None
        revision = changed.value["revision"]
        assert changed.revisions == {"docs": revision}
        assert revision > seen
        db.sink.wait_for(revision)
        for search in SEARCHES:
            assert db.search(search).revisions == {"docs": revision}
        seen = revision
    assert db.search("pg.text", "heap").value == []
    for nothing in ({"ids": []}, {"ids": ["nobody"]}, {"source": "nobody"}):
        kept = db.ask("pg.delete", **nothing)
        assert (kept.value["chunks"], kept.value["revision"]) == (0, seen)


def test_a_delete_says_what_it_did(db: Database):
    gone = db.ask("pg.delete", source="d0").value
    assert (gone["collection"], gone["documents"], gone["chunks"]) == ("docs", 1, 2)
    assert db.search("pg.text", "red").value == []
    gone = db.ask("pg.delete", ids=["c2", "c2", "c3"]).value
    assert gone["chunks"] == 2
    assert {c["id"] for c in db.search("pg.search").value} == {"c4", "c5"}


def test_each_bad_item_is_its_own_outcome(db: Database):
    nan = np.full(DIM, np.nan, np.float32)
    for verb in SEARCHES:
        assert code(db.search(verb, collection="nowhere")) == "unknown_collection"
        assert code(db.search(verb, top_k=0)) == "invalid_input"
        assert code(db.search(verb, filter=["x"])) == "invalid_input"
        assert code(db.search(verb, collection=" ")) == "invalid_input"
    for verb in ("pg.search", "pg.hybrid"):
        wide = np.ones(DIM + 1, np.float32)
        assert code(db.search(verb, vector=wide)) == "dimension_mismatch"
        assert code(db.search(verb, vector=nan)) == "invalid_vector"
        assert code(db.search(verb, vector=np.zeros(DIM))) == "invalid_vector"
        assert code(db.search(verb, distance="far")) == "invalid_input"
        assert code(db.search(verb, index="ivf")) == "invalid_input"
        assert code(db.search(verb, distance="l2", index="hnsw")) == "no_index"
    for verb in ("pg.text", "pg.hybrid"):
        assert code(db.search(verb, query=7)) == "invalid_input"
        assert code(db.search(verb, b=2.0)) == "invalid_input"
        assert code(db.search(verb, language="german")) == "language_mismatch"
    assert code(db.ask("pg.delete")) == "invalid_input"
    assert code(db.ask("pg.delete", ids=["a"], source="b")) == "invalid_input"
    assert code(db.ask("pg.delete", ids="abc")) == "invalid_input"
    assert code(db.ask("pg.delete", ids=[], collection="nowhere")) == "unknown_collection"
    write = {"embedded": embedded(["x"])}
    assert code(db.ask("pg.write", **write, storage="bit")) == "invalid_input"
    assert code(db.ask("pg.write", **write, distance="l2")) == "distance_mismatch"
    assert (
        code(db.ask("pg.write", **write, collection="n", language="x"))
        == "unknown_language"
    )
    for verb in SEARCHES:
        assert db.search(verb).error is None


def test_a_bad_row_writes_nothing_and_the_next_write_works(db: Database):
    for place in ("vectors", "chunks"):
        bad = embedded(["fresh one", "fresh two"])
        if place == "vectors":
            bad["vectors"][1, 0] = np.inf
        else:
            bad["chunks"][1]["text"] = None
        assert code(db.ask("pg.write", embedded=bad)) in ("invalid_vector", "invalid_chunk")
        assert db.search("pg.text", "fresh").value == []
    assert db.ask("pg.write", embedded=embedded(["fresh one"])).error is None
    assert len(db.search("pg.text", "fresh").value) == 1


@pytest.mark.parametrize("verb", SEARCHES)
def test_nul_bytes_and_lone_surrogates_are_no_fault(db: Database, verb: str):
    odd = {"id": "c\x00\ud800", "source": "s\x00", "text": "odd\x00 heap\ud83d"}
    db.engine.submit(
        [
            Item(
                "odd",
                "pg.write",
                {
                    "collection": "docs",
                    "embedded": {"chunks": [odd], "vectors": vectors_of(1, 5)},
                },
            ),
        ]
    )
    assert db.sink.outcome("odd").error is None
    args = {"collection": "docs", "top_k": 99, "filter": {"source": "s\x00"}}
    args |= {"vector": vectors_of(1)[0], "query": "o\x00dd \ud800heap"}
    db.engine.submit([Item("find", verb, args)])
    (found,) = db.sink.outcome("find").value
    assert (found["id"], found["text"]) == ("c\ufffd", "odd heap\ufffd")
    db.engine.submit(
        [Item("gone", "pg.delete", {"collection": "docs", "ids": ["c\x00\ud800"]})]
    )
    assert db.sink.outcome("gone").value["chunks"] == 1


@pytest.mark.parametrize("verb", SEARCHES)
def test_empty_collections_and_large_top_k_have_their_answers(db: Database, verb: str):
    assert len(db.search(verb, "heap red tree sort", top_k=1_000_000).value) >= 5
    assert db.search(verb, filter={"n": 77}).value == []
    for i in range(len(TEXTS)):
        assert db.ask("pg.delete", ids=[f"c{i}"]).error is None
    assert db.search(verb).value == []


def test_fifty_searches_at_once_of_each_kind_share_three_connections(db: Database):
    keys = [
        db.begin(verb, vector=vectors_of(6)[i % 6], query=TEXTS[i % 6], top_k=2)
        for i in range(50)
        for verb in SEARCHES
    ]
    for key in keys:
        assert db.sink.outcome(key).error is None


def test_searches_and_deletes_outlast_a_restart_of_the_server(
    db: Database, server: EmbeddedPostgres
):
    pid = server.pid
    assert pid is not None
    keys = [db.begin("pg.text", query="heap", top_k=3) for _ in range(10)]
    os.kill(pid, signal.SIGKILL)
    keys += [db.begin("pg.text", query="heap", top_k=3) for _ in range(10)]
    both = db.begin("pg.hybrid", query="heap", vector=vectors_of(1)[0], top_k=3)
    for key in (*keys, both):
        outcome = db.sink.outcome(key)
        assert outcome.error is None and len(outcome.value) == 3
    assert db.ask("pg.delete", source="d0").value["chunks"] == 2
    assert len(db.search("pg.text").value) == 1
