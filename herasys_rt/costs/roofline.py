"""Step times from data sheets: the larger of computing and reading, and what is added."""

from __future__ import annotations

import msgspec

from herasys_rt.costs.hardware import Gpu
from herasys_rt.costs.memory import kv_bytes_held, kv_capacity_tokens
from herasys_rt.costs.models import ModelArch
from herasys_rt.costs.steps import attended_pairs


class Efficiency(msgspec.Struct, frozen=True):
    """How near to its data sheet a GPU comes.

    ``compute`` and ``experts`` are shares of the peak operations for dense models and for
    models of experts, whose matrices are small. ``memory`` and ``link`` are shares of the
    bandwidths. ``hop_s`` is the latency of one all-reduce, ``layer_s`` what starting a
    layer's kernels takes. The defaults are one fit over the six measured settings of
    docs/costs.md, which they meet within 10 % on average.
    """

    compute: float = 0.72
    experts: float = 0.33
    memory: float = 0.73
    link: float = 0.60
    hop_s: float = 7e-6
    layer_s: float = 35e-6


_DATA_CENTRE = Efficiency()
_EFFICIENCIES = {
    # A consumer card reaches its bf16 peak, stated for 32-bit sums at half rate, and
    # its whole bandwidth: fitted to the measurements of Llama-3-8B.
    "rtx-4090": Efficiency(compute=1.0, experts=0.46, memory=1.0, layer_s=20e-6),
}


def efficiency_of(gpu: Gpu) -> Efficiency:
    """What is known of a GPU's efficiency; the fit over SXM boards for all others."""
    return _EFFICIENCIES.get(gpu.name, _DATA_CENTRE)


class RooflineSteps:
    """`StepTimes` of a model on ``tp`` GPUs of one host, for any pair of the catalogues.

    ``t = max(F / (tp peak e), W / (tp B m)) + K / (tp B m) + layers (2 all-reduces +
    start)``: F are the operations ``2 P_active n + 4 layers heads head pairs``, W the
    weights read, K the keys and values read. Errors: `ConfigError` as
    `kv_capacity_tokens` says.
    """

    def __init__(
        self,
        model: ModelArch,
        gpu: Gpu,
        tp: int = 1,
        efficiency: Efficiency | None = None,
    ) -> None:
        efficiency = efficiency or efficiency_of(gpu)
        self.kv_capacity_tokens = kv_capacity_tokens(model, gpu, tp)
        self.kv_bytes_per_token = model.kv_bytes_per_token
        share = efficiency.experts if model.experts else efficiency.compute
        flops_s = tp * gpu.bf16_flops * share
        bytes_s = tp * gpu.memory_bytes_s * efficiency.memory
        self._model = model
        self._token_s = 2.0 * model.active_parameters / flops_s
        pair_flops = 4.0 * model.layers * model.q_heads * model.head_dim
        self._pair_s = pair_flops / (tp * gpu.bf16_flops * efficiency.compute)
        self._byte_s = 1.0 / bytes_s
        self._context_s = kv_bytes_held(model, tp) / bytes_s
        hops = 2 * model.layers if tp > 1 else 0
        moved = 2.0 * (tp - 1) / tp * model.hidden * model.bytes_per_weight
        self._sent_s = hops * moved / (gpu.link_bytes_s * efficiency.link)
        self._start_s = hops * efficiency.hop_s + model.layers * efficiency.layer_s

    def prefill_s(self, new: int, cached: int = 0) -> float:
        """See `StepTimes`."""
        if new <= 0:
            return 0.0
        return self._step_s(new, attended_pairs(new, cached), 0)

    def decode_s(self, batch: int, context: int) -> float:
        """See `StepTimes`."""
        return self._step_s(batch, 0, context) if batch > 0 else 0.0

    def mixed_s(self, prefill: int, attended: int, batch: int, context: int) -> float:
        """See `StepTimes`."""
        tokens = prefill + batch
        return self._step_s(tokens, attended, context) if tokens > 0 else 0.0

    def _step_s(self, tokens: int, pairs: int, context: int) -> float:
        compute = self._token_s * tokens + self._pair_s * pairs
        read = self._model.touched_bytes(tokens) * self._byte_s
        beside = self._context_s * context + self._sent_s * tokens + self._start_s
        return max(compute, read) + beside
