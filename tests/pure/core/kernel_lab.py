"""A kernel on a bench: specs in one line, events in, commands out, validated each time."""

from __future__ import annotations

import hashlib
from typing import TypeVar

from herasys_rt import policies
from herasys_rt.core.commands import (
    AbortItem,
    AcceptRun,
    Command,
    FinishRun,
    NodeRecord,
    RefuseRun,
    ReleaseValue,
    StartBatch,
    WorkItem,
)
from herasys_rt.core.events import (
    Event,
    InstanceDown,
    InstanceUp,
    ItemAborted,
    ItemFailed,
    ItemFinished,
    ItemStarted,
    PoolDeclared,
    RunCancelled,
    RunSubmitted,
    SpecRegistered,
)
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import KernelConfig, counters, handle, new_state
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import Lit, NodeRef, NodeSpec, WorkflowSpec
from herasys_rt.graph.types import PortType

C = TypeVar("C")

KINDS: dict[str, tuple[str, str, str, bool]] = {
    # kind: resource, verb, purity, streams
    "embed": ("embedding", "embed", "pure", False),
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

BROKEN = ErrorInfo("broken", "it broke", "mend it")
BUSY = ErrorInfo("busy", "it was busy", retryable=True)


def inline(data: bytes) -> Value:
    return Value(hashlib.sha256(data).digest(), len(data), data)


def placed(name: str, size: int = 100_000) -> Value:
    return Value(hashlib.sha256(name.encode()).digest(), size, place=name)


def spec_of(*lines: str, outputs: str = "", name: str = "w") -> WorkflowSpec:
    """``spec_of("q embed", "s search q", "a llm s")``: id, kind, parents.

    ``outputs`` names output nodes; without it the last node is the output.
    """
    nodes: list[NodeSpec] = []
    for line in lines:
        node_id, kind, *parents = line.split()
        model = None
        if "@" in kind:
            kind, model = kind.split("@")
        resource, verb, purity, streams = KINDS[kind]
        nodes.append(
            NodeSpec(
                id=node_id,
                operator=f"{kind}@1",
                verb=verb,
                resource=resource,
                args={f"p{i}": NodeRef(p) for i, p in enumerate(parents)},
                ports=(),
                output=PortType.ANY,
                model=model,
                purity=purity,
                streams=streams,
            )
        )
    if outputs == "none":
        return WorkflowSpec(name, (), tuple(nodes), {"output": Lit(1)})
    chosen = outputs.split() or [nodes[-1].id]
    return WorkflowSpec(name, (), tuple(nodes), {n: NodeRef(n) for n in chosen})


def signatures_of(spec: WorkflowSpec, salt: str, nonce: str) -> tuple[bytes, ...]:
    """Signatures as a fuser makes them: equal salts share, impure nodes pass a nonce."""
    below: dict[str, bytes] = {}
    signed: list[bytes] = []
    for node in spec.nodes:
        pre = [node.operator, *(below[p].hex() for p in node.parents)]
        digest = hashlib.sha256("|".join([salt, *pre]).encode()).digest()
        if node.purity == "pure":
            signed.append(digest)
            below[node.id] = digest
        else:
            signed.append(b"")
            below[node.id] = hashlib.sha256(f"{nonce}/{node.id}".encode()).digest()
    return tuple(signed)


class Lab:
    """A kernel with pools; every event advances the clock by a second and validates."""

    def __init__(
        self,
        config: KernelConfig | None = None,
        up: str = "embed pg llm",
        slots: int = 1,
    ) -> None:
        self.state = new_state(config or KernelConfig(), *policies.build())
        self.now = 0.0
        self.log: list[Command] = []
        for pool in POOLS.values():
            self.send(pool)
        for pool in up.split():
            self.send(InstanceUp(f"{pool}-1", pool, slots))

    def send(self, event: Event, seconds: float = 1.0) -> list[Command]:
        self.now += seconds
        out = handle(self.state, event, self.now)
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
    ) -> list[Command]:
        self.send(SpecRegistered(spec))
        return self.send(
            RunSubmitted(
                run_id,
                spec.id,
                client,
                "tenant",
                inputs or inline(salt.encode()),
                signatures_of(spec, salt, run_id) if signed else (),
                collections,
                stream,
                priority,
            )
        )

    def finish(
        self,
        item: WorkItem,
        value: Value | None = None,
        *,
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
            )
        )

    def fail(self, item: WorkItem, error: ErrorInfo = BROKEN) -> list[Command]:
        return self.send(ItemFailed(item.flight, item.attempt, self.where(item), error))

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


def record(end: FinishRun, node_id: str) -> NodeRecord:
    """One node's record."""
    (found,) = [node for node in end.nodes if node.id == node_id]
    return found


def states(end: FinishRun) -> dict[str, str]:
    """Node id -> state."""
    return {node.id: node.state for node in end.nodes}
