"""A task per item on an event loop of its own: what engines that wait a lot have in common.

The engine gives a coroutine that serves one item; here items are taken, aborted, timed
and ended, each exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.engines.postgres.loop import LoopThread
from herasys_rt.engines.protocol import Item, Outcome, Sink
from herasys_rt.errors import ErrorInfo, HerasysError, RuntimeStateError

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CLOSE_S = 20.0


class ItemTasks:
    """Serves items by ``serve``, which calls `begun` when it begins with one.

    What ``serve`` raises is its item's outcome: a `HerasysError` as it is, anything else
    as an internal error. An aborted item's task is cancelled and ends as aborted.
    """

    def __init__(
        self,
        name: str,
        serve: Callable[[Item], Awaitable[Outcome]],
        clock: Clock = monotonic_s,
    ) -> None:
        self._name = name
        self._serve = serve
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[Outcome]] = {}
        self._began: dict[str, float] = {}
        self._sink: Sink | None = None
        self._loop: LoopThread | None = None

    @property
    def running(self) -> int:
        """Items that `begun` was called for and that have not ended."""
        return len(self._began)

    @property
    def waiting(self) -> int:
        """Items that have not begun."""
        return max(0, len(self._tasks) - len(self._began))

    def start(self, sink: Sink) -> None:
        """Take items from now on."""
        self._sink = sink
        self._loop = LoopThread(self._name)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """A coroutine's result, on the loop; waited for."""
        if self._loop is None:
            work.close()
            raise self._not_running()
        return self._loop.run(work)

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; returns at once. Errors: `RuntimeStateError` when not started."""
        if self._loop is None:
            raise self._not_running()
        self._loop.call(self._admit, tuple(items))

    def abort(self, key: str) -> None:
        """End an item as aborted; unknown keys are ignored. Returns at once."""
        if self._loop is not None:
            self._loop.call(self._abort, key)

    def begun(self, key: str) -> None:
        """The item's own time starts to count. Called on the loop."""
        self._began[key] = self._clock()
        if self._sink is not None:
            self._sink.started(key)

    def close(self, shut: Callable[[], Awaitable[None]]) -> None:
        """Abort what is under way and report it, then ``shut`` on the loop. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is None:
            return

        async def end() -> None:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await shut()

        try:
            loop.run(end(), _CLOSE_S)
        except TimeoutError:
            _log.warning("%s took longer than %.0f s to let go", self._name, _CLOSE_S)
        finally:
            loop.close()
            self._sink = None

    # In the loop's thread.

    def _admit(self, items: Sequence[Item]) -> None:
        for item in items:
            if item.key in self._tasks:
                _log.error("item %r was submitted twice; the second is ignored", item.key)
                continue
            task = asyncio.get_running_loop().create_task(self._outcome(item))
            self._tasks[item.key] = task
            # Not in the coroutine: one cancelled before its first step never runs.
            task.add_done_callback(lambda done, key=item.key: self._finish(key, done))

    def _abort(self, key: str) -> None:
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    async def _outcome(self, item: Item) -> Outcome:
        try:
            return await self._serve(item)
        except HerasysError as e:
            return Outcome(error=e.info())
        except Exception as e:
            _log.exception("item %r of verb %s", item.key, item.verb)
            text = f"{item.verb} broke: {type(e).__name__}"
            hint = "This is our fault; the log of the instance has the trace."
            return Outcome(error=ErrorInfo("internal", text, hint))

    def _finish(self, key: str, task: asyncio.Task[Outcome]) -> None:
        del self._tasks[key]
        outcome = Outcome(aborted=True) if task.cancelled() else task.result()
        began_s = self._began.pop(key, None)
        if began_s is not None:
            run_s = self._clock() - began_s
            outcome = msgspec.structs.replace(outcome, run_s=run_s)
        if self._sink is not None:
            self._sink.finished(key, outcome)

    def _not_running(self) -> RuntimeStateError:
        return RuntimeStateError(
            f"the {self._name} engine is not running", hint="Start it before submitting."
        )
