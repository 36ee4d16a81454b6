"""What could keep the runtime from working here, looked for before it does.

Each check gives findings and never raises; none changes anything that lasts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from herasys_rt.config import Config, PoolConfig
from herasys_rt.errors import HerasysError

State = Literal["ok", "warn", "fault"]
OK: State = "ok"
WARN: State = "warn"
FAULT: State = "fault"

_GIB = 1024**3
_MIB = 1024**2
_MEMORY_BYTES = {
    "vllm": 1.6 * _GIB,
    "vllm_pooling": 1.6 * _GIB,
    "sentence_transformers": 0.9 * _GIB,
    "late_interaction": 0.9 * _GIB,
    "cross_encoder": 0.9 * _GIB,
}
"""Measured resident memory of one instance with a small model."""
_RUNTIME_BYTES = 1.5 * _GIB
"""Ray, the scheduler, PostgreSQL."""
_DISK_WARN_BYTES = 2 * _GIB
_DISK_FAULT_BYTES = 0.5 * _GIB
_IMPORT_PATIENCE_S = 60
_START_S = 120
"""A run directory younger than this may belong to a runtime that is starting."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: ``ok``, ``warn`` (works, with a limit) or ``fault``.

    ``hint`` says what to do; it is empty when there is nothing to do.
    """

    name: str
    state: State
    message: str
    hint: str = ""


Check = Callable[[Config], Iterable[Finding]]


def examine(config: Config, checks: Iterable[Check] | None = None) -> Iterator[Finding]:
    """Every finding for a configuration, as the checks are made.

    A check that itself breaks is a finding, not an exception.
    """
    for check in CHECKS if checks is None else checks:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        try:
            yield from check(config)
        except HerasysError as e:
            yield Finding(name, FAULT, e.message, e.hint)
        except Exception as e:
            yield Finding(
                name,
                FAULT,
                f"the check broke: {type(e).__name__}: {e}",
                "This should not have happened; please report it.",
            )


def check_python(_: Config) -> Iterator[Finding]:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if not sys.platform.startswith("linux"):
        hint = "Run it on Linux or in a Linux container."
        yield Finding("python", WARN, f"{version} on {sys.platform} is untested", hint)
    else:
        yield Finding("python", OK, version)


def check_packages(config: Config) -> Iterator[Finding]:
    """The packages that the configured engines import."""
    wanted = {"ray": "ray[default]", "psycopg": "psycopg[binary,pool]", "zmq": "pyzmq"}
    extra = "gpu" if any(pool.gpus for pool in config.pools) else "cpu"
    for pool in config.pools:
        for module in _MODULES.get(pool.engine, ()):
            wanted[module] = f"herasys_rt[{extra}]"
    missing = {m: p for m, p in wanted.items() if importlib.util.find_spec(m) is None}
    if not missing:
        yield Finding("packages", OK, ", ".join(sorted(wanted)))
    for module, package in missing.items():
        hint = f"Run `make setup`, or: pip install '{package}'"
        yield Finding("packages", FAULT, f"the module {module} is not installed", hint)


_MODULES = {
    "vllm": ("vllm", "torch", "transformers"),
    "vllm_pooling": ("vllm", "torch", "transformers"),
    "sentence_transformers": ("sentence_transformers", "torch"),
    "late_interaction": ("sentence_transformers", "torch"),
    "cross_encoder": ("sentence_transformers", "torch"),
}


def check_text_models(_: Config) -> Iterator[Finding]:
    """Whether text models can be imported beside the torch that is here."""
    from herasys_rt.engines.models import check_text_stack

    fault = check_text_stack()
    if fault is not None:
        yield Finding("text models", FAULT, fault.message, fault.hint)
        return
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    yield Finding("text models", OK, f"torch {torch}")


def check_ray(config: Config) -> Iterator[Finding]:
    """Whether Ray imports, in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import ray; print(ray.__version__)"],
            capture_output=True,
            text=True,
            timeout=_IMPORT_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        hint = "The machine may be overloaded; look at its load and try again."
        yield Finding("ray", FAULT, f"importing it took over {_IMPORT_PATIENCE_S} s", hint)
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        hint = "Run `make setup`, or: pip install 'ray[default]'"
        yield Finding("ray", FAULT, f"it does not import: {last}", hint)
        return
    where = config.ray.address
    version = done.stdout.strip()
    yield Finding("ray", OK, version + (f", cluster {where}" if where else ", private"))


def check_database(config: Config) -> Iterator[Finding]:
    """PostgreSQL with pgvector: the configured one, or a start of the embedded one."""
    if config.database.dsn is not None:
        from herasys_rt.engines.postgres.dsn import check_dsn

        facts = check_dsn(config.database.dsn.get_secret_value())
        told = f"{facts.server}, pgvector {facts.pgvector} at {facts.where}"
        yield Finding("database", WARN if facts.warning else OK, told, facts.warning)
        return
    from herasys_rt.engines.postgres.dsn import check_dsn
    from herasys_rt.engines.postgres.server import EmbeddedPostgres

    with tempfile.TemporaryDirectory(prefix="herasys-doctor-") as folder:
        # The server may run as another user, who must be able to walk in.
        os.chmod(folder, 0o755)
        server = EmbeddedPostgres(Path(folder) / "data", Path(folder) / "run")
        (Path(folder) / "run").mkdir()
        try:
            facts = check_dsn(server.start())
        finally:
            server.stop()
    yield Finding(
        "database", OK, f"embedded PostgreSQL {facts.server}, pgvector {facts.pgvector}"
    )


def check_models(config: Config) -> Iterator[Finding]:
    """Whether every model that the configuration names is ready to be loaded."""
    from herasys_rt.engines.models import resolve_model

    for name in dict.fromkeys(_local_models(config.pools)):
        try:
            resolve_model(name, convert=False)
        except HerasysError as e:
            yield Finding("models", FAULT, e.message, e.hint)
        else:
            yield Finding("models", OK, name)


def _local_models(pools: Iterable[PoolConfig]) -> Iterator[str]:
    for pool in pools:
        if pool.model and pool.engine not in ("openai", "modelled"):
            yield pool.model


def check_memory(config: Config) -> Iterator[Finding]:
    """Free memory against what the pools take here."""
    if config.ray.address is not None:
        return  # the pools live on the cluster's machines
    wanted = _RUNTIME_BYTES + config.ray.object_store_mb * _MIB
    for pool in config.pools:
        wanted += _MEMORY_BYTES.get(pool.engine, 0.1 * _GIB) * pool.instances
        kv_mb = pool.options.get("kv_cache_memory_mb")
        wanted += (kv_mb if isinstance(kv_mb, int) else 0) * _MIB * pool.instances
    free = psutil.virtual_memory().available
    told = f"{free / _GIB:.1f} GiB free, the pools take about {wanted / _GIB:.1f}"
    if free >= wanted:
        yield Finding("memory", OK, told)
    else:
        hint = "End other programs, or configure fewer or smaller pools."
        yield Finding("memory", WARN, told, hint)


def check_disk(config: Config) -> Iterator[Finding]:
    """Room for the database, models and Ray's session."""
    import platformdirs

    folders = {
        "data": config.database.data_dir or Path(platformdirs.user_data_dir("herasys")),
        "cache": Path(platformdirs.user_cache_dir("herasys")),
        "run": _run_base(),
    }
    for name, folder in folders.items():
        spot = _existing(folder)
        free = shutil.disk_usage(spot).free
        told = f"{free / _GIB:.1f} GiB free for {name} ({folder})"
        hint = f"Free some space below {spot}."
        if not os.access(spot, os.W_OK):
            yield Finding("disk", FAULT, f"{spot} cannot be written", "Mend its mode.")
        elif free < _DISK_FAULT_BYTES:
            yield Finding("disk", FAULT, told, hint)
        elif free < _DISK_WARN_BYTES:
            yield Finding("disk", WARN, told, hint)
        else:
            yield Finding("disk", OK, told)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    while not folder.exists():
        folder = folder.parent
    return folder


def check_shared_memory(config: Config) -> Iterator[Finding]:
    """Room in /dev/shm for Ray's object store."""
    place = Path("/dev/shm")
    if config.ray.address is not None or not place.is_dir():
        return
    free = shutil.disk_usage(place).free
    wanted = config.ray.object_store_mb * _MIB
    told = f"{free / _MIB:.0f} MiB free in {place}, the object store takes {wanted // _MIB}"
    if free >= wanted:
        yield Finding("shared memory", OK, told)
    else:
        hint = "Start the container with a larger --shm-size, or lower ray.object_store_mb."
        yield Finding("shared memory", WARN, told, hint)


def check_run_directory(_: Config) -> Iterator[Finding]:
    """Whether sockets can be made where the runtime makes them: paths are limited."""
    from herasys_rt.runtime import places

    made = places.new_run_dir()
    places.remove_run_dir(made)
    yield Finding("run directory", OK, f"below {made.parent}")


def check_leftovers(_: Config) -> Iterator[Finding]:
    """What runtimes that were killed left behind."""
    from herasys_rt.runtime import places

    stale = [str(places.state_file())] if _is_stale(places.state_file()) else []
    commands = _command_lines()
    for folder in sorted(_run_base().glob(f"{places.RUN_DIR_PREFIX}*")):
        used = any(str(folder) in command for command in commands)
        if not used and _is_old_and_ours(folder):
            stale.append(str(folder))
    if not stale:
        yield Finding("leftovers", OK, "none")
        return
    for path in stale:
        hint = f"No process uses it: rm -r {path}"
        yield Finding("leftovers", WARN, f"{path} is left of a killed runtime", hint)


def _is_old_and_ours(folder: Path) -> bool:
    """Not somebody else's, and not of a runtime that is just starting."""
    try:
        facts = folder.stat()
    except OSError:
        return False
    return facts.st_uid == os.getuid() and time.time() - facts.st_mtime > _START_S


def _is_stale(state_file: Path) -> bool:
    """Whether a state file tells of a runtime that is gone."""
    from herasys_rt.runtime import places

    try:
        state = json.loads(state_file.read_text())
        return not places.is_process(int(state["pid"]), float(state["started"]))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _command_lines() -> list[str]:
    """Arguments and working folder of every process that may be looked at."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            found.append("\0".join([*process.cmdline(), process.cwd()]))
        except psutil.Error:
            continue
    return found


def _run_base() -> Path:
    return Path(os.environ.get("HERASYS_RUN_DIR") or tempfile.gettempdir())


CHECKS: tuple[Check, ...] = (
    check_python,
    check_packages,
    check_text_models,
    check_ray,
    check_database,
    check_models,
    check_memory,
    check_disk,
    check_shared_memory,
    check_run_directory,
    check_leftovers,
)
