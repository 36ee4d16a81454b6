"""Everything the kernel knows. Only `herasys_rt.core` writes it; policies read it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from herasys_rt.core.commands import Command, NodeRecord, SharedItems
from herasys_rt.core.fusion import Claim, Entry, FusionTable, Key, Result, Revisions
from herasys_rt.core.heap import IndexedHeap, Rank
from herasys_rt.core.instances import Batch, Instance, Pool
from herasys_rt.core.items import Sharing
from herasys_rt.core.ledger import Ledger
from herasys_rt.core.merged_priority import MergedPriority
from herasys_rt.core.plan import Plan
from herasys_rt.core.policy import Batching, JointOrdering, Ordering, Placement
from herasys_rt.core.progress import Progress, Tracker
from herasys_rt.core.savings import Savings
from herasys_rt.core.totals import Totals
from herasys_rt.core.transitions import NodeState
from herasys_rt.core.values import Fact, Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.hashing import HashName
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

_NAMED = 1_024
"""So many combinations of collections have their revisions at hand."""


class KernelConfig(msgspec.Struct, frozen=True):
    """The kernel's bounds.

    ``fusion`` False: no node joins or reuses anything. ``max_attempts`` counts a flight's
    tries that ended in a retryable error, ``max_losses`` how often it may lose its
    instance on top. ``reuse_ttl_s`` holds seconds by verb; verbs not named have no limit.
    ``remembered_runs`` ended (or cancelled too early) run ids are kept, so that submitting
    or cancelling them again does nothing. Of the workflows that nothing at work needs, the
    ``remembered_specs`` used last are kept. A run has at most ``max_run_nodes`` nodes, the
    elements of its regions and all of an agent's fragments included. ``reuse_store`` says
    that a store wants to hear of results and purges. ``hashing`` names the values that the
    kernel is told of.
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
    hashing: HashName = "sha256"


class Run(msgspec.Struct, eq=False):
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
    labels: dict[str, str] = {}
    size: int = 0
    fragments: dict[int, Fragment] = {}
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


class Fragment(msgspec.Struct, eq=False):
    """A piece of a run's graph: one plan with its inputs.

    ``nodes`` stand by position; those of regions are `Template`s. ``size`` counts the
    nodes without templates and with elements. ``open`` counts outputs and effects that
    have neither a value nor are skipped. ``facts`` are those of the inputs; ``keys``
    the fusion keys, kept only where conditions decide later. ``seeds`` and
    ``own_collections`` are what keys by value are made with, ``item_seeds`` what keys of
    items are made with, empty where there are none. ``parents`` are the ids of the nodes
    that an agent's values came from. ``kv_tokens`` are predicted by position, or nothing
    is. ``doubted`` are the positions that `flights.doubt` has been at. ``passing`` are
    those whose structural keys name the run, looked for where a store keeps results.
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
    nodes: list[Node] = []
    size: int = 0
    open: int = 0
    active: bool = True
    doubted: set[int] | None = None
    passing: frozenset[int] = frozenset()

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


class Node(msgspec.Struct, eq=False):
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
    story: list[tuple[float, NodeState]] = []

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


class Template(Node):
    """A node of a region. It stands for all its elements, is executed by nobody and
    counted nowhere: it succeeds with its last element, and is skipped when one of them
    is. ``elements`` are there once ``expanded``; ``left`` of them have not ended."""

    elements: list[Node] = []
    expanded: bool = False
    left: int = 0


class Ending(msgspec.Struct, eq=False):
    """A fragment that is about to end: ``error`` None means successfully."""

    fragment: Fragment
    error: ErrorInfo | None = None
    failed_node: str = ""


class Payload(msgspec.Struct, eq=False, gc=False):
    """What an engine needs to execute a flight, captured when its inputs were complete.

    ``exact``, ``expires_s`` and ``eldest_s`` are inherited from the upstream results;
    ``placed`` are the values among all of it that lie in the object store, once per
    reference. ``lent`` are the values whose items are borrowed, ``lasts_s`` is when these
    stop being reusable and ``born_s`` when the first of them was born (infinity: there are
    none). ``lost`` says that one of the values is known to be lost. The other fields are a
    `WorkItem`'s.
    """

    spec_id: str
    node: int
    run_id: str
    tenant: str
    inputs: Value
    upstream: tuple[tuple[int, Value], ...]
    exact: bool
    expires_s: float
    eldest_s: float
    placed: tuple[Value, ...] = ()
    gathered: tuple[tuple[int, tuple[Value, ...]], ...] = ()
    element: int = -1
    items: Value | None = None
    item: Value | None = None
    skipped: tuple[int, ...] = ()
    lent: tuple[Value, ...] = ()
    lasts_s: float = FOREVER
    born_s: float = FOREVER
    shared: SharedItems | None = None
    lost: bool = False


class Flight(msgspec.Struct, eq=False):
    """One physical execution shared by its members.

    ``leader`` is the member whose record has the execution; it is None only when all
    members left (state aborting). ``key`` is its structural key, None when nothing may
    join by that; ``revisions`` are those its inputs' keys name. ``value_key`` is its key
    by value, from when it has its payload; None when it has no such key. ``claims`` are
    those of the flights that were merged into it. The table lists it under all of these
    keys. ``options`` are those of the node it was launched for. While ``timed`` something
    is due: in a slot the end of its ``timeout_s``, resting the next attempt. ``passing``:
    its structural key names a run, so that nobody asks for it after that.

    ``kv_tokens`` are predicted to be held for it on its instance, 0 where nothing is.

    ``attempt`` numbers the starts, ``tries`` counts those that failed after ``spent_s``
    engine seconds in all, ``losses`` names
    the instances it went down with; ``avoid`` is the one to avoid next. ``arrival``
    orders equal keys and is kept over retries (-1 before the flight was first ready).
    While queued, ``rank`` is its place in the heap and ``ranks`` those of its members, and
    of the flights that wait for its items, when there are several. Borrowing, it waits for
    items of others (``sharing``), which are as urgent as its ``rank`` then. ``merged`` is
    its members' priority by eq. 3 in both states, where the ordering tells its terms.
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
    passing: bool = False
    timeout_s: float = FOREVER
    members: dict[int, Node] = {}
    seats: int = 0
    attempt: int = 1
    tries: int = 0
    spent_s: float = 0.0
    losses: tuple[str, ...] = ()
    avoid: str = ""
    arrival: int = -1
    rank: Rank = (0, 0.0, 0)
    ranks: IndexedHeap | None = None
    merged: MergedPriority | None = None
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

    @property
    def may_take(self) -> bool:
        """Whether a completed result will do: no member wants to be computed anew."""
        return all(
            node.fragment.plan.options[node.position].cache
            for node in self.members.values()
        )

    def all_keys(self) -> list[Key]:
        """Every key that leads to it while it lives."""
        keys = [self.key, self.value_key, *[claim.key for claim in self.claims]]
        return [key for key in keys if key is not None]


@dataclass(slots=True, eq=False)
class State:
    """The whole of it.

    ``plans`` are the known workflows, the one used last standing last; ``plans_kept`` is
    how many stayed when some were forgotten last.
    ``named_revisions`` are what `revisions_of` gave since a collection has moved.
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
    joint: JointOrdering | None = None
    """The ordering, where it tells the terms of eq. 3."""
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
    named_revisions: dict[tuple[str, ...], Revisions] = field(
        default_factory=dict[tuple[str, ...], Revisions]
    )
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

    def revisions_of(self, names: tuple[str, ...]) -> Revisions:
        """The collections of these names by name, each once, with their revisions now."""
        if not names:
            return ()
        found = self.named_revisions.get(names)
        if found is None:
            known = self.revisions
            found = tuple([(name, known.get(name, 0)) for name in sorted(set(names))])
            if len(self.named_revisions) >= _NAMED:
                self.named_revisions.clear()
            self.named_revisions[names] = found
        return found


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
        joint=ordering if isinstance(ordering, JointOrdering) else None,
        tracker=Tracker() if ordering.dynamic else None,
    )


def open_fragments(state: State) -> Iterator[Fragment]:
    """Every fragment of an active run that has not ended, in the order of arrival."""
    for run in state.runs.values():
        yield from run.fragments.values()
