"""A bounded pool of connections that outlasts restarts of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.engines.postgres import faults
from herasys_rt.engines.postgres.dsn import RECOMMENDED, version_numbers
from herasys_rt.errors import (
    DatabaseUnreachableError,
    OverloadedError,
    RuntimeStateError,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5
_RETRY_S = 10.0
"""How long a statement is tried again while the server restarts."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5


class Connections:
    """Connections to one database, set up for collections; belongs to one event loop."""

    def __init__(
        self,
        dsn: str,
        pool_size: int,
        *,
        acquire_timeout_s: float,
        statement_timeout_s: float,
        clock: Clock = monotonic_s,
    ) -> None:
        self._dsn = dsn
        self._pool_size = pool_size
        self._acquire_timeout_s = acquire_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._clock = clock
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None
        self.pgvector = ""
        """The server's pgvector version, after `open`."""
        self.server = ""
        """The server's own version (180004 for 18.4), after `open`."""
        self.identity = ""
        """See `statements.IDENTITY`, after `open`."""
        self.rank_steps: Sequence[float] = ()
        """See `text_statements.RANKS`, after `open`."""

    async def open(self) -> None:
        """Set up the schema, bring an older one up to date, and open the pool.

        Errors: `DatabaseUnreachableError`.
        """
        import psycopg
        from psycopg_pool import AsyncConnectionPool

        try:
            await self._bootstrap()
        except psycopg.Error as e:
            raise faults.translated(e, self._dsn) from None  # it may quote the DSN
        self._pool = AsyncConnectionPool(
            self._dsn,
            kwargs={
                "autocommit": True,
                "connect_timeout": CONNECT_TIMEOUT_S,
                "keepalives_idle": 30,
                "tcp_user_timeout": 30_000,
            },
            min_size=1,
            max_size=self._pool_size,
            timeout=self._acquire_timeout_s,
            configure=self._configure,
            reconnect_timeout=_RETRY_S,
            name="collections",
            open=False,
        )
        await self._pool.open()

    async def close(self) -> None:
        """Close every connection; idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(timeout=2.0)

    async def do(self, work: Callable[[AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Do ``work`` on a connection, again while the server restarts (10 s at most).

        ``work`` must bear repetition: when a connection breaks at a commit, nobody knows
        whether it happened. Errors: `OverloadedError` when no connection comes free in
        time, `DatabaseUnreachableError`, `NodeError` for a refused statement, and what
        ``work`` raises itself.
        """
        import psycopg
        from psycopg_pool import PoolTimeout

        pool = self._opened()
        began_s = self._clock()
        failed_s: float | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            since_s = began_s if failed_s is None else failed_s
            patience_s = self._acquire_timeout_s if failed_s is None else _RETRY_S
            left_s = since_s + patience_s - self._clock()
            try:
                async with pool.connection(timeout=max(0.1, min(left_s, _RETRY_S))) as conn:
                    return await work(conn)
            except PoolTimeout:
                await self._answers()
                if self._clock() >= since_s + patience_s:
                    raise self._busy(patience_s) from None
            except psycopg.Error as e:
                now = self._clock()
                failed_s = now if failed_s is None else failed_s
                if not faults.may_pass(e) or now >= failed_s + _RETRY_S:
                    raise faults.translated(e, self._dsn) from e
                if faults.is_lost(e):
                    await pool.check()  # its other connections are dead as well
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _opened(self) -> AsyncConnectionPool[AsyncConnection[Any]]:
        if self._pool is None:
            raise RuntimeStateError(
                "the collection store is not open", hint="Open it first, and close it last."
            )
        return self._pool

    async def _bootstrap(self) -> None:
        import psycopg

        from herasys_rt.engines.postgres.migration import index_all_texts
        from herasys_rt.engines.postgres.statements import (
            BOOTSTRAP,
            BOOTSTRAP_LOCK,
            IDENTITY,
            IS_CURRENT,
        )
        from herasys_rt.engines.postgres.text_statements import RANKS

        async with await psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S
        ) as conn:
            (current,) = await one_row(conn, IS_CURRENT)
            if not current:
                async with conn.transaction():
                    await conn.execute(
                        "SELECT pg_advisory_xact_lock(%s)", (BOOTSTRAP_LOCK,)
                    )
                    for statement in BOOTSTRAP:
                        await conn.execute(statement)
            await index_all_texts(conn)
            (self.rank_steps,) = await one_row(conn, RANKS)
            (self.server,) = await one_row(conn, "SHOW server_version_num")
            (self.identity,) = await one_row(conn, IDENTITY)
            version = await one_row(
                conn, "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
            )
            self.pgvector = str(version[0])

    async def _configure(self, conn: AsyncConnection[Any]) -> None:
        from pgvector.psycopg import register_vector_async

        from herasys_rt.engines.postgres.statements import EF_SEARCH

        await register_vector_async(conn)
        settings = {
            "statement_timeout": f"{int(self._statement_timeout_s * 1000)}ms",
            # A generic plan does not know the vector and may leave the index aside.
            "plan_cache_mode": "force_custom_plan",
            "hnsw.ef_search": str(EF_SEARCH),
        }
        if version_numbers(self.pgvector) >= RECOMMENDED:
            settings["hnsw.iterative_scan"] = "relaxed_order"
        for name, value in settings.items():
            await conn.execute("SELECT set_config(%s, %s, false)", (name, value))

    async def _answers(self) -> None:
        """See that the server answers at all. Errors: `DatabaseUnreachableError`."""
        import psycopg

        try:
            async with await psycopg.AsyncConnection.connect(
                self._dsn, connect_timeout=CONNECT_TIMEOUT_S
            ):
                pass
        except psycopg.Error as e:
            if faults.is_lost(e):
                raise faults.translated(e, self._dsn) from None

    def _busy(self, waited_s: float) -> OverloadedError:
        return OverloadedError(
            f"no database connection came free within {waited_s:.1f} s "
            f"(all {self._pool_size} at work)",
            hint="Raise database.pool_size or lower the pool's slots.",
            code="database_busy",
            retry_after_s=1.0,
        )


async def one_row(conn: AsyncConnection[Any], query: Any, params: Any = None) -> Any:
    """The first row of a query that always gives one."""
    row = await (await conn.execute(query, params)).fetchone()
    if row is None:
        raise DatabaseUnreachableError(
            "PostgreSQL gave no row where one must be", hint="Check the server's log."
        )
    return row
