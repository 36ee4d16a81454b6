"""Inputs of a run against the spec of its workflow: all faults at once, nothing runs."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pydantic

from herasys_rt.errors import Fault, InputError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import (
    constraint_fault,
    finite_fault,
    nearest,
    port_fault,
    widened,
)
from herasys_rt.graph.prompts import VAR
from herasys_rt.graph.spec import InputRef, InputSpec, WorkflowSpec
from herasys_rt.graph.types import PortType, describe, value_fault

_LOOSE = (PortType.ANY, PortType.JSON, PortType.RECORDS)
"""Types that say less than the ports do that an input feeds."""


def check_inputs(spec: WorkflowSpec, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs a run of ``spec`` takes: given values in plain types, defaults added.

    Tuples become lists, NumPy scalars Python's, an int given for a float a float. Pydantic
    models, also in a list or dict, become the JSON data of their fields by alias: equal
    data is equal, of whatever class it was. A value is also held against the ports it
    feeds, so that ``top_k=0`` or a blank question is refused here and not by an engine.

    Errors: `InputError` that lists every missing, unknown, wrongly typed, out-of-range,
    empty, non-finite or uncodable input at once (``fields['faults']``).
    """
    faults: list[Fault] = []
    checked: dict[str, Any] = {}
    for declared in spec.inputs:
        name = declared.name
        if name in inputs:
            try:
                value = _plain(inputs[name])
            except Exception as e:  # How a model is dumped is its author's code too.
                faults.append(Fault(name, f"cannot be written as JSON data: {e}"))
                continue
            fault = _input_fault(spec, declared, value)
            if fault:
                faults.append(Fault(name, fault))
            else:
                checked[name] = widened(value, declared.type)
        elif declared.required:
            faults.append(Fault(name, f"missing; it takes {declared.type.value}"))
        else:
            checked[name] = _own(declared.default)
    faults.extend(_unknown(spec, inputs))
    if faults:
        raise _refusal(spec, faults)
    return checked


def parse_input_text(spec: WorkflowSpec, texts: Mapping[str, str]) -> dict[str, Any]:
    """Values of inputs written as text, as on a command line; not yet checked.

    The declared type says how a text is read: numbers and booleans by their usual
    notation, lists, records and vectors as JSON, text as it is. ``@PATH`` reads the text
    from a file (``@@`` stands for a leading ``@``). An input without a declared type is
    read as the port that it feeds. Unknown names stay text: `check_inputs` reports them.

    Errors: `InputError` with every text that cannot be read.
    """
    declared = {item.name: item for item in spec.inputs}
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            content = _content(text)
            item = declared.get(name)
            values[name] = content if item is None else _read(spec, item, content)
        except (ValueError, OSError) as e:
            faults.append(Fault(name, str(e)))
    if faults:
        raise _refusal(spec, faults)
    return values


def describe_inputs(spec: WorkflowSpec) -> str:
    """One line naming every input with its type and default."""
    if not spec.inputs:
        return "no inputs"
    return ", ".join(
        f"{item.name}: {item.type.value}"
        + ("" if item.required else f" = {item.default!r}")
        for item in spec.inputs
    )


def _input_fault(spec: WorkflowSpec, declared: InputSpec, value: Any) -> str | None:
    outside = codec.fault_of(value) or finite_fault(value, "value")
    if outside:
        return outside
    if value is None and declared.type != PortType.ANY:
        return None if declared.optional else f"expected {declared.type.value}, got None"
    fault = value_fault(value, declared.type)
    if fault:
        return fault
    for node, port in spec.input_ports[declared.name]:
        if declared.type in _LOOSE:
            fault = port_fault(value, port)
        else:
            fault = constraint_fault(value, port.constraint)
        if not fault and declared.required and port.name.startswith(VAR):
            fault = _blank_fault(value)
        if fault:
            return f"{fault} (for {port.name!r} of node {node!r})"
    return _region_fault(spec, declared.name, value)


def _blank_fault(value: Any) -> str | None:
    """Why a value may not be asked about in a prompt: a required text that is blank makes
    the model answer nothing. A default says that its input may be blank."""
    if isinstance(value, str) and not value.strip():
        return "is empty; give the input a default if it may be"
    return None


def _region_fault(spec: WorkflowSpec, name: str, value: Any) -> str | None:
    """Why no region can go over an input that one goes over; None when it can."""
    for region in spec.regions:
        if region.items != InputRef(name):
            continue
        if not isinstance(value, list):
            return f"expected a list, got {describe(value)} (for {region.id!r})"
        count = len(cast("list[Any]", value))
        if count > region.max_items:
            return f"has {count} items, at most {region.max_items} (for {region.id!r})"
    return None


def _unknown(spec: WorkflowSpec, inputs: Mapping[str, Any]) -> list[Fault]:
    known = spec.input_ports
    return [
        Fault(str(name), "is no input of this workflow", nearest(str(name), known))
        for name in inputs
        if name not in known
    ]


def _refusal(spec: WorkflowSpec, faults: list[Fault]) -> InputError:
    lines = "".join(f"\n  - {fault}" for fault in faults)
    return InputError(
        f"inputs do not fit workflow {spec.name!r}:{lines}",
        hint=f"Workflow {spec.name!r} takes {describe_inputs(spec)}.",
        workflow=spec.name,
        faults=tuple(faults),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return cast(Any, value.item())
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if type(value) is dict:
        given = cast("dict[Any, Any]", value)
        models = any(map(_is_model, given.values()))
        return {k: _dumped(v) for k, v in given.items()} if models else given
    if type(value) is tuple or type(value) is list:
        items = list(cast("tuple[Any, ...]", value))
        return [_dumped(item) for item in items] if any(map(_is_model, items)) else items
    return value


def _dumped(value: Any) -> Any:
    return _plain(value) if _is_model(value) else value


def _is_model(value: Any) -> bool:
    return isinstance(value, pydantic.BaseModel)


def _own(default: Any) -> Any:
    """A default that the caller may change without changing it for the next run."""
    if isinstance(default, list | dict):
        return copy.deepcopy(cast(Any, default))
    return default


def _content(text: str) -> str:
    if text.startswith("@@"):
        return text[1:]
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ValueError(f"file {path} is no UTF-8 text: {e.reason}") from e
    except OSError as e:
        reason = e.strerror or type(e).__name__
        raise ValueError(f"cannot read file {path}: {reason}") from e


def _read(spec: WorkflowSpec, declared: InputSpec, text: str) -> Any:
    kind = _reading(spec, declared)
    if declared.optional and text.strip() == "null":
        return None
    match kind:
        case PortType.TEXT | PortType.ANY:
            return text
        case PortType.INT:
            return _number(int, text, "an integer")
        case PortType.FLOAT:
            number = _number(float, text, "a number")
            if not math.isfinite(number):
                raise ValueError(f"expected a finite number, got {describe(text)}")
            return number
        case PortType.BOOL:
            return _boolean(text)
        case _:
            return _structured(text, kind)


def _reading(spec: WorkflowSpec, declared: InputSpec) -> PortType:
    """How to read an input: its type, or when that is open the one type it must have."""
    if declared.type != PortType.ANY:
        return declared.type
    fed = {port.type for _, port in spec.input_ports[declared.name]} - {PortType.ANY}
    return fed.pop() if len(fed) == 1 else PortType.ANY


def _number(kind: type[int] | type[float], text: str, wanted: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"expected {wanted}, got {describe(text)}") from None


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"expected true or false, got {describe(text)}")


def _structured(text: str, kind: PortType) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(
            f"expected {kind.value} written as JSON, got {describe(text)} ({e})"
        ) from e
    if kind in (PortType.VECTOR, PortType.VECTORS):
        return np.asarray(value, dtype=np.float32)
    return value
