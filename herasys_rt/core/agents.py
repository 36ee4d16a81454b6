"""Agents: runs whose graph is revealed in fragments while they run."""

from __future__ import annotations

from herasys_rt.core import ends, runs
from herasys_rt.core.commands import FinishFragment
from herasys_rt.core.events import FragmentCancelled, NodesRevealed, RunClosed
from herasys_rt.core.plan import Plan
from herasys_rt.core.state import Agent, Run, RunStatus, State
from herasys_rt.errors import ErrorInfo

_REMEMBERED = 1_000
"""Fragments of one run that may be cancelled ahead of being revealed."""


def reveal(state: State, event: NodesRevealed) -> None:
    """Take a fragment of an agent's run, or end it at once with the reason.

    Of a run that is no agent's, unknown or over, and for a number that was there before,
    nothing happens. One that names an unknown workflow was not there: it may come again
    once the workflow is registered.
    """
    run = state.runs.get(event.run_id)
    agent = run.agent if run is not None else None
    if run is None or agent is None or _known(run, agent, event.fragment):
        state.ledger.discard(event.inputs)
        return
    number = event.fragment
    plan = runs.known_plan(state, event.spec_id)
    reason = agent.early.pop(number, None)
    if reason is not None:
        _end_unstarted(state, run, event, plan, reason)
        return
    error = _refusal(state, run, event, plan)
    if plan is None or error is not None:
        state.totals.fragments_refused += 1
        if error is not None:
            agent.records[number] = ()
        else:
            error = runs.unknown_spec(f"fragment {number}", event.spec_id)
        _answer(state, run, event, "failed", error)
        return
    parents = tuple([f"{fragment}/{node}" for fragment, node in event.parents])
    fragment = runs.open_fragment(state, run, number, event, plan, parents)
    runs.begin(state, fragment, event)


def cancel(state: State, event: FragmentCancelled) -> None:
    """End a fragment as cancelled, or remember that it must not start."""
    run = state.runs.get(event.run_id)
    if run is None or run.agent is None:
        return
    fragment = run.fragments.get(event.fragment)
    if fragment is not None:
        error = _cancelled(event.fragment, event.reason)
        ends.finish(state, fragment, "cancelled", error=error)
    elif event.fragment not in run.agent.records:
        run.agent.early[event.fragment] = event.reason
        if len(run.agent.early) > _REMEMBERED:
            run.agent.early.popitem(last=False)


def close(state: State, event: RunClosed) -> None:
    """An agent's coroutine has ended: so does its run, and what it left in flight."""
    run = state.runs.get(event.run_id)
    if run is not None and run.agent is not None:
        status: RunStatus = "succeeded" if event.error is None else "failed"
        ends.end_run(state, run, status, event.error)


def _known(run: Run, agent: Agent, number: int) -> bool:
    return number in run.fragments or number in agent.records


def _refusal(
    state: State, run: Run, event: NodesRevealed, plan: Plan | None
) -> ErrorInfo | None:
    if plan is None:
        return state.unusable.get(event.spec_id)
    most = state.config.max_run_nodes
    if run.size + len(plan.asks) > most:
        return ErrorInfo(
            "too_many_nodes",
            f"agent run {run.id} has {run.size} nodes, fragment {event.fragment} would "
            f"add {len(plan.asks)}, and a run may have {most}",
            "Bound the agent's loops, or split its work over several runs.",
        )
    return runs.unserved(state, plan, event.facts)


def _end_unstarted(
    state: State, run: Run, event: NodesRevealed, plan: Plan | None, reason: str
) -> None:
    """A fragment whose cancel came first: nothing of it happens."""
    error = _cancelled(event.fragment, reason)
    if plan is None or run.size + len(plan.asks) > state.config.max_run_nodes:
        assert run.agent is not None
        run.agent.records[event.fragment] = ()
        ends.count_fragment(state, "cancelled")
        _answer(state, run, event, "cancelled", error)
        return
    parents = tuple([f"{fragment}/{node}" for fragment, node in event.parents])
    fragment = runs.open_fragment(state, run, event.fragment, event, plan, parents)
    ends.finish(state, fragment, "cancelled", error=error)


def _answer(
    state: State, run: Run, event: NodesRevealed, status: RunStatus, error: ErrorInfo
) -> None:
    """End a fragment of which nothing happened."""
    assert run.agent is not None
    state.ledger.discard(event.inputs)
    state.out.append(
        FinishFragment(run.id, run.agent.executor, event.fragment, status, (), error=error)
    )


def _cancelled(number: int, reason: str) -> ErrorInfo:
    return ErrorInfo("cancelled", f"fragment {number} was cancelled: {reason}")
