"""Changing a collection's content: chunks, their vectors and what text search knows.

A change is one transaction that holds the lock of the collection's row: writers of one
collection take turns, and the revision, the counts and the statistics of its texts move
with the chunks. The functions answer None when the collection is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from herasys_rt.engines.postgres import rows
from herasys_rt.engines.postgres.connections import one_row
from herasys_rt.engines.postgres.searching import Known

if TYPE_CHECKING:
    from psycopg import AsyncConnection, sql

_LARGE = 256  # rows; more are prepared off the loop, which goes on serving others


class Change(msgspec.Struct, frozen=True):
    """What a write did: the revision it made and the chunks and documents it wrote (or
    deleted). A write that changes nothing leaves the revision where it was."""

    revision: int
    chunks: int
    documents: int = 0


async def prepared(chunks: Any, vectors: Any, known: Known) -> Sequence[rows.Row]:
    """The rows to write, all checked. Errors: `InputError`."""
    settings = known.settings
    place = (known.name, known.dimensions, settings.distance, settings.storage)
    if len(chunks) <= _LARGE:
        return rows.rows_of(chunks, vectors, *place)
    return await asyncio.to_thread(rows.rows_of, chunks, vectors, *place)


async def write(
    conn: AsyncConnection[Any], known: Known, fresh: Sequence[rows.Row], replace: bool
) -> tuple[Change, int] | None:
    """Write rows over those of equal ids; with ``replace`` delete what else the same
    documents had. Gives the change and how many chunks there are now."""
    from herasys_rt.engines.postgres import statements as s
    from herasys_rt.engines.postgres import text_statements as t

    async with conn.transaction():
        held = await _lock(conn, known)
        if held is None:
            return None
        if not fresh:
            return Change(held[0], 0), held[1]
        await conn.execute(s.INCOMING)
        await _copy(conn, fresh)
        gone, shorter, unused = 0, 0, []
        if replace:
            gone, shorter, unused = await one_row(conn, t.delete(known.id, t.SUPERSEDED))
        (added,) = await one_row(conn, s.upsert(known.id))
        language = {"language": known.settings.language}
        longer, more_unused = await one_row(conn, t.write_texts(known.id), language)
        await _forget(conn, known, [*unused, *more_unused])
        revision, chunks = await _move(conn, known, added - gone, longer - shorter)
    return Change(revision, len(fresh), len({row.source for row in fresh})), chunks


async def delete(
    conn: AsyncConnection[Any], known: Known, condition: sql.SQL, what: Any
) -> Change | None:
    """Delete chunks: ``condition`` is one of `text_statements`, ``what`` its parameter."""
    from herasys_rt.engines.postgres import text_statements as t

    async with conn.transaction():
        held = await _lock(conn, known)
        if held is None:
            return None
        statement = t.delete(known.id, condition)
        gone, shorter, unused = await one_row(conn, statement, (what,))
        if gone == 0:
            return Change(held[0], 0)
        await _forget(conn, known, unused)
        revision, _ = await _move(conn, known, -gone, -shorter)
        return Change(revision, gone, int(condition is t.BY_SOURCE))


async def _lock(conn: AsyncConnection[Any], known: Known) -> tuple[int, int] | None:
    """Be the only writer until the transaction ends; the revision and the chunks held."""
    from herasys_rt.engines.postgres import statements as s

    await conn.execute("SET LOCAL statement_timeout = 0")  # waits for an index
    return await (await conn.execute(s.LOCK_COLLECTION, (known.id,))).fetchone()


async def _forget(conn: AsyncConnection[Any], known: Known, lexemes: Sequence[str]) -> None:
    from herasys_rt.engines.postgres import text_statements as t

    if lexemes:
        await conn.execute(t.forget_terms(known.id), (list(lexemes),))


async def _move(
    conn: AsyncConnection[Any], known: Known, chunks: int, words: int
) -> tuple[int, int]:
    """Move the revision and the counts, and tell with the commit; revision and chunks."""
    from herasys_rt.engines.postgres import statements as s

    moved = (chunks, words, known.id)
    revision, held = await one_row(conn, s.MOVE_COLLECTION, moved)
    await conn.execute(s.NOTIFY, (f"{known.name}:{revision}",))
    return revision, held


async def _copy(conn: AsyncConnection[Any], fresh: Sequence[rows.Row]) -> None:
    from psycopg.types.json import Jsonb

    from herasys_rt.engines.postgres.statements import COPY_INCOMING, INCOMING_TYPES

    async with conn.cursor() as cursor, cursor.copy(COPY_INCOMING) as copy:
        copy.set_types(INCOMING_TYPES)
        for at, row in enumerate(fresh):
            if at % _LARGE == _LARGE - 1:
                await asyncio.sleep(0)  # writing a row seldom waits; let others run
            metadata = None if row.metadata is None else Jsonb(row.metadata)
            fields = Jsonb(row.fields)
            await copy.write_row(
                (row.id, row.source, row.text, metadata, fields, row.vector, row.words)
            )
