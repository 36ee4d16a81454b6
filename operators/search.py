"""Pages of the web, or of a local index of them. Verb ``http.search``, resource
``search``."""

from __future__ import annotations

from typing import Unpack

from herasys_rt.dsl import Node, Options, edge, operator, param
from herasys_rt.graph.types import PortType

PROVIDERS = ("local", "google", "searxng")


@operator(
    version="1",
    verb="http.search",
    resource="search",
    output=PortType.CHUNKS,
    collection="collection",
    ports={
        "query": edge(PortType.TEXT, non_empty=True),
        "top_k": param(PortType.INT, minimum=1, maximum=100),
        "provider": param(PortType.TEXT, optional=True, choices=PROVIDERS),
        "collection": param(PortType.TEXT, non_empty=True),
    },
)
def web_search(
    query: str | Node,
    *,
    top_k: int = 5,
    provider: str | None = None,
    collection: str = "web",
    **options: Unpack[Options],
):
    """At most ``top_k`` pages for a query, best first.

    Each is a dict with ``title``, ``url`` and ``snippet``; as ``id``, ``source``, ``text``
    and ``score`` they are there again, so that pages can be passages of `generate`, or be
    reranked. ``provider`` is ``google`` or ``searxng``, where the pool has one configured,
    or ``local``: full-text search in ``collection`` of the runtime's own database. None
    takes the pool's default.

    Pure: equal searches within 300 s share their result, unless the collection changes.
    """
