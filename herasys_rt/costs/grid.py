"""Step times from a grid: prefill by tokens, decode by sequences and context."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from herasys_rt.costs.steps import attended_pairs
from herasys_rt.costs.tables import Curve, Surface


class StepGrid(msgspec.Struct, frozen=True, tag="grid", tag_field="form"):
    """Measured steps in milliseconds.

    ``prefill`` are (tokens, ms) of one prompt alone. ``decode`` has a row for each of
    ``batches`` and in it a value for each of ``contexts``, tokens that every sequence has
    behind it; None where it was not measured.
    """

    prefill: tuple[tuple[int, float], ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    decode: tuple[tuple[float | None, ...], ...]


class GridSteps:
    """`StepTimes` that read a `StepGrid`.

    A decode step is bilinear in the batch and the mean context. An iteration with
    prefill takes what its tokens take in the prefill curve and reads the decoding
    sequences' keys and values beside, but never less than the decode step alone: the
    weights are read once.
    """

    def __init__(
        self, grid: StepGrid, *, kv_capacity_tokens: int, kv_bytes_per_token: int
    ) -> None:
        self.kv_capacity_tokens = kv_capacity_tokens
        self.kv_bytes_per_token = kv_bytes_per_token
        decode = np.array(grid.decode, dtype=np.float64) / 1e3
        self._decode = Surface(grid.batches, grid.contexts, decode)
        tokens = [tokens for tokens, _ in grid.prefill]
        seconds = [ms / 1e3 for _, ms in grid.prefill]
        if tokens[0] > 1:  # a prompt of one token is a decode step
            tokens.insert(0, 1)
            seconds.insert(0, min(self._decode(1, 1), seconds[0]))
        self._pair_s = _pair_s(tokens, seconds)
        rest = [
            s - self._pair_s * attended_pairs(n)
            for n, s in zip(tokens, seconds, strict=True)
        ]
        self._tokens = Curve(tokens, rest)
        batch, span = grid.batches[-1], grid.contexts
        reach = self._decode(batch, span[-1]) - self._decode(batch, span[0])
        self._context_s = reach / (batch * (span[-1] - span[0]))

    def prefill_s(self, new: int, cached: int = 0) -> float:
        """See `StepTimes`."""
        if new <= 0:
            return 0.0
        return self._tokens(new) + self._pair_s * attended_pairs(new, cached)

    def decode_s(self, batch: int, context: int) -> float:
        """See `StepTimes`."""
        return self._decode(batch, context / batch) if batch > 0 else 0.0

    def mixed_s(self, prefill: int, attended: int, batch: int, context: int) -> float:
        """See `StepTimes`."""
        if prefill <= 0:
            return self.decode_s(batch, context)
        together = self._tokens(prefill + batch) + self._context_s * context
        return max(together, self.decode_s(batch, context)) + self._pair_s * attended


def _pair_s(tokens: Sequence[int], seconds: Sequence[float]) -> float:
    """What one attended pair takes: the curvature of the prefill curve.

    The least-squares parabola over the longer prompts, but no more than leaves the rest
    of the curve rising.
    """
    long = [(n, s) for n, s in zip(tokens, seconds, strict=True) if n >= tokens[-1] / 16]
    lengths = np.array([float(n) for n, _ in long])
    terms = np.column_stack((np.ones_like(lengths), lengths, lengths**2 / 2.0))
    fitted = float(np.linalg.lstsq(terms, np.array([s for _, s in long]), rcond=None)[0][2])
    rising = [
        (t1 - t0) / (attended_pairs(n1) - attended_pairs(n0))
        for (n0, n1), (t0, t1) in zip(pairwise(tokens), pairwise(seconds), strict=True)
        if t1 > t0 and n1 > 1
    ]
    return max(0.0, min(fitted, *rising)) if rising else max(0.0, fitted)
