"""What a policy is. Policies propose; the kernel checks and disposes.

Policies are pure: they read what they are given, keep no state between calls, and use no
clock, random number or hash order. Implementations live in `herasys_rt.policies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from herasys_rt.core.instances import Instance
    from herasys_rt.core.merged_priority import Member, Weights
    from herasys_rt.core.state import Flight, Node, Run


class Ordering(Protocol):
    """Which node goes next."""

    @property
    def name(self) -> str:
        """The name configuration and journals use."""
        ...

    @property
    def dynamic(self) -> bool:
        """Whether keys read `Run.progress`, and so change with the run's own events. It
        is kept only then."""
        ...

    def key(self, node: Node, run: Run) -> float:
        """The node's key: smaller goes first; never NaN. Asked once when the node becomes
        ready, and again on that node's or run's own events; between those it must not
        change."""
        ...


@runtime_checkable
class JointOrdering(Ordering, Protocol):
    """An ordering by the terms of eq. 3, which add up over the members of a flight: the
    kernel keeps them with each flight that waits for its turn (`Flight.merged`)."""

    @property
    def weights(self) -> Weights:
        """The constants of eq. 3 and eq. 7."""
        ...

    def terms(self, node: Node, run: Run) -> Member:
        """What the node brings into its flight; asked whenever `key` is."""
        ...


class Placement(Protocol):
    """On which instance."""

    @property
    def name(self) -> str:
        """The name configuration and journals use."""
        ...

    def score(self, instance: Instance, flight: Flight) -> float:
        """How badly an instance with a free slot suits the flight: smaller is better,
        ties go to the smaller instance id."""
        ...


class Batching(Protocol):
    """How many items a batch takes from the head of the queue."""

    @property
    def name(self) -> str:
        """The name configuration and journals use."""
        ...

    def size(self, queued: int, idle_slots: int, limit: int) -> int:
        """Items of the next batch, from ``queued`` compatible ones (>= 1) with
        ``idle_slots`` (>= 1) free in the pool. The kernel holds it within 1..limit."""
        ...


class Policies(NamedTuple):
    """One of each."""

    ordering: Ordering
    placement: Placement
    batching: Batching


class PolicyNames(NamedTuple):
    """The names of one of each, as a journal keeps them."""

    ordering: str
    placement: str
    batching: str
