"""Batch engines and KV transfers."""

from __future__ import annotations

import pytest

from herasys_rt.costs.batch import ENCODERS, RETRIEVAL, LinearBatch, batch_times
from herasys_rt.costs.hardware import gpu
from herasys_rt.costs.models import model
from herasys_rt.costs.network import KvEnd, kv_transfer_s
from herasys_rt.errors import ConfigError


def end(card: str, tp: int, name: str = "llama-3.1-70b") -> KvEnd:
    return KvEnd(model(name), gpu(card), tp)


def test_a_batch_is_overhead_items_and_tokens():
    times = LinearBatch(0.5, 0.1, 0.01)
    assert times.batch_s(2, 30) == pytest.approx(1.0)
    assert times.batch_s(0, 0) == 0.0


def test_an_embedder_on_a_cpu_is_as_fast_as_measured():
    times = batch_times("embed", "all-minilm-l6-v2")
    assert 1 / times.batch_s(1, 66) == pytest.approx(44, rel=0.05)
    assert 8 / times.batch_s(8, 8 * 66) == pytest.approx(74, rel=0.05)


def test_three_instances_on_one_gpu_take_three_times_as_long_per_token():
    whole = batch_times("rerank", "bge-reranker-large", "rtx-4090")
    third = batch_times("rerank", "bge-reranker-large", "rtx-4090", share=1 / 3)
    assert third.token_s == pytest.approx(3 * whole.token_s)
    assert third.overhead_s == whole.overhead_s


@pytest.mark.parametrize("verb", sorted(RETRIEVAL))
def test_retrieval_needs_no_model(verb):
    assert batch_times(verb).batch_s(1, 0) > 0.0


def test_what_is_in_no_catalogue_is_refused_with_what_is():
    with pytest.raises(ConfigError, match=r"embed, rerank, pg\.search"):
        batch_times("http.search")
    with pytest.raises(ConfigError) as caught:
        batch_times("embed", "word2vec")
    assert all(encoder.name in caught.value.message for encoder in ENCODERS)
    with pytest.raises(ConfigError, match=r"not 1\.5"):
        batch_times("embed", "bge-large-en-v1.5", "h100", share=1.5)


def test_a_transfer_goes_over_the_slower_link_by_the_pairs_of_ranks():
    per_s = 0.7 * 25e9 * 4
    expected = 0.001 + 10_000 * 327_680 / per_s
    assert kv_transfer_s(10_000, end("h200", 8), end("a100", 4)) == pytest.approx(expected)
    assert kv_transfer_s(10_000, end("a100", 4), end("h200", 8)) == pytest.approx(expected)
    faster = kv_transfer_s(10_000, end("h200", 4), end("h100", 4))
    assert faster - 0.001 == pytest.approx((expected - 0.001) / 2)
    assert kv_transfer_s(0, end("h100", 4), end("h100", 4)) == 0.0


def test_keys_and_values_of_another_model_are_of_no_use():
    with pytest.raises(ConfigError, match="of no use"):
        kv_transfer_s(1, end("h100", 4), end("h100", 8, "qwen3-235b-a22b"))
