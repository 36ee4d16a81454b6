"""Figures of many values: what benchmarks, simulations and reports tell of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], q: float) -> float:
    """The ``q``-th percentile (0-100), linear between neighbours; NaN of none."""
    if not 0 <= q <= 100:
        raise ValueError(f"a percentile is between 0 and 100, not {q}")
    if not values:
        return math.nan
    ranked = sorted(values)
    spot = (len(ranked) - 1) * q / 100
    below = int(spot)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (spot - below)


def distribution(values: Sequence[float]) -> dict[str, float]:
    """``mean, p50, p95, p99`` of values (at least one), in their unit."""
    return {
        "mean": statistics.fmean(values),
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
        "p99": percentile(values, 99),
    }
