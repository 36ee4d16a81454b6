"""What engines that take batches need: embedders, rerankers, retrieval, ingestion.

A batch takes ``overhead + item * items + token * tokens``. The constants below are
documented guesses from data sheets and a few measurements; a profile replaces them.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from herasys_rt.costs.hardware import Gpu, gpu
from herasys_rt.costs.names import named
from herasys_rt.errors import ConfigError


class BatchTimes(Protocol):
    """How long a batch takes. Pure, deterministic, non-decreasing in each argument."""

    def batch_s(self, items: int, tokens: int) -> float:
        """Seconds for ``items`` with ``tokens`` in all; nothing takes no time."""
        ...


class LinearBatch(msgspec.Struct, frozen=True):
    """`BatchTimes` with three coefficients, in seconds."""

    overhead_s: float
    item_s: float = 0.0
    token_s: float = 0.0

    def batch_s(self, items: int, tokens: int) -> float:
        """See `BatchTimes`."""
        if items <= 0:
            return 0.0
        return self.overhead_s + self.item_s * items + self.token_s * tokens


class Encoder(msgspec.Struct, frozen=True):
    """A model that reads texts: ``weights`` of its layers, embeddings left out."""

    name: str
    weights: float


ENCODERS: tuple[Encoder, ...] = (
    Encoder("all-minilm-l6-v2", 10.6e6),
    Encoder("bge-large-en-v1.5", 303e6),
    Encoder("bge-reranker-large", 303e6),
)
_ALIASES = {
    "all-minilm": "all-minilm-l6-v2",
    "sentence-transformers/all-minilm-l6-v2": "all-minilm-l6-v2",
    "bge-large": "bge-large-en-v1.5",
    "baai/bge-large-en-v1.5": "bge-large-en-v1.5",
    "baai/bge-reranker-large": "bge-reranker-large",
}

ENCODER_EFFICIENCY = 0.4
"""Share of a GPU's peak that an encoder reaches on batches of short texts."""
ENCODER_OVERHEAD_S = 0.006
"""Of a batch on a GPU: tokenizing, some 300 kernels started from Python, copying back."""
ENCODER_ITEM_S = 0.0001
"""Of a text: its tokens made, its vector handed over."""
CPU_FLOPS = 112e9
CPU_OVERHEAD_S = 0.010
"""MiniLM on two cores with AVX-512: 66-token texts, 44 a second alone, 74 in eights."""

RETRIEVAL: dict[str, LinearBatch] = {
    # pgvector 0.8, HNSW over 20,000 x 384: top 12 in 0.5-0.8 ms, a call around it.
    "pg.search": LinearBatch(0.0, item_s=0.001),
    "pg.text": LinearBatch(0.0, item_s=0.003),
    "pg.hybrid": LinearBatch(0.0, item_s=0.004),
    # COPY takes 14 us a row, its place in the HNSW index 180 us.
    "pg.write": LinearBatch(0.004, item_s=0.0002),
    "pg.delete": LinearBatch(0.004),
}
"""PostgreSQL with pgvector, warm, on one connection. An item of a write is a chunk."""


def batch_times(
    verb: str,
    model: str | Encoder | None = None,
    on: str | Gpu | None = None,
    share: float = 1.0,
) -> LinearBatch:
    """Batch times of a verb: ``embed`` and ``rerank`` with a model, or retrieval.

    ``on`` is the GPU (None: two CPU cores), of which the instance has ``share``. Reranking
    by late interaction is what embedding its passages takes, none of them cached. Tokens
    of a rerank batch count the query once per passage.

    Errors: `ConfigError` for what is in no catalogue, with what is.
    """
    if verb in RETRIEVAL:
        return RETRIEVAL[verb]
    if verb not in ("embed", "rerank"):
        raise ConfigError(
            f"there is no catalogue of times for {verb!r}; there are embed, rerank, "
            f"{', '.join(RETRIEVAL)}",
            hint="Give a fixed time, or a profile that measured it.",
            verb=verb,
        )
    if not 0.0 < share <= 1.0:
        raise ConfigError(
            f"the share of a GPU is above 0 and at most 1, not {share}",
            hint="Three instances on one GPU have a share of 0.33 each.",
        )
    if not isinstance(model, Encoder):
        model = named("encoder", model or "", ENCODERS, _ALIASES)
    operations = 2.0 * model.weights
    if on is None:
        return LinearBatch(CPU_OVERHEAD_S, 0.0, operations / (CPU_FLOPS * share))
    card = gpu(on) if isinstance(on, str) else on
    flops_s = card.bf16_flops * ENCODER_EFFICIENCY * share
    return LinearBatch(ENCODER_OVERHEAD_S, ENCODER_ITEM_S, operations / flops_s)
