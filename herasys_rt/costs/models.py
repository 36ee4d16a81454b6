"""Language models by name: the numbers of their architecture, and what follows of them."""

from __future__ import annotations

import msgspec

from herasys_rt.costs.names import named


class ModelArch(msgspec.Struct, frozen=True):
    """A decoder-only transformer with gated feed-forward layers, dense or of experts.

    ``intermediate`` is the width of a feed-forward layer, of one expert where there are
    ``experts``, of which each token passes ``experts_per_token``. ``context_tokens`` are
    the most that a prompt and its output may have together. ``bytes_per_weight`` holds
    for weights and for keys and values.
    """

    name: str
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context_tokens: int
    experts: int = 0
    experts_per_token: int = 0
    tied_embeddings: bool = False
    bytes_per_weight: int = 2

    @property
    def parameters(self) -> int:
        """All weights."""
        return self._shared_parameters + self.layers * self.experts * self._feed_forward

    @property
    def active_parameters(self) -> int:
        """Weights that one token passes."""
        chosen = self.layers * self.experts_per_token * self._feed_forward
        return self._shared_parameters + chosen

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.parameters * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, each head once."""
        width = self.kv_heads * self.head_dim
        return 2 * self.layers * width * self.bytes_per_weight

    def touched_bytes(self, tokens: float) -> float:
        """Bytes of the weights that an iteration over ``tokens`` reads.

        Of ``E`` experts, of which each token picks ``k`` evenly, ``E (1 - (1 - k/E)^n)``
        are touched.
        """
        shared = self._shared_parameters * self.bytes_per_weight
        if not self.experts:
            return float(shared)
        missed = (1.0 - self.experts_per_token / self.experts) ** tokens
        experts = self.layers * self.experts * self._feed_forward * (1.0 - missed)
        return shared + experts * self.bytes_per_weight

    @property
    def _feed_forward(self) -> int:
        return 3 * self.hidden * self.intermediate

    @property
    def _shared_parameters(self) -> int:
        """Weights that every token passes."""
        attention = 2 * self.hidden * (self.q_heads + self.kv_heads) * self.head_dim
        beside = self.hidden * self.experts if self.experts else self._feed_forward
        norms = 2 * self.hidden
        tables = 1 if self.tied_embeddings else 2
        embeddings = tables * self.vocabulary * self.hidden
        return embeddings + self.layers * (attention + beside + norms) + self.hidden


MODELS: tuple[ModelArch, ...] = (
    ModelArch("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128_256, 8_192),
    ModelArch("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128_256, 131_072),
    ModelArch(
        "qwen3-235b-a22b", 94, 4096, 64, 4, 128, 1536, 151_936, 40_960,
        experts=128, experts_per_token=8,
    ),
    ModelArch(
        "qwen3-coder-30b-a3b", 48, 2048, 32, 4, 128, 768, 151_936, 262_144,
        experts=128, experts_per_token=8,
    ),
    ModelArch(
        "smollm2-135m", 30, 576, 9, 3, 64, 1536, 49_152, 8_192, tied_embeddings=True
    ),
)  # fmt: skip
"""The models' published ``config.json``. Another one is one more entry."""

_ALIASES = {
    "llama-3.1-8b": "llama-3-8b",
    "meta-llama/meta-llama-3-8b": "llama-3-8b",
    "meta-llama/meta-llama-3-8b-instruct": "llama-3-8b",
    "meta-llama/llama-3.1-8b": "llama-3-8b",
    "meta-llama/llama-3.1-8b-instruct": "llama-3-8b",
    "meta-llama/llama-3.1-70b": "llama-3.1-70b",
    "meta-llama/llama-3.1-70b-instruct": "llama-3.1-70b",
    "qwen/qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen/qwen3-coder-30b-a3b-instruct": "qwen3-coder-30b-a3b",
    "huggingfacetb/smollm2-135m-instruct": "smollm2-135m",
}

_CONTEXTS = {
    "llama-3.1-8b": 131_072,
    "meta-llama/llama-3.1-8b": 131_072,
    "meta-llama/llama-3.1-8b-instruct": 131_072,
}
"""Names of models that differ from what they are aliases of in their context alone."""


def model(name: str) -> ModelArch:
    """The model of a name or hub id; case and ``_`` for ``-`` do not matter.

    Errors: `ConfigError` that lists the known ones.
    """
    found = named("model", name, MODELS, _ALIASES)
    context = _CONTEXTS.get(name.strip().lower().replace("_", "-"))
    if context is None:
        return found
    return msgspec.structs.replace(found, context_tokens=context)
