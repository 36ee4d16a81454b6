"""Clients: submit workflows, get runs. `connecting` makes them."""

from __future__ import annotations

import asyncio
import atexit
import math
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

from herasys_rt.client.agents import AgentLoop
from herasys_rt.client.cache import purged, signature_of
from herasys_rt.client.hosting import HostedAgents
from herasys_rt.client.link import Link
from herasys_rt.client.run import AsyncRun, Run
from herasys_rt.client.window import Window
from herasys_rt.dsl.agent import Agent
from herasys_rt.errors import HerasysError, InputError
from herasys_rt.graph import codec
from herasys_rt.graph.explain import Explanation
from herasys_rt.graph.labels import checked_labels
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.graph.validation import check_inputs
from herasys_rt.ids import new_id

_NAME_LIMIT = 200
_PRIORITY_MAX = 2**31 - 1


class HasSpec(Protocol):
    """Anything that compiles to a spec: a `@workflow`."""

    @property
    def spec(self) -> WorkflowSpec:
        """The compiled workflow."""
        ...


Job = tuple[HasSpec | WorkflowSpec, Mapping[str, Any]]
"""A workflow and the inputs of a run of it."""


class Client:
    """A connection to a runtime. Safe from any thread; close it, or use it in ``with``.

    ``kind`` says what it is connected to: ``daemon``, ``private``, ``cluster``, ``job``;
    ``dsn`` how to reach the runtime's database (empty when that is not known here).
    Agents run in this process, or where ``hosted`` has them executed.
    """

    def __init__(
        self,
        link: Link,
        kind: str,
        release: Callable[[], None],
        dsn: str = "",
        hosted: HostedAgents | None = None,
    ) -> None:
        self._link = link
        self.kind = kind
        self.dsn = dsn
        self._release = release
        self._agents = hosted or AgentLoop(link, link.hear)
        self._closed = False
        _open_clients.add(self)

    def submit(
        self,
        workflow: HasSpec | WorkflowSpec,
        /,
        *,
        _stream: bool = False,
        _run_id: str | None = None,
        _priority: int = 0,
        _deadline_s: float | None = None,
        _labels: Mapping[str, str] | None = None,
        **inputs: Any,
    ) -> Run:
        """Start a run and return its handle at once.

        ``_stream`` makes `Run.stream` yield text as it is produced. ``_priority`` comes
        before the ordering's key, higher first, among the runs of this connection's
        tenant: it takes no turn from another one. ``_deadline_s`` fails the run with
        ``deadline_exceeded`` when it has not ended by then. ``_labels`` are up to 16
        short texts by name, kept with the run and in its report; they decide nothing.
        ``_run_id`` repeats a submission: a run id is executed once, and while its run is
        at work the same handle comes back. Errors: `InputError` before anything runs,
        `UsageError` for an agent that cannot be sent to its frontend,
        `RuntimeStateError`.
        """
        _check_options(_stream, _priority, _deadline_s)
        return self._start(
            workflow,
            inputs,
            _run_id,
            labels=_labels,
            stream=_stream,
            priority=_priority,
            deadline_s=_deadline_s,
        )

    def _start(
        self,
        workflow: HasSpec | WorkflowSpec,
        inputs: Mapping[str, Any],
        run_id: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        stream: bool = False,
        **options: Any,
    ) -> Run:
        spec = _spec_of(workflow)
        checked = check_inputs(spec, inputs)
        words = checked_labels(labels)
        if run_id is not None:
            check_name("run id", run_id)
        agent = _agent_of(workflow) if spec.agent else None
        place = self._agents.place(agent) if agent is not None else ""
        run = Run(run_id or new_id("run"), spec, checked, self._link, words)
        message = self._link.make_submit(
            run.id,
            spec,
            codec.encode(checked),
            stream=stream,
            frontend=place,
            labels=words,
            **options,
        )
        started = self._link.submit(run, spec, message)
        if agent is not None and started is run:
            self._agents.start(run, agent, checked, frontend=place, stream=stream)
        return started

    def map(
        self,
        workflow: HasSpec | WorkflowSpec,
        inputs: Iterable[Mapping[str, Any]],
        *,
        concurrency: int = 8,
        labels: Mapping[str, str] | None = None,
    ) -> Iterator[Run]:
        """Run a workflow over many inputs, at most ``concurrency`` at once.

        Yields ended runs in the order of their inputs; a run that failed raises from its
        own `Run.result`. ``inputs`` is read as far as it is worked on. Leaving the
        iteration early cancels what still runs. Inputs that do not fit yield a run that
        failed with `InputError`. Every run gets the ``labels``. Errors: `InputError` for
        a ``concurrency`` below 1 and labels that are none.
        """
        jobs = ((workflow, one) for one in inputs)
        return self.map_many(jobs, concurrency=concurrency, labels=labels)

    def map_many(
        self,
        jobs: Iterable[Job],
        *,
        concurrency: int = 8,
        labels: Mapping[str, str] | None = None,
    ) -> Iterator[Run]:
        """As `map`, over (workflow, inputs) pairs."""
        return self._window(jobs, concurrency, labels).results()

    def _window(
        self, jobs: Iterable[Job], concurrency: int, labels: Mapping[str, str] | None
    ) -> Window[Job]:
        words = checked_labels(labels)

        def start(job: Job) -> Run:
            workflow, inputs = job
            try:
                return self._start(workflow, _named(inputs), labels=words)
            except HerasysError as e:
                return self.failed_run(workflow, e, words)

        return Window(start, jobs, concurrency)

    def failed_run(
        self,
        workflow: HasSpec | WorkflowSpec,
        error: HerasysError,
        labels: dict[str, str] | None = None,
    ) -> Run:
        """A run that has already ended with ``error``; it never leaves this process."""
        run = Run(new_id("run"), _spec_of(workflow), {}, self._link, labels)
        run.fail(error.info())
        return run

    def status(self) -> dict[str, Any]:
        """How the runtime is: pools, counters, uptime. Errors: `RuntimeStateError`."""
        return self._link.status()

    def explain(self, run_id: str, node: str) -> Explanation:
        """How a node of one of this tenant's latest runs was signed.

        ``node`` is its id as in the run's report. Two are held against each other by
        `herasys_rt.graph.explain.compare`. Errors: `InputError` (``unknown_run``,
        ``forgotten_run``, ``unknown_node``), `RuntimeStateError`.
        """
        return self._link.explain(run_id, node)

    def cache_stats(self) -> dict[str, Any]:
        """The reuse cache and what fusion saved, as `core.reuse.report` has it; per
        operator only what this tenant's runs did. Errors: `RuntimeStateError`."""
        return self._link.status()["cache"]

    def purge_cache(
        self, *, collection: str | None = None, signature: str | None = None
    ) -> dict[str, Any]:
        """Forget completed results of this tenant's runs, so that they are computed again:
        all, those that depend on ``collection``, or that of one ``signature`` (hex).

        Gives ``entries`` and ``bytes`` that the cache lost, and ``stored``, how many the
        store did: None when it could not be asked yet and follows. Runs at work go on with
        what they have. Errors: `InputError` for a signature that is none,
        `RuntimeStateError`.
        """
        reply = self._link.purge(collection=collection, signature=signature_of(signature))
        return purged(reply)

    def close(self) -> None:
        """Leave; runs that have not ended are cancelled and a private runtime stops.
        Idempotent."""
        if not self._closed:
            self._closed = True
            _open_clients.discard(self)
            self._link.close()
            self._agents.close()
            self._release()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _spec_of(workflow: HasSpec | WorkflowSpec) -> WorkflowSpec:
    spec = getattr(workflow, "spec", workflow)
    if isinstance(spec, WorkflowSpec):
        return spec
    raise InputError(
        f"a {type(workflow).__name__} is no workflow",
        hint="Give a function decorated with @workflow, or a WorkflowSpec.",
        code="not_a_workflow",
    )


def _agent_of(workflow: object) -> Agent[...]:
    if isinstance(workflow, Agent):
        return cast("Agent[...]", workflow)
    raise InputError(
        "an agent is submitted by itself, not by its spec",
        hint="Give the function decorated with @agent.",
        code="not_a_workflow",
    )


def check_name(what: str, name: object) -> None:
    """Names travel in messages and signatures: short texts. Errors: `InputError`."""
    fits = isinstance(name, str) and 0 < len(name) <= _NAME_LIMIT
    if not fits or codec.fault_of(name):
        raise InputError(
            f"a {what} is a text of 1 to {_NAME_LIMIT} characters, not {name!r:.60}",
            hint="Give a short name, or leave it out.",
            code=f"invalid_{what.replace(' ', '_')}",
        )


def _check_options(stream: object, priority: object, deadline_s: object) -> None:
    """A message with fields of other types is dropped on its way. Errors: `InputError`."""
    if type(stream) is not bool:
        raise InputError(
            f"_stream is True or False, not {stream!r:.60}", hint="Leave it out for False."
        )
    if type(priority) is not int or not -_PRIORITY_MAX <= priority <= _PRIORITY_MAX:
        raise InputError(
            f"a priority is a whole number of 32 bits, not {priority!r:.60}",
            hint="Leave it out for 0; higher comes first.",
        )
    if deadline_s is None:
        return
    number = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
    if not number or not 0 < cast("float", deadline_s) < math.inf:
        raise InputError(
            f"a deadline is a number of seconds above 0, not {deadline_s!r:.60}",
            hint="Leave it out for none.",
        )


def _named(inputs: object) -> Mapping[str, Any]:
    if isinstance(inputs, Mapping):
        return cast("Mapping[str, Any]", inputs)
    raise InputError(
        f"the inputs of a run are a {type(inputs).__name__}, not names with values",
        hint='Give one mapping per run, such as {"question": "..."}.',
    )


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_open_clients() -> None:
    for client in list(_open_clients):
        client.close()


class AsyncClient:
    """A `Client` for asyncio: the same names, to be awaited."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def kind(self) -> str:
        """See `Client`."""
        return self._client.kind

    async def submit(
        self,
        workflow: HasSpec | WorkflowSpec,
        /,
        *,
        _stream: bool = False,
        _run_id: str | None = None,
        _priority: int = 0,
        _deadline_s: float | None = None,
        _labels: Mapping[str, str] | None = None,
        **inputs: Any,
    ) -> AsyncRun:
        """See `Client.submit`."""
        return AsyncRun(
            self._client.submit(
                workflow,
                _stream=_stream,
                _run_id=_run_id,
                _priority=_priority,
                _deadline_s=_deadline_s,
                _labels=_labels,
                **inputs,
            )
        )

    async def map(
        self,
        workflow: HasSpec | WorkflowSpec,
        inputs: Iterable[Mapping[str, Any]],
        *,
        concurrency: int = 8,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AsyncRun]:
        """See `Client.map`."""
        jobs = ((workflow, one) for one in inputs)
        window = self._client._window(jobs, concurrency, labels)
        runs = window.results()
        asked: asyncio.Future[Run | None] | None = None
        try:
            while True:
                asked = asyncio.ensure_future(asyncio.to_thread(next, runs, None))
                run = await asyncio.shield(asked)  # The thread goes on when we must not.
                if run is None:
                    return
                yield AsyncRun(run)
        finally:
            window.abandon()
            if asked is not None:
                await asyncio.wait([asked])
            await asyncio.to_thread(runs.close)

    async def status(self) -> dict[str, Any]:
        """See `Client.status`."""
        return await asyncio.to_thread(self._client.status)

    async def explain(self, run_id: str, node: str) -> Explanation:
        """See `Client.explain`."""
        return await asyncio.to_thread(self._client.explain, run_id, node)

    async def cache_stats(self) -> dict[str, Any]:
        """See `Client.cache_stats`."""
        return await asyncio.to_thread(self._client.cache_stats)

    async def purge_cache(
        self, *, collection: str | None = None, signature: str | None = None
    ) -> dict[str, Any]:
        """See `Client.purge_cache`."""
        return await asyncio.to_thread(
            self._client.purge_cache, collection=collection, signature=signature
        )

    async def close(self) -> None:
        """See `Client.close`."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
