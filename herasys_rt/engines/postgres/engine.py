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
from herasys_rt.engines.postgres import faults, words
from herasys_rt.engines.postgres.loop import LoopThread
from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.engines.postgres.verbs import VERBS
from herasys_rt.engines.protocol import Engine, Item, Outcome, Sink, Snapshot
from herasys_rt.errors import (
    ConfigError,
    DatabaseUnreachableError,
    HerasysError,
    InternalError,
    OverloadedError,
    RuntimeStateError,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_log = logging.getLogger(__name__)

_ADMISSION_S = 30.0
_CLOSE_S = 20.0
_LISTEN_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


class PgvectorOptions(pydantic.BaseModel):
    """``options`` of a pool with engine ``pgvector``."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    pool_size: int = pydantic.Field(default=8, ge=1, le=100)
    """Database connections of one instance; more items than that wait their turn."""
    statement_timeout_s: float = pydantic.Field(default=60.0, gt=0)
    """Seconds after which the server gives up on a search."""


def create(pool: PoolConfig, dsn: str) -> Engine:
    """The engine of one instance of ``pool`` over the database at ``dsn``.

    Errors: `ConfigError` for options it does not know.
    """
    try:
        options = PgvectorOptions.model_validate(pool.options)
    except pydantic.ValidationError as e:
        known = ", ".join(PgvectorOptions.model_fields)
        faults_found = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in e.errors()
        )
        raise ConfigError(
            f"pool {pool.name!r}: options of pgvector: {faults_found}",
            hint=f"Known options: {known}.",
        ) from None
    return PgvectorEngine(dsn, options)


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
        self._clock = clock
        self._store = CollectionStore(
            dsn, options.pool_size, statement_timeout_s=options.statement_timeout_s
        )
        self._admission = asyncio.Semaphore(options.pool_size)
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._running = 0
        self._sink: Sink | None = None
        self._loop: LoopThread | None = None
        self._listener: asyncio.Task[None] | None = None
        self._revisions: dict[str, int] | None = None

    # -- the protocol -----------------------------------------------------------------

    def start(self, sink: Sink) -> None:
        """Connect, set up the schema, listen. Errors: `DatabaseUnreachableError`."""
        self._sink = sink
        self._loop = LoopThread("pgvector")
        try:
            self._loop.run(self._open())
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """``fingerprint``: the versions and settings that decide what a search finds."""
        from herasys_rt.engines.postgres.statements import EF_SEARCH

        version = self._store.pgvector
        return {
            "fingerprint": f"pgvector {version} hnsw ef_search={EF_SEARCH} relaxed_order "
            f"text {self._store.server}/{words.VERSION}",
            "pgvector": version,
            "pool_size": self._options.pool_size,
            "where": faults.shown(self._dsn),
        }

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; returns at once. Errors: `RuntimeStateError` when not started."""
        if self._loop is None:
            raise RuntimeStateError(
                "the pgvector engine is not running", hint="Start it before submitting."
            )
        self._loop.call(self._admit, tuple(items))

    def abort(self, key: str) -> None:
        """Cancel an item, on the server too; its outcome says that it was aborted."""
        if self._loop is not None:
            self._loop.call(self._abort, key)

    def snapshot(self) -> Snapshot:
        """Items at work and items waiting for a connection."""
        running = self._running
        return Snapshot(running=running, waiting=max(0, len(self._tasks) - running))

    def close(self) -> None:
        """Abort what is under way, report it, and give every connection back."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        try:
            loop.run(self._shut(), _CLOSE_S)
        except TimeoutError:
            _log.warning("the database took longer than %.0f s to let go", _CLOSE_S)
        finally:
            loop.close()
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
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            await asyncio.gather(self._listener, return_exceptions=True)
        await self._store.close()

    def _admit(self, items: Sequence[Item]) -> None:
        for item in items:
            if item.key in self._tasks:
                _log.error("item %r was submitted twice; the second is ignored", item.key)
                continue
            task = asyncio.get_running_loop().create_task(self._serve(item))
            self._tasks[item.key] = task
            # Not at the end of the coroutine: one cancelled before its first step
            # never runs, and its item still has to end.
            task.add_done_callback(lambda done, key=item.key: self._finish(key, done))

    def _abort(self, key: str) -> None:
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    def _finish(self, key: str, task: asyncio.Task[Outcome]) -> None:
        del self._tasks[key]
        outcome = Outcome(aborted=True) if task.cancelled() else task.result()
        if self._sink is not None:
            self._sink.finished(key, outcome)

    async def _serve(self, item: Item) -> Outcome:
        """One item's outcome; raises nothing but cancellation."""
        try:
            async with asyncio.timeout(_ADMISSION_S):
                await self._admission.acquire()
        except TimeoutError:
            return Outcome(error=self._busy().info())
        self._running += 1
        began_s = self._clock()
        try:
            if self._sink is not None:
                self._sink.started(item.key)
            outcome = await self._acted(item)
        except HerasysError as e:
            outcome = Outcome(error=e.info())
        except Exception as e:
            _log.exception("item %r of verb %s", item.key, item.verb)
            message = f"{item.verb} failed: {type(e).__name__}: {e}"
            error = InternalError(
                faults.scrubbed(message, self._dsn),
                hint="This is our fault; the log of the instance has the trace.",
            )
            outcome = Outcome(error=error.info())
        finally:
            self._running -= 1
            self._admission.release()
        return _timed(outcome, self._clock() - began_s)

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
            raise InternalError(
                f"pgvector has no verb {item.verb!r}; it has "
                f"{', '.join(sorted(self.verbs))}"
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


def _timed(outcome: Outcome, run_s: float) -> Outcome:
    import msgspec

    return msgspec.structs.replace(outcome, run_s=run_s)
