"""When runs come: at their own times, or when a client of a closed loop is free."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.machines import faulty
from herasys_rt.workloads.arrivals import Job

Submit = Callable[[Job], None]


class Arrivals(Protocol):
    """Submits jobs in time."""

    def begin(self, agenda: Agenda, submit: Submit) -> None:
        """Put the first arrivals on the agenda."""
        ...

    def ended(self) -> None:
        """A run that was submitted has ended."""
        ...


class OpenLoop:
    """Every job at its ``arrival_s``, whatever became of the others.

    Errors: `ConfigError` for jobs without a time, or with one that is none.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        faults = _job_faults(jobs)
        for job in jobs:
            at = job.arrival_s
            if at is None or not (math.isfinite(at) and at >= 0):
                told = "no arrival time" if at is None else f"the arrival time {at:g} s"
                faults.append(f"job {job.id!r} has {told}")
        if faults:
            raise faulty("an open loop", faults[:20])
        self._jobs = jobs

    def begin(self, agenda: Agenda, submit: Submit) -> None:
        """See `Arrivals`."""
        for job in self._jobs:
            assert job.arrival_s is not None
            agenda.at(job.arrival_s, lambda j=job: submit(j))

    def ended(self) -> None:
        """Nobody waits for it."""


class ClosedLoop:
    """``clients`` that each submit the next job ``think_s`` after their last one ended.

    Arrival times that jobs bring along do not count. Errors: `ConfigError`.
    """

    def __init__(self, jobs: Sequence[Job], clients: int, think_s: float = 0.0) -> None:
        faults = _job_faults(jobs)
        if clients < 1:
            faults.append(f"concurrency is {clients}; at least 1 client must submit")
        if not (math.isfinite(think_s) and think_s >= 0):
            faults.append(f"the think time is {think_s:g} s; it is 0 or more")
        if faults:
            raise faulty("a closed loop", faults)
        self._clients = clients
        self._think_s = think_s
        self._left = deque(jobs)

    def begin(self, agenda: Agenda, submit: Submit) -> None:
        """See `Arrivals`."""
        self._agenda = agenda
        self._submit = submit
        for _ in range(min(self._clients, len(self._left))):
            self._next(0.0)

    def ended(self) -> None:
        """A client is free."""
        if self._left:
            self._next(self._think_s)

    def _next(self, wait_s: float) -> None:
        job = self._left.popleft()
        self._agenda.at(self._agenda.now + wait_s, lambda: self._submit(job))


def _job_faults(jobs: Sequence[Job]) -> list[str]:
    if not jobs:
        return ["there are no jobs: nothing would be simulated"]
    seen: set[str] = set()
    twice = {job.id for job in jobs if job.id in seen or seen.add(job.id)}
    return [f"two jobs are called {job_id!r}" for job_id in sorted(twice)[:5]]
