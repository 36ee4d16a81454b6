"""Runs: known workflows, admission, cancelling, deadlines."""

from __future__ import annotations

from collections.abc import Mapping

from herasys_rt.core import ends, remaining, reuse
from herasys_rt.core.commands import AcceptRun, FinishRun, ForgetSpec, RefuseRun
from herasys_rt.core.events import NodesRevealed, RunSubmitted
from herasys_rt.core.plan import Plan, plan_of, resolve_pools, spec_fault
from herasys_rt.core.routing import keys_of, passing_of, route, value_parts_of
from herasys_rt.core.state import (
    Agent,
    Ending,
    Fragment,
    Node,
    Run,
    State,
    Template,
    open_fragments,
)
from herasys_rt.core.timers import set_deadline
from herasys_rt.core.values import Fact
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.hashing import HASHES
from herasys_rt.graph.spec import WorkflowSpec

_SWEEPS = 8
"""Workflows are forgotten in sweeps of at least this part of the bound."""


def register(state: State, spec: WorkflowSpec) -> None:
    """Know a workflow; runs of one that cannot work are refused with the reason.

    When there is no room any more, those used longest ago that nothing needs are
    forgotten.
    """
    if known_plan(state, spec.id) is not None:
        return
    fault = spec_fault(spec)
    if fault is not None:
        ends.remember(state, state.unusable, spec.id, fault)
        return
    state.plans[spec.id] = plan_of(spec, HASHES[state.config.hashing])
    most = state.config.remembered_specs
    if len(state.plans) > max(most, state.plans_kept + most // _SWEEPS):
        _forget_plans(state, spec.id)


def known_plan(state: State, spec_id: str) -> Plan | None:
    """The plan of a workflow that is about to be used, if it is known."""
    plan = state.plans.get(spec_id)
    if plan is not None:
        state.plans.move_to_end(spec_id)
    return plan


def _forget_plans(state: State, newest: str) -> None:
    """Forget all but the workflows that are needed and those that were used last.

    Needed are those of open fragments, and of flights that others joined and whose own
    fragment has ended. What is kept leaves room for some time, so that looking through
    all that is at work costs little per registration.
    """
    needed = {fragment.plan.spec_id for fragment in open_fragments(state)}
    for flight in state.flights.values():
        if flight.payload is not None:
            needed.add(flight.payload.spec_id)
    most = state.config.remembered_specs
    surplus = len(state.plans) - (most - most // _SWEEPS)
    for spec_id in list(state.plans):
        if surplus <= 0 or spec_id == newest:
            break
        if spec_id not in needed:
            del state.plans[spec_id]
            state.out.append(ForgetSpec(spec_id))
            surplus -= 1
    state.plans_kept = len(state.plans)


def submit(state: State, event: RunSubmitted) -> None:
    """Take a run, or refuse it with the reason.

    An active run of the same client is acknowledged again. A run id that another client
    uses or that has ended is refused: nobody would hear of its outcome. Stored inputs of
    a submission that is not taken are released.
    """
    run_id = event.run_id
    known = state.runs.get(run_id)
    if known is not None and known.client == event.client:
        state.ledger.discard(event.inputs)
        state.out.append(AcceptRun(run_id, event.client))
        return
    if known is not None or run_id in state.ended:
        _refuse(state, event, _used(run_id, active=known is not None))
        return
    if run_id in state.cancelled_early:
        _end_unstarted(state, event, state.cancelled_early.pop(run_id))
        return
    plan = known_plan(state, event.spec_id)
    error = _refusal(state, event, plan)
    if plan is None or error is not None:
        _refuse(state, event, error or unknown_spec(f"run {run_id}", event.spec_id))
        return
    run = _admit(state, event)
    if run.agent is None:
        begin(state, open_fragment(state, run, 0, event, plan), event)


def cancel(state: State, run_id: str, reason: str) -> None:
    """End a run as cancelled, or remember that it must not start when it arrives."""
    run = state.runs.get(run_id)
    if run is not None:
        ends.end_run(state, run, "cancelled", _cancelled(run_id, reason))
    elif run_id not in state.ended:
        ends.remember(state, state.cancelled_early, run_id, reason)


def client_gone(state: State, client: str) -> None:
    """Cancel every run of a client, and fail those whose agents it executed for others."""
    for run in list(state.clients.get(client, {}).values()):
        error = _cancelled(run.id, f"client {client} is gone")
        ends.end_run(state, run, "cancelled", error)
    for run in list(state.runs.values()):
        if run.agent is not None and run.agent.executor == client:
            ends.end_run(state, run, "failed", _orphaned(run.id, client))


def overdue(state: State, run: Run) -> None:
    """A run's deadline has passed: it fails."""
    error = ErrorInfo(
        "deadline_exceeded",
        f"run {run.id} has not ended within its deadline of {run.deadline_s:g} s",
        "Give it a longer deadline_s, or submit it when less is queued.",
    )
    ends.end_run(state, run, "failed", error)


def open_fragment(
    state: State,
    run: Run,
    number: int,
    event: RunSubmitted | NodesRevealed,
    plan: Plan,
    parents: tuple[str, ...] = (),
) -> Fragment:
    """A piece of a run's graph that nothing has been decided of."""
    fragment = Fragment(
        run=run,
        number=number,
        plan=plan,
        inputs=event.inputs,
        stream=event.stream,
        facts=event.facts,
        parents=parents,
        size=plan.size,
        open=plan.roots,
    )
    if len(event.kv_tokens) == len(plan.asks):
        fragment.kv_tokens = event.kv_tokens
    if plan.flat:
        asks = enumerate(plan.asks)
        fragment.nodes = [Node(run, fragment, position, above) for position, above in asks]
    else:
        fragment.nodes = _nodes(run, fragment, plan)
    run.fragments[number] = fragment
    run.size += fragment.size
    state.ledger.acquire(fragment.inputs)
    state.totals.submitted += fragment.size
    return fragment


def begin(state: State, fragment: Fragment, event: RunSubmitted | NodesRevealed) -> None:
    """Decide the path of every node of a new fragment."""
    plan = fragment.plan
    fragment.keys, fragment.revisions = keys_of(state, event, plan)
    fragment.seeds, fragment.own_collections = value_parts_of(state, event, plan)
    if state.config.fusion and len(event.item_seeds) == len(plan.pure):
        fragment.item_seeds = event.item_seeds
    if state.config.reuse_store:
        fragment.passing = passing_of(event, plan)
    if event.hints:
        reuse.take(state, fragment, event.hints)
    if state.tracker is not None:
        remaining.reveal(state, fragment, event.seconds)
    route(state, fragment)
    if plan.flat:
        fragment.keys = fragment.revisions = ()  # nothing is decided later
    if state.tracker is not None:
        remaining.refresh(state, fragment.run)
    if not fragment.open:
        state.endings.append(Ending(fragment))


def unserved(state: State, plan: Plan, facts: Mapping[str, Fact]) -> ErrorInfo | None:
    """Why nodes of a plan cannot be executed here; None when they can."""
    error = resolve_pools(plan, state.pools.values())
    if error is not None:
        return error
    for pool in plan.pools or ():
        if pool.failure is not None and not pool.instances:
            return pool.failure
    unknown = sorted(plan.asked - facts.keys()) if plan.asked else ()
    if unknown:
        return ErrorInfo(
            "missing_facts",
            f"workflow {plan.spec.name!r} decides by its inputs {', '.join(unknown)} and "
            "nothing is told of them",
            "Submit through a client: it tells truth and length of such inputs.",
        )
    return None


def unknown_spec(who: str, spec_id: str) -> ErrorInfo:
    """The error of somebody who names a workflow that is not registered."""
    return ErrorInfo(
        "unknown_spec",
        f"{who} names workflow {spec_id}, which is not registered here",
        "Register the workflow, then submit the run again.",
        retryable=True,
    )


def _nodes(run: Run, fragment: Fragment, plan: Plan) -> list[Node]:
    made: list[Node] = []
    for position, area in enumerate(plan.region):
        kind = Node if area < 0 else Template
        open_ = plan.needs[position] is not None
        made.append(kind(run, fragment, position, None if open_ else plan.asks[position]))
    return made


def _refuse(state: State, event: RunSubmitted, error: ErrorInfo) -> None:
    state.totals.runs_refused += 1
    state.ledger.discard(event.inputs)
    state.out.append(RefuseRun(event.run_id, event.client, error))


def _used(run_id: str, *, active: bool) -> ErrorInfo:
    what = "is at work for another client" if active else "has ended already"
    return ErrorInfo(
        "run_id_used",
        f"run {run_id} {what}, and a run id is executed once",
        "Submit with a new run id, or let the client make one.",
    )


def _admit(state: State, event: RunSubmitted) -> Run:
    run = Run(
        id=event.run_id,
        client=event.client,
        tenant=event.tenant,
        inputs=event.inputs,
        priority=event.priority,
        arrived_s=state.now,
        seq=state.next_run,
        deadline_s=event.deadline_s,
        agent=Agent(event.frontend or event.client) if event.agent else None,
        labels=event.labels,
    )
    state.next_run += 1
    remaining.track(state, run, event.spec_id)
    state.runs[run.id] = run
    state.clients.setdefault(run.client, {})[run.id] = run
    state.ledger.acquire(run.inputs)
    state.totals.runs_accepted += 1
    state.out.append(AcceptRun(run.id, run.client))
    set_deadline(state, run)
    return run


def _refusal(state: State, event: RunSubmitted, plan: Plan | None) -> ErrorInfo | None:
    if plan is None:
        return state.unusable.get(event.spec_id)
    if not event.agent:
        error = unserved(state, plan, event.facts) or _too_large(state, plan)
        if error is not None:
            return error
    active, most = len(state.runs), state.config.max_active_runs
    if active < most:
        return None
    wait_s = min(max(state.finish_gap_s * (1 + active - most), 0.05), 60.0)
    return ErrorInfo(
        "overloaded",
        f"{active} runs are active and at most {most} may be",
        f"Submit again in {wait_s:.2g} s, or raise scheduler.max_active_runs.",
        retryable=True,
    )


def _too_large(state: State, plan: Plan) -> ErrorInfo | None:
    count, most = len(plan.asks), state.config.max_run_nodes
    if count <= most:
        return None
    return ErrorInfo(
        "too_many_nodes",
        f"workflow {plan.spec.name!r} has {count} nodes and a run may have {most}",
        "Split it into several workflows.",
    )


def _cancelled(run_id: str, reason: str) -> ErrorInfo:
    return ErrorInfo("cancelled", f"run {run_id} was cancelled: {reason}")


def _orphaned(run_id: str, frontend: str) -> ErrorInfo:
    return ErrorInfo(
        "frontend_lost",
        f"{frontend}, which executed the agent of run {run_id}, is gone",
        "Submit the run again.",
        retryable=True,
    )


def _end_unstarted(state: State, event: RunSubmitted, reason: str) -> None:
    """A run whose cancel came first: accepted and ended, nothing of it happens."""
    plan = state.plans.get(event.spec_id)
    error = _cancelled(event.run_id, reason)
    if plan is not None:
        run = _admit(state, event)
        if run.agent is None:
            open_fragment(state, run, 0, event, plan)
        ends.end_run(state, run, "cancelled", error)
        return
    state.ledger.discard(event.inputs)
    state.totals.runs_accepted += 1
    state.out.append(AcceptRun(event.run_id, event.client))
    state.out.append(
        FinishRun(
            event.run_id,
            event.client,
            "cancelled",
            (),
            error=error,
            labels=event.labels,
        )
    )
    ends.count_run(state, "cancelled")
    ends.remember(state, state.ended, event.run_id, None)
