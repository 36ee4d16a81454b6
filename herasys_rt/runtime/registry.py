"""Engine names of the configuration -> the modules that make them, imported late."""

from __future__ import annotations

import importlib

from herasys_rt.config import VERBS, PoolConfig
from herasys_rt.core.events import PoolDeclared
from herasys_rt.engines.protocol import Engine
from herasys_rt.errors import ConfigError

_MODULES = {
    "vllm": "herasys_rt.engines.vllm.engine",
    "openai": "herasys_rt.engines.openai",
    "sentence_transformers": "herasys_rt.engines.embedding.sentence_transformers_engine",
    "vllm_pooling": "herasys_rt.engines.embedding.vllm_pooling",
    "late_interaction": "herasys_rt.engines.rerank.late_interaction",
    "cross_encoder": "herasys_rt.engines.rerank.cross_encoder",
    "pgvector": "herasys_rt.engines.postgres.engine",
    "web_search": "herasys_rt.engines.search.engine",
    "python": "herasys_rt.engines.python.engine",
    "modelled": "herasys_rt.engines.modelled",
}
"""Each module has ``create(pool: PoolConfig, dsn: str) -> Engine``."""


def create_engine(pool: PoolConfig, dsn: str) -> Engine:
    """The engine of a pool, not started. Errors: `ConfigError` for its options."""
    module = _MODULES.get(pool.engine)
    if module is None:
        raise ConfigError(
            f"pool {pool.name!r} wants the unknown engine {pool.engine!r}",
            hint=f"Known engines: {', '.join(_MODULES)}.",
        )
    return importlib.import_module(module).create(pool, dsn)


def needs_database(pool: PoolConfig) -> bool:
    """Whether the pool's engine works on the runtime's own database."""
    if pool.engine == "web_search":
        return pool.options.get("provider", "local") == "local"
    return pool.engine == "pgvector"


def declare(pool: PoolConfig, *, alone: bool) -> PoolDeclared:
    """The kernel's view of a configured pool; ``alone`` in its resource it is the default.

    Errors: `UnknownModelError` when the model's name means nothing.
    """
    from herasys_rt.engines.models import resolve_model

    names: tuple[str, ...] = ()
    if pool.model is not None:
        names = (pool.model,)
        if pool.engine not in ("openai", "modelled"):
            found = resolve_model(pool.model)
            names = tuple(dict.fromkeys((pool.model, found.name, *found.aliases)))
    batched = pool.resource in ("embedding", "rerank")
    return PoolDeclared(
        pool=pool.name,
        resource=pool.resource,
        names=names,
        default=pool.default or alone,
        batched=batched,
        batch_limit=pool.batch_limit if batched else 1,
        verbs=VERBS[pool.resource],
    )
