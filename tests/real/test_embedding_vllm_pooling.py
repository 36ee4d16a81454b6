"""vLLM as the embedder: the same verb, the same vectors."""

from __future__ import annotations

import numpy as np
import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.embedding import sentence_transformers_engine, vllm_pooling
from herasys_rt.engines.protocol import Engine, Item
from tests.outcome_sink import OutcomeSink

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

TEXTS = [
    "What does textwrap.dedent do?",
    "Remove any common leading whitespace from every line in text.",
    "日本語の文章と 👍🏽 emoji",
    "a longer text, beyond what the model takes " * 60,
]


def started(engine: Engine) -> tuple[Engine, OutcomeSink]:
    sink = OutcomeSink()
    engine.start(sink)
    return engine, sink


def vectors(engine: Engine, sink: OutcomeSink) -> np.ndarray:
    engine.submit(
        [
            Item("texts", "embed", {"text": TEXTS}),
            Item("empty", "embed", {"text": ""}),
            Item("cut", "text.chunk", {"documents": [{"id": "d", "text": TEXTS[3]}]}),
        ]
    )
    error = sink.outcome("empty").error
    assert error is not None and error.code == "empty_text"
    chunks = [chunk["text"] for chunk in sink.outcome("cut").value]
    engine.submit([Item("chunks", "embed", {"text": chunks})])
    embedded = sink.outcome("chunks")
    assert embedded.value.shape == (len(chunks), 384)
    assert "truncated_items" not in embedded.usage
    outcome = sink.outcome("texts")
    assert outcome.usage["truncated_items"] == 1
    return outcome.value


def test_vllm_gives_the_vectors_of_sentence_transformers():
    model = {"name": "embedding", "resource": "embedding", "model": "all-minilm-l6-v2"}
    pool = PoolConfig.model_validate({**model, "engine": "vllm_pooling"})
    engine, sink = started(vllm_pooling.create(pool))
    try:
        ours = vectors(engine, sink)
        facts = engine.describe()
    finally:
        engine.close()
    pool = PoolConfig.model_validate({**model, "engine": "sentence_transformers"})
    engine, sink = started(sentence_transformers_engine.create(pool))
    try:
        reference = vectors(engine, sink)
        known = engine.describe()
    finally:
        engine.close()
    cosines = (ours * reference).sum(axis=1)
    assert cosines.min() >= 0.999, cosines
    assert facts["dimensions"] == known["dimensions"] == 384
    assert facts["max_tokens"] == known["max_tokens"] == 256
    assert facts["fingerprint"] != known["fingerprint"], "bfloat16 is not float32"
