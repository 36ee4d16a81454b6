"""HNSW indexes, built in the background when a collection has grown large enough.

A bulk build is several times faster than feeding an index row by row, and below
`INDEX_FROM_CHUNKS` an exact scan takes a few milliseconds anyway. Searches are exact
until an index stands. While it is built, writes to that collection wait.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from herasys_rt.engines.postgres import faults
from herasys_rt.engines.postgres.connections import CONNECT_TIMEOUT_S, one_row
from herasys_rt.engines.postgres.settings import Settings

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_log = logging.getLogger(__name__)

INDEX_FROM_CHUNKS = 2_000
_MEMORY = "256MB"
_RETRY_AFTER_CALLS = 1_000
"""After a failed build, so many looks at the collection go by before the next."""


class Indexes:
    """Builds indexes of one database's collections; belongs to one event loop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._standing: set[int] = set()
        self._builds: dict[int, asyncio.Task[None]] = {}
        self._rests: dict[int, int] = {}

    def consider(self, id: int, dimensions: int, settings: Settings, chunks: int) -> None:
        """Start building a collection's index when it is due and not under way."""
        if chunks < INDEX_FROM_CHUNKS or dimensions > settings.index_dimensions:
            return
        if id in self._standing or id in self._builds:
            return
        if self._rests.get(id, 0) > 0:
            self._rests[id] -= 1
            return
        self._begin(id, settings)

    async def ensure(self, id: int, settings: Settings) -> bool:
        """Build a collection's index now, however small it is; whether it stands then.

        The dimensions must be within ``settings.index_dimensions``.
        """
        if id not in self._standing:
            # Shared with whoever waits too: one caller's end does not end the build.
            await asyncio.wait([self._builds.get(id) or self._begin(id, settings)])
        return id in self._standing

    def _begin(self, id: int, settings: Settings) -> asyncio.Task[None]:
        build = asyncio.get_running_loop().create_task(self._build(id, settings))
        self._builds[id] = build
        build.add_done_callback(lambda _: self._builds.pop(id, None))
        return build

    async def settled(self) -> None:
        """Wait until no index is being built."""
        await asyncio.gather(*self._builds.values(), return_exceptions=True)

    async def close(self) -> None:
        """Cancel builds under way; they start anew when the collection is used again."""
        for build in self._builds.values():
            build.cancel()
        await self.settled()

    async def _build(self, id: int, settings: Settings) -> None:
        """Build one. A failure costs speed, never an answer, and is tried again later."""
        import psycopg

        for workers in (2, 0):  # parallel workers need shared memory a container may lack
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S
                ) as conn:
                    await self._create(conn, id, settings, workers)
            except psycopg.errors.UndefinedTable:  # dropped meanwhile
                return
            except psycopg.Error as e:
                text = faults.scrubbed(str(e).strip(), self._dsn)
                _log.warning("collection c_%d has no index yet: %s", id, text)
                self._rests[id] = 0 if faults.is_lost(e) else _RETRY_AFTER_CALLS
                if faults.is_lost(e):
                    return
            else:
                self._standing.add(id)
                return

    async def _create(
        self, conn: AsyncConnection[Any], id: int, settings: Settings, workers: int
    ) -> None:
        from herasys_rt.engines.postgres import statements as s

        async with conn.transaction():
            # One builder per collection among all processes; the others find it built.
            await conn.execute(
                "SELECT pg_advisory_xact_lock(%s, hashint8(%s))", (s.BOOTSTRAP_LOCK, id)
            )
            found = await one_row(conn, "SELECT to_regclass(%s)::text", (s.index(id),))
            if found[0] is not None:
                return
            await conn.execute(
                "SELECT set_config('maintenance_work_mem', %s, true), "
                "set_config('max_parallel_maintenance_workers', %s, true)",
                (_MEMORY, str(workers)),
            )
            await conn.execute(s.create_index(id, settings))
            await conn.execute(s.analyze(id))
