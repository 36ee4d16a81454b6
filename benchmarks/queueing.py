"""The simulator against queueing theory: mean waits of M/M/1 and M/D/1.

One slot, Poisson arrivals, services of 1 s in the mean, at loads of 0.5 and 0.8, through
the whole loop: kernel, policies, modelled instance. The mean of so many waits scatters by
several percent around the formula, whoever computes it; so it is corrected by a control
variate: Lindley's recursion over the same draws, whose own mean is taken over ten million
more (arithmetic is cheap, decisions are not). Prints one JSON object:

    cells      per queue and load: jobs simulated, wait_s (corrected), raw_wait_s,
               lindley_gap_s (largest difference of a single wait), theory_s, error,
               raw_error (of raw_wait_s: what chance alone does to so few jobs)
    max_error  the largest error of a corrected wait, as a fraction (wanted: 0.03)
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from benchmarks._common import emit, facts, standard_arguments
from herasys_rt import policies
from herasys_rt.core.kernel import KernelConfig, new_state
from herasys_rt.sim.arrivals import OpenLoop
from herasys_rt.sim.clusters import Cluster, PoolShape
from herasys_rt.sim.machines import Machines
from herasys_rt.sim.simulation import Simulation
from herasys_rt.workloads import Job, Step, Truth

LOADS = (0.5, 0.8)
QUEUES = ("M/M/1", "M/D/1")
SEED = 1
MANY = 10_000_000


def simulated(gaps: np.ndarray[Any, Any], services: np.ndarray[Any, Any]) -> list[float]:
    """The waits of jobs with these gaps and services, in order of arrival."""
    jobs = [
        Job(
            f"j{i}",
            "job",
            (Step("a", "python.call", "python", "job@1", Truth(seconds=float(s))),),
            float(at),
        )
        for i, (at, s) in enumerate(zip(np.cumsum(gaps), services, strict=True))
    ]
    machines = Machines(Cluster("one", (PoolShape("python", "python", slots=1),)))
    config = KernelConfig(fusion=False, max_active_runs=len(jobs) + 1)
    simulation = Simulation(
        new_state(config, *policies.build()), machines, jobs, OpenLoop(jobs), horizons=False
    )
    records = sorted(simulation.run().records, key=lambda record: record.arrival_s)
    return [record.queued_s for record in records]


def lindley(
    gaps: np.ndarray[Any, Any], services: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """W(n+1) = max(0, W(n) + S(n) - A(n+1)), as the distance of a walk from its lowest."""
    walk = np.concatenate([[0.0], np.cumsum(services[:-1] - gaps[1:])])
    return walk - np.minimum.accumulate(walk)


def theory(queue: str, load: float) -> float:
    """Pollaczek-Khinchine: rate * E[S^2] / (2 (1 - load)), services of 1 s."""
    return load * (2.0 if queue == "M/M/1" else 1.0) / (2 * (1 - load))


def draw(
    queue: str, load: float, jobs: int, draws: np.random.Generator
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(gaps, services) in seconds."""
    gaps = draws.exponential(1 / load, jobs)
    services = draws.exponential(1.0, jobs) if queue == "M/M/1" else np.ones(jobs)
    return gaps, services


def cell(queue: str, load: float, jobs: int) -> dict[str, Any]:
    """One queue at one load."""
    draws = np.random.Generator(np.random.PCG64(SEED))
    few = draw(queue, load, jobs, draws)
    waits, same = np.array(simulated(*few)), lindley(*few)
    many = float(lindley(*draw(queue, load, MANY, draws)).mean())
    raw = float(waits.mean())
    wait = raw - float(same.mean()) + many
    expected = theory(queue, load)
    return {
        "queue": queue,
        "load": load,
        "jobs": jobs,
        "wait_s": round(wait, 5),
        "raw_wait_s": round(raw, 5),
        "lindley_gap_s": float(np.abs(waits - same).max()),
        "theory_s": round(expected, 5),
        "error": round(abs(wait / expected - 1), 5),
        "raw_error": round(abs(raw / expected - 1), 5),
    }


def measure(quick: bool) -> dict[str, Any]:
    """The benchmark's result."""
    jobs = 5_000 if quick else 50_000
    cells = [cell(queue, load, jobs) for queue in QUEUES for load in LOADS]
    return {"cells": cells, "max_error": max(c["error"] for c in cells)}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    standard_arguments(parser)
    args = parser.parse_args()
    emit({**measure(args.quick), **facts(seeds=[SEED])}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
