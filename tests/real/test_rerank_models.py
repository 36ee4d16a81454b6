"""Rerankers with real models: late interaction over the embedder, and a cross-encoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.models import resolve_model
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.engines.rerank import cross_encoder, late_interaction
from herasys_rt.engines.rerank.engine import RerankEngine
from herasys_rt.engines.rerank.late_interaction import (
    LateInteractionOptions,
    LateInteractionScorer,
    VectorCache,
    cache_key,
    unit_rows,
)
from herasys_rt.engines.sentence_model import SentenceModel
from herasys_rt.errors import EnvironmentFaultError
from herasys_rt.graph.reductions import ranked
from tests.outcome_sink import OutcomeSink

pytestmark = pytest.mark.real

CHUNKS = [
    {"id": name, "text": text, "source": "notes", "score": 1.0 - i / 10}
    for i, (name, text) in enumerate(
        [
            ("weather", "Tomorrow it will rain in the north and be dry elsewhere."),
            ("heap", "A heap keeps its smallest element at the front."),
            ("paris", "Paris is the capital and largest city of France."),
            ("empty", " "),
            ("odd", "e\u0301 \ud800 \0 👨\u200d👩\u200d👧"),
        ]
    )
]


def pool(engine: Any, **fields: Any) -> PoolConfig:
    return PoolConfig(name="rerank", resource="rerank", engine=engine, **fields)


def ask(engine: Engine, sink: OutcomeSink, *, scope: str = "", **args: Any) -> Outcome:
    key = f"item-{len(sink.log)}"
    engine.submit([Item(key, "rerank", args, trust_scope=scope)])
    return sink.outcome(key)


@pytest.fixture(scope="module")
def late() -> Iterator[tuple[Engine, OutcomeSink]]:
    sink = OutcomeSink()
    engine = late_interaction.create(pool("late_interaction", model="all-minilm-l6-v2"))
    engine.start(sink)
    yield engine, sink
    engine.close()
    assert sink.each_ended_once()


def test_late_interaction_puts_the_answer_first(late: tuple[Engine, OutcomeSink]):
    engine, sink = late
    question = "What is the capital of France?"
    scores = ask(engine, sink, query=question, chunks=CHUNKS).value
    best, second = ranked({"chunks": CHUNKS, "top_k": 2}, scores)
    assert best["id"] == "paris"
    assert 1.0 >= best["score"] > second["score"] > -1.0
    assert best["first_score"] == 0.8


def test_late_interaction_computes_a_text_once_per_scope(
    late: tuple[Engine, OutcomeSink],
):
    engine, sink = late
    chunks = [{"id": "x", "text": "A text that only this test knows of.", "source": "t"}]
    first = ask(engine, sink, scope="t1", query="knows", chunks=chunks)
    again = ask(engine, sink, scope="t1", query="knows", chunks=chunks)
    other = ask(engine, sink, scope="t2", query="knows", chunks=chunks)
    assert again.usage["tokens"] < first.usage["tokens"] == other.usage["tokens"]
    scores = [outcome.value[0] for outcome in (first, again, other)]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-3)


def test_late_interaction_computes_only_the_texts_that_another_list_had_not(
    late: tuple[Engine, OutcomeSink],
):
    engine, sink = late
    texts = [f"Chapter {n} of a book that only this test reads." for n in range(5)]
    chunks = [{"id": str(i), "text": t, "source": "t"} for i, t in enumerate(texts)]
    args = {"scope": "overlap", "query": "a chapter"}
    alone = ask(engine, sink, **{**args, "scope": "alone"}, chunks=chunks[2:])
    first = ask(engine, sink, **args, chunks=chunks[:4])
    second = ask(engine, sink, **args, chunks=chunks[2:])
    assert first.usage["items"] == 4 and second.usage["items"] == 3
    one = (alone.usage["tokens"] - second.usage["tokens"]) / 2
    assert one == (first.usage["tokens"] - alone.usage["tokens"]) > 0
    assert alone.value == pytest.approx(second.value, abs=1e-3)


def test_late_interaction_takes_token_embeddings_that_are_known_already(
    late: tuple[Engine, OutcomeSink],
):
    import numpy as np

    engine, sink = late
    texts = ["A heap keeps its smallest element first.", "Paris is in France."]
    chunks = [{"id": str(i), "text": t, "source": "t"} for i, t in enumerate(texts)]
    name = "all-minilm-l6-v2"
    loaded = SentenceModel.load(
        resolve_model(name).path,
        threads=1,
        device=None,
        dtype="float32",
        trust_remote_code=False,
    )
    cache = VectorCache(1024 * 1024)
    for text in texts:
        rows = loaded.model.encode(text, output_value="token_embeddings")
        cache.put(cache_key("", text), unit_rows(np.asarray(rows)))
    scorer = LateInteractionScorer(name, LateInteractionOptions(), cache)
    knowing = RerankEngine(scorer, name="knowing", batch_limit=8)
    knowing.start(sink)
    try:
        args = {"query": "capital of France", "chunks": chunks}
        kept, computed = ask(knowing, sink, **args), ask(engine, sink, **args)
    finally:
        knowing.close()
    assert kept.usage["tokens"] < computed.usage["tokens"]
    assert kept.value == pytest.approx(computed.value, abs=1e-3)
    assert kept.value[1] > kept.value[0]


def test_late_interaction_scores_equal_texts_of_one_batch_alike(
    late: tuple[Engine, OutcomeSink],
):
    engine, sink = late
    chunks = [{"id": str(i), "text": "the same words", "source": "t"} for i in range(20)]
    scores = ask(engine, sink, query="same", chunks=chunks).value
    assert len(scores) == 20 and len(set(scores)) == 1


def test_late_interaction_scores_a_text_alike_in_parts_and_whatever_else_a_chunk_has(
    late: tuple[Engine, OutcomeSink],
):
    engine, sink = late
    words = ["rain", "heap", "Paris", "France", "capital", "north", "front", "city"]
    texts = [f"{a} and {b}" for a in words for b in words[:3]]
    chunks = [{"id": text, "text": text, "score": 0.0} for text in texts]
    query = "capital of France"
    whole = ask(engine, sink, query=query, chunks=chunks).value
    other = [{"text": text, "metadata": {"title": "Paris"}} for text in texts]
    parts = [
        score
        for part in (other[:5], other[5:6], other[6:])
        for score in ask(engine, sink, query=query, chunks=part).value
    ]
    assert parts == pytest.approx(whole, abs=1e-3)


def test_the_fingerprint_tells_late_interaction_apart(late: tuple[Engine, OutcomeSink]):
    assert "/maxsim/" in late[0].describe()["fingerprint"]


def save_cross_encoder(folder: Path, labels: int) -> Path:
    """A tiny BERT with random weights and a vocabulary of its own."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "capital", "france", "paris"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    config.num_labels = labels
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_cross_encoder_scores_pairs_as_its_library_does(tmp_path: Path):
    from sentence_transformers import CrossEncoder

    path = save_cross_encoder(tmp_path / "cross", labels=1)
    reference = CrossEncoder(str(path), device="cpu", local_files_only=True)
    texts = [chunk["text"] for chunk in CHUNKS[:3]] + ["paris paris", "france " * 100]
    wanted = reference.predict([("capital france", text) for text in texts])

    sink = OutcomeSink()
    settings = pool("cross_encoder", model=str(path), batch_limit=2)
    engine = cross_encoder.create(settings)
    engine.start(sink)
    try:
        chunks = [{"id": str(i), "text": t, "source": "s"} for i, t in enumerate(texts)]
        outcome = ask(engine, sink, query="capital france", chunks=chunks)
        assert outcome.value == pytest.approx(list(wanted), abs=1e-5)
        part = ask(engine, sink, query="capital france", chunks=chunks[3:])
        assert part.value == pytest.approx(list(wanted[3:]), abs=1e-5)
        odd = ask(engine, sink, query="capital", chunks=CHUNKS)
        assert odd.error is None and len(odd.value) == len(CHUNKS)
        bad = ask(engine, sink, query="", chunks=chunks)
        assert bad.error is not None and bad.error.code == "empty_text"
        assert engine.describe()["max_tokens"] == 64
    finally:
        engine.close()


def test_a_classifier_is_no_reranker(tmp_path: Path):
    path = save_cross_encoder(tmp_path / "classes", labels=3)
    engine = cross_encoder.create(pool("cross_encoder", model=str(path)))
    with pytest.raises(EnvironmentFaultError, match="3 values per pair"):
        engine.start(OutcomeSink())
