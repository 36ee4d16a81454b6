"""Continuous batching: an LLM instance that lives by iterations.

While it prefills, every iteration is a step of its own: its chunks differ. While it only
decodes, nothing changes until the first sequence ends, and the whole stretch is one step.
Whoever arrives meanwhile and can be admitted cuts the stretch at the end of the iteration
that is under way.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from herasys_rt.costs.steps import StepTimes
from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.instances import Outcomes, Work
from herasys_rt.sim.prefix import Hold, KvMemory

TransferTime = Callable[[int, str], float]
"""Seconds until so many tokens of KV have come from that instance."""

_Tell = Callable[[str, Work], None]

_PIECE = 64
"""Iterations that are priced at their middle context; exact where time is linear in it."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """``done`` tokens of its prompt are there, ``output`` tokens will come."""

    work: Work
    hold: Hold
    prompt: int
    output: int
    done: int
    ended: bool = False


class ContinuousBatching:
    """One LLM instance with chunked prefill (vLLM's default).

    An iteration computes one token of every decoding sequence and fills the rest of
    ``budget`` tokens with prompts, in order of arrival. A sequence is admitted while
    there are fewer than ``slots`` and its prompt and output fit in ``memory``; the first
    that does not fit waits and lets nobody past. The iteration that completes a prompt
    gives its first token.

    Items whose prompt was computed elsewhere (`Work.source`) come ``transfer_s(tokens,
    source)`` later and only decode.
    """

    def __init__(
        self,
        name: str,
        agenda: Agenda,
        outcomes: Outcomes,
        times: StepTimes,
        *,
        slots: int,
        budget: int,
        sharing: bool = True,
        transfer_s: TransferTime | None = None,
    ) -> None:
        self.name = name
        self.memory = KvMemory(times.kv_capacity_tokens, sharing)
        self.busy_s = 0.0
        self.iterations = 0
        self.prefilled = 0
        """Prompt tokens computed."""
        self.decoded = 0
        """Tokens produced, the first ones included."""
        self._agenda = agenda
        self._outcomes = outcomes
        self._times = times
        self._slots = slots
        self._budget = budget
        self._transfer_s = transfer_s
        self._waiting: deque[Work] = deque()
        self._coming: dict[tuple[int, int], Work] = {}
        self._prefilling: list[_Sequence] = []
        self._decoding: list[tuple[int, int, _Sequence]] = []  # by their last iteration
        self._sequences: dict[tuple[int, int], _Sequence] = {}
        self._aborting: list[_Sequence] = []
        self._joined = 0
        self._batch = 0
        self._context = 0
        # The step under way: `_count` iterations since `_since_s`, until `_until_s`.
        self._count = 0
        self._since_s = 0.0
        self._until_s = 0.0
        self._chunks: list[tuple[_Sequence, int]] = []
        self._version = 0
        self._dead = False

    # --- what the instance is asked -------------------------------------------------
    def start(self, works: Sequence[Work]) -> None:
        """Take items; they join at the end of the iteration under way."""
        for work in works:
            truth = work.truth
            tokens = max(truth.prompt_tokens, 1) + truth.output_tokens
            if not self.memory.fits_ever(tokens):
                self._refuse(work, tokens)
            elif work.source and self._transfer_s is not None:
                self._fetch(work, self._transfer_s(truth.prompt_tokens, work.source))
            else:
                self._arrive(work)

    def abort(self, flight: int, attempt: int) -> None:
        """Stop an item: at once while it waits, else when the iteration is over."""
        key = (flight, attempt)
        sequence = self._sequences.get(key)
        if sequence is not None:
            if sequence not in self._aborting:
                self._aborting.append(sequence)
                self._cut()
            return
        work = self._coming.pop(key, None)
        if work is None:
            work = next((w for w in self._waiting if (w.flight, w.attempt) == key), None)
            if work is None:
                return
            self._waiting.remove(work)
            self._plan_soon()  # whoever stood behind it may fit
        self._tell(self._outcomes.aborted, work)

    def lose(self) -> None:
        """Forget everything."""
        self._dead = True
        self._version += 1
        self._waiting.clear()
        self._coming.clear()
        self._sequences.clear()

    def fault(self) -> str | None:
        """Sequences beyond the slots, or tokens beyond the memory."""
        memory = self.memory
        if memory.used > memory.capacity:
            return f"{self.name} holds {memory.used} KV tokens of {memory.capacity}"
        if len(self._sequences) > self._slots:
            return f"{self.name} runs {len(self._sequences)} sequences of {self._slots}"
        if not self._sequences and not self._dead and memory.held:
            return f"{self.name} is empty and holds {memory.held} KV tokens"
        return None

    # --- arrivals -------------------------------------------------------------------
    def _fetch(self, work: Work, seconds: float) -> None:
        key = (work.flight, work.attempt)
        self._coming[key] = work

        def here() -> None:
            if self._coming.pop(key, None) is not None:
                self._arrive(work)

        self._agenda.at(self._agenda.now + seconds, here)

    def _arrive(self, work: Work) -> None:
        self._waiting.append(work)
        if not self._count:
            self._plan_soon()
        elif len(self._waiting) == 1 and self._admissible(work):
            self._cut()

    def _admissible(self, work: Work) -> bool:
        """Whether the first in the queue could join at the end of this iteration."""
        memory, truth = self.memory, work.truth
        tokens = max(truth.prompt_tokens, 1) + truth.output_tokens
        if len(self._sequences) >= self._slots or self._batch >= self._budget:
            return False
        if memory.held + tokens <= memory.capacity:
            return True
        cached = memory.cached_tokens(truth.prompt_tokens, truth.prefix)
        return memory.held + tokens - cached <= memory.capacity

    def _refuse(self, work: Work, tokens: int) -> None:
        problem = (
            f"prompt and output of {tokens} tokens exceed the {self.memory.capacity} KV "
            f"tokens of instance {self.name}"
        )
        self._tell(partial(self._outcomes.refused, problem=problem), work)

    def _tell(self, tell: _Tell, work: Work) -> None:
        def now() -> None:
            if not self._dead:
                tell(self.name, work)

        self._agenda.at(self._agenda.now, now)

    # --- steps ----------------------------------------------------------------------
    def _plan_soon(self) -> None:
        self._agenda.after_moment(self, self._plan)

    def _plan(self) -> None:
        """Begin the next step, if none is under way and there is work."""
        if self._count or self._dead:
            return
        seconds = self._plan_prefill()
        if seconds is not None:
            self._begin(1, seconds)
        elif self._batch:
            count = self._decoding[0][0] - self.iterations
            self._begin(count, self._stretch_s(count))

    def _begin(self, count: int, seconds: float) -> None:
        self._count = count
        self._since_s = now = self._agenda.now
        self._schedule(now + seconds)

    def _schedule(self, until_s: float) -> None:
        self._until_s = until_s
        self._version += 1
        version = self._version
        self._agenda.at(until_s, lambda: self._end(version))

    def _plan_prefill(self) -> float | None:
        """Fill the budget with chunks of prompts; None when there is none to compute."""
        left = self._budget - self._batch
        chunks, prefill, attended = self._chunks, 0, 0
        for sequence in self._prefilling:
            if left <= 0:
                break
            tokens = min(sequence.prompt - sequence.done, left)
            chunks.append((sequence, tokens))
            attended += tokens * sequence.done + tokens * tokens // 2
            prefill += tokens
            left -= tokens
        while left > 0 and self._waiting:
            sequence = self._admit()
            if sequence is None:
                break
            tokens = min(sequence.prompt - sequence.done, left)
            if not tokens:  # its prompt came from elsewhere
                left -= 1
                continue
            chunks.append((sequence, tokens))
            attended += tokens * sequence.done + tokens * tokens // 2
            prefill += tokens
            left -= tokens
        if not chunks:
            return None
        return self._times.mixed_s(prefill, attended, self._batch, self._context)

    def _admit(self) -> _Sequence | None:
        """Let the first in the queue in; None when it must wait."""
        work = self._waiting[0]
        if len(self._sequences) >= self._slots:
            return None
        truth = work.truth
        prompt, output = max(truth.prompt_tokens, 1), truth.output_tokens
        remote = bool(work.source) and self._transfer_s is not None
        blocks = () if remote else truth.prefix
        hold = self.memory.admit(prompt, output, blocks)
        if hold is None:
            return None
        self._waiting.popleft()
        work.begun_s = self._agenda.now
        told = min(truth.cached_tokens, prompt - 1)
        done = prompt if remote else max(hold.cached, told)
        sequence = _Sequence(work, hold, prompt, output, done)
        self._sequences[(work.flight, work.attempt)] = sequence
        if remote:
            self._decode(sequence, max(output - 1, 0))
        else:
            self._prefilling.append(sequence)
        return sequence

    def _decode(self, sequence: _Sequence, iterations: int) -> None:
        """From now on the sequence gives a token per iteration."""
        self._joined += 1
        entry = (self.iterations + max(iterations, 1), self._joined, sequence)
        heapq.heappush(self._decoding, entry)
        self._batch += 1
        self._context += sequence.prompt + 1

    def _stretch_s(self, count: int) -> float:
        """Seconds of ``count`` decode iterations with the present batch."""
        batch, context = self._batch, self._context
        seconds = 0.0
        while count > _PIECE:
            seconds += self._piece_s(batch, context, _PIECE)
            context += batch * _PIECE
            count -= _PIECE
        return seconds + self._piece_s(batch, context, count)

    def _piece_s(self, batch: int, context: int, count: int) -> float:
        """Iterations priced at their middle context, between two tokens where it is."""
        decode_s = self._times.decode_s
        middle, odd = divmod(2 * context + batch * (count - 1), 2)
        seconds = decode_s(batch, middle)
        if odd:
            seconds = (seconds + decode_s(batch, middle + 1)) / 2
        return count * seconds

    def _cut(self) -> None:
        """End the stretch under way with the iteration that is being computed."""
        if self._chunks or self._count <= 1:
            return
        elapsed = self._agenda.now - self._since_s
        low, high = 1, self._count
        while low < high:  # the first count that is not over yet
            middle = (low + high) // 2
            if self._stretch_s(middle) >= elapsed:
                high = middle
            else:
                low = middle + 1
        if low < self._count:
            self._count = low
            until_s = self._since_s + self._stretch_s(low)
            self._schedule(max(until_s, self._agenda.now))

    def _end(self, version: int) -> None:
        """A step is over: whoever ended is told, then the next one is planned."""
        if version != self._version:
            return
        count, self._count = self._count, 0
        self.busy_s += self._until_s - self._since_s
        self.iterations += count
        self.decoded += self._batch * count
        self._context += self._batch * count
        over: list[_Sequence] = []
        if self._chunks:
            self._take_chunks(over)
        decoding, iterations = self._decoding, self.iterations
        while decoding and decoding[0][0] <= iterations:
            sequence = heapq.heappop(decoding)[2]
            if not sequence.ended:
                self._leave_batch(sequence)
                over.append(sequence)
        for sequence in over:
            self._release(sequence)
        aborted = [s for s in self._aborting if not s.ended]
        self._aborting = []
        for sequence in aborted:
            self._drop(sequence)
        self._plan_soon()
        for sequence in over:
            if self._dead:
                return
            self._outcomes.finished(self.name, sequence.work)
        for sequence in aborted:
            if self._dead:
                return
            self._outcomes.aborted(self.name, sequence.work)

    def _take_chunks(self, over: list[_Sequence]) -> None:
        """Count what was prefilled; complete prompts give a token and go on to decode."""
        complete = False
        for sequence, tokens in self._chunks:
            sequence.done += tokens
            self.prefilled += tokens
            if sequence.done == sequence.prompt:
                complete = True
                truth = sequence.work.truth
                self.memory.fill(sequence.hold, sequence.prompt, truth.prefix)
                self.decoded += sequence.output > 0
                if sequence.output > 1:
                    self._decode(sequence, sequence.output - 1)
                else:
                    over.append(sequence)
        self._chunks = []
        if complete:
            self._prefilling = [s for s in self._prefilling if s.done < s.prompt]

    def _leave_batch(self, sequence: _Sequence) -> None:
        self._batch -= 1
        # What its context has grown to: it joined with the prompt and its first token.
        self._context -= sequence.prompt + max(sequence.output, 2)

    def _release(self, sequence: _Sequence) -> None:
        sequence.ended = True
        work = sequence.work
        del self._sequences[(work.flight, work.attempt)]
        self.memory.release(sequence.hold, work.truth.produced)

    def _drop(self, sequence: _Sequence) -> None:
        """Take a sequence out before its end."""
        if sequence.done < sequence.prompt:
            self._prefilling.remove(sequence)
        else:
            last = next(end for end, _, s in self._decoding if s is sequence)
            decode = max(sequence.output - 1, 1)
            self._batch -= 1
            self._context -= sequence.prompt + 1 + decode - (last - self.iterations)
        sequence.ended = True
        work = sequence.work
        del self._sequences[(work.flight, work.attempt)]
        self.memory.release(sequence.hold)
