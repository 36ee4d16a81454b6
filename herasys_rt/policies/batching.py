"""Batchings: how many items one batch takes."""

from __future__ import annotations


class SizeLimited:
    """An even share of the queue for every idle slot, up to the pool's limit.

    Work is never held back to make a batch larger.
    """

    name = "size_limited"

    def size(self, queued: int, idle_slots: int, limit: int) -> int:
        """``ceil(queued / idle_slots)``, at most ``limit``."""
        return min(limit, -(-queued // idle_slots))
