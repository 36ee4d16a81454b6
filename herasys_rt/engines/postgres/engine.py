"""PostgreSQL/pgvector behind the engine protocol; `verbs` has what it does.

One thread runs an event loop with everything in it: a task per item, the store's pool,
and a connection that listens for changes of collections, whoever makes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pydantic

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.config import PoolConfig
from herasys_rt.engines.options import EngineOptions, read_options
from herasys_rt.engines.postgres import faults, words
from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.engines.postgres.verbs import VERBS
from herasys_rt.engines.protocol import Engine, Item, Outcome, Sink, Snapshot
from herasys_rt.engines.serving import ItemTasks
from herasys_rt.errors import (
    DatabaseUnreachableError,
    NodeError,
    OverloadedError,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_log = logging.getLogger(__name__)

_ADMISSION_S = 30.0
_LISTEN_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


class PgvectorOptions(EngineOptions):
    """``options`` of a pool with engine ``pgvector``."""

    pool_size: int = pydantic.Field(default=8, ge=1, le=100)
    """Database connections of one instance; more items than that wait their turn."""
    statement_timeout_s: float = pydantic.Field(default=60.0, gt=0)
    """Seconds after which the server gives up on a search."""


def create(pool: PoolConfig, dsn: str) -> Engine:
    """The engine of one instance of ``pool`` over the database at ``dsn``.

    Errors: `ConfigError` for options it does not know.
    """
    return PgvectorEngine(dsn, read_options(pool, PgvectorOptions))


class PgvectorEngine:
    """See `herasys_rt.engines.protocol.Engine` for the contract.

    Searches take ``collection`` (str), ``top_k`` (int, at least 1) and optionally
    ``filter`` (dict, see `statements.where`); their value is a CHUNKS list, best first,
    ``[]`` from an empty collection.

    - ``pg.search``: ``vector`` (float32, (dim,)), optionally ``distance``, ``index`` and
      ``ef_search``; see `CollectionStore.search`.
    - ``pg.text``: ``query`` (str), optionally ``language``, ``k1`` and ``b``; see
      `CollectionStore.search_text`.
    - ``pg.hybrid``: all of both, optionally ``candidates``, ``rrf_k``, ``vector_weight``
      and ``text_weight``; see `CollectionStore.hybrid`.

    Changes take ``collection``; their value is a dict of ``collection``, ``documents``
    and ``chunks`` (how many were written or deleted) and ``revision``.

    - ``pg.write``: ``embedded`` (dict of ``chunks`` and ``vectors`` (n, dim)), optionally
      ``replace`` (bool: delete what the same documents had before) and the settings of a
      collection that is made when it is not there (see `settings.Settings`).
    - ``pg.delete``: ``ids`` (list of str) or ``source`` (str).

    Doing a change twice is doing it once, so one interrupted by a restart of the server
    is repeated like a search.
    """

    verbs: frozenset[str] = frozenset(VERBS)

    def __init__(
        self, dsn: str, options: PgvectorOptions, clock: Clock = monotonic_s
    ) -> None:
        self._dsn = dsn
        self._options = options
        self._store = CollectionStore(
            dsn, options.pool_size, statement_timeout_s=options.statement_timeout_s
        )
        self._admission = asyncio.Semaphore(options.pool_size)
        self._items = ItemTasks("pgvector", self._serve, clock)
        self._sink: Sink | None = None
        self._listener: asyncio.Task[None] | None = None
        self._revisions: dict[str, int] | None = None

    # -- the protocol -----------------------------------------------------------------

    def start(self, sink: Sink) -> None:
        """Connect, set up the schema, listen. Errors: `DatabaseUnreachableError`."""
        self._sink = sink
        self._items.start(sink)
        try:
            self._items.run(self._open())
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """``fingerprint``: the database, and the versions and settings that decide what a
        search finds in it."""
        from herasys_rt.engines.postgres.statements import EF_SEARCH

        version = self._store.pgvector
        return {
            "fingerprint": f"pgvector {version} hnsw ef_search={EF_SEARCH} relaxed_order "
            f"text {self._store.server}/{words.VERSION} in {self._store.identity}",
            "pgvector": version,
            "pool_size": self._options.pool_size,
            "where": faults.shown(self._dsn),
        }

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; returns at once. Errors: `RuntimeStateError` when not started."""
        self._items.submit(items)

    def abort(self, key: str) -> None:
        """Cancel an item, on the server too; its outcome says that it was aborted."""
        self._items.abort(key)

    def snapshot(self) -> Snapshot:
        """Items at work and items waiting for a connection."""
        return Snapshot(running=self._items.running, waiting=self._items.waiting)

    def close(self) -> None:
        """Abort what is under way, report it, and give every connection back."""
        self._items.close(self._shut)
        self._sink = None

    # -- items (everything below runs in the loop's thread) ---------------------------

    async def _open(self) -> None:
        await self._store.open()
        listening = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(listening))
        try:
            async with asyncio.timeout(_LISTEN_S):
                await listening.wait()
        except TimeoutError:
            raise DatabaseUnreachableError(
                f"PostgreSQL at {faults.shown(self._dsn)} gave no connection to listen for "
                f"changes on within {_LISTEN_S:.0f} s",
                hint="Check the server's connection limit (max_connections).",
            ) from None

    async def _shut(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        await self._store.close()

    async def _serve(self, item: Item) -> Outcome:
        try:
            async with asyncio.timeout(_ADMISSION_S):
                await self._admission.acquire()
        except TimeoutError:
            raise self._busy() from None
        try:
            self._items.begun(item.key)
            return await self._acted(item)
        finally:
            self._admission.release()

    def _busy(self) -> OverloadedError:
        return OverloadedError(
            f"no database connection came free within {_ADMISSION_S:.0f} s "
            f"(all {self._options.pool_size} at work)",
            hint="Raise the option pool_size or lower the pool's slots.",
            code="database_busy",
            retry_after_s=1.0,
        )

    async def _acted(self, item: Item) -> Outcome:
        action = VERBS.get(item.verb)
        if action is None:
            raise NodeError(
                f"engine pgvector cannot do {item.verb!r}; it does "
                f"{', '.join(sorted(self.verbs))}",
                hint="Give the operator the verb of an engine that does it.",
                code="unknown_verb",
            )
        return await action(self._store, item.args)

    # -- changes ----------------------------------------------------------------------

    async def _listen(self, listening: asyncio.Event) -> None:
        """Report changes of collections until cancelled, over any number of restarts."""
        import psycopg

        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._dsn, autocommit=True, connect_timeout=5, keepalives_idle=30
                ) as conn:
                    await self._catch_up(conn)
                    listening.set()
                    pause_s = _FIRST_PAUSE_S
                    async for note in conn.notifies():
                        name, _, revision = note.payload.rpartition(":")
                        self._changed(name, int(revision))
            except psycopg.Error as e:
                _log.info("not listening: %s", faults.scrubbed(str(e), self._dsn))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _catch_up(self, conn: AsyncConnection[Any]) -> None:
        """Listen, then report what moved while nobody listened: at first everything, for
        results are only shared at revisions that are known beforehand."""
        from herasys_rt.engines.postgres import statements as s

        await conn.execute(f"LISTEN {s.CHANNEL}")
        now = dict(await (await conn.execute(s.REVISIONS)).fetchall())
        before = self._revisions
        if before is None:
            before = self._revisions = {}
        for name, revision in now.items():
            self._changed(name, revision)
        dropped = [name for name in before if name not in now]
        if dropped:
            last = await (await conn.execute(s.LAST_REVISION)).fetchone()
            for name in dropped:
                self._changed(name, last[0] if last else before[name] + 1)
                del before[name]

    def _changed(self, name: str, revision: int) -> None:
        known = self._revisions
        if known is None or revision <= known.get(name, -1):
            return
        known[name] = revision
        if self._sink is not None:
            self._sink.collection_changed(name, revision)
