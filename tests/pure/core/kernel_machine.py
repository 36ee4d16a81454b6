"""A Hypothesis state machine: everything a driver may do to the kernel, in any order."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from herasys_rt.core import events as ev
from herasys_rt.core.commands import (
    AcceptRun,
    FinishRun,
    RefuseRun,
    ReleaseValue,
)
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import WorkflowSpec
from tests.pure.core.kernel_lab import AGENT, BROKEN, BUSY, POOLS
from tests.pure.core.kernel_model import ids_ended, owner, owners_ended
from tests.pure.core.kernel_shapes import (
    BRANCHY,
    CLASSIC,
    LISTS,
    SET_PIECES,
    SHAPES,
    Branchy,
    Shape,
    branchy,
    dressed,
    shaped,
)
from tests.pure.core.kernel_trace import Piece, needed
from tests.pure.core.kernel_world import KernelWorld, pick

ANY = st.integers(0, 1_000_000)

ALIKE = tuple(
    how
    for how in range(1_000, 1_200)
    if how % 5 > 1 and how % 4 != 1 and how % 11 and how % 13 and how % 17
)
"""How to submit signed runs and finish their items with values that others have too."""


class KernelMachine(KernelWorld, RuleBasedStateMachine):
    """A `KernelWorld` in which anything may happen next."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        KernelWorld.__init__(self)

    @initialize()
    def begin(self) -> None:
        for pool in POOLS.values():
            self.send(pool)
        for name in POOLS:
            self.bring_up(name, 1 + (name == "llm"))

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

    @rule(
        spec=st.sampled_from([shaped(shape) for shape in CLASSIC if len(shape[0]) > 1])
        | st.sampled_from(list(SET_PIECES.values())),
        first=st.integers(20, 25),
        many=st.integers(2, 3),
        order=ANY,
        how=st.sampled_from(ALIKE),
    )
    def submit_paraphrases(
        self, spec: WorkflowSpec, first: int, many: int, order: int, how: int
    ) -> None:
        """Runs of one tenant with different inputs, whose nodes then give equal values."""
        ours: set[str] = set()
        for at in range(many):
            run_id = self.fresh("run")
            ours.add(run_id)
            self.submit_spec(run_id, spec, first + 2 * at, how)
            for step in range(order // 8**at % 8):
                theirs = [w for w in self.working.values() if w.item.run_id in ours]
                if theirs:
                    self.finish_item(theirs[-(order >> step & 1)], how)

    @rule(shape=BRANCHY, salt=st.integers(0, 5), how=ANY)
    def submit_branches(self, shape: Branchy, salt: int, how: int) -> None:
        self.submit_spec(self.fresh("run"), branchy(shape), salt, how)

    @rule(name=st.sampled_from(sorted(SET_PIECES)), salt=st.integers(1, 2), how=ANY)
    def submit_set_piece(self, name: str, salt: int, how: int) -> None:
        self.submit_spec(self.fresh("run"), SET_PIECES[name], salt, how)

    @rule(name=st.sampled_from(sorted(SET_PIECES)), twins=st.integers(2, 3), how=ANY)
    def submit_set_piece_twins(self, name: str, twins: int, how: int) -> None:
        for _ in range(twins):
            self.submit_spec(self.fresh("run"), SET_PIECES[name], 1 + how % 2, how)

    @rule(name=st.sampled_from(sorted(LISTS)), salt=st.integers(0, 9), how=ANY)
    def submit_list(self, name: str, salt: int, how: int) -> None:
        self.submit_spec(self.fresh("run"), LISTS[name], salt, how)

    @rule(salt=st.integers(0, 9), many=st.integers(3, 5), how=ANY)
    def submit_overlapping_lists(self, salt: int, many: int, how: int) -> None:
        spec = LISTS["best" if how % 3 == 2 else "list"]
        for at in range(many):
            self.submit_spec(self.fresh("run"), spec, salt + 2 * at, how)
            if how % 5 == 4:  # The next one borrows from what is complete.
                self.finish_many(0)

    @rule(salt=st.integers(0, 3), how=ANY)
    def submit_lists_one_long_after_the_other(self, salt: int, how: int) -> None:
        self.submit_spec(self.fresh("run"), LISTS["list"], salt, how)
        self.finish_many(0)
        for other in range(10):
            self.submit_as(self.fresh("run"), CLASSIC[-1], 20 + other, how)
            self.finish_many(0)
        self.submit_spec(self.fresh("run"), LISTS["list"], salt + 2, how)

    @rule(shape=st.sampled_from(CLASSIC) | BRANCHY, dress=ANY, how=ANY)
    def submit_with_options(self, shape: Shape | Branchy, dress: int, how: int) -> None:
        spec = branchy(shape) if isinstance(shape, Branchy) else shaped(shape)
        self.submit_spec(self.fresh("run"), dressed(spec, dress), how % 4, how)
        if how % 3 == 0:  # Again after a while: nodes may say how old results may be.
            self.finish_many(how)
            self.now += 5.0
            self.submit_spec(self.fresh("run"), dressed(spec, dress // 7), how % 4, how)

    @precondition(lambda self: any(not r.agent for r in self.open_runs()))
    @rule(which=ANY)
    def submit_urgent_twin(self, which: int) -> None:
        queued = [f.members for f in self.state.flights.values() if f.state == "queued"]
        waiting = {n.run.id for members in queued for n in members.values()}
        static = sorted(i for i in self.state.runs if not self.runs[i].agent)
        twin = self.runs[pick([i for i in static if i in waiting] or static, which)].pieces[
            0
        ]
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
        piece = self.runs[run_id].pieces.get(0) or Piece(AGENT, Value(b"t", 1, b"t"), 0)
        event = self.submission(run_id, piece.spec, piece.inputs, 0)
        known = self.state.runs.get(run_id)
        mine = known is not None and known.client == event.client
        out = [c for c in self.send(event) if not isinstance(c, ReleaseValue)]
        if mine:
            assert out == [AcceptRun(run_id, event.client)]
        else:
            (refusal,) = out
            assert isinstance(refusal, RefuseRun) and refusal.error.code == "run_id_used"

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
        members = list(dict.fromkeys(owner(n) for n in flight.members.values()))
        error = BUSY if again else BROKEN
        may_retry = again and flight.tries + 1 < 3
        retry = flight.options.retry
        if retry is not None:
            may_retry = error.code in retry.retry_on if retry.retry_on else again
            may_retry = may_retry and flight.tries + 1 < retry.max_attempts
        if any(value.place in self.lost for value in needed(item)):
            may_retry = False
        event = ev.ItemFailed(item.flight, item.attempt, at.instance, error)
        self.ends_item(at)
        out = self.send(event)
        assert owners_ended(out) == ([] if may_retry and not flight.effect else members)

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
        self.bring_up(pool, slots)

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

    @rule(how=ANY)
    def purge(self, how: int) -> None:
        keys = sorted(self.state.table.completed)
        filters = [
            ev.CachePurged(),
            ev.CachePurged(tenant=f"tenant-{how % 2}"),
            ev.CachePurged(collection="docs"),
            ev.CachePurged(signature=pick(keys, how)[0] if keys else b"none"),
        ]
        self.purge_by(pick(filters, how // 2))

    @precondition(lambda self: self.state.ledger.counts)
    @rule(which=ANY, kept=st.booleans())
    def lose_a_value(self, which: int, kept: bool) -> None:
        places = sorted(self.state.ledger.counts)
        held = sorted({e.value.place for e in self.state.table.listed()} - {""})
        self.lose_value(pick(held if kept and held else places, which))

    @rule(seconds=st.sampled_from([0.0, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=st.sampled_from([0.0, 3.0, 12.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self.pass_time()

    @precondition(lambda self: self.wake_s < math.inf)
    @rule()
    def wake_the_kernel(self) -> None:
        self.now = max(self.now, self.wake_s)
        self.pass_time()

    # ---- agents

    @rule(how=ANY)
    def submit_agent(self, how: int) -> None:
        self.start_agent(how)

    @rule(
        shape=st.sampled_from(CLASSIC) | BRANCHY, which=ANY, salt=st.integers(0, 5), how=ANY
    )
    def reveal(self, shape: Shape | Branchy, which: int, salt: int, how: int) -> None:
        spec = branchy(shape) if isinstance(shape, Branchy) else shaped(shape)
        if how % 4 == 0:
            spec = dressed(spec, how)
        self.reveal_next(spec, which, salt, how)

    @rule(name=st.sampled_from(sorted(LISTS)), which=ANY, salt=st.integers(0, 9), how=ANY)
    def reveal_list(self, name: str, which: int, salt: int, how: int) -> None:
        self.reveal_next(LISTS[name], which, salt, how)

    @rule(name=st.sampled_from(sorted(SET_PIECES)), which=ANY, how=ANY)
    def reveal_set_piece(self, name: str, which: int, how: int) -> None:
        self.reveal_next(SET_PIECES[name], which, 1 + how % 2, how)

    @precondition(lambda self: any(r.agent and r.pieces for r in self.runs.values()))
    @rule(which=ANY)
    def reveal_again(self, which: int) -> None:
        run_id = pick([i for i, r in self.runs.items() if r.agent and r.pieces], which)
        number = pick(sorted(self.runs[run_id].pieces), which)
        inputs = self.new_place(b"again")
        event = ev.NodesRevealed(run_id, number, AGENT.id, inputs)
        assert self.send(event) == [ReleaseValue(inputs.place)]

    @precondition(lambda self: any(r.agent for r in self.runs.values()))
    @rule(which=ANY, ahead=st.booleans())
    def cancel_fragment(self, which: int, ahead: bool) -> None:
        run_id = pick([i for i, r in self.runs.items() if r.agent], which)
        run = self.runs[run_id]
        is_open = [n for n, piece in run.pieces.items() if not piece.ends]
        if (ahead and which % 2) or not run.pieces:
            number = len(run.pieces) + len(run.early)
            if not run.ends:
                run.early.add(number)
            assert self.send(ev.FragmentCancelled(run_id, number)) == []
            return
        number = pick(is_open or sorted(run.pieces), which)
        out = self.send(ev.FragmentCancelled(run_id, number))
        assert owners_ended(out) == ([f"{run_id}/{number}"] if number in is_open else [])

    @precondition(lambda self: any(r.agent for r in self.open_runs()))
    @rule(which=ANY, failed=st.booleans())
    def close(self, which: int, failed: bool) -> None:
        run_id = pick([i for i in self.state.runs if self.runs[i].agent], which)
        self.send(ev.RunClosed(run_id, BROKEN if failed else None))
        assert self.runs[run_id].ends == ["failed" if failed else "succeeded"]

    def teardown(self) -> None:
        """Everything ends, and nothing is left of it."""
        if self.count:
            self.drain()
        super().teardown()
