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
from herasys_rt.engines.rerank.merging import merge_ranked, split
from herasys_rt.engines.sentence_model import SentenceModel
from herasys_rt.errors import EnvironmentFaultError
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
    outcome = ask(engine, sink, query=question, chunks=CHUNKS, top_k=2)
    best, second = outcome.value
    assert best["id"] == "paris"
    assert 1.0 >= best["score"] > second["score"] > -1.0
    assert best["first_score"] == 0.8
    assert [source["id"] for source in outcome.sources] == ["paris", second["id"]]


def test_late_interaction_computes_a_text_once_per_scope(
    late: tuple[Engine, OutcomeSink],
):
    engine, sink = late
    chunks = [{"id": "x", "text": "A text that only this test knows of.", "source": "t"}]
    first = ask(engine, sink, scope="t1", query="knows", chunks=chunks, top_k=1)
    again = ask(engine, sink, scope="t1", query="knows", chunks=chunks, top_k=1)
    other = ask(engine, sink, scope="t2", query="knows", chunks=chunks, top_k=1)
    assert again.usage["tokens"] < first.usage["tokens"] == other.usage["tokens"]
    scores = [outcome.value[0]["score"] for outcome in (first, again, other)]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-3)


def test_late_interaction_computes_only_the_texts_that_another_list_had_not(
    late: tuple[Engine, OutcomeSink],
):
    engine, sink = late
    texts = [f"Chapter {n} of a book that only this test reads." for n in range(5)]
    chunks = [{"id": str(i), "text": t, "source": "t"} for i, t in enumerate(texts)]
    args = {"scope": "overlap", "query": "a chapter", "top_k": 3}
    alone = ask(engine, sink, **{**args, "scope": "alone"}, chunks=chunks[2:])
    first = ask(engine, sink, **args, chunks=chunks[:4])
    second = ask(engine, sink, **args, chunks=chunks[2:])
    assert first.usage["items"] == 4 and second.usage["items"] == 3
    one = (alone.usage["tokens"] - second.usage["tokens"]) / 2
    assert one == (first.usage["tokens"] - alone.usage["tokens"]) > 0
    scores = [{c["id"]: c["score"] for c in o.value} for o in (alone, second)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


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
        args = {"query": "capital of France", "chunks": chunks, "top_k": 2}
        kept, computed = ask(knowing, sink, **args), ask(engine, sink, **args)
    finally:
        knowing.close()
    assert kept.usage["tokens"] < computed.usage["tokens"]
    assert [c["id"] for c in kept.value] == [c["id"] for c in computed.value] == ["1", "0"]
    scores = [[c["score"] for c in outcome.value] for outcome in (kept, computed)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_late_interaction_scores_equal_texts_of_one_batch_alike(
    late: tuple[Engine, OutcomeSink],
):
    engine, sink = late
    chunks = [{"id": str(i), "text": "the same words", "source": "t"} for i in range(20)]
    outcome = ask(engine, sink, query="same", chunks=chunks, top_k=20)
    assert [c["id"] for c in outcome.value] == [c["id"] for c in chunks]
    assert len({c["score"] for c in outcome.value}) == 1


@pytest.mark.parametrize("fuse", [False, True])
def test_late_interaction_in_parts_is_late_interaction_of_the_whole(
    late: tuple[Engine, OutcomeSink], fuse: bool
):
    engine, sink = late
    words = ["rain", "heap", "Paris", "France", "capital", "north", "front", "city"]
    chunks = [
        {"id": f"{a}-{b}", "text": f"{a} and {b}", "source": "t", "score": 0.0}
        for a in words
        for b in words[:3]
    ]
    args = {"query": "capital of France", "chunks": chunks, "top_k": 5}
    args["fuse_first_stage"] = fuse
    whole = ask(engine, sink, **args).value
    parts = [ask(engine, sink, **part).value for part in split(args, 3)]
    merged = merge_ranked(parts, 5, fuse_first_stage=fuse)
    assert [c["id"] for c in merged] == [c["id"] for c in whole]
    for one, other in zip(merged, whole, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-3)


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
        outcome = ask(engine, sink, query="capital france", chunks=chunks, top_k=5)
        scores = {c["id"]: c["score"] for c in outcome.value}
        assert [scores[str(i)] for i in range(5)] == pytest.approx(list(wanted), abs=1e-5)
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
        odd = ask(engine, sink, query="capital", chunks=CHUNKS, top_k=9)
        assert odd.error is None and len(odd.value) == len(CHUNKS)
        bad = ask(engine, sink, query="", chunks=chunks, top_k=1)
        assert bad.error is not None and bad.error.code == "empty_text"
        assert engine.describe()["max_tokens"] == 64
    finally:
        engine.close()


def test_a_classifier_is_no_reranker(tmp_path: Path):
    path = save_cross_encoder(tmp_path / "classes", labels=3)
    engine = cross_encoder.create(pool("cross_encoder", model=str(path)))
    with pytest.raises(EnvironmentFaultError, match="3 values per pair"):
        engine.start(OutcomeSink())
