"""Ways to search by vector: distances, storages, with and without an index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import psycopg
import pytest

from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.engines.postgres.sync import open_store
from herasys_rt.errors import InputError

pytestmark = pytest.mark.real

DIM = 32
COUNT = 2500
WAYS = [
    (distance, storage)
    for distance in ("cosine", "inner_product", "l2")
    for storage in ("vector", "halfvec")
]


def vectors_of(count: int, seed: int = 0) -> np.ndarray:
    """Clustered, as embeddings are."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(25, DIM))
    vectors = centres[draw.integers(0, 25, count)] + 0.4 * draw.normal(size=(count, DIM))
    return vectors.astype(np.float32)


def chunks_of(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"c{i}",
            "source": f"d{i // 10}",
            "text": f"text {i}",
            "metadata": {"group": i % 100},
        }
        for i in range(count)
    ]


VECTORS = vectors_of(COUNT)


def scores(query: np.ndarray, distance: str, vectors: np.ndarray = VECTORS) -> np.ndarray:
    if distance == "l2":
        return -np.linalg.norm(vectors - query, axis=1)
    product = vectors @ query
    if distance == "inner_product":
        return product
    return product / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [int(chunk["id"][1:]) for chunk in found]


@pytest.fixture(scope="module")
def made(dsn: str) -> str:
    """A collection for each distance and storage, indexed."""
    with open_store(dsn, 4) as store:
        for distance, storage in WAYS:
            name = f"{distance}-{storage}"
            store.create(name, DIM, distance, storage=storage)
            store.add(name, chunks_of(COUNT), VECTORS)
    return dsn


@pytest.fixture
async def store(made: str) -> AsyncIterator[CollectionStore]:
    async with CollectionStore(made, 4) as opened:
        for facts in await opened.list():
            if (facts.distance, facts.storage) not in WAYS or "-" not in facts.name:
                await opened.drop(facts.name)
        yield opened


async def index_is_used(dsn: str, **search: Any) -> bool:
    """Whether a search scans an HNSW index, as the server counts it."""
    scans = (
        "SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_user_indexes"
        " WHERE indexrelname LIKE '%_hnsw'"
    )

    async def counted(conn: Any) -> int:
        return (await (await conn.execute(scans)).fetchone())[0]

    async with CollectionStore(dsn, 1) as one:  # its only connection counts for itself
        await one.search(**search)
        flush = "SELECT pg_stat_force_next_flush()"
        await one._connections.do(lambda conn: conn.execute(flush))
        before = await one._connections.do(counted)
        await one.search(**search)
        await one._connections.do(lambda conn: conn.execute(flush))
        return await one._connections.do(counted) > before


@pytest.mark.parametrize(("distance", "storage"), WAYS)
async def test_an_exact_search_is_exact(
    store: CollectionStore, distance: str, storage: str
) -> None:
    for at in range(5):
        query = vectors_of(5, seed=9)[at]
        found, _ = await store.search(f"{distance}-{storage}", query, 20, index="exact")
        kept = VECTORS.astype(np.float16).astype(np.float32)
        asked = query.astype(np.float16).astype(np.float32)
        wanted = (
            scores(query, distance)
            if storage == "vector"
            else scores(asked, distance, kept)
        )
        best = np.sort(wanted)[::-1][:20]
        assert [c["score"] for c in found] == pytest.approx(best, rel=2e-3, abs=2e-3)
        if storage == "vector":
            assert numbers(found) == np.argsort(-wanted, kind="stable")[:20].tolist()


@pytest.mark.parametrize(("distance", "storage"), WAYS)
async def test_a_search_by_index_finds_nearly_the_same(
    store: CollectionStore, distance: str, storage: str
) -> None:
    name, hits = f"{distance}-{storage}", 0
    for query in vectors_of(20, seed=3):
        exact, _ = await store.search(name, query, 10, index="exact")
        near, _ = await store.search(name, query, 10, index="hnsw", ef_search=200)
        hits += len(set(numbers(exact)) & set(numbers(near)))
        assert [c["score"] for c in near] == sorted(
            (c["score"] for c in near), reverse=True
        )
    assert hits >= 0.97 * 200


@pytest.mark.parametrize("index", ["auto", "hnsw", "exact"])
@pytest.mark.parametrize(("distance", "storage"), WAYS)
async def test_a_selective_filter_gives_k_chunks_while_k_exist(
    store: CollectionStore, distance: str, storage: str, index: str
) -> None:
    name = f"{distance}-{storage}"
    for at in range(3):
        for top_k, there in ((12, 12), (25, 25), (100, 25)):  # 25 of 2,500 match
            found, _ = await store.search(
                name, VECTORS[at], top_k, filter={"group": 7}, index=index, ef_search=10
            )
            assert len(found) == there
            assert {c["metadata"]["group"] for c in found} == {7}
    found, _ = await store.search(name, VECTORS[0], 10_000, index=index)
    assert len(found) == COUNT


async def test_each_way_uses_the_index_or_not_as_it_says(made: str) -> None:
    search: dict[str, Any] = {"name": "l2-halfvec", "vector": VECTORS[0], "top_k": 5}
    assert await index_is_used(made, **search, index="hnsw")
    assert not await index_is_used(made, **search, index="exact")
    assert not await index_is_used(made, **search, distance="cosine")


async def test_an_index_that_is_insisted_on_is_built_however_small(
    store: CollectionStore, made: str
) -> None:
    await store.create("small", DIM, m=4, ef_construction=16)
    assert (await store.search("small", VECTORS[0], 3, index="hnsw"))[0] == []
    await store.add("small", chunks_of(50), VECTORS[:50])
    results = await asyncio.gather(
        *[store.search("small", VECTORS[i], 1, index="hnsw") for i in range(10)]
    )
    assert [numbers(found)[0] for found, _ in results] == list(range(10))
    search: dict[str, Any] = {"name": "small", "vector": VECTORS[0], "top_k": 5}
    assert await index_is_used(made, **search, index="hnsw")
    async with await psycopg.AsyncConnection.connect(made) as conn:
        cursor = await conn.execute(
            "SELECT indexdef FROM pg_indexes WHERE indexdef LIKE '%ef_construction=''16''%'"
        )
        row = await cursor.fetchone()
    assert row is not None and "m='4'" in row[0]


async def test_an_index_that_cannot_be_is_refused_by_name(store: CollectionStore) -> None:
    with pytest.raises(InputError, match="own distance") as error:
        await store.search("l2-vector", VECTORS[0], 1, "cosine", index="hnsw")
    assert error.value.code == "no_index"
    await store.create("wide", 2001)
    with pytest.raises(InputError, match="2000 dimensions"):
        await store.search("wide", np.ones(2001), 1, index="hnsw")
    await store.create("half", 2001, storage="halfvec")
    assert (await store.search("half", np.ones(2001), 1, index="hnsw"))[0] == []
    with pytest.raises(InputError) as error:
        await store.search("nowhere", np.ones(3), 1, index="hnsw")
    assert error.value.code == "unknown_collection"


async def test_settings_of_a_search_end_with_it(store: CollectionStore, made: str) -> None:
    async with CollectionStore(made, 1) as one:

        async def settings() -> list[Any]:
            async def read(conn: Any) -> list[Any]:
                names = ("enable_seqscan", "enable_sort", "hnsw.ef_search")
                return [await (await conn.execute(f"SHOW {n}")).fetchone() for n in names]

            return await one._connections.do(read)

        before = await settings()
        await one.search("l2-vector", VECTORS[0], 3, index="hnsw", ef_search=7)
        assert await settings() == before


@pytest.mark.parametrize("bad", [1e6, -65_505.0, np.nan, np.inf])
async def test_what_half_precision_cannot_hold_is_refused_by_name(
    store: CollectionStore, bad: float
) -> None:
    vectors = VECTORS[:3].copy()
    vectors[1, 4] = bad
    with pytest.raises(InputError, match=r"chunk 1 \('c1'\)") as error:
        await store.add("fresh", chunks_of(3), vectors, make=True, storage="halfvec")
    assert error.value.code == "invalid_vector"
    assert "fresh" not in await store.revisions()
    with pytest.raises(InputError, match="query vector"):
        await store.search("l2-halfvec", vectors[1], 1)


async def test_a_write_may_not_contradict_what_a_collection_is(
    store: CollectionStore,
) -> None:
    await store.add("docs", chunks_of(3), VECTORS[:3], make=True, storage="halfvec")
    same: dict[str, Any] = {"storage": "halfvec", "distance": "cosine", "m": None}
    await store.add("docs", chunks_of(3), VECTORS[:3], make=True, **same)
    wrongs: list[dict[str, Any]] = [{"storage": "vector"}, {"distance": "l2"}, {"m": 4}]
    for wrong in wrongs:
        with pytest.raises(InputError) as error:
            await store.add("docs", chunks_of(3), VECTORS[:3], make=True, **wrong)
        assert error.value.code == f"{next(iter(wrong))}_mismatch"
    assert (await store.show("docs")).storage == "halfvec"
