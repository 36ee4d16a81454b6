"""The cluster that a profile was measured on."""

from __future__ import annotations

from herasys_rt.costs.profile import PoolProfile, Profile
from herasys_rt.errors import ConfigError
from herasys_rt.sim.clusters import Cluster, Group, PoolShape

_BUDGET = 2048
"""Tokens of an iteration where a profile does not tell."""


def profiled_cluster(profile: Profile, name: str = "profile") -> Cluster:
    """The pools of a profile as they were measured, with their slots and batches.

    Give `Machines` the same profile: its times are what the pools' times were. Pools of
    which nothing was measured are left out. Errors: `ConfigError` when none is left.
    """
    measured = [pool for pool in profile.pools if pool.verbs]
    if not measured:
        raise ConfigError(
            f"the profile has no pool that was measured; it names {len(profile.pools)}",
            hint="Measure with `herasys profile` while the pools are up.",
        )
    served = next((pool.model for pool in measured if pool.resource == "llm"), "")
    pools = tuple(_shape(pool, measured) for pool in measured)
    return Cluster(name, pools, served)


def _shape(pool: PoolProfile, pools: list[PoolProfile]) -> PoolShape:
    first = next(p for p in pools if p.resource == pool.resource)
    return PoolShape(
        pool.pool,
        pool.resource,
        (Group(pool.instances),),
        model=pool.model,
        slots=pool.slots,
        batch_limit=pool.batch_limit,
        token_budget=pool.token_budget or _BUDGET,
        default=pool is first,
    )
