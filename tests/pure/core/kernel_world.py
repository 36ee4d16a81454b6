"""What is outside of the kernel: clients, engines, and a database."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from herasys_rt.core import events as ev
from herasys_rt.core.commands import (
    AcceptRun,
    Command,
    FinishFragment,
    FinishRun,
    RefuseRun,
    WorkItem,
)
from herasys_rt.core.kernel import handle
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import (
    Expr,
    InputRef,
    ItemRef,
    Lit,
    NodeRef,
    NodeSpec,
    WorkflowSpec,
    leaves,
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
from tests.pure.core.kernel_meaning import facts_of, items_of
from tests.pure.core.kernel_model import (
    KernelModel,
    ModelRun,
    Started,
    validate_nothing_left,
)
from tests.pure.core.kernel_shapes import MAX_ITEMS, Shape, collections_of, shaped
from tests.pure.core.kernel_trace import (
    AGENTS_TENANT,
    WRITTEN,
    Made,
    Part,
    Piece,
    digest_of,
    given_for,
    needed,
    taken,
    tenant_of,
)

T = TypeVar("T")


class KernelWorld(KernelModel):
    """Clients, engines and a database around a kernel, driven by whoever has it."""

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
                    age_s=kept.age_s + self.now + 0.1 - since_s,
                    eldest_age_s=kept.eldest_age_s + self.now + 0.1 - since_s,
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

    def lose_value(self, place: str) -> None:
        """The object store loses a value, and somebody finds that out."""
        self.lost.add(place)
        self.send(ev.ValuesLost((place,)))
        for entry in self.state.table.listed():
            assert entry.value.place != place, "still offered"
        live = self.state.table.live
        for flight in self.state.flights.values():
            payload = flight.payload
            if payload is not None and any(v.place == place for v in needed(payload)):
                assert flight.batch is not None, "waits in vain"
                found = [key for key in flight.all_keys() if live.get(key) is flight]
                assert not found, "joined in vain"

    def cannot_fetch(self, at: Started, places: tuple[str, ...]) -> None:
        """A host says that it lacks the inputs of an item: nobody tries that again."""
        members = list(self.state.flights[at.item.flight].members.values())
        waiting = dict.fromkeys((n.run.id, n.fragment.number) for n in members)
        self.send(ev.ValuesLost(places))  # What else needs them may end the item's runs.
        self.ends_item(at)
        error = ErrorInfo("value_lost", "it was lost", retryable=True)
        item = at.item
        self.send(ev.ItemFailed(item.flight, item.attempt, at.instance, error))
        for run_id, number in waiting:
            assert self.runs[run_id].pieces[number].ends == ["failed"]

    def finish_item(self, at: Started, how: int) -> None:
        item = at.item
        lacking = [v.place for v in needed(item) if v.place in self.lost]
        if lacking:
            self.cannot_fetch(at, tuple(lacking))
            return
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
        cut_s = self.now if truncated else math.inf
        born_s = min(self.now + 0.1, *[self.born[value.digest] for value in lent], math.inf)
        made = self.made_of(item, node, begun_s, cut_s, born_s)
        content = str(how // 7 % 4)  # what others' values are too
        if how % 5 < 2:
            content = f"{item.flight}/{item.attempt}/{made}"
        parts = () if truncated else self.assembled(item, node)
        reduced = item.shared is not None and node.reduction is not None
        if item.shared is not None:
            content = f"{reduced}{parts or made}"
        digest = hashlib.sha256(content.encode()).digest()
        self.made.setdefault(digest, {})[made] = None
        lent_from = self.lending(content, parts, made, how) if reduced else None
        self.parts[digest] = () if reduced else parts
        self.since[digest] = max(self.since.get(digest, 0.0), made.begun_s)
        self.born[digest] = max(self.born.get(digest, 0.0), made.born_s)
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

    def lending(self, content: str, parts: tuple[Part, ...], made: Made, how: int) -> Value:
        """What a value was made of, where its items lie."""
        digest = hashlib.sha256(f"parts of {content}".encode()).digest()
        self.parts[digest] = parts
        self.since[digest] = max(self.since.get(digest, 0.0), made.begun_s)
        self.born[digest] = max(self.born.get(digest, 0.0), made.born_s)
        value = self.new_place(digest) if how % 2 else Value(digest, 1, b"x")
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
                held = self.parts[item.shared.lenders[lender].digest]
                assert index < len(held), "an item that is not there"
                parts[position] = held[index]
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

    def made_of(
        self, item: WorkItem, node: NodeSpec, begun_s: float, cut_s: float, born_s: float
    ) -> Made:
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
            born_s,
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


def pick(many: Sequence[T], which: int) -> T:
    """One of many."""
    return many[which % len(many)]
