"""What the kernel knows of pools and their instances: a part of its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from herasys_rt.core.events import PoolDeclared
from herasys_rt.core.heap import Entry as HeapEntry
from herasys_rt.core.queue import Queue
from herasys_rt.errors import ErrorInfo

if TYPE_CHECKING:
    from herasys_rt.core.state import Flight


class Batch(msgspec.Struct, eq=False):
    """One slot in use: ``left`` of its items have not ended."""

    instance: Instance
    left: int


@dataclass(slots=True, eq=False)
class Instance:
    """An engine instance that is up. ``busy`` of its ``slots`` are in use by
    ``flights``, whose predicted ``kv_tokens`` are ``reserved`` in all. ``begun`` counts
    its batches; one that comes up later begins where the others of its pool are."""

    id: str
    pool: Pool
    slots: int
    busy: int = 0
    begun: int = 0
    reserved: int = 0
    flights: dict[int, Flight] = field(default_factory=dict[int, "Flight"])


class Turn(msgspec.Struct, frozen=True):
    """A flight whose turn it is, in its queue, and whose place in which queue it takes:
    its own, or that of a less urgent one of its tenant."""

    queue: Queue
    flight: int
    at: Queue
    stood: int


@dataclass(slots=True, eq=False)
class Pool:
    """A pool. ``free`` are the instances with a free slot, ``idle_slots`` the sum of
    those; ``queues`` hold the queued flights by class (so far a class is a verb: only
    equal verbs share a batch). ``favoured`` are the tenants that have used a priority
    since the queues were empty last. ``failure`` is why no instance comes up any more."""

    decl: PoolDeclared
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    free: dict[str, Instance] = field(default_factory=dict[str, Instance])
    idle_slots: int = 0
    queues: dict[str, Queue] = field(default_factory=dict[str, Queue])
    favoured: dict[str, None] = field(default_factory=dict[str, None])
    failure: ErrorInfo | None = None

    @property
    def hopeless(self) -> bool:
        """No instance is up and none will be."""
        return self.failure is not None and not self.instances

    def queued(self) -> int:
        """Flights in the queues."""
        return sum(len(queue) for queue in self.queues.values())

    def enqueue(self, flight: Flight, tenant: str) -> None:
        """Put a flight into its queue, by its rank."""
        if flight.rank[0] and tenant not in self.favoured:
            self._favour(tenant)
        queue = self.queues.get(flight.verb)
        if queue is None:
            queue = self.queues[flight.verb] = Queue(self.favoured)
        queue.push(flight.id, flight.rank, tenant)

    def rank_anew(self, flight: Flight) -> None:
        """Move a flight that is in its queue to where its rank is now."""
        queue = self.queues[flight.verb]
        if flight.rank[0] and (tenant := queue.tenant(flight.id)) not in self.favoured:
            self._favour(tenant)
        queue.update(flight.id, flight.rank)

    def head(self) -> Turn | None:
        """What goes next; None when nothing is queued."""
        at: Queue | None = None
        place: HeapEntry | None = None
        for queue in self.queues.values():
            its = queue.place()
            if its is not None and (place is None or its < place):
                at, place = queue, its
        if at is None or place is None:
            if self.favoured:
                self._favour_nobody()
            return None
        stood = place[3]
        if not self.favoured:
            return Turn(at, stood, at, stood)
        tenant = at.tenant(stood)
        goes, first = at, None
        for queue in self.queues.values():
            its = queue.first_of(tenant)
            if its is not None and (first is None or its < first):
                goes, first = queue, its
        return Turn(goes, (first or place)[3], at, stood)

    def _favour(self, tenant: str) -> None:
        self.favoured[tenant] = None
        for queue in self.queues.values():
            queue.favour(tenant)

    def _favour_nobody(self) -> None:
        self.favoured.clear()
        for queue in self.queues.values():
            queue.favour_nobody()
