"""Which prompts begin alike: ids of the KV blocks of a prompt that is put together."""

from __future__ import annotations

import hashlib

from herasys_rt.workloads.arrivals import BLOCK_TOKENS

_INDEX_BITS = 24
"""Of a block id: its position, up to 2**24 blocks. The bits above name the content."""


class Context:
    """A prompt, or a conversation, that grows at its end.

    Text is added by name: equal names are equal text. The id of a block says all that
    stands before its end, so that two contexts share ids exactly as far as they were put
    together alike, in whole blocks.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._chain = 0
        self._blocks: list[int] = []

    def add(self, name: str, tokens: int) -> tuple[int, ...]:
        """Append ``tokens`` tokens of the text ``name``; gives the blocks this filled."""
        self._chain = _digest(f"{self._chain} {self.tokens} {name}")
        filled = len(self._blocks)
        self.tokens += tokens
        base = self._chain << _INDEX_BITS
        now = range(base + filled, base + self.tokens // BLOCK_TOKENS)
        self._blocks.extend(now)
        return tuple(now)

    def copy(self) -> Context:
        """The same context, to grow another way."""
        twin = Context()
        twin.tokens, twin._chain = self.tokens, self._chain
        twin._blocks = self._blocks.copy()
        return twin

    @property
    def blocks(self) -> tuple[int, ...]:
        """Ids of the whole blocks, in order."""
        return tuple(self._blocks)


def named_blocks(name: str, first: int, count: int) -> range:
    """Ids of ``count`` blocks that a source names itself, from number ``first`` of the
    name space ``name`` on."""
    base = (_digest(name) << _INDEX_BITS) + first
    return range(base, base + count)


def _digest(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big")
