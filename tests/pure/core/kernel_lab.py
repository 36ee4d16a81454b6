"""A kernel on a bench: specs in one line, events in, commands out, validated each time."""

from __future__ import annotations

import hashlib
import re
from typing import TypeVar

from msgspec.structs import replace

from herasys_rt import policies
from herasys_rt.core.commands import (
    AbortItem,
    AcceptRun,
    Command,
    FinishFragment,
    FinishRun,
    NodeRecord,
    RefuseRun,
    ReleaseValue,
    StartBatch,
    WakeAt,
    WorkItem,
)
from herasys_rt.core.events import (
    Event,
    FragmentCancelled,
    InstanceDown,
    InstanceUp,
    ItemAborted,
    ItemFailed,
    ItemFinished,
    ItemStarted,
    NodesRevealed,
    PoolDeclared,
    RunCancelled,
    RunClosed,
    RunSubmitted,
    SpecRegistered,
    TimePassed,
)
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import KernelConfig, counters, handle, new_state
from herasys_rt.core.policy import Ordering
from herasys_rt.core.values import Fact, Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    Guard,
    InputRef,
    InputSpec,
    ItemRef,
    Lit,
    NodeOptions,
    NodeRef,
    NodeSpec,
    Reduction,
    Region,
    WorkflowSpec,
    leaves,
    node_refs,
)
from herasys_rt.graph.types import PortType

C = TypeVar("C")

KINDS: dict[str, tuple[str, str, str, bool]] = {
    # kind: resource, verb, purity, streams
    "embed": ("embedding", "embed", "pure", False),
    "many": ("embedding", "embed", "pure", False),
    "best": ("embedding", "embed", "pure", False),
    "search": ("retrieval", "pg.search", "pure", False),
    "write": ("retrieval", "pg.write", "effect", False),
    "rerank": ("rerank", "rerank", "pure", False),
    "llm": ("llm", "llm.generate", "pure", True),
    "dice": ("llm", "llm.generate", "sampled", True),
}

POOLS: dict[str, PoolDeclared] = {
    "embed": PoolDeclared(
        "embed", "embedding", ("mini",), batched=True, batch_limit=4, verbs=("embed",)
    ),
    "rank": PoolDeclared(
        "rank", "rerank", ("late",), batched=True, batch_limit=2, verbs=("rerank",)
    ),
    "pg": PoolDeclared("pg", "retrieval", verbs=("pg.search", "pg.write")),
    "llm": PoolDeclared("llm", "llm", ("smol",), verbs=("llm.generate",)),
}

AGENT = WorkflowSpec("agent", (), (), {})

BROKEN = ErrorInfo("broken", "it broke", "mend it")
BUSY = ErrorInfo("busy", "it was busy", retryable=True)


def inline(data: bytes) -> Value:
    return Value(hashlib.sha256(data).digest(), len(data), data)


def placed(name: str, size: int = 100_000) -> Value:
    return Value(hashlib.sha256(name.encode()).digest(), size, place=name)


def listed(length: int, name: str = "") -> Value:
    """A value that is a list (or with -1 none)."""
    data = f"{name}list of {length}".encode()
    return replace(inline(data), truth=length > 0, length=length)


def said(truth: bool) -> Value:
    """A value that is true or false."""
    return replace(inline(str(truth).encode()), truth=truth)


def spec_of(
    *lines: str,
    outputs: str = "",
    name: str = "w",
    regions: dict[str, str | int] | None = None,
    options: dict[str, NodeOptions] | None = None,
    max_items: int = 10_000,
) -> WorkflowSpec:
    """``spec_of("q embed", "s search q", "a llm s")``: id, kind, then words.

    A word is an argument: a node, ``$name`` an input, ``-`` None, ``%`` the item of the
    node's region, ``c?a:b`` a choice, ``~a`` the texts of records; or ``if=c`` and
    ``unless=c``, guards, and ``in=r``, the region. The first argument of a kind ``many``
    stands at its list port; a ``best`` is made of what its records' texts give.
    ``regions`` says what they go over: a node, ``$name``, or a literal of so many items.
    ``outputs`` are arguments too; without it the last node is the output.
    """
    nodes = [_node(line, options or {}) for line in lines]
    made = tuple(
        Region(region, Lit([0] * over) if isinstance(over, int) else _ref(over), max_items)
        for region, over in (regions or {}).items()
    )
    words = " ".join([*lines, *[str(r) for r in (regions or {}).values()]])
    inputs = tuple(
        InputSpec(found, PortType.ANY)
        for found in sorted(set(re.findall(r"\$(\w+)", words)))
    )
    if outputs == "none":
        return WorkflowSpec(name, inputs, tuple(nodes), {"output": Lit(1)}, regions=made)
    chosen = {word: _arg(word, "") for word in outputs.split() or [nodes[-1].id]}
    return WorkflowSpec(name, inputs, tuple(nodes), chosen, regions=made)


def _node(line: str, options: dict[str, NodeOptions]) -> NodeSpec:
    node_id, kind, *words = line.split()
    model = None
    if "@" in kind:
        kind, model = kind.split("@")
    resource, verb, purity, streams = KINDS[kind]
    settings = [word.split("=") for word in words if "=" in word]
    region = next((what for how, what in settings if how == "in"), "")
    args = [_arg(word, region) for word in words if "=" not in word]
    return NodeSpec(
        id=node_id,
        operator=f"{kind}@1",
        verb=verb,
        resource=resource,
        args={f"p{i}": arg for i, arg in enumerate(args)},
        ports=(),
        output=PortType.ANY,
        model=model,
        purity=purity,
        streams=streams,
        region=region,
        guards=tuple(
            Guard(_ref(what), how == "if")
            for how, what in settings
            if how in ("if", "unless")
        ),
        options=options.get(node_id, NodeOptions()),
        list_port="p0" if kind in ("many", "best") and args else None,
        by_text=kind == "best",
        reduction=Reduction("ranked") if kind == "best" else None,
    )


def _ref(word: str) -> InputRef | NodeRef:
    return InputRef(word[1:]) if word.startswith("$") else NodeRef(word)


def _arg(word: str, region: str) -> Arg:
    if "?" in word:
        condition, sides = word.split("?", 1)
        then, otherwise = sides.rsplit(":", 1)
        return ChoiceRef(_ref(condition), _arg(then, region), _arg(otherwise, region))
    if word == "-":
        return Lit(None)
    if word.startswith("~"):
        return Expr("texts_of", {"items": _ref(word[1:])})
    return ItemRef(region) if word == "%" else _ref(word)


def signatures_of(spec: WorkflowSpec, salt: str, nonce: str) -> tuple[bytes, ...]:
    """Signatures as a fuser makes them: equal salts share, impure nodes pass a nonce."""
    below: dict[str, bytes] = {}
    signed: list[bytes] = []
    for node in spec.nodes:
        pre = [node.operator, *(below.get(p, b"").hex() for p in node.parents)]
        pre.append(re.sub(r"'\w+'", "", repr(node.args)))
        digest = hashlib.sha256("|".join([salt, *pre]).encode()).digest()
        if node.purity == "pure" and node.region:
            signed.append(b"")  # elements are not signed, what gathers them is
            over = spec.region_index[node.region].items
            gives = below[over.node] if isinstance(over, NodeRef) else repr(over).encode()
            below[node.id] = hashlib.sha256(digest + gives).digest()
        elif node.purity == "pure":
            signed.append(digest)
            below[node.id] = digest
        else:
            signed.append(b"")
            below[node.id] = hashlib.sha256(f"{nonce}/{node.id}".encode()).digest()
    return tuple(signed)


def item_seeds_of(spec: WorkflowSpec, tenant: str) -> tuple[bytes, ...]:
    """Item seeds as a fuser makes them, of nodes at list ports."""
    if not any(node.list_port for node in spec.nodes):
        return ()
    return tuple(
        hashlib.sha256(f"{node.operator}|{tenant}".encode()).digest()
        if node.list_port and node.purity == "pure"
        else b""
        for node in spec.nodes
    )


def form_of(node: NodeSpec) -> str:
    """A node's arguments without the names of nodes and regions."""
    words = repr(node.args)
    for at, parent in enumerate(node.parents):
        words = words.replace(f"NodeRef(node='{parent}')", f"#{at}")
    return re.sub(r"region='\w+'", "", words)


def takes_inputs(node: NodeSpec) -> bool:
    """Whether a node's value depends on the run's inputs, for which the salt stands: it
    names one, or has nothing else to work on."""
    found = [leaf for arg in node.args.values() for leaf in leaves(arg)]
    named = any(isinstance(leaf, InputRef) for leaf in found)
    return named or not (node_refs(node.args) or node.region)


def seeds_of(spec: WorkflowSpec, salt: str, tenant: str) -> tuple[bytes, ...]:
    """Value seeds as a fuser makes them."""
    seeds: list[bytes] = []
    for node in spec.nodes:
        given = salt if takes_inputs(node) else ""
        pre = "|".join([tenant, node.operator, form_of(node), given])
        pure = node.purity == "pure"
        seeds.append(hashlib.sha256(pre.encode()).digest() if pure else b"")
    return tuple(seeds)


def own_of(
    spec: WorkflowSpec, collections: tuple[tuple[str, ...], ...]
) -> tuple[tuple[str, ...], ...]:
    """The collections that nodes read themselves: those of its searches."""
    return tuple(
        names if node.verb == "pg.search" else ()
        for node, names in zip(spec.nodes, collections, strict=bool(collections))
    )


class Lab:
    """A kernel with pools; every event advances the clock by a second and validates.

    ``seeded``: runs come with value seeds, so that equal values share work too.
    ``ordering`` stands in place of the default one.
    """

    def __init__(
        self,
        config: KernelConfig | None = None,
        up: str = "embed pg llm",
        slots: int = 1,
        *,
        seeded: bool = False,
        ordering: Ordering | None = None,
    ) -> None:
        self.seeded = seeded
        chosen = policies.build()
        if ordering is not None:
            chosen = chosen._replace(ordering=ordering)
        self.state = new_state(config or KernelConfig(), *chosen)
        self.now = 0.0
        self.log: list[Command] = []
        self.validating = True
        for pool in POOLS.values():
            self.send(pool)
        for pool in up.split():
            self.send(InstanceUp(f"{pool}-1", pool, slots))

    def send(self, event: Event, seconds: float = 1.0) -> list[Command]:
        self.now += seconds
        out = handle(self.state, event, self.now)
        if self.validating:
            validate(self.state)
        self.log += out
        return out

    def submit(
        self,
        run_id: str,
        spec: WorkflowSpec,
        salt: str = "same",
        *,
        signed: bool = True,
        client: str = "client",
        priority: int = 0,
        stream: bool = False,
        collections: tuple[tuple[str, ...], ...] = (),
        inputs: Value | None = None,
        facts: dict[str, Fact] | None = None,
        deadline_s: float | None = None,
        labels: dict[str, str] | None = None,
        tenant: str = "tenant",
    ) -> list[Command]:
        self.send(SpecRegistered(spec))
        return self.send(
            RunSubmitted(
                run_id,
                spec.id,
                client,
                tenant,
                inputs or inline(salt.encode()),
                signatures_of(spec, salt, run_id) if signed else (),
                collections,
                stream,
                priority,
                deadline_s,
                facts or {},
                labels=labels or {},
                seeds=seeds_of(spec, salt, tenant) if signed and self.seeded else (),
                own_collections=own_of(spec, collections) if signed else (),
                item_seeds=item_seeds_of(spec, tenant) if signed else (),
            )
        )

    def submit_agent(
        self,
        run_id: str,
        *,
        client: str = "client",
        inputs: Value | None = None,
        deadline_s: float | None = None,
        frontend: str = "",
        labels: dict[str, str] | None = None,
    ) -> list[Command]:
        self.send(SpecRegistered(AGENT))
        return self.send(
            RunSubmitted(
                run_id,
                AGENT.id,
                client,
                "tenant",
                inputs or inline(b"task"),
                deadline_s=deadline_s,
                agent=True,
                frontend=frontend,
                labels=labels or {},
            )
        )

    def reveal(
        self,
        run_id: str,
        fragment: int,
        spec: WorkflowSpec,
        salt: str = "same",
        *,
        parents: tuple[tuple[int, str], ...] = (),
        inputs: Value | None = None,
        facts: dict[str, Fact] | None = None,
        stream: bool = False,
        collections: tuple[tuple[str, ...], ...] = (),
    ) -> list[Command]:
        self.send(SpecRegistered(spec))
        return self.send(
            NodesRevealed(
                run_id,
                fragment,
                spec.id,
                inputs or inline(salt.encode()),
                signatures_of(spec, salt, f"{run_id}/{fragment}"),
                collections,
                facts=facts or {},
                parents=parents,
                stream=stream,
                seeds=seeds_of(spec, salt, "tenant") if self.seeded else (),
                own_collections=own_of(spec, collections),
                item_seeds=item_seeds_of(spec, "tenant"),
            )
        )

    def cancel_fragment(self, run_id: str, fragment: int) -> list[Command]:
        return self.send(FragmentCancelled(run_id, fragment))

    def close(self, run_id: str, error: ErrorInfo | None = None) -> list[Command]:
        return self.send(RunClosed(run_id, error))

    def pass_time(self, seconds: float) -> list[Command]:
        return self.send(TimePassed(), seconds)

    def finish(
        self,
        item: WorkItem,
        value: Value | None = None,
        *,
        parts: Value | None = None,
        meta: bytes = b"",
        revisions: dict[str, int] | None = None,
        truncated: bool = False,
        run_s: float = 0.5,
    ) -> list[Command]:
        result = value or inline(f"{item.flight}.{item.attempt}".encode())
        return self.send(
            ItemFinished(
                item.flight,
                item.attempt,
                self.where(item),
                result,
                run_s,
                meta,
                revisions or {},
                truncated,
                parts=parts,
            )
        )

    def fail(
        self, item: WorkItem, error: ErrorInfo = BROKEN, *, run_s: float = 0.0
    ) -> list[Command]:
        where = self.where(item)
        return self.send(ItemFailed(item.flight, item.attempt, where, error, run_s))

    def begin(self, item: WorkItem) -> list[Command]:
        return self.send(ItemStarted(item.flight, item.attempt, self.where(item)))

    def aborted(self, item: WorkItem) -> list[Command]:
        return self.send(ItemAborted(item.flight, item.attempt, self.where(item)))

    def cancel(self, run_id: str) -> list[Command]:
        return self.send(RunCancelled(run_id))

    def down(self, instance: str) -> list[Command]:
        return self.send(InstanceDown(instance, "killed"))

    def up(self, instance: str, pool: str, slots: int = 1) -> list[Command]:
        return self.send(InstanceUp(instance, pool, slots))

    def where(self, item: WorkItem) -> str:
        """The instance an item was started on."""
        for command in reversed(self.log):
            if isinstance(command, StartBatch) and item in command.items:
                return command.instance
        raise AssertionError(f"{item} was never started")

    def finish_all(self) -> list[FinishRun]:
        """Finish items in the order of their starts until nothing is running."""
        before = len(self.log)
        while running := self.running():
            self.finish(running[0])
        return only(self.log[before:], FinishRun)

    def running(self) -> list[WorkItem]:
        """Items started and not ended, in the order of their starts."""
        flights = self.state.flights
        return [
            item
            for item in items(self.log)
            if (flight := flights.get(item.flight)) is not None
            and flight.batch is not None
            and flight.attempt == item.attempt
        ]

    def nodes(self) -> dict[str, int]:
        """The accounting."""
        nodes = counters(self.state)["nodes"]
        assert isinstance(nodes, dict)
        return {k: v for k, v in nodes.items() if isinstance(v, int) and v}


def only(commands: list[Command], kind: type[C]) -> list[C]:
    """The commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


def items(commands: list[Command]) -> list[WorkItem]:
    """Every item started, in order."""
    return [item for batch in only(commands, StartBatch) for item in batch.items]


def item(commands: list[Command]) -> WorkItem:
    """The only item started."""
    (found,) = items(commands)
    return found


def ended(commands: list[Command]) -> FinishRun:
    """The only run that ended."""
    (found,) = only(commands, FinishRun)
    return found


def piece(commands: list[Command]) -> FinishFragment:
    """The only fragment that ended."""
    (found,) = only(commands, FinishFragment)
    return found


def wakes(commands: list[Command]) -> list[float]:
    """When the kernel wants to be woken, in order."""
    return [command.at_s for command in only(commands, WakeAt)]


def refused(commands: list[Command]) -> ErrorInfo:
    """Why the run was refused; that it was not is a failure."""
    (found,) = commands
    assert isinstance(found, RefuseRun)
    return found.error


def aborts(commands: list[Command]) -> list[tuple[str, int, int]]:
    """(instance, flight, attempt) of every abort."""
    return [(c.instance, c.flight, c.attempt) for c in only(commands, AbortItem)]


def releases(commands: list[Command]) -> list[str]:
    """Places released, in order."""
    return [command.place for command in only(commands, ReleaseValue)]


def accepts(commands: list[Command]) -> list[str]:
    """Run ids accepted, in order."""
    return [command.run_id for command in only(commands, AcceptRun)]


def record(end: FinishRun | FinishFragment, node_id: str) -> NodeRecord:
    """One node's record."""
    (found,) = [node for node in end.nodes if node.id == node_id]
    return found


def states(end: FinishRun | FinishFragment) -> dict[str, str]:
    """Node id -> state."""
    return {node.id: node.state for node in end.nodes}
