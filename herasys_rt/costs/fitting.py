"""Least squares without negative coefficients, for costs that can only add up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_TOLERANCE = 1e-10


def non_negative(terms: NDArray[np.float64], values: Vector) -> Vector:
    """The ``x >= 0`` that minimises ``|terms x - values|`` (Lawson and Hanson, 1974).

    ``terms`` has a row per observation and a column per coefficient. Deterministic.
    """
    scale = np.linalg.norm(terms, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = terms / scale  # columns of one size: the tolerance then means one thing
    count = scaled.shape[1]
    x = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    limit = _TOLERANCE * max(float(np.linalg.norm(values)), 1e-300)
    for _ in range(3 * count):
        gain = scaled.T @ (values - scaled @ x)
        gain[free] = -np.inf
        best = int(np.argmax(gain))
        if not gain[best] > limit:
            break
        free[best] = True
        x = _held(scaled, values, x, free)
    return x / scale


def _held(
    terms: NDArray[np.float64], values: Vector, x: Vector, free: NDArray[np.bool_]
) -> Vector:
    """The least squares over the free coefficients; those that would go below 0 leave."""
    while True:
        step = np.zeros_like(x)
        step[free] = np.linalg.lstsq(terms[:, free], values, rcond=None)[0]
        below = free & (step <= 0.0)
        if not below.any():
            return step
        room = x[below] / np.maximum(x[below] - step[below], 1e-300)
        x = x + float(room.min()) * (step - x)
        free &= x > _TOLERANCE * max(float(np.abs(x).max()), 1e-300)
        x[~free] = 0.0
        if not free.any():
            return x
