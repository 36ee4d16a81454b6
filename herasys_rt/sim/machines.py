"""A cluster with a model put on it: checked, with service models, ready to make
instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from herasys_rt.core.events import PoolDeclared
from herasys_rt.core.instances import Pool
from herasys_rt.core.plan import pool_for
from herasys_rt.costs.hardware import gpu
from herasys_rt.costs.models import model as arch_of
from herasys_rt.costs.network import KvEnd, kv_transfer_s
from herasys_rt.costs.profile import Profile
from herasys_rt.costs.service import ServiceModel, catalogue_service, profiled_service
from herasys_rt.errors import ConfigError, ErrorInfo, HerasysError
from herasys_rt.graph.spec import NodeSpec
from herasys_rt.graph.types import PortType
from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.batching import ContinuousBatching
from herasys_rt.sim.clusters import BATCHED, Cluster, Group, PoolShape, in_turn, parallelism
from herasys_rt.sim.instances import BatchServer, BatchTime, Instance, Outcomes
from herasys_rt.sim.prefill import PrefillServer
from herasys_rt.sim.staging import stages
from herasys_rt.workloads.arrivals import Job, Step, Truth

LLM = "llm"
MAX_INSTANCES = 10_000
"""Of one cluster: all are made."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal instances of a pool: what serves, and on a GPU where its KV comes from and
    goes to."""

    service: ServiceModel
    end: KvEnd | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """One instance to be: ``name`` is its first incarnation's."""

    name: str
    pool: PoolShape
    kind: Kind

    def lead_s(self, verb: str) -> float:
        """What passes between the kernel's decision and the engine's first step: the
        control path, and what a call takes beside the iterations of a language model."""
        service = self.kind.service
        beside = service.batches.get(verb) if service.steps is not None else None
        return service.control_s + (beside.batch_s(1, 0) if beside is not None else 0.0)


class Machines:
    """Every instance of a cluster on which ``model`` runs.

    Errors of the constructor: `ConfigError` with everything that does not fit at once
    (``fields['faults']``).
    """

    def __init__(
        self,
        cluster: Cluster,
        model: str = "",
        *,
        backend: str = "auto",
        profile: Profile | None = None,
    ) -> None:
        self.cluster = cluster
        self.model = model or cluster.model
        self._backend = backend
        self._profile = profile
        faults = list(dict.fromkeys(_shape_faults(cluster)))
        faults += self._model_faults(model)
        self._kinds: dict[tuple[str, Group], Kind] = {}
        for pool in cluster.pools:
            for group in dict.fromkeys(pool.groups):
                try:
                    self._kinds[(pool.name, group)] = self._kind(pool, group)
                except HerasysError as e:
                    faults.append(f"pool {pool.name}: {e.message}")
        if faults:
            raise faulty(f"cluster {cluster.name}", faults)
        self.served = ", ".join(dict.fromkeys(map(self._model_of, self._pools_of(LLM))))
        """What the LLM pools serve, for reports."""
        self.machines = tuple(
            Machine(f"{pool.name}-{i}", pool, self._kinds[(pool.name, group)])
            for pool in cluster.pools
            for i, group in enumerate(in_turn(pool.groups))
        )
        self._ends = {m.name: m.kind.end for m in self.machines}
        self._of: dict[str, list[Machine]] = {}
        for machine in self.machines:
            self._of.setdefault(machine.pool.name, []).append(machine)
        self._shapes = {pool.name: pool for pool in cluster.pools}
        self._pools: dict[tuple[str, str, str | None], PoolShape | ErrorInfo] = {}
        self._contexts: dict[tuple[str, str, str | None], tuple[str, float]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Built anew where it is needed: tables are large."""
        return _rebuilt, (self.cluster, self.model, self._backend, self._profile)

    def of(self, pool: str) -> list[Machine]:
        """The instances of a pool."""
        return self._of[pool]

    def pool_for(self, step: Step) -> PoolShape | ErrorInfo:
        """The pool that the kernel will choose for a step, or why it finds none."""
        key = (step.verb, step.resource, step.model)
        found = self._pools.get(key)
        if found is None:
            node = NodeSpec(
                id=step.id,
                operator=step.operator,
                verb=step.verb,
                resource=step.resource,
                args={},
                ports=(),
                output=PortType.ANY,
                model=step.model,
            )
            pool = pool_for(node, tuple(Pool(told) for told in self.declarations()))
            found = pool if isinstance(pool, ErrorInfo) else self._shapes[pool.decl.pool]
            self._pools[key] = found
        return found

    def shape_for(self, step: Step) -> PoolShape:
        """The pool of a step that `check` has let pass."""
        found = self.pool_for(step)
        assert isinstance(found, PoolShape)
        return found

    def declarations(self) -> list[PoolDeclared]:
        """The pools as the kernel is told of them."""
        return [
            PoolDeclared(
                pool.name,
                pool.resource,
                (wanted,) if (wanted := self._model_of(pool)) else (),
                default=pool.default,
                batched=pool.resource in BATCHED,
                batch_limit=pool.batch_limit,
                verbs=pool.verbs,
            )
            for pool in self.cluster.pools
        ]

    def instance(
        self, machine: Machine, name: str, agenda: Agenda, outcomes: Outcomes
    ) -> Instance:
        """A fresh incarnation of a machine."""
        pool, service = machine.pool, machine.kind.service
        if pool.resource != LLM:
            # One device computes one batch at a time; what waits for others does not.
            parallel = 1 if pool.resource in BATCHED else pool.slots
            return BatchServer(name, agenda, outcomes, _batch_time(service), parallel)
        steps = service.steps
        assert steps is not None
        if pool.role == "prefill":
            return PrefillServer(name, agenda, outcomes, steps, sharing=pool.prefix_cache)
        end = machine.kind.end

        def transfer_s(tokens: int, source: str) -> float:
            begin = self._ends.get(source.partition("#")[0])
            return (
                0.0 if begin is None or end is None else kv_transfer_s(tokens, begin, end)
            )

        return ContinuousBatching(
            name,
            agenda,
            outcomes,
            steps,
            slots=pool.slots,
            budget=service.token_budget or pool.token_budget,
            sharing=pool.prefix_cache,
            transfer_s=transfer_s if pool.role == "decode" else None,
        )

    def check(self, jobs: Sequence[Job]) -> None:
        """Refuse jobs that nothing here can execute. Errors: `ConfigError` with every
        fault and its numbers."""
        faults: dict[str, None] = {}
        different = {
            (s.verb, s.resource, s.model, s.truth.seconds is None): s
            for job in jobs
            for s in job.steps
        }
        for step in different.values():
            split = self.cluster.split and step.verb == "llm.generate"
            for stage in stages(step) if split else (step,):
                pool = self.pool_for(stage)
                if isinstance(pool, ErrorInfo):
                    faults[pool.message] = None
                elif stage.truth.seconds is None and not self._times(pool, stage.verb):
                    faults[
                        f"step {stage.id!r} has no seconds, and nobody knows how long "
                        f"{stage.verb} takes in pool {pool.name!r}"
                    ] = None
        faults.update(dict.fromkeys(self._too_long(jobs)))
        if faults:
            raise faulty(f"a workload for cluster {self.cluster.name}", list(faults))

    def _too_long(self, jobs: Sequence[Job]) -> list[str]:
        """What calls there are that no engine would take: beyond their pool's context."""
        runs: dict[str, int] = {}
        longest: dict[str, tuple[int, Job, Step]] = {}
        for job in jobs:
            over: dict[str, tuple[int, Job, Step]] = {}
            for step in job.steps:
                pool, most = self._context(step)
                tokens = step.truth.prompt_tokens + step.truth.output_tokens
                if tokens > most and tokens > over.get(pool, (0,))[0]:
                    over[pool] = tokens, job, step
            for pool, found in over.items():
                runs[pool] = runs.get(pool, 0) + 1
                longest[pool] = max(longest.get(pool, found), found, key=lambda f: f[0])
        return [
            f"{runs[pool]} of {len(jobs)} runs have calls beyond the "
            f"{self._context(step)[1]:,} tokens of context of pool {pool!r}: step "
            f"{step.id!r} of run {job.id} has a prompt of {step.truth.prompt_tokens:,} and "
            f"an output of {step.truth.output_tokens:,} tokens; let texts be shorter "
            "(length_scale) or the pool take longer ones (context_tokens)"
            for pool, (_, job, step) in longest.items()
        ]

    def _context(self, step: Step) -> tuple[str, float]:
        """The pool of a step and how many tokens a call may have there."""
        key = (step.verb, step.resource, step.model)
        found = self._contexts.get(key)
        if found is None:
            found = "", math.inf
            split = self.cluster.split and step.verb == "llm.generate"
            for stage in stages(step) if split else (step,):
                pool = self.pool_for(stage)
                if isinstance(pool, PoolShape) and pool.resource == LLM:
                    service = self._kinds[(pool.name, pool.groups[0])].service
                    most = pool.context_tokens or service.context_tokens or math.inf
                    found = min(found, (pool.name, most), key=lambda f: f[1])
            self._contexts[key] = found
        return found

    def _times(self, pool: PoolShape, verb: str) -> bool:
        """Whether a verb's time is known in a pool."""
        return self._kinds[(pool.name, pool.groups[0])].service.knows(verb)

    def _pools_of(self, resource: str) -> list[PoolShape]:
        return [pool for pool in self.cluster.pools if pool.resource == resource]

    def _model_faults(self, named: str) -> list[str]:
        """A model that was named and that no pool serves; stages of different models."""
        faults: list[str] = []
        own = [pool.model for pool in self._pools_of(LLM)]
        if named and own and "" not in own and named not in own:
            told = ", ".join(dict.fromkeys(own))
            faults.append(f"no pool would serve {named!r}: its LLM pools name {told}")
        served = {
            role: {self._model_of(p) for p in self.cluster.pools if p.role == role}
            for role in ("prefill", "decode")
        }
        if all(served.values()) and served["prefill"] != served["decode"]:
            told = [", ".join(sorted(models)) for models in served.values()]
            faults.append(
                f"its prefill pools serve {told[0]} and its decode pools {told[1]}; keys "
                "and values of one model are of no use to another"
            )
        return faults

    def _model_of(self, pool: PoolShape) -> str:
        return pool.model or (self.model if pool.resource == LLM else "")

    def _kind(self, pool: PoolShape, group: Group) -> Kind:
        wanted = self._model_of(pool)
        if self._profile is not None:
            return Kind(profiled_service(self._profile, pool.resource, wanted or None))
        if pool.resource != LLM:
            service = catalogue_service(
                pool.resource, wanted or None, group.gpu or None, share=pool.share
            )
            return Kind(service)
        card = gpu(group.gpu) if group.gpu else None
        arch = arch_of(wanted)
        tp = group.tp or (parallelism(arch.name, card.name) if card is not None else 1)
        service = catalogue_service(
            LLM, wanted, group.gpu or None, tp=tp, backend=self._backend
        )
        return Kind(service, None if card is None else KvEnd(arch, card, tp))


def _rebuilt(
    cluster: Cluster, model: str, backend: str, profile: Profile | None
) -> Machines:
    return Machines(cluster, model, backend=backend, profile=profile)


def faulty(what: str, faults: list[str]) -> ConfigError:
    """One error for all faults of one thing."""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "".join(f"\n  - {fault}" for fault in faults)
    return ConfigError(
        f"{what} has {count}:{lines}",
        hint="Mend each line above; nothing was simulated.",
        faults=tuple(faults),
    )


def _batch_time(service: ServiceModel) -> BatchTime:
    """What a batch takes; steps that say their seconds take those, the longest counting."""

    def seconds(verb: str, truths: Sequence[Truth]) -> float:
        told = [truth.seconds for truth in truths if truth.seconds is not None]
        rest = [truth for truth in truths if truth.seconds is None]
        longest = max(told, default=0.0)
        if not rest:
            return longest
        items = sum([truth.items for truth in rest])
        tokens = sum([truth.tokens for truth in rest])
        return max(longest, service.batch_s(verb, items, tokens))

    return seconds


def _shape_faults(cluster: Cluster) -> list[str]:
    """What a cluster's own numbers say against each other."""
    faults: list[str] = []
    names = [pool.name for pool in cluster.pools]
    faults += [f"two pools are called {name!r}" for name in names if names.count(name) > 1]
    if not names:
        faults.append("it has no pools")
    count = sum(pool.instances for pool in cluster.pools)
    if count > MAX_INSTANCES:
        faults.append(
            f"it has {count:,} instances; at most {MAX_INSTANCES:,} are simulated"
        )
    for pool in cluster.pools:
        where = f"pool {pool.name}"
        if not pool.verbs:
            faults.append(f"{where}: there is no role {pool.role!r} of {pool.resource!r}")
        if pool.instances < 1:
            faults.append(f"{where}: it has {pool.instances} instances")
        faults += [
            f"{where}: a group has {group.count} instances"
            for group in pool.groups
            if group.count < 1
        ]
        if pool.slots < 1 or pool.batch_limit < 1:
            faults.append(
                f"{where}: slots are {pool.slots} and batch_limit is {pool.batch_limit}; "
                "both are at least 1"
            )
        batches = pool.resource == LLM and pool.role != "prefill"
        if batches and pool.token_budget < pool.slots:
            faults.append(
                f"{where}: a token_budget of {pool.token_budget} does not hold one token "
                f"of each of {pool.slots} slots"
            )
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        have = [p.name for p in cluster.pools if p.role == role]
        if have and not any(p.role == other for p in cluster.pools):
            faults.append(f"{role} pool {have[0]!r} has no {other} pool beside it")
    if cluster.split and any(p.resource == LLM and p.role == "both" for p in cluster.pools):
        faults.append("it has prefill/decode pools and LLM pools that do both")
    return faults
