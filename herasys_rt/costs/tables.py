"""Measured curves and surfaces, made monotone and read between their points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def levelled(values: Matrix) -> Matrix:
    """The values made non-decreasing along every axis; monotone ones stay as they are.

    Midway between the envelopes from above and below, which keeps the largest error
    smallest.
    """
    upper, lower = values, np.flip(values)
    for axis in range(values.ndim):
        upper = np.maximum.accumulate(upper, axis=axis)
        lower = np.minimum.accumulate(lower, axis=axis)
    return (upper + np.flip(lower)) / 2.0


class Curve:
    """A non-decreasing, piecewise linear function of a count.

    Flat before its first point; behind its last it goes on as it rose over the latter half.
    Errors: `ValueError` unless ``xs`` rises and is as long as ``ys``, at least one.
    """

    __slots__ = ("_slopes", "_xs", "_ys")

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        if not xs or len(xs) != len(ys) or any(b <= a for a, b in pairwise(xs)):
            raise ValueError(f"a curve needs rising xs, one y each: {list(xs)}, {list(ys)}")
        level: list[float] = levelled(np.asarray(ys, dtype=np.float64)).tolist()
        self._xs = tuple(float(x) for x in xs)
        self._ys = tuple(level)
        slopes = [
            (y1 - y0) / (x1 - x0)
            for (x0, x1), (y0, y1) in zip(pairwise(self._xs), pairwise(level), strict=True)
        ]
        self._slopes = (*slopes, self._last_slope())

    def _last_slope(self) -> float:
        """Not that of the last two points alone: curves are stairs, seen closely."""
        if len(self._xs) < 2:
            return 0.0
        last = self._xs[-1]
        half = max(bisect_right(self._xs, last / 2.0) - 1, 0)
        return (self._ys[-1] - self._ys[half]) / (last - self._xs[half])

    def __call__(self, x: float) -> float:
        """The value at ``x``."""
        at = bisect_right(self._xs, x) - 1
        if at < 0:
            return self._ys[0]
        return self._ys[at] + self._slopes[at] * (x - self._xs[at])


class Surface:
    """A function of two counts, non-decreasing in each while the other stays.

    Bilinear between the points of its grid, of which those of a row's end may be missing
    (NaN). Outside the grid it goes on as at its edge, and far outside as at its corner.
    Errors: `ValueError` when the grid is smaller than 2 x 2 or does not rise.
    """

    __slots__ = ("_rows", "_slope_x", "_slope_y", "_xs", "_ys")

    def __init__(self, xs: Sequence[float], ys: Sequence[float], values: Matrix) -> None:
        grid = np.array(values, dtype=np.float64)
        rising = all(b > a for axis in (xs, ys) for a, b in pairwise(axis))
        if grid.shape != (len(xs), len(ys)) or min(grid.shape) < 2 or not rising:
            raise ValueError(f"a surface needs a rising grid of 2 x 2 or more: {xs}, {ys}")
        for row in grid:
            _complete(row, ys)
        grid = levelled(grid)
        # One more row and column on the far side and a column at 0: what lies outside is
        # then read like what lies inside.
        far_y = 8.0 * ys[-1]
        grid = np.column_stack(
            (
                _beyond(grid[:, 1], grid[:, 0], ys[1], ys[0], 0.0),
                grid,
                _beyond(grid[:, -2], grid[:, -1], ys[-2], ys[-1], far_y),
            )
        )
        far_x = 2.0 * xs[-1]
        last = _beyond(grid[-2], grid[-1], xs[-2], xs[-1], far_x)
        grid = np.maximum.accumulate(np.vstack((grid, last)), axis=0)
        grid = np.maximum.accumulate(grid, axis=1)
        self._xs = (*(float(x) for x in xs), far_x)
        self._ys = (0.0, *(float(y) for y in ys), far_y)
        rows: list[list[float]] = grid.tolist()
        self._rows = tuple(tuple(row) for row in rows)
        self._slope_x = (rows[-1][-1] - rows[-2][-1]) / (far_x - xs[-1])
        self._slope_y = (rows[-1][-1] - rows[-1][-2]) / (far_y - ys[-1])

    def __call__(self, x: float, y: float) -> float:
        """The value at ``x``, ``y``; below the first ``x`` as there."""
        xs, ys = self._xs, self._ys
        far = 0.0
        if x > xs[-1]:
            far += self._slope_x * (x - xs[-1])
            x = xs[-1]
        if y > ys[-1]:
            far += self._slope_y * (y - ys[-1])
            y = ys[-1]
        # Simulations ask this a million times: no calls where a comparison does.
        i = bisect_right(xs, x, 1, len(xs) - 1) - 1
        j = bisect_right(ys, y, 1, len(ys) - 1) - 1
        u = (x - xs[i]) / (xs[i + 1] - xs[i]) if x > xs[i] else 0.0
        w = (y - ys[j]) / (ys[j + 1] - ys[j])
        low, high = self._rows[i], self._rows[i + 1]
        less = low[j] + w * (low[j + 1] - low[j])
        more = high[j] + w * (high[j + 1] - high[j])
        return less + u * (more - less) + far


def _complete(row: Matrix, ys: Sequence[float]) -> None:
    """Fill a row's missing end with the line through the two points before it."""
    for j in range(2, len(row)):
        if np.isnan(row[j]):
            row[j] = _beyond(row[j - 2], row[j - 1], ys[j - 2], ys[j - 1], ys[j])


def _beyond(
    before: Matrix | float, edge: Matrix | float, x0: float, x1: float, x: float
) -> Matrix:
    """The line through (x0, before) and (x1, edge) at ``x``, at least 0."""
    line = np.asarray(edge) + (np.asarray(edge) - before) * ((x - x1) / (x1 - x0))
    return np.maximum(line, 0.0)
