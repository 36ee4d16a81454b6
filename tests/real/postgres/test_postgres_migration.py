"""A database made by the foundation, opened by what came later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from herasys_rt.engines.postgres import words
from herasys_rt.engines.postgres.store import CollectionStore

pytestmark = pytest.mark.real

# The schema as the foundation made it, with two collections.
FOUNDATION = """
    CREATE EXTENSION vector;
    CREATE SCHEMA herasys;
    CREATE SEQUENCE herasys.revisions;
    CREATE TABLE herasys.collections (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE,
        dimensions integer NOT NULL,
        distance text NOT NULL,
        chunks bigint NOT NULL DEFAULT 0,
        revision bigint NOT NULL DEFAULT nextval('herasys.revisions')
    );
    INSERT INTO herasys.collections (name, dimensions, distance, chunks)
    VALUES ('docs', 3, 'l2', 1200), ('empty', 3, 'cosine', 0);
    CREATE TABLE herasys.c_1 (
        id text PRIMARY KEY, source text NOT NULL, text text NOT NULL, metadata jsonb,
        fields jsonb NOT NULL, embedding vector(3) NOT NULL
    );
    CREATE INDEX ON herasys.c_1 USING hash (source);
    CREATE TABLE herasys.c_2 (LIKE herasys.c_1 INCLUDING ALL);
    INSERT INTO herasys.c_1
    SELECT 'c' || i, 'd' || i / 10, 'Reading file number ' || i || ' of os.path', NULL,
           '{}', ARRAY[i, 1, 0]::vector
    FROM generate_series(0, 1199) AS i;
"""


@pytest.fixture
async def old(dsn: str) -> AsyncIterator[str]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        await conn.execute("CREATE DATABASE old")
        found = make_conninfo(dsn, dbname="old")
        async with await psycopg.AsyncConnection.connect(found, autocommit=True) as inside:
            await inside.execute(FOUNDATION)
        yield found
        await conn.execute("DROP DATABASE old WITH (FORCE)")


async def test_an_older_database_is_brought_up_to_date_when_it_is_opened(old: str) -> None:
    async with CollectionStore(old, 2) as store:
        facts = await store.show("docs")
        assert (facts.chunks, facts.distance, facts.language) == (1200, "l2", "english")
        before = await store.revisions()
        found, revision = await store.search_text("docs", "read 777", 1)
        assert (found[0]["id"], revision) == ("c777", before["docs"])
        assert (await store.search_text("docs", "path", 2000))[0][-1]["score"] > 0
        assert (await store.search_text("empty", "path", 5))[0] == []
        assert (await store.delete("docs", source="d77")).chunks == 10
        assert (await store.search_text("docs", "777", 1))[0] == []
        await store.add(
            "docs", [{"id": "n", "source": "s", "text": "new"}], np.ones((1, 3))
        )
        found, _ = await store.search("docs", [1, 1, 1], 1)
        assert found[0]["id"] == "n"
    async with CollectionStore(old, 2) as store:
        assert [c["id"] for c in (await store.search_text("docs", "new", 1))[0]] == ["n"]


async def test_many_may_open_an_older_database_at_once(old: str) -> None:
    stores = [CollectionStore(old, 1) for _ in range(6)]
    await asyncio.gather(*[store.open() for store in stores])
    found = await asyncio.gather(*[s.search_text("docs", "777", 1) for s in stores])
    assert {result[0][0]["id"] for result in found} == {"c777"}
    await asyncio.gather(*[store.close() for store in stores])


async def test_texts_are_indexed_anew_when_the_rules_for_words_change(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with CollectionStore(old, 1) as store:
        await store.search_text("docs", "777", 1)
    monkeypatch.setattr(words, "VERSION", words.VERSION + 1)
    async with CollectionStore(old, 1) as store:
        assert (await store.search_text("docs", "777", 1))[0][0]["id"] == "c777"
        async with await psycopg.AsyncConnection.connect(old) as conn:
            cursor = await conn.execute(
                "SELECT min(words_version) FROM herasys.collections"
            )
            assert await cursor.fetchone() == (words.VERSION,)


async def test_a_collection_that_an_older_version_makes_meanwhile_is_indexed_when_used(
    old: str,
) -> None:
    async with CollectionStore(old, 2) as store:
        async with await psycopg.AsyncConnection.connect(old, autocommit=True) as conn:
            await conn.execute(
                "INSERT INTO herasys.collections (name, dimensions, distance, chunks)"
                " VALUES ('late', 3, 'cosine', 1)"
            )
            await conn.execute("CREATE TABLE herasys.c_3 (LIKE herasys.c_1 INCLUDING ALL)")
            await conn.execute("INSERT INTO herasys.c_3 SELECT * FROM herasys.c_1 LIMIT 1")
        assert len((await store.search_text("late", "reading", 5))[0]) == 1
