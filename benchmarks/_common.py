"""What every benchmark and the tests share: data sets, the machine, figures, output."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA_VARIABLE = "BENCH_DATA_DIR"
DEFAULT_DATA = "../shared/data"
_RESAMPLES = 2000


def data_dir() -> Path:
    """Where data sets are: ``BENCH_DATA_DIR``, relative paths from the project's root."""
    return (ROOT / (os.environ.get(DATA_VARIABLE) or DEFAULT_DATA)).resolve()


def find_data(*parts: str) -> Path | None:
    """A file or folder below `data_dir`; None when it is not there."""
    path = data_dir().joinpath(*parts)
    return path if path.exists() else None


def no_data(*parts: str) -> str:
    """Why something is skipped when `find_data` found nothing."""
    return f"no {'/'.join(parts)} below {DATA_VARIABLE}"


def machine() -> dict[str, Any]:
    """The machine that figures were measured on; nothing that names it."""
    import psutil

    memory = psutil.virtual_memory().total
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 1024**3, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def commit() -> str:
    """The commit measured, ``+`` behind it when files differ; ``unknown`` without git."""
    try:
        found = _git("rev-parse", "--short=12", "HEAD").strip()
        return found + ("+" if _git("status", "--porcelain").strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def standard_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what all benchmarks take: ``--quick`` and ``--json [FILE]``."""
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="figures as JSON (default -)"
    )


def facts(seeds: Sequence[int] = ()) -> dict[str, Any]:
    """What figures must be read with: the machine, the commit, the seeds drawn from."""
    return {"machine": machine(), "commit": commit(), "seeds": list(seeds)}


def emit(figures: Mapping[str, Any], json_path: str | None) -> None:
    """Write figures: as lines of text, or with a path (``-``: standard output) as JSON."""
    if json_path is None:
        for key, value in figures.items():
            print(f"{key}: {value}")
        return
    text = json.dumps(figures, indent=2) + "\n"
    if json_path == "-":
        sys.stdout.write(text)
        return
    path = Path(json_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def percentile(values: Sequence[float], q: float) -> float:
    """The ``q``-th percentile (0-100), linear between neighbours. ``values`` not empty."""
    if not values:
        raise ValueError("no values, no percentile")
    if not 0 <= q <= 100:
        raise ValueError(f"a percentile is between 0 and 100, not {q}")
    ranked = sorted(values)
    spot = (len(ranked) - 1) * q / 100
    below = int(spot)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (spot - below)


def summary(values: Sequence[float]) -> dict[str, float]:
    """``mean, p50, p95, p99`` of values, in their unit."""
    return {
        "mean": statistics.fmean(values),
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
        "p99": percentile(values, 99),
    }


def interval(
    values: Sequence[float], confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """A bootstrap confidence interval of the mean; the same for the same values."""
    if len(values) < 2:
        raise ValueError("an interval needs at least two values")
    draw = random.Random(seed)
    means = [
        statistics.fmean(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES)
    ]
    tail = (1 - confidence) / 2 * 100
    return percentile(means, tail), percentile(means, 100 - tail)
