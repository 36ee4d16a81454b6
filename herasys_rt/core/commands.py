"""Everything the kernel can ask for, as a closed union. `Command` is what `handle` gives.

A driver (the live interpreter, the simulator) carries commands out in order and answers
with events. Frozen, slotted msgspec structs, as the events are.
"""

from __future__ import annotations

import msgspec

from herasys_rt.core.fusion import Revisions
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo


class Subscriber(msgspec.Struct, frozen=True):
    """Who gets the text of a streaming item: a client, for a node of its run (of an
    agent's: of that fragment)."""

    client: str
    run_id: str
    node: int
    fragment: int = 0


class SharedItems(msgspec.Struct, frozen=True):
    """Which items of an output need not be computed.

    The list has ``count`` items. ``borrowed`` are (position, lender, index): that item is
    the one at ``index`` of ``lenders[lender]``, or with lender -1 the one at position
    ``index`` of the same output, an earlier one. All others are computed.
    """

    count: int
    lenders: tuple[Value, ...] = ()
    borrowed: tuple[tuple[int, int, int], ...] = ()


class WorkItem(msgspec.Struct, frozen=True, gc=False):
    """One item of a batch: the node at position ``node`` of spec ``spec_id``.

    ``inputs`` are the run's inputs; ``upstream`` the outputs of the node's parents as
    (position, value).
    """

    flight: int
    attempt: int
    spec_id: str
    node: int
    run_id: str
    tenant: str
    inputs: Value
    upstream: tuple[tuple[int, Value], ...] = ()
    gathered: tuple[tuple[int, tuple[Value, ...]], ...] = ()
    """Per node of a region that is read from outside it: its outputs, in items' order."""
    element: int = -1
    """Which item of its region the node works on; -1 outside of regions."""
    items: Value | None = None
    """The region's list when it is a node's output (else it is an input or a literal)."""
    item: Value | None = None
    """The item itself when the region goes over the gathered outputs of another one."""
    skipped: tuple[int, ...] = ()
    """Parents on a branch that was not taken: they have no value here."""
    subscribers: tuple[Subscriber, ...] = ()
    itemise: bool = False
    """Somebody looks at the output's items one by one: tell their digests with it."""
    shared: SharedItems | None = None
    """Set where items of a list are shared: what is there of them already."""
    itemise_texts: bool = False
    """Likewise, at the texts of the output's records."""


class StartBatch(msgspec.Struct, frozen=True, tag=True):
    """Admit items on an instance. Each ends with an event of its own."""

    instance: str
    items: tuple[WorkItem, ...]
    reason: str = ""


class AbortItem(msgspec.Struct, frozen=True, tag=True):
    """Stop working on an item; answered by `ItemAborted` or an outcome that raced it."""

    instance: str
    flight: int
    attempt: int


class AddSubscriber(msgspec.Struct, frozen=True, tag=True):
    """A late joiner of a streaming item: send what was produced so far, then the rest."""

    instance: str
    flight: int
    attempt: int
    subscriber: Subscriber


class AcceptRun(msgspec.Struct, frozen=True, tag=True):
    """The run is known and will end with `FinishRun`."""

    run_id: str
    client: str


class RefuseRun(msgspec.Struct, frozen=True, tag=True):
    """The run is not taken; nothing of it happened."""

    run_id: str
    client: str
    error: ErrorInfo


class NodeRecord(msgspec.Struct, frozen=True, gc=False):
    """What became of one node of a finished run.

    ``state`` is a node state of design section 2. ``queued_s`` from ready to start,
    ``run_s`` engine time (both 0 for joined, reused and skipped nodes, whose time is
    their flight's). ``fused_into`` is ``run_id/node_id`` of the flight's first member
    when this node joined it; ``reused`` that it took a completed result.

    A flight's cost is divided equally among the members that it ended with: ``share`` is
    the node's part of what its ``meta`` tells as usage, ``billed_s`` its part of the engine
    time, that of tries that failed included. Both are 0 of what was not executed for it,
    so that bills add up to what was.
    """

    id: str
    operator: str
    state: str
    instance: str = ""
    queued_s: float = 0.0
    run_s: float = 0.0
    fused_into: str = ""
    reused: bool = False
    attempts: int = 0
    meta: bytes = b""
    fragment: int = 0
    parents: tuple[str, ...] = ()
    """Of an agent's node: ids of the nodes whose results it used."""
    share: float = 0.0
    billed_s: float = 0.0


class FinishRun(msgspec.Struct, frozen=True, tag=True):
    """A run ended: ``status`` is succeeded, failed or cancelled.

    ``outputs`` holds (position, value) of every output node when it succeeded;
    ``failed_node`` the id of the node whose error it is.
    """

    run_id: str
    client: str
    status: str
    nodes: tuple[NodeRecord, ...]
    outputs: tuple[tuple[int, Value], ...] = ()
    error: ErrorInfo | None = None
    failed_node: str = ""
    gathered: tuple[tuple[int, tuple[Value, ...]], ...] = ()
    """Of output nodes inside regions: their outputs, in items' order."""
    skipped: tuple[int, ...] = ()
    """Output nodes on a branch that was not taken."""
    labels: dict[str, str] = {}
    """What the run was submitted with."""


class FinishFragment(msgspec.Struct, frozen=True, tag=True):
    """A fragment of an agent's run ended; fields as in `FinishRun`. ``client`` is who
    executes the agent: a frontend, or the run's client itself."""

    run_id: str
    client: str
    fragment: int
    status: str
    nodes: tuple[NodeRecord, ...]
    outputs: tuple[tuple[int, Value], ...] = ()
    error: ErrorInfo | None = None
    failed_node: str = ""
    gathered: tuple[tuple[int, tuple[Value, ...]], ...] = ()
    skipped: tuple[int, ...] = ()


class WakeAt(msgspec.Struct, frozen=True, tag=True):
    """Send `TimePassed` when the clock shows ``at_s``; replaces an earlier wish."""

    at_s: float


class ReleaseValue(msgspec.Struct, frozen=True, tag=True):
    """Nothing refers to the stored value any more."""

    place: str


class ForgetSpec(msgspec.Struct, frozen=True, tag=True):
    """The kernel has forgotten a workflow: no item will refer to it unless it is
    registered again."""

    spec_id: str


class KeepResult(msgspec.Struct, frozen=True, tag=True):
    """A completed result that a store may keep and offer again (`events.Hint`).

    It is that of every node with this ``signature`` while the collections it depends on
    have these ``revisions``, for ``ttl_s`` more seconds (infinity: without end). It was
    made by ``operator`` for ``tenant`` in ``run_s`` seconds and with ``tokens``,
    ``age_s`` seconds ago, and the first thing that it was made of ``eldest_age_s`` ago. A
    purge since ``generation`` makes it void.
    """

    signature: bytes
    revisions: Revisions
    generation: int
    value: Value
    meta: bytes
    ttl_s: float
    tenant: str
    operator: str
    run_s: float = 0.0
    tokens: int = 0
    age_s: float = 0.0
    eldest_age_s: float = 0.0


class DropKept(msgspec.Struct, frozen=True, tag=True):
    """A purge, for the store: it began ``generation``; the rest is as in
    `events.CachePurged`."""

    generation: int
    tenant: str | None = None
    collection: str | None = None
    signature: bytes = b""


Command = (
    StartBatch
    | AbortItem
    | AddSubscriber
    | AcceptRun
    | RefuseRun
    | FinishRun
    | FinishFragment
    | WakeAt
    | ReleaseValue
    | ForgetSpec
    | KeepResult
    | DropKept
)
