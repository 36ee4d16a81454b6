"""A priority queue of integers whose ranks can change."""

from __future__ import annotations

import heapq

Rank = tuple[int, float, int]
"""(negated priority, key, arrival): smaller goes first; the item's id breaks ties."""

Entry = tuple[int, float, int, int]
"""A rank and the item it belongs to."""

_SLACK = 16


class IndexedHeap:
    """Items by rank, each at most once, in the total order (rank, item).

    `push`, `update`, `remove` and `pop` take O(log n), amortised, `first` O(1) amortised.
    A changed or removed item leaves its old entry behind until that reaches the top, or
    until such entries outnumber the live ones and all are swept: the sifting then stays
    inside `heapq`, several times faster than an array with positions kept in Python.
    """

    __slots__ = ("_entries", "_live")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._live: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: int) -> bool:
        return item in self._live

    def push(self, item: int, rank: Rank) -> None:
        """Add an item, or give one that is here another rank."""
        priority, key, arrival = rank
        entry = (priority, key, arrival, item)
        entries, live = self._entries, self._live
        leaves_another = item in live
        live[item] = entry
        heapq.heappush(entries, entry)
        if leaves_another and len(entries) > 2 * len(live) + _SLACK:
            self._sweep()

    update = push

    def remove(self, item: int) -> None:
        """Take an item out, wherever it stands. Errors: KeyError when it is not here."""
        del self._live[item]
        if len(self._entries) > 2 * len(self._live) + _SLACK:
            self._sweep()

    def first(self) -> Entry | None:
        """The smallest entry, left where it is; None when empty."""
        entries, live = self._entries, self._live
        while entries:
            entry = entries[0]
            if live.get(entry[3]) is entry:
                return entry
            heapq.heappop(entries)
        return None

    def pop(self) -> int:
        """Take the first item out. Errors: IndexError when empty."""
        entries, live = self._entries, self._live
        while True:
            entry = heapq.heappop(entries)
            item = entry[3]
            if live.get(item) is entry:
                del live[item]
                return item

    def rank(self, item: int) -> Rank:
        """The rank of an item. Errors: KeyError when it is not here."""
        return self._live[item][:3]

    def items(self) -> list[int]:
        """Every item, in the order of arrival here."""
        return list(self._live)

    def fault(self) -> str | None:
        """What is broken in the structure; None when nothing is. O(n log n)."""
        entries = self._entries
        for at in range(1, len(entries)):
            if entries[at] < entries[(at - 1) // 2]:
                return f"entry {entries[at]} stands below a larger one"
        present = {id(entry) for entry in entries}
        for item, entry in self._live.items():
            if entry[3] != item or id(entry) not in present:
                return f"item {item} has no entry"
        return None

    def _sweep(self) -> None:
        self._entries = list(self._live.values())
        heapq.heapify(self._entries)
