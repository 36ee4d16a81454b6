"""What travels over the links besides the core's events and commands.

Clients speak to a *door*: the fuser, or the scheduler while the fuser is away. Both take
the same client messages. Events and commands of the core travel as they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from herasys_rt.core import commands, events
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.explain import Explanation
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.links import Endpoint


# --- client -> door -----------------------------------------------------------------
class Hello(msgspec.Struct, frozen=True, tag=True):
    """A client introduces itself. ``tenant`` is the connection's, never a run's."""

    client: str
    endpoint: Endpoint
    tenant: str


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A run: ``inputs`` is the encoded dict of its inputs, defaults filled in; the other
    fields are as in `events.RunSubmitted`."""

    run_id: str
    spec_id: str
    client: str
    inputs: bytes
    stream: bool = False
    agent: bool = False
    priority: int = 0
    deadline_s: float | None = None
    frontend: str = ""
    labels: dict[str, str] = {}


class Reveal(msgspec.Struct, frozen=True, tag=True):
    """The next piece of an agent's graph; ``inputs`` as in `Submit`, the rest as in
    `events.NodesRevealed`. ``client`` is who executes the agent, as in `Abandon`."""

    run_id: str
    fragment: int
    spec_id: str
    client: str
    inputs: bytes
    parents: tuple[tuple[int, str], ...] = ()
    stream: bool = False


class Abandon(msgspec.Struct, frozen=True, tag=True):
    """An agent does not want a fragment any more."""

    run_id: str
    fragment: int
    client: str


class Close(msgspec.Struct, frozen=True, tag=True):
    """An agent's coroutine has ended, with an error or well."""

    run_id: str
    client: str
    error: ErrorInfo | None = None


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop a run."""

    run_id: str
    client: str


class Ping(msgspec.Struct, frozen=True, tag=True):
    """The client lives; answered by `Pong`."""

    client: str


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """The client leaves; its runs are cancelled."""

    client: str


class StatusRequest(msgspec.Struct, frozen=True, tag=True):
    """Asks the scheduler for a `StatusReply`; ``question`` comes back with it. Who shows
    the operator's ``key`` is told of every tenant."""

    client: str
    question: int
    key: str = ""


class PurgeRequest(msgspec.Struct, frozen=True, tag=True):
    """Asks for completed results to be forgotten; answered by a `PurgeReply` of the same
    ``question``. The filters are those of `events.CachePurged`; only who shows the
    operator's ``key`` may name another tenant than its own, or none."""

    client: str
    question: int
    tenant: str | None = None
    collection: str | None = None
    signature: bytes = b""
    key: str = ""


class ExplainRequest(msgspec.Struct, frozen=True, tag=True):
    """Asks the door for an `ExplainReply` on a node of a run of the client's tenant;
    ``question`` comes back with it."""

    client: str
    question: int
    run_id: str
    node: str


# --- hosts and fuser -> scheduler ---------------------------------------------------
class HostReady(msgspec.Struct, frozen=True, tag=True):
    """An engine host has loaded its engine; said again until it is `Named`. ``facts`` is
    `Engine.describe()`."""

    pool: str
    index: int
    endpoint: Endpoint
    facts: dict[str, Any]


class HostFailed(msgspec.Struct, frozen=True, tag=True):
    """An engine host could not load its engine, or its engine broke for good."""

    pool: str
    index: int
    error: ErrorInfo


class HostLost(msgspec.Struct, frozen=True, tag=True):
    """The watcher saw the host's process ``pid`` end (0: whichever there is; ``gone``:
    none will follow). Told late, it is about a predecessor of the living one."""

    pool: str
    index: int
    reason: str
    gone: bool = False
    pid: int = 0


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """A host lives. ``running``, ``waiting`` and ``kv_usage`` are its engine's."""

    instance: str
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


class StoreFacts(msgspec.Struct, frozen=True):
    """How the store of results is: ``up`` or ``waiting`` for its folder; what is in it,
    and since the start: results kept and left out, found, and found damaged."""

    state: str
    entries: int
    bytes: int
    kept: int
    left_out: int
    found: int
    damaged: int


class FuserReady(msgspec.Struct, frozen=True, tag=True):
    """A fuser (re)started; sent again as its heartbeat. ``store`` is None where it has
    none."""

    endpoint: Endpoint
    store: StoreFacts | None = None


class KeptDropped(msgspec.Struct, frozen=True, tag=True):
    """The purge that began ``generation`` has taken effect in the store: ``entries`` are
    gone from it."""

    generation: int
    entries: int


class PurgeNoted(msgspec.Struct, frozen=True, tag=True):
    """The scheduler to itself: the purge of this ``number`` is written down."""

    number: int


class FuserLost(msgspec.Struct, frozen=True, tag=True):
    """The watcher saw the fuser's process end."""

    reason: str


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End: tell the clients, finish the journal, leave the loop."""


# --- scheduler -> fuser -------------------------------------------------------------
class PoolFacts(msgspec.Struct, frozen=True):
    """What signing and validation need of a pool. ``fingerprint`` identifies the model,
    its revision, tokenizer and template; empty while no instance has told."""

    pool: str
    resource: str
    names: tuple[str, ...]
    default: bool
    fingerprint: str = ""


class Catalogue(msgspec.Struct, frozen=True, tag=True):
    """All pools, sent whenever one changes, and the revisions of collections as far as
    they are known. Of later ones `CollectionChanged` tells."""

    pools: tuple[PoolFacts, ...]
    revisions: dict[str, int] = {}


class Lengths(msgspec.Struct, frozen=True, tag=True):
    """Outputs of language models that ended since the last one: (model as the node named
    it, operator, tokens) each, in their order."""

    outputs: tuple[tuple[str | None, str, int], ...]


class Generation(msgspec.Struct, frozen=True, tag=True):
    """So many purges there were. Until it is told a fuser offers nothing."""

    generation: int


# --- scheduler -> host --------------------------------------------------------------
class Named(msgspec.Struct, frozen=True, tag=True):
    """The name the scheduler gave to this incarnation of the host."""

    instance: str


class Announce(msgspec.Struct, frozen=True, tag=True):
    """The scheduler had given this host up: drop all work, then say `HostReady` again."""


class KnowSpec(msgspec.Struct, frozen=True, tag=True):
    """A spec that items to come refer to."""

    spec: WorkflowSpec


class KnowClient(msgspec.Struct, frozen=True, tag=True):
    """Where to stream text for a client."""

    client: str
    endpoint: Endpoint


class ForgetClient(msgspec.Struct, frozen=True, tag=True):
    """A client is gone: close what leads to it. Goes to hosts and to the fuser."""

    client: str


# --- client -> frontend -------------------------------------------------------------
class KnowAgent(msgspec.Struct, frozen=True, tag=True):
    """An agent that runs to come refer to, as `dsl.shipping.packed_agent` made it."""

    digest: bytes
    data: bytes


class StartAgent(msgspec.Struct, frozen=True, tag=True):
    """Execute an agent for an accepted run; ``inputs`` as in `Submit`. ``stream``:
    calls that stream are streamed."""

    run_id: str
    digest: bytes
    inputs: bytes
    stream: bool = False


class StopAgent(msgspec.Struct, frozen=True, tag=True):
    """The run has ended: cancel its coroutine if it still runs."""

    run_id: str


# --- frontend -> client; a client's own agents say the same within its process ------
class CallStreams(msgspec.Struct, frozen=True, tag=True):
    """An agent makes a call whose text is streamed: that of node ``node`` of the
    fragment. Said before the fragment is revealed, in the order of the calls."""

    run_id: str
    fragment: int
    node: int


class CallStreamed(msgspec.Struct, frozen=True, tag=True):
    """A call that streamed has ended; ``text`` is all of its text, None of one that
    failed."""

    run_id: str
    fragment: int
    text: str | None


class AgentEnded(msgspec.Struct, frozen=True, tag=True):
    """A coroutine has ended, with ``error`` or well: ``output`` is its encoded result,
    ``origin`` names the (fragment, node id) that it came from."""

    run_id: str
    output: bytes = b""
    origin: tuple[tuple[int, str], ...] = ()
    error: ErrorInfo | None = None


# --- scheduler, fuser and hosts -> client -------------------------------------------
class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Hello`; ``door`` is the fuser's endpoint, None while it is away."""

    door: Endpoint | None


class Route(msgspec.Struct, frozen=True, tag=True):
    """The door changed: what was not accepted yet must be sent again through it."""

    door: Endpoint | None


class Pong(msgspec.Struct, frozen=True, tag=True):
    """Answer to `Ping`."""


class Piece(msgspec.Struct, frozen=True, tag=True):
    """Text of a node of a run (of an agent's: of that fragment): ``text`` starts at
    character ``offset`` of the whole."""

    run_id: str
    node: int
    offset: int
    text: str
    fragment: int = 0


class StatusReply(msgspec.Struct, frozen=True, tag=True):
    """The scheduler's view of itself as plain data; answer to `StatusRequest`."""

    question: int
    status: dict[str, Any]


class ExplainReply(msgspec.Struct, frozen=True, tag=True):
    """Answer to `ExplainRequest`: one of the two is set."""

    question: int
    explanation: Explanation | None = None
    error: ErrorInfo | None = None


class PurgeReply(msgspec.Struct, frozen=True, tag=True):
    """What a `PurgeRequest` did: ``entries`` of ``bytes`` are gone from the cache, and
    ``stored`` from the store (None: they go as soon as the fuser is back). Or ``error`` is
    why it did nothing."""

    question: int
    entries: int = 0
    bytes: int = 0
    stored: int | None = 0
    error: ErrorInfo | None = None


class Gone(msgspec.Struct, frozen=True, tag=True):
    """The runtime is ending; nothing more will come."""

    reason: str


FromClient = (
    Hello
    | Submit
    | Reveal
    | Abandon
    | Close
    | Cancel
    | Ping
    | Goodbye
    | StatusRequest
    | ExplainRequest
    | PurgeRequest
)
ToFuser = (
    FromClient
    | events.SpecRegistered
    | events.CollectionChanged
    | Catalogue
    | Lengths
    | Generation
    | commands.KeepResult
    | commands.DropKept
    | ForgetClient
    | Stop
)
ToScheduler = (
    FromClient
    | events.Event
    | HostReady
    | HostFailed
    | HostLost
    | Heartbeat
    | FuserReady
    | FuserLost
    | KeptDropped
    | PurgeNoted
    | Stop
)
ToHost = (
    Named
    | Announce
    | KnowSpec
    | commands.ForgetSpec
    | KnowClient
    | ForgetClient
    | commands.StartBatch
    | commands.AbortItem
    | commands.AddSubscriber
    | Stop
)
ToFrontend = KnowAgent | StartAgent | StopAgent | Stop
FromAgent = CallStreams | CallStreamed | AgentEnded
ToClient = (
    Welcome
    | Route
    | Pong
    | Piece
    | StatusReply
    | ExplainReply
    | PurgeReply
    | Gone
    | commands.AcceptRun
    | commands.RefuseRun
    | commands.FinishRun
    | commands.FinishFragment
    | FromAgent
)
