"""`herasys simulate`: policies on clusters that nobody has to own."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herasys_rt.cli import simulation_options as options
from herasys_rt.cli.options import JsonOption
from herasys_rt.cli.output import Output
from herasys_rt.errors import ConfigError, EnvironmentFaultError

if TYPE_CHECKING:
    from herasys_rt.policies.presets import Preset
    from herasys_rt.sim.clusters import Cluster
    from herasys_rt.sim.compare import Row
    from herasys_rt.sim.experiment import Experiment, Outcome
    from herasys_rt.sim.machines import Machines
    from herasys_rt.sim.metrics import Summary
    from herasys_rt.workloads.arrivals import Workload

_DIGITS = 6
_DEFAULT = "testbed-4x4090"
_SEEDS, _MOST_SEEDS = 10, 10_000


def simulate(
    workload: options.WorkloadOption = "rag",
    cluster: options.ClusterOption = None,
    model: options.ModelOption = None,
    ordering: options.OrderingOption = None,
    placement: options.PlacementOption = None,
    seed: options.SeedOption = 0,
    runs: options.RunsOption = None,
    rate: options.RateOption = None,
    concurrency: options.ConcurrencyOption = None,
    compare: options.CompareOption = None,
    seeds: options.SeedsOption = None,
    slo: options.SloOption = 5.0,
    out: options.OutOption = None,
    profile: options.ProfileOption = None,
    backend: options.BackendOption = "auto",
    json: JsonOption = None,
) -> None:
    """Simulate a workload on a cluster: the kernel and policies are the live ones.

    Nothing is executed and no GPU is needed; the same seed gives the same records. With
    --compare several policies serve the same runs, over several seeds.

    [bold]Examples[/bold]

    herasys simulate --workload rag --cluster testbed-4x4090 --concurrency 30

    herasys simulate -w sharegpt -c hetero-1 --ordering llf --out results

    herasys simulate -w bfcl -c hetero-2 --compare fcfs,workflow_fcfs,llf,atlas

    herasys simulate -w web --profile profile.yaml --concurrency 8
    """
    with Output(json) as output:
        from herasys_rt.sim.experiment import Experiment, Load

        presets = _presets(ordering, placement, compare, seeds)
        machines = _machines(cluster, model, profile, backend)
        chosen, load = _workload(workload), Load(runs, rate, concurrency)
        experiments = [
            Experiment(chosen, machines, policy, seed + i, load, slo=slo)
            for policy in presets
            for i in range(1 if compare is None else seeds or _SEEDS)
        ]
        if compare is None:
            _one(output, experiments[0], out)
        else:
            _compare(output, experiments, out)


def _presets(
    ordering: str | None, placement: str | None, compare: str | None, seeds: int | None
) -> list[Preset]:
    """The policies that are asked for: one, or those to compare.

    Errors: `ConfigError`, also for options that would count for nothing.
    """
    from herasys_rt.policies import DEFAULTS
    from herasys_rt.policies.presets import preset

    if compare is None:
        if seeds is not None:
            raise ConfigError(
                "--seeds goes with --compare; one simulation has one seed",
                hint="Leave it out, or name policies after --compare.",
            )
        one = preset(ordering or DEFAULTS.ordering, placement or DEFAULTS.placement)
        if placement not in (None, one.policies.placement):
            raise ConfigError(
                f"{one.name} places by {one.policies.placement} itself, and --placement "
                f"says {placement}",
                hint="Leave --placement out.",
            )
        return [one]
    if ordering is not None:
        raise ConfigError(
            f"--ordering {ordering} and --compare {compare} exclude each other",
            hint="Name every policy after --compare.",
        )
    names = [name.strip() for name in compare.split(",") if name.strip()]
    found = [preset(name, placement or DEFAULTS.placement) for name in names]
    count = _SEEDS if seeds is None else seeds
    if not found or not 1 <= count <= _MOST_SEEDS:
        raise ConfigError(
            f"{len(found)} policies over {count:,} seeds cannot be compared",
            hint=f"Name policies after --compare, and 1 to {_MOST_SEEDS:,} seeds.",
        )
    return list(dict.fromkeys(found))


def _one(output: Output, experiment: Experiment, out: Path | None) -> None:
    from herasys_rt.sim.experiment import jobs_of, simulate

    count = len(jobs_of(experiment))  # refuses what cannot be, before anything starts
    _make_folder(out)
    with _bar(output, "runs", count) as advance:
        outcome = simulate(experiment, spans=out is not None, progress=advance)
    told = _told(outcome)
    _print(output, told, outcome.summary)
    if out is not None:
        _write(output, outcome, out)
    output.emit({**told, "error": None})


def _compare(output: Output, experiments: list[Experiment], out: Path | None) -> None:
    from herasys_rt.sim.compare import heading, rows_of, simulate_all, table
    from herasys_rt.sim.experiment import jobs_of
    from herasys_rt.sim.records import write_file

    first = experiments[0]
    seeds = list(dict.fromkeys(experiment.seed for experiment in experiments))
    runs = len(jobs_of(first))  # refuses what cannot be, before anything starts
    _make_folder(out)
    with _bar(output, "simulations", len(experiments)) as advance:
        outcomes = simulate_all(experiments, os.cpu_count() or 1, advance)
    rows = rows_of(outcomes)
    text = f"{heading(first, len(seeds))}\n\n{table(rows)}"
    output.console.print(text, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write_file(out / "table.md", text.encode())
        _charts(output, outcomes, out)
    output.emit(
        {
            "workload": first.workload.name,
            "cluster": first.machines.cluster.name,
            "model": first.machines.served,
            "seeds": seeds,
            "runs": runs,
            "policies": [_row(row) for row in rows],
            "error": None,
        }
    )


def _machines(
    cluster: str | None, model: str | None, profile: Path | None, backend: str
) -> Machines:
    from herasys_rt.costs.profile import read_profile
    from herasys_rt.sim.machines import Machines
    from herasys_rt.sim.profiled import profiled_cluster

    if profile is not None and backend != "auto":
        raise ConfigError(
            f"--backend {backend} is for catalogued times; --profile gives measured ones",
            hint="Leave one of them out.",
        )
    measured = read_profile(profile) if profile is not None else None
    if cluster is None and measured is not None:
        shape = profiled_cluster(measured)
    else:
        shape = _cluster(_DEFAULT if cluster is None else cluster)
    return Machines(shape, model or "", backend=backend, profile=measured)


def _cluster(name: str) -> Cluster:
    from herasys_rt.sim import clusters
    from herasys_rt.sim.cluster_files import read_cluster

    return read_cluster(Path(name)) if _is_file(name) else clusters.cluster(name)


def _workload(name: str) -> Workload:
    from herasys_rt.workloads import workload
    from herasys_rt.workloads.files import read_workload

    return read_workload(name) if _is_file(name) else workload(name)


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or os.sep in name


def _told(outcome: Outcome) -> dict[str, Any]:
    """The figures of one simulation, as JSON has them."""
    experiment, summary = outcome.experiment, outcome.summary
    return {
        "policy": experiment.preset.name,
        "workload": experiment.workload.name,
        "cluster": experiment.machines.cluster.name,
        "model": experiment.machines.served,
        "seed": experiment.seed,
        "runs": summary.runs,
        **{name: _number(getattr(summary, name)) for name in _FIGURES},
        "events": summary.events,
        "wall_s": _number(summary.wall_s),
    }


_FIGURES = (
    "mean_s",
    "p50_s",
    "p95_s",
    "p99_s",
    "throughput_rps",
    "req95",
    "req99",
    "utilisation",
    "fused_share",
    "plan_ms_mean",
)


def _row(row: Row) -> dict[str, Any]:
    figures: dict[str, Any] = {"policy": row.policy}
    for name in _FIGURES:
        median, low, high = row.figure(name)
        figures[name] = _number(median)
        figures[f"{name}_interval"] = [_number(low), _number(high)]
    return figures


def _number(value: float) -> float | None:
    """JSON has neither NaN nor infinity: a figure that is none is null."""
    return round(value, _DIGITS) if math.isfinite(value) else None


def _print(output: Output, told: dict[str, Any], summary: Summary) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, value in told.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(key, shown)
    table.add_row("succeeded", f"{summary.succeeded} of {summary.runs}")
    table.add_row("goodput_rps", f"{summary.goodput_rps:.4g}")
    for pool, share in summary.utilisations.items():
        table.add_row(f"  {pool} busy", f"{share:.1%}")
    output.console.print(table, highlight=False)


def _make_folder(out: Path | None) -> None:
    """Before anything is simulated: hours of it must not end without a place to go."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise EnvironmentFaultError(
            f"the folder {out} cannot be made: {e.strerror}",
            hint="Give --out a folder that can be written.",
            path=str(out),
        ) from e


def _write(output: Output, outcome: Outcome, out: Path) -> None:
    from herasys_rt.sim.records import records_text, write_file
    from herasys_rt.sim.timeline import timeline

    trace = outcome.trace
    write_file(out / "records.jsonl", records_text(trace.records))
    write_file(out / "timeline.json", timeline(trace.spans, trace.records))
    _charts(output, [outcome], out)


def _charts(output: Output, outcomes: list[Outcome], out: Path) -> None:
    from herasys_rt.sim.charts import attainment_chart, latency_chart
    from herasys_rt.sim.records import RunRecord

    series: dict[str, list[RunRecord]] = {}
    for outcome in outcomes:
        name = outcome.experiment.preset.name
        series.setdefault(name, []).extend(outcome.trace.records)
    machines = outcomes[0].experiment.machines
    title = f"{outcomes[0].experiment.workload.name} on {machines.cluster.name}"
    try:
        for suffix in ("svg", "png"):
            attainment_chart(series, out / f"attainment.{suffix}", title)
            latency_chart(series, out / f"latency.{suffix}", title)
    except EnvironmentFaultError as e:
        output.say(f"{e.message}. {e.hint}")
    output.say(f"results are in {out}")


@contextlib.contextmanager
def _bar(output: Output, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error; gives the function that moves it on."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), Elapsed())
    step = max(1, total // 200)
    console = output.progress
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=total)

        def advance(done: int) -> None:
            if done % step == 0 or done == total:
                progress.update(task, completed=done)

        yield advance
