"""Documents into a collection. Verb ``pg.write``, resource ``retrieval``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from herasys_rt.dsl import Node, edge, operator, param
from herasys_rt.graph.types import PortType
from operators.embedding import embed_documents


@operator(
    version="1",
    verb="pg.write",
    resource="retrieval",
    output=PortType.JSON,
    purity="effect",
    ports={
        "embedded": edge(PortType.EMBEDDED),
        "collection": param(PortType.TEXT, non_empty=True),
        "replace": param(PortType.BOOL),
    },
)
def store(
    embedded: Node,
    *,
    collection: str,
    replace: bool = False,
    model: str | None = None,
    label: str = "",
):
    """Write chunks and vectors into a collection, which is made when it is new.

    A chunk of a known id is overwritten. ``replace`` first deletes the older chunks of
    the same documents. An effect: executed at most once per run. Gives a dict with
    ``collection``, ``documents``, ``chunks`` and the new ``revision``.
    """


def ingest(
    documents: Sequence[dict[str, Any] | Node] | Node,
    *,
    collection: str,
    chunk_tokens: int = 200,
    overlap: int = 20,
    replace: bool = False,
    model: str | None = None,
    label: str = "",
) -> Node:
    """Cut documents into chunks, embed them and store them in a collection.

    Two nodes, `embed_documents` (served by ``model``) and `store` (called ``label``);
    gives what `store` gives.
    """
    embedded = embed_documents(
        documents, chunk_tokens=chunk_tokens, overlap=overlap, model=model
    )
    return store(embedded, collection=collection, replace=replace, label=label)
