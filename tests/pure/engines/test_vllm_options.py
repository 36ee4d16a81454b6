"""What a vLLM pool's configuration becomes, without vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.models import ResolvedModel
from herasys_rt.engines.vllm import VllmOptions, create
from herasys_rt.engines.vllm.engine import too_long
from herasys_rt.engines.vllm.options import context_tokens, engine_args
from herasys_rt.errors import ConfigError


def pool(**changes: Any) -> PoolConfig:
    values: dict[str, Any] = {"model": "smollm2-135m", "slots": 6} | changes
    return PoolConfig(name="llm", resource="llm", engine="vllm", **values)


def model(context: int | None) -> ResolvedModel:
    return ResolvedModel("m", "/models/m", "llm", "f", context, ("m",))


def test_a_cpu_gets_small_blocks_a_fixed_cache_and_eager_execution() -> None:
    args = engine_args(pool(), model(8192), VllmOptions(), cpu=True)
    assert args["block_size"] == 32
    assert args["kv_cache_memory_bytes"] == 256 * 1024 * 1024
    assert args["enforce_eager"] is True
    assert (args["max_num_seqs"], args["max_model_len"]) == (6, 2048)


def test_a_gpu_sizes_its_own_cache_and_compiles_unless_told_otherwise() -> None:
    args = engine_args(pool(), model(8192), VllmOptions(), cpu=False)
    assert "kv_cache_memory_bytes" not in args and "block_size" not in args
    assert args["enforce_eager"] is False
    told = VllmOptions(enforce_eager=True, kv_cache_memory_mb=10, block_size=16)
    args = engine_args(pool(), model(8192), told, cpu=False)
    assert args["enforce_eager"] is True
    assert (args["kv_cache_memory_bytes"], args["block_size"]) == (10 * 1024 * 1024, 16)


@pytest.mark.parametrize(
    ("options", "model_context", "context"),
    [
        ({}, 8192, 2048),
        ({}, 512, 512),
        ({}, None, 2048),
        ({"max_model_len": 4096}, 8192, 4096),
        ({"max_model_len": 4096}, 512, 4096),
    ],
)
def test_the_context_is_what_was_asked_for_else_what_the_model_can(
    options: dict[str, Any], model_context: int | None, context: int
) -> None:
    assert context_tokens(VllmOptions(**options), model(model_context)) == context


def test_the_error_of_a_long_prompt_has_the_numbers() -> None:
    error = too_long(100, 30, 128)
    assert error.code == "prompt_too_long"
    for number in ("100", "30", "130", "128"):
        assert number in error.message
    assert "98" in error.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "prefill"},
        {"options": {"max_model_length": 5}},
        {"options": {"backend": "magic"}},
        {"options": {"threads": 0}},
    ],
)
def test_a_pool_that_cannot_be_served_is_refused_before_anything_loads(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError) as caught:
        create(pool(**changes))
    assert "llm" in caught.value.message and caught.value.hint
