"""`herasys simulate`: policies on clusters that nobody has to own."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from herasys_rt.cli.options import JsonOption
from herasys_rt.cli.output import Output
from herasys_rt.errors import ConfigError

if TYPE_CHECKING:
    from herasys_rt.policies.presets import Preset
    from herasys_rt.sim.clusters import Cluster
    from herasys_rt.sim.compare import Row
    from herasys_rt.sim.experiment import Experiment, Load, Outcome
    from herasys_rt.sim.machines import Machines
    from herasys_rt.sim.metrics import Summary
    from herasys_rt.workloads.arrivals import Workload

_DIGITS = 6
_DEFAULT = "testbed-4x4090"

WorkloadOption = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME|FILE.yaml",
        help="Runs that come: rag, rag_rerank, web, mixed, mixed_long, docs, sharegpt, "
        "bfcl, lats, agents_mixed, or a file.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME|FILE.yaml",
        help="Machines: testbed-4x4090 (what it is without this option), hetero-1, "
        "hetero-2, homog-h200, homog-a100, or a file; with --profile those that were "
        "measured.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="What the LLM pools serve: llama-3-8b, llama-3.1-70b, qwen3-235b-a22b, "
        "qwen3-coder-30b-a3b, smollm2-135m. Without it the cluster's own.",
        show_default=False,
    ),
]
OrderingOption = Annotated[
    str,
    typer.Option(
        "--ordering",
        metavar="NAME",
        help="Which node next: fcfs, workflow_fcfs, depth, srtf, llf, plas, atlas; or a "
        "preset: static_split.",
    ),
]
PlacementOption = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="NAME",
        help="On which instance: least_loaded, round_robin.",
    ),
]
CompareOption = Annotated[
    str | None,
    typer.Option(
        "--compare",
        metavar="POLICY,POLICY,...",
        help="Compare policies on the same runs: orderings, ORDERING+PLACEMENT, presets.",
        show_default=False,
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="K",
        help="A closed loop of K clients instead of arrivals at a rate.",
        show_default=False,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FOLDER",
        help="Write records, charts, a timeline or a table here.",
        show_default=False,
    ),
]


def simulate(
    workload: WorkloadOption = "rag",
    cluster: ClusterOption = None,
    model: ModelOption = None,
    ordering: OrderingOption = "workflow_fcfs",
    placement: PlacementOption = "least_loaded",
    seed: Annotated[int, typer.Option("--seed", help="Of everything drawn.")] = 0,
    runs: Annotated[
        int | None,
        typer.Option("--runs", metavar="N", help="How many.", show_default=False),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", metavar="R", help="Runs a second, Poisson.", show_default=False
        ),
    ] = None,
    concurrency: ConcurrencyOption = None,
    compare: CompareOption = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="Seeds of --compare.")
    ] = 10,
    out: OutOption = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Times measured by 'herasys profile' instead of the catalogues', and "
            "without --cluster also the machines that they were measured on.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Simulate a workload on a cluster: the kernel and policies are the live ones.

    Nothing is executed and no GPU is needed; the same seed gives the same records. With
    --compare several policies serve the same runs, over several seeds.

    [bold]Examples[/bold]

    herasys simulate --workload rag --cluster testbed-4x4090 --concurrency 30

    herasys simulate -w sharegpt -c hetero-1 --ordering llf --out results

    herasys simulate -w bfcl -c hetero-2 --compare fcfs,workflow_fcfs,llf,atlas

    herasys simulate -w rag --profile profile.yaml --concurrency 8
    """
    with Output(json) as output:
        from herasys_rt.policies.presets import preset
        from herasys_rt.sim.experiment import Experiment, Load

        machines = _machines(cluster, model, profile)
        chosen = _workload(workload)
        load = Load(runs, rate, concurrency)
        if compare is not None:
            names = [name.strip() for name in compare.split(",") if name.strip()]
            presets = [preset(name, placement) for name in names]
            _compare(output, chosen, machines, presets, seed, seeds, load, out)
            return
        experiment = Experiment(chosen, machines, preset(ordering, placement), seed, load)
        _one(output, experiment, out)


def _one(output: Output, experiment: Experiment, out: Path | None) -> None:
    from herasys_rt.sim.experiment import jobs_of, simulate

    count = len(jobs_of(experiment))
    with _bar(output, "runs", count) as advance:
        outcome = simulate(experiment, spans=out is not None, progress=advance)
    told = _told(outcome)
    _print(output, told, outcome.summary)
    if out is not None:
        _write(output, outcome, out)
    output.emit({**told, "error": None})


def _compare(
    output: Output,
    workload: Workload,
    machines: Machines,
    presets: list[Preset],
    first: int,
    seeds: int,
    load: Load,
    out: Path | None,
) -> None:
    from herasys_rt.sim.compare import heading, rows_of, simulate_all, table
    from herasys_rt.sim.experiment import Experiment, jobs_of
    from herasys_rt.sim.records import write_file

    if seeds < 1 or not presets:
        raise ConfigError(
            f"{len(presets)} policies over {seeds} seeds are nothing to compare",
            hint="Name policies after --compare, and at least one seed.",
        )
    experiments = [
        Experiment(workload, machines, chosen, first + i, load)
        for chosen in presets
        for i in range(seeds)
    ]
    runs = len(jobs_of(experiments[0]))  # refuses what cannot be, before anything starts
    with _bar(output, "simulations", len(experiments)) as advance:
        outcomes = simulate_all(experiments, os.cpu_count() or 1, advance)
    rows = rows_of(outcomes)
    text = f"{heading(experiments[0], seeds)}\n\n{table(rows)}"
    output.console.print(text, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write_file(out / "table.md", text.encode())
        _charts(output, outcomes, out)
    output.emit(
        {
            "workload": workload.name,
            "cluster": machines.cluster.name,
            "model": machines.model,
            "seeds": list(range(first, first + seeds)),
            "runs": runs,
            "policies": [_row(row) for row in rows],
            "error": None,
        }
    )


def _machines(cluster: str | None, model: str | None, profile: Path | None) -> Machines:
    from herasys_rt.costs.profile import read_profile
    from herasys_rt.sim.machines import Machines
    from herasys_rt.sim.profiled import profiled_cluster

    measured = read_profile(profile) if profile is not None else None
    if cluster is None and measured is not None:
        return Machines(profiled_cluster(measured), model or "", profile=measured)
    return Machines(_cluster(cluster or _DEFAULT), model or "", profile=measured)


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
        "model": experiment.machines.model,
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


def _write(output: Output, outcome: Outcome, out: Path) -> None:
    from herasys_rt.sim.records import records_text, write_file
    from herasys_rt.sim.timeline import timeline

    trace = outcome.trace
    write_file(out / "records.jsonl", records_text(trace.records))
    write_file(out / "timeline.json", timeline(trace.spans, trace.records))
    _charts(output, [outcome], out)


def _charts(output: Output, outcomes: list[Outcome], out: Path) -> None:
    from herasys_rt.errors import EnvironmentFaultError
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
    with Progress(*columns, console=output.progress, transient=True) as progress:
        task = progress.add_task(what, total=total)

        def advance(done: int) -> None:
            if done % step == 0 or done == total:
                progress.update(task, completed=done)

        yield advance
