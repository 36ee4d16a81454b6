"""Better order for retrieved chunks. Verb ``rerank``, resource ``rerank``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from herasys_rt.dsl import Node, edge, operator, param
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
    },
)
def rerank(
    query: str | Node,
    chunks: Sequence[dict[str, Any]] | Node,
    *,
    top_k: int = 4,
    model: str | None = None,
    label: str = "",
):
    """The ``top_k`` chunks that answer the query best, best first.

    Each chunk's ``score`` becomes the reranker's; no chunks give no chunks.
    """
