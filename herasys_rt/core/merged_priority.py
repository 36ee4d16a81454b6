"""How urgent a flight is that serves several nodes (HeraSys 3.3, eq. 3).

    pi* = alpha * (best SRTF term) + gamma * (sum of phi) + delta * (largest y)

over the members that count: all, or while another tenant has ready work in the pool the
best four of each tenant, so that no tenant buys places with copies of one run. The best
are those with the largest pi of their own (eq. 7), equals in the order of their seats;
so a flight is never less urgent than any of its members would be alone.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from herasys_rt.core.heap import IndexedHeap

MEMBERS_PER_TENANT = 4
"""Members of one tenant that count while another tenant waits."""
_PARTS = 2.0**40
"""phi is added in whole parts: a sum does not depend on the order, and what leaves takes
out exactly what it put in."""


class Weights(NamedTuple):
    """The constants of eq. 3 and eq. 7."""

    alpha: float = 1.0
    gamma: float = 0.3
    delta: float = 0.5


class Member(NamedTuple):
    """What a node brings into a flight: its SRTF term (1 / (S_q + eps), larger is more
    urgent), its contribution phi, whether it is heavy (y), its tenant, and whether its run
    is short."""

    srtf: float
    phi: float
    heavy: bool
    tenant: str
    short: bool


class Merged(NamedTuple):
    """pi* (larger is more urgent), and whether the flight queues with the short ones."""

    score: float
    short: bool


def merged(members: Mapping[int, Member], weights: Weights, contested: bool) -> Merged:
    """The priority of a flight with these members, by seat; at least one.

    ``contested`` says that a tenant other than a member's has ready work in the pool, which
    goes without saying where the members are of several. Short is a flight with any short
    member, counted or not: alone, that one would wait among the short ones too. O(n log n).
    """
    if contested or len({member.tenant for member in members.values()}) > 1:
        counted: list[Member] = []
        left: dict[str, int] = {}
        for seat in sorted(members, key=lambda s: _place(s, members[s], weights)):
            member = members[seat]
            left[member.tenant] = left.get(member.tenant, MEMBERS_PER_TENANT) - 1
            if left[member.tenant] >= 0:
                counted.append(member)
    else:
        counted = list(members.values())
    score = _score(
        weights,
        max([member.srtf for member in counted]),
        sum([_parts(member) for member in counted]),
        any(member.heavy for member in counted),
    )
    return Merged(score, any(member.short for member in members.values()))


class MergedPriority:
    """`merged` of one flight, kept while members join, change and leave.

    `put` and `remove` take O(log n), `value` O(1), all amortised. The kernel keeps one
    with each flight that waits for its turn where the ordering tells the terms
    (`policy.JointOrdering`); those there are now tell none.
    """

    __slots__ = ("_all", "_counted", "_members", "_short", "_tenants", "_weights")

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._members: dict[int, Member] = {}
        self._short = 0
        self._all = _Terms()
        self._counted = _Terms()
        self._tenants: dict[str, _Ranking] = {}

    def __len__(self) -> int:
        return len(self._members)

    def put(self, seat: int, member: Member) -> None:
        """A member joins, or what it brings has changed."""
        if seat in self._members:
            self.remove(seat)
        self._members[seat] = member
        self._short += member.short
        self._all.add(seat, member)
        ranking = self._tenants.setdefault(member.tenant, _Ranking())
        best, rest = ranking.best, ranking.rest
        place = _place(seat, member, self._weights)
        insort(best, place)
        if len(best) > MEMBERS_PER_TENANT:
            worst, last = best.pop()
            rest.push(last, (0, worst, 0))
            if last == seat:
                return
            self._counted.remove(last, self._members[last])
        self._counted.add(seat, member)

    def remove(self, seat: int) -> None:
        """A member leaves. Errors: KeyError when it is not here."""
        member = self._members.pop(seat)
        self._short -= member.short
        self._all.remove(seat, member)
        ranking = self._tenants[member.tenant]
        best, rest = ranking.best, ranking.rest
        if seat in rest:
            rest.remove(seat)
            return
        best.remove(_place(seat, member, self._weights))
        self._counted.remove(seat, member)
        if rest:
            heir = rest.pop()
            best.append(_place(heir, self._members[heir], self._weights))
            self._counted.add(heir, self._members[heir])
        elif not best:
            del self._tenants[member.tenant]

    def value(self, contested: bool) -> Merged:
        """See `merged`. Errors: ValueError without members."""
        terms = self._counted if contested or len(self._tenants) > 1 else self._all
        return Merged(
            _score(self._weights, terms.best(), terms.parts, terms.heavy > 0),
            self._short > 0,
        )


@dataclass(slots=True, eq=False)
class _Terms:
    """The terms of eq. 3 over some members."""

    srtf: IndexedHeap = field(default_factory=IndexedHeap)
    parts: int = 0
    heavy: int = 0

    def add(self, seat: int, member: Member) -> None:
        self.srtf.push(seat, (0, -member.srtf, 0))
        self.parts += _parts(member)
        self.heavy += member.heavy

    def remove(self, seat: int, member: Member) -> None:
        self.srtf.remove(seat)
        self.parts -= _parts(member)
        self.heavy -= member.heavy

    def best(self) -> float:
        """The largest SRTF term. Errors: ValueError when there is none."""
        first = self.srtf.first()
        if first is None:
            raise ValueError("a flight without members has no priority")
        return -first[1]


@dataclass(slots=True, eq=False)
class _Ranking:
    """One tenant's members: the best few, best first, and the others."""

    best: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    rest: IndexedHeap = field(default_factory=IndexedHeap)


def _place(seat: int, member: Member, weights: Weights) -> tuple[float, int]:
    """Where a member stands among those of its tenant: smaller is better."""
    return -_score(weights, member.srtf, _parts(member), member.heavy), seat


def _parts(member: Member) -> int:
    return round(member.phi * _PARTS)


def _score(weights: Weights, srtf: float, parts: int, heavy: bool) -> float:
    return weights.alpha * srtf + weights.gamma * (parts / _PARTS) + weights.delta * heavy
