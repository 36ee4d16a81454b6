"""Engine-specific options of a pool, validated by the engine that takes them."""

from __future__ import annotations

from typing import TypeVar

import pydantic

from herasys_rt.config import PoolConfig
from herasys_rt.config_source import nearest
from herasys_rt.errors import ConfigError

OptionsT = TypeVar("OptionsT", bound="EngineOptions")


class EngineOptions(pydantic.BaseModel):
    """What ``pools[].options`` may hold for one engine: unknown keys are refused."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, validate_default=True)


def read_options(pool: PoolConfig, kind: type[OptionsT]) -> OptionsT:
    """The pool's options as ``kind``. Errors: `ConfigError` with every fault."""
    try:
        return kind.model_validate(pool.options)
    except pydantic.ValidationError as e:
        known = sorted(kind.model_fields)
        faults: list[str] = []
        for error in e.errors():
            name = ".".join(str(part) for part in error["loc"]) or "options"
            if error["type"] == "extra_forbidden":
                close = nearest(name, known)
                faults.append(f"unknown option {name!r}{f' ({close})' if close else ''}")
            else:
                faults.append(f"{name}: {error['msg']}")
        raise ConfigError(
            f"options of pool {pool.name!r} ({pool.engine}): " + "; ".join(faults),
            hint=f"Known options: {', '.join(known)}.",
            faults=tuple(faults),
        ) from e
