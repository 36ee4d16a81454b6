"""A look at a PostgreSQL server before anything is built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from herasys_rt.engines.postgres.faults import scrubbed, shown
from herasys_rt.errors import DatabaseUnreachableError

if TYPE_CHECKING:
    import psycopg

CONNECT_TIMEOUT_S = 5
RECOMMENDED = (0, 8)
"""pgvector from here on continues an index scan until a filter has found enough."""
REQUIRED = (0, 5)
"""pgvector before this has no HNSW index."""


class DatabaseFacts(msgspec.Struct, frozen=True):
    """What `check_dsn` found. ``warning`` is empty or says what would be better."""

    server: str
    pgvector: str
    where: str
    warning: str = ""


def check_dsn(dsn: str, connect_timeout_s: int = CONNECT_TIMEOUT_S) -> DatabaseFacts:
    """Connect, and see that pgvector is there (it is created where it can be).

    Errors: `DatabaseUnreachableError` when the server does not answer, refuses us, has no
    usable pgvector, or our role may create nothing in the database. No password is shown.
    """
    import psycopg

    try:
        with psycopg.connect(
            dsn, autocommit=True, connect_timeout=connect_timeout_s
        ) as connection:
            return _examined(connection, dsn)
    except psycopg.Error as e:
        raise DatabaseUnreachableError(
            f"PostgreSQL at {shown(dsn)} cannot be used: {scrubbed(str(e).strip(), dsn)}",
            hint="Check host, port, user, password and database of database.dsn and that "
            "the server accepts connections from here; without a DSN the embedded server "
            "is used.",
        ) from None  # psycopg's own error may quote the DSN


def _examined(connection: psycopg.Connection[Any], dsn: str) -> DatabaseFacts:
    where = shown(dsn)
    server = connection.info.parameter_status("server_version") or "unknown"
    version = _extension(connection, where)
    numbers = version_numbers(version)
    if numbers < REQUIRED:
        raise DatabaseUnreachableError(
            f"pgvector {version} at {where} is too old: it has no HNSW index",
            hint="Install pgvector 0.8 or newer and run: ALTER EXTENSION vector UPDATE",
        )
    row = connection.execute(
        "SELECT has_database_privilege(current_database(), 'CREATE')"
        " OR to_regclass('herasys.collections') IS NOT NULL"
    ).fetchone()
    if row is None or not row[0]:
        raise DatabaseUnreachableError(
            f"our role may not create the schema 'herasys' at {where}",
            hint="As the database's owner: GRANT CREATE ON DATABASE ... TO the role.",
        )
    warning = ""
    if numbers < RECOMMENDED:
        warning = (
            f"pgvector {version} at {where}: filtered searches fall back to exact scans; "
            "0.8 or newer is recommended"
        )
    return DatabaseFacts(server, version, where, warning)


def _extension(connection: psycopg.Connection[Any], where: str) -> str:
    import psycopg

    query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    row = connection.execute(query).fetchone()
    if row is None:
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg.errors.UniqueViolation:
            pass  # somebody created it at the same moment
        except psycopg.Error as e:
            raise DatabaseUnreachableError(
                f"PostgreSQL at {where} has no pgvector and it cannot be created: "
                f"{str(e).strip()}",
                hint="Install pgvector on the server and run, as a superuser: "
                "CREATE EXTENSION vector",
            ) from e
        row = connection.execute(query).fetchone()
    return str(row[0]) if row else "0"


def version_numbers(version: str) -> tuple[int, ...]:
    """``'0.8.5'`` as (0, 8, 5); parts that are no numbers count as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))
