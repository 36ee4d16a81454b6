"""What is outside of the kernel: clients, engines, a database, and a model of its own.

The model knows what each started item was made of, so that a run's outputs can be traced
back through every engine that had a part in them. It shares no code with the kernel.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

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
    NodeRecord,
    RefuseRun,
    ReleaseValue,
    StartBatch,
    WakeAt,
    WorkItem,
)
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import KernelConfig, counters, handle, new_state
from herasys_rt.core.state import Node
from herasys_rt.core.values import Fact, Value
from herasys_rt.graph.spec import (
    Expr,
    InputRef,
    ItemRef,
    Lit,
    NodeRef,
    NodeSpec,
    WorkflowSpec,
    leaves,
    node_refs,
)
from tests.pure.core.kernel_lab import (
    AGENT,
    POOLS,
    form_of,
    item_seeds_of,
    own_of,
    seeds_of,
    signatures_of,
    takes_inputs,
)
from tests.pure.core.kernel_meaning import Meaning, check_item, facts_of, items_of
from tests.pure.core.kernel_shapes import MAX_ITEMS, Shape, collections_of, shaped

T = TypeVar("T")

Given = bytes | tuple[bytes, ...] | None
"""What a node was given for a parent: a digest, those of a list, nothing."""


AGENTS_TENANT = "tenant-0"

WRITTEN = (hashlib.sha256(b"\0").digest(),) * MAX_ITEMS
"""The digests of the items of a list that is written down: they are all 0."""

Part = tuple[str, str, bytes, str]
"""An item of an output: the operator and tenant that it was computed for, of what, and
what else decided it."""


@dataclass(frozen=True)
class Made:
    """What a value was made of: ``given`` is per node that the arguments name, in order;
    ``inputs`` is empty where they do not matter, ``item`` where nobody told it. ``cut_s``
    is when it was truncated, infinity when it is whole."""

    operator: str
    form: str
    tenant: str
    inputs: bytes
    given: tuple[Given, ...]
    run_id: str
    element: int
    item: bytes
    list_of: tuple[bytes, bytes]
    all_inputs: bytes
    revision: int
    begun_s: float
    cut_s: float


@dataclass
class Started:
    """An item an engine is working on; ``due_s`` is when its time is up."""

    item: WorkItem
    instance: str
    due_s: float
    begun_s: float
    aborted: bool = False


@dataclass
class Piece:
    """What the model knows of a static run, or of a fragment of an agent's."""

    spec: WorkflowSpec
    inputs: Value
    known_revision: int
    purged_s: float = 0.0
    begun_s: float = 0.0
    ends: list[str] = field(default_factory=list[str])
    nodes: tuple[NodeRecord, ...] = ()

    @property
    def facts(self) -> dict[str, Fact]:
        """What is told of its inputs."""
        return facts_of(self.spec, self.inputs.digest)


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


@dataclass
class Trace:
    """Follows values back through all that may have made them: they must be a run's own.

    ``made`` and ``values`` are all values ever made, ``known`` those that the run told:
    (position, element) -> value. Equal values may have been made of different things, of
    which one must fit; a node may have been given another value than its parent has in
    this run, where that was computed twice.
    """

    made: dict[bytes, dict[Made, None]]
    run_id: str
    tenant: str
    piece: Piece
    known: dict[tuple[int, int], Value]
    values: dict[bytes, Value]
    found: dict[tuple[int, int, bytes], bool] = field(
        default_factory=dict[tuple[int, int, bytes], bool]
    )

    def explains(self, position: int, element: int, digest: bytes) -> bool:
        """Whether a node, or an element of one, may have this value."""
        what = (position, element, digest)
        if what not in self.found:
            ways = self.made.get(digest, {})
            self.found[what] = any(self._fits(position, element, one) for one in ways)
        return self.found[what]

    def _fits(self, position: int, element: int, made: Made) -> bool:
        piece, spec = self.piece, self.piece.spec
        node = spec.nodes[position]
        return (
            (made.operator, made.form) == (node.operator, form_of(node))
            and made.tenant == self.tenant
            and made.inputs == (piece.inputs.digest if takes_inputs(node) else b"")
            and made.revision >= piece.known_revision
            and made.begun_s >= piece.purged_s
            and made.cut_s >= piece.begun_s
            and (node.purity == "pure" or made.run_id == self.run_id)
            and all(
                self._given(node, at, element, given)
                for at, given in zip(taken(spec, node), made.given, strict=True)
            )
            and (element < 0 or self._of_item(position, element, made))
        )

    def _given(self, node: NodeSpec, at: int, element: int, given: Given) -> bool:
        if given is None:
            return True
        region = self.piece.spec.nodes[at].region
        near = region and region == node.region
        if isinstance(given, tuple) != bool(region and not near):
            return False  # outputs of a region, and one value
        if isinstance(given, tuple):
            return all(self.explains(at, i, one) for i, one in enumerate(given))
        return self.explains(at, element if near else -1, given)

    def _of_item(self, position: int, element: int, made: Made) -> bool:
        """Whether an element was made of its item, as far as anybody told what that is."""
        spec = self.piece.spec
        over = spec.region_index[spec.nodes[position].region].items
        items: tuple[bytes, ...] = ()
        if isinstance(over, InputRef):
            items = self.piece.facts[over.name].items
        elif isinstance(over, Lit):
            items = WRITTEN
        elif isinstance(over, NodeRef):
            at = spec.index[over.node]
            if spec.nodes[at].region:
                one = self.known.get((at, element))
                return one is None or made.item == one.digest
            given = self.known.get((at, -1))
            items = given.items if given is not None else ()
            untold = made.item and (position, element) not in self.known
            if untold and self._of_a_list(at, element, made.item):
                return True
        if items:
            return made.item == items[element]
        own = made.run_id == self.run_id or (position, element) not in self.known
        if made.element != element or not own:  # nobody could tell that it is equal
            return False
        if isinstance(over, NodeRef):
            return self.explains(spec.index[over.node], -1, made.list_of[0])
        return made.all_inputs == self.piece.inputs.digest

    def _of_a_list(self, at: int, element: int, item: bytes) -> bool:
        """Whether a node may have given a list with this item: in this run, or where it
        was computed before."""
        return any(
            value.items[element : element + 1] == (item,) and self.explains(at, -1, digest)
            for digest, value in self.values.items()
        )


def tenant_of(inputs: Value) -> str:
    """Equal inputs are of one tenant: tenants share no flights."""
    return f"tenant-{inputs.digest[-1] % 2}"


class KernelWorld:
    """Clients, engines and a database around a kernel, and what they hold against it."""

    validating = True

    def __init__(self) -> None:
        config = KernelConfig(
            max_active_runs=16,
            reuse_max_entries=8,
            reuse_ttl_s={"llm.generate": 20.0},
            remembered_runs=1_000,
            remembered_specs=8,
            reuse_store=True,
        )
        self.state = new_state(config, *policies.build())
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

    # ---- what the outside does

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}-{self.count}"

    def bring_up(self, pool: str, slots: int) -> None:
        """Another instance, unless there are three."""
        if sum(p == pool for p, _ in self.up.values()) < 3:
            instance = self.fresh(f"{pool}-i")
            self.up[instance] = (pool, slots)
            self.batches[instance] = []
            self.send(ev.InstanceUp(instance, pool, slots))

    def register(self, spec: WorkflowSpec) -> None:
        self.specs[spec.id] = spec
        self.known.add(spec.id)
        self.send(ev.SpecRegistered(spec))

    def start_agent(self, how: int) -> None:
        run_id = self.fresh("agent")
        self.register(AGENT)
        inputs = Value(b"task", 4, b"task") if how % 3 else self.new_place(b"task")
        deadline_s = 25.0 if how % 5 == 0 else None
        event = ev.RunSubmitted(
            run_id,
            AGENT.id,
            f"client-{how % 3}",
            AGENTS_TENANT,
            inputs,
            agent=True,
            deadline_s=deadline_s,
        )
        run = ModelRun(0, self.count, {}, True)
        self.runs[run_id] = run
        if deadline_s is not None:
            run.overdue_s = self.now + 0.1 + deadline_s
        first = self.send(event)[0]
        if isinstance(first, RefuseRun):
            assert first.error.code == "overloaded"
            del self.runs[run_id]

    def reveal_next(self, spec: WorkflowSpec, which: int, salt: int, how: int) -> None:
        if not any(run.agent for run in self.open_runs()):
            self.start_agent(how)
        mine = [i for i in self.state.runs if self.runs[i].agent]
        if mine:
            run_id = pick(mine, which)
            run = self.runs[run_id]
            new = len(run.pieces) + len(run.early)
            number = new if how % 3 else min(run.early, default=new)
            self.reveal_as(run_id, number, spec, salt, how)

    def open_runs(self) -> list[ModelRun]:
        return [self.runs[run_id] for run_id in self.state.runs]

    def pass_time(self) -> None:
        """Send `TimePassed`; whatever is due must be over then."""
        self.wake_s = math.inf
        self.send(ev.TimePassed())
        for at in self.working.values():
            assert at.aborted or at.due_s > self.now, "out of time and not aborted"
        for run_id in self.accepted:
            run = self.runs[run_id]
            assert run.ends or run.overdue_s > self.now, "overdue"

    def new_place(self, digest: bytes) -> Value:
        place = self.fresh("place")
        self.places[place] = 0
        return Value(digest, 100_000, place=place)

    def submission(
        self, run_id: str, spec: WorkflowSpec, inputs: Value, how: int
    ) -> ev.RunSubmitted:
        signed = how % 11 != 0
        salt = inputs.digest.decode()
        whose = f"{tenant_of(inputs)}/{salt}"
        signatures = signatures_of(spec, whose, run_id) if signed else ()
        return ev.RunSubmitted(
            run_id,
            spec.id,
            f"client-{how % 3}",
            tenant_of(inputs),
            inputs,
            signatures,
            collections_of(spec) if signed else (),
            how % 2 == 1,
            (how // 5) % 3 - 1 if how % 5 == 0 else 0,
            20.0 if how % 17 == 0 else None,
            facts_of(spec, inputs.digest),
            seeds=seeds_of(spec, salt, tenant_of(inputs)) if signed else (),
            own_collections=own_of(spec, collections_of(spec)) if signed else (),
            item_seeds=item_seeds_of(spec, tenant_of(inputs)) if signed else (),
            hints=self.hints(signatures, how),
        )

    def hints(self, signatures: Sequence[bytes], how: int) -> tuple[ev.Hint, ...]:
        """What a store offers: what it kept, and at times what was purged since."""
        found: list[ev.Hint] = []
        for node, signature in enumerate(signatures):
            late = how % 7 == 0 and signature in self.outdated
            kept, since_s = (self.outdated if late else self.stored).get(
                signature, (None, 0.0)
            )
            if kept is None or (how + node) % 3 == 0:
                continue
            placed = kept.value.place or how % 2
            value = self.new_place(kept.value.digest) if placed else kept.value
            told = kept.value
            value = replace(
                value,
                truth=told.truth,
                length=told.length,
                items=told.items,
                texts=told.texts,
            )
            left_s = kept.ttl_s - (self.now - since_s)
            found.append(
                ev.Hint(
                    node,
                    kept.generation if late else self.generation,
                    value,
                    kept.tenant,
                    kept.meta,
                    kept.revisions,
                    left_s,
                )
            )
        return tuple(found)

    def purge_by(self, event: ev.CachePurged) -> None:
        """Everything, or what the filters name, is forgotten."""
        if event == ev.CachePurged():
            self.purged_s = self.now + 0.1
        self.send(event)
        for (signature, revisions), entry in self.state.table.completed.items():
            named = event.collection in {None, *(name for name, _ in revisions)}
            named = named and event.signature in (b"", signature)
            whose = entry.owner.tenant
            assert not (named and event.tenant in (None, whose)), "not purged"

    def submit_as(self, run_id: str, shape: Shape, salt: int, how: int) -> list[Command]:
        return self.submit_spec(run_id, shaped(shape), salt, how)

    def submit_spec(
        self, run_id: str, spec: WorkflowSpec, salt: int, how: int
    ) -> list[Command]:
        if how % 13:
            self.register(spec)
        digest = f"salt-{salt}".encode()
        inputs = Value(digest, 4, b"salt") if how % 4 else self.new_place(digest)
        return self.submit_event(self.submission(run_id, spec, inputs, how), spec)

    def submit_event(self, event: ev.RunSubmitted, spec: WorkflowSpec) -> list[Command]:
        run_id, inputs = event.run_id, event.inputs
        piece = Piece(spec, inputs, self.known_revision, self.purged_s, self.now)
        run = ModelRun(event.priority, self.count, {0: piece})
        self.runs[run_id] = run
        if event.deadline_s is not None:
            run.overdue_s = self.now + 0.1 + event.deadline_s
        out = self.send(event)
        first = out[0]
        assert isinstance(first, AcceptRun | RefuseRun) and first.run_id == run_id
        if isinstance(first, RefuseRun):
            assert run_id not in self.early
            assert (spec.id not in self.known) == (first.error.code == "unknown_spec")
            assert first.error.code in {"unknown_spec", "overloaded", "gone"}
            values = [inputs, *(hint.value for hint in event.hints)]
            assert len(out) == 1 + sum(bool(value.place) for value in values)
            del self.runs[run_id]
        return out

    def reveal_as(
        self, run_id: str, number: int, spec: WorkflowSpec, salt: int, how: int
    ) -> None:
        if how % 13:
            self.register(spec)
        digest = f"salt-{salt}".encode()
        inputs = Value(digest, 4, b"salt") if how % 5 else self.new_place(digest)
        run = self.runs[run_id]
        piece = Piece(spec, inputs, self.known_revision, self.purged_s, self.now)
        run.pieces[number] = piece
        whose = f"{AGENTS_TENANT}/{digest.decode()}"
        signatures = signatures_of(spec, whose, f"{run_id}/{number}")
        early = number in run.early
        run.early.discard(number)
        out = self.send(
            ev.NodesRevealed(
                run_id,
                number,
                spec.id,
                inputs,
                signatures,
                collections_of(spec),
                facts_of(spec, digest),
                ((number - 1, "n0"),) if number else (),
                seeds=seeds_of(spec, digest.decode(), AGENTS_TENANT),
                own_collections=own_of(spec, collections_of(spec)),
                item_seeds=item_seeds_of(spec, AGENTS_TENANT),
                hints=self.hints(signatures, how),
            )
        )
        if early:
            assert piece.ends == ["cancelled"]
        if spec.id not in self.known:
            assert piece.ends, "an unknown spec ends its fragment at once"
            if not early:
                del run.pieces[number]  # It may be revealed again.
        assert [type(c) for c in out].count(FinishFragment) <= 1

    def finish_item(self, at: Started, how: int) -> None:
        item = at.item
        node = self.specs[item.spec_id].nodes[item.node]
        revisions: dict[str, int] = {}
        if node.verb == "pg.write":
            self.revision += 1
        if node.resource == "retrieval":
            revisions = {"docs": self.revision}
            self.known_revision = max(self.known_revision, self.revision)
        lent = item.shared.lenders if item.shared is not None else ()
        begun_s = min(at.begun_s, *[self.since[value.digest] for value in lent], math.inf)
        truncated = how % 4 == 1
        made = self.made_of(item, node, begun_s, self.now if truncated else math.inf)
        content = str(how // 7 % 4)  # what others' values are too
        if how % 5 < 2:
            content = f"{item.flight}/{item.attempt}/{made}"
        parts = () if truncated else self.assembled(item, node)
        reduced = node.reduction is not None
        if item.shared is not None:
            content = f"{reduced}{parts or made}"
        digest = hashlib.sha256(content.encode()).digest()
        self.made.setdefault(digest, {})[made] = None
        lent_from = None
        if reduced and item.shared is not None:
            lent_from = self.lending(content, parts, made.begun_s, stored=how % 2 == 0)
        else:
            self.parts[digest] = parts
        self.since[digest] = max(self.since.get(digest, 0.0), made.begun_s)
        value = self.new_place(digest) if how % 3 == 0 else Value(digest, 1, b"x")
        drawn = digest[0]
        length = drawn // 3 % (MAX_ITEMS + 3) - 1 if drawn % 2 else drawn // 3 % 3
        items = items_of(length, drawn) if drawn // 5 % 2 else ()
        texts = items_of(length, drawn + 1) if drawn // 7 % 2 else ()
        value = replace(
            value, truth=drawn // 3 % 2 == 0, length=length, items=items, texts=texts
        )
        self.values[digest] = value
        self.ends_item(at)
        event = ev.ItemFinished(
            item.flight,
            item.attempt,
            at.instance,
            value,
            1.0,
            b"meta",
            revisions,
            truncated,
            parts=lent_from,
        )
        out = self.send(event)
        for end in out:
            if isinstance(end, FinishRun | FinishFragment) and end.status != "succeeded":
                assert end.error is not None
                number = end.fragment if isinstance(end, FinishFragment) else 0
                regions = self.runs[end.run_id].pieces[number].spec.regions
                bad_lists = {"not_a_list", "too_many_items"} if regions else set[str]()
                assert end.error.code in {"gone", *bad_lists}

    def lending(
        self, content: str, parts: tuple[Part, ...], since_s: float, *, stored: bool
    ) -> Value:
        """What a value was made of, where its items lie."""
        digest = hashlib.sha256(f"parts of {content}".encode()).digest()
        self.parts[digest] = parts
        self.since[digest] = max(self.since.get(digest, 0.0), since_s)
        value = self.new_place(digest) if stored else Value(digest, 1, b"x")
        self.values[digest] = value
        return value

    def assembled(self, item: WorkItem, node: NodeSpec) -> tuple[Part, ...]:
        """The items of an output: borrowed ones from where they are said to lie. It must
        be what the engine would have given for the whole list."""
        if item.shared is None:
            return ()
        items = self.listed(item, node)
        assert item.shared.count == len(items)
        beside = self.beside(item, node)
        whole = tuple((node.operator, item.tenant, text, beside) for text in items)
        parts = dict(enumerate(whole))
        for position, lender, index in item.shared.borrowed:
            if lender < 0:
                assert index < position
                parts[position] = parts[index]
            else:
                parts[position] = self.parts[item.shared.lenders[lender].digest][index]
        assert tuple(parts[i] for i in range(len(items))) == whole, "another item"
        return whole

    def beside(self, item: WorkItem, node: NodeSpec) -> str:
        """What an item's output depends on beside the item of the list."""
        rest = replace(
            node, args={n: arg for n, arg in node.args.items() if n != node.list_port}
        )
        upstream, gathered = dict(item.upstream), dict(item.gathered)
        spec = self.specs[item.spec_id]
        given = [given_for(p, upstream, gathered) for p in taken(spec, rest)]
        leaf_kinds = [type(leaf) for arg in rest.args.values() for leaf in leaves(arg)]
        told = self.item_told(item, node) if ItemRef in leaf_kinds else None
        return f"{given} {told}"

    def listed(self, item: WorkItem, node: NodeSpec) -> tuple[bytes, ...]:
        """The digests of the items at a node's list port."""
        assert node.list_port is not None
        arg, spec = node.args[node.list_port], self.specs[item.spec_id]
        records = arg.args["items"] if isinstance(arg, Expr) else None
        if node.by_text:
            records = arg
        over = records or arg
        if isinstance(over, InputRef):
            fact = facts_of(spec, item.inputs.digest)[over.name]
            return fact.texts if records else fact.items
        assert isinstance(over, NodeRef)
        at = spec.index[over.node]
        if records:
            return self.values[dict(item.upstream)[at].digest].texts
        gathered = dict(item.gathered)
        if at in gathered:
            return tuple(value.digest for value in gathered[at])
        return self.values[dict(item.upstream)[at].digest].items

    def item_told(self, item: WorkItem, node: NodeSpec) -> bytes:
        """The digest of an element's item; empty where nobody told it, or there is none."""
        if item.item is not None:
            return item.item.digest
        if item.element < 0:
            return b""
        spec = self.specs[item.spec_id]
        over = spec.region_index[node.region].items
        facts = facts_of(spec, item.inputs.digest)
        known = facts[over.name].items if isinstance(over, InputRef) else ()
        if isinstance(over, Lit):
            known = WRITTEN
        if item.items is not None:
            known = self.values[item.items.digest].items
        return known[item.element] if known else b""

    def made_of(self, item: WorkItem, node: NodeSpec, begun_s: float, cut_s: float) -> Made:
        """What the value of an item is made of."""
        upstream, gathered = dict(item.upstream), dict(item.gathered)
        spec = self.specs[item.spec_id]
        told = self.item_told(item, node)
        return Made(
            node.operator,
            form_of(node),
            item.tenant,
            item.inputs.digest if takes_inputs(node) else b"",
            tuple(given_for(p, upstream, gathered) for p in taken(spec, node)),
            item.run_id,
            item.element,
            told,
            (digest_of(item.items), digest_of(item.item)),
            item.inputs.digest,
            self.revision if node.verb == "pg.search" else 1_000_000,
            begun_s,
            cut_s,
        )

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
        self.check_wish()
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

    def drain(self) -> None:
        """Bring every pool up, finish everything, and look at what remains."""
        for pool in POOLS:
            self.bring_up(pool, 1)
        for step in range(10_000):
            if self.working:
                self.finish_item(next(iter(self.working.values())), step)
            elif self.wake_s < math.inf:
                self.now = max(self.now, self.wake_s)
                self.pass_time()
            else:
                break
        for run_id in list(self.state.runs):
            if self.runs[run_id].agent:
                self.send(ev.RunClosed(run_id))
        validate_nothing_left(self.state)
        for run_id in self.accepted:
            run = self.runs[run_id]
            assert len(run.ends) == 1, f"{run_id} never ended"
            assert all(len(p.ends) == 1 for p in run.pieces.values()), f"{run_id}: pieces"
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


def taken(spec: WorkflowSpec, node: NodeSpec) -> list[int]:
    """Positions of the nodes that a node's arguments name, in order, once each."""
    return [
        spec.index[name] for name in dict.fromkeys(r.node for r in node_refs(node.args))
    ]


def given_for(
    position: int, upstream: dict[int, Value], gathered: dict[int, tuple[Value, ...]]
) -> Given:
    """What an item has for a parent."""
    if position in gathered:
        return tuple(value.digest for value in gathered[position])
    return upstream[position].digest if position in upstream else None


def digest_of(value: Value | None) -> bytes:
    """Its digest; nothing for nothing."""
    return b"" if value is None else value.digest


def pick(many: Sequence[T], which: int) -> T:
    """One of many."""
    return many[which % len(many)]
