"""How fast the kernel decides: events a second at 1,000, 10,000 and 100,000 active nodes.

A closed loop of three-node runs (embed, search, generate; a tenth of them repeats of the
newest ones) over pools of a testbed, the kernel alone: no engine, no clock, no journal.
An event is one item's outcome or one reveal (a run's arrival reveals its graph). Every
value is another one, so that work is looked up by value and only repeats fuse. Ordering
``fcfs``, fusion table on, invariant validation off; garbage collection as in the
scheduler's process. Prints one JSON object:

    sizes          active nodes
    events_per_s   at each size: the median over repeats
    p99_event_ms   at each size, of single events
    exponent       fitted: seconds per event grow with (active nodes) ** exponent
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections import deque
from typing import Any

from benchmarks._common import emit, facts, standard_arguments
from herasys_rt import policies
from herasys_rt.core.commands import FinishRun, StartBatch, WorkItem
from herasys_rt.core.events import (
    Event,
    InstanceUp,
    ItemFinished,
    PoolDeclared,
    RunSubmitted,
    SpecRegistered,
)
from herasys_rt.core.kernel import KernelConfig, State, handle, new_state
from herasys_rt.core.policy import PolicyNames
from herasys_rt.core.values import Value
from herasys_rt.figures import percentile
from herasys_rt.workloads import Job, workload
from herasys_rt.workloads.specs import Specs

SIZES = (1_000, 10_000, 100_000)
NODES = 3
"""Of one run."""
EVENTS = NODES + 1
"""Of one run: its arrival, and an outcome per node (fewer where work fuses)."""
POOLS: tuple[tuple[PoolDeclared, int, int], ...] = (
    (
        PoolDeclared(
            "embedding", "embedding", batched=True, batch_limit=32, verbs=("embed",)
        ),
        3,
        1,
    ),
    (PoolDeclared("retrieval", "retrieval", verbs=("pg.search",)), 1, 8),
    (PoolDeclared("llm", "llm", verbs=("llm.generate",)), 2, 256),
)
"""(pool, instances, slots of each)."""


class Loop:
    """A kernel that is kept at a number of active nodes: items end in the order in which
    they were started, and each run that ends makes room for the next."""

    def __init__(self, active: int, events: int) -> None:
        names = PolicyNames("fcfs", "least_loaded", policies.DEFAULTS.batching)
        self.state: State = new_state(
            KernelConfig(max_active_runs=active), *policies.build(names)
        )
        self._now = 0.0
        self._running: deque[tuple[str, WorkItem]] = deque()
        self._waiting = 0
        # Made ahead: they are the client's and the fuser's work.
        self._arrivals = deque(_arrivals(active // NODES + events // 2 + 1))
        for pool, instances, slots in POOLS:
            self._tell(pool)
            for i in range(instances):
                self._tell(InstanceUp(f"{pool.pool}-{i}", pool.pool, slots))
        self._tell(SpecRegistered(_spec().run(_jobs(1)[0]).spec))
        for _ in range(active // NODES):
            self._tell(self._arrivals.popleft())

    def step(self) -> None:
        """One event."""
        if self._waiting:
            self._waiting -= 1
            self._tell(self._arrivals.popleft())
            return
        instance, item = self._running.popleft()
        value = Value(item.flight.to_bytes(32), 0, b"")
        self._tell(ItemFinished(item.flight, item.attempt, instance, value, 0.1))

    def _tell(self, event: Event) -> None:
        self._now += 1e-4
        for command in handle(self.state, event, self._now):
            if isinstance(command, StartBatch):
                self._running.extend([(command.instance, i) for i in command.items])
            elif isinstance(command, FinishRun):
                self._waiting += 1


def _spec() -> Specs:
    return Specs()


def _jobs(runs: int) -> list[Job]:
    return list(workload("rag").jobs(0, runs, None))


def _arrivals(runs: int) -> list[RunSubmitted]:
    specs = _spec()
    told: list[RunSubmitted] = []
    for job in _jobs(runs):
        piece = specs.run(job)
        told.append(
            RunSubmitted(
                job.id,
                piece.spec.id,
                "client",
                job.tenant,
                Value(b"", len(piece.inputs), piece.inputs),
                piece.signatures,
                piece.collections,
                seeds=piece.seeds,
                own_collections=piece.own_collections,
            )
        )
    return told


def as_the_scheduler() -> None:
    """Let Python's collector look as rarely as the scheduler's process lets it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def throughput(active: int, events: int) -> float:
    """Events a second, over the whole loop."""
    loop = Loop(active, events)
    step = loop.step
    for _ in range(events // 10):
        step()
    started = time.perf_counter()
    for _ in range(events):
        step()
    return events / (time.perf_counter() - started)


def p99_s(active: int, events: int) -> float:
    """The 99th percentile of single events, in seconds."""
    loop = Loop(active, events)
    took: list[float] = []
    for _ in range(events):
        started = time.perf_counter()
        loop.step()
        took.append(time.perf_counter() - started)
    return percentile(took, 99)


def exponent(sizes: tuple[int, ...], events_per_s: list[float]) -> float:
    """The slope of log(seconds per event) over log(active nodes), least squares."""
    xs = [math.log(size) for size in sizes]
    ys = [-math.log(rate) for rate in events_per_s]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - mean_x) ** 2 for x in xs)


def measure(quick: bool) -> dict[str, Any]:
    """The benchmark's result."""
    events, repeats = (20_000, 3) if quick else (100_000, 5)
    as_the_scheduler()
    rates: list[list[float]] = [
        [throughput(size, events) for _ in range(repeats)] for size in SIZES
    ]
    medians = [percentile(mine, 50) for mine in rates]
    return {
        "sizes": list(SIZES),
        "events_per_s": [round(rate) for rate in medians],
        "p99_event_ms": [round(1e3 * p99_s(size, events), 4) for size in SIZES],
        "exponent": round(exponent(SIZES, medians), 4),
        "events_per_s_by_repeat": [[round(rate) for rate in mine] for mine in rates],
        "events": events,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    standard_arguments(parser)
    args = parser.parse_args()
    emit({**measure(args.quick), **facts(seeds=[0])}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
