"""Placements: on which instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herasys_rt.core.instances import Instance
    from herasys_rt.core.state import Flight


class LeastLoaded:
    """The instance with the smallest share of its slots in use."""

    name = "least_loaded"

    def score(self, instance: Instance, flight: Flight) -> float:
        """Busy slots over slots, 0 to 1."""
        return instance.busy / instance.slots


class LeastReserved:
    """The instance for whose calls the fewest tokens of keys and values are predicted, of
    those alike the one with the smallest share of its slots in use. What HexAGenT's
    baselines do on decode instances, blind to the kind of GPU.

    Where nobody predicts these tokens (`events.RunSubmitted.kv_tokens`), as in a runtime,
    only slots count.
    """

    name = "least_reserved"

    def score(self, instance: Instance, flight: Flight) -> float:
        """Tokens reserved, and busy slots over slots behind the point."""
        return instance.reserved + instance.busy / (instance.slots + 1)


class RoundRobin:
    """Each in turn: the instance that has begun the fewest batches. Blind to everything
    else; an instance that came up later begins where the others are."""

    name = "round_robin"

    def score(self, instance: Instance, flight: Flight) -> float:
        """Batches begun so far."""
        return float(instance.begun)
