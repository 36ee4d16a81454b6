"""What every benchmark and the tests share: data sets, the machine, output."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA_VARIABLE = "BENCH_DATA_DIR"
DEFAULT_DATA = "../shared/data"


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


@contextlib.contextmanager
def private_home() -> Iterator[Path]:
    """A folder for a private runtime that is measured; nothing of it is kept.

    Points this process's environment at it, for runtimes that start from here on.
    """
    with tempfile.TemporaryDirectory(prefix="hb-") as home:
        place = Path(home)
        place.chmod(0o755)  # as root, the database server runs as another user
        os.environ.pop("RAY_ADDRESS", None)
        # Engines behind whatever else runs would measure that; Ray steps back by default.
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray spells it so
        os.environ["HERASYS_RUN_DIR"] = str(place / "run")
        os.environ["HERASYS_STATE_DIR"] = str(place / "state")
        yield place


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
