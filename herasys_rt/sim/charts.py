"""Charts of simulations: attainment over the SLO's factor, latencies as CDFs.

Drawn by matplotlib, which is imported only here and only when something is drawn.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from herasys_rt.errors import EnvironmentFaultError
from herasys_rt.sim.records import RunRecord

_FAR = 50.0
"""Factor of H beyond which nobody looks."""

Series = Mapping[str, Sequence[RunRecord]]
"""Records by policy."""


def attainment_chart(series: Series, path: Path, title: str = "") -> None:
    """The share of runs served within alpha times H_w, over alpha.

    The suffix of ``path`` says the form (.svg, .png). Errors: `EnvironmentFaultError`
    without matplotlib, or when the file cannot be written.
    """
    figure, axes = _figure(title)
    last = 1.5
    for name, records in series.items():
        stretches = sorted([r.stretch for r in records if r.status == "succeeded"])
        last = max([last, *stretches])
        shares = [(i + 1) / len(records) for i in range(len(stretches))]
        axes.step(
            [*stretches, _FAR],
            [*shares, shares[-1] if shares else 0.0],
            where="post",
            label=name,
        )
    axes.set(xlabel="SLO as a factor of H (the run alone)", ylabel="share of runs served")
    axes.set(xlim=(1, min(1.05 * last, _FAR)), ylim=(0, 1.02))
    axes.axhline(0.95, color="0.7", linewidth=0.8, linestyle="--")
    _save(figure, axes, path)


def latency_chart(series: Series, path: Path, title: str = "") -> None:
    """The share of runs that took at most so long, over seconds on a log scale.

    As `attainment_chart`.
    """
    figure, axes = _figure(title)
    for name, records in series.items():
        done = sorted([r.latency_s for r in records if r.status == "succeeded"])
        shares = [(i + 1) / len(records) for i in range(len(done))]
        axes.step(done, shares, where="post", label=name)
    axes.set(xlabel="latency (s)", ylabel="share of runs", xscale="log", ylim=(0, 1.02))
    axes.xaxis.set_major_formatter("{x:g}")
    _save(figure, axes, path)


def _figure(title: str) -> tuple[Any, Any]:
    try:
        # By name: types and tests need no matplotlib.
        drawing: Any = importlib.import_module("matplotlib.figure")
    except ImportError as e:
        raise EnvironmentFaultError(
            "charts need matplotlib, which is not installed",
            hint="Install it: pip install matplotlib. Everything else works without.",
        ) from e
    figure: Any = drawing.Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.legend(fontsize=8, loc="lower right")
    library: Any = importlib.import_module("matplotlib")
    # Text as text, and nothing that differs from one drawing to the next.
    fixed = {"svg.fonttype": "none", "svg.hashsalt": "herasys_rt"}
    metadata = {"Date": None} if path.suffix == ".svg" else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with library.rc_context(fixed):
            figure.savefig(path, metadata=metadata, dpi=150)
    except (OSError, ValueError) as e:
        raise EnvironmentFaultError(
            f"the chart {path} cannot be written: {e}",
            hint="Give a path that can be written and ends in .svg or .png.",
            path=str(path),
        ) from e
