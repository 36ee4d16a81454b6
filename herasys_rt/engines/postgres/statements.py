"""The SQL of collections: one schema ``herasys``, one table ``c_<id>`` per collection.

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
from herasys_rt.errors import InputError

CHANNEL = "herasys_collections"
"""Every change is told here as ``name:revision``, with the commit that made it."""
EF_SEARCH = 100
"""Candidates an index scan looks at first; it goes on while a filter leaves too few."""

OPERATORS = {"cosine": "<=>", "inner_product": "<#>", "l2": "<->"}
OPERATOR_CLASSES = {
    "cosine": "vector_cosine_ops",
    "inner_product": "vector_ip_ops",
    "l2": "vector_l2_ops",
}

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
)

INSERT_COLLECTION = """
    INSERT INTO herasys.collections (name, dimensions, distance) VALUES (%s, %s, %s)
    ON CONFLICT (name) DO NOTHING RETURNING id, revision
"""
FIND_COLLECTION = """
    SELECT id, dimensions, distance, revision, chunks FROM herasys.collections
    WHERE name = %s
"""
LOCK_COLLECTION = """
    SELECT revision FROM herasys.collections WHERE id = %s FOR UPDATE
"""
MOVE_COLLECTION = """
    UPDATE herasys.collections
    SET revision = nextval('herasys.revisions'), chunks = chunks + %s
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
        id text, source text, text text, metadata jsonb, fields jsonb, embedding vector
    ) ON COMMIT DROP
"""
COPY_INCOMING = """
    COPY herasys_incoming (id, source, text, metadata, fields, embedding)
    FROM STDIN (FORMAT binary)
"""
INCOMING_TYPES = ("text", "text", "text", "jsonb", "jsonb", "vector")


def table(id: int) -> sql.Identifier:
    """The table of a collection."""
    return sql.Identifier("herasys", f"c_{id}")


def create_table(id: int, dimensions: int) -> tuple[sql.Composed, ...]:
    """A collection's table. The index on ``source`` hashes: sources have any length."""
    made = sql.SQL(
        """
        CREATE TABLE {table} (
            id text PRIMARY KEY,
            source text NOT NULL,
            text text NOT NULL,
            metadata jsonb,
            fields jsonb NOT NULL,
            embedding vector({dimensions}) NOT NULL
        )
        """
    ).format(table=table(id), dimensions=sql.Literal(dimensions))
    by_source = sql.SQL("CREATE INDEX ON {} USING hash (source)").format(table(id))
    return made, by_source


def drop_table(id: int) -> sql.Composed:
    """Away with it."""
    return sql.SQL("DROP TABLE {}").format(table(id))


def delete(id: int, *, by_source: bool) -> sql.Composed:
    """Delete chunks: of one source, or by a list of ids."""
    condition = "source = %s" if by_source else "id = ANY(%s)"
    return sql.SQL("DELETE FROM {} WHERE ").format(table(id)) + sql.SQL(condition)


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


def delete_superseded(id: int) -> sql.Composed:
    """Delete the incoming documents' chunks that are not among the incoming ones."""
    return sql.SQL(
        """
        DELETE FROM {table} AS old
        USING (SELECT DISTINCT source FROM herasys_incoming) AS document
        WHERE old.source = document.source
        AND NOT EXISTS (SELECT FROM herasys_incoming AS new WHERE new.id = old.id)
        """
    ).format(table=table(id))


def facts(id: int) -> sql.Composed:
    """Numbers of one collection in one snapshot."""
    return sql.SQL(
        """
        SELECT c.dimensions, c.distance, c.chunks, c.revision,
               (SELECT count(DISTINCT source) FROM {table}),
               pg_total_relation_size({regclass}::regclass)
        FROM herasys.collections AS c WHERE c.id = %s
        """
    ).format(table=table(id), regclass=sql.Literal(f"herasys.c_{id}"))


def index(id: int) -> str:
    """The qualified name of a collection's HNSW index."""
    return f"herasys.c_{id}_hnsw"


def create_index(id: int, distance: str) -> sql.Composed:
    """The HNSW index for a collection's own distance."""
    return sql.SQL("CREATE INDEX {name} ON {table} USING hnsw (embedding {ops})").format(
        name=sql.Identifier(f"c_{id}_hnsw"),
        table=table(id),
        ops=sql.SQL(OPERATOR_CLASSES[distance]),  # pyright: ignore[reportArgumentType]
    )


def analyze(id: int) -> sql.Composed:
    """Give the planner the numbers it chooses between index and scan by."""
    return sql.SQL("ANALYZE {}").format(table(id))


def search(
    id: int, distance: str, top_k: int, conditions: sql.Composable, *, exact: bool
) -> sql.Composed:
    """Nearest chunks and the revision they belong to, in one statement: one snapshot.

    One row comes even when no chunk does; its ``id`` is null. The sum with 0 in an exact
    search is an expression no index offers. The outer order mends the relaxed order of
    an index scan and breaks ties by id.
    """
    nearness = sql.SQL("embedding {operator} %(vector)b").format(
        operator=sql.SQL(OPERATORS[distance])  # pyright: ignore[reportArgumentType]
    )
    return sql.SQL(
        """
        SELECT c.revision, c.chunks, found.* FROM herasys.collections AS c
        LEFT JOIN LATERAL (
            SELECT id, source, text, metadata, fields, {nearness} AS distance
            FROM {table} {conditions} ORDER BY {order} LIMIT {limit}
        ) AS found ON true
        WHERE c.id = {id} ORDER BY found.distance, found.id
        """
    ).format(
        nearness=nearness,
        table=table(id),
        conditions=conditions,
        order=sql.SQL("({}) + 0, id").format(nearness) if exact else nearness,
        limit=sql.Literal(top_k),
        id=sql.Literal(id),
    )


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
