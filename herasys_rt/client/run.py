"""The handle of one run, in its blocking and its asynchronous form."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from herasys_rt.client.parts import Parts
from herasys_rt.client.report import RunReport
from herasys_rt.core.commands import FinishFragment, FinishRun
from herasys_rt.dsl.tracked import NOWHERE, Origin
from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    InputError,
    ResultTimeoutError,
    RunCancelledError,
    RunError,
    error_from_info,
)
from herasys_rt.graph.spec import NodeRef, WorkflowSpec
from herasys_rt.messages import Piece

if TYPE_CHECKING:
    from herasys_rt.client.link import Link

log = logging.getLogger(__name__)

DoneCallback = Callable[["Run"], None]


class Run:
    """One execution of a workflow. Made by `Client.submit`; safe from any thread."""

    def __init__(
        self,
        run_id: str,
        spec: WorkflowSpec,
        inputs: dict[str, Any],
        link: Link,
        labels: dict[str, str] | None = None,
    ) -> None:
        self.id = run_id
        self.labels = labels or {}
        self._spec = spec
        self._inputs = inputs
        self._link = link
        self._submitted_s = time.monotonic()
        self._changed = threading.Condition()
        self._callbacks: list[DoneCallback] = []
        self._accepted = False
        self._when_accepted: DoneCallback | None = None
        self._watchers: list[Callable[[], object]] = []
        self._report: RunReport | None = None
        self.on_fragment: Callable[[FinishFragment], None] | None = None
        """Of an agent's run: where its fragments' outcomes go."""
        self.agent_output: tuple[Any, Origin] = (None, NOWHERE)
        """Of an agent's run: its result and the nodes it came from."""
        self._text: list[str] = []
        self._parts = Parts()
        if not spec.agent:
            self._parts.open(0, _streamed_node(spec))

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self._spec.name!r}: {self.status}>"

    # --- what the user asks ---------------------------------------------------------
    @property
    def status(self) -> str:
        """``running``, ``succeeded``, ``failed`` or ``cancelled``."""
        return self._report.status if self._report is not None else "running"

    def done(self) -> bool:
        """Whether the run has ended."""
        return self._report is not None

    def result(self, timeout_s: float | None = None) -> Any:
        """The run's output: one value, or a dict when the workflow names several.

        ``timeout_s`` is how long to wait, 0 for not at all, None for as long as it takes.
        Errors: `ResultTimeoutError` (the run goes on), `InputError` for a time that is
        none, or what the run ended with: `RunError` and its kinds, `RunCancelledError`,
        `InputError`, `OverloadedError`.
        """
        report = self._wait(timeout_s)
        if report.error is not None:
            raise self.failure(report)
        return report.output

    def report(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The whole outcome as JSON data, also of a run that failed.

        Keys: run_id, status, output, sources, usage, error, latency_s, nodes; labels
        of a run that was given some.
        ``timeout_s`` as in `result`. Errors: `ResultTimeoutError`, `InputError`.
        """
        return self._wait(timeout_s).to_json()

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The chunks that the output was made from, by node provenance. Blocks."""
        return self._wait(None).sources

    def stream(self) -> Iterator[str]:
        """Text pieces of the output as they are produced; together they are the result.

        Ends when the run does. Runs submitted without streaming yield their text at
        once; a workflow with several outputs streams none of them. An agent streams the
        texts of its calls ``run.call(step, stream=True)``, in the order of the calls, and
        nothing after them; one that makes none yields its result, if that is a text, at
        once. Errors: as `result`, also in the middle.
        """
        more = threading.Event()
        with self._watched(more.set):
            for piece in self._pieces():
                if piece is None:
                    more.wait()
                    more.clear()
                else:
                    yield piece

    def _pieces(self) -> Iterator[str | None]:
        """As `stream`, but never waiting: None says that there is nothing new yet."""
        taken = 0
        while True:
            with self._changed:
                fresh, report = self._text[taken:], self._report
            taken += len(fresh)
            if fresh:
                yield "".join(fresh)
            elif report is None and not self._parts.diverged:
                yield None
            else:
                self._check_stream(report)
                return

    @contextlib.contextmanager
    def _watched(self, wake: Callable[[], object]) -> Iterator[None]:
        """Within it ``wake`` is called whenever there is more text or the run ends, on
        the link's thread: it must neither wait nor raise."""
        with self._changed:
            self._watchers.append(wake)
        try:
            yield
        finally:
            with self._changed:
                self._watchers.remove(wake)

    def _check_stream(self, report: RunReport | None) -> None:
        """Raise what a stream ends with, if not well."""
        if report is not None and report.error is not None:
            raise self.failure(report)
        if self._parts.diverged:
            raise RunError(
                f"run {self.id} was repeated after a loss and its text changed",
                hint="Take the text from result(); what was streamed is void.",
                code="stream_diverged",
            )

    def cancel(self) -> None:
        """Ask for the run to stop; `result` then raises `RunCancelledError`. Does
        nothing once the run has ended."""
        if self._report is None:
            self._link.cancel(self)

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call ``callback(run)`` when the run ends, on the link's thread: be brief; what
        it raises is logged. Calls at once when the run already has ended."""
        with self._changed:
            if self._report is None:
                self._callbacks.append(callback)
                return
        callback(self)

    def _wait(self, timeout_s: float | None) -> RunReport:
        _check_timeout(timeout_s)
        if self._report is None:
            if timeout_s is not None:
                timeout_s = min(timeout_s, threading.TIMEOUT_MAX)
            with self._changed:
                if not self._changed.wait_for(lambda: self._report is not None, timeout_s):
                    raise self.too_slow(timeout_s)
        assert self._report is not None
        return self._report

    def too_slow(self, timeout_s: float | None) -> ResultTimeoutError:
        """What is raised when the run has not ended in the time the caller gave it."""
        return ResultTimeoutError(
            f"run {self.id} has not ended within {timeout_s or 0:g} s",
            hint="It goes on: call result() again, or cancel().",
            run_id=self.id,
        )

    def failure(self, report: RunReport) -> HerasysError:
        """The exception a failed or cancelled outcome stands for."""
        info = report.error or ErrorInfo(
            "internal",
            "the run ended without an outcome",
            "Submit it again, and report it with the runtime's log.",
        )
        if report.status == "cancelled":
            return RunCancelledError(info.message, hint=info.hint, run_id=self.id)
        return error_from_info(info, run_id=self.id, node=report.failed_node)

    # --- what the link tells --------------------------------------------------------
    def take_piece(self, piece: Piece) -> None:
        """More text; what is already here (a repeated attempt) is dropped."""
        with self._changed:
            self._show(self._parts.take(piece))

    def open_part(self, fragment: int, node: int) -> None:
        """A call of an agent streams: the text of that node is shown next."""
        with self._changed:
            self._show(self._parts.open(fragment, node))

    def close_part(self, fragment: int, text: str | None) -> None:
        """A call that streams has ended; ``text`` is all of it, None of one that failed."""
        with self._changed:
            self._show(self._parts.close(fragment, text))

    def _show(self, text: str) -> None:
        if text:
            self._text.append(text)
        if text or self._parts.diverged:
            self._tell_change()

    def accept(self) -> None:
        """The scheduler has taken the run."""
        with self._changed:
            self._accepted = True
            callback, self._when_accepted = self._when_accepted, None
        if callback is not None:
            callback(self)

    def when_accepted(self, callback: DoneCallback) -> None:
        """Call ``callback(run)`` once the scheduler has taken the run, on the link's
        thread; at once when it has. One callback."""
        with self._changed:
            if not self._accepted:
                self._when_accepted = callback
                return
        callback(self)

    def finish(self, message: FinishRun) -> None:
        """The run ended."""
        if self._spec.agent:
            report = RunReport.of_agent(message, *self.agent_output, self.latency_s())
        else:
            report = RunReport.of(message, self._spec, self._inputs, self.latency_s())
        self._settle(report)

    def fail(self, error: ErrorInfo, status: str = "failed") -> None:
        """The run ended without the scheduler's word (refused, runtime gone)."""
        self._settle(
            RunReport.without_nodes(self.id, status, error, self.latency_s(), self.labels)
        )

    def _last_text(self, output: Any) -> str:
        """What is still to be shown of a run that gave ``output``."""
        if len(self._parts) and self._spec.agent:
            return self._parts.close_all()
        if self._spec.agent:
            self._parts.open(0, -1)
        return self._parts.close(0, output if isinstance(output, str) else None)

    def latency_s(self) -> float:
        """Seconds since the run was submitted."""
        return time.monotonic() - self._submitted_s

    def _settle(self, report: RunReport) -> None:
        with self._changed:
            if self._report is not None:
                return
            if report.error is None:
                self._show(self._last_text(report.output))
            self._report = report
            callbacks, self._callbacks = self._callbacks, []
            self._tell_change()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # Users' code must not end the thread of every run.
                log.exception("a done callback of run %s failed", self.id)

    def _tell_change(self) -> None:
        self._changed.notify_all()
        for wake in tuple(self._watchers):  # a stream may be dropped, and leave, meanwhile
            wake()


def _check_timeout(timeout_s: float | None) -> None:
    """Errors: `InputError` for what is no time to wait."""
    if timeout_s is None:
        return
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not number or not timeout_s >= 0:  # NaN is neither above nor below
        raise InputError(
            f"timeout_s is a number of seconds, 0 or more, not {timeout_s!r:.60}",
            hint="Leave it out to wait as long as it takes.",
        )


def _streamed_node(spec: WorkflowSpec) -> int:
    """The node whose text is the output; -1 when the output is more than one text."""
    output = spec.outputs.get("output")
    if len(spec.outputs) == 1 and isinstance(output, NodeRef):
        return spec.index.get(output.node, -1)
    return -1


class AsyncRun:
    """A `Run` for asyncio: the same names, to be awaited."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def status(self) -> str:
        """``running``, ``succeeded``, ``failed`` or ``cancelled``."""
        return self._run.status

    def done(self) -> bool:
        """Whether the run has ended."""
        return self._run.done()

    async def _ended(self, timeout_s: float | None) -> None:
        _check_timeout(timeout_s)
        told = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                with self._run._watched(_from_any_thread(told.set)):
                    while not self._run.done():
                        await told.wait()
                        told.clear()
        except TimeoutError:
            if not self._run.done():
                raise self._run.too_slow(timeout_s) from None

    async def result(self, timeout_s: float | None = None) -> Any:
        """See `Run.result`."""
        await self._ended(timeout_s)
        return self._run.result()

    async def report(self, timeout_s: float | None = None) -> dict[str, Any]:
        """See `Run.report`."""
        await self._ended(timeout_s)
        return self._run.report()

    async def sources(self) -> list[dict[str, Any]]:
        """See `Run.sources`."""
        await self._ended(None)
        return self._run.sources

    async def stream(self) -> AsyncIterator[str]:
        """See `Run.stream`."""
        more = asyncio.Event()
        with self._run._watched(_from_any_thread(more.set)):
            for piece in self._run._pieces():
                if piece is None:
                    await more.wait()
                    more.clear()
                else:
                    yield piece

    async def cancel(self) -> None:
        """See `Run.cancel`."""
        self._run.cancel()


def _from_any_thread(call: Callable[[], object]) -> Callable[[], None]:
    """``call``, to be made on the running loop from any thread; nothing once it closed."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # closed: nobody waits there any more
            loop.call_soon_threadsafe(call)

    return tell
