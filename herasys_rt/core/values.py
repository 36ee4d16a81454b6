"""What the kernel knows of a value: its name, size and place, never its content."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from herasys_rt.graph.facts import Fact

__all__ = ["INLINE_LIMIT_BYTES", "Fact", "Value"]

INLINE_LIMIT_BYTES = 64 * 1024
"""Up to here a value travels inside messages; beyond it lives in the object store."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """A produced value, opaque to the kernel.

    ``digest`` names the value: it is of the encoded bytes, with the hash that the runtime
    is configured with (of a run's inputs `graph.signature.Signed.inputs`). ``size`` counts
    the bytes. Exactly one of ``inline`` (the encoded bytes) and ``place`` (an object-store
    name that the scheduler owns) is set. Two facts of the content are told by whoever made
    the value, because decisions need them: ``truth`` and ``length``, as
    `graph.facts.fact_of` says. ``items`` are the digests of a list's items
    (`graph.facts.items_of`) and ``texts`` those of its records' texts
    (`graph.facts.text_items_of`), told only where somebody looks for equal ones.
    """

    digest: bytes
    size: int
    inline: bytes | None = None
    place: str = ""
    truth: bool = True
    length: int = -1
    items: tuple[bytes, ...] = ()
    texts: tuple[bytes, ...] = ()

    def bare(self) -> Value:
        """The value for whoever only reads it: without the digests of its items."""
        return replace(self, items=(), texts=()) if self.items or self.texts else self
