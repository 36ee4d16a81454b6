"""Search providers behind the engine protocol: the verb ``http.search``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.config import PoolConfig
from herasys_rt.documents import clean_text
from herasys_rt.engines.options import read_options
from herasys_rt.engines.protocol import Engine, Item, Outcome, Sink, Snapshot
from herasys_rt.engines.search.answers import pages
from herasys_rt.engines.search.local import LocalIndex
from herasys_rt.engines.search.options import SearchOptions
from herasys_rt.engines.search.web import Google, NoSecrets, Searxng, WebProvider
from herasys_rt.engines.serving import ItemTasks
from herasys_rt.errors import ConfigError, InputError, NodeError

if TYPE_CHECKING:
    import httpx

_SOURCE_KEYS = ("id", "source", "score", "text")
_LONGEST_QUERY = 2048
_MOST_RESULTS = 100


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """The engine of one instance of ``pool``; the local provider searches at ``dsn``.

    Errors: `ConfigError` for options it does not know, and when the default provider is
    the local one and there is no database.
    """
    options = read_options(pool, SearchOptions)
    if options.provider == "local" and not dsn:
        raise ConfigError(
            f"pool {pool.name!r} searches locally and there is no database",
            hint="Add a pool of resource retrieval (engine pgvector), or choose the "
            "provider google or searxng.",
            pool=pool.name,
        )
    return SearchEngine(options, dsn)


class SearchEngine:
    """See `herasys_rt.engines.protocol.Engine` for the contract.

    ``http.search`` takes ``query``, ``top_k`` and optionally ``provider`` and
    ``collection``; its value is a list of dicts with ``title``, ``url`` and ``snippet``,
    which are chunks as well (``id``, ``source``, ``text``, ``score``), best first.
    """

    verbs: frozenset[str] = frozenset({"http.search"})

    def __init__(
        self, options: SearchOptions, dsn: str, clock: Clock = monotonic_s
    ) -> None:
        self._options = options
        self._clock = clock
        self._local = LocalIndex(dsn, options.local) if dsn else None
        self._providers: dict[str, WebProvider] = {}
        self._client: httpx.AsyncClient | None = None
        self._filter: NoSecrets | None = None
        self._items = ItemTasks("web_search", self._serve, clock)

    def start(self, sink: Sink) -> None:
        """Read the keys, open the client and look which database there is; no provider is
        asked yet. Errors: `EnvironmentFaultError` for a key or certificates that are not
        there."""
        options = self._options
        if options.google is not None:
            google = Google(options.google, options, self._clock)
            self._providers["google"] = google
            self._filter = NoSecrets(google.secrets)
            logging.getLogger("httpx").addFilter(self._filter)
        if options.searxng is not None:
            self._providers["searxng"] = Searxng(options.searxng, options, self._clock)
        self._items.start(sink)
        try:
            self._items.run(self._open())
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """``fingerprint``: the providers that may answer and how they are asked."""
        options = self._options
        told = [f"web_search {options.provider}"]
        told += [provider.fingerprint for provider in self._providers.values()]
        if self._local is not None:
            told.append(self._local.fingerprint)
        return {
            "fingerprint": ", ".join(told),
            "provider": options.provider,
            "providers": self._names(),
        }

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; returns at once. Errors: `RuntimeStateError` when not started."""
        self._items.submit(items)

    def abort(self, key: str) -> None:
        """Close an item's request."""
        self._items.abort(key)

    def snapshot(self) -> Snapshot:
        """Searches under way and searches waiting."""
        return Snapshot(self._items.running, self._items.waiting)

    def close(self) -> None:
        """Close every request and connection. Idempotent."""
        self._items.close(self._shut)
        if self._filter is not None:
            logging.getLogger("httpx").removeFilter(self._filter)
            self._filter = None

    # In the loop's thread.

    async def _open(self) -> None:
        import httpx

        if self._local is not None:
            await self._local.recognise()
        if not self._providers:
            return
        try:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(self._options.timeout_s),
                verify=self._options.verify,
                headers={"accept": "application/json"},
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
            )
        except (OSError, ValueError) as e:
            raise ConfigError(
                f"no HTTP client for the search providers: {e}",
                hint="Check the option 'verify' and the proxy settings.",
            ) from e

    async def _shut(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        if self._local is not None:
            await self._local.close()

    async def _serve(self, item: Item) -> Outcome:
        if item.verb not in self.verbs:
            raise NodeError(
                f"engine web_search cannot do {item.verb!r}",
                code="unknown_verb",
                hint="Give the node a pool of an engine that can.",
            )
        query, most = _query(item.args.get("query")), _most(item.args.get("top_k", 5))
        name = item.args.get("provider") or self._options.provider
        self._items.begun(item.key)
        if name == "local":
            collection = item.args.get("collection") or "web"
            return await self._searched_locally(query, most, collection)
        provider = self._providers.get(name)
        if provider is None or self._client is None:
            raise self._unknown(name)
        found = await provider.search(self._client, query, most)
        return _outcome(pages(found.results, most), found.requests)

    async def _searched_locally(self, query: str, most: int, collection: Any) -> Outcome:
        if self._local is None:
            raise self._unknown("local")
        results, revision = await self._local.search(query, most, collection)
        return _outcome(pages(results, most), 0, {collection: revision})

    def _names(self) -> list[str]:
        return [*(["local"] if self._local is not None else []), *self._providers]

    def _unknown(self, name: str) -> NodeError:
        have = ", ".join(self._names())
        return NodeError(
            f"this pool has no search provider {name!r}; it has {have}",
            hint="Configure it in the search pool's options, or name another one.",
            code="unknown_provider",
        )


def _outcome(
    found: list[dict[str, Any]], requests: int, revisions: dict[str, int] | None = None
) -> Outcome:
    return Outcome(
        value=found,
        usage={"items": 1, "results": len(found), "requests": requests},
        sources=[{key: page[key] for key in _SOURCE_KEYS} for page in found],
        revisions=revisions or {},
    )


def _query(given: Any) -> str:
    """The query as providers take it. Errors: `InputError`."""
    if not isinstance(given, str):
        raise InputError(
            f"query must be a text, not {type(given).__name__}",
            hint="Pass what to search for.",
        )
    query = " ".join(clean_text(given).split())
    if not query:
        raise InputError("the query is empty", hint="Pass what to search for.")
    if len(query) > _LONGEST_QUERY:
        raise InputError(
            f"the query has {len(query)} characters, providers take {_LONGEST_QUERY}",
            hint="Search for less; have a model write the query from a long text.",
        )
    return query


def _most(given: Any) -> int:
    whole = isinstance(given, int) and not isinstance(given, bool)
    if not whole or not 1 <= given <= _MOST_RESULTS:
        raise InputError(
            f"top_k must be a whole number from 1 to {_MOST_RESULTS}, not {given!r}",
            hint="Ask for so many results.",
        )
    return given
