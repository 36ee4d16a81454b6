"""The name of what a Python function does, as a digest that is equal in every process.

Two functions are named equally when their compiled code, their defaults, the values they
captured and the module-level values and functions they use are equal: never by pickling,
by identity or by the text of a file that may have changed since it was read. Python's
version is part of the name, since byte code is its.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pydantic

from herasys_rt.errors import UsageError
from herasys_rt.graph import codec

_OURS = frozenset({"herasys_rt", "operators"})
_SHOWN_BY_REPR = frozenset(
    {"datetime", "decimal", "fractions", "uuid", "pathlib", "ipaddress", "zoneinfo"}
)
"""Modules whose values tell all of themselves by their representation."""


def code_digest(function: Any, version: str = "") -> str:
    """32 hex digits that name what ``function`` does at ``version``.

    What it captured (closure and defaults) must be nameable: plain values, functions,
    classes, dataclasses, models. Module-level values that are not (clients, locks,
    loggers) count by their type only. Errors: `UsageError` (``not_nameable``) naming
    the captured variable.
    """
    python = ".".join(map(str, sys.version_info[:2]))
    named = [
        python,
        version,
        _Namer().of(function, getattr(function, "__qualname__", "it")),
    ]
    return hashlib.sha256(codec.canonical(named)).hexdigest()[:32]


def is_installed(module: str) -> bool:
    """Whether a module belongs to the environment: part of Python or of an installed
    package, so that every process of the cluster imports it by name."""
    if module.partition(".")[0] in _OURS:
        return True
    if module == "__main__":
        return False
    found = sys.modules.get(module)
    if found is None:
        return False
    file = getattr(found, "__file__", None)
    if file is None:
        spec = getattr(found, "__spec__", None)
        return getattr(spec, "origin", None) in ("built-in", "frozen")
    return _is_installed_file(file)


@functools.lru_cache(maxsize=8192)
def _is_installed_file(file: str) -> bool:
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    homes = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib")}
    return any(path.is_relative_to(Path(home).resolve()) for home in homes if home)


class _Namer:
    """Turns values into plain lists that say everything that counts about them."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # an id is only good while its object lives

    def of(self, value: Any, path: str, *, strict: bool = True) -> list[Any]:
        """The name of a value; of one that has none, its type unless ``strict``."""
        atom = _atom(value)
        if atom is not None:
            return atom
        if isinstance(value, tuple):  # whether equal ones are one object is no fact
            parts = cast("tuple[Any, ...]", value)
            return self._items(parts, path, strict)
        if id(value) in self._seen:
            return ["again", self._seen[id(value)]]
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        named = (
            self._container(value, path, strict)
            or self._callable(value, path, strict)
            or self._record(value, path, strict)
        )
        if named is not None:
            return named
        if strict:
            raise UsageError(
                f"{path} is a {_name(type(value))}, whose content cannot be named, so no "
                "signature can tell this function from others",
                hint="Pass it as an argument, make it inside the function, or leave the "
                "tool an effect (without pure=True).",
                code="not_nameable",
            )
        return ["unnamed", _name(type(value))]

    def _items(self, value: Iterable[Any], path: str, strict: bool) -> list[Any]:
        parts = [
            self.of(part, f"{path}[{i}]", strict=strict) for i, part in enumerate(value)
        ]
        return ["items", _name(type(value)), parts]

    def _container(self, value: Any, path: str, strict: bool) -> list[Any] | None:
        if isinstance(value, list):
            return self._items(cast("list[Any]", value), path, strict)
        if isinstance(value, Mapping):
            pairs = cast("Mapping[Any, Any]", value).items()
            return [
                "dict",
                _name(type(cast(Any, value))),
                [
                    [
                        self.of(key, f"{path} key", strict=strict),
                        self.of(item, f"{path}[{key!r}]", strict=strict),
                    ]
                    for key, item in pairs
                ],
            ]
        if isinstance(value, set | frozenset):
            members = cast("Iterable[Any]", value)
            names = [codec.canonical(_Namer().of(m, path, strict=strict)) for m in members]
            return ["set", _name(type(cast(Any, value))), sorted(names)]
        if type(value).__module__ == "numpy" and codec.fault_of(value) is None:
            return ["array", codec.canonical(value)]
        return None

    def _callable(self, value: Any, path: str, strict: bool) -> list[Any] | None:
        if isinstance(value, types.FunctionType):
            return self._function(value, path, strict)
        if isinstance(value, types.MethodType):
            parts = (value.__func__, value.__self__)
            return ["method", *(self.of(part, path, strict=strict) for part in parts)]
        if isinstance(value, functools.partial):
            made = cast("functools.partial[Any]", value)
            parts = (made.func, made.args, made.keywords)
            return ["partial", *(self.of(part, path, strict=strict) for part in parts)]
        if isinstance(value, types.BuiltinFunctionType | types.WrapperDescriptorType):
            return ["builtin", _name(value)]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.GenericAlias | types.UnionType):
            return ["type", repr(value)]
        inner = getattr(cast(object, value), "__wrapped__", None)  # a cache, a tool
        if isinstance(inner, types.FunctionType):
            kind = _name(type(cast(object, value)))
            return ["wrapped", kind, self.of(inner, path, strict=strict)]
        return None

    def _function(self, value: types.FunctionType, path: str, strict: bool) -> list[Any]:
        if is_installed(value.__module__) and "<locals>" not in value.__qualname__:
            return ["function", value.__module__, value.__qualname__]
        captured: list[Any] = []
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                captured.append([name, "empty"])
                continue
            captured.append([name, self.of(content, f"{path}: {name}", strict=strict)])
        return [
            "code",
            self._code(value.__code__, path),
            captured,
            self.of(value.__defaults__, f"{path}: defaults", strict=strict),
            self.of(value.__kwdefaults__, f"{path}: defaults", strict=strict),
            self._globals(value, path),
        ]

    def _code(self, code: types.CodeType, path: str) -> list[Any]:
        constants = [
            self._code(constant, path)
            if isinstance(constant, types.CodeType)
            else self.of(constant, path)
            for constant in code.co_consts
        ]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        sizes = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount)
        return [
            code.co_code,
            constants,
            [list(part) for part in names],
            list(sizes),
            code.co_flags,
        ]

    def _globals(self, value: types.FunctionType, path: str) -> list[Any]:
        known = value.__globals__
        used = sorted(name for name in set(_global_names(value.__code__)) if name in known)
        return [
            [name, self.of(known[name], f"{path}: {name}", strict=False)] for name in used
        ]

    def _class(self, value: type) -> list[Any]:
        head = ["class", value.__module__, value.__qualname__]
        if is_installed(value.__module__):
            return head
        parts: list[Any] = []
        for name in sorted(vars(value)):
            part = vars(value)[name]
            inner = getattr(part, "__func__", part)
            inner = getattr(inner, "fget", inner)
            nameable = isinstance(inner, types.FunctionType) or not codec.fault_of(inner)
            if nameable and name not in ("__module__", "__doc__", "__firstlineno__"):
                parts.append([name, self.of(inner, name, strict=False)])
        bases = [self.of(base, base.__name__, strict=False) for base in value.__bases__]
        return [*head, parts, bases]

    def _record(self, value: Any, path: str, strict: bool) -> list[Any] | None:
        """Values whose class says what they are made of."""
        kind = cast("type[Any]", type(value))
        if isinstance(value, enum.Enum):
            return ["enum", self._class(kind), value.name]
        if isinstance(value, re.Pattern):
            made = cast("re.Pattern[Any]", value)
            return ["pattern", self.of(made.pattern, path), made.flags]
        if kind.__module__.partition(".")[0] in _SHOWN_BY_REPR:
            return ["shown", _name(kind), repr(value)]
        fields: dict[str, Any] | None = None
        if isinstance(value, pydantic.BaseModel):
            fields = dict(value)
        for listing in ("__dataclass_fields__", "__struct_fields__"):
            names = cast("Iterable[str]", getattr(kind, listing, ()))
            if names:
                fields = {name: getattr(value, name) for name in names}
        if fields is None:
            return None
        return ["record", self._class(kind), self.of(fields, path, strict=strict)]


def _atom(value: Any) -> list[Any] | None:
    """The name of a value without parts; None for others. Types are compared exactly."""
    kind = cast("type[Any]", type(value))
    if kind is str:
        return ["str", value.encode("utf-8", "surrogatepass")]
    if kind in (bytes, bytearray):
        return [kind.__name__, bytes(value)]
    if value is None or value is ... or kind in (bool, int, float, complex, range):
        return [kind.__name__, repr(value)]
    return None


def _global_names(code: types.CodeType) -> Iterable[str]:
    """Names that the code, and functions inside it, look up in their module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
