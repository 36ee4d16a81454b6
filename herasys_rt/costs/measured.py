"""Step times that were measured, as they ship with the package."""

from __future__ import annotations

import importlib.resources
from functools import cache

import msgspec

from herasys_rt.costs.grid import GridSteps, StepGrid
from herasys_rt.costs.hardware import Gpu
from herasys_rt.costs.layered import LayeredSteps, StepParts
from herasys_rt.costs.memory import kv_capacity_tokens
from herasys_rt.costs.models import ModelArch
from herasys_rt.costs.steps import StepTimes
from herasys_rt.errors import ConfigError

MeasuredForm = StepGrid | StepParts
"""What was measured, as files hold it; `steps_of` makes step times of it."""


class MeasuredFile(msgspec.Struct, frozen=True):
    """One file under ``data/``: its setting, where its numbers come from, and they."""

    model: str
    gpu: str
    tp: int
    source: str
    licence: str
    steps: MeasuredForm


def steps_of(
    steps: MeasuredForm, *, kv_capacity_tokens: int, kv_bytes_per_token: int
) -> StepTimes:
    """Step times that read measurements."""
    if isinstance(steps, StepGrid):
        return GridSteps(
            steps,
            kv_capacity_tokens=kv_capacity_tokens,
            kv_bytes_per_token=kv_bytes_per_token,
        )
    return LayeredSteps(
        steps, kv_capacity_tokens=kv_capacity_tokens, kv_bytes_per_token=kv_bytes_per_token
    )


def measured_settings() -> tuple[tuple[str, str, int], ...]:
    """(model, GPU, tensor parallelism) of every measured setting there is."""
    return tuple(_files())


def measured_file(model: ModelArch, gpu: Gpu, tp: int) -> MeasuredFile:
    """The measurements of a setting.

    Errors: `ConfigError` that lists the settings there are.
    """
    found = _files().get((model.name, gpu.name, tp))
    if found is not None:
        return found
    have = "; ".join(f"{m} on {n} x {g}" for m, g, n in measured_settings())
    raise ConfigError(
        f"there are no measured step times of {model.name} on {tp} x {gpu.name}; "
        f"there are {have}",
        hint="Take backend 'roofline' or 'auto', or add a grid as docs/costs.md says.",
        model=model.name,
        gpu=gpu.name,
        tp=tp,
    )


def measured_steps(model: ModelArch, gpu: Gpu, tp: int) -> StepTimes:
    """`StepTimes` of a measured setting.

    Errors: `ConfigError` as `measured_file` and `kv_capacity_tokens` say.
    """
    capacity = kv_capacity_tokens(model, gpu, tp)
    return steps_of(
        measured_file(model, gpu, tp).steps,
        kv_capacity_tokens=capacity,
        kv_bytes_per_token=model.kv_bytes_per_token,
    )


@cache
def _files() -> dict[tuple[str, str, int], MeasuredFile]:
    folder = importlib.resources.files("herasys_rt.costs") / "data"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".json"))
    found: dict[tuple[str, str, int], MeasuredFile] = {}
    for name in names:
        file = msgspec.json.decode((folder / name).read_bytes(), type=MeasuredFile)
        found[file.model, file.gpu, file.tp] = file
    return found
