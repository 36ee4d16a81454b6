"""What nodes make of lists that are computed item by item: the functions that a
`Reduction` may name.

A node whose output is not aligned with its list may still share the list's items: its
engine gives one part per item, and a function of this registry makes the output of the
parts and the node's arguments. Each is pure and cheap, and the registry is closed: a spec
from the wire can do nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from herasys_rt.errors import NodeError
from herasys_rt.graph.rank_fusion import fuse_ranks

Chunk = dict[str, Any]


def ranked(args: Mapping[str, Any], given: Any) -> list[Chunk]:
    """The ``top_k`` of ``chunks`` with the largest of the ``given`` scores (a list or an
    array of numbers, one per chunk), best first, equals in their first order.

    Each is a new dict with ``score`` replaced, the former one under ``first_score`` and
    its former position, from 1, under ``first_rank``. With ``fuse_first_stage`` they are
    ordered by reciprocal-rank fusion of the order before and the scores': ``score`` is
    then the fused one, ``rerank_score`` the given one.

    Errors: `NodeError` (``invalid_argument``, ``not_aligned``, ``not_finite``), whatever
    is given: it comes from engines that anybody may write.
    """
    chunks, top_k = _records(args.get("chunks")), args.get("top_k")
    fuse = args.get("fuse_first_stage", False)
    if type(top_k) is not int or top_k < 1:
        raise _bad(f"'top_k' is a whole number of at least 1, not {top_k!r}")
    if not isinstance(fuse, bool):
        raise _bad(f"'fuse_first_stage' is a bool, not {fuse!r}")
    scores = _numbers(given)
    if len(chunks) != len(scores):
        raise _not_aligned(f"there are {len(scores)} scores of {len(chunks)} chunks")
    if not all(abs(score) < math.inf for score in scores):
        raise NodeError(
            "a chunk has a score that is not finite",
            hint="Look at the texts; if every text does this, the model is damaged.",
            code="not_finite",
        )
    order = sorted(range(len(chunks)), key=lambda at: -scores[at])  # sorting is stable
    if not fuse:
        return [_scored(chunks[at], scores[at], at) for at in order[:top_k]]
    fused = fuse_ranks([range(len(chunks)), order])
    order.sort(key=lambda at: (-fused[at], at))
    return [
        {
            **_scored(chunks[at], scores[at], at),
            "score": fused[at],
            "rerank_score": scores[at],
        }
        for at in order[:top_k]
    ]


REDUCTIONS: Mapping[str, Callable[[Mapping[str, Any], Any], list[Chunk]]] = {
    "ranked": ranked
}
"""By name: from a node's arguments and the parts in the list's order, as an engine gave
them, to records."""


def sources_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records that a node gives, as the sources that a report names."""
    empty = {"id": "", "source": "", "score": None, "text": ""}
    return [{key: record.get(key, empty[key]) for key in empty} for record in records]


def _scored(chunk: Chunk, score: float, at: int) -> Chunk:
    return {
        **chunk,
        "score": score,
        "first_score": chunk.get("score"),
        "first_rank": at + 1,
    }


def _records(chunks: Any) -> list[Chunk]:
    if isinstance(chunks, list | tuple):
        found = list(cast("Sequence[Any]", chunks))
        if all(isinstance(chunk, dict) for chunk in found):
            return found
    raise _bad("'chunks' is a list of records")


def _numbers(given: Any) -> list[float]:
    """Scores as plain numbers."""
    scores = cast("Any", given).tolist() if isinstance(given, np.ndarray) else given
    if isinstance(scores, list | tuple):
        found = list(cast("Sequence[Any]", scores))
        if all(type(score) in (float, int) for score in found):
            return found
    raise _not_aligned("what the engine gave are no scores")


def _not_aligned(problem: str) -> NodeError:
    return NodeError(
        problem,
        hint="An engine that reranks gives one score per chunk, in order.",
        code="not_aligned",
    )


def _bad(problem: str) -> NodeError:
    return NodeError(problem, hint="Correct the call.", code="invalid_argument")
