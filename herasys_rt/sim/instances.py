"""What a modelled instance is, and those that serve batches and delays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from herasys_rt.sim.agenda import Agenda
from herasys_rt.workloads.arrivals import Truth


@dataclass(slots=True, eq=False)
class Work:
    """One item on an instance: which attempt of which flight it is, what is to be done
    and what executing it will turn out to be.

    ``source`` is the instance that computed its prompt, on prefill/decode pools.
    ``begun_s`` is when the instance began with it (-1: not yet).
    """

    flight: int
    attempt: int
    verb: str
    truth: Truth
    source: str = ""
    begun_s: float = -1.0


class Outcomes(Protocol):
    """Where instances tell how items end. Told at the moment it happens."""

    def finished(self, instance: str, work: Work) -> None:
        """The item has succeeded."""
        ...

    def refused(self, instance: str, work: Work, problem: str) -> None:
        """The instance can never execute the item."""
        ...

    def aborted(self, instance: str, work: Work) -> None:
        """The instance does not work on the item any more."""
        ...


class Instance(Protocol):
    """A modelled engine instance.

    Nothing is told from inside `start` and `abort`: outcomes come at a later step of the
    same moment, or later.
    """

    @property
    def name(self) -> str:
        """The incarnation, as the kernel knows it."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds in which it has computed; for slots that run side by side the mean
        over slots."""
        ...

    def start(self, works: Sequence[Work]) -> None:
        """Take the items of one batch."""
        ...

    def abort(self, flight: int, attempt: int) -> None:
        """Stop an item as soon as an engine would."""
        ...

    def lose(self) -> None:
        """The instance is gone with all its work; it tells nothing any more."""
        ...

    def fault(self) -> str | None:
        """What of its own promises is broken (capacity, counts); None when nothing is."""
        ...


BatchTime = Callable[[str, Sequence[Truth]], float]
"""Seconds that a batch of a verb takes."""


@dataclass(slots=True, eq=False)
class _Batch:
    works: list[Work]


class BatchServer:
    """Executes whole batches, at most ``parallel`` side by side, in order of arrival.

    The items of a batch end together, as those of an embedder or reranker do; an aborted
    item leaves its batch, which takes its time all the same. With ``parallel`` 1 and
    batches of one item it is the single server of queueing theory; with
    ``Truth.seconds`` as the time, a pool of threads that wait for something outside.
    """

    __slots__ = (
        "_agenda",
        "_dead",
        "_outcomes",
        "_parallel",
        "_queue",
        "_running",
        "_seconds",
        "_spent_s",
        "_time",
        "name",
    )

    def __init__(
        self,
        name: str,
        agenda: Agenda,
        outcomes: Outcomes,
        time: BatchTime,
        parallel: int = 1,
    ) -> None:
        self.name = name
        self._agenda = agenda
        self._outcomes = outcomes
        self._time = time
        self._parallel = parallel
        self._queue: deque[_Batch] = deque()
        self._running: dict[int, _Batch] = {}
        self._spent_s = 0.0
        self._dead = False

    @property
    def busy_s(self) -> float:
        """Seconds of batches, over what runs side by side."""
        return self._spent_s / self._parallel

    def start(self, works: Sequence[Work]) -> None:
        """Queue a batch; it begins when a place is free."""
        self._queue.append(_Batch(list(works)))
        self._begin()

    def abort(self, flight: int, attempt: int) -> None:
        """Let go of an item at once; its batch runs on without it."""
        for batch in [*self._queue, *self._running.values()]:
            for work in batch.works:
                if work.flight == flight and work.attempt == attempt:
                    batch.works.remove(work)
                    self._tell_aborted(work)
                    return

    def lose(self) -> None:
        """Forget everything."""
        self._dead = True
        self._queue.clear()
        self._running.clear()

    def fault(self) -> str | None:
        """More batches at once than places."""
        if len(self._running) > self._parallel:
            return f"{self.name} runs {len(self._running)} batches of {self._parallel}"
        return None

    def _begin(self) -> None:
        while self._queue and len(self._running) < self._parallel:
            batch = self._queue.popleft()
            now = self._agenda.now
            for work in batch.works:
                work.begun_s = now
            verb = batch.works[0].verb if batch.works else ""
            seconds = self._time(verb, [work.truth for work in batch.works])
            self._running[id(batch)] = batch
            self._spent_s += seconds
            self._agenda.at(now + seconds, lambda b=batch: self._end(b))

    def _end(self, batch: _Batch) -> None:
        if self._running.pop(id(batch), None) is None:
            return  # lost meanwhile
        for work in batch.works:
            self._outcomes.finished(self.name, work)
            if self._dead:
                return
        self._begin()

    def _tell_aborted(self, work: Work) -> None:
        def now() -> None:
            if not self._dead:
                self._outcomes.aborted(self.name, work)

        self._agenda.at(self._agenda.now, now)
