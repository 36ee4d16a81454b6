"""Placements: on which instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herasys_rt.core.state import Flight, Instance


class LeastLoaded:
    """The instance with the smallest share of its slots in use."""

    name = "least_loaded"

    def score(self, instance: Instance, flight: Flight) -> float:
        """Busy slots over slots, 0 to 1."""
        return instance.busy / instance.slots
