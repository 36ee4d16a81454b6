"""Where agents run: their coroutines on one event loop of this process's own.

Each await of `AgentRun.call` is a fragment: sent through the link, answered by the
scheduler with its outcome. The loop runs in a thread, so that agents work alike under
blocking and asynchronous callers, and in a client as in a frontend.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Any

from herasys_rt.client.run import Run
from herasys_rt.core.commands import FinishFragment
from herasys_rt.dsl.agent import Agent, Revealed
from herasys_rt.dsl.tracked import Origin
from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    InternalError,
    RunCancelledError,
    error_from_info,
)
from herasys_rt.graph import codec
from herasys_rt.graph.checks import finite_fault
from herasys_rt.graph.spec import WorkflowSpec, node_refs
from herasys_rt.messages import AgentEnded, CallStreamed, CallStreams, FromAgent

if TYPE_CHECKING:
    from herasys_rt.client.link import Link

log = logging.getLogger(__name__)

_END_S = 5.0
"""How long coroutines that were cancelled may take to end before they are left behind."""


class AgentLoop:
    """The event loop that agents run on; started with the first agent.

    ``tell`` takes what agents say of themselves, on the loop's thread.
    """

    def __init__(self, link: Link, tell: Callable[[FromAgent], None]) -> None:
        self._link = link
        self._tell = tell
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def place(self, agent: Agent[...]) -> str:
        """The frontend that will execute the agent: none, it runs here."""
        return ""

    def start(
        self,
        run: Run,
        agent: Agent[...],
        inputs: dict[str, Any],
        *,
        frontend: str = "",
        stream: bool = False,
    ) -> None:
        """Run an agent for a run that is being submitted; the run's end ends it."""
        loop = self._running_loop()
        session = _Session(run, self._link, loop, self._tell, stream)
        run.on_fragment = session.answer
        future = asyncio.run_coroutine_threadsafe(session.drive(agent, inputs), loop)

        def end(_: Run) -> None:
            future.cancel()

        run.add_done_callback(end)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="agents", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=_END_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def close(self) -> None:
        """Cancel what still runs and stop. Idempotent.

        A coroutine that does not end by then, as it holds up the loop or takes no cancel,
        is left behind.
        """
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(2 * _END_S)
            if self._thread.is_alive():
                log.warning("an agent does not end and was left behind: is it blocking?")


class _Session:
    """The fragments of one agent's run; is the agent's `Revealer`."""

    def __init__(
        self,
        run: Run,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[FromAgent], None],
        stream: bool,
    ) -> None:
        self._run = run
        self._link = link
        self._loop = loop
        self._tell = tell
        self._stream = stream
        self._next = 0
        self._open: dict[int, asyncio.Future[FinishFragment]] = {}
        self._ending = False

    async def drive(self, agent: Agent[...], inputs: dict[str, Any]) -> None:
        """Execute the agent and tell how it ended."""
        run_id = self._run.id
        try:
            output, origin = await agent.execute(self, inputs)
            ended = AgentEnded(run_id, _encoded(agent.name, output), tuple(sorted(origin)))
        except asyncio.CancelledError:
            error = ErrorInfo("cancelled", f"agent {agent.name!r} was cancelled")
            ended = AgentEnded(run_id, error=error)
        except HerasysError as e:
            ended = AgentEnded(run_id, error=e.info())
        except Exception as e:
            ended = AgentEnded(run_id, error=_user_error(agent.name, e))
        self._tell(ended)

    async def reveal(
        self,
        spec: WorkflowSpec,
        inputs: dict[str, Any],
        parents: Origin,
        streamed: str | None = None,
    ) -> Revealed:
        """See `dsl.agent.Revealer.reveal`."""
        # Nobody would answer what a coroutine does after its run.
        if self._ending or self._run.done():
            raise RunCancelledError(
                f"run {self._run.id} has ended and takes no more steps",
                hint="Clean up after a run without steps.",
            )
        number, self._next = self._next, self._next + 1
        encoded = codec.encode(inputs)
        if streamed is None or not self._stream:
            return await self._execute(number, spec, inputs, encoded, parents)
        self._tell(CallStreams(self._run.id, number, spec.index[streamed]))
        text: str | None = None
        try:
            revealed = await self._execute(
                number, spec, inputs, encoded, parents, stream=True
            )
            text = revealed.value
            return revealed
        finally:
            self._tell(CallStreamed(self._run.id, number, text))

    async def _execute(
        self,
        number: int,
        spec: WorkflowSpec,
        inputs: dict[str, Any],
        encoded: bytes,
        parents: Origin,
        *,
        stream: bool = False,
    ) -> Revealed:
        answer: asyncio.Future[FinishFragment] = self._loop.create_future()
        self._open[number] = answer
        self._link.reveal(self._run, number, spec, encoded, sorted(parents), stream=stream)
        try:
            message = await answer
        except asyncio.CancelledError:
            self._link.abandon(self._run, number)
            raise
        finally:
            del self._open[number]
        return _revealed(spec, message, inputs)

    def answer(self, message: FinishFragment) -> None:
        """A fragment ended; called on the link's thread."""
        self._loop.call_soon_threadsafe(self._settle, message)

    def _settle(self, message: FinishFragment) -> None:
        found = self._open.get(message.fragment)
        if found is not None and not found.done():
            # Not abandoned here: the run is ending, and its own end is still on its way.
            self._ending = self._ending or message.status == "cancelled"
            found.set_result(message)


def _revealed(
    spec: WorkflowSpec, message: FinishFragment, inputs: dict[str, Any]
) -> Revealed:
    """A fragment's value and origin. Errors: what it failed with."""
    from herasys_rt.client.report import output_of

    if message.status == "cancelled":
        reason = message.error.message if message.error else "the step was cancelled"
        raise RunCancelledError(reason)
    if message.error is not None:
        where = f"step {message.failed_node!r}: " if message.failed_node else ""
        info = message.error
        raise error_from_info(
            ErrorInfo(info.code, where + info.message, info.hint, info.retryable)
        )
    output = output_of(spec, inputs, message)
    if "output" not in output:
        raise InternalError(f"fragment {message.fragment} gave no output")
    origin = frozenset((message.fragment, ref.node) for ref in node_refs(spec.outputs))
    return Revealed(output["output"], origin)


def _encoded(agent: str, output: Any) -> bytes:
    """The result as it travels. Errors: `CodecError` naming the agent, also for numbers
    that are not finite, which no JSON has."""
    fault = codec.fault_of(output, "it") or finite_fault(output, "it")
    if fault:
        raise codec.CodecError(
            f"the result of agent {agent!r} cannot be given: {fault}",
            hint="Give None, bool, int, float, str, list, dict or ndarray.",
        )
    return codec.encode(output)


def _user_error(agent: str, error: Exception) -> ErrorInfo:
    """An exception of the agent's own code: its type, message and place."""
    frames = [(_file_of(frame), line) for frame, line in walk_tb(error.__traceback__)]
    ours = [(file, line) for file, line in frames if "herasys_rt" not in file] or frames
    place = " at {}:{}".format(*ours[-1]) if ours else ""
    return ErrorInfo(
        "agent_failed",
        f"agent {agent!r} raised {type(error).__name__}: {error}{place}",
        "Mend the agent's code, or catch the error in it.",
    )


def _file_of(frame: FrameType) -> str:
    """Code that travelled has lost the name of its file; its module still knows it."""
    file = frame.f_code.co_filename
    return str(frame.f_globals.get("__file__") or file) if file.startswith("<") else file
