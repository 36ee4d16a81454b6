"""Nearest chunks of a collection. Verb ``pg.search``, resource ``retrieval``."""

from __future__ import annotations

from typing import Any

from herasys_rt.dsl import Call, Node, Symbol, edge, operator, param
from herasys_rt.graph.types import PortType, describe


def _check_filter(call: Call) -> None:
    given = call.args.get("filter")
    if not (given is None or isinstance(given, dict | Symbol)):
        fits = '{"key": value, ...} over the metadata of documents'
        call.fault("filter", f"is {describe(given)}, no dict", fits)


@operator(
    version="1",
    verb="pg.search",
    resource="retrieval",
    output=PortType.CHUNKS,
    collection="collection",
    ports={
        "vector": edge(PortType.VECTOR),
        "collection": param(PortType.TEXT, non_empty=True),
        "top_k": param(PortType.INT, minimum=1),
        "filter": param(PortType.JSON, optional=True),
    },
    prepare=_check_filter,
)
def retrieve(
    vector: Node,
    *,
    collection: str,
    top_k: int = 4,
    filter: dict[str, Any] | None = None,
    model: str | None = None,
    label: str = "",
):
    """The ``top_k`` chunks of a collection nearest to a vector, best first.

    ``filter`` keeps chunks whose document metadata has these values. Fewer chunks come
    back only when the collection (or what the filter leaves) has fewer. Each chunk is a
    dict with ``id``, ``text``, ``source`` and ``score`` (larger is better).
    """
