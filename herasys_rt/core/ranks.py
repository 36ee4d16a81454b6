"""How urgent a flight is: as its most urgent member, or as whoever waits for its items."""

from __future__ import annotations

from herasys_rt.core.heap import IndexedHeap, Rank
from herasys_rt.core.items import Sharing
from herasys_rt.core.merged_priority import MergedPriority
from herasys_rt.core.state import Flight, Node, State


def member_rank(state: State, node: Node) -> tuple[int, float]:
    """(negated priority, key) of one member, asked from the ordering now."""
    run = node.run
    priority = run.priority + node.fragment.plan.priority[node.position]
    return -priority, state.ordering.key(node, run)


def rank(state: State, flight: Flight) -> None:
    """Rank a flight that is about to be queued, or to wait for others' items."""
    leader = flight.leader
    assert leader is not None
    priority, key = member_rank(state, leader)
    flight.ranks = None
    borrowers = flight.sharing.borrowers if flight.sharing is not None else None
    if len(flight.members) > 1 or borrowers:
        flight.ranks = ranks = IndexedHeap()
        for seat, node in flight.members.items():
            ranks.push(seat, (*member_rank(state, node), 0))
        for number, borrower in (borrowers or {}).items():
            ranks.push(-1 - number, _wish(borrower))
        first = ranks.first()
        assert first is not None
        priority, key = first[0], first[1]
    flight.rank = (priority, key, flight.arrival)
    joint = state.joint
    if joint is not None:
        flight.merged = MergedPriority(joint.weights)
        for seat, node in flight.members.items():
            flight.merged.put(seat, joint.terms(node, node.run))


def rank_joiner(state: State, flight: Flight, node: Node) -> None:
    """A ranked flight has one more member."""
    _push(flight, node.seat, (*member_rank(state, node), 0))
    _put(state, flight, node)


def unrank(flight: Flight, node: Node) -> None:
    """A ranked flight has one member less, and others left."""
    _remove(flight, node.seat)
    if flight.merged is not None:
        flight.merged.remove(node.seat)


def rank_anew(state: State, node: Node) -> None:
    """A member of a ranked flight has another key."""
    flight = node.flight
    assert flight is not None
    wish = (*member_rank(state, node), 0)
    _put(state, flight, node)
    if flight.ranks is not None:
        flight.ranks.push(node.seat, wish)
        _rerank(flight)
    else:
        _set(flight, (wish[0], wish[1], flight.arrival))


def press(borrower: Sharing) -> None:
    """No flight whose items another one waits for is less urgent than that."""
    for wait in borrower.waits.values():
        if wait.lender.flight.is_ranked:
            _push(wait.lender.flight, -1 - borrower.number, _wish(borrower))


def unpress(lender: Sharing, borrower: Sharing) -> None:
    """A flight does not wait for another one's items any more."""
    if lender.flight.is_ranked:
        _remove(lender.flight, -1 - borrower.number)


def _put(state: State, flight: Flight, node: Node) -> None:
    """Keep what a member of a ranked flight brings into it."""
    if state.joint is not None and flight.merged is not None:
        flight.merged.put(node.seat, state.joint.terms(node, node.run))


def _wish(borrower: Sharing) -> Rank:
    priority, key, _ = borrower.flight.rank
    return priority, key, 0


def _push(flight: Flight, who: int, wish: Rank) -> None:
    """Somebody who is in a flight, or waits for its items, wishes for a rank."""
    if flight.ranks is None:
        flight.ranks = IndexedHeap()
        leader = flight.leader
        assert leader is not None
        flight.ranks.push(leader.seat, (flight.rank[0], flight.rank[1], 0))
    flight.ranks.push(who, wish)
    _rerank(flight)


def _remove(flight: Flight, who: int) -> None:
    if flight.ranks is not None:
        flight.ranks.remove(who)
        _rerank(flight)


def _rerank(flight: Flight) -> None:
    """Give a ranked flight the best of the ranks that are wished for it."""
    assert flight.ranks is not None
    first = flight.ranks.first()
    assert first is not None
    _set(flight, (first[0], first[1], flight.arrival))


def _set(flight: Flight, rank: Rank) -> None:
    if rank == flight.rank:
        return
    flight.rank = rank
    if flight.state == "queued":
        flight.pool.rank_anew(flight)
    elif flight.sharing is not None:
        press(flight.sharing)
