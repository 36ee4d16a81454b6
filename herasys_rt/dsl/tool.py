"""Python functions as steps of a workflow: `tool`, and `python_operator` for operators
whose work is a function.

    @tool
    def send_mail(to: str, text: str) -> dict:
        'Send a mail.'

Called inside a workflow or an agent it adds a node, verb ``python.call``; anywhere else
it is the plain function. The function travels with the workflow and runs in a pool of
resource ``python``; nothing that serves models ever imports it.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, overload

import msgspec
import numpy as np

from herasys_rt.dsl.operator import Call, Operator
from herasys_rt.dsl.shipping import packed
from herasys_rt.dsl.symbols import Symbol
from herasys_rt.dsl.trace import current_trace
from herasys_rt.dsl.tracked import plain
from herasys_rt.errors import UsageError
from herasys_rt.graph import codec
from herasys_rt.graph.code_digest import code_digest, is_installed
from herasys_rt.graph.functions import Arguments, plain_value
from herasys_rt.graph.spec import Constraint, Port
from herasys_rt.graph.types import PortType

P = ParamSpec("P")
R = TypeVar("R")

ARG = "arg:"
"""Prefix of the ports that hold the function's arguments."""

_NAME = re.compile(r"[A-Za-z_][\w\-]{0,63}", re.ASCII)
_EMPTY = inspect.Parameter.empty
_NONE = type(None)

_KINDS: dict[Any, PortType] = {
    str: PortType.TEXT,
    int: PortType.INT,
    float: PortType.FLOAT,
    bool: PortType.BOOL,
    Any: PortType.ANY,
    object: PortType.ANY,
    np.ndarray: PortType.ANY,
}


class Tool(Generic[P, R]):
    """A declared function; see `tool`.

    ``name``, ``description`` and ``parameters`` (a JSON schema) are what a model is told
    of it; ``function`` is the plain function. ``hints`` are its evaluated annotations
    (None: evaluated now).
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        pure: bool = False,
        version: str | None = None,
        timeout_s: float | None = None,
        resources: Mapping[str, float] | None = None,
        registered: bool = False,
        hints: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name or getattr(function, "__name__", "")
        self.function = function
        self.purity = "pure" if pure else "effect"
        self.timeout_s = timeout_s
        self.resources = dict(resources or {})
        self._check(version)
        self.version = version or "1"
        self._registered = registered
        self._arguments = Arguments(function, hints)
        self.description = description or self._arguments.summary
        self.parameters = self._arguments.schema()
        self.output = kind_of(self._arguments.hints.get("return", _EMPTY))[0]
        self.operator = self._operator()
        self.__qualname__ = self.name
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<tool {self.operator.id}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a node where a workflow is being traced or an agent runs; else call it.

        In the first case the options of operator calls (``label``, ``timeout_s`` ...) may
        be given as well; arguments of the function come first where names are equal.
        """
        try:
            current_trace(f"tool {self.name!r} was called")
        except UsageError:
            return self.function(*args, **kwargs)
        names = self._arguments.parameters
        given = {f"{ARG}{k}" if k in names else k: v for k, v in kwargs.items()}
        if self.timeout_s is not None:
            given.setdefault("timeout_s", self.timeout_s)
        return self.operator(*args, **given)

    @property
    def schema(self) -> dict[str, Any]:
        """``name``, ``description`` and ``parameters`` (JSON schema), as models take it."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }

    def __reduce__(self) -> str | tuple[Any, ...]:
        module, qualname = str(self.function.__module__), self.__qualname__
        if is_installed(module) and getattr(sys.modules[module], qualname, None) is self:
            return qualname  # by reference: importable wherever it is read
        options = {
            "name": self.name,
            "description": self.description,
            "pure": self.purity == "pure",
            "version": self.version,
            "timeout_s": self.timeout_s,
            "resources": self.resources,
            "registered": self._registered,
            "hints": self._arguments.hints,  # what they name may not travel along
        }
        return _restored, (self.function, options)

    # -- declaring --------------------------------------------------------------------

    def _check(self, version: str | None) -> None:
        function: Any = self.function
        if not _NAME.fullmatch(self.name):
            self._refuse(
                f"{self.name!r} is no name for a tool",
                "Give one: @tool(name='look_up'); letters, digits, _ and -, 64 at most.",
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            self._refuse("is a generator", "Return a list instead of yielding its items.")
        if self.purity == "pure" and not version:
            self._refuse(
                "is declared pure without a version",
                "Say version='1', and another one whenever what it gives changes in a way "
                "that its own code does not show.",
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            self._refuse(f"timeout_s is {self.timeout_s}", "Give seconds above 0.")
        for key, amount in self.resources.items():
            if key not in ("cpus", "gpus") or not amount >= 0:
                self._refuse(
                    f"asks for the resource {key!r}: {amount!r}",
                    "resources={'cpus': 1, 'gpus': 0} are the ones there are.",
                )

    def _refuse(self, problem: str, hint: str) -> NoReturn:
        raise UsageError(f"tool {self.name!r}: {problem}", hint=hint, code="invalid_tool")

    def _operator(self) -> Operator[...]:
        ports = [
            Port("code", PortType.TEXT, is_param=True, doc="names what the function does"),
            Port("function", PortType.ANY, is_param=True, excluded=True),
            Port("tool", PortType.JSON, is_param=True, excluded=True),
        ]
        free = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional: list[str] = []
        for name, parameter in self._arguments.parameters.items():
            kind, optional, choices = kind_of(self._arguments.hints.get(name, _EMPTY))
            constraint = Constraint(choices=choices)
            ports.append(Port(ARG + name, kind, optional=optional, constraint=constraint))
            if parameter.kind in free:
                positional.append(ARG + name)
        made: Operator[...] = Operator(
            name=self.name,
            version=self.version,
            verb="python.call",
            resource="python",
            ports=tuple(ports),
            output=self.output,
            purity=self.purity,
            prepare=self._prepare,
            doc=self.description,
            registered=self._registered,
        )
        made.positional = tuple(positional)
        return made

    # -- lowering ---------------------------------------------------------------------

    def _prepare(self, call: Call) -> None:
        """Fill in the function and its defaults, and check what is known by now."""
        call.args["code"] = self._code
        call.args["function"] = self._packed
        call.args["tool"] = {
            "name": self.name,
            "output": self.output.value,
            "cpus": float(self.resources.get("cpus", 0)),
            "gpus": float(self.resources.get("gpus", 0)),
        }
        for name, parameter in self._arguments.parameters.items():
            port = ARG + name
            if port in call.args:
                self._check_value(call, name)
            elif parameter.default is not _EMPTY:
                # Filled in, so that leaving it out and saying it are the same call. What
                # cannot travel stays the function's own.
                if codec.fault_of(parameter.default) is None:
                    call.args[port] = parameter.default
                    call.ports[port] = _taking(call.ports[port], parameter.default)
                else:
                    del call.ports[port]

    def _check_value(self, call: Call, name: str) -> None:
        value = call.args[ARG + name]
        if holds_symbol(value):
            return
        fault = self._arguments.fault_of(name, plain(value))
        if fault:
            call.fault(ARG + name, fault)
        elif codec.fault_of(plain(value)) is not None:
            call.args[ARG + name] = plain_value(value)

    @functools.cached_property
    def _packed(self) -> bytes:
        return packed(self.function, self._arguments.hints, self.name)

    @functools.cached_property
    def _code(self) -> str:
        """Named when first used, together with what is sent; an effect needs no name."""
        if self.purity != "pure":
            return ""
        return code_digest(self.function, f"{self.version} {self.output.value}")


def _restored(function: Callable[..., Any], options: dict[str, Any]) -> Tool[..., Any]:
    return Tool(function, **options)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    pure: bool = False,
    version: str | None = None,
    timeout_s: float | None = None,
    resources: Mapping[str, float] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    pure: bool = False,
    version: str | None = None,
    timeout_s: float | None = None,
    resources: Mapping[str, float] | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Declare a Python function, asynchronous or not, as something workflows can call.

    The arguments' schema comes from its type hints and docstring, the type of the result
    from the return annotation. An effect (executed at most once per run) unless
    ``pure`` with a ``version``: then equal calls are made once, where equal means the same
    code, captured values, version and arguments. ``timeout_s`` bounds one attempt;
    ``resources`` are ``cpus`` and ``gpus`` held while it runs, out of those its pool's
    instance has.

    Errors: `UsageError` (``invalid_tool``) for a function that cannot be a tool.
    """

    def declare(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            function,
            name=name,
            description=description,
            pure=pure,
            version=version,
            timeout_s=timeout_s,
            resources=resources,
        )

    return declare if function is None else declare(function)


def python_operator(
    *,
    version: str,
    name: str | None = None,
    pure: bool = True,
    timeout_s: float | None = None,
    resources: Mapping[str, float] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]:
    """Declare an operator whose work is a Python function.

    As `tool`, with the defaults of an operator: pure, at a ``version`` that belongs to
    its id, and known by that id to `find_operator` and `discover`.
    """

    def declare(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            function,
            name=name,
            pure=pure,
            version=version,
            timeout_s=timeout_s,
            resources=resources,
            registered=True,
        )

    return declare


def kind_of(hint: Any) -> tuple[PortType, bool, tuple[str, ...]]:
    """(port type, whether None is allowed, allowed texts) of an evaluated annotation.

    ``Annotated[..., PortType.X]`` says the type itself; what no port type fits is JSON.
    """
    if hint is _EMPTY:
        return PortType.ANY, True, ()
    if hint is None or hint is _NONE:
        return PortType.JSON, True, ()
    if isinstance(hint, PortType):
        return hint, False, ()
    origin: Any = typing.get_origin(hint)
    args: tuple[Any, ...] = typing.get_args(hint)
    if origin is typing.Annotated:
        marks = [mark for mark in hint.__metadata__ if isinstance(mark, PortType)]
        kind, optional, choices = kind_of(args[0])
        return (marks[0], optional, ()) if marks else (kind, optional, choices)
    if origin in (typing.Union, types.UnionType):
        kinds = {kind_of(arg)[0] for arg in args if arg is not _NONE}
        if kinds == {PortType.INT, PortType.FLOAT}:
            kinds = {PortType.FLOAT}
        kind = kinds.pop() if len(kinds) == 1 else PortType.ANY
        return kind, _NONE in args or kind is PortType.ANY, ()
    if origin is Literal and all(isinstance(arg, str) for arg in args):
        return PortType.TEXT, False, tuple(args)
    if origin is list and args == (str,):
        return PortType.TEXTS, False, ()
    kind = _KINDS.get(origin or hint, PortType.JSON)
    return kind, kind is PortType.ANY, ()


def holds_symbol(value: object, depth: int = 0) -> bool:
    """Whether a value is a symbol or a list or dict with one inside."""
    if isinstance(value, Symbol):
        return True
    parts: list[Any] = []
    if depth < 50 and isinstance(value, dict):
        parts = list(typing.cast("dict[Any, Any]", value).values())
    elif depth < 50 and isinstance(value, list | tuple):
        parts = list(typing.cast("list[Any]", value))
    return any(holds_symbol(part, depth + 1) for part in parts)


def _taking(port: Port, default: Any) -> Port:
    """The port when its default may stand there whatever the annotation says."""
    return msgspec.structs.replace(port, optional=True) if default is None else port
