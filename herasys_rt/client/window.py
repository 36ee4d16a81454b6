"""Many runs, some of them at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar

from herasys_rt.client.run import Run
from herasys_rt.errors import InputError

J = TypeVar("J")

_BUFFERED_RUNS = 1000
"""Finished runs that are kept for a slow consumer before submitting stops."""
_FEEDER_PATIENCE_S = 1.0
"""How long leaving a window waits for its thread, which may be reading an input."""


class Window(Generic[J]):
    """The sliding window behind `Client.map`; ``start`` submits one of the ``jobs``.

    A feeder thread reads inputs and submits while places are free; runs give their
    place back as they end, in whatever order; the consumer takes them in input order.
    """

    def __init__(
        self,
        start: Callable[[J], Run],
        jobs: Iterable[J],
        concurrency: int,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise InputError(
                f"concurrency is a whole number of at least 1, not {concurrency!r:.60}",
                hint="Say how many runs may be at work at once, or leave it out for 8.",
            )
        self._start = start
        self._jobs = jobs
        self._free = threading.Semaphore(concurrency)
        self._room = threading.Semaphore(concurrency + _BUFFERED_RUNS)
        self._changed = threading.Condition()
        self._runs: deque[Run] = deque()
        self._awaited: tuple[Run, ...] = ()
        self._exhausted = False
        self._abandoned = False
        self._fault: BaseException | None = None

    def results(self) -> Generator[Run]:
        """The runs as they end, in the order of the jobs. What reading the jobs raised
        comes after them; leaving early is `abandon`."""
        feeder = threading.Thread(target=self._feed, name="map", daemon=True)
        feeder.start()
        try:
            while (run := self._next()) is not None:
                run.report()
                self._room.release()
                yield run
            if self._fault is not None:
                raise self._fault
        finally:
            self.abandon()
            # Inputs may be waiting for something outside, such as a terminal: the feeder
            # then ends with its next one, and cancels what it might have submitted.
            feeder.join(_FEEDER_PATIENCE_S)

    def abandon(self) -> None:
        """Nobody takes results any more: cancel what runs and wake who waits."""
        self._abandoned = True
        self._free.release()
        self._room.release()
        self._cancel_rest()
        with self._changed:
            self._changed.notify()

    def _cancel_rest(self) -> None:
        for run in [*self._awaited, *self._runs]:
            run.cancel()

    def _next(self) -> Run | None:
        with self._changed:
            self._changed.wait_for(lambda: self._runs or self._exhausted or self._abandoned)
            if self._abandoned or not self._runs:
                return None
            run = self._runs.popleft()
            self._awaited = (run,)
            return run

    def _feed(self) -> None:
        try:
            for job in self._jobs:
                self._room.acquire()
                self._free.acquire()
                if self._abandoned:
                    break
                run = self._start(job)
                run.add_done_callback(lambda _: self._free.release())
                with self._changed:
                    self._runs.append(run)
                    self._changed.notify()
        except BaseException as e:  # The consumer's thread raises it, after the rest.
            self._fault = e
        with self._changed:
            self._exhausted = True
            self._changed.notify()
        if self._abandoned:
            self._cancel_rest()
