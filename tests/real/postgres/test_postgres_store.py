"""Collections on the real server: writing, searching, revisions, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from herasys_rt.engines.postgres import indexes, statements
from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.engines.postgres.sync import open_store
from herasys_rt.errors import (
    DatabaseUnreachableError,
    InputError,
    OverloadedError,
    RuntimeStateError,
)

pytestmark = pytest.mark.real

DIM = 16


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[CollectionStore]:
    async with CollectionStore(dsn, 4) as opened:
        for facts in await opened.list():
            if facts.name != "large":
                await opened.drop(facts.name)
        yield opened


def vectors_of(count: int, dimensions: int = DIM, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, dimensions)).astype(np.float32)


def chunks_of(count: int, per_document: int = 10) -> list[dict[str, Any]]:
    return [
        {
            "id": f"c{i}",
            "source": f"doc{i // per_document}",
            "text": f"text {i}",
            "metadata": {"group": i % 100},
        }
        for i in range(count)
    ]


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [chunk["id"] for chunk in found]


def nearest(vectors: np.ndarray, query: np.ndarray, k: int) -> list[str]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = np.argsort(-(unit @ query), kind="stable")
    return [f"c{i}" for i in order[:k]]


# -- collections ----------------------------------------------------------------------


async def test_create_is_idempotent(store: CollectionStore) -> None:
    first = await store.create("docs", DIM)
    assert await store.create("docs", DIM) == first
    assert (first.chunks, first.documents, first.distance) == (0, 0, "cosine")


async def test_create_with_other_dimensions_names_both_numbers(
    store: CollectionStore,
) -> None:
    await store.create("docs", 384)
    with pytest.raises(InputError, match=r"384.*768") as error:
        await store.create("docs", 768)
    assert error.value.code == "dimension_mismatch"
    with pytest.raises(InputError, match="l2"):
        await store.create("docs", 384, "l2")


@pytest.mark.parametrize("dimensions", [0, -1, 16_001, True, 1.5])
async def test_impossible_dimensions_are_refused(
    store: CollectionStore, dimensions: Any
) -> None:
    with pytest.raises(InputError):
        await store.create("docs", dimensions)


@pytest.mark.parametrize(
    "name", ["Ünïcode 文档 📚", 'a"b; DROP TABLE x', "with:colon:1", "a%sb", "x" * 1024]
)
async def test_any_text_names_a_collection(store: CollectionStore, name: str) -> None:
    await store.add(name, chunks_of(3), vectors_of(3), make=True)
    found, _ = await store.search(name, vectors_of(3)[1], 1)
    assert ids(found) == ["c1"]
    assert name in [facts.name for facts in await store.list()]
    await store.drop(name)
    assert name not in [facts.name for facts in await store.list()]


@pytest.mark.parametrize("name", ["", " ", "a\x00b", "\ud800", "x" * 1025, None, 7])
async def test_a_text_that_cannot_be_stored_names_nothing(
    store: CollectionStore, name: Any
) -> None:
    with pytest.raises(InputError):
        await store.create(name, DIM)


async def test_an_unknown_collection_is_answered_with_the_known_ones(
    store: CollectionStore,
) -> None:
    await store.create("right", DIM)
    for call in (
        store.search("wrong", vectors_of(1)[0], 1),
        store.show("wrong"),
        store.drop("wrong"),
        store.add("wrong", chunks_of(1), vectors_of(1)),
        store.delete("wrong", source="a"),
    ):
        with pytest.raises(InputError, match="'right'") as error:
            await call
        assert error.value.code == "unknown_collection"


async def test_concurrent_creation_of_one_collection_makes_one(dsn: str) -> None:
    async with CollectionStore(dsn, 8) as one, CollectionStore(dsn, 8) as other:
        made = await asyncio.gather(
            *[s.create("same", DIM) for s in (one, other) for _ in range(8)]
        )
        assert len({(facts.revision, facts.dimensions) for facts in made}) == 1
        await one.drop("same")


async def test_concurrent_set_up_of_one_database_is_safe(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("CREATE DATABASE virgin")
    virgin = make_conninfo(dsn, dbname="virgin")
    stores = [CollectionStore(virgin, 1) for _ in range(6)]
    await asyncio.gather(*[store.open() for store in stores])
    assert await stores[0].list() == []
    await asyncio.gather(*[store.close() for store in stores])


async def test_a_collection_made_anew_is_not_its_namesake(
    store: CollectionStore, dsn: str
) -> None:
    before = await store.add("docs", chunks_of(3), vectors_of(3), make=True)
    async with CollectionStore(dsn, 1) as other:
        assert await other.drop("docs") > before.revision
        await other.create("docs", 8)
    with pytest.raises(InputError, match="dimensions"):  # found the new one
        await store.search("docs", vectors_of(1)[0], 1)
    found, revision = await store.search("docs", vectors_of(1, 8)[0], 1)
    assert found == []
    assert revision > before.revision + 1


# -- writing --------------------------------------------------------------------------


async def test_chunks_come_back_as_they_were(store: CollectionStore) -> None:
    chunk = {
        "id": "a",
        "source": "s",
        "text": "zażółć 😀",
        "metadata": {"title": "T", "year": 2020, "tags": ["x", None, 1.5, True]},
        "at": 7,
        "heading": ["A", "B"],
    }
    await store.add("docs", [chunk], vectors_of(1), make=True)
    found, _ = await store.search("docs", vectors_of(1)[0], 1)
    score = found[0].pop("score")
    assert found == [chunk]
    assert score == pytest.approx(1.0, abs=1e-6)


async def test_equal_ids_are_overwritten_and_counted_once(store: CollectionStore) -> None:
    await store.add("docs", chunks_of(5), vectors_of(5), make=True)
    twice = [{**chunks_of(1)[0], "text": text} for text in ("old", "new")]
    change = await store.add("docs", twice, vectors_of(2, seed=1))
    assert change.chunks == 1
    facts = await store.show("docs")
    assert (facts.chunks, facts.revision) == (5, change.revision)
    found, _ = await store.search("docs", vectors_of(2, seed=1)[1], 1)
    assert found[0]["text"] == "new"


async def test_replace_deletes_what_the_documents_had_before(
    store: CollectionStore,
) -> None:
    await store.add("docs", chunks_of(25), vectors_of(25), make=True)
    change = await store.add("docs", chunks_of(3), vectors_of(3), replace=True)
    assert (change.documents, change.chunks) == (1, 3)
    facts = await store.show("docs")
    assert (facts.chunks, facts.documents) == (3 + 15, 3)


async def test_every_change_moves_the_revision_and_nothing_else_does(
    store: CollectionStore,
) -> None:
    made = (await store.create("docs", DIM)).revision
    added = (await store.add("docs", chunks_of(12), vectors_of(12))).revision
    assert added > made
    assert (await store.add("docs", [], np.zeros((0, DIM)))).revision == added
    assert (await store.delete("docs", ids=["nobody"])).revision == added
    by_id = await store.delete("docs", ids=["c0", "c1", "nobody"])
    assert (by_id.chunks, by_id.revision > added) == (2, True)
    by_source = await store.delete("docs", source="doc1")
    assert (by_source.chunks, by_source.revision > by_id.revision) == (2, True)
    found, seen = await store.search("docs", vectors_of(1)[0], 20)
    assert (len(found), seen) == (8, by_source.revision)
    assert (await store.revisions())["docs"] == seen


async def test_a_change_is_told_with_its_commit(store: CollectionStore, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("LISTEN herasys_collections")
        made = await store.create("a:b", DIM)
        added = await store.add("a:b", chunks_of(1), vectors_of(1))
        with pytest.raises(InputError):
            await store.add("a:b", chunks_of(1), vectors_of(1, 3))
        dropped = await store.drop("a:b")
        told = [note.payload async for note in conn.notifies(timeout=10, stop_after=3)]
    assert told == [f"a:b:{r}" for r in (made.revision, added.revision, dropped)]


async def test_wrong_dimensions_are_refused_whole(store: CollectionStore) -> None:
    before = await store.add("docs", chunks_of(2), vectors_of(2), make=True)
    with pytest.raises(InputError, match=r"16.*8") as error:
        await store.add("docs", chunks_of(50), vectors_of(50, 8))
    assert error.value.code == "dimension_mismatch"
    facts = await store.show("docs")
    assert (facts.chunks, facts.revision) == (2, before.revision)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
async def test_a_vector_that_is_no_number_is_refused_by_name(
    store: CollectionStore, bad: float
) -> None:
    vectors = vectors_of(5)
    vectors[3, 2] = bad
    with pytest.raises(InputError, match=r"chunk 3 \('c3'\)") as error:
        await store.add("docs", chunks_of(5), vectors, make=True)
    assert error.value.code == "invalid_vector"
    assert "docs" not in await store.revisions()  # nor was the collection made
    await store.add("docs", chunks_of(2), vectors_of(2), make=True)
    with pytest.raises(InputError, match="query vector"):
        await store.search("docs", vectors[3], 1)


async def test_nul_bytes_and_lone_surrogates_are_mended(store: CollectionStore) -> None:
    chunks = chunks_of(3)
    chunks[1] = {
        "id": "i\x00d",
        "source": "so\ud83durce",
        "text": "nul\x00 half\ud83d whole\U0001f600",
        "metadata": {"k\x00ey": ["v\x00", "\udc00"], "nan": float("nan")},
    }
    await store.add("docs", chunks, vectors_of(3), make=True)
    found, _ = await store.search("docs", vectors_of(3)[1], 1)
    assert found[0]["id"] == "id"
    assert found[0]["source"] == "so\ufffdurce"
    assert found[0]["text"] == "nul half\ufffd whole\U0001f600"
    assert found[0]["metadata"] == {"key": ["v", "\ufffd"], "nan": None}
    json.dumps(found[0], ensure_ascii=False).encode()
    assert (await store.delete("docs", source="so\ud83durce")).chunks == 1


async def test_concurrent_writers_lose_no_chunk_and_no_count(dsn: str) -> None:
    async with CollectionStore(dsn, 6) as store:
        await store.create("busy", DIM)
        everything = chunks_of(600)
        vectors = vectors_of(600)
        await asyncio.gather(
            *[
                store.add("busy", everything[at : at + 60], vectors[at : at + 60])
                for at in range(0, 540, 30)  # overlapping on purpose
            ]
        )
        facts = await store.show("busy")
        found, _ = await store.search("busy", vectors[0], 1000)
        assert facts.chunks == len(found) == 570
        await store.drop("busy")


async def test_dropping_while_others_use_it_ends_in_unknown_collection(
    store: CollectionStore,
) -> None:
    await store.add("docs", chunks_of(50), vectors_of(50), make=True)
    results = await asyncio.gather(
        *[store.search("docs", vectors_of(1)[0], 5) for _ in range(20)],
        store.drop("docs"),
        *[store.add("docs", chunks_of(5), vectors_of(5)) for _ in range(5)],
        *[store.search("docs", vectors_of(1)[0], 5) for _ in range(20)],
        return_exceptions=True,
    )
    faults = [result for result in results if isinstance(result, BaseException)]
    assert {getattr(fault, "code", fault) for fault in faults} <= {"unknown_collection"}


# -- searching ------------------------------------------------------------------------


async def test_the_nearest_come_first(store: CollectionStore) -> None:
    vectors = vectors_of(300)
    await store.add("docs", chunks_of(300), vectors, make=True)
    query = vectors_of(1, seed=9)[0]
    found, _ = await store.search("docs", query, 12)
    assert ids(found) == nearest(vectors, query, 12)
    scores = [chunk["score"] for chunk in found]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("distance", ["cosine", "inner_product", "l2"])
@pytest.mark.parametrize("own", [True, False])
async def test_scores_of_each_distance_are_larger_when_better(
    store: CollectionStore, distance: str, own: bool
) -> None:
    vectors = vectors_of(50)
    await store.create("docs", DIM, distance if own else "cosine")
    await store.add("docs", chunks_of(50), vectors)
    query = vectors_of(1, seed=3)[0]
    found, _ = await store.search("docs", query, 1, distance)
    expected = {
        "cosine": vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query),
        "inner_product": vectors @ query,
        "l2": -np.linalg.norm(vectors - query, axis=1),
    }[distance]
    assert found[0]["id"] == f"c{int(np.argmax(expected))}"
    assert found[0]["score"] == pytest.approx(float(expected.max()), rel=1e-5)


async def test_an_empty_collection_gives_no_chunks(store: CollectionStore) -> None:
    made = await store.create("docs", DIM)
    assert await store.search("docs", vectors_of(1)[0], 5) == ([], made.revision)


async def test_top_k_beyond_the_collection_gives_all_of_it(store: CollectionStore) -> None:
    await store.add("docs", chunks_of(7), vectors_of(7), make=True)
    found, _ = await store.search("docs", vectors_of(1)[0], 1_000_000)
    assert len(found) == 7


@pytest.mark.parametrize("top_k", [0, -1, True, 1.0, "3", None])
async def test_a_senseless_top_k_is_refused(store: CollectionStore, top_k: Any) -> None:
    await store.create("docs", DIM)
    with pytest.raises(InputError, match="top_k"):
        await store.search("docs", vectors_of(1)[0], top_k)


async def test_query_vectors_are_checked(store: CollectionStore) -> None:
    await store.add("docs", chunks_of(3), vectors_of(3), make=True)
    for bad, code in (
        (vectors_of(1, 8)[0], "dimension_mismatch"),
        (vectors_of(2), "invalid_vector"),
        (np.zeros(DIM), "invalid_vector"),
        (["x"] * DIM, "invalid_vector"),
        (None, "invalid_vector"),
    ):
        with pytest.raises(InputError) as error:
            await store.search("docs", bad, 1)
        assert error.value.code == code


async def test_filters_match_sources_and_metadata(store: CollectionStore) -> None:
    await store.add("docs", chunks_of(40), vectors_of(40), make=True)
    query = vectors_of(1)[0]

    async def matching(filter: dict[str, Any]) -> set[str]:
        return set(ids((await store.search("docs", query, 100, filter=filter))[0]))

    assert await matching({"source": "doc2"}) == {f"c{i}" for i in range(20, 30)}
    assert await matching({"source": ["doc0", "doc3"], "group": 3}) == {"c3"}
    assert await matching({"group": 35}) == {"c35"}
    assert await matching({"nowhere": 1}) == set()
    with pytest.raises(InputError):
        await matching({"source": 7})


@pytest.fixture(scope="module")
def large(dsn: str) -> tuple[str, np.ndarray]:
    """An indexed collection of clustered vectors, as embeddings are."""
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(40, 64))
    vectors = centres[rng.integers(0, 40, 4000)] + 0.4 * rng.normal(size=(4000, 64))
    vectors = vectors.astype(np.float32)
    with open_store(dsn) as store:
        store.create("large", 64)
        store.add("large", chunks_of(4000), vectors)
    return "large", vectors


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[CollectionStore]:
    async with CollectionStore(dsn, 4) as opened:
        yield opened


async def explain(dsn: str, store: CollectionStore, vector: np.ndarray, k: int) -> str:
    facts = await store.show("large")
    assert facts.chunks >= indexes.INDEX_FROM_CHUNKS
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        cursor = await conn.execute(
            "SELECT id FROM herasys.collections WHERE name = 'large'"
        )
        row = await cursor.fetchone()
        assert row is not None
        conditions, _ = statements.where(None)
        query = statements.search(row[0], "cosine", k, conditions, exact=False)
        text = query.as_string(conn).replace("%(vector)b", f"'{vector.tolist()}'")
        plan = await (await conn.execute(f"EXPLAIN {text}".encode())).fetchall()
    return "\n".join(line[0] for line in plan)


async def test_a_large_collection_is_searched_by_its_index(
    other: CollectionStore, dsn: str, large: tuple[str, np.ndarray]
) -> None:
    name, vectors = large
    assert "_hnsw" in await explain(dsn, other, vectors[0], 10)
    hits = 0
    for at in range(0, 500, 10):
        query = vectors[at] + 0.01
        found, _ = await other.search(name, query, 10)
        hits += len(set(ids(found)) & set(nearest(vectors, query, 10)))
        scores = [chunk["score"] for chunk in found]
        assert scores == sorted(scores, reverse=True)
    assert hits >= 0.95 * 500


async def test_a_selective_filter_still_gives_k_chunks(
    other: CollectionStore, large: tuple[str, np.ndarray]
) -> None:
    name, vectors = large
    for at in range(5):
        query = vectors[at]
        found, _ = await other.search(name, query, 12, filter={"group": 7})  # 1 % match
        assert len(found) == 12
        assert all(chunk["metadata"]["group"] == 7 for chunk in found)
        found, _ = await other.search(name, query, 100, filter={"group": 7})
        assert len(found) == 40  # all there are


# -- the pool -------------------------------------------------------------------------


async def test_fifty_searches_share_a_small_pool(
    dsn: str, large: tuple[str, np.ndarray]
) -> None:
    name, vectors = large
    async with CollectionStore(make_conninfo(dsn, application_name="fifty"), 4) as store:
        results = await asyncio.gather(
            *[store.search(name, vectors[i], 5) for i in range(50)]
        )
        assert [ids(found)[0] for found, _ in results] == [f"c{i}" for i in range(50)]
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            cursor = await conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fifty'"
            )
            row = await cursor.fetchone()
    assert row is not None
    assert 1 <= row[0] <= 5  # the pool's, and at most the end of the one for set-up


async def test_nobody_waits_forever_for_a_connection(dsn: str) -> None:
    async with CollectionStore(dsn, 1, acquire_timeout_s=0.2) as store:
        await store.create("waits", DIM)
        held = asyncio.Event()
        release = asyncio.Event()

        async def hold(conn: Any) -> None:
            held.set()
            await release.wait()

        holder = asyncio.create_task(store._connections.do(hold))
        await held.wait()
        with pytest.raises(OverloadedError) as error:
            await store.search("waits", vectors_of(1)[0], 1)
        assert error.value.code == "database_busy"
        release.set()
        await holder
        assert (await store.search("waits", vectors_of(1)[0], 1))[0] == []
        await store.drop("waits")


async def test_cancelling_a_call_cancels_its_statement(dsn: str) -> None:
    marker = "SELECT pg_sleep(600) -- marker of this test"
    async with CollectionStore(dsn, 1) as store:
        sleeper = asyncio.create_task(
            store._connections.do(lambda conn: conn.execute(marker))
        )
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:

            async def active() -> bool:
                cursor = await conn.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE query = %s"
                    " AND state = 'active'",
                    (marker,),
                )
                row = await cursor.fetchone()
                return row is not None and row[0] > 0

            async with asyncio.timeout(20):
                while not await active():
                    pass
                sleeper.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sleeper
                while await active():
                    pass
        assert isinstance(await store.list(), list)  # its only connection still serves


async def test_a_store_that_is_not_open_says_so(dsn: str) -> None:
    store = CollectionStore(dsn)
    with pytest.raises(RuntimeStateError):
        await store.list()
    await store.close()


async def test_an_unreachable_server_is_a_typed_error_without_the_password() -> None:
    store = CollectionStore("postgresql://me:s3cret@127.0.0.1:1/db")
    with pytest.raises(DatabaseUnreachableError) as error:
        await store.open()
    assert "s3cret" not in f"{error.value} {error.value.info()}"


def test_the_blocking_twin_does_the_same(dsn: str) -> None:
    with open_store(dsn) as store:
        store.create("sync", DIM)
        store.add("sync", chunks_of(20), vectors_of(20))
        assert ids(store.search("sync", vectors_of(2)[1], 1)[0]) == ["c1"]
        assert store.delete("sync", source="doc1").chunks == 10
        assert store.show("sync").chunks == 10
        assert "sync" in [facts.name for facts in store.list()]
        store.drop("sync")
        with pytest.raises(InputError):
            store.show("sync")


async def test_the_blocking_twin_works_inside_a_running_loop(dsn: str) -> None:
    with open_store(dsn) as store:
        assert isinstance(store.list(), list)
