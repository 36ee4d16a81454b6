"""An agent as the simulator plays it: it reveals a step when it has what that needs."""

from __future__ import annotations

from typing import Protocol

from herasys_rt.core.commands import FinishFragment
from herasys_rt.errors import ErrorInfo
from herasys_rt.sim.agenda import Agenda
from herasys_rt.workloads.arrivals import Job


class World(Protocol):
    """Whom an agent speaks to."""

    agenda: Agenda

    def reveal(self, job: Job, number: int, source: str = "") -> None:
        """Make the step at a position known."""
        ...

    def close(self, job: Job, error: ErrorInfo | None = None) -> None:
        """Say that the agent has ended."""
        ...


class AgentRun:
    """One run of a revealed job. A step fails the run, as an exception would."""

    def __init__(self, job: Job, world: World) -> None:
        self._job = job
        self._world = world
        self._open = len(job.steps)
        self._closed = False
        at = {step.id: i for i, step in enumerate(job.steps)}
        self._left = [len(set(step.parents)) for step in job.steps]
        self._children: list[list[int]] = [[] for _ in job.steps]
        for i, step in enumerate(job.steps):
            for parent in dict.fromkeys(step.parents):
                self._children[at[parent]].append(i)

    def begin(self) -> None:
        """Reveal what depends on nothing."""
        roots = [i for i, left in enumerate(self._left) if not left]
        for number in roots:
            self._later(number, "")
        if not roots:
            self._end(None)

    def ended(self, told: FinishFragment) -> None:
        """A step has ended; what it was missing for becomes known."""
        if self._closed:
            return
        if told.status != "succeeded":
            self._end(told.error)
            return
        self._open -= 1
        source = (told.outputs[0][1].inline or b"").decode() if told.outputs else ""
        for child in self._children[told.fragment]:
            self._left[child] -= 1
            if not self._left[child]:
                self._later(child, source)
        if not self._open:
            self._end(None)

    def _later(self, number: int, source: str) -> None:
        agenda = self._world.agenda

        def reveal() -> None:
            if not self._closed:
                self._world.reveal(self._job, number, source)

        agenda.at(agenda.now + self._job.steps[number].after_s, reveal)

    def _end(self, error: ErrorInfo | None) -> None:
        self._closed = True
        agenda = self._world.agenda
        agenda.at(agenda.now, lambda: self._world.close(self._job, error))
