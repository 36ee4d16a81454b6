"""What fusion and reuse have saved, by operator and tenant.

A node is counted when its fragment ends, under the heading that `totals.Totals` counts
it under. One that joined a flight or took a completed result has saved what that flight
measured: its engine seconds and its tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herasys_rt.core.fusion import Result

MOST_PAIRS = 1_000
"""So many (operator, tenant) pairs are told apart; what comes later is `OTHERS`."""

OTHERS = ("other", "other")


@dataclass(slots=True, eq=False)
class Counts:
    """Nodes of one operator and tenant that ended: ``seen`` are all, ``shared_items`` the
    items of lists that were borrowed instead of computed."""

    seen: int = 0
    executed: int = 0
    joined: int = 0
    reused: int = 0
    shared_items: int = 0
    saved_s: float = 0.0
    saved_tokens: int = 0

    def spare(self, result: Result) -> None:
        """A node got this result without executing it."""
        self.saved_s += result.run_s
        self.saved_tokens += result.tokens

    def add(self, other: Counts) -> None:
        """Count what ``other`` has counted as well."""
        self.seen += other.seen
        self.executed += other.executed
        self.joined += other.joined
        self.reused += other.reused
        self.shared_items += other.shared_items
        self.saved_s += other.saved_s
        self.saved_tokens += other.saved_tokens

    @property
    def hit_ratio(self) -> float:
        """The share of the nodes with a result that nobody had to execute; 0 of none."""
        spared = self.joined + self.reused
        return spared / (spared + self.executed) if spared else 0.0

    def plain(self) -> dict[str, int | float]:
        """As plain data, with ``hit_ratio``."""
        told = asdict(self)
        told["saved_s"] = round(self.saved_s, 6)
        told["hit_ratio"] = round(self.hit_ratio, 6)
        return told


class Savings:
    """`Counts` by (operator, tenant), bounded."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str], Counts] = {}

    def of(self, operator: str, tenant: str) -> Counts:
        """Where a node of this operator and tenant is counted."""
        pair = (operator, tenant)
        counts = self.pairs.get(pair)
        if counts is None:
            if len(self.pairs) >= MOST_PAIRS:
                pair = OTHERS
            counts = self.pairs.setdefault(pair, Counts())
        return counts

    def total(self) -> Counts:
        """Everything together."""
        total = Counts()
        for counts in self.pairs.values():
            total.add(counts)
        return total

    def told(self, tenant: str | None = None) -> list[dict[str, str | int | float]]:
        """One entry per pair, by operator and tenant; of one ``tenant`` (None: of all)."""
        return [
            {"operator": operator, "tenant": of, **counts.plain()}
            for (operator, of), counts in sorted(self.pairs.items())
            if tenant is None or of == tenant
        ]
