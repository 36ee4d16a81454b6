"""The search engine's local provider over a real database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from herasys_rt.config import PoolConfig
from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.engines.protocol import Item, Outcome
from herasys_rt.engines.search.engine import create
from herasys_rt.graph.types import PortType, value_fault
from tests.outcome_sink import OutcomeSink

pytestmark = pytest.mark.real


class Bench:
    """An engine over the database, its sink, and a count of items."""

    def __init__(self, dsn: str) -> None:
        pool = PoolConfig(name="search", resource="search", engine="web_search")
        self.engine = create(pool, dsn)
        self.sink = OutcomeSink()
        self.count = 0
        self.engine.start(self.sink)

    def search(self, query: str, collection: str = "web", top_k: int = 5) -> Outcome:
        self.count += 1
        key = f"{self.count}.1"
        args = {"query": query, "collection": collection, "top_k": top_k}
        self.engine.submit([Item(key, "http.search", args)])
        return self.sink.outcome(key)


@pytest.fixture
def bench(dsn: str) -> Iterator[Bench]:
    bench = Bench(dsn)
    yield bench
    bench.engine.close()
    assert bench.sink.each_ended_once()


def chunk(id: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "source": id.partition("#")[0], "text": text, **more}


async def fill(dsn: str, name: str, chunks: list[dict[str, Any]]) -> int:
    vectors = np.ones((len(chunks), 3), dtype=np.float32)
    async with CollectionStore(dsn, 1) as store:
        return (await store.add(name, chunks, vectors, make=True)).revision


async def test_a_page_is_a_document_with_its_best_chunk(dsn, bench):
    revision = await fill(
        dsn,
        "web",
        [
            chunk("a#0", "Tides follow the moon.", metadata={"title": "Tides"}),
            chunk("a#1", "The moon pulls the tides, the moon pulls the sea."),
            chunk(
                "b#0",
                "Moon\nA stone that goes round.",
                metadata={"url": "https://b.example/moon"},
            ),
            chunk("c#0", "Bread rises because of yeast."),
        ],
    )
    outcome = bench.search("What does the moon pull?")
    pages = outcome.value
    assert [page["url"] for page in pages] == ["a", "https://b.example/moon"]
    assert pages[0]["snippet"] == pages[0]["text"]
    assert "pulls the sea" in pages[0]["snippet"]
    assert pages[1]["title"] == "Moon"
    assert pages[0]["score"] > pages[1]["score"]
    assert value_fault(pages, PortType.CHUNKS) is None
    assert outcome.revisions == {"web": revision}
    assert outcome.usage == {"items": 1, "results": 2, "requests": 0}
    assert [source["id"] for source in outcome.sources] == ["a", "https://b.example/moon"]


async def test_pages_of_many_chunks_leave_room_for_the_others(dsn, bench):
    chunks = [chunk(f"long#{i}", "moon " * 5 + str(i)) for i in range(60)]
    chunks += [chunk(f"other{i}#0", f"one moon among words {i}") for i in range(3)]
    await fill(dsn, "long", chunks)
    found = bench.search("moon", "long", top_k=4).value
    assert [page["url"] for page in found] == ["long", "other0", "other1", "other2"]


async def test_a_title_comes_from_the_metadata_first(dsn, bench):
    await fill(dsn, "titles", [chunk("t#0", "yeast", metadata={"title": " Bread "})])
    assert bench.search("yeast", "titles").value[0]["title"] == "Bread"


@pytest.mark.parametrize("query", ["the of and", "!!! &|()", "nowhere", "'; DROP TABLE x"])
async def test_what_matches_nothing_finds_nothing(dsn, bench, query):
    await fill(dsn, "few", [chunk("a#0", "Tides follow the moon.")])
    assert bench.search(query, "few").value == []


async def test_changes_are_seen_at_once_and_move_the_revision(dsn, bench):
    await fill(dsn, "moving", [chunk("a#0", "zip")])
    first = bench.search("zip", "moving")
    await fill(dsn, "moving", [chunk("b#0", "zip, too")])
    second = bench.search("zip", "moving")
    assert len(first.value) == 1
    assert len(second.value) == 2
    assert second.revisions["moving"] > first.revisions["moving"]


def test_an_unknown_collection_says_how_to_make_one(bench):
    error = bench.search("zip", "nowhere").error
    assert error is not None
    assert error.code == "unknown_collection"
    assert "herasys ingest" in error.hint


def test_a_database_that_is_not_there_is_each_items_outcome():
    bench = Bench("postgresql://u:s3cret@127.0.0.1:1/x")
    try:
        error = bench.search("zip").error
        assert error is not None
        assert error.code == "database_unreachable"
        assert "s3cret" not in str(error)
    finally:
        bench.engine.close()


def test_another_database_is_told_apart_and_the_same_one_known_again(dsn, bench):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE DATABASE elsewhere")
    there = make_conninfo(**{**conninfo_to_dict(dsn), "dbname": "elsewhere"})
    told: list[str] = []
    for where in (dsn, there, there):
        other = Bench(where)
        told.append(other.engine.describe()["fingerprint"])
        other.engine.close()
    assert told[0] == bench.engine.describe()["fingerprint"]
    assert told[1] == told[2] != told[0]
