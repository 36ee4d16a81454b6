"""Reciprocal-rank fusion: one order from several, by ranks alone.

Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet" (2009):
an item's score is the sum over the orders it is in of ``weight / (rrf_k + rank)``, ranks
counted from 1. Scores of different kinds never meet, so nothing has to be calibrated.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)

RRF_K = 60
"""The constant of the paper: how little the first ranks differ from each other."""


def fuse_ranks(
    orders: Sequence[Sequence[K]], *, weights: Sequence[float] = (), rrf_k: float = RRF_K
) -> dict[K, float]:
    """Each item's fused score; of an item that an order holds twice the first counts.

    ``weights`` has one number per order (none: 1 each). The sum is taken in the order of
    ``orders``, so equal input gives bitwise equal scores.
    """
    scores: dict[K, float] = {}
    for order, weight in zip(orders, weights or [1.0] * len(orders), strict=True):
        for key, rank in ranks_of(order).items():
            scores[key] = scores.get(key, 0.0) + weight / (rrf_k + rank)
    return scores


def ranks_of(order: Sequence[K]) -> dict[K, int]:
    """Each item's rank from 1; of an item that is there twice the first counts."""
    ranks: dict[Any, int] = {}
    for rank, key in enumerate(order, 1):
        ranks.setdefault(key, rank)
    return ranks
