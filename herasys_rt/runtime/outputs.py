"""From an engine's outcome to what the host tells of it."""

from __future__ import annotations

from typing import Any

import msgspec

from herasys_rt.core.values import Value
from herasys_rt.engines.protocol import Outcome
from herasys_rt.graph import codec
from herasys_rt.graph.facts import fact_of, items_of, text_items_of
from herasys_rt.graph.hashing import Hash


def with_facts(
    value: Value, content: Any, hashing: Hash, *, itemise: bool, itemise_texts: bool
) -> Value:
    """The value with the facts of its content that decisions need, with ``itemise`` the
    digests of its items among them, with ``itemise_texts`` those of its records' texts."""
    truth, length = fact_of(content)
    if truth and length < 0:
        return value
    return msgspec.structs.replace(
        value,
        truth=truth,
        length=length,
        items=items_of(content, hashing) if itemise else (),
        texts=text_items_of(content, hashing) if itemise_texts else (),
    )


def meta_of(outcome: Outcome, shared: int) -> bytes:
    """Usage and sources of a value, opaque to the kernel; empty when there are none.
    Usage is of what was computed; ``shared`` items were not."""
    if not (outcome.usage or outcome.sources or outcome.truncated or shared):
        return b""
    meta: dict[str, Any] = {
        "usage": outcome.usage,
        "sources": outcome.sources,
        "truncated": outcome.truncated,
    }
    if shared:
        meta["shared_items"] = shared
    return codec.encode(meta)


def tokens_of(outcome: Outcome) -> int:
    """What a model read and wrote for an item."""
    usage = outcome.usage
    return usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
