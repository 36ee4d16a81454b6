"""How a client finds its runtime: the one there is, or a private one that ends with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from herasys_rt.config import Config
from herasys_rt.links import Endpoint
from herasys_rt.runtime import places

Progress = Callable[[str], None]

_IN_A_JOB = 1
"""One process executes many coroutines; who computes a lot in them asks for more."""


class Attachment(NamedTuple):
    """A reachable runtime. ``release`` ends what was started for this client alone."""

    scheduler: Endpoint
    kind: str
    """``daemon``, ``private``, ``cluster`` (already there) or ``job`` (started here)."""
    release: Callable[[], None]
    dsn: str = ""
    """Of the runtime's database; empty when this process cannot know it."""
    join_ray: Callable[[], Callable[[], None]] = lambda: _nothing
    """Connects this process to the runtime's Ray; gives what undoes that."""
    frontends: int = 0
    """How many execute a client's agents when it does not say."""


def attach(config: Config | None, progress: Progress | None = None) -> Attachment:
    """Find or start a runtime.

    Inside a Ray job (``RAY_ADDRESS`` is set) that cluster's runtime is used, or one is
    started on it and removed at the end; no other Ray is ever started there. Elsewhere
    the background runtime of `herasys up` is used, or a private one started with
    ``config`` (None: the defaults). What that takes is told to ``progress``; without it
    one line on standard error says that it begins, where that is a screen. Errors:
    `EnvironmentFaultError` and its kinds.
    """
    if os.environ.get("RAY_ADDRESS"):
        return _attach_in_job(config, progress)
    state = places.read_state()
    if state is not None:
        from herasys_rt.runtime.daemon import endpoint_of

        return Attachment(
            endpoint_of(state), "daemon", _nothing, state["dsn"], _joining(state)
        )
    from herasys_rt.runtime.daemon import spawn

    given = _given(config)
    progress = progress or _announced("starting a private runtime (Ray, ", given)
    daemon = spawn(given, private=True, progress=progress)
    return Attachment(
        daemon.endpoint, "private", daemon.stop, daemon.state["dsn"], _joining(daemon.state)
    )


def _nothing() -> None:
    """Nothing was begun that must be ended."""


def _joining(state: dict[str, Any]) -> Callable[[], Callable[[], None]]:
    """How a process joins the Ray of the daemon with this state."""

    def join() -> Callable[[], None]:
        from herasys_rt.runtime.cluster import visit_ray

        return visit_ray(state["ray_address"], Path(state["run_dir"]) / "ray-token")

    return join


def _given(config: Config | None) -> Config:
    if config is not None:
        return config
    from herasys_rt.config import load_config

    return load_config()


def _announced(beginning: str, config: Config) -> Progress:
    """Say on a screen what begins; nothing after that."""
    from herasys_rt.runtime.registry import needs_database

    if sys.stderr is not None and sys.stderr.isatty():
        parts = ["database"] if any(map(needs_database, config.pools)) else []
        count = len(config.pools)
        parts.append(f"{count} pool{'s' if count > 1 else ''}")
        print(
            f"herasys_rt: {beginning}{', '.join(parts)}); this may take a minute, and a "
            "runtime that `herasys up` left running is used at once",
            file=sys.stderr,
            flush=True,
        )
    return lambda _: None


def _attach_in_job(config: Config | None, progress: Progress | None) -> Attachment:
    from herasys_rt.runtime.cluster import join_ray
    from herasys_rt.runtime.launch import existing_scheduler
    from herasys_rt.runtime.stack import Stack

    join_ray(os.environ["RAY_ADDRESS"])
    found = existing_scheduler()
    if found is not None:
        return Attachment(found, "cluster", _nothing, frontends=_IN_A_JOB)
    given = _given(config)
    progress = progress or _announced("starting a runtime on this Ray cluster (", given)
    run_dir = places.new_run_dir()
    stack = Stack(given, run_dir, joined=True)

    def release() -> None:
        stack.stop()
        places.remove_run_dir(run_dir)

    try:
        scheduler = stack.start(progress)
        return Attachment(scheduler, "job", release, stack.dsn, frontends=_IN_A_JOB)
    except BaseException:
        release()
        raise
