"""The kernel: one pure function from events to commands.

`handle` mutates the state, deterministically, and touches nothing else: no I/O, no clock,
no random number. Whatever a driver delivers - late, twice, about things unknown - has a
defined answer; only a broken invariant raises (`InternalError`, with the node's story).
"""

from __future__ import annotations

from typing import assert_never

from herasys_rt.core import (
    agents,
    ends,
    flights,
    losses,
    matching,
    outcomes,
    pools,
    reuse,
    runs,
    timers,
)
from herasys_rt.core.commands import Command, ReleaseValue
from herasys_rt.core.counters import counters
from herasys_rt.core.events import (
    CachePurged,
    ClientGone,
    CollectionChanged,
    Event,
    FragmentCancelled,
    InstanceDown,
    InstanceUp,
    ItemAborted,
    ItemFailed,
    ItemFinished,
    ItemStarted,
    NodesRevealed,
    PoolDeclared,
    PoolFailed,
    RunCancelled,
    RunClosed,
    RunSubmitted,
    SpecRegistered,
    TimePassed,
    ValuesLost,
)
from herasys_rt.core.state import FOREVER, KernelConfig, Run, State, new_state

__all__ = ["KernelConfig", "State", "counters", "handle", "new_state"]


def handle(state: State, event: Event, now: float) -> list[Command]:
    """What an event at ``now`` (seconds, never falling) calls for, in order.

    A `FinishRun` or `FinishFragment` stands before the `ReleaseValue` of values it carries.
    """
    if now > state.now:
        state.now = now
    out = state.out = []
    _take(state, event)
    if state.agenda:
        matching.match(state)
    if state.endings:
        _end(state)
    if state.agenda:
        _queue(state)
    if state.dirty:
        for pool in state.dirty.values():
            pools.dispatch(state, pool)
        state.dirty.clear()
    if state.due_moved:
        timers.wish(state)
    for place in state.ledger.drain():
        out.append(ReleaseValue(place))
    return out


def _take(state: State, event: Event) -> None:
    match event:
        case ItemFinished():
            outcomes.item_finished(state, event)
        case ItemStarted():
            outcomes.item_started(state, event)
        case RunSubmitted():
            runs.submit(state, event)
            if event.hints:
                reuse.settle(state, event.hints)
        case NodesRevealed():
            agents.reveal(state, event)
            if event.hints:
                reuse.settle(state, event.hints)
        case ItemFailed():
            outcomes.item_failed(state, event)
        case ItemAborted():
            outcomes.item_aborted(state, event)
        case RunCancelled():
            runs.cancel(state, event.run_id, event.reason)
        case ClientGone():
            runs.client_gone(state, event.client)
        case CollectionChanged():
            outcomes.revise(state, event.collection, event.revision)
        case SpecRegistered():
            runs.register(state, event.spec)
        case InstanceUp():
            pools.instance_up(state, event)
        case InstanceDown():
            pools.instance_down(state, event)
        case PoolDeclared():
            pools.declare(state, event)
        case PoolFailed():
            pools.pool_failed(state, event)
        case FragmentCancelled():
            agents.cancel(state, event)
        case RunClosed():
            agents.close(state, event)
        case CachePurged():
            reuse.purge(state, event)
        case ValuesLost():
            losses.lose(state, event)
        case TimePassed():
            _pass_time(state)
        case _:
            assert_never(event)


def _pass_time(state: State) -> None:
    """Treat everything that is due; the wish to be woken is fulfilled."""
    state.wake_s = FOREVER
    state.due_moved = True
    while (due := timers.next_due(state)) is not None:
        if isinstance(due, Run):
            runs.overdue(state, due)
        elif due.state == "resting":
            state.agenda.append(due)
        else:
            outcomes.time_out(state, due, due.timeout_s)


def _end(state: State) -> None:
    """End the fragments for which this event brought the last or the worst."""
    for ending in state.endings:
        if ending.fragment.active:
            status = "succeeded" if ending.error is None else "failed"
            ends.finish(
                state,
                ending.fragment,
                status,
                error=ending.error,
                failed_node=ending.failed_node,
            )
    state.endings.clear()


def _queue(state: State) -> None:
    """Queue every flight that got its inputs or another attempt in this event."""
    agenda = state.agenda
    for flight in agenda:  # failing one may end others, and adds who borrowed from them
        if flight.state == "done":
            continue
        pool = flight.pool
        if pool.hopeless and pool.failure is not None:
            outcomes.fail(state, flight, pool.failure)
        else:
            flights.enqueue(state, flight)
    agenda.clear()
