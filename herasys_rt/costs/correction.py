"""Correcting predictions by what was measured since, per kind of work."""

from __future__ import annotations

import math

_WEIGHT = 0.1
"""Weight of the newest ratio once many were seen; before, ratios count equally."""
_LIMIT = 4.0
"""Predictions are corrected by at most this factor, either way, and no single ratio
counts for more: a stall must not rescale everything."""


CostKey = tuple[str, str]
"""(operator, pool): work of which predictions are off by about the same factor."""


class Correction:
    """Factors that bring predicted seconds nearer to the measured ones.

    The geometric moving mean of measured / predicted: half and double weigh the same.
    Deterministic. Give `observe` the uncorrected prediction.
    """

    __slots__ = ("_factors", "_logs")

    def __init__(self) -> None:
        self._logs: dict[CostKey, tuple[int, float]] = {}
        self._factors: dict[CostKey, float] = {}

    def factor(self, cost_key: CostKey) -> float:
        """What to multiply a prediction by; 1 before anything was seen."""
        return self._factors.get(cost_key, 1.0)

    def observe(self, cost_key: CostKey, predicted_s: float, measured_s: float) -> None:
        """A prediction and what it came to; ignored unless both are above 0."""
        if not (0.0 < predicted_s < math.inf and 0.0 < measured_s < math.inf):
            return
        bound = math.log(_LIMIT)
        ratio = math.log(measured_s) - math.log(predicted_s)
        ratio = min(max(ratio, -bound), bound)
        count, log = self._logs.get(cost_key, (0, 0.0))
        weight = max(1.0 / (count + 1), _WEIGHT)
        log += weight * (ratio - log)
        self._logs[cost_key] = (count + 1, log)
        self._factors[cost_key] = math.exp(log)
