"""Purging the reuse cache: what is asked and what is answered, as plain data."""

from __future__ import annotations

from typing import Any

from herasys_rt.client.link import Link
from herasys_rt.errors import InputError, RuntimeStateError
from herasys_rt.messages import PurgeReply
from herasys_rt.runtime import places
from herasys_rt.runtime.daemon import endpoint_of

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


def purge_runtime(
    tenant: str | None = None,
    collection: str | None = None,
    signature: str | None = None,
) -> dict[str, Any]:
    """Purge the background runtime's cache as its operator: of one tenant, or of all.

    Errors: `InputError` for a signature that is none, `RuntimeStateError` when no runtime
    is up or it does not answer.
    """
    wanted = signature_of(signature)
    state = places.read_state()
    if state is None:
        raise RuntimeStateError(
            "no runtime is up, so there is no cache to purge",
            hint="Start it with `herasys up` first. A store on disk may also be deleted "
            f"while it is down: {places.reuse_dir()}, or scheduler.reuse.store_dir.",
        )
    link = Link(endpoint_of(state), tenant="operator")
    try:
        link.open()
        return purged(
            link.purge(
                tenant=tenant,
                collection=collection,
                signature=wanted,
                key=places.operator_key(state["run_dir"]),
            )
        )
    finally:
        link.close()
