"""Text and hybrid search on the real server: BM25 against a reference, and consistency."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import psycopg
import pytest

from herasys_rt.engines.postgres import text_statements
from herasys_rt.engines.postgres.searching import ByText, ByVector, Fusing
from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.errors import InputError

pytestmark = pytest.mark.real

DIM = 8
WORDS = [f"{a}{b}" for a in "bdfgkmnprtvz" for b in ("ask", "omp", "urd", "ilk", "enf")]


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[CollectionStore]:
    async with CollectionStore(dsn, 8) as opened:
        for facts in await opened.list():
            await opened.drop(facts.name)
        yield opened


def vectors_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def chunks_of(texts: list[str]) -> list[dict[str, Any]]:
    return [
        {"id": f"c{i:04}", "source": f"d{i // 5}", "text": t, "metadata": {"group": i % 7}}
        for i, t in enumerate(texts)
    ]


def random_texts(count: int, seed: int) -> list[str]:
    """Texts over a small vocabulary with a long tail, of any length, many words twice."""
    draw = random.Random(seed)
    weights = [1 / (i + 1) for i in range(len(WORDS))]
    return [
        " ".join(draw.choices(WORDS, weights, k=draw.randint(0, 60))) for _ in range(count)
    ]


def bm25(
    chunks: list[dict[str, Any]], query: str, top_k: int, k1: float = 1.2, b: float = 0.75
) -> list[tuple[str, float]]:
    """The textbook, over words that no stemmer changes."""
    counts = {c["id"]: Counter(c["text"].split()) for c in chunks}
    length = {id: sum(count.values()) for id, count in counts.items()}
    average = sum(length.values()) / len(chunks)
    having = Counter(word for count in counts.values() for word in count)
    scores: dict[str, float] = {}
    for word, times in Counter(query.split()).items():
        if not having[word]:
            continue
        idf = math.log(1 + (len(chunks) - having[word] + 0.5) / (having[word] + 0.5))
        for id, count in counts.items():
            if count[word]:
                norm = k1 * (1 - b + b * length[id] / average)
                part = times * idf * (k1 + 1) * count[word] / (count[word] + norm)
                scores[id] = scores.get(id, 0.0) + part
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:top_k]


def assert_same(found: list[dict[str, Any]], wanted: list[tuple[str, float]]) -> None:
    """Equal but for the order of scores that only rounding tells apart."""
    assert len(found) == len(wanted)
    scores = [chunk["score"] for chunk in found]
    assert scores == pytest.approx([score for _, score in wanted], rel=1e-9)
    assert scores == sorted(scores, reverse=True)
    last = round(scores[-1], 6) if scores else 0
    clear = {c["id"] for c in found if round(c["score"], 6) > last}
    assert clear == {id for id, score in wanted if round(score, 6) > last}


async def assert_consistent(dsn: str, name: str) -> None:
    """What text search counts is what there is."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        cursor = await conn.execute(
            "SELECT id, chunks, words FROM herasys.collections WHERE name = %s", (name,)
        )
        row = await cursor.fetchone()
        assert row is not None
        id, chunks, words = row
        chunk_table, words_table = f"herasys.c_{id}", f"herasys.c_{id}_words"
        wrong_counts = (
            f"SELECT count(*) FROM (SELECT lexeme, count(*) AS chunks FROM {words_table},"
            f" unnest(words) GROUP BY lexeme) AS counted"
            f" FULL JOIN herasys.c_{id}_terms AS t USING (lexeme, chunks)"
            " WHERE counted.* IS NULL OR t.* IS NULL"
        )
        for statement, wanted in (
            (f"SELECT count(*) FROM {chunk_table}", chunks),
            (f"SELECT count(*) FROM {words_table} JOIN {chunk_table} USING (id)", chunks),
            (f"SELECT coalesce(sum(length), 0) FROM {words_table}", words),
            (wrong_counts, 0),
        ):
            cursor = await conn.execute(statement.encode())
            assert await cursor.fetchone() == (wanted,), statement


# -- scores ---------------------------------------------------------------------------


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.0, 0.75), (2.0, 0.0), (0.9, 1.0)])
async def test_scores_are_the_textbooks(
    store: CollectionStore, k1: float, b: float
) -> None:
    chunks = chunks_of(random_texts(300, seed=1))
    await store.add("docs", chunks, vectors_of(300), make=True)
    draw = random.Random(2)
    for top_k in (1, 10, 1000):
        for _ in range(10):
            query = " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))
            found, _ = await store.search_text("docs", query, top_k, k1=k1, b=b)
            assert_same(found, bm25(chunks, query, top_k, max(k1, 1e-30), b))


async def test_a_look_at_the_rare_words_alone_gives_the_same(
    store: CollectionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every look as short as it may be, the two-step search is still exact."""
    monkeypatch.setattr("herasys_rt.engines.postgres.ranking._CHEAP", 0)
    chunks = chunks_of(random_texts(400, seed=3))
    await store.add("docs", chunks, vectors_of(400), make=True)
    draw = random.Random(4)
    for top_k in (1, 3, 20):
        for _ in range(15):
            query = " ".join(draw.choices(WORDS, k=6))
            found, _ = await store.search_text("docs", query, top_k)
            assert_same(found, bm25(chunks, query, top_k))


async def test_equal_scores_are_ordered_by_id(store: CollectionStore) -> None:
    chunks = chunks_of(["same words", "other", "same words", "same words"])
    await store.add("docs", chunks, vectors_of(4), make=True)
    found, _ = await store.search_text("docs", "words", 2)
    assert [c["id"] for c in found] == ["c0000", "c0002"]


async def test_counts_up_to_what_a_tsvector_keeps_are_read_exactly(
    store: CollectionStore,
) -> None:
    counts = [1, 2, 3, 17, 254, 255, 256, 1000]
    chunks = chunks_of([" ".join(["bask"] * n) for n in counts])
    await store.add("docs", chunks, vectors_of(len(counts)), make=True)
    found, _ = await store.search_text("docs", "bask", 20, k1=1.0, b=0.0)
    weight = math.log(1 + 0.5 / (len(counts) + 0.5))
    kept = [min(n, text_statements.LONGEST_COUNT) for n in counts]
    wanted = {f"c{i:04}": 2 * weight * n / (n + 1) for i, n in enumerate(kept)}
    assert {c["id"]: c["score"] for c in found} == pytest.approx(wanted, rel=1e-12)


async def test_any_word_is_enough_and_forms_of_a_word_are_one(
    store: CollectionStore,
) -> None:
    texts = [
        "The heaps keep their smallest element in front.",
        "Reading files, line by line, with os.path.join and /usr/bin/env",
        "Über die Straße: ein Größenvergleich",
        "it's a 'quoted' \"phrase\" & more | or !not <-> (near):*",
        "黒猫は走る",
    ]
    await store.add("docs", chunks_of(texts), vectors_of(5), make=True)

    async def hits(query: str) -> list[int]:
        found, _ = await store.search_text("docs", query, 10)
        return [int(c["id"][1:]) for c in found]

    assert await hits("heap unicorn") == [0]
    assert await hits("file reads") == [1]
    assert await hits("path") == await hits("BIN") == await hits("os.path") == [1]
    assert await hits("STRASSE") == await hits("größenvergleich") == [2]
    assert await hits("黒猫") == await hits("猫") == [4]
    assert await hits("phrases") == [3]


@pytest.mark.parametrize(
    "query",
    ["", " ", "the of and", "!&|()<->:*'\"\\", "👍", "\x00", "\ud800", "unicorn", "''' \\"],
)
async def test_a_query_without_a_known_word_finds_nothing(
    store: CollectionStore, query: str
) -> None:
    await store.add("docs", chunks_of(["a red heap of words"]), vectors_of(1), make=True)
    assert (await store.search_text("docs", query, 3))[0] == []


@pytest.mark.parametrize(
    "query",
    [
        "heap' | red",
        "!heap",
        "heap:*",
        "heap <-> red",
        "heap\\",
        "%s %(x)s heap",
        "heap\x00",
        "heap; DROP TABLE x",
        "heap \ud800",
        "heap " * 50_000,
    ],
)
async def test_syntax_in_a_query_is_plain_text(store: CollectionStore, query: str) -> None:
    await store.add("docs", chunks_of(["a heap", "other"]), vectors_of(2), make=True)
    found, _ = await store.search_text("docs", query, 3)
    assert [c["id"] for c in found] == ["c0000"]


async def test_a_whole_document_may_be_the_query(store: CollectionStore) -> None:
    texts = [" ".join(f"w{i}x{j}" for j in range(500)) for i in range(20)]
    await store.add("docs", chunks_of(texts), vectors_of(20), make=True)
    found, _ = await store.search_text("docs", texts[7], 1)
    assert found[0]["id"] == "c0007"


async def test_chunks_of_any_length_and_content_are_stored(store: CollectionStore) -> None:
    texts = [
        "",
        " \n",
        "x" * 1_000_000,
        " ".join(f"w{i}" for i in range(300_000)),
        "same " * 200_000,
        "nul\x00 half\ud83d \U0001f600 needle",
        "'quotes' \\backslash\\ % {braces} :1A,2B",
    ]
    await store.add("docs", chunks_of(texts), vectors_of(len(texts)), make=True)
    found, _ = await store.search_text("docs", "needle", 3)
    assert [c["id"] for c in found] == ["c0005"]
    assert (await store.search_text("docs", "w7 backslash", 9))[0][0]["id"] == "c0006"
    assert (await store.show("docs")).chunks == len(texts)


async def test_zero_results_and_top_k_beyond_the_collection(
    store: CollectionStore,
) -> None:
    made = await store.create("docs", DIM)
    assert await store.search_text("docs", "heap", 5) == ([], made.revision)
    await store.add("docs", chunks_of(["heap one", "heap two", "three"]), vectors_of(3))
    found, _ = await store.search_text("docs", "heap", 1_000_000)
    assert len(found) == 2


async def test_filters_keep_the_best_that_match(store: CollectionStore) -> None:
    chunks = chunks_of(random_texts(200, seed=5))
    await store.add("docs", chunks, vectors_of(200), make=True)
    query = " ".join(WORDS[:4])
    everything = bm25(chunks, query, 1000)
    group = {c["id"]: c["metadata"]["group"] for c in chunks}
    found, _ = await store.search_text("docs", query, 8, {"group": 3})
    assert_same(found, [(id, s) for id, s in everything if group[id] == 3][:8])
    found, _ = await store.search_text("docs", query, 50, {"source": "d7"})
    assert {c["source"] for c in found} <= {"d7"}
    assert (await store.search_text("docs", query, 5, {"group": 99}))[0] == []


# -- languages ------------------------------------------------------------------------


async def test_a_collection_has_one_language(store: CollectionStore) -> None:
    await store.create("de", DIM, language="german")
    await store.add("de", chunks_of(["Die Häuser der Städte"]), vectors_of(1))
    for language in (None, "german"):
        found, _ = await store.search_text("de", "haus", 1, language=language)
        assert len(found) == 1
    with pytest.raises(InputError, match="german, not english") as error:
        await store.search_text("de", "haus", 1, language="english")
    assert error.value.code == "language_mismatch"
    with pytest.raises(InputError, match=r"known: .*english.*simple"):
        await store.create("xx", DIM, language="klingon")
    assert "xx" not in await store.revisions()
    with pytest.raises(InputError, match="german, not simple"):
        await store.create("de", DIM, language="simple")


# -- changes --------------------------------------------------------------------------


async def test_counts_follow_every_kind_of_change(store: CollectionStore, dsn: str) -> None:
    draw = random.Random(6)
    held: dict[str, dict[str, Any]] = {}
    await store.create("docs", DIM)
    for step in range(25):
        kind = draw.choice(["add", "add", "replace", "ids", "source"])
        if kind in ("add", "replace"):
            texts = random_texts(draw.randint(1, 15), seed=100 + step)
            fresh = [
                {
                    "id": f"c{draw.randint(0, 40)}",
                    "source": f"d{draw.randint(0, 5)}",
                    "text": t,
                }
                for t in texts
            ]
            await store.add(
                "docs", fresh, vectors_of(len(fresh)), replace=kind == "replace"
            )
            fresh_ids = {c["id"] for c in fresh}
            if kind == "replace":
                sources = {c["source"] for c in {c["id"]: c for c in fresh}.values()}
                held = {
                    id: c
                    for id, c in held.items()
                    if c["source"] not in sources or id in fresh_ids
                }
            held |= {c["id"]: c for c in fresh}
        elif kind == "ids":
            ids = [f"c{draw.randint(0, 40)}" for _ in range(5)]
            await store.delete("docs", ids=ids)
            held = {id: c for id, c in held.items() if id not in ids}
        else:
            await store.delete("docs", source=(source := f"d{draw.randint(0, 5)}"))
            held = {id: c for id, c in held.items() if c["source"] != source}
        await assert_consistent(dsn, "docs")
        query = " ".join(draw.choices(WORDS[:20], k=4))
        found, _ = await store.search_text("docs", query, 10)
        assert_same(found, bm25(list(held.values()), query, 10) if held else [])


async def test_counts_survive_concurrent_writers(store: CollectionStore, dsn: str) -> None:
    await store.create("busy", DIM)
    chunks = chunks_of(random_texts(300, seed=7))
    vectors = vectors_of(300)
    await asyncio.gather(
        *[
            store.add(
                "busy", chunks[at : at + 40], vectors[at : at + 40], replace=at % 3 == 0
            )
            for at in range(0, 260, 20)
        ],
        *[store.delete("busy", source=f"d{i}") for i in range(0, 50, 7)],
        *[store.delete("busy", ids=[f"c{i:04}"]) for i in range(0, 300, 11)],
        *[store.search_text("busy", WORDS[i], 5) for i in range(20)],
    )
    await assert_consistent(dsn, "busy")


async def test_a_search_amid_writes_sees_one_revision(store: CollectionStore) -> None:
    """Two states that take turns: every search finds one of them whole."""
    before, after = ["bask bask", "bask", "urd"], ["bask", "urd", "urd"]
    wanted: dict[int, list[tuple[str, float]]] = {}
    chunks = {True: chunks_of(before), False: chunks_of(after)}
    await store.add("docs", chunks[True], vectors_of(3), make=True)
    wanted[(await store.revisions())["docs"]] = bm25(chunks[True], "bask", 5)
    found: list[tuple[list[dict[str, Any]], int]] = []

    async def write() -> None:
        for turn in range(20):
            which = bool(turn % 2)
            change = await store.add("docs", chunks[which], vectors_of(3))
            wanted[change.revision] = bm25(chunks[which], "bask", 5)

    async def read() -> None:
        for _ in range(20):
            found.append(await store.search_text("docs", "bask", 5))

    await asyncio.gather(write(), read(), read())
    for result, revision in found:
        assert_same(result, wanted[revision])


async def test_results_move_with_the_collection(store: CollectionStore) -> None:
    added = await store.add("docs", chunks_of(["heap", "other"]), vectors_of(2), make=True)
    found, revision = await store.search_text("docs", "heap", 5)
    assert (len(found), revision) == (1, added.revision)
    gone = await store.delete("docs", ids=["c0000"])
    found, revision = await store.search_text("docs", "heap", 5)
    assert (found, revision) == ([], gone.revision)
    assert gone.revision > added.revision


async def test_dropping_a_collection_leaves_nothing_of_it(
    store: CollectionStore, dsn: str
) -> None:
    await store.add("docs", chunks_of(["heap"]), vectors_of(1), make=True)
    await store.drop("docs")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        cursor = await conn.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'herasys'"
            " AND tablename NOT IN ('collections', 'identity')"
        )
        assert await cursor.fetchone() == (0,)
    with pytest.raises(InputError) as error:
        await store.search_text("docs", "heap", 1)
    assert error.value.code == "unknown_collection"


# -- hybrid ---------------------------------------------------------------------------


async def hybrid(
    store: CollectionStore, vector: Any, query: str, top_k: int, **how: Any
) -> tuple[list[dict[str, Any]], int]:
    filter = how.pop("filter", None)
    near = ByVector(vector, top_k, filter=filter)
    text = ByText(query, top_k, filter)
    return await store.hybrid("docs", near, text, Fusing(top_k, **how))


async def test_hybrid_fuses_the_ranks_of_both_searches(store: CollectionStore) -> None:
    chunks, vectors = chunks_of(random_texts(150, seed=8)), vectors_of(150)
    added = await store.add("docs", chunks, vectors, make=True)
    query = " ".join(WORDS[:5])
    near, _ = await store.search("docs", vectors[3], 30)
    text, _ = await store.search_text("docs", query, 30)
    ranks = [{c["id"]: i for i, c in enumerate(part, 1)} for part in (near, text)]
    wanted = {
        id: sum(1 / (60 + rank[id]) for rank in ranks if id in rank)
        for id in {**ranks[0], **ranks[1]}
    }
    found, revision = await hybrid(store, vectors[3], query, 10, candidates=30)
    assert revision == added.revision
    best = sorted(wanted, key=lambda id: (-wanted[id], id))[:10]
    assert [c["id"] for c in found] == best
    for chunk in found:
        assert chunk["score"] == wanted[chunk["id"]]
        assert chunk["vector_rank"] == ranks[0].get(chunk["id"])
        assert chunk["text_rank"] == ranks[1].get(chunk["id"])
        assert chunk["text"] == chunks[int(chunk["id"][1:])]["text"]


async def test_hybrid_of_stop_words_is_the_vector_search(store: CollectionStore) -> None:
    await store.add("docs", chunks_of(["a", "b", "c"]), vectors_of(3), make=True)
    found, _ = await hybrid(store, vectors_of(3)[1], "the of", 2)
    assert found[0]["id"] == "c0001"
    assert [c["text_rank"] for c in found] == [None, None]


async def test_hybrid_filters_both_and_gives_all_there_is(store: CollectionStore) -> None:
    chunks = chunks_of(random_texts(70, seed=9))
    await store.add("docs", chunks, vectors_of(70), make=True)
    found, _ = await hybrid(store, vectors_of(1)[0], WORDS[0], 500, filter={"group": 2})
    assert {c["id"] for c in found} == {
        c["id"] for c in chunks if c["metadata"]["group"] == 2
    }


async def test_hybrid_on_an_empty_collection_finds_nothing(store: CollectionStore) -> None:
    made = await store.create("docs", DIM)
    assert await hybrid(store, vectors_of(1)[0], "heap", 3) == ([], made.revision)
    with pytest.raises(InputError) as error:
        await hybrid(store, np.ones(DIM + 1), "heap", 3)
    assert error.value.code == "dimension_mismatch"
    with pytest.raises(InputError, match="nan"):
        await hybrid(store, np.full(DIM, np.nan), "heap", 3)


async def test_fifty_searches_of_each_kind_share_a_small_pool(
    store: CollectionStore, dsn: str
) -> None:
    chunks, vectors = chunks_of(random_texts(100, seed=10)), vectors_of(100)
    await store.add("docs", chunks, vectors, make=True)
    async with CollectionStore(dsn, 3) as small:
        texts = [small.search_text("docs", WORDS[i], 3) for i in range(50)]
        both = [hybrid(small, vectors[i], WORDS[i], 3) for i in range(50)]
        results = await asyncio.gather(*texts, *both)
    assert all(len(found) <= 3 for found, _ in results)
    assert all(found for found, _ in results[50:])
