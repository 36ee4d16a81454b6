"""The verb rerank over scorers that need no model, and the parts of late interaction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.batching import Piece
from herasys_rt.engines.protocol import Item, Outcome
from herasys_rt.engines.rerank import cross_encoder, late_interaction
from herasys_rt.engines.rerank.engine import Request, RerankEngine
from herasys_rt.engines.rerank.late_interaction import (
    VectorCache,
    cache_key,
    max_sim,
    unit_rows,
)
from herasys_rt.errors import ConfigError
from herasys_rt.graph import codec
from tests.outcome_sink import OutcomeSink


class SharedWords:
    """A `Scorer`: how many words a text shares with the query. ``!nan``, ``!raise``."""

    fingerprint = "words/1"
    max_tokens = 8

    def __init__(self) -> None:
        self.passes: list[int] = []
        self.scopes: list[str] = []

    def load(self) -> None:
        pass

    def pieces(self, request: Request) -> list[Piece]:
        self.scopes.append(request.scope)
        return [
            Piece((request.query, text), len(text.split()), label=f"chunks[{i}]")
            for i, text in enumerate(request.texts)
        ]

    def compute(self, pieces: list[Piece]) -> Sequence[float]:
        if any("!raise" in piece.payload[1] for piece in pieces):
            raise ArithmeticError("the model choked")
        self.passes.append(len(pieces))
        return [
            float("nan") if "!nan" in text else len(set(query.split()) & set(text.split()))
            for query, text in (piece.payload for piece in pieces)
        ]

    def scores(self, request: Request, results: list[Any]) -> list[float]:
        assert len(results) == len(request.texts)
        return [float(result) for result in results]

    def close(self) -> None:
        pass


class Bench:
    """An engine with its scorer and sink, and a short way to ask it."""

    def __init__(self) -> None:
        self.scorer = SharedWords()
        self.sink = OutcomeSink()
        self.engine = RerankEngine(self.scorer, name="test", batch_limit=4)
        self.engine.start(self.sink)

    def ask(self, **items: dict[str, Any]) -> dict[str, Outcome]:
        self.engine.submit(
            [Item(key, "rerank", args, trust_scope="t") for key, args in items.items()]
        )
        return {key: self.sink.outcome(key) for key in items}

    def one(self, **args: Any) -> Outcome:
        return self.ask(**{f"item-{len(self.sink.outcomes)}": args}).popitem()[1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.engine.close()


def chunk(name: str, text: str, score: float = 0.5) -> dict[str, Any]:
    return {"id": name, "text": text, "source": f"s-{name}", "score": score}


CHUNKS = [
    chunk("a", "red apple", 0.9),
    chunk("b", "green pear", 0.8),
    chunk("c", "red green apple", 0.7),
    chunk("d", "blue pear", 0.6),
]


def test_each_chunk_gets_its_score_in_the_order_given(bench: Bench):
    outcome = bench.one(query="red apple green", chunks=CHUNKS)
    assert outcome.value == [2.0, 1.0, 3.0, 0.0]
    assert outcome.usage == {"items": 4, "tokens": 9}
    codec.encode(outcome.value)


def test_given_chunks_are_left_as_they_were(bench: Bench):
    before = [dict(c) for c in CHUNKS]
    bench.one(query="red", chunks=CHUNKS)
    assert before == CHUNKS


def test_no_chunks_give_none(bench: Bench):
    outcome = bench.one(query="red", chunks=[])
    assert (outcome.value, outcome.error) == ([], None)


def test_nothing_but_the_text_of_a_chunk_counts(bench: Bench):
    bare = [{"text": chunk["text"]} for chunk in CHUNKS]
    asked = [bench.one(query="red pear", chunks=chunks).value for chunks in (CHUNKS, bare)]
    assert asked[0] == asked[1]


def test_parts_of_a_list_have_the_scores_of_the_whole(bench: Bench):
    args = {"query": "red apple"}
    whole = bench.one(**args, chunks=CHUNKS).value
    parts = bench.ask(a={**args, "chunks": CHUNKS[:3]}, b={**args, "chunks": CHUNKS[3:]})
    assert [*parts["a"].value, *parts["b"].value] == whole


def test_items_of_a_batch_share_passes(bench: Bench):
    bench.ask(
        a={"query": "red", "chunks": CHUNKS[:3]},
        b={"query": "pear", "chunks": CHUNKS[:3]},
    )
    assert bench.scorer.passes == [4, 2]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"query": ""}, "empty_text"),
        ({"query": " \n"}, "empty_text"),
        ({"query": None}, "invalid_argument"),
        ({"chunks": "text"}, "invalid_argument"),
        ({"chunks": ["text"]}, "invalid_argument"),
        ({"chunks": [{"id": "a"}]}, "invalid_argument"),
        ({"chunks": [chunk("x", "a !nan")]}, "not_finite"),
        ({"chunks": [chunk("x", "a !raise"), chunk("y", "b")]}, "engine_failed"),
    ],
)
def test_a_bad_item_fails_alone_with_a_typed_error(
    bench: Bench, change: dict[str, Any], code: str
):
    good = {"query": "red", "chunks": CHUNKS}
    outcomes = bench.ask(before=good, bad={**good, **change}, after=good)
    error = outcomes["bad"].error
    assert outcomes["bad"].value is None and error is not None
    assert error.code == code
    if code == "not_finite":
        assert "x" in error.message
    assert outcomes["before"].value == outcomes["after"].value == [1.0, 0.0, 1.0, 0.0]


def test_texts_are_cleaned_for_the_model(bench: Bench):
    outcome = bench.one(query="re\0d", chunks=[chunk("x", "red\0 \ud800")])
    assert outcome.value == [1.0]


def test_the_trust_scope_reaches_the_scorer(bench: Bench):
    bench.one(query="red", chunks=CHUNKS)
    assert bench.scorer.scopes == ["t"]


def test_the_cache_keeps_what_was_used_last_within_its_bytes():
    cache = VectorCache(max_bytes=100)
    vectors = {name: np.zeros((2, 10), np.float16) for name in "abcd"}  # 40 bytes each
    cache.put(b"a", vectors["a"])
    cache.put(b"b", vectors["b"])
    assert cache.get(b"a") is vectors["a"]
    cache.put(b"c", vectors["c"])
    assert cache.get(b"b") is None, "b was unused longest"
    assert cache.get(b"a") is not None and cache.get(b"c") is not None
    assert (len(cache), cache.bytes) == (2, 80)
    cache.put(b"a", vectors["d"])
    assert (len(cache), cache.bytes) == (2, 80)


def test_an_entry_larger_than_the_cache_is_not_kept_and_drops_nothing():
    cache = VectorCache(max_bytes=50)
    small, large = np.zeros(10, np.float16), np.zeros(100, np.float16)
    cache.put(b"s", small)
    cache.put(b"l", large)
    assert cache.get(b"s") is small and cache.get(b"l") is None
    cache.put(b"s", large)
    assert (len(cache), cache.bytes) == (0, 0)


def test_cache_keys_separate_scopes_and_texts():
    keys = {cache_key(s, t) for s, t in [("a", "bc"), ("ab", "c"), ("", "abc"), ("b", "")]}
    assert len(keys) == 4


def test_max_sim_is_the_mean_of_the_best_cosine_per_query_token():
    query = np.array([[1, 0], [0, 1]], np.float32)
    text = np.array([[0.6, 0.8], [-1, 0], [0, -1]], np.float32)
    assert max_sim(query, text) == pytest.approx((0.6 + 0.8) / 2)
    assert max_sim(query, query) == pytest.approx(1.0)
    assert math.isnan(max_sim(query, np.full((2, 2), np.nan, np.float32)))


def test_unit_rows_have_length_one_and_zero_stays_zero():
    rows = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    assert rows.dtype == np.float16
    assert rows[0].tolist() == pytest.approx([0.6, 0.8], abs=1e-3)
    assert rows[1].tolist() == [0, 0]


def pool(engine: Any, **fields: Any) -> PoolConfig:
    return PoolConfig(name="rerank", resource="rerank", engine=engine, **fields)


@pytest.mark.parametrize(
    ("module", "engine"),
    [(late_interaction, "late_interaction"), (cross_encoder, "cross_encoder")],
)
def test_options_are_checked_when_the_engine_is_made(module: Any, engine: str):
    with pytest.raises(ConfigError) as caught:
        module.create(pool(engine, model="m", options={"thread": 1, "dtype": "int3"}), "")
    assert "did you mean 'threads'?" in caught.value.message
    assert "dtype" in caught.value.message
    assert module.create(pool(engine, model="m"), "").verbs == {"rerank"}
