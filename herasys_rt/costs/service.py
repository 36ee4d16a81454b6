"""What one pool's instances need for their work: from the catalogues or a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from herasys_rt.costs.backends import step_times
from herasys_rt.costs.batch import BatchTimes, batch_times
from herasys_rt.costs.measured import steps_of
from herasys_rt.costs.models import model as arch
from herasys_rt.costs.profile import PoolProfile, Profile
from herasys_rt.costs.steps import StepTimes
from herasys_rt.costs.work import Work
from herasys_rt.errors import ConfigError

RESOURCE_VERBS: Mapping[str, tuple[str, ...]] = {
    "embedding": ("embed",),
    "rerank": ("rerank",),
    "retrieval": ("pg.search", "pg.text", "pg.hybrid", "pg.write", "pg.delete"),
}
"""Verbs of the resources whose batches the catalogues know."""

_UNKNOWN_KV_TOKENS = 2**40
"""Of a profiled engine that does not tell its KV capacity: never what binds."""


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """Times of one instance of a pool.

    ``steps`` are a language model's iterations, ``batches`` by verb what a batch of
    another engine takes; a verb that is in neither has no known time. ``control_s`` is
    what a node takes between its engine and its client: links, scheduling.
    """

    resource: str
    steps: StepTimes | None
    batches: Mapping[str, BatchTimes]
    control_s: float = 0.0
    token_budget: int = 0
    """Most tokens of one iteration of a language model; 0: not known."""
    context_tokens: int = 0
    """Most tokens of one of its calls, prompt and output; 0: not known."""

    def batch_s(self, verb: str, items: int, tokens: int) -> float:
        """Seconds of one batch of ``items`` with ``tokens`` in all, of a verb in
        ``batches``."""
        return self.batches[verb].batch_s(items, tokens)

    def knows(self, verb: str) -> bool:
        """Whether a verb's time is known."""
        return self.steps is not None or verb in self.batches

    def predicted_s(self, verb: str, work: Work) -> float:
        """Engine seconds of a node that has an instance to itself."""
        if self.steps is None:
            return self.batch_s(verb, work.items, work.tokens)
        new = max(work.prompt_tokens - work.cached_tokens, 0)
        prefill_s = self.steps.prefill_s(new, work.cached_tokens)
        steps = max(work.output_tokens - 1, 0)
        # Step times are near to linear in the context: the middle one stands for all.
        context = work.prompt_tokens + work.output_tokens // 2
        return prefill_s + steps * self.steps.decode_s(1, context)


def catalogue_service(
    resource: str,
    model: str | None = None,
    gpu: str | None = None,
    *,
    tp: int = 1,
    share: float = 1.0,
    backend: str = "auto",
) -> ServiceModel:
    """The service model of a pool as it is declared.

    ``gpu`` None is a CPU, on which no language model is in the catalogue. Of search and
    tools no catalogue knows a time. Errors: `ConfigError`.
    """
    if resource == "llm":
        if model is None or gpu is None:
            raise ConfigError(
                "the catalogue knows language models on GPUs, and this pool names "
                f"{'no model' if model is None else 'no GPU'}",
                hint="Name both, or give a profile that `herasys profile` wrote.",
            )
        steps = step_times(model, gpu, tp, backend)
        return ServiceModel(resource, steps, {}, context_tokens=arch(model).context_tokens)
    verbs = RESOURCE_VERBS.get(resource, ())
    batches = {verb: batch_times(verb, model, gpu, share) for verb in verbs}
    return ServiceModel(resource, None, batches)


def profiled_service(
    profile: Profile, resource: str, model: str | None = None
) -> ServiceModel:
    """The service model of a pool as it was measured.

    Errors: `ConfigError` naming what the profile has when the pool is not in it.
    """
    pool = profile.pool(resource, model)
    if pool is None:
        have = "; ".join(f"{p.resource} {p.model}".strip() for p in profile.pools)
        wanted = f"{resource} {model or ''}".strip()
        raise ConfigError(
            f"the profile has no pool for {wanted}; it has {have or 'none'}",
            hint="Measure it with `herasys profile` while that pool is up.",
        )
    return ServiceModel(
        resource,
        _steps(pool),
        {verb.verb: verb.times for verb in pool.verbs if verb.times is not None},
        control_s=profile.control_s,
        token_budget=pool.token_budget,
        context_tokens=pool.context_tokens,
    )


def _steps(pool: PoolProfile) -> StepTimes | None:
    measured = next((verb.steps for verb in pool.verbs if verb.steps is not None), None)
    if measured is None:
        return None
    return steps_of(
        measured,
        kv_capacity_tokens=pool.kv_capacity_tokens or _UNKNOWN_KV_TOKENS,
        kv_bytes_per_token=pool.kv_bytes_per_token,
    )
