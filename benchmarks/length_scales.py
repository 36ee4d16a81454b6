"""One length scale for each of HexAGenT's traces, fitted to its per-call FCFS.

The traces are not public; the ones here are drawn (docs/workloads.md), and each has one
number by which the lengths of its prompts are multiplied. This finds the number at which
Req95 of per-call FCFS on cluster H1 is the paper's (Table 1), by bisection where it
crosses that nearest to 1, on one model. The other model's cell and Req99 are not looked at
and show how good the traces are; HexAGenT's own cells have no part in it.

Prints one JSON object; ``fits`` has per trace: ``model`` and ``target`` (paper's Req95 and
Req99), ``scale`` (null: none between the bounds reaches it), ``tried`` ([scale, Req95,
Req99], medians over seeds), ``found`` at the scale, ``other`` and ``other_target`` on the
other model.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks._common import emit, facts, standard_arguments
from herasys_rt.figures import percentile
from herasys_rt.policies.presets import preset
from herasys_rt.sim.clusters import cluster
from herasys_rt.sim.compare import simulate_all
from herasys_rt.sim.experiment import Experiment
from herasys_rt.sim.machines import Machines
from herasys_rt.workloads import workload
from herasys_rt.workloads.catalogue import LENGTH_SCALE

LLAMA, QWEN = "llama-3.1-70b", "qwen3-235b-a22b"
GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TOLERANCE = 0.01
MOST_STEPS = 5

Cell = tuple[float, float]
"""(Req95, Req99)."""


class Target(NamedTuple):
    """A trace's cell to fit, and the other model's to compare with, where there is one."""

    trace: str
    model: str
    cell: Cell
    other: str
    other_cell: Cell | None


TARGETS = (
    Target("sharegpt", LLAMA, (5.85, 7.43), QWEN, None),
    Target("bfcl", LLAMA, (13.81, 17.23), QWEN, (21.11, 26.89)),
    Target("lats", LLAMA, (3.21, 3.29), QWEN, (4.55, 4.78)),
    Target("agents_mixed", QWEN, (11.15, 15.84), LLAMA, None),
)
"""HexAGenT, Table 1."""


def bisect(
    cell_at: Callable[[float], Cell], target: float
) -> tuple[float | None, list[tuple[float, float, float]]]:
    """A scale near to 1 at which the first of ``cell_at``'s figures is ``target``, None
    when it crosses that nowhere on `GRID`; and what was tried, by scale.

    The figure need not rise with the scale everywhere. Halves in the logarithm.
    """
    tried: dict[float, Cell] = {}

    def above(scale: float) -> bool:
        if scale not in tried:
            tried[scale] = cell_at(scale)
        return tried[scale][0] > target

    def points() -> list[tuple[float, float, float]]:
        return [(scale, *tried[scale]) for scale in sorted(tried)]

    # From 1 outwards; first the way that the figure must go if it rises with the scale.
    nearest = sorted(pairwise(GRID), key=lambda pair: abs(math.log(pair[0] * pair[1])))
    downwards = above(1.0)
    nearest.sort(key=lambda pair: (pair[0] >= 1.0) == downwards)
    crossing = next((pair for pair in nearest if above(pair[0]) != above(pair[1])), None)
    if crossing is None:
        return None, points()
    low, high = crossing
    best, rising = low, above(high)
    for _ in range(MOST_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if above(middle) == rising else (middle, high)
        best = min((low, high, best), key=lambda scale: abs(tried[scale][0] / target - 1))
        if abs(tried[best][0] / target - 1) < TOLERANCE:
            break
    return best, points()


def cell_of(trace: str, model: str, scale: float, seeds: int, workers: int) -> Cell:
    """Medians over seeds of per-call FCFS on H1."""
    LENGTH_SCALE[trace] = scale
    chosen = workload(trace)  # has its lengths from now on, also in workers
    machines = Machines(cluster("hetero-1"), model)
    outcomes = simulate_all(
        [Experiment(chosen, machines, preset("per_call"), seed) for seed in range(seeds)],
        workers,
    )
    req95, req99 = (
        percentile([getattr(o.summary, figure) for o in outcomes], 50)
        for figure in ("req95", "req99")
    )
    print(
        f"{trace} {model} scale {scale:.3f}: {req95:.2f} / {req99:.2f}",
        file=sys.stderr,
        flush=True,
    )
    return req95, req99


def fit(target: Target, seeds: int, workers: int) -> dict[str, Any]:
    """One trace's scale, and how its cells are there."""

    def cell_at(model: str, scale: float) -> Cell:
        return cell_of(target.trace, model, scale, seeds, workers)

    scale, tried = bisect(lambda at: cell_at(target.model, at), target.cell[0])
    used = scale if scale is not None else 1.0
    found = next(point[1:] for point in tried if point[0] == used)
    other = cell_at(target.other, used)
    return {
        "model": target.model,
        "target": target.cell,
        "scale": None if scale is None else round(scale, 3),
        "tried": [[round(x, 3) for x in point] for point in tried],
        "found": [round(x, 3) for x in found],
        "other": [round(x, 3) for x in other],
        "other_target": target.other_cell,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    standard_arguments(parser)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--traces", nargs="*", default=[t.trace for t in TARGETS])
    args = parser.parse_args()
    seeds = 2 if args.quick else 5
    fits = {t.trace: fit(t, seeds, args.workers) for t in TARGETS if t.trace in args.traces}
    emit({"fits": fits, **facts(seeds=range(seeds))}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
