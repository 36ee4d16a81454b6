"""From the configuration to a kernel with its policies, and the journal that goes along."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from herasys_rt import policies
from herasys_rt.config import Config
from herasys_rt.core.journal import JournalWriter
from herasys_rt.core.policy import PolicyNames
from herasys_rt.core.state import KernelConfig, State, new_state


class Kernel(NamedTuple):
    """A fresh kernel state with what a journal's header says of it."""

    state: State
    config: KernelConfig
    names: PolicyNames

    def journal(self, path: Path, max_bytes: int | None = None) -> JournalWriter:
        """A journal of what this kernel will be told."""
        return JournalWriter(path, self.config, self.names, max_bytes)


def new_kernel(config: Config) -> Kernel:
    """The kernel a configuration describes. Errors: `ConfigError` for unknown names."""
    scheduler = config.scheduler
    bounds = KernelConfig(
        fusion=scheduler.fusion,
        max_active_runs=scheduler.max_active_runs,
        max_attempts=scheduler.max_attempts,
        reuse_max_bytes=scheduler.reuse.max_bytes,
        reuse_max_entries=scheduler.reuse.max_entries,
        reuse_ttl_s={v: s for v, s in scheduler.reuse.ttl_s.items() if s is not None},
        hashing=scheduler.fusion_hash,
        reuse_store=scheduler.fusion and scheduler.reuse.store == "disk",
    )
    names = PolicyNames(scheduler.ordering, scheduler.placement, policies.DEFAULTS.batching)
    chosen = policies.build(names)
    state = new_state(bounds, chosen.ordering, chosen.placement, chosen.batching)
    return Kernel(state, bounds, names)
