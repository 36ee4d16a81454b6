"""Documents into a collection and out of it. Resource ``retrieval``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from herasys_rt.dsl import Call, Node, Options, edge, operator, param
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
        "distance": param(
            PortType.TEXT, optional=True, choices=("cosine", "inner_product", "l2")
        ),
        "storage": param(PortType.TEXT, optional=True, choices=("vector", "halfvec")),
        "language": param(PortType.TEXT, optional=True, non_empty=True),
        "m": param(PortType.INT, optional=True, minimum=2, maximum=100),
        "ef_construction": param(PortType.INT, optional=True, minimum=4, maximum=1000),
    },
)
def store(
    embedded: Node,
    *,
    collection: str,
    replace: bool = False,
    distance: str | None = None,
    storage: str | None = None,
    language: str | None = None,
    m: int | None = None,
    ef_construction: int | None = None,
    **options: Unpack[Options],
):
    """Write chunks and vectors into a collection, which is made when it is new.

    A chunk of a known id is overwritten. ``replace`` first deletes the older chunks of
    the same documents. An effect: executed at most once per run. Gives a dict with
    ``collection``, ``documents``, ``chunks`` and the new ``revision``.

    The others say what a new collection is made with, and must not contradict one that
    exists: how vectors compare (``distance``: cosine, inner_product, l2) and are kept
    (``storage``: vector, or halfvec in half the space), what ``language`` its texts are
    in (english, german, simple ...), and HNSW's ``m`` and ``ef_construction``.
    """


def ingest(
    documents: Sequence[dict[str, Any] | Node] | Node,
    *,
    collection: str,
    chunk_tokens: int = 200,
    overlap: int = 20,
    replace: bool = False,
    distance: str | None = None,
    storage: str | None = None,
    language: str | None = None,
    m: int | None = None,
    ef_construction: int | None = None,
    model: str | None = None,
    label: str = "",
) -> Node:
    """Cut documents into chunks, embed them and store them in a collection.

    `embed_documents` (served by ``model``) and then `store` (called ``label``); gives what
    `store` gives, and takes what it takes.
    """
    embedded = embed_documents(
        documents, chunk_tokens=chunk_tokens, overlap=overlap, model=model
    )
    return store(
        embedded,
        collection=collection,
        replace=replace,
        distance=distance,
        storage=storage,
        language=language,
        m=m,
        ef_construction=ef_construction,
        label=label,
    )


def _check_one(call: Call) -> None:
    given = [name for name in ("ids", "source") if call.args.get(name) is not None]
    if len(given) != 1:
        call.fault("", "takes either ids or a source", "pass exactly one of the two")


@operator(
    version="1",
    verb="pg.delete",
    resource="retrieval",
    output=PortType.JSON,
    purity="effect",
    ports={
        "ids": edge(PortType.TEXTS, optional=True),
        "source": edge(PortType.TEXT, optional=True, non_empty=True),
        "collection": param(PortType.TEXT, non_empty=True),
    },
    prepare=_check_one,
)
def delete(
    ids: Sequence[str | Node] | Node | None = None,
    *,
    source: str | Node | None = None,
    collection: str,
    **options: Unpack[Options],
):
    """Delete chunks from a collection, by their ids or all that ``source`` (a document's
    id) was cut into.

    An effect: executed at most once per run. What is not there is no error. Gives a dict
    with ``collection``, ``chunks`` (how many were deleted), ``documents`` and the
    ``revision``, which stays when nothing was deleted.
    """
