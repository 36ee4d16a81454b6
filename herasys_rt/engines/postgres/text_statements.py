"""The SQL of text search: per collection ``c_<id>_words`` and ``c_<id>_terms``.

``_words`` holds each chunk's tsvector, apart from the chunks, because rewriting a row
there would enter its vector into the HNSW index again. ``_terms`` counts the chunks that
have a lexeme; ``herasys.collections.words`` sums their lengths. Every statement that
changes chunks changes these in the same breath, under the lock of the collection's row,
so that they always agree with the snapshot a search reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from herasys_rt.engines.postgres.ranking import Term
from herasys_rt.engines.postgres.statements import table

LONGEST_COUNT = 255
"""Positions that a tsvector keeps per lexeme; more occurrences count as so many."""
RANKS = f"""
    WITH texts AS (
        SELECT n, ('x:' || string_agg(at::text, ','))::tsvector AS text
        FROM generate_series(1, {LONGEST_COUNT}) AS n, generate_series(1, n) AS at
        GROUP BY n
    )
    SELECT array_agg(ts_rank('{{1,1,1,1}}', text, 'x'::tsquery)::float8 ORDER BY n)
    FROM texts
"""
"""The rank of a text that has the only lexeme of a query once, twice, ...: it grows
strictly, so the number of occurrences can be read from a rank."""


COPY_TEXTS = "COPY herasys_incoming (id, words) FROM STDIN"


def words(id: int) -> sql.Identifier:
    """The table of a collection's tsvectors."""
    return sql.Identifier("herasys", f"c_{id}_words")


def terms(id: int) -> sql.Identifier:
    """The table of a collection's document frequencies."""
    return sql.Identifier("herasys", f"c_{id}_terms")


def create_text_tables(id: int) -> tuple[sql.Composed, ...]:
    """Both, empty. Rows stay uncompressed while they fit a page: searches read many."""
    made = sql.SQL(
        """
        CREATE TABLE {} (
            id text PRIMARY KEY, words tsvector NOT NULL, length integer NOT NULL
        ) WITH (toast_tuple_target = 8160)
        """
    ).format(words(id))
    # No pending list, which every search would read through until a vacuum.
    index = sql.SQL("CREATE INDEX ON {} USING gin (words) WITH (fastupdate = off)").format(
        words(id)
    )
    counts = sql.SQL(
        """
        CREATE TABLE {} (lexeme text COLLATE "C" PRIMARY KEY, chunks bigint NOT NULL)
        WITH (fillfactor = 70)
        """
    ).format(terms(id))
    return made, index, counts


def drop_text_tables(id: int) -> sql.Composed:
    """Away with both."""
    return sql.SQL("DROP TABLE IF EXISTS {}, {}").format(words(id), terms(id))


def texts(id: int) -> sql.Composed:
    """Every chunk's id and text."""
    return sql.SQL("SELECT id, text FROM {}").format(table(id))


def drop_tables(id: int) -> sql.Composed:
    """Away with everything of a collection."""
    every = (table(id), words(id), terms(id))
    return sql.SQL("DROP TABLE IF EXISTS {}").format(sql.SQL(", ").join(every))


_LENGTH = sql.SQL("(SELECT coalesce(sum(cardinality(positions)), 0)::int FROM unnest(v))")


def write_texts(id: int) -> sql.Composed:
    """Index the texts of ``herasys_incoming``, whether new or in place of older ones.
    Parameter: ``language``.

    Gives by how much the sum of lengths grew, and lexemes that no chunk has any more.
    ``old`` is read from before the statement.
    """
    return sql.SQL(
        """
        WITH parsed AS MATERIALIZED (
            SELECT id, to_tsvector(%(language)s::regconfig, words) AS v
            FROM herasys_incoming
        ), fresh AS MATERIALIZED (
            SELECT id, v, {length} AS length FROM parsed
        ), old AS MATERIALIZED (
            SELECT w.words, w.length FROM {words} AS w JOIN herasys_incoming USING (id)
        ), written AS (
            INSERT INTO {words} (id, words, length) SELECT id, v, length FROM fresh
            ON CONFLICT (id) DO UPDATE SET words = excluded.words, length = excluded.length
        ), change AS (
            SELECT lexeme, sum(n) AS n FROM (
                SELECT lexeme, 1 AS n FROM fresh, unnest(v)
                UNION ALL SELECT lexeme, -1 FROM old, unnest(words)
            ) AS each GROUP BY lexeme HAVING sum(n) <> 0
        ), counted AS (
            INSERT INTO {terms} AS t (lexeme, chunks) SELECT lexeme, n FROM change
            ON CONFLICT (lexeme) DO UPDATE SET chunks = t.chunks + excluded.chunks
            RETURNING lexeme, chunks
        )
        SELECT (SELECT coalesce(sum(length), 0) FROM fresh)::bigint
               - (SELECT coalesce(sum(length), 0) FROM old)::bigint,
               ARRAY(SELECT lexeme FROM counted WHERE chunks <= 0)
        """
    ).format(words=words(id), terms=terms(id), length=_LENGTH)


def delete(id: int, condition: sql.SQL) -> sql.Composed:
    """Delete chunks with what text search knows of them.

    Gives how many, by how much the sum of lengths shrank, and lexemes that no chunk has
    any more.
    """
    return sql.SQL(
        """
        WITH chunks AS (
            DELETE FROM {table} AS old WHERE {condition} RETURNING id
        ), gone AS (
            DELETE FROM {words} AS w USING chunks WHERE w.id = chunks.id
            RETURNING w.words, w.length
        ), change AS (
            SELECT lexeme, count(*) AS n FROM gone, unnest(words) GROUP BY lexeme
        ), counted AS (
            UPDATE {terms} AS t SET chunks = t.chunks - change.n FROM change
            WHERE t.lexeme = change.lexeme RETURNING t.lexeme, t.chunks
        )
        SELECT (SELECT count(*) FROM chunks),
               (SELECT coalesce(sum(length), 0) FROM gone)::bigint,
               ARRAY(SELECT lexeme FROM counted WHERE chunks <= 0)
        """
    ).format(table=table(id), words=words(id), terms=terms(id), condition=condition)


BY_SOURCE = sql.SQL("source = %s")
BY_IDS = sql.SQL("id = ANY(%s)")
SUPERSEDED = sql.SQL(
    """
    source IN (SELECT source FROM herasys_incoming)
    AND NOT EXISTS (SELECT FROM herasys_incoming AS new WHERE new.id = old.id)
    """
)
"""The incoming documents' chunks that are not among the incoming ones."""


def forget_terms(id: int) -> sql.Composed:
    """Drop counts that came to nothing, of the lexemes given."""
    return sql.SQL("DELETE FROM {} WHERE lexeme = ANY(%s) AND chunks <= 0").format(
        terms(id)
    )


def query_terms(id: int) -> sql.Composed:
    """A query's lexemes that some chunk has, with what their weights are made of: one
    row each of (revision, chunks, words, lexeme, times in the query, chunks that have it).

    One row comes even when there is no such lexeme; its ``lexeme`` is null. Parameters:
    ``language``, ``query`` (words).
    """
    return sql.SQL(
        """
        SELECT c.revision, c.chunks, c.words, found.* FROM herasys.collections AS c
        LEFT JOIN LATERAL (
            SELECT t.lexeme, cardinality(q.positions), t.chunks
            FROM unnest(to_tsvector(%(language)s::regconfig, %(query)s)) AS q
            JOIN {terms} AS t ON t.lexeme = q.lexeme COLLATE "C" WHERE t.chunks > 0
        ) AS found ON true
        WHERE c.id = {id}
        """
    ).format(terms=terms(id), id=sql.Literal(id))


def best_by_text(
    id: int, scored: Sequence[Term], looked_up: int, top_k: int, conditions: sql.Composable
) -> tuple[sql.Composed, dict[str, Any]]:
    """The best chunks by BM25 among those with any of the first ``looked_up`` terms, as a
    statement and its parameters; all terms ``scored`` count.

    Further parameters: ``steps`` (`RANKS`), ``k1``, ``b``, ``average`` (length). The
    inner OFFSET keeps each count from being computed twice.
    """
    counts = [
        sql.SQL(
            "width_bucket(ts_rank('{{1,1,1,1}}', w.words, %(t{at})s::tsquery)::float8,"
            " %(steps)s::float8[])::float8 AS n{at}"
        ).format(at=sql.Literal(at))
        for at in range(len(scored))
    ]
    parts = [
        sql.SQL("%(w{at})s::float8 * n{at} / (n{at} + norm)").format(at=sql.Literal(at))
        for at in range(len(scored))
    ]
    statement = sql.SQL(
        """
        SELECT best.score, d.id, d.source, d.text, d.metadata, d.fields FROM (
            SELECT id, (%(k1)s::float8 + 1) * ({score}) AS score FROM (
                SELECT w.id, {counts}, greatest(%(k1)s::float8
                    * (1 - %(b)s::float8 + %(b)s::float8 * w.length / %(average)s::float8),
                    1e-30) AS norm
                FROM {words} AS w {matching} w.words @@ %(any)s::tsquery OFFSET 0
            ) AS counted ORDER BY score DESC, id COLLATE "C" LIMIT {limit}
        ) AS best JOIN {table} AS d USING (id) ORDER BY best.score DESC, best.id COLLATE "C"
        """
    ).format(
        score=sql.SQL(" + ").join(parts),
        counts=sql.SQL(", ").join(counts),
        words=words(id),
        table=table(id),
        matching=_matching(id, conditions),
        limit=sql.Literal(top_k),
    )
    params: dict[str, Any] = {
        "any": " | ".join(quoted(term.lexeme) for term in scored[:looked_up])
    }
    for at, term in enumerate(scored):
        params[f"t{at}"] = quoted(term.lexeme)
        params[f"w{at}"] = term.weight
    return statement, params


def quoted(lexeme: str) -> str:
    """A lexeme as tsquery writes it, whatever characters it has."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


def _matching(id: int, conditions: sql.Composable) -> sql.Composable:
    """The beginning of the WHERE clause; chunks are joined only for a filter's sake."""
    if conditions == sql.SQL(""):
        return sql.SQL("WHERE")
    return sql.SQL("JOIN {table} AS c USING (id) {conditions} AND").format(
        table=table(id), conditions=conditions
    )


def settle(id: int, total: int, version: int) -> tuple[sql.Composed, dict[str, Any]]:
    """Say that a collection's texts are indexed."""
    statement = sql.SQL(
        "UPDATE herasys.collections SET words = %(words)s, words_version = %(version)s"
        " WHERE id = %(id)s"
    )
    return sql.Composed([statement]), {"words": total, "version": version, "id": id}
