"""What the background runtime says, for whoever is not connected to it."""

from __future__ import annotations

from typing import Any

from herasys_rt.client.link import Link
from herasys_rt.errors import RuntimeStateError
from herasys_rt.graph.explain import Explanation
from herasys_rt.runtime import places
from herasys_rt.runtime.daemon import endpoint_of


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
    link = Link(endpoint_of(state), tenant="status")
    try:
        link.open()
        found.update(link.status(key=places.operator_key(state["run_dir"])))
    except RuntimeStateError as e:
        found.update(state="silent", error=e.info().to_json())
    finally:
        link.close()
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
    link = Link(endpoint_of(state), tenant)
    try:
        link.open()
        return [link.explain(run_id, node) for run_id, node in nodes]
    finally:
        link.close()
