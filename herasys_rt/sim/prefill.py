"""A prefill instance: one prompt after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from herasys_rt.costs.steps import StepTimes
from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.instances import Outcomes, Work
from herasys_rt.sim.prefix import Hold, KvMemory


class PrefillServer:
    """Computes whole prompts, one at a time, in order of arrival (HexAGenT section 4).

    What it computed leaves for a decode instance and stays in the prefix cache as long
    as there is room. A prompt that is under way is finished even if nobody wants it.
    """

    def __init__(
        self,
        name: str,
        agenda: Agenda,
        outcomes: Outcomes,
        times: StepTimes,
        *,
        sharing: bool = True,
    ) -> None:
        self.name = name
        self.memory = KvMemory(times.kv_capacity_tokens, sharing)
        self.busy_s = 0.0
        self.prefilled = 0
        """Prompt tokens computed."""
        self._agenda = agenda
        self._outcomes = outcomes
        self._times = times
        self._queue: deque[Work] = deque()
        self._current: Work | None = None
        self._unwanted = False
        self._dead = False

    def start(self, works: Sequence[Work]) -> None:
        """Queue prompts."""
        for work in works:
            tokens = work.truth.prompt_tokens
            if self.memory.fits_ever(tokens):
                self._queue.append(work)
                continue
            problem = (
                f"a prompt of {tokens} tokens exceeds the {self.memory.capacity} KV tokens "
                f"of instance {self.name}"
            )
            self._tell(partial(self._outcomes.refused, problem=problem), work)
        self._next()

    def abort(self, flight: int, attempt: int) -> None:
        """Let go of a waiting prompt; one under way ends as usual and is not told."""
        current = self._current
        if current is not None and (current.flight, current.attempt) == (flight, attempt):
            self._unwanted = True
            return
        for work in self._queue:
            if (work.flight, work.attempt) == (flight, attempt):
                self._queue.remove(work)
                self._tell(self._outcomes.aborted, work)
                return

    def lose(self) -> None:
        """Forget everything."""
        self._dead = True
        self._queue.clear()

    def fault(self) -> str | None:
        """Tokens beyond the memory."""
        memory = self.memory
        if memory.used > memory.capacity:
            return f"{self.name} holds {memory.used} KV tokens of {memory.capacity}"
        return None

    def _next(self) -> None:
        if self._current is not None or not self._queue:
            return
        work = self._current = self._queue.popleft()
        work.begun_s = now = self._agenda.now
        truth = work.truth
        prompt = max(truth.prompt_tokens, 1)
        hold = self.memory.admit(prompt, 0, truth.prefix)
        assert hold is not None  # it is alone and fits
        cached = max(hold.cached, min(truth.cached_tokens, prompt - 1))
        seconds = self._times.prefill_s(prompt - cached, cached)
        self.prefilled += prompt - cached
        self._agenda.at(now + seconds, lambda: self._end(work, hold, seconds))

    def _end(self, work: Work, hold: Hold, seconds: float) -> None:
        if self._dead:
            return
        truth = work.truth
        prompt = max(truth.prompt_tokens, 1)
        self.busy_s += seconds
        self.memory.fill(hold, prompt, truth.prefix)
        self.memory.release(hold)
        unwanted, self._unwanted, self._current = self._unwanted, False, None
        if unwanted:
            self._outcomes.aborted(self.name, work)
        else:
            self._outcomes.finished(self.name, work)
        if not self._dead:
            self._next()

    def _tell(self, tell: Callable[[str, Work], None], work: Work) -> None:
        def now() -> None:
            if not self._dead:
                tell(self.name, work)

        self._agenda.at(self._agenda.now, now)
