"""Blocking work off the loop, in threads that can be given up.

Nothing can stop a Python thread from outside. One whose caller no longer waits goes on
until its work ends by itself, counted as abandoned, and stands in nobody's way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from herasys_rt.engines.postgres.loop import LoopThread
from herasys_rt.errors import NodeError

T = TypeVar("T")

_GRACE_S = 5.0


class Threads:
    """Runs functions in threads of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """Threads that still work although nobody waits for them."""
        return self._abandoned

    async def run(self, work: Callable[[], T], name: str) -> T:
        """The result of ``work``, or its exception. A cancelled wait abandons it."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        job = _Job(self, work, loop, ended)
        threading.Thread(target=job.run, name=name, daemon=True).start()
        try:
            return await ended
        except asyncio.CancelledError:
            job.abandon()
            raise

    def _count(self, change: int) -> None:
        with self._lock:
            self._abandoned += change


class _Job:
    """One piece of work in its thread."""

    def __init__(
        self,
        owner: Threads,
        work: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
        ended: asyncio.Future[Any],
    ) -> None:
        self._owner = owner
        self._work = work
        self._loop = loop
        self._ended = ended
        self._lock = threading.Lock()
        self._over = False
        self._given_up = False

    def run(self) -> None:
        try:
            value, error = self._work(), None
        except BaseException as e:
            value, error = None, e
        with self._lock:
            self._over = True
            given_up = self._given_up
        if given_up:
            self._owner._count(-1)
            return
        try:
            self._loop.call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:  # the loop was closed meanwhile
            return

    def abandon(self) -> None:
        with self._lock:
            if self._over:
                return
            self._given_up = True
        self._owner._count(1)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(value)
        elif isinstance(error, StopIteration):  # no future may hold one
            self._ended.set_exception(RuntimeError("StopIteration"))
        else:
            self._ended.set_exception(error)


class UserLoop:
    """The event loop that asynchronous user functions share; belongs to one loop itself.

    A function that blocks it holds up the others. When it does not turn within seconds
    of a cancellation, what waits for it fails, retryably, and later calls get a fresh
    loop in a thread of its own.
    """

    def __init__(self) -> None:
        self._host: _Host | None = None
        self._stuck = 0
        self._watching: set[asyncio.Task[None]] = set()

    @property
    def stuck(self) -> int:
        """Loops given up because something blocks them."""
        return self._stuck

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the coroutine that ``make`` gives, awaited on the users' loop.

        Errors: the coroutine's own; `NodeError` (``tools_stuck``).
        """
        host = self._host
        if host is None:
            host = self._host = _Host(LoopThread("tools"), asyncio.Event())
        value = asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(make(), host.thread.loop)
        )
        stuck = asyncio.ensure_future(host.stuck.wait())
        try:
            await asyncio.wait({value, stuck}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            value.cancel()
            task = asyncio.get_running_loop().create_task(self._watch(host))
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)
            raise
        finally:
            stuck.cancel()
        if value.done():
            return value.result()
        value.cancel()
        raise _StuckError(
            "an asynchronous function blocks the loop that this one was to run on",
            hint="Let functions that block be ordinary ones (def, not async def).",
        )

    async def _watch(self, host: _Host) -> None:
        """See whether a loop still turns after a cancellation."""
        loop = asyncio.get_running_loop()
        turned = asyncio.Event()
        host.thread.call(loop.call_soon_threadsafe, turned.set)
        try:
            async with asyncio.timeout(_GRACE_S):
                await turned.wait()
        except TimeoutError:
            if self._host is host:
                self._host = None
                self._stuck += 1
                host.stuck.set()
                # Ends it should it ever turn again; nobody waits for that.
                threading.Thread(
                    target=host.thread.close, name="tools-end", daemon=True
                ).start()

    async def close(self) -> None:
        """End the loop with what runs on it; one that is stuck is left behind."""
        for task in list(self._watching):
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        host, self._host = self._host, None
        if host is None:
            return
        try:
            async with asyncio.timeout(_GRACE_S):
                await Threads().run(host.thread.close, "tools-end")
        except TimeoutError:
            return


class _Host(NamedTuple):
    """A loop for user functions, and the sign that something blocks it."""

    thread: LoopThread
    stuck: asyncio.Event


class _StuckError(NodeError):
    """The call did not run; it may elsewhere."""

    code = "tools_stuck"
    retryable = True
