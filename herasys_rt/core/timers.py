"""What waits for a time: ends of attempts, delays before the next, deadlines of runs.

The kernel has no clock. It asks the driver to be woken (`WakeAt`) and treats everything
that is due when `TimePassed` comes; being late is harmless. What is due never changes the
order in which work is served.
"""

from __future__ import annotations

import hashlib
import math

from herasys_rt.core.commands import WakeAt
from herasys_rt.core.state import FOREVER, Flight, Run, State
from herasys_rt.graph.spec import Retry


def set_timer(state: State, flight: Flight, at_s: float) -> None:
    """The flight is due at ``at_s``; replaces what it waited for."""
    if at_s < FOREVER:
        flight.timed = True
        state.due.push(flight.id, (0, at_s, 0))
        state.due_moved = True


def clear_timer(state: State, flight: Flight) -> None:
    """The flight waits for no time any more; nothing happens when it did not."""
    if flight.timed:
        flight.timed = False
        state.due.remove(flight.id)


def set_deadline(state: State, run: Run) -> None:
    """The run is overdue when its deadline has passed since now."""
    seconds = run.deadline_s
    if seconds is not None and math.isfinite(seconds):
        state.deadlines[run.seq] = run
        state.due.push(-1 - run.seq, (0, state.now + seconds, 0))
        state.due_moved = True


def clear_deadline(state: State, run: Run) -> None:
    """The run has ended; nothing happens when it had no deadline."""
    if state.deadlines.pop(run.seq, None) is not None:
        state.due.remove(-1 - run.seq)


def next_due(state: State) -> Flight | Run | None:
    """Whoever is due now, earliest first, and waits no more; None when nobody is."""
    first = state.due.first()
    if first is None or first[1] > state.now:
        return None
    item = state.due.pop()
    if item < 0:
        return state.deadlines.pop(-1 - item)
    flight = state.flights[item]
    flight.timed = False
    return flight


def wish(state: State) -> None:
    """Ask to be woken for what is due first, unless that was asked for already."""
    state.due_moved = False
    first = state.due.first()
    if first is not None and first[1] < state.wake_s:
        state.wake_s = first[1]
        state.out.append(WakeAt(first[1]))


def longest_timeout_s(flight: Flight) -> float:
    """How long an attempt that starts now may take: the longest that a member allows."""
    longest = 0.0
    for node in flight.members.values():
        seconds = node.fragment.plan.options[node.position].timeout_s
        if seconds is None:
            return FOREVER
        longest = max(longest, seconds)
    return longest


def delay_s(retry: Retry, flight: Flight) -> float:
    """How long to wait after the flight's latest failed try.

    The jitter is drawn from a hash of flight and attempt, so that a replay draws the same.
    """
    seconds = retry.initial_interval_s
    for _ in range(flight.tries - 1):
        if seconds >= retry.max_interval_s:
            break
        seconds *= retry.backoff_factor
    seconds = min(seconds, retry.max_interval_s)
    drawn = hashlib.sha256(f"{flight.id}/{flight.attempt}".encode()).digest()
    share = int.from_bytes(drawn[:8], "little") / 2**64
    return max(0.0, seconds * (1.0 - min(retry.jitter, 1.0) * share))
