"""A Python function's arguments and result, as its type hints and docstring declare them.

Whoever declares a tool asks for the JSON schema, whoever calls it checks values by the
same rules; both live here.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Mapping
from typing import Any, cast

import pydantic
import pydantic_core
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from herasys_rt.errors import UsageError
from herasys_rt.graph import codec

AnyFunction = Callable[..., Any]

_CONFIG = pydantic.ConfigDict(arbitrary_types_allowed=True, extra="forbid")
_SECTION = re.compile(
    r"^[ \t]*(?:(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):?"
    r"[ \t]*$|:(?:param|return|returns|raises|type|rtype)\b)",
    re.MULTILINE,
)
_GOOGLE = re.compile(r"^\*{0,2}(\w+)[ \t]*(?:\([^)]*\))?[ \t]*:[ \t]*(.*)$")
_SPHINX = re.compile(r"^[ \t]*:param[ \t]+(?:[^:]*[ \t])?(\w+):[ \t]*(.*)$", re.MULTILINE)
_NUMPY = re.compile(r"^(\w+)[ \t]*(?::.*)?$")
_MOST_FAULTS = 10


def hints_of(function: AnyFunction) -> dict[str, Any]:
    """The evaluated type hints of a function by parameter name, ``return`` among them.

    Errors: `UsageError` for an annotation that cannot be evaluated.
    """
    captured: dict[str, Any] = {}
    code = getattr(function, "__code__", None)
    cells: tuple[Any, ...] = getattr(function, "__closure__", None) or ()
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=True):
        try:
            captured[name] = cell.cell_contents
        except ValueError:  # assigned after the declaration
            continue
    try:
        return typing.get_type_hints(function, localns=captured, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as e:
        raise UsageError(
            f"the annotations of {function.__qualname__} cannot be read: {e}",
            hint="Annotate with types that can be named where the function is defined.",
        ) from e


class Arguments:
    """The arguments of a function: their JSON schema, and values checked against it.

    ``hints`` are those of `hints_of` (None: asked now). Errors: `UsageError` for
    parameters that cannot be declared one by one.
    """

    def __init__(self, function: AnyFunction, hints: Mapping[str, Any] | None = None):
        self.parameters = dict(inspect.signature(function).parameters)
        self.hints = dict(hints_of(function) if hints is None else hints)
        for parameter in self.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise UsageError(
                    f"{function.__qualname__} takes *{parameter.name}: nobody can say "
                    "what goes there",
                    hint="Declare the arguments one by one; a list or a dict is one.",
                )
        self.summary, self._docs = _read_docstring(inspect.getdoc(function) or "")
        self._model = self._built(function)
        self._returns = self._adapter(self.hints.get("return", inspect.Signature.empty))

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object's."""
        schema = self._model.model_json_schema(by_alias=True, schema_generator=_Schema)
        schema.pop("title", None)
        schema.setdefault("properties", {})
        for declared in schema["properties"].values():
            declared.pop("title", None)
        return schema

    def bind(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments to call with, converted to what is declared.

        Arguments that are not given are left to the function's defaults. Errors:
        `ValueError` with all faults in one line.
        """
        try:
            checked = self._model.model_validate(dict(values))
        except pydantic.ValidationError as e:
            raise ValueError(_told(e)) from e
        given = checked.model_fields_set
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for at, (name, parameter) in enumerate(self.parameters.items()):
            if f"a{at}" not in given:
                continue
            value = getattr(checked, f"a{at}")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                named[name] = value
        return positional, named

    def fault_of(self, name: str, value: Any) -> str | None:
        """Why one value does not fit the argument of that name; None when it does."""
        at = list(self.parameters).index(name)
        field = self._model.model_fields[f"a{at}"]
        metadata = tuple(field.metadata)
        hint = typing.Annotated[(field.annotation, *metadata)] if metadata else None
        adapter = self._adapter(hint or field.annotation)
        return None if adapter is None else _adapter_fault(adapter, value)

    def result_fault(self, value: Any) -> str | None:
        """Why a result is not what the function's return annotation says; None if it is.

        A function without one may return anything.
        """
        return None if self._returns is None else _adapter_fault(self._returns, value)

    def _built(self, function: AnyFunction) -> type[pydantic.BaseModel]:
        fields: dict[str, Any] = {}
        for at, (name, parameter) in enumerate(self.parameters.items()):
            # Numbered, so that a parameter may be called like a method of the model.
            more: dict[str, Any] = {"alias": name}
            if self._docs.get(name):
                more["description"] = self._docs[name]
            default = parameter.default
            if default is not inspect.Parameter.empty:
                more["default"] = default
            fields[f"a{at}"] = (self.hints.get(name, Any), pydantic.Field(**more))
        try:
            return pydantic.create_model("Arguments", __config__=_CONFIG, **fields)
        except (TypeError, pydantic.errors.PydanticUserError) as e:
            raise UsageError(
                f"the parameters of {function.__qualname__} make no schema: {e}",
                hint="Annotate with plain types, lists, dicts or pydantic models.",
            ) from e

    @staticmethod
    def _adapter(hint: Any) -> pydantic.TypeAdapter[Any] | None:
        if hint is inspect.Signature.empty:
            return None
        try:
            return pydantic.TypeAdapter(hint, config=_CONFIG)
        except pydantic.errors.PydanticUserError:  # a model brings its own configuration
            return pydantic.TypeAdapter(hint)


def plain_value(value: Any) -> Any:
    """A value in the types that travel between nodes.

    Models, dataclasses, enums, sets, dates and the like become what JSON says they are;
    what is neither stays, for the codec to refuse by name.
    """
    if codec.fault_of(value) is None:
        return value
    try:
        return pydantic_core.to_jsonable_python(value, by_alias=True)
    except (pydantic_core.PydanticSerializationError, ValueError, RecursionError):
        return value


class _Schema(GenerateJsonSchema):
    """Says what JSON can say of the types, and nothing of those it cannot."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def handle_invalid_for_json_schema(
        self, schema: Any, error_info: str
    ) -> JsonSchemaValue:
        return {}


def _adapter_fault(adapter: pydantic.TypeAdapter[Any], value: Any) -> str | None:
    try:
        adapter.validate_python(value)
    except pydantic.ValidationError as e:
        return _told(e)
    return None


def _told(error: pydantic.ValidationError) -> str:
    """All faults of a validation in one line: where, and what."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines: list[str] = []
    for fault in found[:_MOST_FAULTS]:
        where = ".".join(str(part) for part in fault["loc"])
        lines.append(f"{where}: {fault['msg']}" if where else fault["msg"])
    if len(found) > _MOST_FAULTS:
        lines.append(f"{len(found) - _MOST_FAULTS} more")
    return "; ".join(lines)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """(what the function does, its parameters' descriptions) of a docstring.

    Google, NumPy and Sphinx styles are understood.
    """
    cut = _SECTION.search(text)
    summary = (text[: cut.start()] if cut else text).strip()
    docs = {m[1]: m[2].strip() for m in _SPHINX.finditer(text)}
    head = re.search(r"^[ \t]*(?:Args|Arguments|Parameters):?[ \t]*\n", text, re.MULTILINE)
    if head is None:
        return summary, docs
    body = text[head.end() :]
    if re.match(r"[ \t]*-{3,}[ \t]*\n", body):
        return summary, docs | _entries(body.partition("\n")[2], _NUMPY)
    end = re.search(r"^\S", body, re.MULTILINE)
    return summary, docs | _entries(
        textwrap.dedent(body[: end.start() if end else None]), _GOOGLE
    )


def _entries(body: str, heading: re.Pattern[str]) -> dict[str, str]:
    """Descriptions by name of a section whose headings are not indented."""
    found: dict[str, str] = {}
    name = ""
    for line in body.splitlines():
        match = heading.match(line)
        if match:
            name = match[1]
            found[name] = match[2].strip() if heading is _GOOGLE else ""
        elif line[:1].isspace() and name:
            found[name] = f"{found[name]} {line.strip()}".strip()
        elif line.strip():
            break
    return {key: text for key, text in found.items() if text}


def is_coroutine(function: AnyFunction) -> bool:
    """Whether calling the function gives something to await."""
    inner = cast(Any, getattr(function, "func", function))  # of a functools.partial
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004
    )
