"""Embedding by sentence-transformers: the default on a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pydantic

from herasys_rt.config import PoolConfig
from herasys_rt.engines.embedding.engine import EmbeddingEngine, Kind, Vectors
from herasys_rt.engines.models import resolve_model
from herasys_rt.engines.options import EngineOptions, read_options
from herasys_rt.engines.protocol import Engine
from herasys_rt.engines.sentence_model import SentenceModel, fingerprint, prefixes
from herasys_rt.engines.tokens import TextTokens


class SentenceTransformersOptions(EngineOptions):
    """``options`` of a pool with this engine.

    ``threads`` CPU threads of the model; ``device`` cpu, cuda ... (None: what there is);
    ``dtype`` of the weights; the prefixes replace those of the model's own configuration.
    """

    threads: int = pydantic.Field(default=1, ge=1)
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    query_prefix: str | None = None
    document_prefix: str | None = None
    trust_remote_code: bool = False


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """The engine of a pool; nothing is loaded before `start`. Errors: `ConfigError`."""
    del dsn  # all engines are made alike; this one needs no database
    assert pool.model is not None, "the configuration asks for it"
    options = read_options(pool, SentenceTransformersOptions)
    encoder = SentenceEncoder(pool.model, options)
    return EmbeddingEngine(encoder, name=pool.name, batch_limit=pool.batch_limit)


class SentenceEncoder:
    """An `Encoder` over one `SentenceTransformer`."""

    def __init__(self, name: str, options: SentenceTransformersOptions) -> None:
        self._name = name
        self._options = options
        self.fingerprint = ""
        self.dimensions = 0
        self.max_tokens = 0
        self._model: Any = None
        self._tokens: TextTokens | None = None
        self._prefixes: dict[str, str] = {}

    def load(self) -> None:
        """Load on the calling thread, which then owns the model."""
        resolved = resolve_model(self._name)
        options = self._options
        loaded = SentenceModel.load(
            resolved.path,
            threads=options.threads,
            device=options.device,
            dtype=options.dtype,
            trust_remote_code=options.trust_remote_code,
        )
        self._model = loaded.model
        self._tokens = loaded.tokens
        self.max_tokens = loaded.max_tokens
        self.dimensions = int(self._model.get_embedding_dimension())
        self._prefixes = prefixes(
            self._model.prompts, options.query_prefix, options.document_prefix
        )
        self.fingerprint = fingerprint(
            resolved.fingerprint,
            "st",
            options.dtype,
            self._prefixes,
            self.max_tokens,
        )
        self.encode(["warm up"], "query")  # the first forward pass is the slowest

    def encode(self, texts: list[str], kind: Kind) -> Vectors:
        """One forward pass, float32 (n, dimensions)."""
        method = (
            self._model.encode_query if kind == "query" else self._model.encode_document
        )
        vectors = method(
            texts,
            prompt=self._prefixes[kind],
            batch_size=len(texts),
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        )
        return np.asarray(vectors, dtype=np.float32)

    def count(self, text: str, kind: Kind) -> int:
        """Tokens with prefix and special ones."""
        assert self._tokens is not None
        return self._tokens.count(self._prefixes[kind] + text)

    def offsets(self, text: str) -> Sequence[tuple[int, int]]:
        """Character ranges of the text's tokens."""
        assert self._tokens is not None
        return self._tokens.offsets(text)

    def close(self) -> None:
        """Forget the model."""
        self._model = self._tokens = None
