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
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextvars import ContextVar
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, overload

from herasys_rt.dsl.annotations import declared_inputs
from herasys_rt.dsl.building import holds_symbol
from herasys_rt.dsl.fragments import AgentTrace, Revealed, step_trace, text_node, together
from herasys_rt.dsl.symbols import Node
from herasys_rt.dsl.trace import entered
from herasys_rt.dsl.tracked import NOWHERE, Origin, origin_of, plain, track
from herasys_rt.errors import Fault, GraphError, RunError, UsageError
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.graph.validation import check_inputs

P = ParamSpec("P")

DEFAULT_MAX_CALLS = 200
"""Calls after which an agent that does not end by itself is ended."""


class AgentLimitError(RunError):
    """An agent made more calls, or more steps of a loop, than it may."""

    code = "agent_limit"


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

        Errors: `UsageError` outside of an agent and for a step in place of its value,
        `InputError` for inputs that do not fit.
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
        for name, value in given.items():
            if holds_symbol(value):
                raise UsageError(
                    f"agent {self.name!r} takes values, and {name!r} is a step",
                    hint="Take the step first: value = await run.call(step).",
                )
        check_inputs(self.spec, {key: plain(value) for key, value in given.items()})
        return SubAgent(self, given)

    async def execute(
        self, revealer: Revealer, inputs: dict[str, Any]
    ) -> tuple[Any, Origin]:
        """Run the coroutine over ``revealer``; gives its result as plain values, and the
        nodes that it came from. Errors: `UsageError` when it gives a step instead of its
        value; whatever the coroutine raises."""
        result = await AgentRun(self, revealer).within(self, inputs)
        if holds_symbol(result):
            raise UsageError(
                f"agent {self.name!r} gives a step that was never taken",
                hint="Return its value: return await run.call(step).",
            )
        return plain(result), origin_of(result)


class SubAgent(NamedTuple):
    """An agent to run as a step of another."""

    agent: Agent[...]
    inputs: dict[str, Any]


Step = Node | Mapping[str, Any] | SubAgent | Awaitable[Any]
"""What `AgentRun.call` takes: an operator's or a workflow's node, the dict of nodes that a
workflow of several outputs gives, a sub-agent, or any awaitable (an ordinary asynchronous
function, which is not recorded)."""

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

        The value is tracked: passing it, or pieces of it, on records an edge; passing on
        the step itself, once it was taken, does the same. An expression (`operators.prompt`
        ...) of values that are there is computed at once and is no node. With ``stream``
        the step's text is what the run's ``stream()`` yields, as it is
        produced. Texts of several such calls follow one another in the order of the
        calls, whole, also when the calls overlap; of a call that fails what was yielded
        stays. Streaming changes neither the value nor anything that is decided.

        Errors: what the step failed with; `AgentLimitError`; `GraphError` for a step
        that does not fit together; `UsageError` for ``stream`` with a step that does not
        give one text, and for an effect that an earlier step has made already.
        """
        if isinstance(step, SubAgent) and not stream:
            return await self.within(step.agent, step.inputs)
        if isinstance(step, Mapping):
            step = together(step)
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
        trace = step_trace(step)
        spec, inputs, origin = trace.fragment(step)
        streamed = text_node(spec) if stream else None
        if stream and streamed is None:
            raise _not_streamable(step)
        if not spec.nodes:
            value = resolve(spec.outputs, inputs, {})["output"]
            return track(value, origin or _awaited.get())
        parents = origin or _awaited.get()
        revealed = await self._revealer.reveal(spec, inputs, parents, streamed)
        _awaited.set(revealed.origin)
        trace.keep(step, revealed)
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
        cancelled. Of those that succeed at the same time the first given counts.

        Errors: what the last one failed with when all fail; `UsageError` without steps.
        """
        if not steps:
            raise UsageError("run.race needs at least one step", hint="Pass some steps.")
        tasks = [asyncio.ensure_future(self._branch(step)) for step in steps]
        left = tasks
        try:
            while True:
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                done = [task for task in left if task.done()]
                for task in done:
                    if task.exception() is None:
                        value, origin = task.result()
                        _awaited.set(origin)
                        return value
                left = [task for task in left if task not in done]
                if not left:
                    raise done[-1].exception() or RunError("nothing was run")
        finally:
            await _ended(tasks)

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
            with entered(AgentTrace(agent.name, agent.spec.share)):
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
