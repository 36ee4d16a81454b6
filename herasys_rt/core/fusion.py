"""The `FusionTable`: what is being computed, and what was, by what it computes.

A key is (signature, revisions of the collections it depends on). Nodes with equal keys
are one piece of work: while a flight lives they join it, afterwards they take its result.
A piece of work may have several keys: one by structure, known before anything ran, for
each structure that leads to it, and one by value, known once its inputs are.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from herasys_rt.core.items import ENTRY_BYTES, ItemTable, Sharing
from herasys_rt.core.ledger import Ledger
from herasys_rt.core.values import Value

if TYPE_CHECKING:
    from herasys_rt.core.state import Flight

Revisions = tuple[tuple[str, int], ...]
"""(collection, revision) pairs by name."""

Key = tuple[bytes, Revisions]
"""(signature, revisions of the collections it depends on); by value: of those that the
node reads itself."""

_MOST_KEYS = 8
"""So many keys lead to one completed result; a further one takes the place of the oldest
by structure."""


class Result(msgspec.Struct, eq=False, gc=False):
    """How a flight ended, shared by all its members that came with equal claims.

    ``exact`` says that it is whole, and that everything it was made from is and had the
    revisions its key names; ``expires_s`` is when it stops being reusable (infinity:
    never). ``value`` is None when there is none: the flight failed, or its leader left
    after the start. ``tokens`` is how many it took, in and out, where there are such.
    ``spent_s`` are the engine seconds of all its tries, ``members`` among how many the
    flight's cost is divided.
    ``born_s`` and ``eldest_s`` are as in `herasys_rt.core.limits`.
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
    members: int = 1
    spent_s: float = 0.0
    born_s: float = -math.inf
    eldest_s: float = -math.inf


class Owner(msgspec.Struct, frozen=True, gc=False):
    """What made a result, and for whom it was made."""

    operator: str
    tenant: str


class Claim(msgspec.Struct, eq=False):
    """What the members of a flight that was merged into an equal one came with: their
    structural key, the revisions it names, and what their inputs were made of.

    ``exact``, ``expires_s`` and ``eldest_s`` are those of these inputs. ``passing`` is as
    in `Flight`. ``result`` is set when the flight has succeeded: for these members.
    """

    key: Key | None
    revisions: Revisions
    exact: bool
    expires_s: float
    eldest_s: float
    passing: bool = False
    result: Result | None = None

    def agrees(self, seen: Iterable[tuple[str, int]]) -> bool:
        """Whether the revisions ``seen`` are the ones that the key names."""
        return agree(self.key, self.revisions, seen)


class Entry(msgspec.Struct, eq=False, gc=False):
    """A completed result in the table: as ``results`` by the keys that lead to it, which
    differ in their expiry; without any no lookup finds it. ``pins`` counts nodes of
    active runs that hold it. ``items`` are the keys of its items where they may be
    borrowed, until ``items_expire_s``; born ``items_born_s``. ``parts`` is what the value
    was made of, where the items lie there."""

    results: dict[Key, Result]
    value: Value
    size: int
    owner: Owner
    pins: int = 0
    items: tuple[bytes, ...] = ()
    items_expire_s: float = 0.0
    items_born_s: float = 0.0
    parts: Value | None = None

    @property
    def lent(self) -> Value:
        """Where its items lie."""
        return self.value if self.parts is None else self.parts


class Listed(msgspec.Struct, frozen=True, gc=False):
    """What the table has for a key: an entry, as a result with that key's expiry."""

    entry: Entry
    result: Result


class FusionTable:
    """Live flights and completed results by key.

    Completed results are bounded by ``max_bytes`` and ``max_entries``; the least recently
    used unpinned ones go first, with all their keys. A pinned entry is never evicted, so
    the bounds may be exceeded by what active runs hold, and are met again when they end.

    ``generation`` counts the purges, ``held_bytes`` what is held by operator, and
    ``hints_taken`` and ``hints_ignored`` what a store offered.
    """

    __slots__ = (
        "_idle",
        "_ledger",
        "bytes",
        "completed",
        "entries",
        "generation",
        "held_bytes",
        "hints_ignored",
        "hints_taken",
        "items",
        "live",
        "max_bytes",
        "max_entries",
    )

    def __init__(self, ledger: Ledger, max_bytes: int, max_entries: int) -> None:
        self.live: dict[Key, Flight] = {}
        self.completed: dict[Key, Entry] = {}
        self.items = ItemTable()
        self.entries = 0
        self.bytes = 0
        self.held_bytes: dict[str, int] = {}
        self.generation = 0
        self.hints_taken = 0
        self.hints_ignored = 0
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self._idle: OrderedDict[Entry, None] = OrderedDict()
        self._ledger = ledger

    def result(self, key: Key, now: float) -> Listed | None:
        """The completed result of a key that has not expired at ``now``."""
        entry = self.completed.get(key)
        if entry is None:
            return None
        result = entry.results[key]
        if result.expires_s <= now:
            self._unlist(key, entry)
            return None
        return Listed(entry, result)

    def register(self, key: Key, flight: Flight) -> None:
        """From now on nodes with this key find the flight."""
        self.live[key] = flight

    def forget(self, flight: Flight) -> None:
        """Nodes find the flight no longer, by none of its keys; nothing happens when they
        did not."""
        live, key = self.live, flight.key
        if key is not None and live.get(key) is flight:
            del live[key]
        key = flight.value_key
        if key is not None and live.get(key) is flight:
            del live[key]
        for claim in flight.claims:
            if claim.key is not None and live.get(claim.key) is flight:
                del live[claim.key]

    def store(
        self,
        results: dict[Key, Result],
        value: Value,
        size: int,
        now: float,
        owner: Owner,
        pins: int = 0,
    ) -> Entry | None:
        """Keep a completed result of ``size`` bytes, held by ``pins`` nodes, as ``results``
        by those keys that have none yet, or one born before; None when none is left, or
        when it alone exceeds ``max_bytes``. ``results`` is the entry's from now on. `trim`
        afterwards.
        """
        if size > self.max_bytes:
            return None
        if len(results) > _MOST_KEYS:
            results = dict(islice(results.items(), _MOST_KEYS))
        completed = self.completed
        entry = Entry(results, value, size, owner, pins)
        for key in tuple(results):
            if completed.setdefault(key, entry) is entry:
                continue
            if self._gives_way(key, results[key], now):
                completed[key] = entry
            else:
                del results[key]
        if not results:
            return None
        self._ledger.acquire(value)
        if not pins:
            self._idle[entry] = None
        self.bytes += size
        self.entries += 1
        held = self.held_bytes
        held[owner.operator] = held.get(owner.operator, 0) + size
        return entry

    def also(self, entry: Entry, key: Key, result: Result, now: float) -> bool:
        """List an entry under one more key, by structure; False, and nothing happens, when
        the key has a result that was not born before. The entry is listed under its key by
        value, which stands first."""
        if not self._gives_way(key, result, now):
            return False
        if len(entry.results) >= _MOST_KEYS:
            self._unlist(list(entry.results)[1], entry)
        entry.results[key] = result
        self.completed[key] = entry
        return True

    def keep_items(
        self,
        entry: Entry,
        sharing: Sharing,
        lent: Value,
        expires_s: float,
        born_s: float,
    ) -> None:
        """Let the items of a completed result, born ``born_s``, be found until
        ``expires_s``. They lie in ``lent``; their keys, and what is lent beside the value,
        count as its bytes."""
        self.items.keep(entry, sharing.places, expires_s, born_s)
        size = ENTRY_BYTES * len(entry.items)
        if lent is not entry.value:
            entry.parts = lent
            self._ledger.acquire(lent)
            size += lent.size
        entry.size += size
        self.bytes += size
        self.held_bytes[entry.owner.operator] += size

    def touch(self, entry: Entry) -> None:
        """The entry is used: others are evicted before it."""
        self.pin(entry)
        self.unpin(entry)

    def pin(self, entry: Entry) -> None:
        """One more node of an active run holds the entry."""
        if not entry.pins:
            self._idle.pop(entry, None)
        entry.pins += 1

    def unpin(self, entry: Entry) -> None:
        """One node less; the last one lets the entry age."""
        entry.pins -= 1
        if not entry.pins and entry.results:
            self._idle[entry] = None

    def trim(self) -> None:
        """Evict the least recently used unpinned entries until the bounds hold."""
        while self._idle and (
            self.bytes > self.max_bytes or self.entries > self.max_entries
        ):
            entry = next(iter(self._idle))
            for key in list(entry.results):
                self._unlist(key, entry)

    def purge(self, chosen: Callable[[Entry], bool]) -> list[Entry]:
        """Begin the next generation without the chosen entries; gives them. Who holds one
        keeps it."""
        self.generation += 1
        return self.drop(chosen)

    def drop(self, chosen: Callable[[Entry], bool]) -> list[Entry]:
        """Let no lookup find the chosen entries; gives them. Who holds one keeps it."""
        gone = [entry for entry in self.listed() if chosen(entry)]
        for entry in gone:
            for key in list(entry.results):
                self._unlist(key, entry)
        return gone

    def idle(self) -> list[Entry]:
        """Entries nobody pins, the next to be evicted first."""
        return list(self._idle)

    def listed(self) -> list[Entry]:
        """Every entry that a lookup can find, once each."""
        return list(dict.fromkeys(self.completed.values()))

    def _gives_way(self, key: Key, result: Result, now: float) -> bool:
        """Whether a result may be listed under a key; one born before it goes: who asks
        for younger ones would find none."""
        listed = self.result(key, now)
        if listed is None:
            return True
        if listed.result.born_s >= result.born_s:
            return False
        self._unlist(key, listed.entry)
        return True

    def _unlist(self, key: Key, entry: Entry) -> None:
        """Take a key out. With its last key the entry goes, and the value when nodes that
        hold it are done too."""
        del self.completed[key]
        del entry.results[key]
        if not entry.results:
            self._idle.pop(entry, None)
            self._let_go(entry)

    def _let_go(self, entry: Entry) -> None:
        """No lookup finds the entry or its items any more; the value goes when nodes that
        hold it are done too."""
        self.bytes -= entry.size
        self.entries -= 1
        operator = entry.owner.operator
        left = self.held_bytes.pop(operator, 0) - entry.size
        if left > 0:
            self.held_bytes[operator] = left
        self.items.forget(entry)
        self._ledger.release(entry.value)
        if entry.parts is not None:
            self._ledger.release(entry.parts)


def agree(key: Key | None, revisions: Revisions, seen: Iterable[tuple[str, int]]) -> bool:
    """Whether the revisions ``seen`` are the ones that a key names: its own, or for
    an element of a region those of the nodes that it serves."""
    if key is None and not revisions:
        return True
    keyed = dict(revisions)
    return all(keyed.get(name) == revision for name, revision in seen)
