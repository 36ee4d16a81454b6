"""Step times by names: the one place that chooses between the back ends."""

from __future__ import annotations

from typing import Literal

from herasys_rt.costs.hardware import Gpu, gpu
from herasys_rt.costs.measured import measured_settings, measured_steps
from herasys_rt.costs.models import ModelArch, model
from herasys_rt.costs.roofline import RooflineSteps
from herasys_rt.costs.steps import StepTimes
from herasys_rt.errors import ConfigError

Backend = Literal["measured", "roofline", "auto"]
BACKENDS: tuple[Backend, ...] = ("measured", "roofline", "auto")


def step_times(
    on_model: str | ModelArch,
    on_gpu: str | Gpu,
    tp: int = 1,
    backend: str = "auto",
) -> StepTimes:
    """Step times of one instance: a model on ``tp`` GPUs of one host.

    ``auto`` takes measurements where there are some and the roofline elsewhere. A model
    or GPU that is in no catalogue is given as its struct.

    Errors: `ConfigError` for unknown names (with the known ones), a model that does not
    fit, heads that ``tp`` does not divide, and for ``measured`` where nothing was.
    """
    arch = model(on_model) if isinstance(on_model, str) else on_model
    card = gpu(on_gpu) if isinstance(on_gpu, str) else on_gpu
    if backend not in BACKENDS:
        raise ConfigError(
            f"no back end of step times is called {backend!r}; known are "
            f"{', '.join(BACKENDS)}",
            hint="Use one of these names.",
        )
    is_measured = (arch.name, card.name, tp) in measured_settings()
    if backend == "measured" or (backend == "auto" and is_measured):
        return measured_steps(arch, card, tp)
    return RooflineSteps(arch, card, tp)
