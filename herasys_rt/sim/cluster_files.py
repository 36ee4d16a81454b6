"""The YAML form of a cluster; docs/simulator.md describes it with an example."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pydantic

from herasys_rt import config_source as source
from herasys_rt.errors import ConfigError
from herasys_rt.sim.clusters import Cluster, PoolShape
from herasys_rt.sim.machines import faulty


class _Form(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _GroupForm(_Form):
    count: int = 1
    gpu: str = ""
    tp: int = pydantic.Field(default=0, ge=0)


class _PoolForm(_Form):
    name: str = pydantic.Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    resource: str
    groups: tuple[_GroupForm, ...] = (_GroupForm(),)
    role: str = "both"
    model: str = ""
    slots: int = 1
    batch_limit: int = 1
    token_budget: int = 2048
    context_tokens: int = pydantic.Field(default=0, ge=0)
    prefix_cache: bool = True
    share: float = 1.0
    default: bool = False


class _ClusterForm(_Form):
    name: str = ""
    model: str = "llama-3.1-70b"
    pools: tuple[_PoolForm, ...]


_OUTLINE = source.Outline(_ClusterForm)


def read_cluster(path: Path) -> Cluster:
    """The cluster of a file. Errors: `ConfigError` with every fault of its form and its
    line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(
            f"the cluster file {path} cannot be read: {e}",
            hint="Give a readable YAML file, or the name of a known cluster.",
            path=str(path),
        ) from e
    return parse_cluster(text, str(path), path.stem)


def parse_cluster(text: str, origin: str, name: str = "") -> Cluster:
    """The cluster of a YAML text that comes from ``origin``; ``name`` is taken where it
    has none. Errors: `ConfigError`."""
    data, lines = source.read_yaml(text, origin)
    try:
        form = _ClusterForm.model_validate(data)
    except pydantic.ValidationError as e:
        told = e.errors(include_url=False, include_context=False)
        faults = [source.tell(fault, data, lines, {}, _OUTLINE) for fault in told]
        raise faulty(origin, faults) from e
    pools = tuple(msgspec.convert(pool.model_dump(), PoolShape) for pool in form.pools)
    return Cluster(form.name or name, pools, form.model)
