"""What fits: a model on the GPUs of one instance, and the KV cache beside it."""

from __future__ import annotations

from herasys_rt.costs.hardware import Gpu
from herasys_rt.costs.models import ModelArch
from herasys_rt.errors import ConfigError

USABLE_MEMORY = 0.9
"""Share of a GPU's memory that an engine takes for weights and KV cache (vLLM's own)."""
_GB = 1e9


def kv_bytes_held(model: ModelArch, tp: int) -> int:
    """Bytes that a token's keys and values take in an instance of ``tp`` GPUs.

    With more GPUs than KV heads each head lies on several.
    """
    copies = max(1, tp // model.kv_heads)
    return model.kv_bytes_per_token * copies


def kv_capacity_tokens(model: ModelArch, gpu: Gpu, tp: int) -> int:
    """Tokens whose keys and values fit beside the weights.

    Errors: `ConfigError` with the numbers when ``tp`` does not divide the heads, or when
    the weights leave no room for one token.
    """
    check_parallelism(model, tp)
    usable = USABLE_MEMORY * tp * gpu.memory_bytes
    tokens = int((usable - model.weight_bytes) // kv_bytes_held(model, tp))
    if tokens > 0:
        return tokens
    least = _smallest_tp(model, gpu)
    hint = (
        f"Use tensor parallelism of {least} or more, or a GPU with more memory."
        if least
        else "Use a GPU with more memory, or a smaller model."
    )
    raise ConfigError(
        f"{model.name} does not fit on {tp} x {gpu.name}: its weights take "
        f"{model.weight_bytes / _GB:.1f} GB and {USABLE_MEMORY:.0%} of "
        f"{tp * gpu.memory_bytes / _GB:.0f} GB are {usable / _GB:.1f} GB",
        hint=hint,
        weight_bytes=model.weight_bytes,
        usable_bytes=usable,
    )


def check_parallelism(model: ModelArch, tp: int) -> None:
    """Refuse a degree of tensor parallelism that the heads cannot be cut into.

    Errors: `ConfigError` that lists the degrees that can be.
    """
    if _divides(model, tp):
        return
    fits = ", ".join(str(n) for n in range(1, model.q_heads + 1) if _divides(model, n))
    raise ConfigError(
        f"tensor parallelism of {tp} does not divide the heads of {model.name}: "
        f"{model.q_heads} query and {model.kv_heads} key/value heads",
        hint=f"Use one of {fits}.",
        tp=tp,
    )


def _divides(model: ModelArch, tp: int) -> bool:
    if tp < 1 or model.q_heads % tp:
        return False
    return model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def _smallest_tp(model: ModelArch, gpu: Gpu) -> int:
    """The smallest degree, up to 64 GPUs, at which the weights leave room; 0 if none."""
    for tp in range(1, 65):
        usable = USABLE_MEMORY * tp * gpu.memory_bytes
        if _divides(model, tp) and usable - model.weight_bytes > kv_bytes_held(model, tp):
            return tp
    return 0
