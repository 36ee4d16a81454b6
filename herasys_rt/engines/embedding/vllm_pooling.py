"""Embedding by vLLM's pooling runner: two to three times the throughput on a CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic

from herasys_rt.config import PoolConfig
from herasys_rt.engines.embedding.engine import EmbeddingEngine, Kind, Vectors
from herasys_rt.engines.models import resolve_model
from herasys_rt.engines.options import EngineOptions, read_options
from herasys_rt.engines.protocol import Engine
from herasys_rt.engines.sentence_model import fingerprint, loading, prefixes
from herasys_rt.engines.tokens import TextTokens

_ENVIRONMENT = {
    # In this process: the engine's thread owns the model and nothing outlives it.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # One warning per tensor whose dtype is converted says nothing new.
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class VllmPoolingOptions(EngineOptions):
    """``options`` of a pool with this engine.

    ``dtype`` bfloat16 by default (float16, what "auto" picks, is slow on CPUs);
    ``max_model_len`` tokens (None: what the model says); ``kv_cache_memory_mb`` bounds
    what vLLM sets aside; the prefixes replace those of the model's own configuration.
    """

    threads: int = pydantic.Field(default=1, ge=1)
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    max_model_len: int | None = pydantic.Field(default=None, ge=8)
    kv_cache_memory_mb: int = pydantic.Field(default=64, ge=1)
    tensor_parallel_size: int = pydantic.Field(default=1, ge=1)
    query_prefix: str | None = None
    document_prefix: str | None = None
    trust_remote_code: bool = False


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """The engine of a pool; nothing is loaded before `start`. Errors: `ConfigError`."""
    del dsn  # all engines are made alike; this one needs no database
    assert pool.model is not None, "the configuration asks for it"
    options = read_options(pool, VllmPoolingOptions)
    encoder = PoolingEncoder(pool.model, options, pool.batch_limit)
    return EmbeddingEngine(encoder, name=pool.name, batch_limit=pool.batch_limit)


class PoolingEncoder:
    """An `Encoder` over one in-process ``vllm.LLM`` with the pooling runner."""

    def __init__(self, name: str, options: VllmPoolingOptions, batch_limit: int) -> None:
        self._name = name
        self._options = options
        self._batch_limit = batch_limit
        self.fingerprint = ""
        self.dimensions = 0
        self.max_tokens = 0
        self._llm: Any = None
        self._tokens: TextTokens | None = None
        self._prefixes: dict[str, str] = {}

    def load(self) -> None:
        """Load on the calling thread, which then owns the model."""
        resolved = resolve_model(self._name)
        options = self._options
        # Read by OpenMP when torch is first imported; spinning threads cost more than
        # they give on a small machine.
        threads = {"OMP_NUM_THREADS": str(options.threads)}
        for name, value in (_ENVIRONMENT | threads).items():
            os.environ.setdefault(name, value)
        with loading(resolved.path, options.threads):
            from vllm import LLM

            self._llm = LLM(
                resolved.path,
                runner="pooling",
                dtype=options.dtype,
                max_model_len=options.max_model_len,
                max_num_seqs=self._batch_limit,
                tensor_parallel_size=options.tensor_parallel_size,
                trust_remote_code=options.trust_remote_code,
                kv_cache_memory_bytes=options.kv_cache_memory_mb * 1024 * 1024,
                block_size=32,
                enforce_eager=True,
                disable_log_stats=True,
            )
            self._tokens = TextTokens.of(self._llm.get_tokenizer(), resolved.path)
        model_config = self._llm.model_config
        self.max_tokens = int(model_config.max_model_len)
        self._prefixes = prefixes(
            _own_prompts(resolved.path), options.query_prefix, options.document_prefix
        )
        self.fingerprint = fingerprint(
            resolved.fingerprint,
            "vllm",
            options.dtype,
            self._prefixes,
            self.max_tokens,
        )
        # Asking the model itself also makes its first forward pass happen before traffic.
        self.dimensions = int(self.encode(["warm up"], "query").shape[1])

    def encode(self, texts: list[str], kind: Kind) -> Vectors:
        """One call for all texts, float32 (n, dimensions)."""
        from vllm.inputs import tokens_input

        assert self._tokens is not None
        prefix = self._prefixes[kind]
        prompts = [
            tokens_input(self._tokens.ids(prefix + text, self.max_tokens)) for text in texts
        ]
        outputs = self._llm.embed(prompts, use_tqdm=False)
        return np.asarray([o.outputs.embedding for o in outputs], dtype=np.float32)

    def count(self, text: str, kind: Kind) -> int:
        """Tokens with prefix and special ones."""
        assert self._tokens is not None
        return self._tokens.count(self._prefixes[kind] + text)

    def offsets(self, text: str) -> Sequence[tuple[int, int]]:
        """Character ranges of the text's tokens."""
        assert self._tokens is not None
        return self._tokens.offsets(text)

    def close(self) -> None:
        """Shut the engine core down and forget it."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()


def _own_prompts(path: str) -> dict[str, str]:
    """The prompts of a model's sentence-transformers configuration, when it has one.

    A hub id is looked up in the library's cache, where loading has just put the model.
    """
    file = Path(path) / "config_sentence_transformers.json"
    if not Path(path).is_dir():
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(path, file.name)
        file = Path(cached) if isinstance(cached, str) else file
    if not file.is_file():
        return {}
    prompts = json.loads(file.read_text(encoding="utf-8")).get("prompts") or {}
    return {str(name): str(prompt or "") for name, prompt in prompts.items()}
