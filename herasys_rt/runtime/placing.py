"""Engine hosts that wait for a place on the cluster: said, and not for ever.

Ray keeps an actor whose resources are taken waiting in silence. On a cluster that adds
nodes by itself (``ray.autoscaling``) that may be right for as long as it takes; on any
other nobody will come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from herasys_rt.config import PoolConfig
from herasys_rt.errors import ClusterError
from herasys_rt.runtime.cluster import GPU_CLASS_LABEL

PATIENCE_S = 60.0
"""Seconds without any instance getting a place; a process is started in a few."""

Amounts = Mapping[str, float]


class Placing:
    """The instances that Ray has found no place for yet.

    ``patience_s`` counts from the last one that got its place, or the start.
    """

    def __init__(self, now: float, patience_s: float = PATIENCE_S) -> None:
        self._waiting: dict[Any, tuple[PoolConfig, int]] = {}
        self._moved_s = now
        self._patience_s = patience_s

    def expect(self, pool: PoolConfig, index: int, answer: Any) -> None:
        """An instance was asked for; ``answer`` (a reference) is there once its process
        runs."""
        self._waiting[answer] = (pool, index)

    def waiting(self) -> list[Any]:
        """The answers that have not come."""
        return list(self._waiting)

    def placed(self, answers: list[Any], now: float) -> None:
        """These have come."""
        for answer in answers:
            if self._waiting.pop(answer, None) is not None:
                self._moved_s = now

    def stuck(self, now: float) -> tuple[PoolConfig, int] | None:
        """The first instance that waits when patience has run out; None before."""
        if now - self._moved_s < self._patience_s:
            return None
        return next(iter(self._waiting.values()), None)

    def wait_again(self, now: float) -> None:
        """Have patience anew."""
        self._moved_s = now


def no_place(pool: PoolConfig, index: int, total: Amounts, free: Amounts) -> ClusterError:
    """Why an instance does not start: what it asks for, and what the cluster has.

    ``total`` and ``free`` are amounts by resource, as Ray counts them.
    """
    where = f" on a node of class {pool.gpu_class}" if pool.gpu_class else ""
    has = ", ".join(
        f"{free.get(kind, 0.0):g} of {total.get(kind, 0.0):g} {kind}s"
        for kind in ("GPU", "CPU")
    )
    return ClusterError(
        f"Ray finds no place for instance {pool.name}-{index}: pool {pool.name!r} asks for "
        f"{pool.gpus:g} GPUs and {pool.cpus:g} CPUs{where}, and free in the whole cluster "
        f"are {has}",
        hint=f"End what holds them (`ray status`), or lower the pool's instances, gpus or "
        f"cpus{_label(pool)}. If this cluster adds nodes by itself, set ray.autoscaling: "
        "true and starting waits for them.",
        code="no_place",
    )


def _label(pool: PoolConfig) -> str:
    return (
        f", or give other nodes {GPU_CLASS_LABEL}={pool.gpu_class}"
        if pool.gpu_class
        else ""
    )
