"""Chunks out of a collection: by vector, by words, or both. Resource ``retrieval``."""

from __future__ import annotations

from typing import Any, Unpack

from herasys_rt.dsl import Call, Node, Options, Symbol, edge, operator, param
from herasys_rt.graph.spec import Port
from herasys_rt.graph.types import PortType, describe

_DISTANCES = ("cosine", "inner_product", "l2")
_INDEXES = ("auto", "exact", "hnsw")


def _check_filter(call: Call) -> None:
    given = call.args.get("filter")
    if not (given is None or isinstance(given, dict | Symbol)):
        fits = '{"key": value, ...} over the metadata of documents'
        call.fault("filter", f"is {describe(given)}, no dict", fits)


def _where_from() -> dict[str, Port]:
    return {
        "collection": param(PortType.TEXT, non_empty=True),
        "top_k": param(PortType.INT, minimum=1),
        "filter": param(PortType.JSON, optional=True),
    }


def _by_vector() -> dict[str, Port]:
    return {
        "vector": edge(PortType.VECTOR),
        "distance": param(PortType.TEXT, optional=True, choices=_DISTANCES),
        "index": param(PortType.TEXT, choices=_INDEXES),
        "ef_search": param(PortType.INT, optional=True, minimum=1, maximum=1000),
    }


def _by_text() -> dict[str, Port]:
    return {
        "query": edge(PortType.TEXT, non_empty=True),
        "language": param(PortType.TEXT, optional=True, non_empty=True),
        "k1": param(PortType.FLOAT, minimum=0.0),
        "b": param(PortType.FLOAT, minimum=0.0, maximum=1.0),
    }


@operator(
    version="1",
    verb="pg.search",
    resource="retrieval",
    output=PortType.CHUNKS,
    collection="collection",
    ports={**_by_vector(), **_where_from()},
    prepare=_check_filter,
)
def retrieve(
    vector: Node,
    *,
    collection: str,
    top_k: int = 4,
    distance: str | None = None,
    filter: dict[str, Any] | None = None,
    index: str = "auto",
    ef_search: int | None = None,
    **options: Unpack[Options],
):
    """The ``top_k`` chunks of a collection nearest to a vector, best first.

    ``filter`` keeps chunks whose document metadata has these values. Fewer chunks come
    back only when the collection (or what the filter leaves) has fewer. Each chunk is a
    dict with ``id``, ``text``, ``source`` and ``score`` (larger is better).

    ``distance`` is cosine, inner_product or l2 (None: the collection's own; another is
    searched exactly). ``index`` auto uses the HNSW index of a large collection, exact
    never does, hnsw always; ``ef_search`` is how many candidates the index looks at first.
    """


@operator(
    version="1",
    verb="pg.text",
    resource="retrieval",
    output=PortType.CHUNKS,
    collection="collection",
    ports={**_by_text(), **_where_from()},
    prepare=_check_filter,
)
def search_text(
    query: str | Node,
    *,
    collection: str,
    top_k: int = 4,
    filter: dict[str, Any] | None = None,
    language: str | None = None,
    k1: float = 1.2,
    b: float = 0.75,
    **options: Unpack[Options],
):
    """The ``top_k`` chunks that any word of the query is in, best first by BM25.

    The query is plain text: quotes and operators in it are nothing special. Words are
    stemmed and stop words left out as in the collection's ``language`` (which must be its
    own when it is given); a query of only stop words finds nothing. ``k1`` says how much
    a word's repetition counts, ``b`` how much a chunk's length. ``filter`` and the chunks
    are as in `retrieve`.
    """


@operator(
    version="1",
    verb="pg.hybrid",
    resource="retrieval",
    output=PortType.CHUNKS,
    collection="collection",
    ports={
        **_by_vector(),
        **_by_text(),
        **_where_from(),
        "candidates": param(PortType.INT, minimum=1),
        "rrf_k": param(PortType.FLOAT, minimum=0.0),
        "vector_weight": param(PortType.FLOAT, minimum=0.0),
        "text_weight": param(PortType.FLOAT, minimum=0.0),
    },
    prepare=_check_filter,
)
def hybrid(
    vector: Node,
    query: str | Node,
    *,
    collection: str,
    top_k: int = 4,
    candidates: int = 100,
    rrf_k: float = 60.0,
    vector_weight: float = 1.0,
    text_weight: float = 1.0,
    distance: str | None = None,
    filter: dict[str, Any] | None = None,
    index: str = "auto",
    ef_search: int | None = None,
    language: str | None = None,
    k1: float = 1.2,
    b: float = 0.75,
    **options: Unpack[Options],
):
    """The ``top_k`` chunks of `retrieve` and `search_text` together, best first.

    Both look at the same state of the collection and give ``candidates`` chunks (or
    ``top_k``, when that is more). A chunk's ``score`` is the sum of
    ``weight / (rrf_k + rank)`` over the two; ``vector_rank`` and ``text_rank`` say where
    it was (from 1, None where it was not).
    """
