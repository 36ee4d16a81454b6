"""Purging the reuse cache: what is asked and what is answered, as plain data."""

from __future__ import annotations

from typing import Any

from herasys_rt.errors import InputError
from herasys_rt.messages import PurgeReply

_SIGNATURE_BYTES = (32, 16)
"""With SHA-256, and with XXH3."""


def signature_of(text: str | None) -> bytes:
    """The signature that ``text`` writes in hex; ``b""`` for None. Errors: `InputError`."""
    if text is None:
        return b""
    try:
        signature = bytes.fromhex(text)
    except (TypeError, ValueError):
        signature = b""
    if len(signature) not in _SIGNATURE_BYTES:
        raise InputError(
            f"a signature is 64 hexadecimal digits (32 with xxh3), not {text!r:.80}",
            hint="Leave it out to purge by tenant or collection.",
        )
    return signature


def purged(reply: PurgeReply) -> dict[str, Any]:
    """What a purge did: ``entries``, ``bytes``, ``stored`` (None: it follows)."""
    return {"entries": reply.entries, "bytes": reply.bytes, "stored": reply.stored}
