"""Databases made by older versions, brought up to date when they are opened.

New columns come with the set-up (`statements.BOOTSTRAP`). Texts that were stored before
there was text search, or were cut into words by other rules, are indexed here: one
collection after the other, each in one transaction under the lock of its row, so that
any number of processes may open a database at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from herasys_rt.engines.postgres import words
from herasys_rt.engines.postgres.connections import one_row

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_BATCH = 500
_UNINDEXED = """
    SELECT id FROM herasys.collections WHERE coalesce(words_version, 0) < %s ORDER BY id
"""
_LOCK = """
    SELECT language FROM herasys.collections
    WHERE id = %s AND coalesce(words_version, 0) < %s FOR UPDATE
"""
_INCOMING = """
    CREATE TEMPORARY TABLE IF NOT EXISTS herasys_incoming (id text, words text)
    ON COMMIT DROP
"""


async def index_all_texts(conn: AsyncConnection[Any]) -> None:
    """Index the texts of every collection that is not; a second call finds none."""
    cursor = await conn.execute(_UNINDEXED, (words.VERSION,))
    for (id,) in await cursor.fetchall():
        await index_texts(conn, id)


async def index_texts(conn: AsyncConnection[Any], id: int) -> None:
    """Index one collection's texts anew, unless another process just did."""
    from herasys_rt.engines.postgres import text_statements as t

    async with conn.transaction():
        await conn.execute("SET LOCAL statement_timeout = 0")
        cursor = await conn.execute(_LOCK, (id, words.VERSION))
        held = await cursor.fetchone()
        if held is None:
            return
        await conn.execute(t.drop_text_tables(id))
        for statement in t.create_text_tables(id):
            await conn.execute(statement)
        await conn.execute(_INCOMING)
        total = 0
        async with conn.cursor(name="texts") as texts:
            texts.itersize = _BATCH
            await texts.execute(t.texts(id))
            while batch := await texts.fetchmany(_BATCH):
                await conn.execute("TRUNCATE herasys_incoming")
                async with conn.cursor() as writer, writer.copy(t.COPY_TEXTS) as copy:
                    for chunk, text in batch:
                        await copy.write_row((chunk, words.words_of(text)))
                more, _ = await one_row(conn, t.write_texts(id), {"language": held[0]})
                total += more
        await conn.execute(*t.settle(id, total, words.VERSION))
