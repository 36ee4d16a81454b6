"""Runs: admission, the walk that decides each node's path, and the end."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from herasys_rt.core import flights
from herasys_rt.core.commands import AcceptRun, FinishRun, NodeRecord, RefuseRun
from herasys_rt.core.events import RunSubmitted
from herasys_rt.core.fusion import Entry, Key
from herasys_rt.core.plan import Plan, plan_of, resolve_pools, spec_fault
from herasys_rt.core.state import Node, Run, RunStatus, State
from herasys_rt.core.transitions import FINISHED, move
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import WorkflowSpec

T = TypeVar("T")


def register(state: State, spec: WorkflowSpec) -> None:
    """Know a workflow; runs of one that cannot work are refused with the reason."""
    if spec.id in state.plans:
        return
    fault = spec_fault(spec)
    if fault is None:
        state.plans[spec.id] = plan_of(spec)
    else:
        remember(state, state.unusable, spec.id, fault)


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
    plan = state.plans.get(event.spec_id)
    error = _refusal(state, event, plan)
    if plan is None or error is not None:
        _refuse(state, event, error or _unknown_spec(event))
        return
    run = _admit(state, event, plan)
    _route(state, run, _keys(state, event, plan))
    if not run.open:
        finish(state, run, "succeeded")


def cancel(state: State, run_id: str, reason: str) -> None:
    """End a run as cancelled, or remember that it must not start when it arrives."""
    run = state.runs.get(run_id)
    if run is not None:
        finish(state, run, "cancelled", error=_cancelled(run_id, reason))
    elif run_id not in state.ended:
        remember(state, state.cancelled_early, run_id, reason)


def client_gone(state: State, client: str) -> None:
    """Cancel every run of a client."""
    for run in list(state.clients.get(client, {}).values()):
        finish(
            state, run, "cancelled", error=_cancelled(run.id, f"client {client} is gone")
        )


def finish(
    state: State,
    run: Run,
    status: RunStatus,
    *,
    error: ErrorInfo | None = None,
    failed_node: str = "",
) -> None:
    """End an active run: its unfinished nodes leave their flights, everybody is told."""
    run.active = False
    left = "skipped" if status == "succeeded" else "cancelled"
    for node in run.nodes:
        if node.flight is not None:
            flights.leave(state, node, left)
        elif node.state not in FINISHED:
            move(node, left, state.now)
    outputs: tuple[tuple[int, Value], ...] = ()
    if status == "succeeded":
        outputs = tuple(_output(run.nodes[at]) for at in run.plan.topology.outputs)
    records = tuple([_record(state, node) for node in run.nodes])
    state.out.append(
        FinishRun(run.id, run.client, status, records, outputs, error, failed_node)
    )
    _count_end(state, status)
    _forget(state, run)


def remember(state: State, memory: OrderedDict[str, T], run_id: str, value: T) -> None:
    """Keep a run id in a bounded memory, the oldest one leaving."""
    memory[run_id] = value
    if len(memory) > state.config.remembered_runs:
        memory.popitem(last=False)


def _refuse(state: State, event: RunSubmitted, error: ErrorInfo) -> None:
    state.totals.runs_refused += 1
    state.ledger.discard(event.inputs)
    state.out.append(RefuseRun(event.run_id, event.client, error))


def _admit(state: State, event: RunSubmitted, plan: Plan) -> Run:
    run = Run(
        id=event.run_id,
        plan=plan,
        client=event.client,
        tenant=event.tenant,
        inputs=event.inputs,
        priority=event.priority,
        stream=event.stream,
        arrived_s=state.now,
        seq=state.next_run,
    )
    run.nodes = [Node(run, position) for position in range(len(plan.root))]
    run.open = sum(plan.root)
    state.next_run += 1
    state.runs[run.id] = run
    state.clients.setdefault(run.client, {})[run.id] = run
    state.ledger.acquire(run.inputs)
    state.totals.runs_accepted += 1
    state.totals.submitted += len(run.nodes)
    state.out.append(AcceptRun(run.id, run.client))
    return run


def _keys(state: State, event: RunSubmitted, plan: Plan) -> list[Key | None]:
    """Each node's fusion key; None where it may not fuse."""
    count = len(plan.pure)
    signatures, collections = event.signatures, event.collections
    if not state.config.fusion or len(signatures) != count:
        return [None] * count
    if collections and len(collections) != count:
        return [None] * count
    revisions = state.revisions
    keys: list[Key | None] = []
    for position, signature in enumerate(signatures):
        if not signature or not plan.pure[position]:
            keys.append(None)
        elif not collections or not collections[position]:
            keys.append((signature, ()))
        else:
            names = sorted(set(collections[position]))
            keys.append((signature, tuple((n, revisions.get(n, 0)) for n in names)))
    return keys


def _route(state: State, run: Run, keys: list[Key | None]) -> None:
    """Decide each node's path.

    Walking up from the sinks: a needed node takes a completed result, or joins a live
    flight, or needs its inputs and becomes a flight of its own; a node that nobody needs
    takes a completed result for the record, or is skipped. A node joined to a flight
    without payload keeps its ancestors: it may have to feed that flight.
    """
    nodes, plan = run.nodes, run.plan
    table, now = state.table, state.now
    own: list[Node] = []
    needy = bytearray(len(nodes))
    for position in range(len(nodes) - 1, -1, -1):
        node, key = nodes[position], keys[position]
        wanted = plan.root[position] or any(
            needy[child] for child in plan.topology.successors[position]
        )
        entry = table.result(key, now) if key is not None else None
        if entry is not None:
            reuse(state, node, entry)
        elif not wanted:
            move(node, "skipped", now)
        elif key is not None and (flight := table.live.get(key)) is not None:
            flights.join(state, flight, node)
            needy[position] = flight.payload is None
        else:
            needy[position] = True
            own.append(node)
    for node in reversed(own):
        key = keys[node.position]
        twin = table.live.get(key) if key is not None else None
        if twin is not None:
            flights.join(state, twin, node)
        else:
            assert plan.pools is not None
            flights.launch(state, node, key, plan.pools[node.position])
    _feed_first(state, run)


def _feed_first(state: State, run: Run) -> None:
    """Count what each unfinished node misses and start those that miss nothing."""
    nodes = run.nodes
    parents = run.plan.topology.parents
    for node in nodes:
        if node.flight is not None:
            for parent in parents[node.position]:
                node.missing += nodes[parent].result is None
    for node in nodes:
        if not node.missing:
            flights.capture(state, node)


def reuse(state: State, node: Node, entry: Entry) -> None:
    """Give a waiting node a completed result."""
    state.table.pin(entry)
    state.ledger.acquire(entry.value)
    node.entry = entry
    node.result = entry.result
    node.reused = True
    move(node, "succeeded", state.now)
    node.run.open -= node.run.plan.root[node.position]


def _refusal(state: State, event: RunSubmitted, plan: Plan | None) -> ErrorInfo | None:
    if plan is None:
        return state.unusable.get(event.spec_id)
    error = resolve_pools(plan, state.pools.values())
    if error is not None:
        return error
    for pool in plan.pools or ():
        if pool.failure is not None and not pool.instances:
            return pool.failure
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


def _unknown_spec(event: RunSubmitted) -> ErrorInfo:
    return ErrorInfo(
        "unknown_spec",
        f"run {event.run_id} names workflow {event.spec_id}, which is not registered here",
        "Register the workflow, then submit the run again.",
        retryable=True,
    )


def _used(run_id: str, *, active: bool) -> ErrorInfo:
    what = "is at work for another client" if active else "has ended already"
    return ErrorInfo(
        "run_id_used",
        f"run {run_id} {what}, and a run id is executed once",
        "Submit with a new run id, or let the client make one.",
    )


def _cancelled(run_id: str, reason: str) -> ErrorInfo:
    return ErrorInfo("cancelled", f"run {run_id} was cancelled: {reason}")


def _end_unstarted(state: State, event: RunSubmitted, reason: str) -> None:
    """A run whose cancel came first: accepted and ended, nothing of it happens."""
    plan = state.plans.get(event.spec_id)
    if plan is not None:
        run = _admit(state, event, plan)
        finish(state, run, "cancelled", error=_cancelled(run.id, reason))
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
            error=_cancelled(event.run_id, reason),
        )
    )
    _count_end(state, "cancelled")
    remember(state, state.ended, event.run_id, None)


def _output(node: Node) -> tuple[int, Value]:
    assert node.result is not None and node.result.value is not None
    return node.position, node.result.value


def _record(state: State, node: Node) -> NodeRecord:
    """The node's record; counts it in the accounting."""
    spec = node.run.plan.spec.nodes[node.position]
    totals, result = state.totals, node.result
    node_state = node.state
    if node_state == "cancelled":
        totals.cancelled += 1
    elif node_state == "skipped":
        totals.skipped += 1
    elif node.reused:
        totals.reused += 1
    elif node.fused_into:
        totals.fused += 1
    else:
        totals.executed += 1
    totals.failed += node_state == "failed"
    if result is None:
        return NodeRecord(spec.id, spec.operator, node_state, fused_into=node.fused_into)
    if node.reused:
        return NodeRecord(spec.id, spec.operator, node_state, reused=True, meta=result.meta)
    if node.fused_into:
        return NodeRecord(
            spec.id,
            spec.operator,
            node_state,
            result.instance,
            fused_into=node.fused_into,
            meta=result.meta,
        )
    return NodeRecord(
        spec.id,
        spec.operator,
        node_state,
        result.instance,
        result.queued_s,
        result.run_s,
        attempts=result.attempts,
        meta=result.meta,
    )


def _count_end(state: State, status: RunStatus) -> None:
    totals = state.totals
    if status == "succeeded":
        totals.runs_succeeded += 1
    elif status == "failed":
        totals.runs_failed += 1
    else:
        totals.runs_cancelled += 1
    if state.last_finish_s >= 0:
        gap = state.now - state.last_finish_s
        state.finish_gap_s += 0.1 * (gap - state.finish_gap_s)
    state.last_finish_s = state.now


def _forget(state: State, run: Run) -> None:
    """Let go of everything an ended run held."""
    for node in run.nodes:
        entry, result = node.entry, node.result
        if entry is not None:
            node.entry = None
            state.table.unpin(entry)
        if result is not None and result.value is not None:
            state.ledger.release(result.value)
    state.table.trim()
    state.ledger.release(run.inputs)
    run.nodes = []
    del state.runs[run.id]
    mine = state.clients[run.client]
    del mine[run.id]
    if not mine:
        del state.clients[run.client]
    remember(state, state.ended, run.id, None)
