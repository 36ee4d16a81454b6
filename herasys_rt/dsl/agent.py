"""`@agent`: a coroutine that reveals its graph while it runs (HexAGenT's online-revealed
DAG).

    @agent
    async def research(run, question: str):
        plan = await run.call(generate("List two search queries for: {q}", q=question))
        pages = await run.gather(*[web_search(line) for line in plan.lines()[:2]])
        return await run.call(generate("{pages}\\n{q}", pages=pages, q=question))

Calling an operator inside an agent declares a step; `AgentRun.call` reveals it, with
everything it was made from that is not revealed yet, and gives its value. Edges are
recorded from the values passed (see `dsl.tracked`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, overload

import msgspec

from herasys_rt.dsl.annotations import declared_inputs
from herasys_rt.dsl.symbols import Node, Symbol, ref_of, trace_of
from herasys_rt.dsl.trace import Trace, entered
from herasys_rt.dsl.tracked import NOWHERE, Origin, origin_of, plain, track
from herasys_rt.errors import Fault, GraphError, RunError, UsageError
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    Guard,
    InputRef,
    InputSpec,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    Region,
    WorkflowSpec,
    leaves,
)
from herasys_rt.graph.types import PortType
from herasys_rt.graph.validation import check_inputs, validate_spec

P = ParamSpec("P")

DEFAULT_MAX_CALLS = 200
"""Calls after which an agent that does not end by itself is ended."""


class AgentLimitError(RunError):
    """An agent made more calls, or more steps of a loop, than it may."""

    code = "agent_limit"


class Revealed(NamedTuple):
    """A fragment that succeeded: its output and the nodes it came from."""

    value: Any
    origin: Origin


class Revealer(Protocol):
    """What executes the fragments of one agent's run."""

    async def reveal(
        self,
        spec: WorkflowSpec,
        inputs: dict[str, Any],
        parents: Origin,
        streamed: str | None = None,
    ) -> Revealed:
        """Execute a fragment. Cancelling the await cancels the fragment. The text of
        node ``streamed``, its output, becomes a part of what the run streams. Errors:
        what its node failed with."""
        ...


class Agent(Generic[P]):
    """A declared agent: ``spec`` holds its inputs and no nodes; submit it by a client.

    Called inside another agent it becomes a step of that one: ``await
    run.call(other(question=...))`` runs it in the same run.
    """

    def __init__(
        self,
        function: Callable[Concatenate[AgentRun, P], Coroutine[Any, Any, Any]],
        spec: WorkflowSpec,
        max_calls: int,
    ) -> None:
        self.function = function
        self.spec = spec
        self.name = spec.name
        self.max_calls = max_calls
        self.__name__ = spec.name
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = spec.doc

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> SubAgent:
        """A step that runs this agent inside the one that calls it.

        Errors: `UsageError` outside of an agent, `InputError` for inputs that do not fit.
        """
        if _running.get() is None:
            raise UsageError(
                f"agent {self.name!r} was called outside of an agent",
                hint="Submit it: client.submit(agent, ...).",
            )
        names = [declared.name for declared in self.spec.inputs]
        if len(args) > len(names):
            raise UsageError(
                f"agent {self.name!r} takes {len(names)} inputs, {len(args)} were given",
                hint=f"Its inputs: {', '.join(names) or 'none'}.",
            )
        given = dict(zip(names, args, strict=False)) | kwargs
        check_inputs(self.spec, {key: plain(value) for key, value in given.items()})
        return SubAgent(self, given)

    async def execute(
        self, revealer: Revealer, inputs: dict[str, Any]
    ) -> tuple[Any, Origin]:
        """Run the coroutine over ``revealer``; gives its result as plain values, and the
        nodes that it came from."""
        result = await AgentRun(self, revealer).within(self, inputs)
        return plain(result), origin_of(result)


class SubAgent(NamedTuple):
    """An agent to run as a step of another."""

    agent: Agent[...]
    inputs: dict[str, Any]


Step = Node | SubAgent | Awaitable[Any]
"""What `AgentRun.call` takes: an operator's or a workflow's node, a sub-agent, or any
awaitable (an ordinary asynchronous function, which is not recorded)."""

_running: ContextVar[AgentRun | None] = ContextVar("herasys_agent", default=None)
_awaited: ContextVar[Origin] = ContextVar("herasys_awaited", default=NOWHERE)


class AgentRun:
    """The first argument of an agent: the run it reveals steps to.

    ``state`` is a dict of the agent's own; sub-agents share it.
    """

    def __init__(self, agent: Agent[...], revealer: Revealer) -> None:
        self.state: dict[str, Any] = {}
        self._agent = agent
        self._revealer = revealer
        self._calls = 0

    async def call(self, step: Step, *, stream: bool = False) -> Any:
        """Reveal a step and wait for its value.

        The value is tracked: passing it, or pieces of it, on records an edge. With
        ``stream`` the step's text is what the run's ``stream()`` yields, as it is
        produced. Texts of several such calls follow one another in the order of the
        calls, whole, also when the calls overlap; of a call that fails what was yielded
        stays. Streaming changes neither the value nor anything that is decided.

        Errors: what the step failed with; `AgentLimitError`; `GraphError` for a step
        that does not fit together; `UsageError` for ``stream`` with a step that does not
        give one text.
        """
        if isinstance(step, SubAgent) and not stream:
            return await self.within(step.agent, step.inputs)
        if not isinstance(step, Node):
            if stream:
                raise _not_streamable(step)
            if not inspect.isawaitable(step):
                raise UsageError(
                    f"run.call takes a step, not a {type(step).__name__}",
                    hint="Pass what calling an operator, a tool, a workflow or an agent "
                    "gives.",
                )
            return await step
        self._count()
        spec, inputs, origin = _fragment_of(step)
        streamed = _text_node(spec) if stream else None
        parents = origin or _awaited.get()
        revealed = await self._revealer.reveal(spec, inputs, parents, streamed)
        _awaited.set(revealed.origin)
        return track(revealed.value, revealed.origin)

    async def gather(self, *steps: Step) -> list[Any]:
        """Reveal steps at once; their values in order.

        The first that fails cancels the others and is raised.
        """
        before = _awaited.get()
        tasks = [asyncio.ensure_future(self._branch(step)) for step in steps]
        try:
            pairs = await asyncio.gather(*tasks)
        except BaseException:
            await _ended(tasks)
            raise
        origins = frozenset[tuple[int, str]]().union(*(origin for _, origin in pairs))
        _awaited.set(origins or before)
        return track([value for value, _ in pairs], origins)

    async def race(self, *steps: Step) -> Any:
        """Reveal steps at once; the value of the first that succeeds, the others are
        cancelled. Errors: what the last one failed with when all fail; `UsageError`
        without steps."""
        if not steps:
            raise UsageError("run.race needs at least one step", hint="Pass some steps.")
        tasks = {asyncio.ensure_future(self._branch(step)) for step in steps}
        try:
            while True:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                good = [task for task in done if task.exception() is None]
                if good:
                    value, origin = good[0].result()
                    _awaited.set(origin)
                    return value
                if not tasks:
                    raise next(iter(done)).exception() or RunError("nothing was run")
        finally:
            await _ended(list(tasks))

    async def steps(self, limit: int) -> AsyncIterator[int]:
        """Count the rounds of a loop: ``async for round in run.steps(5)``.

        Errors: `AgentLimitError` when the loop is not left within ``limit`` rounds.
        """
        for number in range(limit):
            yield number
        raise AgentLimitError(
            f"agent {self._agent.name!r} did not leave its loop within {limit} rounds",
            hint="Break when the work is done, or allow more rounds.",
        )

    async def within(self, agent: Agent[...], inputs: dict[str, Any]) -> Any:
        """Run an agent's coroutine as a part of this run."""
        checked = check_inputs(agent.spec, {k: plain(v) for k, v in inputs.items()})
        arguments = {name: inputs.get(name, value) for name, value in checked.items()}
        token = _running.set(self)
        try:
            with entered(_AgentTrace(agent.name, agent.spec.share)):
                return await agent.function(self, **arguments)
        finally:
            _running.reset(token)

    async def _branch(self, step: Step) -> tuple[Any, Origin]:
        """A step in a task of its own, with the origin of its value."""
        value = await self.call(step)
        return value, origin_of(value) or _awaited.get()

    def _count(self) -> None:
        self._calls += 1
        if self._calls > self._agent.max_calls:
            raise AgentLimitError(
                f"agent {self._agent.name!r} made more than {self._agent.max_calls} calls",
                hint="Bound its loops, or allow more: @agent(max_calls=...).",
            )


async def _ended(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _AgentTrace(Trace):
    """Gathers the steps that an agent declares, and where their literals came from."""

    unique_labels = False

    def __init__(self, name: str, share: str) -> None:
        super().__init__(name, share)
        self.origins: dict[str, Origin] = {}

    def lower(self, value: object, port: Port, where: str) -> Arg | None:
        origin = origin_of(value)
        if origin:
            self.origins[where] = origin
        return super().lower(
            value if isinstance(value, Symbol) else plain(value), port, where
        )

    def take_faults(self) -> list[Fault]:
        """The faults recorded so far; the next step starts without."""
        faults, self.faults = self.faults, []
        return faults

    def closure(self, step: Node) -> list[NodeSpec]:
        """The node and everything it is made from, in the order of declaration."""
        parts = leaves(ref_of(step))
        wanted = {part.node for part in parts if isinstance(part, NodeRef)}
        for node in reversed(list(self._nodes.values())):
            if node.id in wanted:
                wanted.update(node.parents)
                region = self.region_of(node)
                if region is not None and isinstance(region.items, NodeRef):
                    wanted.add(region.items.node)
        return [node for node in self._nodes.values() if node.id in wanted]

    def origin_at(self, nodes: list[NodeSpec]) -> Origin:
        """Where the literals of these nodes came from."""
        heads = tuple(f"{node.id}." for node in nodes)
        found = [o for where, o in self.origins.items() if where.startswith(heads)]
        return frozenset[tuple[int, str]]().union(*found)


def _fragment_of(step: Node) -> tuple[WorkflowSpec, dict[str, Any], Origin]:
    """The spec that reveals a step, its inputs, and the origins of its values.

    Values are lifted out of the nodes into inputs, and ids count from 1 in each fragment:
    the same step in the source is the same spec however often it is taken.
    Errors: `GraphError` with all faults.
    """
    trace = trace_of(step)
    if not isinstance(trace, _AgentTrace):
        raise UsageError(
            f"{step!r} belongs to a workflow, not to this agent",
            hint="Call the operator inside the agent.",
        )
    nodes = trace.closure(step)
    faults = trace.take_faults()
    if faults:
        raise GraphError.of(trace.name, faults)
    renamed = _renamed(nodes)
    lift = _Lift(renamed)
    lowered = tuple(
        msgspec.structs.replace(
            node,
            id=renamed[node.id],
            args={name: lift.arg(arg, node, name) for name, arg in node.args.items()},
            guards=tuple(
                Guard(lift.condition(guard.condition), guard.holds) for guard in node.guards
            ),
        )
        for node in nodes
    )
    output = lift.arg(trace.output_of(step), None, "output")
    regions = tuple(lift.region(region) for region in trace.regions_of(nodes))
    spec = WorkflowSpec(
        name=trace.name,
        inputs=tuple(lift.declared),  # Complete only now: lifting adds to them.
        nodes=lowered,
        outputs={"output": output},
        share=trace.share,
        regions=regions,
    )
    faults = validate_spec(spec)
    if faults:
        raise GraphError.of(trace.name, faults)
    return spec, lift.values, trace.origin_at(nodes)


def _text_node(spec: WorkflowSpec) -> str:
    """The node whose text a fragment gives. Errors: `UsageError` when it gives no text
    or not that of one node."""
    output = spec.outputs["output"]
    if isinstance(output, NodeRef):
        node = spec.nodes[spec.index[output.node]]
        if node.output is PortType.TEXT and not node.region:
            return node.id
    raise _not_streamable(spec)


def _not_streamable(step: object) -> UsageError:
    if isinstance(step, SubAgent):
        return UsageError(
            f"agent {step.agent.name!r} cannot be streamed as a step",
            hint="Give stream=True to the calls inside it.",
        )
    return UsageError(
        "run.call(..., stream=True) takes a step that gives one text",
        hint="Stream a generate(...), or leave stream out.",
    )


def _renamed(nodes: list[NodeSpec]) -> dict[str, str]:
    """Ids within a fragment: the label, else the operator's name with a number."""
    taken: dict[str, int] = {}
    renamed: dict[str, str] = {}
    for node in nodes:
        name = node.label or node.operator.rpartition("@")[0] or node.id
        taken[name] = taken.get(name, 0) + 1
        renamed[node.id] = name if taken[name] == 1 else f"{name}_{taken[name]}"
    return renamed


class _Lift:
    """Moves values out of arguments into the fragment's inputs."""

    def __init__(self, renamed: dict[str, str]) -> None:
        self._renamed = renamed
        self.declared: list[InputSpec] = []
        self.values: dict[str, Any] = {}

    def arg(self, arg: Arg, node: NodeSpec | None, name: str) -> Arg:
        """The argument with its values lifted and its nodes renamed."""
        match arg:
            case Lit(value):
                return self._lifted(value, node, name)
            case NodeRef(source):
                return NodeRef(self._renamed[source])
            case ListRef(items):
                return ListRef(tuple(self.arg(item, None, name) for item in items))
            case ChoiceRef(condition, then, otherwise):
                return ChoiceRef(
                    self.condition(condition),
                    self.arg(then, None, name),
                    self.arg(otherwise, None, name),
                )
            case Expr(function, args):
                return Expr(function, {k: self.arg(v, None, k) for k, v in args.items()})
            case _:
                return arg

    def condition(
        self, condition: InputRef | NodeRef | ItemRef
    ) -> InputRef | NodeRef | ItemRef:
        """A condition with its node renamed."""
        if isinstance(condition, NodeRef):
            return NodeRef(self._renamed[condition.node])
        return condition

    def region(self, region: Region) -> Region:
        """A region with its list lifted or its node renamed."""
        items = self.arg(region.items, None, "items")
        assert isinstance(items, InputRef | NodeRef | Lit)
        return msgspec.structs.replace(region, items=items)

    def _lifted(self, value: Any, node: NodeSpec | None, name: str) -> Lit | InputRef:
        if not isinstance(value, str | list | dict | bytes) and not hasattr(value, "shape"):
            return Lit(value)
        port = next((p for p in node.ports if p.name == name), None) if node else None
        if port is not None and not port.required and value == port.default:
            return Lit(value)
        fresh = f"v{len(self.declared)}"
        kind = port.type if port is not None else PortType.ANY
        self.declared.append(InputSpec(fresh, kind))
        self.values[fresh] = value
        return InputRef(fresh)


@overload
def agent(
    function: Callable[Concatenate[AgentRun, P], Coroutine[Any, Any, Any]], /
) -> Agent[P]: ...
@overload
def agent(
    *, name: str | None = None, share: str = "tenant", max_calls: int = DEFAULT_MAX_CALLS
) -> Callable[[Callable[Concatenate[AgentRun, P], Coroutine[Any, Any, Any]]], Agent[P]]: ...
def agent(
    function: Callable[Concatenate[AgentRun, P], Coroutine[Any, Any, Any]] | None = None,
    /,
    *,
    name: str | None = None,
    share: str = "tenant",
    max_calls: int = DEFAULT_MAX_CALLS,
) -> Any:
    """Declare an agent by an asynchronous function whose first argument is the run.

    ``max_calls`` bounds what one run may reveal. ``share="public"`` lets equal work be
    shared across tenants. Errors: `GraphError` for a function that is not asynchronous or
    inputs that no type is known for; `UsageError` for a ``max_calls`` below 1.
    """

    def declare(
        function: Callable[Concatenate[AgentRun, P], Coroutine[Any, Any, Any]],
    ) -> Agent[P]:
        called = name or function.__name__
        if max_calls < 1:
            raise UsageError(f"max_calls is {max_calls}", hint="Allow at least 1 call.")
        if not inspect.iscoroutinefunction(function):
            problem = "is not asynchronous"
            raise GraphError.of(called, [Fault(called, problem, "write async def")])
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            problem = "takes no run"
            raise GraphError.of(called, [Fault(called, problem, f"def {called}(run, ...)")])
        inputs, faults = declared_inputs(function)
        inputs = [declared for declared in inputs if declared.name != parameters[0].name]
        first = f"input {parameters[0].name}"
        faults = [fault for fault in faults if fault.where != first]
        if faults:
            raise GraphError.of(called, faults)
        spec = WorkflowSpec(
            name=called,
            inputs=tuple(inputs),
            nodes=(),
            outputs={},
            share=share,
            doc=inspect.getdoc(function) or "",
            agent=True,
        )
        return Agent(function, spec, max_calls)

    return declare if function is None else declare(function)
