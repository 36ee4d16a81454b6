"""Reranked order out of scores, whole or in parts.

A rerank may be split over its chunks: `split` makes the parts' arguments and
`merge_ranked` one result of theirs, chunk for chunk and score for score what the whole
would have given. The engine itself ends every item with `merge_ranked`, of one part.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from herasys_rt.engines.ranks import fuse_ranks

Chunk = dict[str, Any]


def ranked(
    chunks: Sequence[Mapping[str, Any]], scores: Sequence[float], first_rank: int = 1
) -> list[Chunk]:
    """New chunks with their scores, best first, equals in their first order.

    ``score`` is replaced and kept as ``first_score``; ``first_rank`` is the position of
    the first chunk in the order before, and each chunk gets its own under that name.
    """
    order = sorted(range(len(chunks)), key=lambda i: -scores[i])  # sorting is stable
    return [
        {
            **chunks[i],
            "score": scores[i],
            "first_score": chunks[i].get("score"),
            "first_rank": first_rank + i,
        }
        for i in order
    ]


def split(args: Mapping[str, Any], parts: int) -> list[dict[str, Any]]:
    """The arguments of at most ``parts`` reranks over neighbouring chunks, together
    equal to the one of ``args``; never an empty part, and always one at least.

    A part of a fused rerank keeps all its chunks, for fused ranks are known only when
    all scores are.
    """
    chunks = args["chunks"]
    many = max(1, min(parts, len(chunks)))
    bounds = [len(chunks) * at // many for at in range(many + 1)]
    fuse = bool(args.get("fuse_first_stage"))
    return [
        {
            **args,
            "chunks": chunks[low:high],
            "top_k": max(1, high - low) if fuse else args["top_k"],
            "fuse_first_stage": False,
            "first_rank": args.get("first_rank", 1) + low,
        }
        for low, high in itertools.pairwise(bounds)
    ]


def merge_ranked(
    parts: Sequence[Sequence[Mapping[str, Any]]],
    top_k: int,
    *,
    fuse_first_stage: bool = False,
) -> list[Chunk]:
    """The ``top_k`` best of several reranks' chunks, equals in the order before.

    With ``fuse_first_stage`` they are ordered by reciprocal-rank fusion of the order
    before and the reranker's: ``score`` is then the fused one, ``rerank_score`` the
    reranker's. The parts must hold all their chunks then.
    """
    whole = [dict(chunk) for part in parts for chunk in part]
    whole.sort(key=lambda chunk: (-chunk["score"], chunk["first_rank"]))
    if not fuse_first_stage:
        return whole[:top_k]
    by_score = [chunk["first_rank"] for chunk in whole]
    scores = fuse_ranks([sorted(by_score), by_score])
    fused = [
        {**chunk, "score": scores[chunk["first_rank"]], "rerank_score": chunk["score"]}
        for chunk in whole
    ]
    fused.sort(key=lambda chunk: (-chunk["score"], chunk["first_rank"]))
    return fused[:top_k]
