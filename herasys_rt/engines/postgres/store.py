"""Collections of chunks in PostgreSQL/pgvector: the operations on them.

Search is exact in small collections and by an HNSW index in large ones (see `indexes`);
an index scan that finds fewer than ``top_k`` chunks is repeated exactly: k chunks come
when k exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.engines.postgres import rows
from herasys_rt.engines.postgres.connections import Connections, one_row
from herasys_rt.engines.postgres.indexes import Indexes
from herasys_rt.errors import InputError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

T = TypeVar("T")

_LOOKUPS = 3  # a collection may be dropped and made anew between looking and using
_LARGE = 256  # rows; more are prepared off the loop, which goes on serving others


class CollectionFacts(msgspec.Struct, frozen=True):
    """A collection in numbers, all of one moment; ``bytes`` with its indexes."""

    name: str
    dimensions: int
    distance: str
    chunks: int
    documents: int
    revision: int
    bytes: int


class Change(msgspec.Struct, frozen=True):
    """What a write did: the revision it made and the chunks and documents it wrote (or
    deleted). A write that changes nothing leaves the revision where it was."""

    revision: int
    chunks: int
    documents: int = 0


class _Known(msgspec.Struct, frozen=True):
    """What never changes about a collection while it exists."""

    id: int
    name: str
    dimensions: int
    distance: str


class CollectionStore:
    """Async access to collections; belongs to one event loop.

    Every method raises `InputError` for a wrong argument (code ``unknown_collection``,
    ``dimension_mismatch``, ``invalid_vector``, ...), `OverloadedError` (``database_busy``)
    when no connection came free in ``acquire_timeout_s``, `DatabaseUnreachableError` when
    the server stays away for 10 s, and `NodeError` (``database_error``,
    ``database_timeout``) for what the server refuses. Statements interrupted by a restart
    of the server are repeated: searches change nothing and writes are idempotent.
    Cancelling a call cancels its statement on the server.
    """

    def __init__(
        self,
        dsn: str,
        pool_size: int = 8,
        *,
        acquire_timeout_s: float = 30.0,
        statement_timeout_s: float = 60.0,
        clock: Clock = monotonic_s,
    ) -> None:
        self._connections = Connections(
            dsn,
            pool_size,
            acquire_timeout_s=acquire_timeout_s,
            statement_timeout_s=statement_timeout_s,
            clock=clock,
        )
        self._indexes = Indexes(dsn)
        self._known: dict[str, _Known] = {}

    # -- life -------------------------------------------------------------------------

    @property
    def pgvector(self) -> str:
        """The server's pgvector version, after `open`."""
        return self._connections.pgvector

    async def open(self) -> None:
        """Connect and set up the schema; safe when several processes do so at once."""
        await self._connections.open()

    async def close(self) -> None:
        """Give every connection back; idempotent. Index builds under way are dropped."""
        await self._indexes.close()
        await self._connections.close()

    async def settled(self) -> None:
        """Wait until no index is being built."""
        await self._indexes.settled()

    async def __aenter__(self) -> CollectionStore:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- collections ------------------------------------------------------------------

    async def create(
        self, name: str, dimensions: int, distance: str = "cosine"
    ) -> CollectionFacts:
        """Make a collection, or find it made already with the same shape.

        ``distance`` is cosine, inner_product or l2. Errors: `InputError` when it exists
        with other dimensions (both numbers) or another distance.
        """
        _check_distance(distance)
        known = await self._made(name, dimensions, distance)
        if known.distance != distance:
            raise InputError(
                f"collection {name!r} compares by {known.distance}, not {distance}",
                hint="Use another name, or drop the collection first.",
                code="distance_mismatch",
            )
        return await self.show(name)

    async def drop(self, name: str) -> int:
        """Delete a collection with all it holds; returns the revision of that change."""
        from herasys_rt.engines.postgres import statements as s

        name = rows.collection_name(name)

        async def work(conn: AsyncConnection[Any]) -> int:
            async with conn.transaction():
                await conn.execute("SET LOCAL statement_timeout = 0")
                gone = await (await conn.execute(s.DELETE_COLLECTION, (name,))).fetchone()
                if gone is None:
                    raise await self._unknown(conn, name)
                (revision,) = await one_row(conn, s.NEXT_REVISION)
                await conn.execute(s.drop_table(gone[0]))
                await conn.execute(s.NOTIFY, (f"{name}:{revision}",))
            return revision

        self._known.pop(name, None)
        return await self._connections.do(work)

    async def list(self) -> list[CollectionFacts]:
        """All collections, by name."""
        from herasys_rt.engines.postgres import statements as s

        async def names(conn: AsyncConnection[Any]) -> Sequence[str]:
            cursor = await conn.execute(s.NAMES)
            return [row[0] for row in await cursor.fetchall()]

        found: list[CollectionFacts] = []
        for name in await self._connections.do(names):
            try:
                found.append(await self.show(name))
            except InputError:  # dropped since we read the names
                continue
        return found

    async def show(self, name: str) -> CollectionFacts:
        """One collection in numbers."""
        from herasys_rt.engines.postgres import statements as s

        async def work(conn: AsyncConnection[Any], known: _Known) -> CollectionFacts | None:
            cursor = await conn.execute(s.facts(known.id), (known.id,))
            row = await cursor.fetchone()
            if row is None:
                return None
            dimensions, distance, chunks, revision, documents, size = row
            return CollectionFacts(
                name, dimensions, distance, chunks, documents, revision, size
            )

        return await self._with(rows.collection_name(name), work)

    async def revisions(self) -> dict[str, int]:
        """The revision of every collection."""
        from herasys_rt.engines.postgres import statements as s

        async def work(conn: AsyncConnection[Any]) -> dict[str, int]:
            cursor = await conn.execute(s.REVISIONS)
            return {row[0]: row[1] for row in await cursor.fetchall()}

        return await self._connections.do(work)

    # -- content ----------------------------------------------------------------------

    async def add(
        self,
        name: str,
        chunks: Sequence[Mapping[str, Any]],
        vectors: Any,
        *,
        replace: bool = False,
        make: bool = False,
    ) -> Change:
        """Write chunks with their vectors, in one transaction; equal ids are overwritten.

        ``vectors`` is (n, dimensions). A chunk is a dict with ``id``, ``source`` (its
        document), ``text``, optional ``metadata`` (a dict that filters match) and further
        keys that come back as they were. ``replace`` deletes what the same documents had
        before; ``make`` makes the collection (cosine) when it is not there. Everything is
        checked before anything is written: one wrong vector or chunk refuses the whole,
        and the error names it.
        """
        name = rows.collection_name(name)
        if make and len(chunks) > 0 and await self._lookup(name) is None:
            dimensions = rows.dimensions_of(vectors)
            # All faults come before a collection is made for what has them.
            await _prepared(chunks, vectors, name, dimensions, "cosine")
            await self._made(name, dimensions, "cosine")

        async def work(conn: AsyncConnection[Any], known: _Known) -> Change | None:
            fresh = await _prepared(chunks, vectors, name, known.dimensions, known.distance)
            return await self._add(conn, known, fresh, replace)

        return await self._with(name, work)

    async def delete(
        self,
        name: str,
        *,
        ids: Sequence[str] | None = None,
        source: str | None = None,
    ) -> Change:
        """Delete chunks by id, or all chunks of one document; give exactly one of both."""
        from herasys_rt.engines.postgres import statements as s

        if (ids is None) == (source is None):
            raise InputError(
                "delete takes either ids or a source", hint="Pass exactly one of the two."
            )
        what = [rows.clean_text(id) for id in ids] if ids is not None else None
        one = None if source is None else rows.clean_text(source)

        async def work(conn: AsyncConnection[Any], known: _Known) -> Change | None:
            async with conn.transaction():
                await conn.execute("SET LOCAL statement_timeout = 0")
                cursor = await conn.execute(s.LOCK_COLLECTION, (known.id,))
                held = await cursor.fetchone()
                if held is None:
                    return None
                cursor = await conn.execute(
                    s.delete(known.id, by_source=what is None),
                    (one if what is None else what,),
                )
                if cursor.rowcount == 0:
                    return Change(held[0], 0)
                revision, _ = await self._move(conn, known, -cursor.rowcount)
                return Change(revision, cursor.rowcount, int(one is not None))

        return await self._with(rows.collection_name(name), work)

    async def search(
        self,
        name: str,
        vector: Any,
        top_k: int,
        distance: str | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> tuple[list[dict[str, Any]], int]:
        """The ``top_k`` nearest chunks, best first, and the revision they were read at.

        ``vector`` is (dimensions,). Fewer chunks come only when fewer exist that match
        ``filter`` (see `statements.where`). Each chunk has ``id``, ``source``, ``text``,
        ``score`` (larger is better: cosine similarity, inner product, or minus the
        Euclidean distance) and what it was stored with. Another ``distance`` than the
        collection's own is searched exactly.
        """
        from herasys_rt.engines.postgres import statements as s

        if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
            raise InputError(
                f"top_k must be a whole number of at least 1, not {top_k!r}",
                hint="Ask for one chunk or more.",
            )
        if distance is not None:
            _check_distance(distance)
        conditions, params = s.where(filter)

        async def work(
            conn: AsyncConnection[Any], known: _Known
        ) -> tuple[list[dict[str, Any]], int] | None:
            by = distance or known.distance
            query = rows.query_vector(vector, name, known.dimensions, by)
            given = {**params, "vector": query}
            statement = s.search(known.id, by, top_k, conditions, exact=False)
            result = await (await conn.execute(statement, given)).fetchall()
            if not result:
                return None
            held: int = result[0][1]
            found = _found(result)
            if len(found) < top_k and len(found) < held:
                statement = s.search(known.id, by, top_k, conditions, exact=True)
                result = await (await conn.execute(statement, given)).fetchall()
                if not result:
                    return None
                found = _found(result)
            self._indexes.consider(known.id, known.dimensions, known.distance, held)
            return [_chunk(row, by) for row in found], result[0][0]

        return await self._with(rows.collection_name(name), work)

    # -- inside -----------------------------------------------------------------------

    async def _made(self, name: str, dimensions: int, distance: str) -> _Known:
        name = rows.collection_name(name)
        dimensions = rows.dimension_count(dimensions)
        known = await self._connections.do(
            lambda c: self._create(c, name, dimensions, distance)
        )
        self._known[name] = known
        if known.dimensions != dimensions:
            raise rows.dimension_mismatch(name, known.dimensions, dimensions)
        return known

    async def _create(
        self, conn: AsyncConnection[Any], name: str, dimensions: int, distance: str
    ) -> _Known:
        from herasys_rt.engines.postgres import statements as s

        for _ in range(_LOOKUPS):
            async with conn.transaction():
                cursor = await conn.execute(
                    s.INSERT_COLLECTION, (name, dimensions, distance)
                )
                made = await cursor.fetchone()
                if made is not None:
                    id, revision = made
                    for statement in s.create_table(id, dimensions):
                        await conn.execute(statement)
                    await conn.execute(s.NOTIFY, (f"{name}:{revision}",))
                    return _Known(id, name, dimensions, distance)
            known = await self._find(conn, name)
            if known is not None:
                return known
        raise await self._unknown(conn, name)

    async def _add(
        self,
        conn: AsyncConnection[Any],
        known: _Known,
        fresh: Sequence[rows.Row],
        replace: bool,
    ) -> Change | None:
        from herasys_rt.engines.postgres import statements as s

        async with conn.transaction():
            await conn.execute("SET LOCAL statement_timeout = 0")  # waits for an index
            cursor = await conn.execute(s.LOCK_COLLECTION, (known.id,))
            held = await cursor.fetchone()
            if held is None:
                return None
            if not fresh:
                return Change(held[0], 0)
            await conn.execute(s.INCOMING)
            await _copy(conn, fresh)
            gone = 0
            if replace:
                gone = (await conn.execute(s.delete_superseded(known.id))).rowcount
            (added,) = await one_row(conn, s.upsert(known.id))
            revision, chunks = await self._move(conn, known, added - gone)
        self._indexes.consider(known.id, known.dimensions, known.distance, chunks)
        return Change(revision, len(fresh), len({row.source for row in fresh}))

    async def _move(
        self, conn: AsyncConnection[Any], known: _Known, more: int
    ) -> tuple[int, int]:
        """Move the revision within the writing transaction, and tell with its commit."""
        from herasys_rt.engines.postgres import statements as s

        revision, chunks = await one_row(conn, s.MOVE_COLLECTION, (more, known.id))
        await conn.execute(s.NOTIFY, (f"{known.name}:{revision}",))
        return revision, chunks

    async def _with(
        self,
        name: str,
        work: Callable[[AsyncConnection[Any], _Known], Awaitable[T | None]],
    ) -> T:
        """Do ``work`` on a collection by name; it gives None when it finds it gone."""
        from psycopg.errors import UndefinedTable

        async def attempt(conn: AsyncConnection[Any]) -> T:
            for _ in range(_LOOKUPS):
                known = self._known.get(name) or await self._find(conn, name)
                if known is None:
                    break
                self._known[name] = known
                try:
                    done = await work(conn, known)
                except UndefinedTable:
                    done = None
                if done is not None:
                    return done
                self._known.pop(name, None)
            raise await self._unknown(conn, name)

        return await self._connections.do(attempt)

    async def _lookup(self, name: str) -> _Known | None:
        return self._known.get(name) or await self._connections.do(
            lambda conn: self._find(conn, name)
        )

    async def _find(self, conn: AsyncConnection[Any], name: str) -> _Known | None:
        from herasys_rt.engines.postgres import statements as s

        row = await (await conn.execute(s.FIND_COLLECTION, (name,))).fetchone()
        return None if row is None else _Known(row[0], name, row[1], row[2])

    async def _unknown(self, conn: AsyncConnection[Any], name: str) -> InputError:
        from herasys_rt.engines.postgres import statements as s

        cursor = await conn.execute(s.NAMES)
        known = [row[0] for row in await cursor.fetchall()]
        listed = ", ".join(repr(one) for one in known[:20]) or "none"
        more = f" and {len(known) - 20} more" if len(known) > 20 else ""
        return InputError(
            f"there is no collection {name!r}; known: {listed}{more}",
            hint="Fill it first (herasys ingest PATH --collection NAME) or correct the "
            "name.",
            code="unknown_collection",
        )


def _check_distance(distance: str) -> None:
    if distance not in rows.DISTANCES:
        raise InputError(
            f"unknown distance {distance!r}; known: {', '.join(rows.DISTANCES)}",
            hint="Choose one of them.",
        )


async def _prepared(
    chunks: Any, vectors: Any, name: str, dimensions: int, distance: str
) -> Sequence[rows.Row]:
    if len(chunks) <= _LARGE:
        return rows.rows_of(chunks, vectors, name, dimensions, distance)
    return await asyncio.to_thread(
        rows.rows_of, chunks, vectors, name, dimensions, distance
    )


async def _copy(conn: AsyncConnection[Any], fresh: Sequence[rows.Row]) -> None:
    from psycopg.types.json import Jsonb

    from herasys_rt.engines.postgres.statements import COPY_INCOMING, INCOMING_TYPES

    async with conn.cursor() as cursor, cursor.copy(COPY_INCOMING) as copy:
        copy.set_types(INCOMING_TYPES)
        for at, row in enumerate(fresh):
            if at % _LARGE == _LARGE - 1:
                await asyncio.sleep(0)  # writing a row seldom waits; let others run
            metadata = None if row.metadata is None else Jsonb(row.metadata)
            await copy.write_row(
                (row.id, row.source, row.text, metadata, Jsonb(row.fields), row.vector)
            )


def _found(result: Sequence[Any]) -> list[Any]:
    return [row for row in result if row[2] is not None]


def _chunk(row: Any, distance: str) -> dict[str, Any]:
    _, _, id, source, text, metadata, fields, far = row
    score = 1.0 - far if distance == "cosine" else 0.0 - far
    chunk = {**fields, "id": id, "source": source, "text": text, "score": float(score)}
    if metadata is not None:
        chunk["metadata"] = metadata
    return chunk
