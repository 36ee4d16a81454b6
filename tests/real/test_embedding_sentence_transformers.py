"""The default embedder with its real model."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from examples import stdlib_docs
from herasys_rt.config import PoolConfig
from herasys_rt.engines.chunking import chunk_document
from herasys_rt.engines.embedding.sentence_transformers_engine import create
from herasys_rt.engines.models import resolve_model
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.engines.tokens import TextTokens
from herasys_rt.errors import EnvironmentFaultError, UnknownModelError
from tests.outcome_sink import OutcomeSink

pytestmark = pytest.mark.real


def pool(**fields: Any) -> PoolConfig:
    fields = {"model": "all-minilm-l6-v2", **fields}
    return PoolConfig(
        name="embedding",
        resource="embedding",
        engine="sentence_transformers",
        **fields,
    )


@pytest.fixture(scope="module")
def sink() -> OutcomeSink:
    return OutcomeSink()


@pytest.fixture(scope="module")
def engine(sink: OutcomeSink) -> Iterator[Engine]:
    before = threading.active_count()
    engine = create(pool())
    engine.start(sink)
    yield engine
    engine.close()
    engine.close()
    assert sink.each_ended_once()
    assert threading.active_count() == before


def ask(engine: Engine, sink: OutcomeSink, **items: dict[str, Any]) -> list[Outcome]:
    keys = {name: f"{name}-{len(sink.log)}" for name in items}
    engine.submit([Item(keys[name], "embed", args) for name, args in items.items()])
    return [sink.outcome(keys[name]) for name in items]


def test_meaning_decides_similarity(engine: Engine, sink: OutcomeSink):
    texts = [
        "How do I make a copy of a file?",
        "Duplicate a file on disk.",
        "The weather is fine today.",
    ]
    (outcome,) = ask(engine, sink, a={"text": texts})
    similar = outcome.value @ outcome.value.T
    assert similar[0, 1] > 0.6 > 0.2 > similar[0, 2]
    assert np.linalg.norm(outcome.value, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)


def test_a_vector_is_the_same_alone_and_in_a_batch(engine: Engine, sink: OutcomeSink):
    texts = ["short", "a somewhat longer text about nothing " * 5, "x " * 300]
    alone = [ask(engine, sink, a={"text": text})[0].value for text in texts]
    (together,) = ask(engine, sink, a={"text": texts})
    assert np.abs(together.value - np.stack(alone)).max() < 1e-5
    assert together.usage["truncated_items"] == 1


def test_bad_items_leave_their_batch_mates_alone(engine: Engine, sink: OutcomeSink):
    family = "👨\u200d👩\u200d👧\u200d👦 e\u0301 ภาษาไทย 日本語 \ud800 \0"
    fine, empty, odd, nothing = ask(
        engine,
        sink,
        fine={"text": "fine"},
        empty={"text": ["x", " "]},
        odd={"text": family},
        nothing={"text": []},
    )
    assert fine.value.shape == odd.value.shape == (384,)
    assert nothing.value.shape == (0, 384)
    assert empty.error is not None and empty.error.code == "empty_text"


def test_documents_become_chunks_that_the_model_takes(engine: Engine, sink: OutcomeSink):
    documents = stdlib_docs.gather(limit=6)
    args = {"documents": documents[:2], "max_tokens": 100}
    engine.submit([Item("cut", "text.chunk", args)])
    chunks = [chunk["text"] for chunk in sink.outcome("cut").value]
    assert len(chunks) > 2
    (outcome,) = ask(engine, sink, a={"text": chunks, "kind": "document"})
    assert outcome.value.shape == (len(chunks), 384)
    assert outcome.usage["tokens"] <= 102 * len(chunks)
    assert "truncated_items" not in outcome.usage
    (again,) = ask(engine, sink, a={"text": chunks[-1], "kind": "document"})
    assert float(again.value @ outcome.value[-1]) > 0.9999


def test_describe_gives_the_models_facts(engine: Engine):
    facts = engine.describe()
    assert (facts["dimensions"], facts["max_tokens"]) == (384, 256)
    fingerprint = resolve_model("all-minilm-l6-v2").fingerprint
    assert facts["fingerprint"].startswith(fingerprint)
    assert facts["fingerprint"].endswith("/256")


def test_prefixes_change_vectors_and_the_fingerprint(engine: Engine, sink: OutcomeSink):
    other_sink = OutcomeSink()
    other = create(pool(options={"query_prefix": "query: ", "dtype": "float32"}))
    other.start(other_sink)
    try:
        (prefixed,) = ask(other, other_sink, a={"text": "find the file"})
        (document,) = ask(
            other, other_sink, a={"text": "query: find the file", "kind": "document"}
        )
        (plain,) = ask(engine, sink, a={"text": "find the file"})
        assert np.allclose(prefixed.value, document.value, atol=1e-5)
        assert not np.allclose(prefixed.value, plain.value, atol=1e-3)
        assert prefixed.usage["tokens"] == plain.usage["tokens"] + 2
        assert other.describe()["fingerprint"] != engine.describe()["fingerprint"]
    finally:
        other.close()


def test_a_model_that_is_not_there_is_a_typed_error(tmp_path: Any):
    with pytest.raises(UnknownModelError):
        create(pool(model="all-minilm")).start(OutcomeSink())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EnvironmentFaultError):
        create(pool(model=str(tmp_path))).start(OutcomeSink())


def test_a_tokenizer_is_safe_under_sixteen_threads():
    tokens = TextTokens.load(resolve_model("all-minilm-l6-v2").path)
    documents = [d for d in stdlib_docs.gather(limit=40) if len(d["text"]) < 6000]

    def cut(document: dict[str, Any]) -> list[dict[str, Any]]:
        size = 20 + len(document["id"])
        return chunk_document(document, max_tokens=size, offsets=tokens.offsets)

    alone = [cut(document) for document in documents]
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(cut, documents * 3))
    assert together == alone * 3


def test_ids_cut_to_a_limit_keep_their_special_tokens():
    tokens = TextTokens.load(resolve_model("all-minilm-l6-v2").path)
    assert tokens.specials == 2
    assert tokens.ids("word " * 50, 10) == tokens.ids("word " * 8, 100)
    assert tokens.count("word word", "word") == 3 + 3


def test_the_demo_sample_holds_what_its_questions_ask():
    tokens = TextTokens.load(resolve_model("all-minilm-l6-v2").path)
    documents = stdlib_docs.gather()
    sampled = stdlib_docs.sample(documents, offsets=tokens.offsets)
    assert len(sampled) == 1000
    assert {d["source"] for d in sampled} == {d["id"] for d in documents}
    for document in sampled:
        assert len(tokens.offsets(document["text"])) <= 200
    text = "\n".join(document["text"] for document in sampled)
    for question in set(stdlib_docs.QUESTIONS):
        asked = [word.strip("?") for word in question.split() if "." in word]
        assert all(name in text for name in asked), question


def test_importing_the_engines_loads_no_heavy_library():
    code = (
        "import sys, herasys_rt.engines.embedding.sentence_transformers_engine,"
        " herasys_rt.engines.embedding.vllm_pooling,"
        " herasys_rt.engines.rerank.late_interaction,"
        " herasys_rt.engines.rerank.cross_encoder, herasys_rt.documents;"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'vllm', 'tokenizers',"
        " 'pypdf', 'bs4'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
