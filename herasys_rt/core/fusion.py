"""The `FusionTable`: what is being computed, and what was, by what it computes.

A key is (signature, revisions of the collections it depends on). Nodes with equal keys
are one piece of work: while a flight lives they join it, afterwards they take its result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from herasys_rt.core.ledger import Ledger
from herasys_rt.core.values import Value

if TYPE_CHECKING:
    from herasys_rt.core.state import Flight

Revisions = tuple[tuple[str, int], ...]
"""(collection, revision) pairs by name."""

Key = tuple[bytes, Revisions]
"""(signature, revisions of the collections it depends on)."""


@dataclass(slots=True, eq=False)
class Result:
    """How a flight ended, shared by all its members.

    ``exact`` says that everything it was made from had the revisions its key names;
    ``expires_s`` is when it stops being reusable (infinity: never). ``value`` is None
    when there is none: the flight failed, or its leader left after the start. ``tokens``
    is how many it took, in and out, where there are such.
    """

    value: Value | None
    meta: bytes
    exact: bool
    expires_s: float
    instance: str
    queued_s: float
    run_s: float
    attempts: int
    tokens: int = 0


class Owner(NamedTuple):
    """What made a result, and for whom it was made."""

    operator: str
    tenant: str


@dataclass(slots=True, eq=False)
class Entry:
    """A completed result in the table. ``pins`` counts nodes of active runs that hold it;
    ``listed`` is False once a lookup can no longer find it."""

    key: Key
    result: Result
    value: Value
    size: int
    owner: Owner
    pins: int = 0
    listed: bool = True


class FusionTable:
    """Live flights and completed results by key.

    Completed results are bounded by ``max_bytes`` and ``max_entries``; the least recently
    used unpinned ones go first. A pinned entry is never evicted, so the bounds may be
    exceeded by what active runs hold, and are met again when they end.

    ``generation`` counts the purges, ``held_bytes`` what is held by operator, and
    ``hints_taken`` and ``hints_ignored`` what a store offered.
    """

    __slots__ = (
        "_idle",
        "_ledger",
        "bytes",
        "completed",
        "generation",
        "held_bytes",
        "hints_ignored",
        "hints_taken",
        "live",
        "max_bytes",
        "max_entries",
    )

    def __init__(self, ledger: Ledger, max_bytes: int, max_entries: int) -> None:
        self.live: dict[Key, Flight] = {}
        self.completed: dict[Key, Entry] = {}
        self.bytes = 0
        self.held_bytes: dict[str, int] = {}
        self.generation = 0
        self.hints_taken = 0
        self.hints_ignored = 0
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self._idle: OrderedDict[Key, Entry] = OrderedDict()
        self._ledger = ledger

    def result(self, key: Key, now: float) -> Entry | None:
        """The completed result of a key that has not expired at ``now``."""
        entry = self.completed.get(key)
        if entry is None:
            return None
        if entry.result.expires_s <= now:
            self._unlist(entry)
            return None
        return entry

    def register(self, key: Key, flight: Flight) -> None:
        """From now on nodes with this key find the flight."""
        self.live[key] = flight

    def forget(self, key: Key, flight: Flight) -> None:
        """Nodes find the flight no longer; nothing happens when they did not."""
        if self.live.get(key) is flight:
            del self.live[key]

    def store(
        self, key: Key, result: Result, value: Value, now: float, owner: Owner
    ) -> Entry | None:
        """Keep a completed result; None when an equal one stands already, or when this
        one alone exceeds ``max_bytes``.

        The entry is unpinned, so the caller pins it for its members and then `trim`s.
        """
        size = value.size + len(result.meta)
        if size > self.max_bytes or self.result(key, now) is not None:
            return None
        entry = Entry(key, result, value, size, owner)
        self._ledger.acquire(value)
        self.completed[key] = entry
        self._idle[key] = entry
        self.bytes += size
        held = self.held_bytes
        held[owner.operator] = held.get(owner.operator, 0) + size
        return entry

    def pin(self, entry: Entry) -> None:
        """One more node of an active run holds the entry."""
        if not entry.pins:
            self._idle.pop(entry.key, None)
        entry.pins += 1

    def unpin(self, entry: Entry) -> None:
        """One node less; the last one lets the entry age."""
        entry.pins -= 1
        if not entry.pins and entry.listed:
            self._idle[entry.key] = entry

    def trim(self) -> None:
        """Evict the least recently used unpinned entries until the bounds hold."""
        while self._idle and (
            self.bytes > self.max_bytes or len(self.completed) > self.max_entries
        ):
            _, entry = self._idle.popitem(last=False)
            self._unlist(entry)

    def purge(self, chosen: Callable[[Entry], bool]) -> list[Entry]:
        """Begin the next generation without the chosen entries; gives them. Who holds one
        keeps it, and what takes it as an input from now on is not kept."""
        self.generation += 1
        gone = [entry for entry in self.completed.values() if chosen(entry)]
        for entry in gone:
            entry.result.exact = False
            self._unlist(entry)
        return gone

    def idle(self) -> list[Entry]:
        """Entries nobody pins, the next to be evicted first."""
        return list(self._idle.values())

    def _unlist(self, entry: Entry) -> None:
        """Take an entry out; the value goes when nodes that hold it are done too."""
        del self.completed[entry.key]
        self._idle.pop(entry.key, None)
        self.bytes -= entry.size
        held, operator = self.held_bytes, entry.owner.operator
        held[operator] -= entry.size
        if not held[operator]:
            del held[operator]
        entry.listed = False
        self._ledger.release(entry.value)
