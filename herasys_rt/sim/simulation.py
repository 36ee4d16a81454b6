"""The discrete-event loop: the kernel is told what happens and its commands are carried
out, as the scheduler and its interpreter do live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from herasys_rt.core.commands import (
    AbortItem,
    AcceptRun,
    AddSubscriber,
    Command,
    FinishFragment,
    FinishRun,
    RefuseRun,
    ReleaseValue,
    StartBatch,
    WakeAt,
    WorkItem,
)
from herasys_rt.core.events import (
    Event,
    ItemAborted,
    ItemFailed,
    ItemFinished,
    NodesRevealed,
    RunClosed,
    RunSubmitted,
    SpecRegistered,
    TimePassed,
)
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import State, handle
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo, InternalError
from herasys_rt.graph import codec
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.policies.placement import LeastReserved
from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.agents import AgentRun
from herasys_rt.sim.arrivals import Arrivals
from herasys_rt.sim.durations import Forecast, Standalone
from herasys_rt.sim.fleet import Fleet, Outage
from herasys_rt.sim.instances import Work
from herasys_rt.sim.machines import Machines
from herasys_rt.sim.records import RunRecord, run_record
from herasys_rt.sim.staging import staged
from herasys_rt.workloads.arrivals import Job, Step, Truth
from herasys_rt.workloads.specs import Piece, Specs, content_of

CLIENT = "simulation"


@dataclass(frozen=True, slots=True)
class Span:
    """One item on an instance, from when it began there to its end."""

    instance: str
    run: str
    step: str
    begun_s: float
    ended_s: float


@dataclass(slots=True, eq=False)
class _Active:
    """A run under way. ``agent`` reveals it where it is not known as a whole."""

    job: Job
    arrival_s: float
    agent: AgentRun | None = None


@dataclass(slots=True, eq=False)
class _Content:
    """What the nodes of one piece turn out to be."""

    job: Job
    steps: tuple[Step, ...]
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Origin:
    """What an item on an instance is: a step of what somebody submitted, and the digests
    of the outputs that it was given."""

    run_id: str
    content: _Content
    step: Step
    given: tuple[bytes, ...]

    def digest(self) -> bytes:
        """Names what executing it gives: equal work on equal inputs gives equal values."""
        step = self.step
        named = [step.operator, step.model, content_of(self.content.job, step)]
        return codec.digest(codec.canonical([*named, *self.given]))


@dataclass(slots=True, eq=False)
class Trace:
    """Everything that a simulation left behind. ``spans`` are kept only when asked for."""

    records: list[RunRecord] = field(default_factory=list[RunRecord])
    spans: list[Span] = field(default_factory=list[Span])
    busy: dict[str, float] = field(default_factory=dict[str, float])
    events: int = 0
    plan_s: float = 0.0
    wall_s: float = 0.0


class Simulation:
    """Runs jobs on machines under a kernel.

    ``state`` is a fresh kernel state with its policies; ``eager`` is as in `Preset`.
    ``checked`` validates the
    kernel's invariants and the instances' after every event (slow). ``listen`` is told
    every event with its time and the commands it led to; ``progress`` how many runs
    have ended.

    Errors: `ConfigError` for jobs that nothing can execute and outages of machines that
    are none.
    """

    def __init__(
        self,
        state: State,
        machines: Machines,
        jobs: Sequence[Job],
        arrivals: Arrivals,
        *,
        outages: Sequence[Outage] = (),
        eager: bool = False,
        spans: bool = False,
        checked: bool = False,
        horizons: bool = True,
        listen: Callable[[float, Event, list[Command]], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        machines.check(jobs)
        self.state = state
        self.agenda = Agenda()
        self.trace = Trace()
        self.fleet = Fleet(machines, outages, self.agenda, self, self.tell, eager=eager)
        self._machines = machines
        self._arrivals = arrivals
        self._keep_spans = spans
        self._checked = checked
        self._listen = listen
        self._progress = progress
        self._specs = Specs()
        self._split = machines.cluster.split
        self._standalone = Standalone(machines) if horizons else None
        self._reserves = state.placement.name == LeastReserved.name
        predicts = state.tracker is not None or self._reserves
        self._forecast = Forecast(machines) if predicts else None
        self._registered: set[str] = set()
        self._contents: dict[bytes | None, _Content] = {}
        self._active: dict[str, _Active] = {}
        self._origins: dict[tuple[int, int], _Origin] = {}
        self._wake_s = -1.0
        self._events = 0
        self._plan_s = 0.0
        self._carry: dict[type, Callable[[Any], None]] = {
            StartBatch: self._start_batch,
            AbortItem: self._abort,
            AddSubscriber: _nothing,
            AcceptRun: _nothing,
            RefuseRun: self._refuse,
            FinishRun: self._finish,
            FinishFragment: self._finish_fragment,
            WakeAt: self._wake,
            ReleaseValue: _nothing,
        }

    def run(self) -> Trace:
        """Let everything happen. May be called once.

        Errors: `InternalError` when runs are left over with nothing due any more.
        """
        started = time.perf_counter()
        for declared in self._machines.declarations():
            self.tell(declared)
        self.fleet.begin()
        self._arrivals.begin(self.agenda, self.submit)
        self.agenda.run()
        if self._active:
            raise InternalError(
                f"{len(self._active)} runs have not ended and nothing is due any more, "
                f"the first of them {next(iter(self._active))}",
                hint="Keep the command line and report it.",
            )
        trace = self.trace
        trace.busy = self.fleet.busy()
        trace.events, trace.plan_s = self._events, self._plan_s
        trace.wall_s = time.perf_counter() - started
        return trace

    # --- the kernel -----------------------------------------------------------------
    def tell(self, event: Event) -> None:
        """Let the kernel handle one event and carry out what it commands."""
        now = self.agenda.now
        before = time.perf_counter()
        commands = handle(self.state, event, now)
        self._plan_s += time.perf_counter() - before
        self._events += 1
        if self._listen is not None:
            self._listen(now, event, list(commands))
        carry = self._carry
        for command in commands:
            carry[type(command)](command)
        if self._checked:
            validate(self.state)
            self.fleet.validate()

    def submit(self, job: Job) -> None:
        """A run arrives."""
        if self._split:
            job = staged(job)
        now = self.agenda.now
        if job.revealed:
            agent = AgentRun(job, self)
            self._active[job.id] = _Active(job, now, agent)
            piece = self._specs.agent(job)
            self._register(piece.spec)
            self._tell_run(job, piece, agent=True)
            if job.id in self._active:  # not refused
                agent.begin()
            return
        self._active[job.id] = _Active(job, now)
        piece = self._specs.run(job)
        self._register(piece.spec)
        self._contents[piece.inputs] = _Content(job, piece.steps)
        self._tell_run(job, piece, agent=False)

    def reveal(self, job: Job, number: int, source: str = "") -> None:
        """An agent's next step becomes known; ``source`` computed its prompt."""
        piece = self._specs.step(job, number)
        self._register(piece.spec)
        self._contents[piece.inputs] = _Content(job, piece.steps, source)
        self.tell(
            NodesRevealed(
                job.id,
                number,
                piece.spec.id,
                _inputs(piece),
                piece.signatures,
                piece.collections,
                parents=piece.parents,
                seconds=self._predicted(job, piece),
                kv_tokens=self._held(job, piece),
                seeds=piece.seeds,
                own_collections=piece.own_collections,
            )
        )

    def close(self, job: Job, error: ErrorInfo | None = None) -> None:
        """An agent has seen all its results, or gives up."""
        self.tell(RunClosed(job.id, error))

    def _tell_run(self, job: Job, piece: Piece, *, agent: bool) -> None:
        self.tell(
            RunSubmitted(
                job.id,
                piece.spec.id,
                CLIENT,
                job.tenant,
                _inputs(piece),
                piece.signatures,
                piece.collections,
                agent=agent,
                seconds=self._predicted(job, piece),
                kv_tokens=self._held(job, piece),
                seeds=piece.seeds,
                own_collections=piece.own_collections,
            )
        )

    def _predicted(self, job: Job, piece: Piece) -> tuple[float, ...]:
        if self._forecast is None or self.state.tracker is None:
            return ()
        return self._forecast.seconds(job, piece.steps)

    def _held(self, job: Job, piece: Piece) -> tuple[int, ...]:
        if self._forecast is None or not self._reserves:
            return ()
        return self._forecast.kv_tokens(job, piece.steps)

    def _register(self, spec: WorkflowSpec) -> None:
        if spec.id not in self._registered:
            self._registered.add(spec.id)
            self.tell(SpecRegistered(spec))

    def truth_of(self, item: WorkItem) -> Truth:
        """What executing an item will turn out to be."""
        return self._contents[item.inputs.inline].steps[item.node].truth

    # --- commands -------------------------------------------------------------------
    def _start_batch(self, command: StartBatch) -> None:
        contents, origins = self._contents, self._origins
        works: list[Work] = []
        for item in command.items:
            content = contents[item.inputs.inline]
            step = content.steps[item.node]
            work = Work(item.flight, item.attempt, step.verb, step.truth, content.source)
            if step.verb == "llm.decode" and item.upstream:
                work.source = _said(item.upstream[0][1])
            given = tuple([value.digest for _, value in item.upstream])
            origin = _Origin(item.run_id, content, step, given)
            origins[(item.flight, item.attempt)] = origin
            works.append(work)
        self.fleet.start(command.instance, works)

    def _abort(self, command: AbortItem) -> None:
        self.fleet.abort(command.instance, command.flight, command.attempt)

    def _wake(self, command: WakeAt) -> None:
        self._wake_s = at_s = command.at_s

        def wake() -> None:
            if self._wake_s == at_s:
                self._wake_s = -1.0
                self.tell(TimePassed())

        self.agenda.at(max(at_s, self.agenda.now), wake)

    def _refuse(self, command: RefuseRun) -> None:
        self._end(command.run_id, "refused", ())

    def _finish(self, command: FinishRun) -> None:
        self._end(command.run_id, command.status, command.nodes)

    def _end(self, run_id: str, status: str, nodes: Sequence[Any]) -> None:
        active = self._active.pop(run_id)
        job = active.job
        alone_s = self._standalone.seconds(job) if self._standalone else 0.0
        self.trace.records.append(
            run_record(
                run_id,
                job.kind,
                status,
                active.arrival_s,
                self.agenda.now,
                alone_s,
                nodes,
            )
        )
        if self._progress is not None:
            self._progress(len(self.trace.records))
        self._arrivals.ended()

    def _finish_fragment(self, command: FinishFragment) -> None:
        active = self._active.get(command.run_id)
        if active is not None and active.agent is not None:
            active.agent.ended(command)

    # --- outcomes -------------------------------------------------------------------
    def finished(self, instance: str, work: Work) -> None:
        """See `Outcomes`."""
        key = (work.flight, work.attempt)
        origin, now = self._origins.pop(key), self.agenda.now
        step = origin.step
        if self._forecast is not None:
            self._forecast.observe(origin.content.job, step)
        if self._keep_spans:
            span = Span(instance, origin.run_id, step.id, work.begun_s, now)
            self.trace.spans.append(span)
        # What a prefill gives says where its keys and values are.
        data = instance.encode() if work.verb == "llm.prefill" else b""
        value = Value(origin.digest(), len(data), data)
        self.tell(ItemFinished(*key, instance, value, now - work.begun_s))

    def refused(self, instance: str, work: Work, problem: str) -> None:
        """See `Outcomes`."""
        key = (work.flight, work.attempt)
        del self._origins[key]
        error = ErrorInfo("prompt_too_long", problem, "Use instances with more KV memory.")
        self.tell(ItemFailed(*key, instance, error))

    def aborted(self, instance: str, work: Work) -> None:
        """See `Outcomes`."""
        key = (work.flight, work.attempt)
        del self._origins[key]
        self.tell(ItemAborted(*key, instance))


def _nothing(_: object) -> None:
    """Nobody streams, and nothing is stored."""


def _inputs(piece: Piece) -> Value:
    return Value(b"", len(piece.inputs), piece.inputs)


def _said(value: Value) -> str:
    return (value.inline or b"").decode()
