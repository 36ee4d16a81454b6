"""What every HTTP server says alike: a failure in its own words, JSON or a page, when to
come back.

Pure functions over bytes. What a chat endpoint says besides is in `engines.remote`, what
a search provider says in `engines.search.answers`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.parse import urlsplit

from herasys_rt.documents import clean_text
from herasys_rt.errors import NodeError

LONGEST_WAIT_S = 60.0
"""Most of a server's ``Retry-After`` that is honoured, in seconds."""

SHOWN_CHARS = 300
"""How much of a server's own words an error repeats."""

_TRANSIENT = frozenset({408, 409, 425, 429})


class RemoteError(NodeError):
    """A server's failure; ``retryable`` says that another attempt may succeed."""

    code = "remote_failed"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str = "",
        retryable: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__(message, hint=hint, code=code, **fields)
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class Told:
    """A failure as its server told it: its words, shortened, and the fields of its error
    object (none when it sent another form)."""

    words: str
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


def origin_of(url: str) -> str:
    """Scheme, host and port of an address: how messages name a server."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def is_transient(status: int) -> bool:
    """Whether a status other than 200 may be another one at the next attempt."""
    return status in _TRANSIENT or status >= 500


def json_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object that an answer is; None when it is anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def told(data: bytes) -> Told:
    """What an answer of any form says about a failure; of a page that is no JSON its
    start."""
    found = json_object(data)
    return Told(start_of(data, SHOWN_CHARS)) if found is None else told_in(found)


def told_in(answer: Mapping[str, Any]) -> Told:
    """What a JSON answer says about a failure, in an ``error`` or at its top."""
    error: Any = answer.get("error") or answer
    if not isinstance(error, dict):
        return Told(clean_text(str(error))[:SHOWN_CHARS])
    fields = cast("dict[str, Any]", error)
    words = str(fields.get("message") or fields.get("detail") or fields)
    return Told(clean_text(words)[:SHOWN_CHARS], fields)


def start_of(data: bytes, chars: int) -> str:
    """The first ``chars`` characters or so of an answer, in one line."""
    text = clean_text(data[: 5 * chars].decode(errors="replace"))
    return " ".join(text.split())[:chars] or "nothing"


def retry_after_s(header: str | None) -> float:
    """Seconds to wait from a ``Retry-After`` header, bounded; 0 without one."""
    if not header:
        return 0.0
    try:
        wait_s = float(header)
    except ValueError:
        try:
            until = parsedate_to_datetime(header)
        except ValueError:
            return 0.0
        if until.tzinfo is None:  # "-0000": a time of no zone, which means UTC
            until = until.replace(tzinfo=UTC)
        wait_s = (until - datetime.now(UTC)).total_seconds()
    return 0.0 if math.isnan(wait_s) else min(max(wait_s, 0.0), LONGEST_WAIT_S)
