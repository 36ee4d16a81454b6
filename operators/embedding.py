"""Text to vectors. Verb ``embed``, resource ``embedding``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from herasys_rt.dsl import Node, edge, operator, param, texts_of
from herasys_rt.dsl.trace import current_trace
from herasys_rt.graph.types import PortType
from operators.text import chunk_documents

_KINDS = ("query", "document")


@operator(
    version="1",
    verb="embed",
    resource="embedding",
    output=PortType.VECTOR,
    ports={
        "text": edge(PortType.TEXT, non_empty=True),
        "kind": param(PortType.TEXT, choices=_KINDS),
    },
)
def embed(
    text: str | Node, *, kind: str = "query", model: str | None = None, label: str = ""
):
    """The embedding of one text: a unit vector, float32 of shape (dimensions,).

    ``kind`` is ``query`` or ``document``: models that want a prefix for one of them get
    it. A blank text is refused. Text beyond the model's limit is cut by the model.
    """


@operator(
    name="embed_many",
    version="1",
    verb="embed",
    resource="embedding",
    output=PortType.VECTORS,
    ports={
        "text": edge(PortType.TEXTS),
        "kind": param(PortType.TEXT, choices=_KINDS),
    },
    list_port="text",
)
def _embed_many(
    text: Sequence[str | Node] | Node,
    *,
    kind: str = "document",
    model: str | None = None,
    label: str = "",
):
    """The verb takes one text or many under the same name."""


def embed_many(
    texts: Sequence[str | Node] | Node,
    *,
    kind: str = "document",
    model: str | None = None,
    label: str = "",
) -> Node:
    """The embeddings of several texts: unit vectors, float32 of shape (n, dimensions).

    A text that another call embeds or has embedded is not embedded again.
    ``texts`` is a list of texts and nodes, or one node that gives such a list. No texts
    give shape (0, dimensions).
    """
    return _embed_many(texts, kind=kind, model=model, label=label)


def embed_documents(
    documents: Sequence[dict[str, Any] | Node] | Node,
    *,
    chunk_tokens: int = 200,
    overlap: int = 20,
    model: str | None = None,
    label: str = "",
) -> Node:
    """Documents cut into chunks, each with its embedding.

    A document is a dict with ``id``, ``text`` and optionally ``metadata``. Chunks have
    at most ``chunk_tokens`` tokens of the model, neighbours share about ``overlap``. Gives
    ``{"chunks": [...], "vectors": float32 (n, dimensions)}``.

    Two nodes, `chunk_documents` and `embed_many` (called ``label``), both served by
    ``model``: chunks of different documents whose texts are equal are embedded once.
    """
    chunks = chunk_documents(
        documents, max_tokens=chunk_tokens, overlap=overlap, model=model
    )
    vectors = embed_many(texts_of(chunks), model=model, label=label)
    return current_trace("embed_documents() was called").express(
        "record", chunks=chunks, vectors=vectors
    )
