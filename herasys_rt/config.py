"""Configuration: one YAML file, validated whole, unknown keys refused by name.

The schema's defaults and ``herasys_rt/configs/local-cpu.yaml`` say the same; a test holds
them together.
"""

from __future__ import annotations

import importlib.resources
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
import yaml

from herasys_rt import config_source as source
from herasys_rt.errors import ConfigError

ENV_PREFIX = source.ENV_PREFIX

Resource = Literal["llm", "embedding", "rerank", "retrieval", "search", "python"]
EngineName = Literal[
    "vllm",
    "openai",
    "sentence_transformers",
    "vllm_pooling",
    "late_interaction",
    "cross_encoder",
    "pgvector",
    "web_search",
    "python",
    "modelled",
]

VERBS: dict[str, tuple[str, ...]] = {
    "llm": ("llm.generate",),
    "embedding": ("embed", "text.chunk"),
    "rerank": ("rerank",),
    "retrieval": ("pg.search", "pg.text", "pg.hybrid", "pg.write", "pg.delete"),
    "search": ("http.search",),
    "python": ("python.call", "text.chunk", "text.value"),
}
"""What every engine of a resource type can do."""

ENGINES: dict[str, tuple[str, ...]] = {
    "llm": ("vllm", "openai", "modelled"),
    "embedding": ("sentence_transformers", "vllm_pooling", "modelled"),
    "rerank": ("late_interaction", "cross_encoder", "modelled"),
    "retrieval": ("pgvector", "modelled"),
    "search": ("web_search", "modelled"),
    "python": ("python", "modelled"),
}
"""Resource type -> engines that serve it."""

_WITHOUT_MODEL = ("retrieval", "search", "python")


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


class RayConfig(_Section):
    """How the runtime gets its Ray."""

    address: str | None = None
    """An existing cluster to join; None starts a private local one."""
    num_cpus: int | None = pydantic.Field(default=None, ge=1)
    """CPUs of the private cluster; None takes what the machine has."""
    dashboard: bool = False
    """Serve Ray's dashboard and with it `ray job submit` on the private cluster."""
    object_store_mb: int = pydantic.Field(default=256, ge=80)
    """Shared memory of the private cluster for values beyond 64 KiB."""
    autoscaling: bool = False
    """The cluster adds nodes when work asks for them: pools may ask for more than is there
    now, and the start waits for the nodes as long as it takes."""


class DatabaseConfig(_Section):
    """PostgreSQL with pgvector: embedded unless a DSN is given."""

    dsn: pydantic.SecretStr | None = None
    data_dir: Path | None = None
    """Where the embedded server keeps its data; None: the user's data directory."""
    pool_size: int = pydantic.Field(default=8, ge=1, le=100)
    """Connections of one pgvector instance."""


class PoolConfig(_Section):
    """Engine instances of one resource type with one model and one role."""

    name: str = pydantic.Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    resource: Resource
    engine: EngineName
    model: str | None = None
    role: Literal["both", "prefill", "decode"] = "both"
    instances: int = pydantic.Field(default=1, ge=1, le=256)
    default: bool = False
    """Serves nodes of this resource that name no model. One pool alone is the default."""
    slots: int = pydantic.Field(default=1, ge=1)
    """Admission places: sequences on an LLM, searches at once, batches elsewhere."""
    batch_limit: int = pydantic.Field(default=8, ge=1)
    """Most items of one batch (embedding and rerank engines)."""
    cpus: float = pydantic.Field(default=0.1, ge=0)
    gpus: float = pydantic.Field(default=0, ge=0)
    gpu_class: str | None = None
    """Node label ``gpu-class`` an instance must be placed on."""
    options: dict[str, Any] = {}
    """Engine-specific; each engine validates its own."""

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> PoolConfig:
        faults = list(_pool_faults(self))
        if faults:
            raise ValueError("; ".join(faults))
        return self


class ReuseConfig(_Section):
    """Completed results kept for equal nodes to come."""

    max_bytes: int = pydantic.Field(default=256 * 1024 * 1024, ge=0)
    max_entries: int = pydantic.Field(default=100_000, ge=0)
    ttl_s: dict[str, pydantic.PositiveFloat | None] = {
        "llm.generate": 3600.0,
        "http.search": 300.0,
    }
    """Seconds a result of a verb stays reusable; what is given goes over the defaults.
    Other verbs have no limit, and so has one that is given None."""
    store: Literal["none", "disk"] = "none"
    """Where results outlast the runtime: nowhere, or in ``store_dir``."""
    store_dir: Path | None = None
    """None: ``reuse`` in the user's state directory. One runtime at a time uses it."""
    store_max_bytes: int = pydantic.Field(default=1024 * 1024 * 1024, ge=0)

    @pydantic.field_validator("ttl_s")
    @classmethod
    def _of_known_verbs(cls, given: dict[str, float | None]) -> dict[str, float | None]:
        known = sorted({verb for verbs in VERBS.values() for verb in verbs})
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ValueError(
                f"there is no verb {', '.join(unknown)}; there are {', '.join(known)}"
            )
        return {**cls.model_fields["ttl_s"].default, **given}


class SchedulerConfig(_Section):
    """The kernel's policies and bounds."""

    ordering: str = "workflow_fcfs"
    """Which node next: the name of an ordering."""
    placement: str = "least_loaded"
    """On which instance: the name of a placement."""
    fusion: bool = True
    """Run equal work once, and reuse its results."""
    fusion_hash: Literal["sha256", "xxh3"] = "sha256"
    """What names work and values. ``xxh3`` is faster on large values and no cryptographic
    hash: for a single tenant that trusts whoever writes its inputs and documents."""
    max_active_runs: int = pydantic.Field(default=10_000, ge=1)
    """Runs at once; beyond it a submit is refused and told when to retry."""
    max_attempts: int = pydantic.Field(default=3, ge=1)
    """Executions of one node, the first included, before its error is final."""
    journal: bool = True
    """Write every event to a file that replays to the same decisions."""
    journal_max_mb: int = pydantic.Field(default=1024, ge=1)
    profile: Path | None = None
    """What `herasys profile` wrote of these engines, for orderings that predict; None:
    they go by what they have seen."""
    reuse: ReuseConfig = ReuseConfig()


class Config(_Section):
    """The whole file."""

    ray: RayConfig = RayConfig()
    database: DatabaseConfig = DatabaseConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    pools: tuple[PoolConfig, ...] = ()

    @pydantic.model_validator(mode="after")
    def _pools_are_consistent(self) -> Config:
        names = [pool.name for pool in self.pools]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"pool names must differ; given twice: {', '.join(twice)}")
        for resource in dict.fromkeys(pool.resource for pool in self.pools):
            here = [p for p in self.pools if p.resource == resource]
            defaults = [p.name for p in here if p.default]
            if len(here) > 1 and len(defaults) != 1:
                raise ValueError(
                    f"of the pools of resource {resource!r} exactly one must say "
                    f"'default: true'; now: {defaults or 'none'}"
                )
        return self


def load_config(
    path: Path | None = None, environ: Mapping[str, str] | None = None
) -> Config:
    """The configuration of a file (None: the laptop defaults) with overrides applied.

    Sections and keys that a file leaves out have their defaults; a file without
    ``pools`` gets the laptop's. ``HERASYS_SCHEDULER__ORDERING=srtf`` in ``environ``
    (None: the process's) sets ``scheduler.ordering``; values are YAML. A pool's field is
    reached by its name: ``HERASYS_POOLS__LLM__SLOTS=8`` (``-`` in a name as ``_``).

    Errors: `ConfigError` with every fault (``fields['faults']``), where it is and, for
    an unknown key, the nearest known one.
    """
    text, origin = _read(path)
    data, lines = source.read_yaml(text, origin)
    data = {key: {} if value is None else value for key, value in data.items()}
    if not data.get("pools") and data.get("pools") != []:
        data["pools"] = _default_data()["pools"]
    faults: list[str] = []
    outline = source.Outline(Config)
    overridden = source.override(
        data, os.environ if environ is None else environ, outline, faults
    )
    config: Config | None = None
    try:
        config = Config.model_validate(data)
    except pydantic.ValidationError as e:
        for fault in e.errors(include_url=False):
            faults.append(source.tell(fault, data, lines, overridden, outline))
    if faults or config is None:
        raise _config_error(origin, faults)
    return config


def default_config() -> Config:
    """What runs when nothing is configured; the environment is not looked at."""
    return Config.model_validate(_default_data())


def default_text() -> str:
    """The default configuration as the commented YAML file that is shipped."""
    here = importlib.resources.files("herasys_rt")
    return here.joinpath("configs/local-cpu.yaml").read_text(encoding="utf-8")


def dump_config(config: Config) -> str:
    """The configuration as YAML, secrets masked; for showing, not for loading."""
    data = config.model_dump(mode="python")
    shown = _shown(data)
    dsn = config.database.dsn
    shown["database"]["dsn"] = None if dsn is None else mask_dsn(dsn.get_secret_value())
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def with_modelled_engines(config: Config) -> Config:
    """The same pools with every engine `modelled`: nothing executes, no model loads.

    Slots, batches, instances and placement stay; engine options go, as they mean
    something only to the engine they were written for.
    """
    pools = tuple(
        pool.model_copy(update={"engine": "modelled", "options": {}})
        for pool in config.pools
    )
    return config.model_copy(update={"pools": pools})


def mask_dsn(dsn: str) -> str:
    """A DSN (URL or ``key=value`` form) with its password masked."""
    masked = re.sub(r"(?<=://)([^:/@\s]*):.*@(?=[^@]*$)", r"\1:***@", dsn)
    return re.sub(r"(?i)(\bpassword\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", r"\1***", masked)


def _shown(value: Any, name: str = "") -> Any:
    """Plain YAML data of a dumped model: paths as text, secret-looking texts masked."""
    if isinstance(value, Mapping):
        return {str(k): _shown(v, str(k)) for k, v in value.items()}  # pyright: ignore
    if isinstance(value, list | tuple):
        return [_shown(v, name) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str | pydantic.SecretStr) and source.is_secret(name):
        return "***"
    return value


def _pool_faults(pool: PoolConfig) -> list[str]:
    """What one pool's fields say against each other."""
    faults: list[str] = []
    if pool.engine not in ENGINES[pool.resource]:
        fitting = ", ".join(ENGINES[pool.resource])
        faults.append(
            f"engine {pool.engine!r} does not serve resource {pool.resource!r} "
            f"(engines that do: {fitting})"
        )
    elif pool.resource in _WITHOUT_MODEL:
        if pool.model is not None:
            faults.append(f"a {pool.resource} pool has no model; remove 'model'")
    elif pool.engine != "modelled" and not pool.model:
        faults.append(f"engine {pool.engine!r} needs a model; add 'model: ...'")
    if pool.role != "both" and pool.resource != "llm":
        faults.append(f"role {pool.role!r} exists for resource 'llm' only")
    if pool.gpu_class is not None and pool.gpus == 0:
        faults.append("gpu_class is set but gpus is 0; say how many an instance takes")
    if pool.gpus > 1 and pool.gpus != int(pool.gpus):
        faults.append(f"gpus above 1 must be whole, not {pool.gpus}")
    return faults


def _read(path: Path | None) -> tuple[str, str]:
    """The text of a configuration and what to call it."""
    if path is None:
        return default_text(), "the configuration (the defaults and HERASYS_ variables)"
    try:
        return path.read_text(encoding="utf-8-sig"), str(path)
    except FileNotFoundError as e:
        raise ConfigError(
            f"there is no configuration file {path}",
            hint="Check the path; configs/local-cpu.yaml is a file to start from.",
            path=str(path),
        ) from e
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else f"it is no UTF-8 text ({e})"
        raise ConfigError(
            f"the configuration file {path} cannot be read: {reason}",
            hint="Give a readable YAML file.",
            path=str(path),
        ) from e


def _default_data() -> dict[str, Any]:
    return source.read_yaml(default_text(), "the default configuration")[0]


def _config_error(origin: str, faults: list[str]) -> ConfigError:
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    listed = "".join(f"\n  - {fault}" for fault in faults)
    return ConfigError(
        f"{origin} has {count}:{listed}",
        hint="Mend each line above; nothing was started.",
        origin=origin,
        faults=tuple(faults),
    )
