"""A model of the kernel's work: everything it says is held against this.

The model knows what each started item was made of, so that a run's outputs can be traced
back through every engine that had a part in them. It shares no code with the kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from herasys_rt import policies
from herasys_rt.core import events as ev
from herasys_rt.core.commands import (
    AbortItem,
    AcceptRun,
    Command,
    DropKept,
    FinishFragment,
    FinishRun,
    ForgetSpec,
    KeepResult,
    ReleaseValue,
    StartBatch,
    WakeAt,
    WorkItem,
)
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import KernelConfig, counters, handle, new_state
from herasys_rt.core.policy import Ordering
from herasys_rt.core.state import Node
from herasys_rt.core.values import Value
from herasys_rt.graph.spec import (
    NodeSpec,
    WorkflowSpec,
    node_refs,
)
from herasys_rt.policies.ordering import WorkflowFcfs
from tests.pure.core.kernel_lab import (
    POOLS,
)
from tests.pure.core.kernel_meaning import Meaning, check_item, facts_of
from tests.pure.core.kernel_trace import AGENTS_TENANT, Made, Part, Piece, Trace, tenant_of


@dataclass
class Started:
    """An item an engine is working on; ``due_s`` is when its time is up."""

    item: WorkItem
    instance: str
    due_s: float
    begun_s: float
    aborted: bool = False


@dataclass
class ModelRun:
    """What the model knows of a run; a static one has the single piece 0."""

    priority: int
    arrived: int
    pieces: dict[int, Piece]
    agent: bool = False
    overdue_s: float = math.inf
    ends: list[str] = field(default_factory=list[str])
    early: set[int] = field(default_factory=set[int])


class KernelModel:
    """A kernel, and what is held against all that it is told and says."""

    validating = True
    ordering: ClassVar[type[Ordering]] = WorkflowFcfs

    def __init__(self) -> None:
        config = KernelConfig(
            max_active_runs=16,
            reuse_max_entries=8,
            reuse_ttl_s={"llm.generate": 20.0},
            remembered_runs=1_000,
            remembered_specs=8,
            reuse_store=True,
        )
        chosen = policies.build()._replace(ordering=self.ordering())
        self.state = new_state(config, *chosen)
        self.now = 0.0
        self.count = 0
        self.specs: dict[str, WorkflowSpec] = {}
        self.known: set[str] = set()
        self.runs: dict[str, ModelRun] = {}
        self.accepted: set[str] = set()
        self.early: set[str] = set()
        self.made: dict[bytes, dict[Made, None]] = {}
        self.values: dict[bytes, Value] = {}
        self.parts: dict[bytes, tuple[Part, ...]] = {}
        self.since: dict[bytes, float] = {}
        self.born: dict[bytes, float] = {}
        self.lost: set[str] = set()
        self.wake_s = math.inf
        self.places: dict[str, int] = {}
        self.up: dict[str, tuple[str, int]] = {}
        self.working: dict[tuple[int, int], Started] = {}
        self.batches: dict[str, list[set[tuple[int, int]]]] = {}
        self.effects: set[tuple[str, int, int, int]] = set()
        self.past: list[ev.Event] = []
        self.ghosts: list[Started] = []
        self.revision = 1
        self.known_revision = 0
        self.untold: list[int] = []
        self.purged_s = 0.0
        self.generation = 0
        self.stored: dict[bytes, tuple[KeepResult, float]] = {}
        self.outdated: dict[bytes, tuple[KeepResult, float]] = {}

    def send(self, event: ev.Event, remember: bool = True) -> list[Command]:
        self.now += 0.1
        out = handle(self.state, event, self.now)
        if remember and isinstance(event, ev.ItemFinished | ev.ItemFailed | ev.ItemAborted):
            self.past.append(event)
        for command in out:
            self.observe(command)
        self.check_order(out)
        self.check_wish()
        if self.validating:
            validate(self.state)
        return out

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
            case FinishFragment():
                run = self.runs[command.run_id]
                assert run.agent and not run.ends, "fragments end before their run"
                self.observe_piece(command, command.run_id, run.pieces[command.fragment])
            case WakeAt():
                assert command.at_s < self.wake_s
                self.wake_s = command.at_s
            case ReleaseValue():
                assert self.places[command.place] == 0, "released twice"
                self.places[command.place] = 1
            case ForgetSpec():
                self.known.remove(command.spec_id)
            case KeepResult():
                assert all(revision for _, revision in command.revisions)
                assert command.generation == self.generation
                self.stored[command.signature] = (command, self.now)
            case DropKept():
                assert command.generation == self.generation + 1
                self.generation = command.generation
                self.outdated |= self.stored
                if command == DropKept(command.generation):
                    self.stored.clear()
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
            flight = self.state.flights[item.flight]
            times = [self.node_of(n).options.timeout_s for n in flight.members.values()]
            due_s = math.inf
            if None not in times:
                due_s = self.now + max(t for t in times if t is not None)
            started = Started(item, batch.instance, due_s, self.now)
            self.working[item.flight, item.attempt] = started
            assert item.spec_id in self.known, "forgotten and yet at work"
            self.check_inputs(item)
            if node.purity == "effect":
                assert flight.leader is not None
                number = flight.leader.fragment.number
                effect = (item.run_id, number, item.node, item.element)
                assert effect not in self.effects, "effect repeated"
                self.effects.add(effect)

    def node_of(self, node: Node) -> NodeSpec:
        """The spec of a node, as the model knows it."""
        piece = self.runs[node.run.id].pieces[node.fragment.number]
        return piece.spec.nodes[node.position]

    def check_inputs(self, item: WorkItem) -> None:
        spec = self.specs[item.spec_id]
        check_item(spec, item, facts_of(spec, item.inputs.digest))
        for position, values in item.gathered:
            for at, value in enumerate(values):
                assert any(
                    made.operator == spec.nodes[position].operator
                    and (made.element == at or made.item)
                    for made in self.made[value.digest]
                ), "elements out of order"
        lists = [value for _, values in item.gathered for value in values]
        places = [value for _, value in item.upstream] + lists + [item.inputs]
        lent = item.shared.lenders if item.shared is not None else ()
        for value in (*places, *lent, item.items, item.item):
            if value is not None and value.place:
                assert self.places[value.place] == 0, "used when released"

    def check_wish(self) -> None:
        """The kernel has asked to be woken for whatever the model knows to be due."""
        due = [at.due_s for at in self.working.values() if not at.aborted]
        due += [self.runs[i].overdue_s for i in self.state.runs]
        assert self.wake_s <= min(due, default=math.inf) + 1e-6

    def check_order(self, out: list[Command]) -> None:
        """What was started goes before what stayed in the same queue."""
        for batch in out:
            if not isinstance(batch, StartBatch):
                continue
            name = self.up[batch.instance][0]
            pool = self.state.pools[name]
            later = [
                item.flight
                for other in out[out.index(batch) + 1 :]
                if isinstance(other, StartBatch) and self.up[other.instance][0] == name
                for item in other.items
            ]
            for queue in pool.queues.values():
                later += queue.flights()
            for at, item in enumerate(batch.items):
                rest = [i.flight for i in batch.items[at:]] + later
                self.check_turn(item.flight, rest, any_class=at == 0)

    def check_turn(self, flight: int, rest: list[int], *, any_class: bool) -> None:
        """Of what is left it is this flight's turn: within its tenant none is more urgent,
        and no other tenant was there first, as far as neither uses priorities."""
        flights = self.state.flights
        rest = [i for i in rest if any_class or flights[i].verb == flights[flight].verb]
        tenant = self.tenant(flight)
        mine = [self.wish(i) for i in rest if self.tenant(i) == tenant]
        assert self.wish(flight) <= min(mine), "wrong order"
        if not flights[flight].pool.favoured:
            others = [self.wish(i) for i in rest if self.tenant(i) != tenant]
            assert self.wish(flight) <= min(others, default=self.wish(flight)), (
                "not its turn"
            )

    def tenant(self, flight_id: int) -> str:
        payload = self.state.flights[flight_id].payload
        assert payload is not None
        return payload.tenant

    def wish(self, flight_id: int) -> tuple[int, int]:
        """How soon the most urgent run should be served of those in a flight, and in those
        that wait for its items."""
        flight = self.state.flights[flight_id]
        sharing = flight.sharing
        waiting = sharing.borrowers.values() if sharing is not None else ()
        return min(
            *[
                (
                    -self.runs[node.run.id].priority - self.node_of(node).options.priority,
                    self.runs[node.run.id].arrived,
                )
                for node in flight.members.values()
            ],
            *[self.wish(borrower.flight.id) for borrower in waiting],
            (1_000_000, 0),
        )

    def observe_end(self, end: FinishRun) -> None:
        run = self.runs[end.run_id]
        run.ends.append(end.status)
        assert run.ends == [end.status], "a run ends once"
        assert end.run_id in self.accepted
        if end.error is not None and end.error.code == "deadline_exceeded":
            assert self.now >= run.overdue_s - 1e-6
        if not run.agent:
            self.observe_piece(end, end.run_id, run.pieces[0])
            return
        assert all(piece.ends for piece in run.pieces.values()), "a fragment never ended"
        told = [node for _, piece in sorted(run.pieces.items()) for node in piece.nodes]
        assert list(end.nodes) == told and not end.outputs

    def observe_piece(
        self, end: FinishRun | FinishFragment, run_id: str, piece: Piece
    ) -> None:
        piece.ends.append(end.status)
        assert piece.ends == [end.status], "a fragment ends once"
        piece.nodes = end.nodes
        refused = isinstance(end, FinishFragment) and not end.nodes
        if not refused and (run_id not in self.early or end.nodes):
            self.check_records(end, piece)
        states = {node.state for node in end.nodes}
        assert states <= {"succeeded", "failed", "cancelled", "skipped"}
        if end.status == "succeeded":
            assert not states & {"failed", "cancelled"} and end.error is None
            self.check_success(end, run_id, piece)
            return
        assert end.error is not None and not (end.outputs or end.gathered or end.skipped)
        by_itself = {"not_a_list", "too_many_items", "deadline_exceeded"}
        if end.error.code not in by_itself and not refused:
            assert ("failed" in states) == (end.status == "failed")

    def check_records(self, end: FinishRun | FinishFragment, piece: Piece) -> None:
        """One record per node in spec order; of a region's node one per element."""
        left = [node.id for node in end.nodes]
        for node in piece.spec.nodes:
            if not node.region:
                assert left.pop(0) == node.id
            at = 0
            while node.region and left and left[0] == f"{node.id}[{at}]":
                left.pop(0)
                at += 1
        assert not left, "records of nobody"

    def check_success(
        self, end: FinishRun | FinishFragment, run_id: str, piece: Piece
    ) -> None:
        told = {(at, -1): value for at, value in end.outputs}
        for position, values in end.gathered:
            told |= {(position, at): value for at, value in enumerate(values)}
        assert not any(v.items or v.texts for v in told.values()), "the kernel's own"
        known = {where: self.values[value.digest] for where, value in told.items()}
        trace = Trace(
            self.made, run_id, self.tenant_of_run(run_id), piece, known, self.values
        )
        for (position, at), value in told.items():
            assert not value.place or self.places[value.place] == 0
            assert trace.explains(position, at, value.digest), "this is not the run's value"
        meaning = Meaning(
            piece.spec,
            piece.facts,
            lambda position: known.get((position, -1)),
            lambda position, at: known.get((position, at)),
        )
        outputs, gathered = dict(end.outputs), dict(end.gathered)
        states = {node.id: node.state for node in end.nodes}
        shown = {piece.spec.index[r.node] for r in node_refs(piece.spec.outputs)}
        assert sorted([*outputs, *gathered, *end.skipped]) == sorted(shown)
        for position, node in enumerate(piece.spec.nodes):
            alive = meaning.alive(position)
            if position in shown and alive is not None:
                assert alive == (position not in end.skipped), f"{node.id} alive: {alive}"
            if node.region:
                self.check_elements(meaning, position, states, gathered.get(position))
            elif alive is False:
                assert states[node.id] == "skipped"
            elif alive and node.purity == "effect":
                assert states[node.id] == "succeeded"

    def check_elements(
        self,
        meaning: Meaning,
        position: int,
        states: dict[str, str],
        values: tuple[Value, ...] | None,
    ) -> None:
        node = meaning.spec.nodes[position]
        length = meaning.length(node.region)
        count = sum(name.startswith(f"{node.id}[") for name in states)
        if meaning.begun(position) is False:
            assert count == 0, "elements of a branch not taken"
        elif length is not None:
            assert count in (0, length), "an element is lost"
        if values is not None and length is not None:
            assert len(values) == length, "an element's output is lost"
        for at in range(count):
            alive = meaning.alive_element(position, at)
            if alive is False:
                assert states[f"{node.id}[{at}]"] == "skipped"
            elif alive and node.purity == "effect":
                assert states[f"{node.id}[{at}]"] == "succeeded"

    def tenant_of_run(self, run_id: str) -> str:
        """Whose a run is."""
        run = self.runs[run_id]
        return AGENTS_TENANT if run.agent else tenant_of(run.pieces[0].inputs)


def validate_nothing_left(state: object) -> None:
    """No run, flight, queued item or node is left. Raises AssertionError."""
    from herasys_rt.core.state import State

    assert isinstance(state, State)
    assert not state.runs and not state.flights and not state.clients
    assert not state.due and not state.deadlines
    assert not state.table.live
    assert all(not pool.queued() for pool in state.pools.values())
    nodes = counters(state)["nodes"]
    parts = ("executed", "fused", "reused", "skipped", "cancelled")
    assert nodes["submitted"] == sum(int(str(nodes[part])) for part in parts)


def ids_ended(commands: list[Command]) -> list[str]:
    """Ids of the runs that ended, in order."""
    return [command.run_id for command in commands if isinstance(command, FinishRun)]


def owner(node: Node) -> str:
    """Who ends with the node: its static run, or its fragment of an agent's."""
    run = node.run
    return run.id if run.agent is None else f"{run.id}/{node.fragment.number}"


def owners_ended(commands: list[Command]) -> list[str]:
    """`owner`s that ended, in order."""
    ended: list[str] = []
    for command in commands:
        if isinstance(command, FinishFragment):
            ended.append(f"{command.run_id}/{command.fragment}")
        elif isinstance(command, FinishRun):
            ended.append(command.run_id)
    return ended
