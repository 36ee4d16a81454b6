"""How runs and fragments end: everybody leaves, everybody is told, nothing is kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from herasys_rt.core import flights, remaining
from herasys_rt.core.commands import FinishFragment, FinishRun, NodeRecord
from herasys_rt.core.records import Outputs, outputs_of, records_of
from herasys_rt.core.state import Fragment, Node, Run, RunStatus, State
from herasys_rt.core.timers import clear_deadline
from herasys_rt.core.transitions import FINISHED, NodeState, move
from herasys_rt.errors import ErrorInfo

T = TypeVar("T")

_NOTHING: Outputs = ((), (), ())


def finish(
    state: State,
    fragment: Fragment,
    status: RunStatus,
    *,
    error: ErrorInfo | None = None,
    failed_node: str = "",
) -> None:
    """End an open fragment, and with it its run when that is a static one: its unfinished
    nodes leave their flights, the client is told."""
    fragment.active = False
    run, nodes = fragment.run, fragment.counted()
    _leave(state, nodes, "skipped" if status == "succeeded" else "cancelled")
    outputs, gathered, skipped = _NOTHING
    if status == "succeeded":
        outputs, gathered, skipped = outputs_of(fragment)
    records = records_of(state, fragment, nodes)
    del run.fragments[fragment.number]
    if run.agent is None:
        state.out.append(
            FinishRun(
                run.id,
                run.client,
                status,
                records,
                outputs,
                error,
                failed_node,
                gathered,
                skipped,
                run.labels,
            )
        )
        _let_go(state, fragment, nodes)
        count_run(state, status)
        forget(state, run)
        return
    state.out.append(
        FinishFragment(
            run.id,
            run.agent.executor,
            fragment.number,
            status,
            records,
            outputs,
            error,
            failed_node,
            gathered,
            skipped,
        )
    )
    run.agent.records[fragment.number] = records
    if state.tracker is not None:
        remaining.fragment_ended(state, fragment)
    _let_go(state, fragment, nodes)
    count_fragment(state, status)


def end_run(
    state: State, run: Run, status: RunStatus, error: ErrorInfo | None = None
) -> None:
    """End an active run from outside; an agent's open fragments are cancelled first."""
    if run.agent is None:
        finish(state, run.fragments[0], status, error=error)
        return
    why = error if status == "cancelled" else None
    if why is None:
        reason = f": {error.message}" if error is not None else ""
        why = ErrorInfo("cancelled", f"its run {run.id} has ended{reason}")
    for fragment in list(run.fragments.values()):
        finish(state, fragment, "cancelled", error=why)
    records: list[NodeRecord] = []
    for _, of_fragment in sorted(run.agent.records.items()):
        records += of_fragment
    state.out.append(
        FinishRun(
            run.id, run.client, status, tuple(records), error=error, labels=run.labels
        )
    )
    if status == "succeeded":
        remaining.run_ended(state, run)
    count_run(state, status)
    forget(state, run)


def remember(state: State, memory: OrderedDict[str, T], run_id: str, value: T) -> None:
    """Keep a run id in a bounded memory, the oldest one leaving."""
    memory[run_id] = value
    if len(memory) > state.config.remembered_runs:
        memory.popitem(last=False)


def forget(state: State, run: Run) -> None:
    """Let go of an ended run; its id is remembered."""
    clear_deadline(state, run)
    state.ledger.release(run.inputs)
    del state.runs[run.id]
    mine = state.clients[run.client]
    del mine[run.id]
    if not mine:
        del state.clients[run.client]
    remember(state, state.ended, run.id, None)


def count_run(state: State, status: RunStatus) -> None:
    """Count a run that ended."""
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


def count_fragment(state: State, status: RunStatus) -> None:
    """Count an agent's fragment that ended."""
    totals = state.totals
    if status == "succeeded":
        totals.fragments_succeeded += 1
    elif status == "failed":
        totals.fragments_failed += 1
    else:
        totals.fragments_cancelled += 1


def _leave(state: State, nodes: list[Node], to: NodeState) -> None:
    """Every unfinished node leaves."""
    for node in nodes:
        if node.flight is not None:
            flights.leave(state, node, to)
        elif node.state not in FINISHED:
            move(node, to, state.now)


def _let_go(state: State, fragment: Fragment, nodes: list[Node]) -> None:
    """Let go of everything an ended fragment held."""
    table = state.table
    for node in nodes:
        entry, result = node.entry, node.result
        if entry is not None:
            node.entry = None
            table.unpin(entry)
        value = result.value if result is not None else None
        if value is not None and value.place:
            state.ledger.release(value)
    table.trim()
    state.ledger.release(fragment.inputs)
    fragment.nodes = []
