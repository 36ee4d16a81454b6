"""What is tracked of a run's progress, for orderings that read it. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from herasys_rt.costs.correction import Correction, CostKey


@dataclass(slots=True, eq=False)
class Mean:
    """A running mean."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """One more observation."""
        self.count += 1
        self.value += (value - self.value) / self.count


@dataclass(slots=True, eq=False)
class Piece:
    """What is predicted and measured of one open fragment, by position.

    ``told`` is what came with the event, empty or below 0 where nothing did. ``seconds``
    is how long a node is expected to take here: corrected by what was measured, others'
    work beside it included. ``tails`` is the longest way from a node's start to the end
    of the fragment as predicted, without corrections: the horizon is that of a run alone.
    ``chains`` is the largest measured service along any way to a node's end (0 while it
    has not ended), on top of ``served_s``, that of what the fragment came from; keys read
    it, ``newest`` is what they have not seen yet. ``end_s`` is the fragment's predicted
    end in the run's horizon.
    """

    told: Sequence[float]
    seconds: Sequence[float]
    tails: Sequence[float]
    chains: list[float]
    newest: list[float]
    served_s: float = 0.0
    end_s: float = 0.0


@dataclass(slots=True, eq=False)
class Past:
    """What an agent's ended fragment leaves to those that follow from it: its end in the
    horizon and on the clock, and the largest service on its ways."""

    end_s: float
    ended_s: float
    served_s: float


@dataclass(slots=True, eq=False)
class Progress:
    """How far a run is, in seconds. Keys may read the first three fields and ``pieces``.

    ``attained_s`` A_q: measured time of its executed nodes, without waiting and without
    what others' flights did for it. ``remaining_s`` S_q: expected time of what is left
    (HeraSys eq. 4). ``horizon_s`` H_w: when the revealed graph would be complete if the
    run were alone, from its arrival, tools in between included (HexAGenT section 2).

    ``workflow`` is the id of the run's spec. ``served_s`` is the newest ``attained_s``,
    ``done_s`` what was expected of the same nodes, ``revealed_s`` of all nodes;
    ``unread`` counts events that keys have not seen yet.
    """

    workflow: str
    attained_s: float = 0.0
    remaining_s: float = 0.0
    horizon_s: float = 0.0
    pieces: dict[int, Piece] = field(default_factory=dict[int, Piece])
    past: dict[int, Past] = field(default_factory=dict[int, Past])
    served_s: float = 0.0
    done_s: float = 0.0
    revealed_s: float = 0.0
    unread: int = 0


@dataclass(slots=True, eq=False)
class Tracker:
    """What one kernel has seen: by (operator, pool) the mean measured seconds, and how far
    off predictions are; by workflow the mean expected seconds of whole agent runs."""

    seconds: dict[CostKey, Mean] = field(default_factory=dict[CostKey, Mean])
    correction: Correction = field(default_factory=Correction)
    totals: dict[str, Mean] = field(default_factory=dict[str, Mean])
