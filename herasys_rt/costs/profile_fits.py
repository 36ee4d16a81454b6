"""From measured points to times: what `herasys profile` writes beside its points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from herasys_rt.costs.batch import LinearBatch
from herasys_rt.costs.fitting import non_negative
from herasys_rt.costs.layered import StepParts
from herasys_rt.costs.profile import Point
from herasys_rt.costs.steps import attended_pairs

_EDGE_JUMP = 0.2
"""An edge is where a few more tokens make an iteration dearer by this share ..."""
_EDGE_WIDTH = 0.25
"""... few being at most this share more ..."""
_EDGE_STEEPNESS = 2.0
"""... and dearer by so many times the share that the tokens grow by."""


class StepFit(NamedTuple):
    """Iterations, the mean error over the points, and the edge of the token budget (0:
    none)."""

    steps: StepParts
    error: float
    edge: int


def fit_batch(points: Sequence[Point]) -> tuple[LinearBatch, float]:
    """``overhead + item * items + token * tokens`` through points, and its mean error.

    Minimises relative errors; coefficients are at least 0. ``points`` must not be empty.
    """
    terms = np.array([[1.0, float(p.items), float(p.tokens)] for p in points])
    found, error = _relative(terms, points)
    overhead_s, item_s, token_s = found.tolist()
    return LinearBatch(overhead_s, item_s, token_s), error


def fit_steps(points: Sequence[Point], token_budget: int) -> StepFit:
    """The iterations of a language model through calls of it.

    A point is ``concurrency`` calls submitted together, until the last has ended. Its time
    is taken to be the prefill of all prompts in chunks of at most ``token_budget`` tokens,
    and one decode step of all per further output token. What each of these costs is linear
    in what `StepParts` holds: the dense curve (knots where points lie), the head per
    sequence, the pairs, the context. What calls take otherwise is not told apart from the
    start of their prefill. ``points`` must not be empty.
    """
    edge = token_edge(_prefills(points))
    knots = _knots(points, token_budget, edge)
    width = len(knots)

    def row(point: Point) -> NDArray[np.float64]:
        terms = np.zeros(width + 3)
        count, prompt = point.concurrency, point.prompt_tokens
        new = prompt - point.cached_tokens
        for chunk in _chunks(count * new, token_budget):
            terms[:width] += _share(knots, chunk)
        terms[width] += count
        terms[width + 1] = count * attended_pairs(new, point.cached_tokens)
        steps = max(point.output_tokens - 1, 0)
        terms[:width] += steps * _share(knots, count)
        terms[width] += steps * count
        terms[width + 2] = steps * count * (prompt + point.output_tokens / 2.0)
        return terms

    found, error = _relative(np.array([row(p) for p in points]), points)
    level = np.cumsum(found[:width]) * 1e3
    head, pair, context = (float(x) for x in found[width:])
    most = max(p.concurrency for p in points)
    steps = StepParts(
        dense=tuple((n, float(ms)) for n, ms in zip(knots, level, strict=True)),
        head=((0, 0.0), (max(most, 1), 1e3 * head * max(most, 1))),
        pair_ms=1e3 * pair,
        context_ms=1e3 * context,
    )
    return StepFit(steps, error, edge)


def token_edge(dense: Sequence[tuple[int, float]]) -> int:
    """The tokens after which an iteration suddenly costs more: a good token budget.

    Takes (tokens, time) in rising order; the largest jump counts. 0 where the curve has
    no edge.
    """
    edge, largest = 0, _EDGE_JUMP
    for (n0, t0), (n1, t1) in pairwise(dense):
        wider, dearer = n1 / n0 - 1.0, t1 / max(t0, 1e-12) - 1.0
        if wider <= _EDGE_WIDTH and dearer >= max(largest, _EDGE_STEEPNESS * wider):
            edge, largest = n0, dearer
    return edge


def _prefills(points: Sequence[Point]) -> list[tuple[int, float]]:
    """(tokens, seconds) of prompts alone that gave one token."""
    alone = {
        p.prompt_tokens: p.seconds
        for p in points
        if p.concurrency == 1 and p.output_tokens <= 1 and not p.cached_tokens
    }
    return sorted(alone.items())


def _knots(points: Sequence[Point], budget: int, edge: int) -> list[int]:
    """Token counts of the iterations that the points are made of.

    Of counts near to each other one is kept, since their difference would be noise;
    except behind an edge.
    """
    found = {1}
    for p in points:
        found.update(_chunks(p.concurrency * (p.prompt_tokens - p.cached_tokens), budget))
        if p.output_tokens > 1:
            found.add(p.concurrency)
    kept: list[int] = []
    for n in sorted(found):
        if not kept or n > (1.0 + _EDGE_WIDTH) * kept[-1] or kept[-1] == edge:
            kept.append(n)
    return kept


def _chunks(tokens: int, budget: int) -> list[int]:
    full, rest = divmod(tokens, budget)
    return [budget] * full + ([rest] if rest else [])


def _share(knots: Sequence[int], tokens: int) -> NDArray[np.float64]:
    """How far each rise between knots counts at ``tokens``; the first is the level at 1.

    With rises at least 0 the curve through the knots rises.
    """
    shares = np.ones(len(knots))
    for i, (low, high) in enumerate(pairwise(knots), start=1):
        shares[i] = min(max((tokens - low) / (high - low), 0.0), 1.0)
    if len(knots) > 1 and tokens > knots[-1]:
        shares[-1] = (tokens - knots[-2]) / (knots[-1] - knots[-2])
    return shares


def _relative(
    terms: NDArray[np.float64], points: Sequence[Point]
) -> tuple[NDArray[np.float64], float]:
    """Coefficients of least relative error, and the mean of these errors."""
    seconds = np.array([max(p.seconds, 1e-9) for p in points])
    weighted = terms / seconds[:, None]
    found = non_negative(weighted, np.ones(len(points)))
    return found, float(np.abs(weighted @ found - 1.0).mean())
