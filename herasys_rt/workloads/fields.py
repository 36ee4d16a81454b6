"""What the keys of a workload file hold: names, lengths, files, distributions."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from herasys_rt.workloads.draws import MAX_COUNT, MAX_TOKENS, Law, Spread

_MAX_WEIGHT = 1e6


class Section(pydantic.BaseModel):
    """A mapping of a file; unknown keys are faults."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _text_fault(text: str) -> str:
    """Names go into ids, tables and file names."""
    if not text.strip():
        raise ValueError("is blank")
    if not text.isprintable():
        raise ValueError(f"has characters that cannot be shown: {text!r}")
    return text


class Form(Section):
    """A section that says what something of the sources is; ``build`` gives that."""

    def build(self) -> Any:
        """What it says, in the terms of the sources."""
        raise NotImplementedError


Name = Annotated[str, pydantic.Field(max_length=100), pydantic.AfterValidator(_text_fault)]


def not_empty(value: Any) -> Any:
    """Refuse what is no list or has no entries, and more of them than are taken."""
    if isinstance(value, list) and not 1 <= len(value) <= MAX_COUNT:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"has {len(value)} entries, and 1 to {MAX_COUNT:,} are taken")  # pyright: ignore[reportUnknownArgumentType]
    if value is not None and not isinstance(value, list | tuple):
        raise ValueError(f"is no list: {value!r}")
    return value  # pyright: ignore[reportUnknownVariableType]


Tokens = Annotated[int, pydantic.Field(ge=0, le=MAX_TOKENS)]
SomeTokens = Annotated[int, pydantic.Field(ge=1, le=MAX_TOKENS)]
Few = Annotated[int, pydantic.Field(ge=1, le=MAX_COUNT)]
Weight = Annotated[float, pydantic.Field(gt=0, le=_MAX_WEIGHT)]
Scale = Annotated[float, pydantic.Field(gt=0, le=1000)]


def _found(path: str, info: pydantic.ValidationInfo) -> str:
    folder: Path = (info.context or {}).get("folder", Path())
    found = folder / path
    if not found.is_file():
        raise ValueError(f"there is no file {found}")
    return str(found)


File = Annotated[str, pydantic.AfterValidator(_found)]


class SpreadForm(Form):
    """A distribution. ``median`` instead of ``mean`` only for a lognormal."""

    mean: float | None = pydantic.Field(default=None, ge=0, le=MAX_TOKENS)
    median: float | None = pydantic.Field(default=None, gt=0, le=MAX_TOKENS)
    sigma: float = pydantic.Field(default=0.0, ge=0, le=MAX_TOKENS)
    law: Law = "lognormal"
    min: float = pydantic.Field(default=0.0, ge=0, le=MAX_TOKENS)
    max: float | None = pydantic.Field(default=None, ge=0, le=MAX_TOKENS)
    offset: float = pydantic.Field(default=0.0, ge=0, le=MAX_TOKENS)

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        faults: list[str] = []
        if (self.mean is None) == (self.median is None):
            faults.append("takes one of mean and median")
        if self.median is not None and self.law != "lognormal":
            faults.append(f"median is for a lognormal; a {self.law} takes mean")
        if self.law == "lognormal" and self.sigma > 5:
            faults.append(f"sigma of a lognormal is at most 5, got {self.sigma:g}")
        if self.law == "exponential" and self.sigma:
            faults.append("an exponential has no sigma")
        if self.max is not None and self.max < self.min:
            faults.append(f"max {self.max:g} is below min {self.min:g}")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def build(self) -> Spread:
        """See `Form`."""
        high = float("inf") if self.max is None else self.max
        if self.median is not None:
            spread = Spread.of_median(self.median, self.sigma)
            return Spread(spread.mean, self.sigma, "lognormal", self.min, high, self.offset)
        mean = self.mean or 0.0
        return Spread(mean, self.sigma, self.law, self.min, high, self.offset)


def _from_number(value: Any) -> Any:
    return {"mean": value} if isinstance(value, int | float | str) else value


Draw = Annotated[SpreadForm, pydantic.BeforeValidator(_from_number)]
"""A distribution, or a number that is always drawn."""


def _is_count(spread: SpreadForm) -> SpreadForm:
    if (spread.mean or spread.median or 0) > MAX_COUNT:
        raise ValueError(f"the mean is at most {MAX_COUNT:,}")
    return spread


Count = Annotated[Draw, pydantic.AfterValidator(_is_count)]
"""Of calls and chunks, which all are held: no draw goes beyond `MAX_COUNT`."""


def given_of(section: pydantic.BaseModel, names: AbstractSet[str]) -> dict[str, Any]:
    """What a file says under these names, in the terms of the sources."""
    values = {name: getattr(section, name) for name in sorted(names)}
    return {name: _built(value) for name, value in values.items() if value is not None}


def _built(value: Any) -> Any:
    match value:
        case Form():
            return value.build()
        case tuple():
            return tuple(_built(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
