"""Moving keys and values from a prefill instance to a decode instance."""

from __future__ import annotations

import msgspec

from herasys_rt.costs.hardware import Gpu
from herasys_rt.costs.models import ModelArch
from herasys_rt.errors import ConfigError

SET_UP_S = 0.001
"""Of one transfer: agreeing on blocks, registering memory. Between 0.5 and 2 ms."""
LINK_EFFICIENCY = 0.7
"""Share of a link's bandwidth that scattered KV blocks get. Between 0.6 and 0.8."""


class KvEnd(msgspec.Struct, frozen=True):
    """One end of a transfer: an instance of ``tp`` GPUs that serves ``model``."""

    model: ModelArch
    gpu: Gpu
    tp: int


def kv_transfer_s(tokens: int, source: KvEnd, target: KvEnd) -> float:
    """Seconds to move the keys and values of ``tokens`` between hosts.

    ``set-up + tokens * KV bytes / (efficiency * slower link * min(tp, tp))``: each head
    travels once, over as many rank pairs as the smaller instance has. Transfers do not
    slow each other. None for no tokens. Errors: `ConfigError` when the models differ.
    """
    if source.model.name != target.model.name:
        raise ConfigError(
            f"keys and values of {source.model.name} are of no use to {target.model.name}",
            hint="Prefill and decode instances serve one model.",
        )
    if tokens <= 0:
        return 0.0
    link = min(source.gpu.network_bytes_s, target.gpu.network_bytes_s)
    pairs = min(source.tp, target.tp)
    moved = tokens * source.model.kv_bytes_per_token
    return SET_UP_S + moved / (LINK_EFFICIENCY * link * pairs)
