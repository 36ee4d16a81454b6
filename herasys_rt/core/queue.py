"""The queued flights of a pool: a priority counts within its tenant, the key between all.

Keys give places in the queue. When the place of a tenant comes up, its flight of the
highest priority takes it, and the flight that stood there moves to the place which that
one leaves. So a priority moves work among the places of its tenant and takes none from
others: tenants are served in the same order with priorities and without.
"""

from __future__ import annotations

from collections.abc import Iterable

from herasys_rt.core.heap import Entry, IndexedHeap, Rank


class Queue:
    """The queued flights of one class of a pool.

    All stand in one heap by their places. Ranks with priorities are kept beside it, in a
    heap for each tenant that uses any (`favour`): nobody pays for them before. `push`,
    `update`, `remove` and `serve` take O(log n), amortised, `first` O(1) amortised.
    """

    __slots__ = ("_favoured", "_places", "_tenants")

    def __init__(self, favoured: Iterable[str] = ()) -> None:
        self._places = IndexedHeap()
        self._tenants: dict[int, str] = {}
        self._favoured = {tenant: IndexedHeap() for tenant in favoured}

    def __len__(self) -> int:
        return len(self._places)

    def push(self, flight: int, rank: Rank, tenant: str) -> None:
        """Add a flight; one with a priority is of a favoured tenant."""
        self._tenants[flight] = tenant
        if self._favoured:
            self.update(flight, rank)
        else:
            self._places.push(flight, rank)

    def update(self, flight: int, rank: Rank) -> None:
        """Give a flight that is here another rank."""
        own = self._favoured.get(self._tenants[flight]) if self._favoured else None
        if own is not None:
            moved = flight in own and own.rank(flight)[1:] != self._places.rank(flight)[1:]
            own.push(flight, rank)
            if moved:
                return  # It left its own place to another one.
            rank = (0, rank[1], rank[2])
        self._places.push(flight, rank)

    def remove(self, flight: int) -> None:
        """Take a flight out. Errors: KeyError when it is not here."""
        self._places.remove(flight)
        tenant = self._tenants.pop(flight)
        if self._favoured and tenant in self._favoured:
            self._favoured[tenant].remove(flight)

    def serve(self, flight: int, stood: int, at: Queue) -> None:
        """Take a flight out for the place at which ``stood`` stands in queue ``at``, which
        moves to the place that the flight leaves."""
        left = self._places.rank(flight) if stood != flight else None
        self.remove(flight)
        if left is not None:
            at._places.push(stood, left)

    def place(self) -> Entry | None:
        """The first place, with the flight that stands there; None when empty."""
        return self._places.first()

    def first(self) -> Entry | None:
        """What goes next; None when empty."""
        place = self._places.first()
        return self.taker(place) if place is not None else None

    def taker(self, place: Entry) -> Entry:
        """What takes a place here, which comes up now."""
        if not self._favoured:
            return place
        return self.first_of(self._tenants[place[3]]) or place

    def first_of(self, tenant: str) -> Entry | None:
        """What goes next of a favoured tenant; None of another one, or without any."""
        own = self._favoured.get(tenant)
        return own.first() if own is not None else None

    def tenant(self, flight: int) -> str:
        """Whose a flight is. Errors: KeyError when it is not here."""
        return self._tenants[flight]

    def rank(self, flight: int) -> Rank:
        """The rank of a flight. Errors: KeyError when it is not here."""
        return self._favoured.get(self._tenants[flight], self._places).rank(flight)

    def flights(self) -> list[int]:
        """Every flight, in the order of arrival here."""
        return self._places.items()

    def favour(self, tenant: str) -> None:
        """Keep a tenant's ranks from now on. O(n)."""
        own = self._favoured[tenant] = IndexedHeap()
        for flight in self._places.items():
            if self._tenants[flight] == tenant:
                own.push(flight, self._places.rank(flight))

    def favour_nobody(self) -> None:
        """Keep no tenant's ranks: nothing with a priority is here."""
        self._favoured.clear()

    def fault(self) -> str | None:
        """What is broken in the structure; None when nothing is. O(n log n)."""
        for heap in (self._places, *self._favoured.values()):
            if fault := heap.fault():
                return fault
        if set(self._places.items()) != self._tenants.keys():
            return "flights and their tenants differ"
        for tenant, own in self._favoured.items():
            theirs = {f for f, whose in self._tenants.items() if whose == tenant}
            if set(own.items()) != theirs:
                return f"tenant {tenant!r} has other flights than its ranks say"
        return None
