"""The baselines of HexAGenT's tables: four traces, six settings, four policies, ten seeds.

Prints a table (with ``--json`` one JSON object) of Req95 and Req99 per cell, the paper's
figures beside them where it has them:

    cells   per trace, setting and policy: req95, req99 (median, lowest and highest over the
            seeds), by_seed ([seed, Req95, Req99]), paper (Req95, Req99 or null)
    means   per setting: the mean over the traces of the best baseline of each, and the
            paper's (tables 2 and 4); only with all four traces
    wall_s, cpu_s   seconds on the clock, and of all workers

A weak baseline proves nothing: ``--tune`` runs every variant of each (which instance, what
LLF takes as the deadline) on fewer seeds, and `POLICIES` names the ones that were best.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from typing import Any, NamedTuple

from benchmarks._common import emit, facts, standard_arguments
from herasys_rt.figures import percentile
from herasys_rt.policies.presets import preset
from herasys_rt.sim.clusters import cluster
from herasys_rt.sim.experiment import Experiment, simulate
from herasys_rt.sim.machines import Machines
from herasys_rt.workloads import workload

LLAMA, QWEN = "llama-3.1-70b", "qwen3-235b-a22b"
TRACES = ("sharegpt", "bfcl", "lats", "agents_mixed")
SETTINGS = {
    "llama-h1": ("hetero-1", LLAMA),
    "llama-h2": ("hetero-2", LLAMA),
    "qwen-h1": ("hetero-1", QWEN),
    "qwen-h2": ("hetero-2", QWEN),
    "llama-h200": ("homog-h200", LLAMA),
    "qwen-a100": ("homog-a100", QWEN),
}
"""Name -> (cluster, model)."""
POLICIES = {
    "per-call FCFS": "per_call",
    "workflow-FCFS": "workflow_fcfs",
    "LLF": "llf_4x",
    "ATLAS": "atlas",
}
"""The paper's baselines, each as the best of its `VARIANTS`; per-call FCFS as the paper
has it, since traces are fitted to it."""
VARIANTS = {
    "per-call FCFS": ("per_call", "fcfs", "fcfs+round_robin"),
    "workflow-FCFS": ("workflow_fcfs", "workflow_fcfs+round_robin"),
    "LLF": tuple(
        f"{llf}{at}" for llf in ("llf", "llf_2x", "llf_4x") for at in ("", "+round_robin")
    ),
    "ATLAS": ("atlas", "atlas+round_robin"),
}
PAPER = {
    ("sharegpt", "llama-h1", "per-call FCFS"): (5.85, 7.43),
    ("bfcl", "llama-h1", "per-call FCFS"): (13.81, 17.23),
    ("lats", "llama-h1", "per-call FCFS"): (3.21, 3.29),
    ("sharegpt", "llama-h1", "workflow-FCFS"): (4.50, 6.22),
    ("bfcl", "llama-h1", "workflow-FCFS"): (7.23, 9.80),
    ("lats", "llama-h1", "workflow-FCFS"): (2.37, 3.03),
    ("bfcl", "qwen-h1", "per-call FCFS"): (21.11, 26.89),
    ("lats", "qwen-h1", "per-call FCFS"): (4.55, 4.78),
    ("agents_mixed", "qwen-h1", "per-call FCFS"): (11.15, 15.84),
    ("bfcl", "qwen-h1", "workflow-FCFS"): (9.64, 11.67),
    ("lats", "qwen-h1", "workflow-FCFS"): (3.21, 4.27),
    ("agents_mixed", "qwen-h1", "workflow-FCFS"): (10.30, 15.01),
    ("sharegpt", "qwen-h1", "LLF"): (4.58, 5.45),
    ("bfcl", "qwen-h1", "LLF"): (8.90, 11.13),
    ("lats", "qwen-h1", "LLF"): (3.06, 3.33),
    ("agents_mixed", "qwen-h1", "LLF"): (5.85, 8.96),
}
"""(trace, setting, baseline) -> (Req95, Req99): HexAGenT, tables 1 and 3."""
PAPER_MEANS = {
    "llama-h1": (4.00, 4.75),
    "llama-h2": (3.12, 3.65),
    "qwen-h1": (5.60, 7.22),
    "qwen-h2": (4.42, 6.11),
    "llama-h200": (6.52, 8.37),
    "qwen-a100": (6.89, 8.33),
}
"""The best baseline of each trace, the mean over the traces: HexAGenT, tables 2 and 4."""


class Task(NamedTuple):
    """One simulation, by names."""

    trace: str
    setting: str
    policy: str
    seed: int


class Found(NamedTuple):
    """What one simulation came to."""

    req95: float
    req99: float
    cpu_s: float


def run(task: Task) -> Found:
    """Simulate; in a worker process."""
    started_s = time.process_time()
    experiment = Experiment(
        workload(task.trace), _machines(task.setting), preset(task.policy), task.seed
    )
    told = simulate(experiment).summary
    return Found(told.req95, told.req99, time.process_time() - started_s)


@cache
def _machines(setting: str) -> Machines:
    return Machines(cluster(SETTINGS[setting][0]), SETTINGS[setting][1])


def run_all(tasks: Sequence[Task], workers: int) -> dict[Task, Found]:
    """Every task's outcome; tells on standard error how far it is."""
    found: dict[Task, Found] = {}
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawning) as pool:
        futures = {pool.submit(run, task): task for task in tasks}
        for done, future in enumerate(as_completed(futures), 1):
            found[futures[future]] = future.result()
            if done % 20 == 0 or done == len(tasks):
                print(f"{done} of {len(tasks)} simulations", file=sys.stderr, flush=True)
    return found


def cells_of(
    found: dict[Task, Found], baselines: dict[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """One cell per trace, setting and policy, over the seeds."""
    of_policy = {policy: name for name, many in baselines.items() for policy in many}
    grouped: dict[tuple[str, str, str], list[tuple[int, Found]]] = {}
    for task in sorted(found):
        key = (task.trace, task.setting, task.policy)
        grouped.setdefault(key, []).append((task.seed, found[task]))
    cells: list[dict[str, Any]] = []
    for (trace, setting, policy), seeds in grouped.items():
        name = of_policy[policy]
        cells.append(
            {
                "trace": trace,
                "setting": setting,
                "baseline": name,
                "policy": policy,
                "req95": _spread([f.req95 for _, f in seeds]),
                "req99": _spread([f.req99 for _, f in seeds]),
                "paper": PAPER.get((trace, setting, name)),
                "by_seed": [[s, round(f.req95, 3), round(f.req99, 3)] for s, f in seeds],
            }
        )
    return cells


def means_of(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per setting the mean over the traces of each one's best baseline."""
    means: dict[str, Any] = {}
    for setting in SETTINGS:
        bests: list[tuple[float, float]] = []
        for trace in TRACES:
            here = [c for c in cells if (c["trace"], c["setting"]) == (trace, setting)]
            if here:
                best = min(here, key=lambda c: c["req95"][0])
                bests.append((best["req95"][0], best["req99"][0]))
        if len(bests) == len(TRACES):
            mean = [
                round(sum(figures) / len(bests), 2) for figures in zip(*bests, strict=True)
            ]
            means[setting] = {"best": mean, "paper": PAPER_MEANS[setting]}
    return means


def table(figures: dict[str, Any]) -> str:
    """The cells in markdown: medians of Req95 / Req99, in brackets the lowest and highest
    Req95 over the seeds, then the paper's."""
    cells = figures["cells"]
    present = {(c["baseline"], c["policy"]) for c in cells}
    order = [(name, policy) for name, many in VARIANTS.items() for policy in many]
    policies = [column for column in order if column in present]
    titles = [
        name if len(policies) <= len(POLICIES) else policy for name, policy in policies
    ]
    lines = ["| setting | trace | " + " | ".join(titles) + " |"]
    lines.append("|---" * (len(policies) + 2) + "|")
    at = {(c["setting"], c["trace"], c["policy"]): c for c in cells}
    for setting in SETTINGS:
        for trace in TRACES:
            row = [at.get((setting, trace, policy)) for _, policy in policies]
            if any(row):
                told = " | ".join("" if c is None else _told(c) for c in row)
                lines.append(f"| {setting} | {trace} | {told} |")
    lines += [
        "",
        "| setting | best baseline, mean of the traces | paper |",
        "|---|---|---|",
    ]
    for setting, mean in figures["means"].items():
        best, paper = (
            f"{q95:.2f} / {q99:.2f}" for q95, q99 in (mean["best"], mean["paper"])
        )
        lines.append(f"| {setting} | {best} | {paper} |")
    return "\n".join(lines) + "\n"


def _told(cell: dict[str, Any]) -> str:
    (median, low, high), paper = cell["req95"], cell["paper"]
    told = f"{median:.2f} / {cell['req99'][0]:.2f} [{low:.2f}, {high:.2f}]"
    return told if paper is None else f"{told} (paper {paper[0]:.2f} / {paper[1]:.2f})"


def _spread(values: Sequence[float]) -> list[float]:
    return [round(v, 3) for v in (percentile(values, 50), min(values), max(values))]


def measure(
    traces: Sequence[str],
    settings: Sequence[str],
    baselines: dict[str, Sequence[str]],
    seeds: int,
    workers: int,
) -> dict[str, Any]:
    """The benchmark's result."""
    tasks = [
        Task(trace, setting, policy, seed)
        for trace in traces
        for setting in settings
        for many in baselines.values()
        for policy in many
        for seed in range(seeds)
    ]
    started_s = time.perf_counter()
    found = run_all(tasks, workers)
    wall_s = time.perf_counter() - started_s
    cells = cells_of(found, baselines)
    return {
        "cells": cells,
        "means": means_of(cells),
        "simulations": len(tasks),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(sum(f.cpu_s for f in found.values()), 1),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    standard_arguments(parser)
    parser.add_argument("--tune", action="store_true", help="every variant on 3 seeds")
    parser.add_argument("--traces", nargs="+", choices=TRACES, default=list(TRACES))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=None)
    parser.add_argument("--seeds", type=int, default=None, help="default 10, or 3")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    few = args.tune or args.quick
    seeds = args.seeds or (3 if few else 10)
    settings = args.settings or (["llama-h1", "qwen-h1"] if few else list(SETTINGS))
    baselines: dict[str, Sequence[str]] = (
        dict(VARIANTS) if args.tune else {name: (p,) for name, p in POLICIES.items()}
    )
    figures = measure(args.traces, settings, baselines, seeds, args.workers)
    if args.json != "-":
        print(table(figures))
    if args.json is not None:
        emit({**figures, **facts(seeds=range(seeds))}, args.json)
    else:
        print(f"wall {figures['wall_s']} s, CPU {figures['cpu_s']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
