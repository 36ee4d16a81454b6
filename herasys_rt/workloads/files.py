"""The YAML form of a workload: any of the named ones, and one's own.

`read_workload` takes a file, `parse_workload` a text, `write_workload` gives the text of
a workload; what was written reads back as the same workload. docs/workloads.md describes
the form with examples; `workloads.schema` is what it may hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import yaml

from herasys_rt import config_source as source
from herasys_rt.errors import ConfigError
from herasys_rt.workloads.arrivals import Workload
from herasys_rt.workloads.draws import Spread
from herasys_rt.workloads.graphs import LLM_VERBS, StepShape
from herasys_rt.workloads.mixture import Mixture, Part
from herasys_rt.workloads.parts import SOURCES, TAGS
from herasys_rt.workloads.records import text_of
from herasys_rt.workloads.schema import WorkloadFile, contradictions, fields_at
from herasys_rt.workloads.traces import Trace

_Path = tuple[str | int, ...]


def read_workload(path: str | Path) -> Workload:
    """The workload of a YAML file; paths in it are relative to its folder.

    Errors: `ConfigError` with every fault and its line.
    """
    file = Path(path)
    return parse_workload(text_of(file), str(file), file.parent, file.stem)


def parse_workload(
    text: str,
    origin: str = "the workload",
    folder: Path = Path(),
    name: str = "workload",
) -> Workload:
    """The workload of a YAML text, which errors call ``origin``.

    Paths in it are relative to ``folder``; ``name`` is for one that has no name of its
    own. Errors: `ConfigError` with every fault and its line.
    """
    data, lines = source.read_yaml(text, origin)
    faults = [f"the whole: {problem}" for problem in contradictions(data)]
    file: WorkloadFile | None = None
    try:
        file = WorkloadFile.model_validate(data, context={"folder": folder})
    except pydantic.ValidationError as e:
        told = e.errors(include_url=False, include_context=False)
        faults += [_tell(fault, data, lines) for fault in told]
    if file is None or faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError(
            f"{origin} has {count}:" + "".join(f"\n  - {fault}" for fault in faults),
            hint="docs/workloads.md describes the form; nothing was run.",
            faults=tuple(faults),
        )
    return file.build(name)


def write_workload(found: Workload) -> str:
    """The YAML text of a workload. Errors: `TypeError` for one, or a source, that has no
    form here."""
    match found:
        case Mixture():
            body: dict[str, Any] = {"duplicates": _fields(found.duplicates, whole=True)}
            body["parts"] = [_part(part) for part in found.parts]
        case Trace():
            body = {"trace": {"format": found.format, "path": found.path}}
        case _:
            raise _formless(found)
    head: dict[str, Any] = {"name": found.name, "runs": found.default_runs}
    if found.default_rate is not None:
        head["rate"] = found.default_rate
    if found.closed_loop_concurrency is not None:
        head["concurrency"] = found.closed_loop_concurrency
    return yaml.safe_dump({**head, **body}, sort_keys=False, allow_unicode=True)


def _part(part: Part) -> dict[str, Any]:
    tags = {kind: tag for tag, kind in SOURCES.items()}
    tag = tags.get(type(part.source))
    if tag is None:
        raise _formless(part.source)
    return {"source": tag, "weight": part.weight, **_fields(part.source)}


def _formless(thing: object) -> TypeError:
    return TypeError(f"a {type(thing).__name__} has no YAML form")


def _fields(struct: Any, *, whole: bool = False) -> dict[str, Any]:
    """A struct's fields as YAML has them: those that are not as by default, or all."""
    return {
        field.name: _plain(getattr(struct, field.name))
        for field in msgspec.structs.fields(struct)
        if whole or getattr(struct, field.name) != field.default
    }


def _plain(value: Any) -> Any:
    match value:
        case Spread():
            names = {"low": "min", "high": "max"}
            fields = _fields(value)
            bare = list(fields) == ["mean"]
            return value.mean if bare else {names.get(k, k): v for k, v in fields.items()}
        case StepShape() if value.verb in LLM_VERBS:  # its output is told, also no tokens
            return {**_fields(value), "output": _plain(value.output)}
        case msgspec.Struct():
            return _fields(value)
        case tuple():
            return [_plain(item) for item in value]
        case _:
            return value


def _tell(fault: Any, data: Any, lines: Mapping[_Path, int]) -> str:
    """One pydantic fault as one line: where, what is wrong, what would have fitted."""
    path = _path_of(fault["loc"], data)
    untagged = fault["type"] in ("union_tag_invalid", "union_tag_not_found")
    if untagged:
        path = (*path, "source")
    line = source.line_of(path, lines)
    where = ".".join(_spoken(part) for part in path) or "the whole"
    where += f" (line {line})" if line else ""
    if fault["type"] == "extra_forbidden":
        known = fields_at(path[:-1], data)
        return f"{where}: unknown key; {source.nearest(str(path[-1]), known)}"
    if untagged:
        tag = str(fault["input"].get("source", ""))
        return f"{where}: no source {tag!r}; {source.nearest(tag, TAGS)}"
    if fault["type"] == "missing":
        return f"{where}: this key is required"
    problem = str(fault["msg"]).removeprefix("Value error, ")
    value = fault.get("input")
    if isinstance(value, str | int | float) and fault["type"] != "value_error":
        problem += f", got {value!r}"
    elif value is None:
        problem += ", got nothing"
    return f"{where}: {problem}"


def _path_of(loc: Sequence[str | int], data: Any) -> _Path:
    """Where a fault is in the file: pydantic names the kinds of a union on the way too."""
    path: list[str | int] = []
    spot = data
    for number, part in enumerate(loc):
        inside = (isinstance(spot, Mapping) and part in spot) or (
            isinstance(spot, list) and isinstance(part, int) and part < len(spot)  # pyright: ignore[reportUnknownArgumentType]
        )
        if inside:
            spot = spot[part]  # pyright: ignore
        if inside or (number == len(loc) - 1 and isinstance(spot, Mapping)):
            path.append(part)
    return tuple(path)


def _spoken(part: str | int) -> str:
    return f"#{part + 1}" if isinstance(part, int) else part
