"""Collections of chunks in PostgreSQL/pgvector: the operations on them.

Vector search is exact in small collections and by an HNSW index in large ones (see
`indexes`); an index scan that finds fewer than ``top_k`` chunks is repeated exactly: k
chunks come when k exist. Text search is BM25 (see `ranking`), always exact.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.engines.postgres import migration, rows, searching, words, writing
from herasys_rt.engines.postgres.connections import Connections, one_row
from herasys_rt.engines.postgres.indexes import Indexes
from herasys_rt.engines.postgres.searching import ByText, ByVector, Found, Fusing, Known
from herasys_rt.engines.postgres.settings import Settings, check_same, given_settings
from herasys_rt.engines.postgres.writing import Change
from herasys_rt.errors import InputError, NodeError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

T = TypeVar("T")

_LOOKUPS = 3  # a collection may be dropped and made anew between looking and using


class CollectionFacts(msgspec.Struct, frozen=True):
    """A collection in numbers, all of one moment; ``bytes`` with its indexes."""

    name: str
    dimensions: int
    distance: str
    storage: str
    language: str
    chunks: int
    documents: int
    revision: int
    bytes: int


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
        self._known: dict[str, Known] = {}

    # -- life -------------------------------------------------------------------------

    @property
    def pgvector(self) -> str:
        """The server's pgvector version, after `open`."""
        return self._connections.pgvector

    @property
    def server(self) -> str:
        """The server's own version as a number, after `open`."""
        return self._connections.server

    @property
    def identity(self) -> str:
        """What tells this database from every other one, after `open`."""
        return self._connections.identity

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
        self, name: str, dimensions: int, distance: str | None = None, **settings: Any
    ) -> CollectionFacts:
        """Make a collection, or find it made already.

        ``distance`` and ``settings`` are those of `Settings`; what is not given (or None)
        is the default in a new collection and not asked of one that exists. Errors:
        `InputError` when it exists with other dimensions (both numbers) or settings.
        """
        given = given_settings({**settings, "distance": distance})
        known = await self._made(name, dimensions, given)
        check_same(name, known.settings, given)
        return await self.show(name)

    async def drop(self, name: str) -> int:
        """Delete a collection with all it holds; returns the revision of that change."""
        from herasys_rt.engines.postgres import statements as s
        from herasys_rt.engines.postgres import text_statements as t

        name = rows.collection_name(name)

        async def work(conn: AsyncConnection[Any]) -> int:
            async with conn.transaction():
                await conn.execute("SET LOCAL statement_timeout = 0")
                gone = await (await conn.execute(s.DELETE_COLLECTION, (name,))).fetchone()
                if gone is None:
                    raise await self._unknown(conn, name)
                (revision,) = await one_row(conn, s.NEXT_REVISION)
                await conn.execute(t.drop_tables(gone[0]))
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

        async def work(conn: AsyncConnection[Any], known: Known) -> CollectionFacts | None:
            cursor = await conn.execute(s.facts(known.id), (known.id,))
            row = await cursor.fetchone()
            if row is None:
                return None
            dimensions, distance, storage, language, chunks, revision, documents, size = row
            return CollectionFacts(
                name=name,
                dimensions=dimensions,
                distance=distance,
                storage=storage,
                language=language,
                chunks=chunks,
                documents=documents,
                revision=revision,
                bytes=int(size),
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
        **settings: Any,
    ) -> Change:
        """Write chunks with their vectors, in one transaction; equal ids are overwritten.

        ``vectors`` is (n, dimensions). A chunk is a dict with ``id``, ``source`` (its
        document), ``text``, optional ``metadata`` (a dict that filters match) and further
        keys that come back as they were. ``replace`` deletes what the same documents had
        before; ``make`` makes the collection, with ``settings`` as `create` takes them,
        when it is not there. Everything is checked before anything is written: one wrong
        vector or chunk refuses the whole, and the error names it.
        """
        name = rows.collection_name(name)
        given = given_settings(settings)
        if make and len(chunks) > 0 and await self._lookup(name) is None:
            dimensions = rows.dimensions_of(vectors)
            # All faults come before a collection is made for what has them.
            made = msgspec.structs.replace(Settings(), **given)
            await writing.prepared(chunks, vectors, Known(0, name, dimensions, made))
            await self._made(name, dimensions, given)

        async def work(conn: AsyncConnection[Any], known: Known) -> Change | None:
            check_same(name, known.settings, given)
            fresh = await writing.prepared(chunks, vectors, known)
            wrote = await writing.write(conn, known, fresh, replace)
            if wrote is None:
                return None
            change, held = wrote
            self._consider_index(known, held)
            return change

        return await self._with(name, work)

    async def delete(
        self,
        name: str,
        *,
        ids: Sequence[str] | None = None,
        source: str | None = None,
    ) -> Change:
        """Delete chunks by id, or all chunks of one document; give exactly one of both."""
        from herasys_rt.engines.postgres import text_statements as t

        if (ids is None) == (source is None):
            raise InputError(
                "delete takes either ids or a source", hint="Pass exactly one of the two."
            )
        if ids is not None:
            what, condition = [rows.clean_text(id) for id in ids], t.BY_IDS
        else:
            what, condition = rows.clean_text(source or ""), t.BY_SOURCE

        return await self._with(
            rows.collection_name(name),
            lambda conn, known: writing.delete(conn, known, condition, what),
        )

    # -- searches ---------------------------------------------------------------------

    async def search(
        self,
        name: str,
        vector: Any,
        top_k: int,
        distance: str | None = None,
        filter: Mapping[str, Any] | None = None,
        *,
        index: str = "auto",
        ef_search: int | None = None,
    ) -> tuple[list[dict[str, Any]], int]:
        """The ``top_k`` nearest chunks, best first, and the revision they were read at.

        ``vector`` is (dimensions,). Fewer chunks come only when fewer exist that match
        ``filter`` (see `statements.where`). Each chunk has ``id``, ``source``, ``text``,
        ``score`` (larger is better: cosine similarity, inner product, or minus the
        Euclidean distance) and what it was stored with. Another ``distance`` than the
        collection's own is searched exactly.

        ``index`` auto uses the HNSW index where there is one and it pays, exact never
        does, hnsw always (it is built first when there is none). ``ef_search`` (1 to 1,000)
        is how many candidates a search by index looks at first.
        """
        ask = ByVector(vector, top_k, distance, filter, index, ef_search)
        name = rows.collection_name(name)
        await self._ensure_index(name, ask)

        async def work(conn: AsyncConnection[Any], known: Known) -> Found | None:
            async with conn.transaction() if ask.tuned else contextlib.nullcontext():
                return await self._nearest(conn, known, ask)

        found = await self._with(name, work)
        return found.chunks, found.revision

    async def search_text(
        self,
        name: str,
        query: str,
        top_k: int,
        filter: Mapping[str, Any] | None = None,
        *,
        language: str | None = None,
        k1: float = searching.K1,
        b: float = searching.B,
    ) -> tuple[list[dict[str, Any]], int]:
        """The ``top_k`` chunks that any of the query's words is in, best first by BM25,
        and the revision they were read at.

        Every character of ``query`` is plain text; a query of nothing but stop words,
        blanks or punctuation finds nothing. ``language`` must be the collection's own
        (None: whatever that is). Frequencies and lengths are those of the whole
        collection, also under a ``filter``. ``k1`` (at least 0) says how much a word's
        repetition counts, ``b`` (0 to 1) how much a chunk's length. Equal scores are
        ordered by id. Of a query with very many words the `ranking.QUERY_TERMS` rarest
        count, of a chunk the first `words.LIMIT_BYTES` of words.
        """
        ask = ByText(query, top_k, filter, language, k1, b)

        async def work(conn: AsyncConnection[Any], known: Known) -> Found | None:
            async with searching.snapshot(conn):
                steps = self._connections.rank_steps
                return await searching.best_by_text(conn, known, ask, steps)

        found = await self._with(rows.collection_name(name), work)
        return found.chunks, found.revision

    async def hybrid(
        self,
        name: str,
        near: ByVector,
        text: ByText,
        how: Fusing,
    ) -> tuple[list[dict[str, Any]], int]:
        """A vector search and a text search at one revision, fused by reciprocal ranks.

        See `searching.fused` for what comes back. The ``top_k`` of the two searches is
        replaced by the depth of ``how``.
        """
        near = dataclasses.replace(near, top_k=how.depth)
        text = dataclasses.replace(text, top_k=how.depth)
        name = rows.collection_name(name)
        await self._ensure_index(name, near)

        async def work(conn: AsyncConnection[Any], known: Known) -> Found | None:
            async with searching.snapshot(conn):
                # The text first: a tuned vector search changes how the rest is planned.
                steps = self._connections.rank_steps
                by_text = await searching.best_by_text(conn, known, text, steps)
                by_vector = await self._nearest(conn, known, near)
            if by_text is None or by_vector is None:
                return None
            return searching.fused(by_vector, by_text, how)

        found = await self._with(name, work)
        return found.chunks, found.revision

    # -- inside -----------------------------------------------------------------------

    async def _nearest(
        self, conn: AsyncConnection[Any], known: Known, ask: ByVector
    ) -> Found | None:
        found = await searching.nearest(conn, known, ask)
        if found is not None:
            self._consider_index(known, found.held)
        return found

    def _consider_index(self, known: Known, chunks: int) -> None:
        self._indexes.consider(known.id, known.dimensions, known.settings, chunks)

    async def _ensure_index(self, name: str, ask: ByVector) -> None:
        """See that a search which insists on the index has one."""
        if ask.index != "hnsw":
            return
        known = await self._lookup(name)
        if known is None:
            return  # the search itself says so
        own, limit = known.settings.distance, known.settings.index_dimensions
        if (ask.distance or own) != own or known.dimensions > limit:
            raise InputError(
                f"collection {name!r} ({known.dimensions} dimensions, {own}) can have no "
                f"HNSW index for {ask.distance or own}: an index has the collection's own "
                f"distance and at most {limit} dimensions",
                hint="Search with index='auto' or 'exact'.",
                code="no_index",
            )
        if not await self._indexes.ensure(known.id, known.settings):
            raise NodeError(
                f"the HNSW index of collection {name!r} could not be built",
                hint="The log has the server's reason; index='auto' works without it.",
                code="no_index",
            )

    async def _made(self, name: str, dimensions: int, given: dict[str, Any]) -> Known:
        name = rows.collection_name(name)
        dimensions = rows.dimension_count(dimensions)
        settings = msgspec.structs.replace(Settings(), **given)
        known = await self._connections.do(
            lambda c: self._create(c, name, dimensions, settings)
        )
        self._known[name] = known
        if known.dimensions != dimensions:
            raise rows.dimension_mismatch(name, known.dimensions, dimensions)
        return known

    async def _create(
        self, conn: AsyncConnection[Any], name: str, dimensions: int, settings: Settings
    ) -> Known:
        from herasys_rt.engines.postgres import statements as s
        from herasys_rt.engines.postgres import text_statements as t

        facts = {"name": name, "dimensions": dimensions, "version": words.VERSION}
        facts |= msgspec.structs.asdict(settings)
        for _ in range(_LOOKUPS):
            known = await self._find(conn, name)
            if known is not None:
                return known
            await _check_language(conn, settings.language)
            async with conn.transaction():
                made = await (await conn.execute(s.INSERT_COLLECTION, facts)).fetchone()
                if made is None:
                    continue  # another was quicker
                id, revision = made
                for statement in (
                    *s.create_table(id, dimensions, settings.storage),
                    *t.create_text_tables(id),
                ):
                    await conn.execute(statement)
                await conn.execute(s.NOTIFY, (f"{name}:{revision}",))
                return Known(id, name, dimensions, settings)
        raise await self._unknown(conn, name)

    async def _with(
        self,
        name: str,
        work: Callable[[AsyncConnection[Any], Known], Awaitable[T | None]],
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

    async def _lookup(self, name: str) -> Known | None:
        return self._known.get(name) or await self._connections.do(
            lambda conn: self._find(conn, name)
        )

    async def _find(self, conn: AsyncConnection[Any], name: str) -> Known | None:
        from herasys_rt.engines.postgres import statements as s

        row = await (await conn.execute(s.FIND_COLLECTION, (name,))).fetchone()
        if row is None:
            return None
        id, dimensions, version, *settings = row
        if version < words.VERSION:  # made by an older version since this store opened
            await migration.index_texts(conn, id)
        return Known(id, name, dimensions, Settings(*settings))

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


async def _check_language(conn: AsyncConnection[Any], language: str) -> None:
    """See that the server can read a language. Errors: `InputError` with those it can."""
    from herasys_rt.engines.postgres import statements as s

    known = [row[0] for row in await (await conn.execute(s.LANGUAGES)).fetchall()]
    if language not in known:
        raise InputError(
            f"unknown language {language!r}; known: {', '.join(known)}",
            hint="'simple' takes words of any language as they are.",
            code="unknown_language",
        )
