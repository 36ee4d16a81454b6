"""Speaking to the background runtime without being a client of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from herasys_rt.client.cache import purged, signature_of
from herasys_rt.client.link import Link
from herasys_rt.config import Config, default_config
from herasys_rt.core.commands import DropKept
from herasys_rt.errors import RuntimeStateError
from herasys_rt.graph.explain import Explanation
from herasys_rt.runtime import pending_purges, places
from herasys_rt.runtime.daemon import endpoint_of
from herasys_rt.runtime.lifetimes import moment_now
from herasys_rt.runtime.results_file import ResultsFile


def runtime_status() -> dict[str, Any]:
    """The background runtime's status; ``{"state": "down"}`` when there is none.

    Else ``state`` is ``up`` (or ``silent`` when the scheduler does not answer), with pid,
    run_dir, ray_address, job_address, token_path and what the scheduler says: uptime_s,
    pools, counters, cache (of every tenant), clients, held_values, fuser.
    """
    state = places.read_state()
    if state is None:
        return {"state": "down"}
    shown = ("pid", "run_dir", "ray_address", "job_address", "token_path")
    found: dict[str, Any] = {"state": "up", **{key: state[key] for key in shown}}
    try:
        with _linked(state, "status") as link:
            found.update(link.status(key=places.operator_key(state["run_dir"])))
    except RuntimeStateError as e:
        found.update(state="silent", error=e.info().to_json())
    return found


def explained(nodes: list[tuple[str, str]], tenant: str) -> list[Explanation]:
    """How (run id, node id) pairs of a tenant were signed by the background runtime.

    Errors: `RuntimeStateError` when there is none; those of `Client.explain`.
    """
    state = places.read_state()
    if state is None:
        raise RuntimeStateError(
            "no runtime is up, and only a running one knows how its runs were signed",
            hint="Start it with `herasys up`, and run the workflow there.",
        )
    with _linked(state, tenant) as link:
        return [link.explain(run_id, node) for run_id, node in nodes]


def purge_runtime(
    tenant: str | None = None,
    collection: str | None = None,
    signature: str | None = None,
    config: Config | None = None,
) -> dict[str, Any]:
    """Purge the background runtime's cache as its operator: of one tenant, or of all.

    Without a runtime the results go that ``config`` (None: the laptop's) says are on disk.
    Errors: `InputError` for a signature that is none, `RuntimeStateError` when there are
    neither, or the runtime does not answer.
    """
    wanted = signature_of(signature)
    state = places.read_state()
    if state is None:
        folder = places.store_folder(config or default_config())
        stored = purge_folder(folder, DropKept(0, tenant, collection, wanted))
        return {"entries": 0, "bytes": 0, "stored": stored}
    with _linked(state, "operator") as link:
        reply = link.purge(
            tenant=tenant,
            collection=collection,
            signature=wanted,
            key=places.operator_key(state["run_dir"]),
        )
    return purged(reply)


def purge_folder(folder: Path, drop: DropKept) -> int | None:
    """Purge results on disk while no background runtime is up; gives how many went.

    None when another process uses them, a private runtime for one: they go when the folder
    is opened next. Errors: `RuntimeStateError` when there are none, or nothing can be
    written there.
    """
    file = ResultsFile(folder)
    if not file.path.exists():
        raise RuntimeStateError(
            f"no runtime is up, and there are no results on disk in {folder}",
            hint="Name the configuration that the runtime had with --config, where it sets "
            "scheduler.reuse.store_dir. What is in memory goes with its runtime.",
        )
    try:
        pending_purges.write(folder, drop)
    except OSError as e:
        raise RuntimeStateError(
            f"no runtime is up, and its results in {folder} cannot be purged: {e}",
            hint="Look at the folder's owner and at the free space of its disk.",
        ) from e
    try:
        opened = file.open(moment_now(), sys.maxsize)
        return None if opened is None else file.purged
    finally:
        file.close()


@contextlib.contextmanager
def _linked(state: dict[str, Any], tenant: str) -> Iterator[Link]:
    """A link to the runtime that tells this state, for the time of this context. Errors:
    `RuntimeStateError` when it does not answer."""
    link = Link(endpoint_of(state), tenant)
    try:
        link.open()
        yield link
    finally:
        link.close()
