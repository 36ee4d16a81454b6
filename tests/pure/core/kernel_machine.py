"""A Hypothesis state machine over the kernel, with a model of its own.

The machine plays everything outside: clients, engines, a database. The model knows what
each started item was made of, so that a run's outputs can be traced back through every
engine that had a part in them. It shares no code with the kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from herasys_rt import policies
from herasys_rt.core import events as ev
from herasys_rt.core.commands import (
    AbortItem,
    AcceptRun,
    Command,
    FinishRun,
    RefuseRun,
    ReleaseValue,
    StartBatch,
    WorkItem,
)
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import KernelConfig, counters, handle, new_state
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import WorkflowSpec
from tests.pure.core.kernel_lab import BROKEN, BUSY, POOLS, signatures_of, spec_of

T = TypeVar("T")

Shape = tuple[tuple[tuple[str, int], ...], bool]
"""((kind, bit mask of parents), ...) and whether the first node is an output too."""

SHAPES: st.SearchStrategy[Shape] = st.tuples(
    st.lists(
        st.tuples(
            st.sampled_from(["embed", "search", "llm", "rerank", "dice", "write"]),
            st.integers(0, 31),
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
    st.booleans(),
)

CLASSIC: tuple[Shape, ...] = (
    ((("embed", 0), ("search", 1), ("llm", 2)), False),  # chain
    ((("llm", 0), ("embed", 1), ("rerank", 1), ("llm", 6)), True),  # diamond
    ((("embed", 0), ("embed", 0), ("llm", 3)), False),  # twins, fan-in
    ((("embed", 0), ("search", 0), ("llm", 3)), False),  # fan-in from two pools
    ((("embed", 0), ("write", 1), ("search", 0)), False),  # effect aside
    ((("write", 0), ("write", 0)), True),  # nothing but effects
    ((("dice", 0), ("llm", 1)), False),  # sampled above pure
    ((("llm", 0),), False),  # nothing but an answer
)

ANY = st.integers(0, 1_000_000)


def shaped(shape: Shape) -> WorkflowSpec:
    """The spec of a shape; nodes without a path to the output are part of the game."""
    lines: list[str] = []
    for at, (kind, mask) in enumerate(shape[0]):
        parents = [f"n{p}" for p in range(at) if mask >> p & 1]
        lines.append(" ".join([f"n{at}", kind, *parents]))
    last = f"n{len(lines) - 1}"
    return spec_of(*lines, outputs=f"n0 {last}" if shape[1] and len(lines) > 1 else last)


def collections_of(spec: WorkflowSpec) -> tuple[tuple[str, ...], ...]:
    """``docs`` for every search and whatever lies below one."""
    below: dict[str, bool] = {}
    for node in spec.nodes:
        below[node.id] = node.verb == "pg.search" or any(below[p] for p in node.parents)
    return tuple(("docs",) if reads else () for reads in below.values())


@dataclass(frozen=True)
class Made:
    """What a value was made of."""

    operator: str
    inputs: bytes
    upstream: tuple[bytes, ...]
    run_id: str
    revision: int


@dataclass
class Started:
    """An item an engine is working on."""

    item: WorkItem
    instance: str
    aborted: bool = False


@dataclass
class ModelRun:
    """What the model knows of a run."""

    spec: WorkflowSpec
    inputs: Value
    priority: int
    arrived: int
    known_revision: int
    ends: list[str] = field(default_factory=list)


class KernelMachine(RuleBasedStateMachine):
    """Everything a driver may do to the kernel, in any order."""

    validating = True

    def __init__(self) -> None:
        super().__init__()
        config = KernelConfig(
            max_active_runs=16,
            reuse_max_entries=5,
            reuse_ttl_s={"llm.generate": 20.0},
            remembered_runs=1_000,
        )
        self.state = new_state(config, *policies.build())
        self.now = 0.0
        self.count = 0
        self.specs: dict[str, WorkflowSpec] = {}
        self.runs: dict[str, ModelRun] = {}
        self.accepted: set[str] = set()
        self.early: set[str] = set()
        self.made: dict[bytes, Made] = {}
        self.places: dict[str, int] = {}
        self.up: dict[str, tuple[str, int]] = {}
        self.working: dict[tuple[int, int], Started] = {}
        self.batches: dict[str, list[set[tuple[int, int]]]] = {}
        self.effects: set[tuple[str, int]] = set()
        self.past: list[ev.Event] = []
        self.ghosts: list[Started] = []
        self.revision = 1
        self.known_revision = 0
        self.untold: list[int] = []

    # ---- what the outside does

    @initialize()
    def begin(self) -> None:
        for pool in POOLS.values():
            self.send(pool)
        for name in POOLS:
            self.raise_instance(name, 1 + (name == "llm"))

    @rule(shape=SHAPES | st.sampled_from(CLASSIC), salt=st.integers(0, 1), how=ANY)
    def submit(self, shape: Shape, salt: int, how: int) -> None:
        self.submit_as(self.fresh("run"), shape, salt, how)

    @rule(shape=st.sampled_from(CLASSIC), twins=st.integers(2, 4), how=ANY)
    def submit_twins(self, shape: Shape, twins: int, how: int) -> None:
        for _ in range(twins):
            self.submit_as(self.fresh("run"), shape, 0, how)

    @rule(shape=st.sampled_from(CLASSIC), many=st.integers(2, 5), how=ANY)
    def submit_a_burst(self, shape: Shape, many: int, how: int) -> None:
        for salt in range(many):
            self.submit_as(self.fresh("run"), shape, 10 + salt, how)

    @precondition(lambda self: self.state.runs)
    @rule(which=ANY)
    def submit_urgent_twin(self, which: int) -> None:
        queued = [f.members for f in self.state.flights.values() if f.state == "queued"]
        waiting = sorted({n.run.id for members in queued for n in members.values()})
        twin = self.runs[pick(waiting or sorted(self.state.runs), which)]
        run_id = self.fresh("run")
        inputs = Value(twin.inputs.digest, 4, b"salt")
        event = replace(self.submission(run_id, twin.spec, inputs, 1), priority=2)
        self.submit_event(event, twin.spec)

    @rule(shape=st.sampled_from(CLASSIC), how=ANY, times=st.integers(1, 2))
    def cancel_before_submit(self, shape: Shape, how: int, times: int) -> None:
        run_id = self.fresh("run")
        self.early.add(run_id)
        for _ in range(times):
            assert self.send(ev.RunCancelled(run_id)) == []
        out = self.submit_as(run_id, shape, 0, how)
        assert [type(c) for c in out[:2]] == [AcceptRun, FinishRun]
        assert self.runs[run_id].ends == ["cancelled"]

    @precondition(lambda self: self.accepted)
    @rule(which=ANY)
    def submit_again(self, which: int) -> None:
        run_id = pick(sorted(self.accepted), which)
        run = self.runs[run_id]
        event = self.submission(run_id, run.spec, run.inputs, 0)
        known = self.state.runs.get(run_id)
        mine = known is not None and known.client == event.client
        out = [c for c in self.send(event) if not isinstance(c, ReleaseValue)]
        assert not (run.ends and known)
        if not mine:
            (refusal,) = out
            assert isinstance(refusal, RefuseRun) and refusal.error.code == "run_id_used"
        else:
            assert out == [AcceptRun(run_id, event.client)]

    @precondition(lambda self: self.accepted)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        run_id = pick(sorted(self.accepted), which)
        active = not self.runs[run_id].ends
        out = self.send(ev.RunCancelled(run_id))
        assert ids_ended(out) == ([run_id] if active else [])
        assert self.runs[run_id].ends[0] == "cancelled" or not active

    @rule(which=st.integers(0, 2))
    def lose_client(self, which: int) -> None:
        client = f"client-{which}"
        theirs = [r.id for r in self.state.runs.values() if r.client == client]
        out = self.send(ev.ClientGone(client))
        assert ids_ended(out) == theirs

    @precondition(lambda self: self.working)
    @rule(which=ANY)
    def start(self, which: int) -> None:
        at = pick(list(self.working.values()), which)
        self.send(ev.ItemStarted(at.item.flight, at.item.attempt, at.instance))

    @precondition(lambda self: self.working)
    @rule(which=ANY, how=ANY)
    def finish(self, which: int, how: int) -> None:
        self.finish_item(pick(list(self.working.values()), which), how)

    @precondition(lambda self: self.working)
    @rule(how=ANY)
    def finish_many(self, how: int) -> None:
        for at in list(self.working.values()):
            if (at.item.flight, at.item.attempt) in self.working:
                self.finish_item(at, how)

    @precondition(lambda self: self.working)
    @rule(which=ANY, again=st.booleans())
    def fail(self, which: int, again: bool) -> None:
        at = pick(list(self.working.values()), which)
        item, flight = at.item, self.state.flights[at.item.flight]
        members = list(dict.fromkeys(n.run.id for n in flight.members.values()))
        may_retry = again and flight.tries + 1 < 3 and not flight.effect
        event = ev.ItemFailed(
            item.flight, item.attempt, at.instance, BUSY if again else BROKEN
        )
        self.ends_item(at)
        out = self.send(event)
        assert ids_ended(out) == ([] if may_retry else members)

    @precondition(lambda self: any(s.aborted for s in self.working.values()))
    @rule(which=ANY)
    def abort_takes_effect(self, which: int) -> None:
        at = pick([s for s in self.working.values() if s.aborted], which)
        self.ends_item(at)
        self.send(ev.ItemAborted(at.item.flight, at.item.attempt, at.instance))

    @precondition(lambda self: any(not s.aborted for s in self.working.values()))
    @rule(which=ANY)
    def engine_drops_an_item(self, which: int) -> None:
        at = pick([s for s in self.working.values() if not s.aborted], which)
        self.ends_item(at)
        self.send(ev.ItemAborted(at.item.flight, at.item.attempt, at.instance))

    @precondition(lambda self: self.past)
    @rule(which=ANY)
    def repeat_an_outcome(self, which: int) -> None:
        out = self.send(pick(self.past, which), remember=False)
        assert not out, "an outcome delivered twice changes nothing"

    @precondition(lambda self: self.ghosts or self.working)
    @rule(which=ANY, ahead=st.integers(-1, 1), broken=st.booleans())
    def send_a_stale_outcome(self, which: int, ahead: int, broken: bool) -> None:
        ghosts = self.ghosts or list(self.working.values())
        at = pick(ghosts, which)
        attempt = at.item.attempt + (ahead if self.ghosts else ahead or 1)
        live = self.working.get((at.item.flight, attempt))
        if live is not None and live.instance == at.instance:
            return
        if broken:
            event = ev.ItemFailed(at.item.flight, attempt, at.instance, BROKEN)
            assert self.send(event, remember=False) == []
            return
        value = self.new_place(b"stale")
        stale = ev.ItemFinished(at.item.flight, attempt, at.instance, value, 1.0)
        assert self.send(stale, remember=False) == [ReleaseValue(value.place)]

    @rule(pool=st.sampled_from(sorted(POOLS)), slots=st.integers(1, 2))
    def raise_instance(self, pool: str, slots: int) -> None:
        if sum(p == pool for p, _ in self.up.values()) < 3:
            instance = self.fresh(f"{pool}-i")
            self.up[instance] = (pool, slots)
            self.batches[instance] = []
            self.send(ev.InstanceUp(instance, pool, slots))

    @precondition(lambda self: self.up)
    @rule(which=ANY)
    def lose_instance(self, which: int) -> None:
        busy = list(dict.fromkeys(at.instance for at in self.working.values()))
        instance = pick(busy if busy and which % 4 else sorted(self.up), which // 4)
        del self.up[instance], self.batches[instance]
        for key, at in list(self.working.items()):
            if at.instance == instance:
                self.ghosts.append(self.working.pop(key))
        self.send(ev.InstanceDown(instance, "killed"))

    @rule(pool=st.sampled_from(sorted(POOLS)))
    def fail_pool(self, pool: str) -> None:
        self.send(ev.PoolFailed(pool, ErrorInfo("gone", f"{pool} is gone")))

    @rule(told=st.booleans())
    def change_collection(self, told: bool) -> None:
        self.revision += 1
        self.untold.append(self.revision)
        if told:
            self.tell(self.untold.pop())

    @precondition(lambda self: self.untold)
    @rule(which=ANY)
    def hear_of_an_old_change(self, which: int) -> None:
        self.tell(self.untold.pop(which % len(self.untold)))

    @rule(seconds=st.sampled_from([0.0, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def teardown(self) -> None:
        """Everything ends, and nothing is left of it."""
        if self.count:
            self.drain()
        super().teardown()

    # ---- how it does it

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}-{self.count}"

    def new_place(self, digest: bytes) -> Value:
        place = self.fresh("place")
        self.places[place] = 0
        return Value(digest, 100_000, place=place)

    def submission(
        self, run_id: str, spec: WorkflowSpec, inputs: Value, how: int
    ) -> ev.RunSubmitted:
        signed = how % 11 != 0
        salt = inputs.digest.decode()
        return ev.RunSubmitted(
            run_id,
            spec.id,
            f"client-{how % 3}",
            "tenant",
            inputs,
            signatures_of(spec, salt, run_id) if signed else (),
            collections_of(spec) if signed else (),
            how % 2 == 1,
            (how // 5) % 3 - 1 if how % 5 == 0 else 0,
        )

    def submit_as(self, run_id: str, shape: Shape, salt: int, how: int) -> list[Command]:
        spec = shaped(shape)
        if how % 13 or spec.id in self.specs:
            self.specs[spec.id] = spec
            self.send(ev.SpecRegistered(spec))
        digest = f"salt-{salt}".encode()
        inputs = Value(digest, 4, b"salt") if how % 4 else self.new_place(digest)
        return self.submit_event(self.submission(run_id, spec, inputs, how), spec)

    def submit_event(self, event: ev.RunSubmitted, spec: WorkflowSpec) -> list[Command]:
        run_id, inputs = event.run_id, event.inputs
        self.runs[run_id] = ModelRun(
            spec, inputs, event.priority, self.count, self.known_revision
        )
        out = self.send(event)
        first = out[0]
        assert isinstance(first, AcceptRun | RefuseRun) and first.run_id == run_id
        if isinstance(first, RefuseRun):
            assert run_id not in self.early
            assert first.error.code in {"unknown_spec", "overloaded", "gone"}
            assert len(out) == 1 + bool(inputs.place)
            del self.runs[run_id]
        return out

    def finish_item(self, at: Started, how: int) -> None:
        item = at.item
        node = self.specs[item.spec_id].nodes[item.node]
        revisions: dict[str, int] = {}
        if node.verb == "pg.write":
            self.revision += 1
        if node.resource == "retrieval":
            revisions = {"docs": self.revision}
            self.known_revision = max(self.known_revision, self.revision)
        made = Made(
            node.operator,
            item.inputs.digest,
            tuple(value.digest for _, value in item.upstream),
            item.run_id,
            self.revision if node.verb == "pg.search" else 1_000_000,
        )
        unique = f"{item.flight}/{item.attempt}/{made}"
        digest = hashlib.sha256(unique.encode()).digest()
        self.made[digest] = made
        value = self.new_place(digest) if how % 3 == 0 else Value(digest, 1, b"x")
        self.ends_item(at)
        event = ev.ItemFinished(
            item.flight,
            item.attempt,
            at.instance,
            value,
            1.0,
            b"meta",
            revisions,
            how % 4 == 1,
        )
        out = self.send(event)
        for end in out:
            if isinstance(end, FinishRun) and end.status != "succeeded":
                assert end.error is not None and end.error.code == "gone"

    def ends_item(self, at: Started) -> None:
        key = (at.item.flight, at.item.attempt)
        del self.working[key]
        for batch in self.batches[at.instance]:
            batch.discard(key)
        self.batches[at.instance] = [b for b in self.batches[at.instance] if b]

    def tell(self, revision: int) -> None:
        self.known_revision = max(self.known_revision, revision)
        self.send(ev.CollectionChanged("docs", revision))

    def send(self, event: ev.Event, remember: bool = True) -> list[Command]:
        self.now += 0.1
        out = handle(self.state, event, self.now)
        if remember and isinstance(event, ev.ItemFinished | ev.ItemFailed | ev.ItemAborted):
            self.past.append(event)
        for command in out:
            self.observe(command)
        self.check_order(out)
        if self.validating:
            validate(self.state)
        return out

    # ---- what the model holds against it

    def observe(self, command: Command) -> None:
        match command:
            case AcceptRun():
                self.accepted.add(command.run_id)
            case StartBatch():
                self.observe_batch(command)
            case AbortItem():
                at = self.working[command.flight, command.attempt]
                assert at.instance == command.instance and not at.aborted
                at.aborted = True
            case FinishRun():
                self.observe_end(command)
            case ReleaseValue():
                assert self.places[command.place] == 0, "released twice"
                self.places[command.place] = 1
            case _:
                pass

    def observe_batch(self, batch: StartBatch) -> None:
        pool, slots = self.up[batch.instance]
        keys = {(item.flight, item.attempt) for item in batch.items}
        self.batches[batch.instance].append(keys)
        assert len(self.batches[batch.instance]) <= slots, "over capacity"
        decl = POOLS[pool]
        assert 1 <= len(batch.items) <= (decl.batch_limit if decl.batched else 1)
        nodes = [self.specs[i.spec_id].nodes[i.node] for i in batch.items]
        assert len({node.verb for node in nodes}) == 1
        for item, node in zip(batch.items, nodes, strict=True):
            assert (item.flight, item.attempt) not in self.working
            assert node.verb in decl.verbs and node.resource == decl.resource
            self.working[item.flight, item.attempt] = Started(item, batch.instance)
            self.check_inputs(item)
            if node.purity == "effect":
                assert (item.run_id, item.node) not in self.effects, "effect repeated"
                self.effects.add((item.run_id, item.node))

    def check_inputs(self, item: WorkItem) -> None:
        spec = self.specs[item.spec_id]
        parents = [spec.index[p] for p in spec.nodes[item.node].parents]
        assert [position for position, _ in item.upstream] == parents
        for _, value in (*item.upstream, (0, item.inputs)):
            assert not value.place or self.places[value.place] == 0, "used when released"

    def check_order(self, out: list[Command]) -> None:
        """What was started goes before what stayed in the same queue."""
        for batch in out:
            if not isinstance(batch, StartBatch):
                continue
            pool = self.state.pools[self.up[batch.instance][0]]
            for verb, queue in pool.queues.items():
                waiting = [self.wish(i) for i in queue.items()]
                for at, item in enumerate(batch.items):
                    same = self.state.flights[item.flight].verb == verb
                    if waiting and (same or at == 0):
                        assert self.wish(item.flight) <= min(waiting), "wrong order"

    def wish(self, flight_id: int) -> tuple[int, int]:
        """How soon the most urgent run in a flight should be served."""
        members = self.state.flights[flight_id].members.values()
        mine = [self.runs[node.run.id] for node in members]
        return min((-run.priority, run.arrived) for run in mine)

    def observe_end(self, end: FinishRun) -> None:
        run = self.runs[end.run_id]
        run.ends.append(end.status)
        assert run.ends == [end.status], "a run ends once"
        assert end.run_id in self.accepted
        assert [node.id for node in end.nodes] == [n.id for n in run.spec.nodes] or (
            end.run_id in self.early and not end.nodes
        )
        states = {node.state for node in end.nodes}
        assert states <= {"succeeded", "failed", "cancelled", "skipped"}
        if end.status == "succeeded":
            assert not states & {"failed", "cancelled"} and end.error is None
            for position, value in end.outputs:
                assert not value.place or self.places[value.place] == 0
                self.trace(end.run_id, run, position, value.digest)
            for node, spec in zip(end.nodes, run.spec.nodes, strict=True):
                assert spec.purity != "effect" or node.state == "succeeded"
        else:
            assert end.error is not None and not end.outputs
            assert ("failed" in states) == (end.status == "failed")

    def trace(self, run_id: str, run: ModelRun, position: int, digest: bytes) -> None:
        """Follow a value back through all that made it: it must be this run's."""
        node, made = run.spec.nodes[position], self.made[digest]
        assert made.operator == node.operator
        assert made.inputs == run.inputs.digest
        assert made.revision >= run.known_revision, "read before a known change"
        if node.purity != "pure":
            assert made.run_id == run_id
        for parent, value in zip(node.parents, made.upstream, strict=True):
            self.trace(run_id, run, run.spec.index[parent], value)

    def drain(self) -> None:
        """Bring every pool up, finish everything, and look at what remains."""
        for pool in POOLS:
            self.raise_instance(pool, 1)
        for _ in range(10_000):
            if not self.working:
                break
            self.finish_item(next(iter(self.working.values())), 1)
        validate_nothing_left(self.state)
        for run_id in self.accepted:
            assert len(self.runs[run_id].ends) == 1, f"{run_id} never ended"
        self.state.table.max_entries = 0
        self.state.table.trim()
        for pool in POOLS:  # any event lets go of what was evicted
            for command in handle(self.state, POOLS[pool], self.now):
                self.observe(command)
        kept = [place for place, released in self.places.items() if not released]
        assert not kept, f"never released: {kept}"


def validate_nothing_left(state: object) -> None:
    """No run, flight, queued item or node is left. Raises AssertionError."""
    from herasys_rt.core.state import State

    assert isinstance(state, State)
    assert not state.runs and not state.flights and not state.clients
    assert not state.table.live
    assert all(not pool.queued() for pool in state.pools.values())
    nodes = counters(state)["nodes"]
    parts = ("executed", "fused", "reused", "skipped", "cancelled")
    assert nodes["submitted"] == sum(int(str(nodes[part])) for part in parts)


def ids_ended(commands: list[Command]) -> list[str]:
    """Ids of the runs that ended, in order."""
    return [command.run_id for command in commands if isinstance(command, FinishRun)]


def pick(many: Sequence[T], which: int) -> T:
    """One of many."""
    return many[which % len(many)]
