"""Better order for retrieved chunks. Verb ``rerank``, resource ``rerank``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from herasys_rt.dsl import Node, Options, edge, operator, param
from herasys_rt.graph.spec import Reduction
from herasys_rt.graph.types import PortType


@operator(
    version="1",
    verb="rerank",
    resource="rerank",
    output=PortType.CHUNKS,
    ports={
        "query": edge(PortType.TEXT, non_empty=True),
        "chunks": edge(PortType.CHUNKS),
        "top_k": param(PortType.INT, minimum=1),
        "fuse_first_stage": param(PortType.BOOL),
    },
    list_port="chunks",
    by_text=True,
    reduction=Reduction("ranked", ("top_k", "fuse_first_stage")),
)
def rerank(
    query: str | Node,
    chunks: Sequence[dict[str, Any]] | Node,
    *,
    top_k: int = 4,
    fuse_first_stage: bool = False,
    **options: Unpack[Options],
):
    """The ``top_k`` chunks that answer the query best, best first.

    Each chunk's ``score`` becomes the reranker's and ``first_score`` what it was before;
    equal scores keep their order, and no chunks give no chunks. ``fuse_first_stage``
    orders by reciprocal-rank fusion of the given order and the reranker's: for rerankers
    that are no better than the search before them, but different. Then ``score`` is the
    fused one and ``rerank_score`` the reranker's.

    A text that another call scores or has scored for an equal query is not scored again,
    whatever else the chunks hold and whatever ``top_k`` is.
    """
