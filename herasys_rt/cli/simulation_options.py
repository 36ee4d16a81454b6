"""The options of `herasys simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    str | None,
    typer.Option(
        "--ordering",
        metavar="NAME",
        help="Which node next: fcfs, workflow_fcfs (what it is without this option), "
        "depth, srtf, llf, plas, atlas; or a preset: static_split, per_call.",
        show_default=False,
    ),
]
PlacementOption = Annotated[
    str | None,
    typer.Option(
        "--placement",
        metavar="NAME",
        help="On which instance: least_loaded (what it is without this option), "
        "least_reserved, round_robin.",
        show_default=False,
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
SeedsOption = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        help="Seeds of --compare, from --seed on: 10 without this option.",
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
BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Step times of LLMs: measured, roofline, or auto: measured where somebody "
        "has measured.",
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
SeedOption = Annotated[int, typer.Option("--seed", help="Of everything drawn.")]
RunsOption = Annotated[
    int | None,
    typer.Option("--runs", metavar="N", help="How many.", show_default=False),
]
RateOption = Annotated[
    float | None,
    typer.Option("--rate", metavar="R", help="Runs a second, Poisson.", show_default=False),
]
SloOption = Annotated[
    float,
    typer.Option(
        "--slo",
        metavar="FACTOR",
        help="Goodput counts runs served within this many times their time alone.",
    ),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Times measured by 'herasys profile' instead of the catalogues', and "
        "without --cluster also the machines that they were measured on.",
        show_default=False,
    ),
]
