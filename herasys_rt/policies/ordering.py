"""Orderings: which node goes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herasys_rt.core.state import Node, Run


class Fcfs:
    """First come, first served, by the arrival of the run: nodes of the oldest run go
    first, so that runs are finished rather than begun."""

    name = "fcfs"

    def key(self, node: Node, run: Run) -> float:
        """The run's arrival, in seconds."""
        return run.arrived_s
