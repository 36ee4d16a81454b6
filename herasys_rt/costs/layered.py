"""Step times as a sum: by tokens, by sequences, by pairs attended and by context."""

from __future__ import annotations

import msgspec

from herasys_rt.costs.steps import attended_pairs
from herasys_rt.costs.tables import Curve


class StepParts(msgspec.Struct, frozen=True, tag="parts", tag_field="form"):
    """The parts of a step, in milliseconds.

    ``dense`` are (tokens, ms): all that goes by the tokens of an iteration, with whatever
    an iteration takes anyway; its steps are kept. ``head`` are (sequences, ms): what goes
    by the sequences that get a next token. ``pair_ms`` is what a pair of tokens attended
    in prefill takes; ``sequence_ms`` and ``context_ms`` what a decoding sequence and each
    token behind it take, and ``mixed_...`` the same beside prefill, where attention
    kernels serve them worse (never taken below the former).
    """

    dense: tuple[tuple[int, float], ...]
    head: tuple[tuple[int, float], ...] = ((1, 0.0),)
    pair_ms: float = 0.0
    sequence_ms: float = 0.0
    context_ms: float = 0.0
    mixed_sequence_ms: float = 0.0
    mixed_context_ms: float = 0.0


class LayeredSteps:
    """`StepTimes` that add up `StepParts`.

    Of an iteration with prefill one prompt is taken to end in it.
    """

    def __init__(
        self, parts: StepParts, *, kv_capacity_tokens: int, kv_bytes_per_token: int
    ) -> None:
        self.kv_capacity_tokens = kv_capacity_tokens
        self.kv_bytes_per_token = kv_bytes_per_token
        self.parts = parts
        self._dense = Curve(*_columns(parts.dense))
        self._head = Curve(*_columns(parts.head))
        self._pair_s = parts.pair_ms / 1e3
        self._sequence_s = parts.sequence_ms / 1e3
        self._context_s = parts.context_ms / 1e3
        self._mixed_sequence_s = max(parts.mixed_sequence_ms, parts.sequence_ms) / 1e3
        self._mixed_context_s = max(parts.mixed_context_ms, parts.context_ms) / 1e3

    def prefill_s(self, new: int, cached: int = 0) -> float:
        """See `StepTimes`."""
        return self.mixed_s(new, attended_pairs(new, cached), 0, 0)

    def decode_s(self, batch: int, context: int) -> float:
        """See `StepTimes`."""
        if batch <= 0:
            return 0.0
        attention = self._sequence_s * batch + self._context_s * context
        return self._dense(batch) + self._head(batch) + attention

    def mixed_s(self, prefill: int, attended: int, batch: int, context: int) -> float:
        """See `StepTimes`."""
        if prefill <= 0:
            return self.decode_s(batch, context)
        by_token = self._dense(prefill + batch) + self._head(batch + 1)
        beside = self._mixed_sequence_s * batch + self._mixed_context_s * context
        return by_token + self._pair_s * attended + beside


def _columns(rows: tuple[tuple[int, float], ...]) -> tuple[list[int], list[float]]:
    """Counts and seconds."""
    return [count for count, _ in rows], [ms / 1e3 for _, ms in rows]
