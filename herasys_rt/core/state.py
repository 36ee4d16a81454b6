"""Everything the kernel knows. Only `herasys_rt.core` writes it; policies read it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from herasys_rt.core.commands import Command, NodeRecord, SharedItems
from herasys_rt.core.events import PoolDeclared
from herasys_rt.core.fusion import Claim, Entry, FusionTable, Key, Result, Revisions
from herasys_rt.core.heap import Entry as HeapEntry
from herasys_rt.core.heap import IndexedHeap, Rank
from herasys_rt.core.items import Sharing
from herasys_rt.core.ledger import Ledger
from herasys_rt.core.plan import Plan
from herasys_rt.core.policy import Batching, Ordering, Placement
from herasys_rt.core.progress import Progress, Tracker
from herasys_rt.core.queue import Queue
from herasys_rt.core.savings import Savings
from herasys_rt.core.transitions import NodeState
from herasys_rt.core.values import Fact, Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import NodeOptions

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]
FlightState = Literal[
    "waiting",
    "borrowing",
    "queued",
    "starting",
    "running",
    "resting",
    "aborting",
    "done",
]

FOREVER = math.inf


class KernelConfig(msgspec.Struct, frozen=True):
    """The kernel's bounds.

    ``fusion`` False: no node joins or reuses anything. ``max_attempts`` counts a flight's
    tries that ended in a retryable error, ``max_losses`` how often it may lose its
    instance on top. ``reuse_ttl_s`` holds seconds by verb; verbs not named have no limit.
    ``remembered_runs`` ended (or cancelled too early) run ids are kept, so that submitting
    or cancelling them again does nothing. Of the workflows that nothing at work needs, the
    ``remembered_specs`` used last are kept. A run has at most ``max_run_nodes`` nodes, the
    elements of its regions and all of an agent's fragments included. ``reuse_store`` says
    that a store wants to hear of results and purges.
    """

    fusion: bool = True
    max_active_runs: int = 10_000
    max_attempts: int = 3
    max_losses: int = 3
    reuse_max_bytes: int = 256 * 1024 * 1024
    reuse_max_entries: int = 100_000
    reuse_ttl_s: dict[str, float] = {}
    remembered_runs: int = 100_000
    remembered_specs: int = 4_096
    max_run_nodes: int = 100_000
    reuse_store: bool = False


def _story() -> list[tuple[float, NodeState]]:
    return []  # several times faster than calling the generic alias


def _members() -> dict[int, Node]:
    return {}


@dataclass(slots=True, eq=False)
class Run:
    """A run being executed: ``seq`` is its place in the order of arrival, ``fragments``
    are its open pieces by number, ``size`` counts the nodes of all of them so far.
    ``labels`` are carried for whoever reads records; nothing is decided by them.

    A static run has exactly the fragment 0 and ends with it. ``agent`` is set for a run
    whose graph is revealed piece by piece.
    """

    id: str
    client: str
    tenant: str
    inputs: Value
    priority: int
    arrived_s: float
    seq: int
    deadline_s: float | None = None
    agent: Agent | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    size: int = 0
    fragments: dict[int, Fragment] = field(default_factory=dict[int, "Fragment"])
    progress: Progress | None = None
    """Kept where the ordering asks for it."""


@dataclass(slots=True, eq=False)
class Agent:
    """What is kept of an agent's run: ``records`` of its ended fragments by number, and
    ``early``, the latest fragments cancelled before they were revealed. ``executor`` is
    the client or frontend where its coroutine is."""

    executor: str
    records: dict[int, tuple[NodeRecord, ...]] = field(
        default_factory=dict[int, tuple[NodeRecord, ...]]
    )
    early: OrderedDict[int, str] = field(default_factory=OrderedDict[int, str])


@dataclass(slots=True, eq=False)
class Fragment:
    """A piece of a run's graph: one plan with its inputs.

    ``nodes`` stand by position; those of regions are `Template`s. ``size`` counts the
    nodes without templates and with elements. ``open`` counts outputs and effects that
    have neither a value nor are skipped. ``facts`` are those of the inputs; ``keys``
    the fusion keys, kept only where conditions decide later. ``seeds`` and
    ``own_collections`` are what keys by value are made with, ``item_seeds`` what keys of
    items are made with, empty where there are none. ``parents`` are the ids of the nodes
    that an agent's values came from. ``kv_tokens`` are predicted by position, or nothing
    is. ``doubted`` are the positions that `flights.doubt` has been at.
    """

    run: Run
    number: int
    plan: Plan
    inputs: Value
    stream: bool
    facts: dict[str, Fact]
    parents: tuple[str, ...] = ()
    keys: Sequence[Key | None] = ()
    revisions: Sequence[Revisions] = ()
    kv_tokens: Sequence[int] = ()
    seeds: Sequence[bytes] = ()
    own_collections: Sequence[tuple[str, ...]] = ()
    item_seeds: Sequence[bytes] = ()
    nodes: list[Node] = field(default_factory=list["Node"])
    size: int = 0
    open: int = 0
    active: bool = True
    doubted: set[int] | None = None

    def counted(self) -> list[Node]:
        """Every node that has a record, in the order of records."""
        if self.plan.flat:
            return self.nodes
        found: list[Node] = []
        for node in self.nodes:
            if isinstance(node, Template):
                found += node.elements
            else:
                found.append(node)
        return found


@dataclass(slots=True, eq=False)
class Node:
    """A node of a fragment; of a region's node the element number ``element``.

    ``needs`` are the positions it takes values from; None while conditions leave that
    open: until then it is in no flight. ``missing`` counts parents whose value has not
    come, ``flight`` is where the node is executed or joined while it is unfinished,
    ``seat`` its place there, ``claim`` what it came with from a flight that was merged
    into that one. ``result`` and ``entry`` are set when it ends with one; ``told`` is
    whether its successors know. ``story`` lists (time, state entered).
    """

    run: Run
    fragment: Fragment
    position: int
    needs: tuple[int, ...] | None
    element: int = -1
    state: NodeState = "waiting"
    missing: int = 0
    flight: Flight | None = None
    seat: int = 0
    claim: Claim | None = None
    result: Result | None = None
    entry: Entry | None = None
    fused_into: str = ""
    reused: bool = False
    told: bool = False
    story: list[tuple[float, NodeState]] = field(default_factory=_story)

    @property
    def id(self) -> str:
        """The id its record has: the spec's, with ``[i]`` for element i of a region."""
        name = self.fragment.plan.spec.nodes[self.position].id
        return name if self.element < 0 else f"{name}[{self.element}]"

    @property
    def label(self) -> str:
        """``run id/node id``; of an agent's run ``run id/fragment/node id``."""
        if self.run.agent is None:
            return f"{self.run.id}/{self.id}"
        return f"{self.run.id}/{self.fragment.number}/{self.id}"


@dataclass(slots=True, eq=False)
class Template(Node):
    """A node of a region. It stands for all its elements, is executed by nobody and
    counted nowhere: it succeeds with its last element, and is skipped when one of them
    is. ``elements`` are there once ``expanded``; ``left`` of them have not ended."""

    elements: list[Node] = field(default_factory=list[Node])
    expanded: bool = False
    left: int = 0


@dataclass(slots=True, eq=False)
class Ending:
    """A fragment that is about to end: ``error`` None means successfully."""

    fragment: Fragment
    error: ErrorInfo | None = None
    failed_node: str = ""


@dataclass(slots=True, eq=False)
class Payload:
    """What an engine needs to execute a flight, captured when its inputs were complete.

    ``exact`` and ``expires_s`` are inherited from the upstream results; ``placed`` are
    the values among all of it that lie in the object store, once per reference. ``lent``
    are the values whose items are borrowed, and ``lasts_s`` is when these stop being
    reusable. The other fields are a `WorkItem`'s.
    """

    spec_id: str
    node: int
    run_id: str
    tenant: str
    inputs: Value
    upstream: tuple[tuple[int, Value], ...]
    exact: bool
    expires_s: float
    placed: tuple[Value, ...] = ()
    gathered: tuple[tuple[int, tuple[Value, ...]], ...] = ()
    element: int = -1
    items: Value | None = None
    item: Value | None = None
    skipped: tuple[int, ...] = ()
    lent: tuple[Value, ...] = ()
    lasts_s: float = FOREVER
    shared: SharedItems | None = None


@dataclass(slots=True, eq=False)
class Flight:
    """One physical execution shared by its members.

    ``leader`` is the member whose record has the execution; it is None only when all
    members left (state aborting). ``key`` is its structural key, None when nothing may
    join by that; ``revisions`` are those its inputs' keys name. ``value_key`` is its key
    by value, from when it has its payload; None when it has no such key. ``claims`` are
    those of the flights that were merged into it. The table lists it under all of these
    keys. ``options`` are those of the node it was launched for. While ``timed`` something
    is due: in a slot the end of its ``timeout_s``, resting the next attempt.

    ``kv_tokens`` are predicted to be held for it on its instance, 0 where nothing is.

    ``attempt`` numbers the starts, ``tries`` counts those that failed, ``losses`` names
    the instances it went down with; ``avoid`` is the one to avoid next. ``arrival``
    orders equal keys and is kept over retries (-1 before the flight was first ready).
    While queued, ``rank`` is its place in the heap and ``ranks`` those of its members, and
    of the flights that wait for its items, when there are several. Borrowing, it waits for
    items of others (``sharing``), which are as urgent as its ``rank`` then.
    ``batch`` is set while it holds a slot.
    """

    id: int
    key: Key | None
    pool: Pool
    verb: str
    effect: bool
    leader: Node | None
    options: NodeOptions
    revisions: Revisions = ()
    value_key: Key | None = None
    claims: tuple[Claim, ...] = ()
    state: FlightState = "waiting"
    timed: bool = False
    timeout_s: float = FOREVER
    members: dict[int, Node] = field(default_factory=_members)
    seats: int = 0
    attempt: int = 1
    tries: int = 0
    losses: tuple[str, ...] = ()
    avoid: str = ""
    arrival: int = -1
    rank: Rank = (0, 0.0, 0)
    ranks: IndexedHeap | None = None
    payload: Payload | None = None
    sharing: Sharing | None = None
    batch: Batch | None = None
    ready_s: float = 0.0
    queued_s: float = 0.0
    kv_tokens: int = 0

    @property
    def is_ranked(self) -> bool:
        """Whether it, or whoever it waits for, waits for a turn."""
        return self.state == "queued" or self.state == "borrowing"

    def all_keys(self) -> list[Key]:
        """Every key that leads to it while it lives."""
        keys = [self.key, self.value_key, *[claim.key for claim in self.claims]]
        return [key for key in keys if key is not None]


@dataclass(slots=True, eq=False)
class Batch:
    """One slot in use: ``left`` of its items have not ended."""

    instance: Instance
    left: int


@dataclass(slots=True, eq=False)
class Instance:
    """An engine instance that is up. ``busy`` of its ``slots`` are in use by
    ``flights``, whose predicted ``kv_tokens`` are ``reserved`` in all. ``begun`` counts
    its batches; one that comes up later begins where the others of its pool are."""

    id: str
    pool: Pool
    slots: int
    busy: int = 0
    begun: int = 0
    reserved: int = 0
    flights: dict[int, Flight] = field(default_factory=dict[int, Flight])


class Turn(NamedTuple):
    """A flight whose turn it is, in its queue, and whose place in which queue it takes:
    its own, or that of a less urgent one of its tenant."""

    queue: Queue
    flight: int
    at: Queue
    stood: int


@dataclass(slots=True, eq=False)
class Pool:
    """A pool. ``free`` are the instances with a free slot, ``idle_slots`` the sum of
    those; ``queues`` hold the queued flights by class (so far a class is a verb: only
    equal verbs share a batch). ``favoured`` are the tenants that have used a priority
    since the queues were empty last. ``failure`` is why no instance comes up any more."""

    decl: PoolDeclared
    instances: dict[str, Instance] = field(default_factory=dict[str, Instance])
    free: dict[str, Instance] = field(default_factory=dict[str, Instance])
    idle_slots: int = 0
    queues: dict[str, Queue] = field(default_factory=dict[str, Queue])
    favoured: dict[str, None] = field(default_factory=dict[str, None])
    failure: ErrorInfo | None = None

    @property
    def hopeless(self) -> bool:
        """No instance is up and none will be."""
        return self.failure is not None and not self.instances

    def queued(self) -> int:
        """Flights in the queues."""
        return sum(len(queue) for queue in self.queues.values())

    def enqueue(self, flight: Flight, tenant: str) -> None:
        """Put a flight into its queue, by its rank."""
        if flight.rank[0] and tenant not in self.favoured:
            self._favour(tenant)
        queue = self.queues.get(flight.verb)
        if queue is None:
            queue = self.queues[flight.verb] = Queue(self.favoured)
        queue.push(flight.id, flight.rank, tenant)

    def rank_anew(self, flight: Flight) -> None:
        """Move a flight that is in its queue to where its rank is now."""
        queue = self.queues[flight.verb]
        if flight.rank[0] and (tenant := queue.tenant(flight.id)) not in self.favoured:
            self._favour(tenant)
        queue.update(flight.id, flight.rank)

    def head(self) -> Turn | None:
        """What goes next; None when nothing is queued."""
        at: Queue | None = None
        place: HeapEntry | None = None
        for queue in self.queues.values():
            its = queue.place()
            if its is not None and (place is None or its < place):
                at, place = queue, its
        if at is None or place is None:
            if self.favoured:
                self._favour_nobody()
            return None
        stood = place[3]
        if not self.favoured:
            return Turn(at, stood, at, stood)
        tenant = at.tenant(stood)
        goes, first = at, None
        for queue in self.queues.values():
            its = queue.first_of(tenant)
            if its is not None and (first is None or its < first):
                goes, first = queue, its
        return Turn(goes, (first or place)[3], at, stood)

    def _favour(self, tenant: str) -> None:
        self.favoured[tenant] = None
        for queue in self.queues.values():
            queue.favour(tenant)

    def _favour_nobody(self) -> None:
        self.favoured.clear()
        for queue in self.queues.values():
            queue.favour_nobody()


@dataclass(slots=True, eq=False)
class Totals:
    """Counts since the start. Nodes are counted under one heading when their run ends:
    submitted = executed + fused + reused + skipped + cancelled. ``failed`` nodes are among
    executed and fused. Fragments are an agent's. ``stale`` counts outcomes that were
    ignored."""

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
    fragments_refused: int = 0
    fragments_succeeded: int = 0
    fragments_failed: int = 0
    fragments_cancelled: int = 0
    stale: int = 0


@dataclass(slots=True, eq=False)
class State:
    """The whole of it.

    ``plans`` are the known workflows, the one used last standing last; ``plans_kept`` is
    how many stayed when some were forgotten last.
    ``due`` orders by time what waits for a time: flights by their ids, the deadlines of
    runs by ``-1 - seq`` (found in ``deadlines``); ``wake_s`` is when the driver was asked
    to wake the kernel, ``due_moved`` that it may have to be asked again. ``out``,
    ``endings``, ``agenda`` and ``dirty`` live only within one event: commands so far,
    fragments to end, flights to be queued, pools to be dispatched.
    """

    config: KernelConfig
    ordering: Ordering
    placement: Placement
    batching: Batching
    reason: str
    ledger: Ledger
    table: FusionTable
    tracker: Tracker | None = None
    """Set where the ordering reads the progress of runs."""
    now: float = 0.0
    plans: OrderedDict[str, Plan] = field(default_factory=OrderedDict[str, Plan])
    plans_kept: int = 0
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
    savings: Savings = field(default_factory=Savings)
    due: IndexedHeap = field(default_factory=IndexedHeap)
    deadlines: dict[int, Run] = field(default_factory=dict[int, Run])
    wake_s: float = FOREVER
    due_moved: bool = False
    finish_gap_s: float = 0.1
    last_finish_s: float = -1.0
    next_run: int = 0
    next_flight: int = 1
    next_arrival: int = 0
    next_sharing: int = 0
    out: list[Command] = field(default_factory=list[Command])
    endings: list[Ending] = field(default_factory=list[Ending])
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
        tracker=Tracker() if ordering.dynamic else None,
    )


def open_fragments(state: State) -> Iterator[Fragment]:
    """Every fragment of an active run that has not ended, in the order of arrival."""
    for run in state.runs.values():
        yield from run.fragments.values()


def counters(state: State) -> dict[str, dict[str, int] | dict[str, dict[str, int]]]:
    """What happened and what is there, for status output; plain counts and bytes.

    ``nodes``: the accounting of `Totals` and ``unfinished`` (nodes of active runs), so
    that submitted is always the sum of executed, fused, reused, skipped, cancelled and
    unfinished. ``runs`` by status, ``fragments`` (an agent's) too. ``reuse`` and
    ``events``. ``pools``: by name, flights queued and running, instances, slots and idle
    slots.
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
            "unfinished": sum(fragment.size for fragment in open_fragments(state)),
        },
        "runs": {
            "accepted": totals.runs_accepted,
            "refused": totals.runs_refused,
            "succeeded": totals.runs_succeeded,
            "failed": totals.runs_failed,
            "cancelled": totals.runs_cancelled,
            "active": len(state.runs),
        },
        "fragments": {
            "refused": totals.fragments_refused,
            "succeeded": totals.fragments_succeeded,
            "failed": totals.fragments_failed,
            "cancelled": totals.fragments_cancelled,
            "open": sum(1 for f in open_fragments(state) if f.run.agent is not None),
        },
        "reuse": {"entries": state.table.entries, "bytes": state.table.bytes},
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
