"""The KV memory of one instance: what sequences hold, and blocks that prompts share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from herasys_rt.workloads.arrivals import BLOCK_TOKENS


@dataclass(slots=True, eq=False)
class Hold:
    """What one sequence holds: ``blocks`` it shares, and ``private`` tokens.

    ``cached`` tokens of its prompt were there when it was admitted.
    """

    cached: int = 0
    private: int = 0
    blocks: list[int] = field(default_factory=list[int])


class KvMemory:
    """KV tokens of an instance, ``capacity`` of them, with a prefix cache of whole blocks.

    A sequence is admitted when its prompt and its whole output fit beside what others
    hold, so none ever has to be thrown out again. Blocks nobody holds stay until their
    room is needed, the least recently used one goes first; of one sequence its last block
    (as vLLM does). Without ``sharing`` nothing is found again.
    """

    __slots__ = ("_idle", "_refs", "capacity", "pinned", "private", "sharing")

    def __init__(self, capacity: int, sharing: bool = True) -> None:
        self.capacity = capacity
        self.sharing = sharing
        self.private = 0
        """Tokens held by sequences alone."""
        self.pinned = 0
        """Blocks that at least one sequence holds."""
        self._refs: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Tokens in use, unpinned blocks included; never above ``capacity``."""
        return self.private + BLOCK_TOKENS * len(self._refs)

    @property
    def held(self) -> int:
        """Tokens that sequences hold."""
        return self.private + BLOCK_TOKENS * self.pinned

    def fits_ever(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens could be admitted to an empty memory."""
        return tokens <= self.capacity

    def cached_tokens(self, prompt: int, blocks: Sequence[int]) -> int:
        """Tokens of a prompt that are here; its last token is always computed anew."""
        return BLOCK_TOKENS * self._hits(prompt, blocks)

    def admit(self, prompt: int, output: int, blocks: Sequence[int]) -> Hold | None:
        """Make room for a sequence and pin what it shares; None when it does not fit."""
        hits = self._hits(prompt, blocks)
        refs = self._refs
        fresh = 0
        for block in blocks[:hits]:
            fresh += not refs[block]
        private = prompt + output - BLOCK_TOKENS * hits
        if self.held + BLOCK_TOKENS * fresh + private > self.capacity:
            return None
        for block in blocks[:hits]:
            if not refs[block]:
                del self._idle[block]
            refs[block] += 1
        self.pinned += fresh
        self.private += private
        self._evict()
        return Hold(BLOCK_TOKENS * hits, private, list(blocks[:hits]))

    def fill(self, hold: Hold, prompt: int, blocks: Sequence[int]) -> None:
        """The prompt is computed: from now on others find its whole blocks."""
        if not self.sharing:
            return
        refs = self._refs
        for block in blocks[len(hold.blocks) : prompt // BLOCK_TOKENS]:
            if block not in refs:  # else a twin was faster, and this copy stays private
                refs[block] = 1
                hold.blocks.append(block)
                hold.private -= BLOCK_TOKENS
                self.private -= BLOCK_TOKENS
                self.pinned += 1

    def release(self, hold: Hold, produced: Sequence[int] = ()) -> None:
        """A sequence is over; blocks that its output filled (``produced``) may be found
        again, as far as it had the room for them."""
        refs, idle = self._refs, self._idle
        self.private -= hold.private
        if self.sharing:
            room = hold.private // BLOCK_TOKENS
            for block in reversed(produced[:room]):
                if block not in refs:
                    refs[block] = 0
                    idle[block] = None
        for block in reversed(hold.blocks):
            refs[block] -= 1
            if not refs[block]:
                self.pinned -= 1
                idle[block] = None
        hold.blocks = []
        hold.private = 0

    def _hits(self, prompt: int, blocks: Sequence[int]) -> int:
        if not self.sharing or not blocks:
            return 0
        refs = self._refs
        most = min(len(blocks), (prompt - 1) // BLOCK_TOKENS)
        hits = 0
        while hits < most and blocks[hits] in refs:
            hits += 1
        return hits

    def _evict(self) -> None:
        refs, idle = self._refs, self._idle
        excess = self.used - self.capacity
        while excess > 0:
            block, _ = idle.popitem(last=False)
            del refs[block]
            excess -= BLOCK_TOKENS
