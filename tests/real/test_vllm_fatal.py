"""How a vLLM engine stepped in this process ends: by a failure, or before it began."""

from __future__ import annotations

import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.vllm import create
from herasys_rt.errors import EnvironmentFaultError
from tests.real.llm_sink import Recorder, ask

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


def test_a_failing_step_ends_the_engine_with_retryable_errors_and_nobody_waits() -> None:
    other = create(
        PoolConfig(
            name="other",
            resource="llm",
            engine="vllm",
            model="smollm2-135m",
            slots=2,
            options={"max_model_len": 256, "kv_cache_memory_mb": 32},
        )
    )
    sink = Recorder()
    other.start(sink)

    def broken_step() -> None:
        raise RuntimeError("out of luck")

    try:
        other.submit([ask("warm", "Say hello.", max_tokens=2)])
        assert sink.outcome("warm").error is None
        other._backend._engine.step = broken_step  # pyright: ignore
        other.submit([ask("hit", "Say hello.", max_tokens=8)])
        for key in ("hit", "later"):
            error = sink.outcome(key).error
            assert error is not None and error.retryable and error.code == "engine_failed"
            assert "out of luck" in error.message
            other.submit([ask("later", "Say hello.", max_tokens=8)] * (key == "hit"))
        fault = other.snapshot().fault
        assert fault is not None and "out of luck" in fault.message
    finally:
        other.close()
    assert all(len(ends) == 1 for ends in sink.outcomes.values())


def test_an_engine_that_cannot_fit_its_context_says_what_to_change() -> None:
    engine = create(
        PoolConfig(
            name="tight",
            resource="llm",
            engine="vllm",
            model="smollm2-135m",
            options={"max_model_len": 4096, "kv_cache_memory_mb": 2},
        )
    )
    with pytest.raises(EnvironmentFaultError) as caught:
        engine.start(Recorder())
    engine.close()
    assert caught.value.code == "engine_start"
    assert "tight" in caught.value.message and "kv_cache_memory_mb" in caught.value.hint
