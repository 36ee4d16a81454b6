"""Equal items of different lists: who computes them, and where computed ones lie.

A list-valued node (`NodeSpec.list_port`) gives one output item per item of its list. An
item's key is the digest of all that decides its output: the node's item seed, and the
digest of the item. Who borrows from whom is decided in `herasys_rt.core.borrowing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from herasys_rt.core.fusion import Entry
    from herasys_rt.core.state import Flight

ENTRY_BYTES = 256
"""What a computed item costs the table beside its value: its key, and where it lies."""


def item_keys(seed: bytes, digests: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The keys of a list's items."""
    start = b"item" + seed
    return tuple([sha256(start + digest).digest() for digest in digests])


@dataclass(slots=True, eq=False)
class Wait:
    """What a flight waits for from another one: the items of these keys."""

    lender: Sharing
    keys: list[bytes] = field(default_factory=list[bytes])


@dataclass(slots=True, eq=False)
class Sharing:
    """What a flight computes, borrows and lends of its list's items.

    ``keys`` are those of the items in order. ``number`` orders flights by when they first
    looked for their items, -1 before: whoever waits, waits for smaller ones. From then on
    ``places`` has where each key stands first, ``claims`` the keys that others find this
    flight by, ``waits`` by number the flights whose items it waits for, ``borrowers`` by
    number those that wait for it, ``slots`` by digest which of the payload's ``lent``
    values is which, and ``taken`` where borrowed items lie: (slot, index). ``depth`` is how
    long a chain of waits it ends.
    """

    flight: Flight
    keys: tuple[bytes, ...]
    number: int = -1
    depth: int = 0
    places: dict[bytes, int] = field(default_factory=dict[bytes, int])
    claims: dict[bytes, None] = field(default_factory=dict[bytes, None])
    waits: dict[int, Wait] = field(default_factory=dict[int, Wait])
    borrowers: dict[int, Sharing] = field(default_factory=dict[int, "Sharing"])
    slots: dict[bytes, int] = field(default_factory=dict[bytes, int])
    taken: dict[bytes, tuple[int, int]] = field(
        default_factory=dict[bytes, tuple[int, int]]
    )

    @property
    def spared(self) -> int:
        """How many items of the list are not computed."""
        return len(self.keys) - len(self.places) + len(self.taken)


class Held(NamedTuple):
    """Where a computed item lies: in a completed result, at a position of what it lends."""

    entry: Entry
    position: int


class ItemTable:
    """Items by key: ``live`` ones with the flight that computes them, ``held`` ones with
    the completed result that they are part of, which takes them along when it goes."""

    __slots__ = ("held", "live")

    def __init__(self) -> None:
        self.live: dict[bytes, Sharing] = {}
        self.held: dict[bytes, Held] = {}

    def find(self, key: bytes, now: float) -> Held | None:
        """Where the item of a key lies, unless it has expired at ``now``."""
        held = self.held.get(key)
        if held is None:
            return None
        if held.entry.items_expire_s <= now:
            self.forget(held.entry)
            return None
        return held

    def keep(
        self, entry: Entry, places: dict[bytes, int], expires_s: float, born_s: float
    ) -> None:
        """A completed result, born ``born_s``, has these items until ``expires_s``."""
        entry.items = tuple(places)
        entry.items_expire_s = expires_s
        entry.items_born_s = born_s
        for key, position in places.items():
            self.held[key] = Held(entry, position)

    def forget(self, entry: Entry) -> None:
        """A completed result is gone, and its items that nobody else has with it."""
        for key in entry.items:
            held = self.held.get(key)
            if held is not None and held.entry is entry:
                del self.held[key]
        entry.items = ()
