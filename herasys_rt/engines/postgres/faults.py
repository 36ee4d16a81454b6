"""What psycopg's errors mean to us, and DSNs that can be shown."""

from __future__ import annotations

import re
import urllib.parse

from herasys_rt.errors import DatabaseUnreachableError, HerasysError, NodeError

_LOST_STATES = ("08", "57P")
"""SQLSTATE prefixes of a server that goes away or is not up yet (57014 is a cancel)."""
_CONTENTION_STATES = ("40001", "40P01", "53300")
"""Serialisation failure, deadlock, too many connections: the same again may succeed."""
_SECRET_KEYS = ("password", "sslpassword")


def shown(dsn: str) -> str:
    """``user@host:port/dbname`` of a DSN; never its password."""
    facts = _parts(dsn)
    if facts is None:
        return "the configured DSN"
    host = facts.get("host") or facts.get("hostaddr") or "localhost"
    user = f"{facts['user']}@" if facts.get("user") else ""
    return f"{user}{host}:{facts.get('port', '5432')}/{facts.get('dbname', '')}"


def scrubbed(text: str, dsn: str) -> str:
    """``text`` without the DSN's secrets."""
    facts = _parts(dsn)
    if facts is None:  # a DSN that cannot be read is quoted in pieces by whoever tried
        return (
            "it cannot be read (special characters of a password must be percent-encoded)"
        )
    for key in _SECRET_KEYS:
        secret = facts.get(key)
        if secret:
            for form in (secret, urllib.parse.quote(secret, safe="")):
                # As a word of its own: a short one blanked out everywhere would be told
                # by the holes it leaves.
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", text)
    return text


def _parts(dsn: str) -> dict[str, str] | None:
    """The DSN's parameters; None when it cannot be read as it was meant."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        facts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    except psycopg.Error:
        return None
    # An unescaped '/' or '@' in a password lands pieces of it in these.
    port = facts.get("port", "").replace(",", "")
    places = facts.get("host", "") + facts.get("dbname", "")
    misread = (port and not port.isdigit()) or "@" in places
    return None if misread else facts


def is_lost(error: BaseException) -> bool:
    """Whether the connection or the server went away, so that another may serve."""
    import psycopg

    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    state = error.sqlstate
    return state is None or state.startswith(_LOST_STATES)


def may_pass(error: BaseException) -> bool:
    """Whether the same statement may well succeed a moment later."""
    import psycopg

    if is_lost(error):
        return True
    return isinstance(error, psycopg.Error) and error.sqlstate in _CONTENTION_STATES


def translated(error: BaseException, dsn: str) -> HerasysError:
    """The error to show for what psycopg raised; the caller chains it."""
    import psycopg
    from psycopg.errors import QueryCanceled

    text = scrubbed(str(error).strip() or type(error).__name__, dsn)
    if is_lost(error):
        return DatabaseUnreachableError(
            f"PostgreSQL at {shown(dsn)} does not answer: {text}",
            hint="Check that the server is up and the DSN right (herasys doctor).",
        )
    if isinstance(error, QueryCanceled):
        return NodeError(
            f"PostgreSQL gave up on a statement: {text}",
            hint="The collection may be too large for an exact scan with this filter; "
            "narrow the filter or ask for fewer chunks.",
            code="database_timeout",
        )
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return NodeError(
        f"PostgreSQL refused a statement ({state or type(error).__name__}): {text}",
        hint="Check the server's log, its disk space and the role's rights.",
        code="database_error",
    )
