"""The verb embed over an encoder that needs no model: every item its own outcome."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from herasys_rt.engines.embedding.engine import EmbeddingEngine, Kind, Vectors
from herasys_rt.engines.protocol import Item, Outcome
from herasys_rt.graph import codec
from tests.outcome_sink import WAIT_S, OutcomeSink


class LetterCounts:
    """An `Encoder`: a vector counts a text's letters; a token is a word, two are special.

    A text with ``!nan`` gives NaN, with ``!raise`` raises, with ``!wait`` waits.
    """

    fingerprint = "letters/1"
    dimensions = 26
    max_tokens = 12

    def __init__(self) -> None:
        self.passes: list[tuple[Kind, list[str]]] = []
        self.entered = threading.Event()
        self.proceed = threading.Event()
        self.closed = False

    def load(self) -> None:
        self.owner = threading.get_ident()

    def encode(self, texts: list[str], kind: Kind) -> Vectors:
        assert threading.get_ident() == self.owner, "one thread owns the model"
        if any("!raise" in text for text in texts):
            raise ArithmeticError("the model choked")
        if any("!wait" in text for text in texts):
            self.entered.set()
            assert self.proceed.wait(WAIT_S)
        self.passes.append((kind, texts))
        rows = np.zeros((len(texts), 26), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for letter in text.lower():
                if "a" <= letter <= "z":
                    row[ord(letter) - 97] += 1
            if "!nan" in text:
                row[0] = np.nan
        return rows

    def count(self, text: str, kind: Kind) -> int:
        prefix = 1 if kind == "query" else 0
        return len(self.offsets(text)) + 2 + prefix

    def offsets(self, text: str) -> Sequence[tuple[int, int]]:
        text.encode()
        return [match.span() for match in re.finditer(r"\S+", text)]

    def close(self) -> None:
        self.closed = True


class Bench:
    """An engine with its encoder and sink, and a short way to ask it."""

    def __init__(self, batch_limit: int = 4) -> None:
        self.encoder = LetterCounts()
        self.sink = OutcomeSink()
        self.engine = EmbeddingEngine(self.encoder, name="test", batch_limit=batch_limit)
        self.engine.start(self.sink)

    def ask(self, **items: dict[str, Any]) -> dict[str, Outcome]:
        self.engine.submit([Item(key, "embed", args) for key, args in items.items()])
        return {key: self.sink.outcome(key) for key in items}

    def cut(self, **args: Any) -> Outcome:
        """What cutting documents into chunks gives."""
        key = f"item-{len(self.sink.outcomes)}"
        self.engine.submit([Item(key, "text.chunk", args)])
        return self.sink.outcome(key)

    def one(self, **args: Any) -> Outcome:
        return self.ask(**{f"item-{len(self.sink.outcomes)}": args}).popitem()[1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.encoder.proceed.set()
    bench.engine.close()
    assert bench.encoder.closed


def code_of(outcome: Outcome) -> str:
    assert outcome.value is None and outcome.error is not None
    return outcome.error.code


def test_a_text_gives_a_unit_vector_and_a_list_a_matrix(bench: Bench):
    single = bench.one(text="abba", kind="document")
    assert single.value.shape == (26,) and single.value.dtype == np.float32
    assert single.value[:2] == pytest.approx([0.5**0.5, 0.5**0.5])
    many = bench.one(text=["zz", "abba", "q"], kind="document")
    assert many.value.shape == (3, 26)
    assert np.linalg.norm(many.value, axis=1) == pytest.approx([1, 1, 1])
    assert many.value[1] == pytest.approx(single.value)
    assert many.usage == {"items": 3, "tokens": 9}


def test_an_empty_list_gives_no_rows_of_the_right_width(bench: Bench):
    outcome = bench.one(text=[])
    assert outcome.value.shape == (0, 26)
    assert outcome.usage == {"items": 0, "tokens": 0}
    assert bench.cut(documents=[]).value == []


def test_items_of_a_batch_share_passes_sorted_by_length(bench: Bench):
    bench.ask(
        a={"text": ["a b c d", "a"], "kind": "document"},
        b={"text": "a b", "kind": "document"},
        c={"text": ["a b c", "a b c d e", "a b c d e f"], "kind": "document"},
    )
    assert bench.encoder.passes == [
        ("document", ["a", "a b", "a b c", "a b c d"]),
        ("document", ["a b c d e", "a b c d e f"]),
    ]


def test_queries_and_documents_go_through_separate_passes(bench: Bench):
    bench.ask(a={"text": "query"}, b={"text": "doc", "kind": "document"})
    assert sorted(bench.encoder.passes) == [("document", ["doc"]), ("query", ["query"])]


def test_documents_are_cut_into_chunks(bench: Bench):
    documents = [
        {"id": "d1", "text": "one two three four five", "source": "book"},
        {"id": "blank", "text": " \n"},
        {"id": "d2", "text": "six"},
    ]
    outcome = bench.cut(documents=documents, max_tokens=3, overlap=0)
    assert [(c["id"], c["source"], c["text"]) for c in outcome.value] == [
        ("d1#0", "book", "one two three"),
        ("d1#1", "book", "four five"),
        ("d2#0", "d2", "six"),
    ]
    assert outcome.usage == {"items": 3, "chunks": 3}
    assert bench.encoder.passes == []
    codec.encode(outcome.value)


def test_chunks_fit_the_model_unless_asked_otherwise(bench: Bench):
    text = " ".join(["word"] * 25)
    outcome = bench.cut(documents=[{"id": "d", "text": text}])
    texts = [chunk["text"] for chunk in outcome.value]
    assert max(len(each.split()) for each in texts) == 10, "12 tokens less 2 special ones"
    assert "truncated_items" not in bench.one(text=texts, kind="document").usage
    too_long = bench.cut(documents=[{"id": "d", "text": text}], max_tokens=11)
    assert code_of(too_long) == "invalid_chunking"
    assert too_long.error is not None and "10" in too_long.error.hint


def test_a_text_longer_than_the_model_is_counted_as_truncated(bench: Bench):
    outcome = bench.one(text=["a " * 30, "a"], kind="document")
    assert outcome.usage == {"items": 2, "tokens": 12 + 3, "truncated_items": 1}


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"text": ""}, "empty_text"),
        ({"text": " \n\t"}, "empty_text"),
        ({"text": ["fine", ""]}, "empty_text"),
        ({"text": 5}, "invalid_argument"),
        ({"text": ["a", None]}, "invalid_argument"),
        ({"text": "a", "kind": "other"}, "invalid_argument"),
        ({}, "invalid_argument"),
        ({"documents": []}, "invalid_argument"),
        ({"text": "!nan"}, "not_finite"),
        ({"text": "123"}, "not_finite"),  # a zero vector has no direction
        ({"text": ["fine", "!raise"]}, "engine_failed"),
    ],
)
def test_a_bad_item_fails_alone_with_a_typed_error(
    bench: Bench, args: dict[str, Any], code: str
):
    outcomes = bench.ask(before={"text": "one"}, bad=args, after={"text": ["two", "x"]})
    assert code_of(outcomes["bad"]) == code
    assert outcomes["before"].value.shape == (26,)
    assert outcomes["after"].value.shape == (2, 26)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({}, "invalid_argument"),
        ({"documents": "a"}, "invalid_argument"),
        ({"documents": ["a"]}, "invalid_argument"),
        ({"documents": [{"id": 3, "text": "a"}]}, "invalid_argument"),
        ({"documents": [{"id": "d"}]}, "invalid_argument"),
        ({"documents": [], "max_tokens": "many"}, "invalid_argument"),
        ({"documents": [], "max_tokens": 0}, "invalid_chunking"),
        ({"documents": [], "max_tokens": 5, "overlap": 5}, "invalid_chunking"),
    ],
)
def test_documents_that_cannot_be_cut_fail_with_a_typed_error(
    bench: Bench, args: dict[str, Any], code: str
):
    assert code_of(bench.cut(**args)) == code
    assert bench.cut(documents=[{"id": "d", "text": "a"}]).error is None


def test_the_error_names_the_culprit(bench: Bench):
    outcome = bench.one(text=["fine", "!nan here"])
    assert outcome.error is not None and "text[1]" in outcome.error.message


def test_surrogates_and_nul_are_cleaned_before_the_model(bench: Bench):
    assert bench.one(text="a\ud800b\0c").value.shape == (26,)
    (chunk,) = bench.cut(documents=[{"id": "d", "text": "\0x\udfff"}]).value
    assert chunk["text"] == "x\ufffd"


def test_an_unknown_verb_is_refused(bench: Bench):
    bench.engine.submit([Item("x", "rerank", {"text": "a"})])
    assert code_of(bench.sink.outcome("x")) == "invalid_argument"


def test_aborting_a_large_item_stops_between_sub_batches(bench: Bench):
    args = {"text": ["!wait", *["two words"] * 30], "kind": "document"}
    bench.engine.submit([Item("large", "embed", args)])
    assert bench.encoder.entered.wait(WAIT_S)
    bench.engine.submit([Item("queued", "embed", {"text": "a"})])
    bench.engine.abort("large")
    bench.engine.abort("queued")
    assert bench.sink.outcome("queued").aborted
    bench.encoder.proceed.set()
    assert bench.sink.outcome("large").aborted
    assert sum(len(texts) for _, texts in bench.encoder.passes) <= 8
    assert bench.one(text="still works").value is not None
    assert bench.engine.snapshot().running == 0


def test_describe_tells_what_signatures_and_tables_need(bench: Bench):
    assert bench.engine.describe() == {
        "fingerprint": "letters/1",
        "dimensions": 26,
        "max_tokens": 12,
        "context_tokens": 12,
    }
