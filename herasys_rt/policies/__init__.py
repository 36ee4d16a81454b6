"""Policies by name. An unknown name is refused with the known ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from herasys_rt.core.policy import Batching, Ordering, Placement, Policies, PolicyNames
from herasys_rt.errors import ConfigError
from herasys_rt.policies.batching import SizeLimited
from herasys_rt.policies.ordering import (
    Atlas,
    Depth,
    Fcfs,
    Llf,
    Plas,
    Srtf,
    WorkflowFcfs,
)
from herasys_rt.policies.placement import LeastLoaded, LeastReserved, RoundRobin

ORDERINGS: dict[str, Callable[[], Ordering]] = {
    **{kind.name: kind for kind in (Fcfs, WorkflowFcfs, Depth, Srtf, Plas, Atlas)},
    **{Llf(deadline).name: partial(Llf, deadline) for deadline in (1.0, 2.0, 4.0)},
}
PLACEMENTS: dict[str, Callable[[], Placement]] = {
    kind.name: kind for kind in (LeastLoaded, LeastReserved, RoundRobin)
}
BATCHINGS: dict[str, Callable[[], Batching]] = {"size_limited": SizeLimited}

DEFAULTS = PolicyNames("workflow_fcfs", "least_loaded", "size_limited")


def build(names: PolicyNames = DEFAULTS) -> Policies:
    """The policies of these names. Errors: `ConfigError` listing the known names."""
    return Policies(
        _known("ordering", ORDERINGS, names.ordering)(),
        _known("placement", PLACEMENTS, names.placement)(),
        _known("batching", BATCHINGS, names.batching)(),
    )


def register(kind: str, name: str, make: Callable[[], Any]) -> None:
    """Add a policy of kind ordering, placement or batching.

    Errors: `ConfigError` for an unknown kind and for a name that is taken.
    """
    tables: dict[str, dict[str, Callable[[], Any]]] = {
        "ordering": ORDERINGS,
        "placement": PLACEMENTS,
        "batching": BATCHINGS,
    }
    table = _known("policy kind", tables, kind)
    if name in table:
        raise ConfigError(
            f"{kind} {name!r} is registered already",
            hint="Choose another name.",
            name=name,
        )
    table[name] = make


def _known(kind: str, table: dict[str, Any], name: str) -> Any:
    if name not in table:
        raise ConfigError(
            f"unknown {kind} {name!r}; known: {', '.join(sorted(table))}",
            hint="Use one of the known names.",
            name=name,
            known=tuple(sorted(table)),
        )
    return table[name]
