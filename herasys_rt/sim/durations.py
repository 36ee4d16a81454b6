"""How long work takes alone: what predictions and horizons are made of."""

from __future__ import annotations

import heapq
import math

import msgspec

from herasys_rt.core.progress import Mean
from herasys_rt.costs.lengths import OutputLengths
from herasys_rt.costs.network import kv_transfer_s
from herasys_rt.costs.service import ServiceModel
from herasys_rt.costs.work import Work
from herasys_rt.sim.clusters import BATCHED
from herasys_rt.sim.machines import Kind, Machines
from herasys_rt.workloads.arrivals import BLOCK_TOKENS, Job, Step, Truth

_UNSEEN_S = 0.5
"""Predicted for a time outside of which none was seen yet."""


def alone_s(service: ServiceModel, verb: str, truth: Truth) -> float:
    """Engine seconds of one step with an instance to itself."""
    if truth.seconds is not None:
        return truth.seconds
    steps = service.steps
    if steps is not None and verb == "llm.decode":
        count = max(truth.output_tokens - 1, 1)
        middle = max(truth.prompt_tokens, 1) + truth.output_tokens // 2
        return count * steps.decode_s(1, middle)
    work = Work(
        prompt_tokens=max(truth.prompt_tokens, 1),
        cached_tokens=min(truth.cached_tokens, max(truth.prompt_tokens - 1, 0)),
        output_tokens=truth.output_tokens,
        items=truth.items,
        tokens=truth.tokens,
    )
    return service.predicted_s(verb, work)


class Lane:
    """The equal instances of a pool: ``count`` of a kind, and how long work takes alone
    on one of them. Remembers the calls of language models: runs have many alike."""

    __slots__ = ("_known", "count", "kind")

    def __init__(self, kind: Kind, count: int) -> None:
        self.kind = kind
        self.count = count
        self._known: dict[tuple[str, int, int, int], float] = {}

    def alone_s(self, verb: str, truth: Truth) -> float:
        """See `alone_s`."""
        if self.kind.service.steps is None or truth.seconds is not None:
            return alone_s(self.kind.service, verb, truth)
        key = (verb, truth.prompt_tokens, truth.cached_tokens, truth.output_tokens)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = alone_s(self.kind.service, verb, truth)
        return found


def lanes(machines: Machines, pool: str) -> list[Lane]:
    """The lanes of a pool, one per kind in the order of first appearance."""
    found: dict[int, Lane] = {}
    for machine in machines.of(pool):
        kind = machine.kind
        found.setdefault(id(kind), Lane(kind, 0)).count += 1
    return list(found.values())


class Forecast:
    """Predicts what a scheduler could know before a step runs: its prompt, and an output
    (or a time outside) like those of its kind so far, on the average instance of its
    pool."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._lengths = OutputLengths()
        self._outside: dict[tuple[str, str], Mean] = {}
        self._lanes: dict[str, list[Lane]] = {}

    def seconds(self, job: Job, steps: tuple[Step, ...]) -> tuple[float, ...]:
        """Per step, in order."""
        return tuple([self._predicted_s(job, step) for step in steps])

    def kv_tokens(self, job: Job, steps: tuple[Step, ...]) -> tuple[int, ...]:
        """Per step, in order: its prompt and the output it is expected to have."""
        return tuple([self._held(job, step) for step in steps])

    def observe(self, job: Job, step: Step) -> None:
        """A step has ended."""
        truth, key = step.truth, (job.kind, _label(step))
        if truth.output_tokens:
            self._lengths.observe(*key, truth.output_tokens)
        elif truth.seconds is not None:
            self._outside.setdefault(key, Mean()).add(truth.seconds)

    def _held(self, job: Job, step: Step) -> int:
        truth = step.truth
        output = self._output(job, step) if truth.output_tokens else 0
        return truth.prompt_tokens + output

    def _output(self, job: Job, step: Step) -> int:
        return max(round(self._lengths.expected(job.kind, _label(step))), 1)

    def _predicted_s(self, job: Job, step: Step) -> float:
        truth, key = step.truth, (job.kind, _label(step))
        if truth.seconds is not None:
            mean = self._outside.get(key)
            return mean.value if mean is not None else _UNSEEN_S
        if truth.output_tokens:
            truth = Truth(
                prompt_tokens=truth.prompt_tokens,
                output_tokens=self._output(job, step),
                cached_tokens=truth.cached_tokens,
            )
        found = self._of(step)
        total = sum([lane.count for lane in found])
        return sum([lane.alone_s(step.verb, truth) * lane.count for lane in found]) / total

    def _of(self, step: Step) -> list[Lane]:
        pool = self._machines.shape_for(step).name
        found = self._lanes.get(pool)
        if found is None:
            found = self._lanes[pool] = lanes(self._machines, pool)
        return found


def _label(step: Step) -> str:
    return step.label or step.operator


class Standalone:
    """H_w: how long a job takes if it has the idle cluster to itself (HexAGenT 4).

    A list schedule with the true lengths: whatever is ready first goes where it ends
    first. Prompts on prefill instances and batches wait for each other; what an instance
    does side by side (decoding, searching) is taken as undisturbed. Where pools have
    prefix caches a prompt finds what its own run has computed before. Policies have no part
    in it, so every policy is measured against the same H.
    """

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._lanes: dict[str, list[Lane]] = {}

    def seconds(self, job: Job) -> float:
        """From the job's arrival to the end of its last step; ``job`` as it is executed
        (staged where the cluster is split)."""
        steps = job.steps
        at = {step.id: i for i, step in enumerate(steps)}
        left = [len(set(step.parents)) for step in steps]
        children: list[list[int]] = [[] for _ in steps]
        for i, step in enumerate(steps):
            for parent in dict.fromkeys(step.parents):
                children[at[parent]].append(i)
        ready = [(step.after_s, i) for i, step in enumerate(steps) if not left[i]]
        heapq.heapify(ready)
        ends: list[float] = [0.0] * len(steps)
        free: dict[int, list[float]] = {}
        where: dict[str, Kind] = {}
        seen: set[int] = set()
        last_s = 0.0
        while ready:
            now, i = heapq.heappop(ready)
            step = steps[i]
            ends[i] = self._place(step, now, free, where, seen)
            last_s = max(last_s, ends[i])
            for child in children[i]:
                left[child] -= 1
                if not left[child]:
                    parents = [ends[at[p]] for p in steps[child].parents]
                    heapq.heappush(ready, (max(parents) + steps[child].after_s, child))
        return last_s

    def _place(
        self,
        step: Step,
        now: float,
        free: dict[int, list[float]],
        where: dict[str, Kind],
        seen: set[int],
    ) -> float:
        """Put a step where it ends first; gives that end. ``free`` has for each lane the
        heap of when its instances are."""
        pool = self._machines.shape_for(step)
        exclusive = pool.role == "prefill" or pool.resource in BATCHED
        came_from = where.get(step.parents[0]) if step.verb == "llm.decode" else None
        best: Lane | None = None
        best_s = math.inf
        truth = _cached(step.truth, seen) if pool.prefix_cache else step.truth
        for lane in self._of(pool.name):
            seconds = lane.alone_s(step.verb, truth)
            if came_from is not None and came_from.end and lane.kind.end:
                tokens = step.truth.prompt_tokens
                seconds += kv_transfer_s(tokens, came_from.end, lane.kind.end)
            start_s = now
            if exclusive and (busy := free.get(id(lane))) is not None and busy[0] > now:
                start_s = busy[0]
            if start_s + seconds < best_s:
                best, best_s = lane, start_s + seconds
        assert best is not None
        if exclusive:
            heapq.heapreplace(free.setdefault(id(best), [0.0] * best.count), best_s)
        where[step.id] = best.kind
        return best_s

    def _of(self, pool: str) -> list[Lane]:
        found = self._lanes.get(pool)
        if found is None:
            found = self._lanes[pool] = lanes(self._machines, pool)
        return found


def _cached(truth: Truth, seen: set[int]) -> Truth:
    """The truth with what is cached of its prompt, whose blocks are ``seen`` from now."""
    if not truth.prefix:
        return truth
    hits = 0
    while hits < len(truth.prefix) and truth.prefix[hits] in seen:
        hits += 1
    seen.update(truth.prefix)
    seen.update(truth.produced)
    cached = max(truth.cached_tokens, hits * BLOCK_TOKENS)
    return msgspec.structs.replace(truth, cached_tokens=cached)
