"""The SQL of collections and vectors: one schema ``herasys``, per collection ``c_<id>``.

Ids come from a sequence and are never used twice, so a name may be any text and a
dropped collection is never mistaken for its namesake. Revisions come from one sequence
for all collections, so that they grow over a drop and a new creation too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from herasys_rt.engines.postgres.rows import clean_json, clean_text
from herasys_rt.engines.postgres.settings import Settings
from herasys_rt.errors import InputError

CHANNEL = "herasys_collections"
"""Every change is told here as ``name:revision``, with the commit that made it."""
EF_SEARCH = 100
"""Candidates an index scan looks at first; it goes on while a filter leaves too few."""

OPERATORS = {"cosine": "<=>", "inner_product": "<#>", "l2": "<->"}
_OPERATOR_CLASSES = {"cosine": "cosine_ops", "inner_product": "ip_ops", "l2": "l2_ops"}

BOOTSTRAP_LOCK = 0x68657261  # one key for all processes that may set up one database
BOOTSTRAP = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    "CREATE SCHEMA IF NOT EXISTS herasys",
    "CREATE SEQUENCE IF NOT EXISTS herasys.revisions",
    """
    CREATE TABLE IF NOT EXISTS herasys.collections (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE,
        dimensions integer NOT NULL,
        distance text NOT NULL,
        chunks bigint NOT NULL DEFAULT 0,
        revision bigint NOT NULL DEFAULT nextval('herasys.revisions')
    )
    """,
    # What came later is added apart, so that an older database gets it too.
    """
    ALTER TABLE herasys.collections
        ADD COLUMN IF NOT EXISTS storage text NOT NULL DEFAULT 'vector',
        ADD COLUMN IF NOT EXISTS language text NOT NULL DEFAULT 'english',
        ADD COLUMN IF NOT EXISTS m integer NOT NULL DEFAULT 16,
        ADD COLUMN IF NOT EXISTS ef_construction integer NOT NULL DEFAULT 64,
        ADD COLUMN IF NOT EXISTS words bigint,
        ADD COLUMN IF NOT EXISTS words_version integer
    """,
    "CREATE TABLE IF NOT EXISTS herasys.identity (id text NOT NULL)",
    """
    INSERT INTO herasys.identity SELECT replace(gen_random_uuid()::text, '-', '')
    WHERE NOT EXISTS (SELECT FROM herasys.identity)
    """,
)
IDENTITY = "SELECT id FROM herasys.identity"
"""Tells databases apart: revisions of two of them say nothing about each other."""
IS_CURRENT = """
    SELECT to_regclass('herasys.identity') IS NOT NULL AND count(*) = 1 FROM pg_attribute
    WHERE attrelid = to_regclass('herasys.collections') AND attname = 'words_version'
"""

_SETTINGS = "distance, storage, language, m, ef_construction"  # in the order of `Settings`
INSERT_COLLECTION = f"""
    INSERT INTO herasys.collections (name, dimensions, words, words_version, {_SETTINGS})
    VALUES (%(name)s, %(dimensions)s, 0, %(version)s, %(distance)s, %(storage)s,
            %(language)s, %(m)s, %(ef_construction)s)
    ON CONFLICT (name) DO NOTHING RETURNING id, revision
"""
FIND_COLLECTION = f"""
    SELECT id, dimensions, coalesce(words_version, 0), {_SETTINGS}
    FROM herasys.collections WHERE name = %s
"""
LANGUAGES = """
    SELECT cfgname FROM pg_ts_config WHERE pg_ts_config_is_visible(oid) ORDER BY cfgname
"""
LOCK_COLLECTION = """
    SELECT revision, chunks FROM herasys.collections WHERE id = %s FOR UPDATE
"""
MOVE_COLLECTION = """
    UPDATE herasys.collections
    SET revision = nextval('herasys.revisions'), chunks = chunks + %s, words = words + %s
    WHERE id = %s RETURNING revision, chunks
"""
DELETE_COLLECTION = "DELETE FROM herasys.collections WHERE name = %s RETURNING id"
NEXT_REVISION = "SELECT nextval('herasys.revisions')"
NOTIFY = f"SELECT pg_notify('{CHANNEL}', %s)"
NAMES = "SELECT name FROM herasys.collections ORDER BY name"
REVISIONS = "SELECT name, revision FROM herasys.collections ORDER BY name"
LAST_REVISION = "SELECT last_value FROM herasys.revisions"

INCOMING = """
    CREATE TEMPORARY TABLE herasys_incoming (
        id text, source text, text text, metadata jsonb, fields jsonb, embedding vector,
        words text
    ) ON COMMIT DROP
"""
COPY_INCOMING = """
    COPY herasys_incoming (id, source, text, metadata, fields, embedding, words)
    FROM STDIN (FORMAT binary)
"""
INCOMING_TYPES = ("text", "text", "text", "jsonb", "jsonb", "vector", "text")


def table(id: int) -> sql.Identifier:
    """The table of a collection."""
    return sql.Identifier("herasys", f"c_{id}")


def create_table(
    id: int, dimensions: int, storage: str = "vector"
) -> tuple[sql.Composed, ...]:
    """A collection's table. The index on ``source`` hashes: sources have any length."""
    made = sql.SQL(
        """
        CREATE TABLE {table} (
            id text PRIMARY KEY,
            source text NOT NULL,
            text text NOT NULL,
            metadata jsonb,
            fields jsonb NOT NULL,
            embedding {storage} NOT NULL
        )
        """
    ).format(table=table(id), storage=_type(storage, dimensions))
    by_source = sql.SQL("CREATE INDEX ON {} USING hash (source)").format(table(id))
    return made, by_source


def upsert(id: int) -> sql.Composed:
    """Move ``herasys_incoming`` into a collection; gives how many ids were new."""
    return sql.SQL(
        """
        WITH moved AS (
            INSERT INTO {table} (id, source, text, metadata, fields, embedding)
            SELECT id, source, text, metadata, fields, embedding FROM herasys_incoming
            ON CONFLICT (id) DO UPDATE SET
                source = excluded.source, text = excluded.text,
                metadata = excluded.metadata, fields = excluded.fields,
                embedding = excluded.embedding
            RETURNING (xmax = 0) AS fresh
        )
        SELECT count(*) FILTER (WHERE fresh) FROM moved
        """
    ).format(table=table(id))


def facts(id: int) -> sql.Composed:
    """Numbers of one collection in one snapshot."""
    return sql.SQL(
        """
        SELECT c.dimensions, c.distance, c.storage, c.language, c.chunks, c.revision,
               (SELECT count(DISTINCT source) FROM {table}),
               (SELECT sum(pg_total_relation_size(part::regclass))
                FROM unnest({parts}::text[]) AS part)
        FROM herasys.collections AS c WHERE c.id = %s
        """
    ).format(
        table=table(id),
        parts=sql.Literal([f"herasys.c_{id}{part}" for part in ("", "_words", "_terms")]),
    )


def index(id: int) -> str:
    """The qualified name of a collection's HNSW index."""
    return f"herasys.c_{id}_hnsw"


def create_index(id: int, settings: Settings) -> sql.Composed:
    """The HNSW index for a collection's own distance."""
    ops = f"{settings.storage}_{_OPERATOR_CLASSES[settings.distance]}"
    return sql.SQL(
        "CREATE INDEX {name} ON {table} USING hnsw (embedding {ops}) "
        "WITH (m = {m}, ef_construction = {ef_construction})"
    ).format(
        name=sql.Identifier(f"c_{id}_hnsw"),
        table=table(id),
        ops=sql.Identifier(ops),
        m=sql.Literal(settings.m),
        ef_construction=sql.Literal(settings.ef_construction),
    )


def analyze(id: int) -> sql.Composed:
    """Give the planner the numbers it chooses between index and scan by."""
    return sql.SQL("ANALYZE {}").format(table(id))


NO_CAST = sql.SQL("")


def search(
    id: int,
    distance: str,
    top_k: int,
    conditions: sql.Composable,
    *,
    exact: bool,
    cast: sql.Composable = NO_CAST,
) -> sql.Composed:
    """Nearest chunks and the revision they belong to, in one statement: one snapshot.

    One row comes even when no chunk does; its ``id`` is null. The sum with 0 in an exact
    search is an expression no index offers. The outer order mends the relaxed order of
    an index scan and breaks ties by id. ``cast`` makes the query vector the column's type.
    """
    nearness = sql.SQL("embedding {operator} %(vector)b{cast}").format(
        operator=sql.SQL(OPERATORS[distance]),  # pyright: ignore[reportArgumentType]
        cast=cast,
    )
    return sql.SQL(
        """
        SELECT c.revision, c.chunks, found.* FROM herasys.collections AS c
        LEFT JOIN LATERAL (
            SELECT id, source, text, metadata, fields, {nearness} AS distance
            FROM {table} {conditions} ORDER BY {order} LIMIT {limit}
        ) AS found ON true
        WHERE c.id = {id} ORDER BY found.distance, found.id COLLATE "C"
        """
    ).format(
        nearness=nearness,
        table=table(id),
        conditions=conditions,
        order=sql.SQL('({}) + 0, id COLLATE "C"').format(nearness) if exact else nearness,
        limit=sql.Literal(top_k),
        id=sql.Literal(id),
    )


def cast_to(storage: str, dimensions: int) -> sql.Composable:
    """What makes a query vector comparable with a column of this storage."""
    if storage == "vector":
        return NO_CAST
    return sql.SQL("::vector::{}").format(_type(storage, dimensions))


def by_index(ef_search: int | None, *, forced: bool) -> sql.Composed:
    """Settings of the transaction for searches by index; ``forced`` leaves the planner
    no other way to an order by nearness."""
    wanted: dict[str, str] = {}
    if ef_search is not None:
        wanted["hnsw.ef_search"] = str(ef_search)
    if forced:
        wanted |= {"enable_seqscan": "off", "enable_sort": "off"}
    calls = [
        sql.SQL("set_config({}, {}, true)").format(sql.Literal(name), sql.Literal(value))
        for name, value in wanted.items()
    ]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(calls))


def _type(storage: str, dimensions: int) -> sql.Composed:
    return sql.SQL("{}({})").format(sql.Identifier(storage), sql.Literal(dimensions))


def where(filter: Mapping[str, Any] | None) -> tuple[sql.Composable, dict[str, Any]]:
    """The condition of a filter and its parameters.

    ``source`` takes one source or a list of them; every other key must equal the
    chunk's ``metadata`` under that key (JSON containment). Errors: `InputError`.
    """
    if not filter:
        return sql.SQL(""), {}
    wanted = dict(filter)
    parts: list[sql.SQL] = []
    params: dict[str, Any] = {}
    if "source" in wanted:
        sources = wanted.pop("source")
        sources = [sources] if isinstance(sources, str) else sources
        if not isinstance(sources, list) or not all(
            isinstance(source, str)
            for source in sources  # pyright: ignore[reportUnknownVariableType]
        ):
            raise InputError(
                "the filter's 'source' must be a text or a list of texts",
                hint="Pass filter={'source': NAME} or {'source': [NAME, ...]}.",
            )
        parts.append(sql.SQL("source = ANY(%(sources)s)"))
        params["sources"] = [clean_text(source) for source in sources]
    if wanted:
        parts.append(sql.SQL("metadata @> %(metadata)s"))
        params["metadata"] = Jsonb(clean_json(wanted, "the filter"))
    return sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(parts)), params
