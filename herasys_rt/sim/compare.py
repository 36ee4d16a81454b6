"""Policies against each other: the same jobs, several seeds, one table."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec

from herasys_rt.sim.experiment import Experiment, Outcome, simulate
from herasys_rt.sim.metrics import Summary, spread

FIGURES: tuple[tuple[str, str, str], ...] = (
    ("mean_s", "mean (s)", "low"),
    ("p50_s", "P50 (s)", "low"),
    ("p95_s", "P95 (s)", "low"),
    ("p99_s", "P99 (s)", "low"),
    ("throughput_rps", "runs/s", "high"),
    ("req95", "Req95", "low"),
    ("req99", "Req99", "low"),
    ("goodput_rps", "goodput (runs/s)", "high"),
    ("fused_share", "fused", ""),
)
"""(field of `Summary`, title, which end is better)."""


class Row(msgspec.Struct, frozen=True):
    """One policy over its seeds."""

    policy: str
    summaries: tuple[Summary, ...]

    def figure(self, field: str) -> tuple[float, float, float]:
        """(median, lower, upper) over the seeds; see `metrics.spread`."""
        return spread([getattr(summary, field) for summary in self.summaries])


def simulate_all(
    experiments: Sequence[Experiment],
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[Outcome]:
    """The outcomes of experiments, in their order, on ``workers`` processes.

    ``progress`` is told how many are done. Errors: the first that one of them raises.
    """
    outcomes: list[Outcome | None] = [None] * len(experiments)
    for done, (i, outcome) in enumerate(_outcomes(experiments, workers), 1):
        outcomes[i] = outcome
        if progress is not None:
            progress(done)
    return [outcome for outcome in outcomes if outcome is not None]


def _outcomes(
    experiments: Sequence[Experiment], workers: int
) -> Iterator[tuple[int, Outcome]]:
    """(number, outcome) of each experiment, as they end."""
    if workers < 2 or len(experiments) < 2:
        for i, experiment in enumerate(experiments):
            yield i, simulate(experiment)
        return
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(experiments)), spawning) as pool:
        futures = {pool.submit(simulate, e): i for i, e in enumerate(experiments)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()


def rows_of(outcomes: list[Outcome]) -> list[Row]:
    """One row per policy, in the order of first appearance."""
    found: dict[str, list[Summary]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.experiment.preset.name, []).append(outcome.summary)
    return [Row(name, tuple(summaries)) for name, summaries in found.items()]


def table(rows: list[Row]) -> str:
    """A markdown table: the median over seeds with its interval, the best in bold."""
    best: dict[str, float] = {}
    for field, _, better in FIGURES:
        medians = [row.figure(field)[0] for row in rows]
        if better:
            best[field] = (min if better == "low" else max)(medians)
    lines = [
        "| policy | " + " | ".join(title for _, title, _ in FIGURES) + " |",
        "|---" * (len(FIGURES) + 1) + "|",
    ]
    for row in rows:
        cells = [_cell(row.figure(f), best.get(f), len(rows)) for f, _, _ in FIGURES]
        lines.append(f"| {row.policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def heading(experiment: Experiment, seeds: int) -> str:
    """What a table is of, in one line."""
    machines = experiment.machines
    return (
        f"{experiment.workload.name} on {machines.cluster.name}, {machines.served}, "
        f"seeds: {seeds}; median over seeds [2.5th, 97.5th percentile of the seeds], "
        f"goodput within {experiment.slo:g} H"
    )


def _cell(figure: tuple[float, float, float], best: float | None, rows: int) -> str:
    median, low, high = figure
    told = f"{median:.3g}"
    if rows > 1 and best is not None and median == best:
        told = f"**{told}**"
    return told if low == high else f"{told} [{low:.3g}, {high:.3g}]"
