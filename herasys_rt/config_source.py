"""What a configuration is written in: YAML that remembers its lines, and the environment.

Here texts become plain mappings and faults become lines that say where they are; which
keys there are is `herasys_rt.config`'s, handed in as an `Outline` of its schema.
"""

from __future__ import annotations

import difflib
import pathlib
import re
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, get_args

import pydantic
import yaml

from herasys_rt.errors import ConfigError

ENV_PREFIX = "HERASYS_"
SEPARATOR = "__"

Path = tuple[str | int, ...]
"""Where something is: keys, and positions within lists."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error, not the last one's win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if isinstance(key, str | int | float | bool) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"the key {key!r} is given twice (first on line {seen[key]})",
                    key_node.start_mark,
                )
            if isinstance(key, str | int | float | bool):
                seen[key] = line
        return super().construct_mapping(node, deep)


def read_yaml(text: str, origin: str) -> tuple[dict[str, Any], dict[Path, int]]:
    """The mapping in a YAML text and the line (from 1) of every key and list entry.

    ``origin`` names the text in errors. An empty text is an empty mapping.
    Errors: `ConfigError` with the line of a syntax error or of a key given twice.
    """
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            data = loader.construct_document(root) if root is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as e:
        raise _syntax_error(e, origin) from e
    except yaml.YAMLError as e:
        raise ConfigError(
            f"{origin} is no YAML text: {e}",
            hint="Write it as YAML in UTF-8, without control characters.",
            origin=origin,
        ) from e
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{origin} holds a {type(data).__name__} where sections were expected",
            hint="Write sections such as 'scheduler:' and 'pools:' at the top.",
            origin=origin,
        )
    lines: dict[Path, int] = {}
    if root is not None:
        _collect_lines(root, (), lines)
    return data, lines


def _syntax_error(error: yaml.MarkedYAMLError, origin: str) -> ConfigError:
    """Where YAML stopped making sense, and where what it was reading began."""
    mark = error.problem_mark or error.context_mark
    where = f"{origin}, line {mark.line + 1}" if mark else origin
    told = error.problem or "not YAML"
    begun = error.context_mark
    if error.context and begun and mark and begun.line != mark.line:
        told += f" ({error.context} that began on line {begun.line + 1})"
    return ConfigError(
        f"{where}: {told}", hint="Mend the file there; nothing was started.", origin=origin
    )


def _collect_lines(node: yaml.Node, path: Path, lines: dict[Path, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                here = (*path, key.value)
                lines[here] = key.start_mark.line + 1
                _collect_lines(value, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            lines[(*path, position)] = value.start_mark.line + 1
            _collect_lines(value, (*path, position), lines)


def line_of(path: Path, lines: Mapping[Path, int]) -> int | None:
    """The line of a path, or of the nearest thing around it that has one."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None


def scalar(text: str) -> Any:
    """The value an override's text means: YAML, or the text itself when it is none."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` for a misspelt name, else the list of what is known."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if names else "nothing is known here"


_SECRET = re.compile(r"(?i)(?:^|_)(dsn|password|secret|token|api_key|key)$")


def is_secret(name: str) -> bool:
    """Whether the value of a key of this name must never be shown."""
    return _SECRET.search(name) is not None


class Outline:
    """Which keys a schema has at which path. Positions within lists are passed over."""

    def __init__(self, root: type[pydantic.BaseModel]) -> None:
        self.root = root

    def fields(self, path: Path) -> list[str] | None:
        """The keys known at a path; None where any key goes, or none."""
        section = _section_of(self._annotation(path)) if path else self.root
        return None if section is None else list(section.model_fields)

    def takes_text(self, path: Path) -> bool:
        """Whether a field holds text: a DSN with ``#`` or ``: `` in it is no YAML."""
        annotation = self._annotation(path)
        union = isinstance(annotation, UnionType)
        kinds = get_args(annotation) if union else (annotation,)
        return any(kind in (str, pathlib.Path, pydantic.SecretStr) for kind in kinds)

    def choices(self, path: Path) -> list[str]:
        """The texts that a field of literals takes."""
        return [c for c in get_args(self._annotation(path)) if isinstance(c, str)]

    def _annotation(self, path: Path) -> Any:
        section: type[pydantic.BaseModel] | None = self.root
        annotation: Any = None
        for part in path:
            if isinstance(part, int):
                continue
            if section is None or part not in section.model_fields:
                return None
            annotation = section.model_fields[part].annotation
            section = _section_of(annotation)
        return annotation


def _section_of(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The section that a field holds, or holds several of."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            return kind
    return None


def override(
    data: dict[str, Any], environ: Mapping[str, str], outline: Outline, faults: list[str]
) -> dict[Path, str]:
    """Write the environment's overrides into ``data``; which variable set which path.

    Variables with the prefix but without a section's name are the runtime's switches
    (``HERASYS_DEBUG``) and no overrides. Misspelt ones are added to ``faults``.
    """
    overridden: dict[Path, str] = {}
    sections = outline.fields(()) or []
    for variable in sorted(environ):
        rest = variable.removeprefix(ENV_PREFIX).lower()
        if not variable.startswith(ENV_PREFIX) or not (
            SEPARATOR in rest or rest.split("_")[0] in sections
        ):
            continue
        path = _locate(rest.split(SEPARATOR), data, outline)
        if isinstance(path, str):
            faults.append(f"{variable}: {path}")
            continue
        text = environ[variable]
        plain = outline.takes_text(path) and text.strip() not in ("", "null", "~")
        if _write(data, path, text if plain else scalar(text)):
            overridden[path] = variable
    return overridden


def _write(data: dict[str, Any], path: Path, value: Any) -> bool:
    """Set the value at a path, making mappings on the way; False if something else
    stands there (a fault of the file, told when the file is validated).
    """
    spot: Any = data
    for part in path[:-1]:
        if isinstance(spot, dict) and spot.get(part) is None:  # pyright: ignore
            spot[part] = {}
        if not isinstance(spot, dict | list):
            return False
        spot = spot[part]  # pyright: ignore[reportArgumentType, reportCallIssue]
    if isinstance(spot, dict):
        spot[path[-1]] = value
    return isinstance(spot, dict)


def _locate(parts: list[str], data: dict[str, Any], outline: Outline) -> Path | str:
    """The path that a variable's parts mean, or why they mean none."""
    path: list[str | int] = []
    for at, part in enumerate(parts):
        fields = outline.fields(tuple(path))
        if path == ["pools"]:
            keys = _pool_keys(data)
            if part not in keys:
                return f"no pool {part!r}; {nearest(part, keys)}"
            path.append(keys.index(part))
        elif fields is None:  # free form from here on: options of an engine
            return (*path, *parts[at:])
        elif part in fields:
            path.append(part)
        else:
            section, _, rest = part.partition("_")
            if at == 0 and section in fields and rest:
                wanted = SEPARATOR.join([section, rest, *parts[1:]]).upper()
                return f"unknown key {part!r}; did you mean {ENV_PREFIX}{wanted}?"
            return f"unknown key {part!r}; {nearest(part, fields)}"
    return tuple(path)


def _pool_keys(data: dict[str, Any]) -> list[str]:
    """The pools' names as the environment spells them, in order."""
    pools = data.get("pools")
    return [
        str(pool.get("name", "")).lower().replace("-", "_")
        if isinstance(pool, dict)
        else ""
        for pool in (pools if isinstance(pools, list) else [])
    ]


def tell(
    fault: Any,
    data: dict[str, Any],
    lines: Mapping[Path, int],
    overridden: Mapping[Path, str],
    outline: Outline,
) -> str:
    """One pydantic fault as one line: where, what is wrong, what would have fitted."""
    path: Path = tuple(fault["loc"])
    around = (path[:n] for n in range(len(path), 0, -1))
    variable = next((overridden[p] for p in around if p in overridden), None)
    line = None if variable else line_of(path, lines)
    where = (variable or _name_of(path, data)) + (f" (line {line})" if line else "")
    if fault["type"] == "extra_forbidden":
        known = outline.fields(path[:-1]) or []
        return f"{where}: unknown key; {nearest(str(path[-1]), known)}"
    problem = _PROBLEMS.get(fault["type"]) or str(fault["msg"])
    problem = problem.removeprefix("Value error, ")
    value = fault.get("input")
    secret = any(is_secret(part) for part in path if isinstance(part, str))
    if isinstance(value, str | int | float) and not secret:
        problem += f", got {value!r}"
        if fault["type"] == "literal_error":
            problem += f"; {nearest(str(value), outline.choices(path))}"
    elif value is None and fault["type"] != "missing":
        problem += ", got nothing"
    return f"{where}: {problem}"


_PROBLEMS = {
    "missing": "this key is required",
    "string_pattern_mismatch": "must be at most 31 lower-case letters, digits and '-', "
    "the first one a letter",
}


def _name_of(path: Path, data: dict[str, Any]) -> str:
    """``pools.llm.slots`` for ``('pools', 0, 'slots')``: pools go by their names."""
    names = [str(part) for part in path]
    if len(path) > 1 and path[0] == "pools" and isinstance(path[1], int):
        try:
            names[1] = str(data["pools"][path[1]]["name"])
        except (KeyError, IndexError, TypeError):
            names[1] = f"#{path[1] + 1}"
    return ".".join(names) or "the whole"
