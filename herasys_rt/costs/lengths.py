"""How long outputs will be: learnt from those that came, per model and operator."""

from __future__ import annotations

import math
from typing import Protocol

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


class LengthPredictor(Protocol):
    """Predicts output lengths in tokens. Deterministic: equal histories predict equally.

    A learnt predictor may look at the prompt; the one here does not.
    """

    def expected(
        self, model: str, operator: str, limit: int | None = None, prompt: str = ""
    ) -> float:
        """The mean output length, at most ``limit`` (the call's max_tokens)."""
        ...

    def quantile(
        self, model: str, operator: str, q: float, limit: int | None = None
    ) -> float:
        """The length that a share ``q`` of the outputs does not exceed."""
        ...

    def expected_given_more_than(
        self, model: str, operator: str, produced: int, limit: int | None = None
    ) -> float:
        """The mean of the outputs longer than ``produced``: what one that goes on will
        come to, at least `LEAST_REMAINING_TOKENS` more where the limit allows."""
        ...

    def observe(self, model: str, operator: str, tokens: int) -> None:
        """An output ended by itself or at its limit."""
        ...


class QuantileLengths:
    """`LengthPredictor` that keeps a histogram per (model, operator)."""

    def __init__(self, unseen_tokens: float = UNSEEN_TOKENS) -> None:
        self._unseen = unseen_tokens
        self._kinds: dict[tuple[str, str], _Histogram] = {}

    def expected(
        self, model: str, operator: str, limit: int | None = None, prompt: str = ""
    ) -> float:
        """See `LengthPredictor`."""
        kind = self._kinds.get((model, operator))
        return _within(kind.mean() if kind else self._unseen, limit)

    def quantile(
        self, model: str, operator: str, q: float, limit: int | None = None
    ) -> float:
        """See `LengthPredictor`."""
        kind = self._kinds.get((model, operator))
        return _within(kind.quantile(q) if kind else self._unseen, limit)

    def expected_given_more_than(
        self, model: str, operator: str, produced: int, limit: int | None = None
    ) -> float:
        """See `LengthPredictor`."""
        kind = self._kinds.get((model, operator))
        mean = kind.mean_above(produced) if kind else self._unseen
        return _within(max(mean, produced + LEAST_REMAINING_TOKENS), limit)

    def observe(self, model: str, operator: str, tokens: int) -> None:
        """See `LengthPredictor`."""
        self._kinds.setdefault((model, operator), _Histogram()).add(tokens)


def _within(tokens: float, limit: int | None) -> float:
    return tokens if limit is None else min(tokens, float(limit))


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

    def quantile(self, q: float) -> float:
        """The mean of the bucket that the quantile lies in."""
        wanted = q * self._total
        passed = 0.0
        last = 0.0
        for weight, total in zip(self._weights, self._sums, strict=True):
            if weight == 0.0:
                continue
            passed += weight
            last = total / weight
            if passed >= wanted:
                break
        return last

    def mean_above(self, tokens: int) -> float:
        """The mean of the lengths in the buckets above; ``tokens`` itself if none is."""
        start = _bucket(tokens) + 1
        weight = sum(self._weights[start:])
        return sum(self._sums[start:]) / weight if weight else float(tokens)


def _bucket(tokens: int) -> int:
    return int(math.log(max(tokens, 1)) / _LOG_RATIO)
