"""How long outputs will be: learnt from those that came, per model and operator."""

from __future__ import annotations

import math

UNSEEN_TOKENS = 128.0
"""Expected before the first output of a kind was seen."""
LEAST_REMAINING_TOKENS = 64.0
"""What an output that outlived its prediction is expected to take at least: one chunk,
so that it never looks finished."""
_RATIO = 1.1
"""Width of a bucket: lengths are told apart to 5 %."""
_MEMORY = 2048.0
"""Outputs after which the older half counts half: workloads drift."""
_LOG_RATIO = math.log(_RATIO)


class OutputLengths:
    """Expected output lengths in tokens: a histogram per (model, operator).

    Deterministic: equal histories predict equally. The prompt is not looked at.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], _Histogram] = {}

    def expected(self, model: str, operator: str, limit: float = math.inf) -> float:
        """The mean output length, at most ``limit`` (the call's max_tokens)."""
        kind = self._kinds.get((model, operator))
        return min(kind.mean() if kind else UNSEEN_TOKENS, limit)

    def expected_given_more_than(
        self, model: str, operator: str, produced: int, limit: float = math.inf
    ) -> float:
        """The mean of the outputs longer than ``produced``: what one that goes on will
        come to, at least `LEAST_REMAINING_TOKENS` more where the limit allows.

        For whoever is told what running calls have produced: the kernel is not yet, so
        there a running call counts as a whole.
        """
        kind = self._kinds.get((model, operator))
        mean = kind.mean_above(produced) if kind else UNSEEN_TOKENS
        return min(max(mean, produced + LEAST_REMAINING_TOKENS), limit)

    def observe(self, model: str, operator: str, tokens: int) -> None:
        """An output ended by itself or at its limit."""
        self._kinds.setdefault((model, operator), _Histogram()).add(tokens)


class _Histogram:
    """Lengths in buckets of equal ratio: some hundred of them hold every length.

    Per bucket the weight of its lengths and their sum, so that means are exact.
    """

    __slots__ = ("_sums", "_total", "_weights")

    def __init__(self) -> None:
        self._weights: list[float] = []
        self._sums: list[float] = []
        self._total = 0.0

    def add(self, tokens: int) -> None:
        at = _bucket(tokens)
        missing = at + 1 - len(self._weights)
        if missing > 0:
            self._weights += [0.0] * missing
            self._sums += [0.0] * missing
        self._weights[at] += 1.0
        self._sums[at] += tokens
        self._total += 1.0
        if self._total >= _MEMORY:
            self._weights = [weight / 2.0 for weight in self._weights]
            self._sums = [total / 2.0 for total in self._sums]
            self._total /= 2.0

    def mean(self) -> float:
        return sum(self._sums) / self._total

    def mean_above(self, tokens: int) -> float:
        """The mean of the lengths in the buckets above; ``tokens`` itself if none is."""
        start = _bucket(tokens) + 1
        weight = sum(self._weights[start:])
        return sum(self._sums[start:]) / weight if weight else float(tokens)


def _bucket(tokens: int) -> int:
    return int(math.log(max(tokens, 1)) / _LOG_RATIO)
