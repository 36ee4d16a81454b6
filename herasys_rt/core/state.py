"""Everything the kernel knows. Only `herasys_rt.core` writes it; policies read it."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from herasys_rt.core.commands import Command
from herasys_rt.core.events import PoolDeclared
from herasys_rt.core.fusion import Entry, FusionTable, Key, Result
from herasys_rt.core.heap import Entry as HeapEntry
from herasys_rt.core.heap import IndexedHeap, Rank
from herasys_rt.core.ledger import Ledger
from herasys_rt.core.plan import Plan
from herasys_rt.core.policy import Batching, Ordering, Placement
from herasys_rt.core.transitions import NodeState
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]
FlightState = Literal["waiting", "queued", "starting", "running", "aborting", "done"]

FOREVER = math.inf


class KernelConfig(msgspec.Struct, frozen=True):
    """The kernel's bounds.

    ``fusion`` False: no node joins or reuses anything. ``max_attempts`` counts a flight's
    tries that ended in a retryable error, ``max_losses`` how often it may lose its
    instance on top. ``reuse_ttl_s`` holds seconds by verb; verbs not named have no limit.
    ``remembered_runs`` ended (or cancelled too early) run ids are kept, so that submitting
    or cancelling them again does nothing.
    """

    fusion: bool = True
    max_active_runs: int = 10_000
    max_attempts: int = 3
    max_losses: int = 3
    reuse_max_bytes: int = 256 * 1024 * 1024
    reuse_max_entries: int = 100_000
    reuse_ttl_s: dict[str, float] = {}
    remembered_runs: int = 100_000


@dataclass(slots=True, eq=False)
class Run:
    """A run being executed. ``open`` counts its outputs and effects not yet done;
    ``seq`` is its place in the order of arrival."""

    id: str
    plan: Plan
    client: str
    tenant: str
    inputs: Value
    priority: int
    stream: bool
    arrived_s: float
    seq: int
    nodes: list[Node] = field(default_factory=list["Node"])
    open: int = 0
    active: bool = True


@dataclass(slots=True, eq=False)
class Node:
    """A node of a run.

    ``missing`` counts parents without a value, ``flight`` is where the node is executed
    or joined while it is unfinished, ``seat`` its place there. ``result`` and ``entry``
    are set when it ends with one; ``story`` lists (time, state entered).
    """

    run: Run
    position: int
    state: NodeState = "waiting"
    missing: int = 0
    flight: Flight | None = None
    seat: int = 0
    result: Result | None = None
    entry: Entry | None = None
    fused_into: str = ""
    reused: bool = False
    story: list[tuple[float, NodeState]] = field(
        default_factory=list[tuple[float, NodeState]]
    )

    @property
    def label(self) -> str:
        """``run id/node id``."""
        return f"{self.run.id}/{self.run.plan.spec.nodes[self.position].id}"


@dataclass(slots=True, eq=False)
class Payload:
    """What an engine needs to execute a flight, captured when its inputs were complete.

    ``exact`` and ``expires_s`` are inherited from the upstream results.
    """

    spec_id: str
    node: int
    run_id: str
    tenant: str
    inputs: Value
    upstream: tuple[tuple[int, Value], ...]
    exact: bool
    expires_s: float


@dataclass(slots=True, eq=False)
class Flight:
    """One physical execution shared by its members.

    ``leader`` is the member whose record has the execution; it is None only when all
    members left (state aborting). ``key`` is None when nothing may join. ``attempt``
    numbers the starts, ``tries`` counts those that failed, ``losses`` names the instances
    it went down with; ``avoid`` is the one to avoid next. ``arrival`` orders equal keys
    and is kept over retries (-1 before the flight was first ready). While queued,
    ``rank`` is its place in the heap and ``ranks`` its members' when there are several.
    ``batch`` is set while it holds a slot.
    """

    id: int
    key: Key | None
    pool: Pool
    verb: str
    effect: bool
    leader: Node | None
    state: FlightState = "waiting"
    members: dict[int, Node] = field(default_factory=dict[int, Node])
    seats: int = 0
    attempt: int = 1
    tries: int = 0
    losses: tuple[str, ...] = ()
    avoid: str = ""
    arrival: int = -1
    rank: Rank = (0, 0.0, 0)
    ranks: IndexedHeap | None = None
    payload: Payload | None = None
    batch: Batch | None = None
    ready_s: float = 0.0
    queued_s: float = 0.0


@dataclass(slots=True, eq=False)
class Batch:
    """One slot in use: ``left`` of its items have not ended."""

    instance: Instance
    left: int


@dataclass(slots=True, eq=False)
class Instance:
    """An engine instance that is up. ``busy`` of its ``slots`` are in use by
    ``flights``."""

    id: str
    pool: Pool
    slots: int
    busy: int = 0
    flights: dict[int, Flight] = field(default_factory=dict[int, Flight])


@dataclass(slots=True, eq=False)
class Pool:
    """A pool. ``free`` are the instances with a free slot, ``idle_slots`` the sum of
    those; ``queues`` hold the queued flights by class (so far a class is a verb: only
    equal verbs share a batch). ``failure`` is why no instance comes up any more."""

    decl: PoolDeclared
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    free: dict[str, Instance] = field(default_factory=dict[str, Instance])
    idle_slots: int = 0
    queues: dict[str, IndexedHeap] = field(default_factory=dict[str, IndexedHeap])
    failure: ErrorInfo | None = None

    @property
    def hopeless(self) -> bool:
        """No instance is up and none will be."""
        return self.failure is not None and not self.instances

    def queued(self) -> int:
        """Flights in the queues."""
        return sum(len(queue) for queue in self.queues.values())

    def head(self) -> tuple[IndexedHeap, HeapEntry] | None:
        """The queue whose first flight goes next, with that flight's entry."""
        best: tuple[IndexedHeap, HeapEntry] | None = None
        for queue in self.queues.values():
            first = queue.first()
            if first is not None and (best is None or first < best[1]):
                best = (queue, first)
        return best


@dataclass(slots=True, eq=False)
class Totals:
    """Counts since the start. Nodes are counted under one heading when their run ends:
    submitted = executed + fused + reused + skipped + cancelled. ``failed`` nodes are among
    executed and fused. ``stale`` counts outcomes that were ignored."""

    submitted: int = 0
    executed: int = 0
    fused: int = 0
    reused: int = 0
    skipped: int = 0
    cancelled: int = 0
    failed: int = 0
    runs_accepted: int = 0
    runs_refused: int = 0
    runs_succeeded: int = 0
    runs_failed: int = 0
    runs_cancelled: int = 0
    stale: int = 0


@dataclass(slots=True, eq=False)
class State:
    """The whole of it. ``out``, ``agenda`` and ``dirty`` live only within one event:
    commands so far, flights to be queued, pools to be dispatched."""

    config: KernelConfig
    ordering: Ordering
    placement: Placement
    batching: Batching
    reason: str
    ledger: Ledger
    table: FusionTable
    now: float = 0.0
    plans: dict[str, Plan] = field(default_factory=dict[str, Plan])
    pools: dict[str, Pool] = field(default_factory=dict[str, Pool])
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    clients: dict[str, dict[str, Run]] = field(default_factory=dict[str, dict[str, Run]])
    flights: dict[int, Flight] = field(default_factory=dict[int, Flight])
    revisions: dict[str, int] = field(default_factory=dict[str, int])
    ended: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    unusable: OrderedDict[str, ErrorInfo] = field(
        default_factory=OrderedDict[str, ErrorInfo]
    )
    cancelled_early: OrderedDict[str, str] = field(default_factory=OrderedDict[str, str])
    totals: Totals = field(default_factory=Totals)
    finish_gap_s: float = 0.1
    last_finish_s: float = -1.0
    next_run: int = 0
    next_flight: int = 1
    next_arrival: int = 0
    out: list[Command] = field(default_factory=list[Command])
    agenda: list[Flight] = field(default_factory=list[Flight])
    dirty: dict[str, Pool] = field(default_factory=dict[str, Pool])


def new_state(
    config: KernelConfig, ordering: Ordering, placement: Placement, batching: Batching
) -> State:
    """An empty state driven by these policies."""
    ledger = Ledger()
    return State(
        config=config,
        ordering=ordering,
        placement=placement,
        batching=batching,
        reason=f"{ordering.name}, {placement.name}, {batching.name}",
        ledger=ledger,
        table=FusionTable(ledger, config.reuse_max_bytes, config.reuse_max_entries),
    )


def counters(state: State) -> dict[str, dict[str, int] | dict[str, dict[str, int]]]:
    """What happened and what is there, for status output; plain counts and bytes.

    ``nodes``: the accounting of `Totals` and ``unfinished`` (nodes of active runs), so
    that submitted is always the sum of executed, fused, reused, skipped, cancelled and
    unfinished. ``runs`` by status. ``reuse`` and ``events``. ``pools``: by name, flights
    queued and running, instances, slots and idle slots.
    """
    totals = state.totals
    return {
        "nodes": {
            "submitted": totals.submitted,
            "executed": totals.executed,
            "fused": totals.fused,
            "reused": totals.reused,
            "skipped": totals.skipped,
            "cancelled": totals.cancelled,
            "failed": totals.failed,
            "unfinished": sum(len(run.nodes) for run in state.runs.values()),
        },
        "runs": {
            "accepted": totals.runs_accepted,
            "refused": totals.runs_refused,
            "succeeded": totals.runs_succeeded,
            "failed": totals.runs_failed,
            "cancelled": totals.runs_cancelled,
            "active": len(state.runs),
        },
        "reuse": {"entries": len(state.table.completed), "bytes": state.table.bytes},
        "events": {"stale": totals.stale},
        "pools": {
            name: {
                "queued": pool.queued(),
                "running": sum(len(i.flights) for i in pool.instances.values()),
                "instances": len(pool.instances),
                "slots": sum(i.slots for i in pool.instances.values()),
                "idle_slots": pool.idle_slots,
            }
            for name, pool in state.pools.items()
        },
    }
