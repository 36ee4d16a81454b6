"""How far a run is: attained service, remaining time, horizon (HeraSys 3.4, HexAGenT 2).

Kept only for orderings that ask for it (`Ordering.dynamic`). Predicted seconds come with
the events that reveal nodes; where they do not, or one is below 0, a node counts with the
mean of what its operator took in its pool so far. Remaining time takes them times how far
off such predictions were; the horizon takes them as they are, since what was measured
shares its engine with others. What keys read changes only here, and the run's queued nodes
are ranked anew in the same breath: on the run's own events, in runs of more than `_SMALL`
nodes on every so many of them, so that the cost per event stays bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from herasys_rt.core import flights
from herasys_rt.core.fusion import Result
from herasys_rt.core.progress import Mean, Past, Piece, Progress, Tracker
from herasys_rt.core.state import Fragment, Node, Run, State, Template
from herasys_rt.core.transitions import FINISHED
from herasys_rt.costs.correction import CostKey

_SMALL = 32
_UNKNOWN_S = 1.0
"""Predicted for an operator of which nothing has ended yet."""
_LEAST, _MOST = 0.5, 4.0
"""How far a run's own history may scale what is predicted of its rest."""
_FLOOR_S, _FLOOR_SHARE = 1.0, 0.1
"""How much history counts: 10 ms of it must not rescale 4 s."""


def track(state: State, run: Run, workflow: str) -> None:
    """A run begins."""
    if state.tracker is not None:
        run.progress = Progress(workflow)


def reveal(state: State, fragment: Fragment, predicted: Sequence[float]) -> None:
    """A fragment became known, with what is predicted of its nodes (or nothing)."""
    tracker, run = state.tracker, fragment.run
    progress = run.progress
    if tracker is None or progress is None:
        return
    plan = fragment.plan
    count = len(plan.asks)
    told = predicted if len(predicted) == count else ()
    alone, seconds = _expected(tracker, fragment, told)
    tails = [0.0] * count
    for position in range(count - 1, -1, -1):
        below = max([tails[i] for i in plan.successors[position]], default=0.0)
        tails[position] = alone[position] + below
    piece = Piece(told, seconds, tails, [0.0] * count, [0.0] * count)
    start_s = _follow(progress, run, fragment, piece, state.now)
    piece.end_s = start_s + max(tails, default=0.0)
    progress.pieces[fragment.number] = piece
    progress.horizon_s = max(progress.horizon_s, piece.end_s)
    progress.revealed_s += sum(seconds)


def finished(
    state: State, members: Sequence[Node], leader: Node | None, result: Result
) -> None:
    """A flight succeeded, with these members; its leader's run has paid for it."""
    tracker = state.tracker
    if tracker is None or not members:
        return
    if leader is not None:
        _learn(tracker, leader, result.run_s)
    runs: dict[str, Run] = {}
    for node in members:
        if node.run.progress is not None:
            runs[node.run.id] = node.run
            _serve(node.run.progress, node, result.run_s if node is leader else 0.0)
    for run in runs.values():
        if run.progress is not None and run.progress.unread * _SMALL >= run.size:
            refresh(state, run)


def refresh(state: State, run: Run) -> None:
    """Let keys see what has changed of a run, and rank its queued nodes anew."""
    progress = run.progress
    if progress is None:
        return
    progress.unread = 0
    left_s = 0.0
    queued: list[Node] = []
    for fragment in run.fragments.values():
        piece = progress.pieces.get(fragment.number)
        if piece is None:
            continue
        piece.chains[:] = piece.newest
        for node in _unfinished(fragment):
            left_s += piece.seconds[node.position]
            flight = node.flight
            if flight is not None and flight.state == "queued":
                queued.append(node)
    if run.agent is not None and state.tracker is not None:
        mean = state.tracker.totals.get(progress.workflow)
        if mean is not None:
            left_s += max(0.0, mean.value - progress.revealed_s)
    floor_s = max(_FLOOR_S, _FLOOR_SHARE * progress.revealed_s)
    scale = (progress.served_s + floor_s) / (progress.done_s + floor_s)
    progress.remaining_s = min(max(scale, _LEAST), _MOST) * left_s
    progress.attained_s = progress.served_s
    for node in queued:
        flights.rank_anew(state, node)


def fragment_ended(state: State, fragment: Fragment) -> None:
    """A fragment of an agent's run is over; others may follow from it."""
    progress = fragment.run.progress
    piece = progress.pieces.pop(fragment.number, None) if progress is not None else None
    if progress is not None and piece is not None:
        served_s = max([piece.served_s, *piece.newest])
        progress.past[fragment.number] = Past(piece.end_s, state.now, served_s)


def run_ended(state: State, run: Run) -> None:
    """An agent's run succeeded: runs of its workflow are expected to be as much."""
    if state.tracker is not None and run.progress is not None:
        totals = state.tracker.totals
        progress = run.progress
        totals.setdefault(progress.workflow, Mean()).add(progress.revealed_s)


def _learn(tracker: Tracker, leader: Node, run_s: float) -> None:
    """What an execution took, for what is revealed later."""
    fragment, position = leader.fragment, leader.position
    key = _cost_key(fragment, position)
    tracker.seconds.setdefault(key, Mean()).add(run_s)
    progress = leader.run.progress
    piece = progress.pieces.get(fragment.number) if progress is not None else None
    if piece is not None and piece.told:
        tracker.correction.observe(key, piece.told[position], run_s)


def _expected(
    tracker: Tracker, fragment: Fragment, told: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Seconds per node as predicted, and as they are expected to be measured."""
    alone: list[float] = []
    seconds: list[float] = []
    for position in range(len(fragment.plan.asks)):
        key = _cost_key(fragment, position)
        if told and told[position] >= 0.0:
            alone.append(told[position])
            seconds.append(told[position] * tracker.correction.factor(key))
        else:
            mean = tracker.seconds.get(key)
            alone.append(mean.value if mean is not None else _UNKNOWN_S)
            seconds.append(alone[position])
    return alone, seconds


def _cost_key(fragment: Fragment, position: int) -> CostKey:
    plan = fragment.plan
    assert plan.pools is not None
    return plan.spec.nodes[position].operator, plan.pools[position].decl.pool


def _follow(
    progress: Progress, run: Run, fragment: Fragment, piece: Piece, now: float
) -> float:
    """Where in the horizon a fragment starts: after what it follows from and the time
    that passed since, which nobody here was busy with."""
    numbers = {int(label.partition("/")[0]) for label in fragment.parents}
    before = [progress.past[n] for n in sorted(numbers) if n in progress.past]
    if not before:
        return 0.0 if progress.past or progress.pieces else now - run.arrived_s
    piece.served_s = max([past.served_s for past in before])
    ended_s = max([past.ended_s for past in before])
    return max([past.end_s for past in before]) + now - ended_s


def _serve(progress: Progress, node: Node, run_s: float) -> None:
    """Count what a run's own execution took; ``run_s`` 0: another run's."""
    piece = progress.pieces.get(node.fragment.number)
    if piece is None:
        return
    progress.unread += 1
    position = node.position
    if run_s:
        progress.served_s += run_s
        progress.done_s += piece.seconds[position]
    newest, above = piece.newest, node.fragment.plan.asks[position]
    before_s = max([newest[i] for i in above], default=0.0) or piece.served_s
    newest[position] = max(newest[position], before_s + run_s)


def _unfinished(fragment: Fragment) -> list[Node]:
    """Nodes that are not over; a template counts while it has no elements."""
    found: list[Node] = []
    for node in fragment.nodes:
        if isinstance(node, Template) and node.expanded:
            found += [e for e in node.elements if e.state not in FINISHED]
        elif node.state not in FINISHED:
            found.append(node)
    return found
