"""Everything that can happen, as a closed union. `Event` is what `handle` takes.

Outcomes of work carry (flight, attempt, instance); the kernel ignores stale ones. Events
are frozen, slotted msgspec structs, so that the journal and the links write them at C
speed (decision 002).
"""

from __future__ import annotations

import math

import msgspec

from herasys_rt.core.values import Fact, Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import WorkflowSpec


class PoolDeclared(msgspec.Struct, frozen=True, tag=True):
    """A pool exists: ``resource`` served with ``model`` (None: not a model).

    ``names`` are all model names that mean this pool's model (alias, hub id, path);
    ``default`` marks the pool that serves nodes of the resource that name no model.
    ``batched`` engines take one batch of at most ``batch_limit`` items per slot;
    continuous ones (``batched`` False) take one item per slot. ``verbs`` are what its
    engines can do.
    """

    pool: str
    resource: str
    names: tuple[str, ...] = ()
    default: bool = False
    batched: bool = False
    batch_limit: int = 1
    verbs: tuple[str, ...] = ()


class PoolFailed(msgspec.Struct, frozen=True, tag=True):
    """No instance of the pool can be brought up any more; what waits for it fails."""

    pool: str
    error: ErrorInfo


class InstanceUp(msgspec.Struct, frozen=True, tag=True):
    """An instance is ready for work. ``instance`` names one incarnation, never reused."""

    instance: str
    pool: str
    slots: int


class InstanceDown(msgspec.Struct, frozen=True, tag=True):
    """An instance is gone with everything it was doing."""

    instance: str
    reason: str


class SpecRegistered(msgspec.Struct, frozen=True, tag=True):
    """A workflow became known; idempotent."""

    spec: WorkflowSpec


class Hint(msgspec.Struct, frozen=True):
    """A completed result that a store offers for the node at position ``node``.

    It holds while the collections that the node depends on have these ``revisions``, for
    ``ttl_s`` more seconds, and if nothing was purged since ``generation``. ``tenant`` is
    whom it was made for, ``age_s`` how long ago and ``eldest_age_s`` how long the first
    thing that it was made of (infinity: nobody knows); the rest is as in `ItemFinished`.
    """

    node: int
    generation: int
    value: Value
    tenant: str
    meta: bytes = b""
    revisions: tuple[tuple[str, int], ...] = ()
    ttl_s: float = math.inf
    run_s: float = 0.0
    tokens: int = 0
    age_s: float = math.inf
    eldest_age_s: float = math.inf


class RunSubmitted(msgspec.Struct, frozen=True, tag=True):
    """A run arrives; a known run id is acknowledged again and otherwise ignored.

    Per node, in spec order: ``signatures`` (structural signature; ``b""`` = may not
    fuse; an empty tuple = unsigned run, nothing fuses) and ``collections`` (names of the
    collections whose content the node's value depends on, ancestors' included; empty
    tuple = none anywhere). ``client`` is the address key of whoever gets the result.
    """

    run_id: str
    spec_id: str
    client: str
    tenant: str
    inputs: Value
    signatures: tuple[bytes, ...] = ()
    collections: tuple[tuple[str, ...], ...] = ()
    stream: bool = False
    priority: int = 0
    deadline_s: float | None = None
    """Seconds from arrival after which the run fails with ``deadline_exceeded``."""
    facts: dict[str, Fact] = {}
    """Of the inputs that conditions and regions ask for."""
    agent: bool = False
    """The run's graph is revealed while it runs; it ends with `RunClosed`."""
    frontend: str = ""
    """Who executes the agent and hears of its fragments; empty: ``client`` itself."""
    labels: dict[str, str] = {}
    """The submitter's own words about the run: kept with it, never looked at."""
    seconds: tuple[float, ...] = ()
    """Predicted per node, in spec order, below 0 where nothing is known of one; empty:
    nothing is predicted."""
    kv_tokens: tuple[int, ...] = ()
    """Tokens per node whose keys and values its engine is predicted to hold, prompt and
    output, in spec order; empty: nothing is predicted."""
    seeds: tuple[bytes, ...] = ()
    """Per node, in spec order: the digest of all that decides its value except outputs of
    nodes and the item of an element (``b""`` = may not fuse); empty: nothing fuses by
    value."""
    own_collections: tuple[tuple[str, ...], ...] = ()
    """Per node, in spec order: the collections that it reads itself; empty: none does."""
    item_seeds: tuple[bytes, ...] = ()
    """Per node, in spec order: the digest of all that decides an output item beside the
    item at its list port (``b""``: its items are not shared); empty: none are."""
    hints: tuple[Hint, ...] = ()
    """Results that may be there already, at most one per node."""


class NodesRevealed(msgspec.Struct, frozen=True, tag=True):
    """An agent reveals the next piece of its graph: the nodes of ``spec_id``.

    ``fragment`` is numbered by the agent's client from 0 and taken once. ``inputs``,
    ``signatures``, ``collections``, ``facts``, ``seconds``, ``kv_tokens``, ``seeds``,
    ``own_collections``, ``item_seeds`` and ``hints`` are as in `RunSubmitted`.
    ``parents`` are (fragment, node id) whose results the values came from. Answered by
    `FinishFragment`; a fragment that fails does not fail the run.
    """

    run_id: str
    fragment: int
    spec_id: str
    inputs: Value
    signatures: tuple[bytes, ...] = ()
    collections: tuple[tuple[str, ...], ...] = ()
    facts: dict[str, Fact] = {}
    parents: tuple[tuple[int, str], ...] = ()
    stream: bool = False
    seconds: tuple[float, ...] = ()
    kv_tokens: tuple[int, ...] = ()
    seeds: tuple[bytes, ...] = ()
    own_collections: tuple[tuple[str, ...], ...] = ()
    item_seeds: tuple[bytes, ...] = ()
    hints: tuple[Hint, ...] = ()


class FragmentCancelled(msgspec.Struct, frozen=True, tag=True):
    """An agent does not want a fragment any more (it lost a race, timed out)."""

    run_id: str
    fragment: int
    reason: str = "cancelled by the agent"


class RunClosed(msgspec.Struct, frozen=True, tag=True):
    """An agent's coroutine has ended: with an error, or successfully without.

    What is still in flight of the run is cancelled.
    """

    run_id: str
    error: ErrorInfo | None = None


class TimePassed(msgspec.Struct, frozen=True, tag=True):
    """Nothing but time: sent when a `WakeAt` is due (late is allowed, early ignored)."""


class RunCancelled(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants a run to stop. May overtake its `RunSubmitted`."""

    run_id: str
    reason: str = "cancelled by the client"


class ClientGone(msgspec.Struct, frozen=True, tag=True):
    """A client went away: its runs are cancelled, and runs of others whose agents it
    executed as a frontend fail."""

    client: str


class ItemStarted(msgspec.Struct, frozen=True, tag=True):
    """An engine began with an item (optional before an outcome)."""

    flight: int
    attempt: int
    instance: str


class ItemFinished(msgspec.Struct, frozen=True, tag=True):
    """An item succeeded. ``run_s`` is engine time without waiting.

    ``meta`` is opaque to the kernel (usage, sources). ``revisions`` holds, for each
    collection read or written, the revision seen in the same transaction.
    ``output_tokens`` are those that a language model gave (0: none did), ``tokens`` these
    and those that it read. ``parts`` are the items of its list's output where the value was
    made of them (`NodeSpec.reduction`) and is not aligned with the list itself; without
    them such an output lends nothing.
    """

    flight: int
    attempt: int
    instance: str
    value: Value
    run_s: float
    meta: bytes = b""
    revisions: dict[str, int] = {}
    truncated: bool = False
    output_tokens: int = 0
    tokens: int = 0
    parts: Value | None = None


class ItemFailed(msgspec.Struct, frozen=True, tag=True):
    """An item failed; the error is that item's alone, never its batch's."""

    flight: int
    attempt: int
    instance: str
    error: ErrorInfo
    run_s: float = 0.0


class ItemAborted(msgspec.Struct, frozen=True, tag=True):
    """An abort has taken effect: the instance no longer works on the item."""

    flight: int
    attempt: int
    instance: str


class CollectionChanged(msgspec.Struct, frozen=True, tag=True):
    """A collection's content moved to ``revision`` (told by the database itself)."""

    collection: str
    revision: int


class CachePurged(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants completed results to be forgotten: those made for ``tenant``, that
    depend on ``collection``, or of the node with this ``signature``. All that is named
    must fit; nothing named means everything."""

    tenant: str | None = None
    collection: str | None = None
    signature: bytes = b""


class ValuesLost(msgspec.Struct, frozen=True, tag=True):
    """Somebody could not fetch these values: the object store has lost them. Told before
    the failure of the item that needed one."""

    places: tuple[str, ...]


Event = (
    PoolDeclared
    | PoolFailed
    | InstanceUp
    | InstanceDown
    | SpecRegistered
    | RunSubmitted
    | NodesRevealed
    | FragmentCancelled
    | RunClosed
    | TimePassed
    | RunCancelled
    | ClientGone
    | ItemStarted
    | ItemFinished
    | ItemFailed
    | ItemAborted
    | CollectionChanged
    | CachePurged
    | ValuesLost
)
