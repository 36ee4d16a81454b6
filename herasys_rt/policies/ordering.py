"""Orderings: which node goes next. The smallest key goes first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herasys_rt.core.progress import Progress
    from herasys_rt.core.state import Node, Run

FIRST_BIN_S = 0.5
"""Width of the first of the bins of attained service; each is twice the one before."""
_DEPTH_S = 1e-9
"""What a layer counts for against seconds of arrival: it decides between equals only."""


class Fcfs:
    """First come, first served, call by call: whatever became ready first goes first."""

    name = "fcfs"
    dynamic = False

    def key(self, node: Node, run: Run) -> float:
        """When the node became ready or joined, in seconds."""
        return node.story[0][0]


class WorkflowFcfs:
    """First come, first served, by the arrival of the run: nodes of the oldest run go
    first, so that runs are finished rather than begun."""

    name = "workflow_fcfs"
    dynamic = False

    def key(self, node: Node, run: Run) -> float:
        """The run's arrival, in seconds."""
        return run.arrived_s


class Depth:
    """By the arrival of the run, and of one run's nodes those farthest from its end
    first, which is how Teola and Ayo order primitives."""

    name = "depth"
    dynamic = False

    def key(self, node: Node, run: Run) -> float:
        """The run's arrival, less a nanosecond for every layer below the node."""
        depth = node.fragment.plan.topology.depth[node.position]
        return run.arrived_s - _DEPTH_S * depth


class Srtf:
    """Shortest remaining time first: the run of which least is left (HeraSys eq. 4)."""

    name = "srtf"
    dynamic = True

    def key(self, node: Node, run: Run) -> float:
        """S_q, in seconds."""
        return _of(run).remaining_s


class Llf:
    """Least laxity first, a run being due at ``deadline`` times its horizon H_w: what
    could wait least.

    Laxity is a_w + deadline * H_w - t - (the longest way from the node to the end of what
    is revealed); t is common to all and left out. Its name says a deadline other than 1.
    """

    dynamic = True

    def __init__(self, deadline: float = 1.0) -> None:
        self.name = "llf" if deadline == 1.0 else f"llf_{deadline:g}x"
        self._deadline = deadline

    def key(self, node: Node, run: Run) -> float:
        """When the node must begin for the run to be in time, in seconds."""
        progress = _of(run)
        piece = progress.pieces[node.fragment.number]
        due_s = run.arrived_s + self._deadline * progress.horizon_s
        return due_s - piece.tails[node.position]


class Plas:
    """Least attained service of the whole program first (Autellix, PLAS), in bins that
    double; within a bin in the order of becoming ready."""

    name = "plas"
    dynamic = True

    def key(self, node: Node, run: Run) -> float:
        """The bin of A_q."""
        return service_bin(_of(run).attained_s)


class Atlas:
    """Least attained service of the longest chain of ancestors first (Autellix, ATLAS),
    in the same bins: calls of one program that run side by side do not pay for each
    other."""

    name = "atlas"
    dynamic = True

    def key(self, node: Node, run: Run) -> float:
        """The bin of the largest service along any way that leads to the node."""
        piece = _of(run).pieces[node.fragment.number]
        above = node.fragment.plan.asks[node.position]
        chain_s = max([piece.chains[i] for i in above], default=0.0)
        return service_bin(chain_s or piece.served_s)


def service_bin(served_s: float) -> float:
    """0 below `FIRST_BIN_S`, then one more with every doubling."""
    if served_s < FIRST_BIN_S:
        return 0.0
    return float(math.frexp(served_s / FIRST_BIN_S)[1])  # exact on every machine


def _of(run: Run) -> Progress:
    progress = run.progress
    assert progress is not None  # the kernel keeps it for dynamic orderings
    return progress
