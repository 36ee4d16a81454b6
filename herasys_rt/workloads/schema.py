"""What a workload file may hold: the pydantic side of `workloads.files`.

A key that is left out has the default of the source it belongs to, which is where the
defaults are; so every key of a source is None here until a file says something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import pydantic

from herasys_rt import config_source
from herasys_rt.workloads import catalogue
from herasys_rt.workloads.arrivals import Workload
from herasys_rt.workloads.fields import File, Name, Scale, Section, SpreadForm, not_empty
from herasys_rt.workloads.mixture import MAX_RUNS, Duplicates, Mixture, Part
from herasys_rt.workloads.parts import BY_TAG, SOURCES, PartForm, StepForm
from herasys_rt.workloads.traces import TIMED, Trace, TraceFormat

_MAX_CLIENTS = 100_000
_MAX_RATE = 1e6


class _Duplicates(Section):
    share: float = pydantic.Field(default=0.0, ge=0, lt=1)
    exponent: float = pydantic.Field(default=1.0, ge=0, le=10)


def _from_share(value: Any) -> Any:
    return {"share": value} if isinstance(value, int | float | str) else value


class _Trace(Section):
    format: TraceFormat
    path: File


class WorkloadFile(Section):
    """A workload: one of ``base`` (a named one), ``parts`` (a mix) and ``trace``."""

    name: Name | None = None
    runs: int | None = pydantic.Field(default=None, ge=1, le=MAX_RUNS)
    rate: float | None = pydantic.Field(default=None, gt=0, le=_MAX_RATE)
    concurrency: int | None = pydantic.Field(default=None, ge=1, le=_MAX_CLIENTS)
    base: str | None = None
    length_scale: Scale | None = None
    duplicates: Annotated[_Duplicates, pydantic.BeforeValidator(_from_share)] | None = None
    parts: Annotated[tuple[PartForm, ...] | None, pydantic.BeforeValidator(not_empty)] = (
        None
    )
    trace: _Trace | None = None

    @pydantic.field_validator("base")
    @classmethod
    def _known(cls, base: str | None) -> str | None:
        if base is not None and base not in catalogue.NAMES:
            near = config_source.nearest(base, catalogue.NAMES)
            raise ValueError(f"no workload {base!r}; {near}")
        return base

    def build(self, name: str) -> Workload:
        """The workload; ``name`` is for one that has none and is no named one's."""
        if self.base is not None:
            like = catalogue.workload(self.base, self.length_scale or 1.0)
        elif self.trace is not None:
            format, path = self.trace.format, self.trace.path
            clients = None if format in TIMED else catalogue.CONCURRENCY
            like = Trace(name, format, path, closed_loop_concurrency=clients)
        else:
            parts = tuple(Part(p.build(), p.weight) for p in self.parts or ())
            clients = catalogue.CONCURRENCY
            like = Mixture(name, parts, closed_loop_concurrency=clients)
        return msgspec.structs.replace(like, **self._changes())  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    def _changes(self) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if self.name is not None:
            changes["name"] = self.name
        if self.runs is not None:
            changes["default_runs"] = self.runs
        if self.rate is not None or self.concurrency is not None:
            changes["default_rate"] = self.rate
            changes["closed_loop_concurrency"] = self.concurrency
        if self.duplicates is not None:
            changes["duplicates"] = Duplicates(**self.duplicates.model_dump())
        return changes


def contradictions(data: Mapping[str, Any]) -> list[str]:
    """What of a file's sections does not go together, however right each of them is."""
    given = [key for key, value in data.items() if value is not None]
    made_of = [key for key in ("base", "parts", "trace") if key in given]
    faults: list[str] = []
    if len(made_of) != 1:
        got = " and ".join(made_of) or "none"
        faults.append(f"takes one of base, parts and trace, got {got}")
    if "rate" in given and "concurrency" in given:
        faults.append("takes a rate (open loop) or a concurrency (closed loop), not both")
    if "length_scale" in given and "base" not in given:
        faults.append("length_scale goes with base; parts have scales of their own")
    if "duplicates" in given and "trace" in given:
        faults.append("a trace is replayed as it was and takes no duplicates")
    kinds = [_kind_of(part) for part in _list(data.get("parts"))]
    for kind in sorted({kind for kind in kinds if kind and kinds.count(kind) > 1}):
        count = kinds.count(kind)
        faults.append(f"{count} parts are of the kind {kind!r}; kinds must differ")
    return faults


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind_of(part: Any) -> str:
    """The kind that a part's jobs will have; ``""`` where its source says nothing."""
    if not isinstance(part, Mapping):
        return ""
    section: Mapping[str, Any] = part
    tag = str(section.get("source"))
    if tag in SOURCES:
        fields = msgspec.structs.fields(SOURCES[tag])
        own = next(str(f.default) for f in fields if f.name == "kind")
        return str(section.get("kind") or ("" if tag == "graph" else own))
    return tag if tag in BY_TAG else ""


def part_keys(tag: str) -> list[str]:
    """The keys of a part with this source."""
    return list(BY_TAG[tag].model_fields)


def fields_at(path: tuple[str | int, ...], data: Any) -> list[str]:
    """The keys known at a place of a file."""
    spot, section = data, WorkloadFile.model_fields.keys()
    for number, part in enumerate(path):
        spot = spot[part]
        if part in ("duplicates", "trace"):
            section = (_Duplicates if part == "duplicates" else _Trace).model_fields.keys()
        elif isinstance(spot, Mapping) and "source" in spot:
            section = part_keys(str(spot["source"]))
        elif isinstance(spot, Mapping):
            is_step = number > 0 and path[number - 1] == "steps"
            section = (StepForm if is_step else SpreadForm).model_fields.keys()
    return list(section)
