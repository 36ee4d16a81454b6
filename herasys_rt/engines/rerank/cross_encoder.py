"""Reranking by a cross-encoder: query and text are read together, nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic

from herasys_rt.config import PoolConfig
from herasys_rt.engines.batching import Piece
from herasys_rt.engines.models import resolve_model
from herasys_rt.engines.options import EngineOptions, read_options
from herasys_rt.engines.protocol import Engine
from herasys_rt.engines.rerank.engine import Request, RerankEngine
from herasys_rt.engines.sentence_model import loading
from herasys_rt.engines.tokens import TextTokens
from herasys_rt.errors import ModelUnavailableError


class CrossEncoderOptions(EngineOptions):
    """``options`` of a pool with this engine.

    ``max_length`` tokens of a pair (None: what the model takes); ``threads`` CPU threads
    of the model; ``device`` cpu, cuda ... (None: what there is).
    """

    threads: int = pydantic.Field(default=1, ge=1)
    max_length: int | None = pydantic.Field(default=None, ge=8)
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    trust_remote_code: bool = False


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """The engine of a pool; nothing is loaded before `start`. Errors: `ConfigError`."""
    del dsn  # all engines are made alike; this one needs no database
    assert pool.model is not None, "the configuration asks for it"
    options = read_options(pool, CrossEncoderOptions)
    scorer = CrossEncoderScorer(pool.model, options)
    return RerankEngine(scorer, name=pool.name, batch_limit=pool.batch_limit)


class CrossEncoderScorer:
    """A `Scorer` over one `CrossEncoder` with a single output."""

    def __init__(self, name: str, options: CrossEncoderOptions) -> None:
        self._name = name
        self._options = options
        self.fingerprint = ""
        self.max_tokens = 0
        self._model: Any = None
        self._tokens: TextTokens | None = None

    def load(self) -> None:
        """Load on the calling thread, which then owns the model."""
        resolved = resolve_model(self._name)
        options = self._options
        with loading(resolved.path, options.threads):
            from sentence_transformers import CrossEncoder

            self._model = CrossEncoder(
                resolved.path,
                device=options.device,
                max_length=options.max_length,
                local_files_only=Path(resolved.path).is_dir(),
                trust_remote_code=options.trust_remote_code,
                model_kwargs={"dtype": options.dtype},
            )
            self._model.eval()
            self._tokens = TextTokens.of(self._model.tokenizer, resolved.path)
        outputs = int(self._model.num_labels)
        if outputs != 1:
            raise ModelUnavailableError(
                f"model {self._name!r} gives {outputs} values per pair, a reranker one",
                hint="Choose a cross-encoder that was trained for ranking.",
            )
        self.max_tokens = int(self._model.max_seq_length or 512)
        self.fingerprint = f"{resolved.fingerprint}/cross/{options.dtype}/{self.max_tokens}"
        self.compute([Piece(("warm", "up"), 2)])

    def pieces(self, request: Request) -> list[Piece]:
        """One pair per text."""
        assert self._tokens is not None
        query, count = request.query, self._tokens.count
        return [
            Piece((query, text), count(query, text), label=f"chunks[{i}]")
            for i, text in enumerate(request.texts)
        ]

    def compute(self, pieces: list[Piece]) -> Sequence[float]:
        """The score of each pair, in one forward pass."""
        scores = self._model.predict(
            [piece.payload for piece in pieces],
            batch_size=len(pieces),
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return [float(score) for score in np.asarray(scores, dtype=np.float64)]

    def scores(self, request: Request, results: list[float]) -> list[float]:
        """The pairs' scores are the texts' scores."""
        del request
        return results

    def close(self) -> None:
        """Forget the model."""
        self._model = self._tokens = None
