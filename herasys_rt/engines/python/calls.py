"""One call of a user function: load it, check its arguments, call it, check its result.

Used by threads of the engine and by its worker processes alike; blocks, and runs user
code, so never on an event loop.
"""

from __future__ import annotations

import inspect
import pickle
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from herasys_rt.errors import ErrorInfo, HerasysError, NodeError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import finite_fault, widened
from herasys_rt.graph.functions import Arguments, is_coroutine, plain_value
from herasys_rt.graph.types import PortType, value_fault

ARG = "arg:"
"""Prefix of the arguments that are the function's."""

_KEPT = 256
_FRAMES = 5
_MESSAGE_CHARS = 4000
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Call:
    """What ``python.call`` asks: ``function`` is as `dsl.shipping.packed` made it.

    ``output`` is the declared type of the result, ``cpus`` and ``gpus`` what the call
    holds while it runs.
    """

    name: str
    function: bytes
    arguments: dict[str, Any]
    output: PortType
    cpus: float = 0.0
    gpus: float = 0.0

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Call:
        """From the arguments of a node. Errors: `NodeError` for a malformed one."""
        try:
            facts = args["tool"]
            return cls(
                name=str(facts["name"]),
                function=bytes(args["function"]),
                arguments={
                    name.removeprefix(ARG): value
                    for name, value in args.items()
                    if name.startswith(ARG)
                },
                output=PortType(facts.get("output", "json")),
                cpus=float(facts.get("cpus", 0.0)),
                gpus=float(facts.get("gpus", 0.0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise NodeError(
                f"arguments of python.call are wrong: {e!r}",
                hint="Declare functions with @tool; it makes these arguments.",
                code="invalid_argument",
            ) from e


@dataclass(frozen=True, slots=True)
class Loaded:
    """A function that can be called here."""

    function: Callable[..., Any]
    arguments: Arguments
    asynchronous: bool


class Functions:
    """Functions by the bytes they came as: loaded once, so that what they keep stays.

    Safe from any thread.
    """

    def __init__(self) -> None:
        self._loaded: OrderedDict[bytes, Loaded] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, call: Call) -> Loaded | None:
        """The call's function when it was loaded before; quick, runs no user code."""
        key = codec.digest(call.function)
        with self._lock:
            found = self._loaded.get(key)
            if found is not None:
                self._loaded.move_to_end(key)
            return found

    def load(self, call: Call) -> Loaded:
        """The call's function. Errors: `NodeError` (``tool_not_loadable``)."""
        found = self.known(call)
        if found is not None:
            return found
        key = codec.digest(call.function)
        try:
            function, hints = pickle.loads(call.function)
            loaded = Loaded(function, Arguments(function, hints), is_coroutine(function))
        except Exception as e:
            raise NodeError(
                f"tool {call.name!r} cannot be loaded where it should run: {_said(e)}",
                hint="Install what it imports for the processes of the python pool, or "
                "name it in the job's runtime environment.",
                code="tool_not_loadable",
            ) from e
        with self._lock:
            self._loaded[key] = loaded
            while len(self._loaded) > _KEPT:
                self._loaded.popitem(last=False)
        return loaded


def bound(loaded: Loaded, call: Call) -> tuple[list[Any], dict[str, Any]]:
    """What to call the function with. Errors: `NodeError` (``tool_arguments``)."""
    try:
        return loaded.arguments.bind(call.arguments)
    except ValueError as e:
        raise NodeError(
            f"tool {call.name!r} cannot take its arguments: {e}",
            hint="Pass what its signature declares.",
            code="tool_arguments",
        ) from e
    except Exception as e:  # a validator of the user's
        raise failure(call.name, e) from e


def result_of(value: Any, loaded: Loaded, call: Call, most_bytes: int) -> Any:
    """The result as it travels on. Errors: `NodeError` (``tool_result``)."""
    if inspect.iscoroutine(value):
        value.close()
    value = plain_value(value)
    path = "the result"
    fault = codec.fault_of(value, path) or finite_fault(value, path)
    if fault is None:
        value = codec.frozen(widened(value, call.output))
        fault = _type_fault(value, loaded, call)
    if fault is None:
        size = len(codec.encode(value))
        if size > most_bytes:
            fault = f"{path} has {size} bytes, {most_bytes} at most may be passed on"
    if fault is not None:
        raise NodeError(
            f"tool {call.name!r} returned what cannot be used: {fault}",
            hint="Return plain values (None, bool, int, float, str, bytes, list, dict, "
            "ndarray) of the type that its return annotation names.",
            code="tool_result",
        )
    return value


def _type_fault(value: Any, loaded: Loaded, call: Call) -> str | None:
    if value is None and call.output in (PortType.JSON, PortType.ANY):
        loose = None
    else:
        loose = value_fault(value, call.output)
    if loose is not None:
        return loose
    try:
        return loaded.arguments.result_fault(value)
    except Exception as e:  # a validator of the user's
        raise failure(call.name, e) from e


def attempt(call: Call, functions: Functions, most_bytes: int) -> Any:
    """Load, call and check a function that is not asynchronous. Errors: `NodeError`."""
    loaded = functions.load(call)
    positional, named = bound(loaded, call)
    try:
        value = loaded.function(*positional, **named)
    except BaseException as e:  # also SystemExit: a tool ends its call, not the engine
        raise failure(call.name, e) from e
    return result_of(value, loaded, call, most_bytes)


def failure(name: str, error: BaseException) -> HerasysError:
    """What a user's exception becomes: its type, its words, and where it was raised.

    An error of this package's own kind stays what it is.
    """
    if isinstance(error, HerasysError):
        return error
    message = f"tool {name!r} raised {_said(error)}"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        message += f" (from {_said(cause)})"
    lines = traceback.format_list(_frames_of_users(error)[-_FRAMES:])
    text = (message + "\n" + "".join(lines)).rstrip()
    return NodeError(
        _utf8(text[:_MESSAGE_CHARS]),
        hint="Correct the function, or say with retry=... on which errors to try again.",
        code="tool_failed",
    )


def _frames_of_users(error: BaseException) -> list[traceback.FrameSummary]:
    """Where an exception came through, ours left out.

    Code that travelled has lost the name of its file; its module still knows it.
    """
    found: list[traceback.FrameSummary] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        file = code.co_filename
        if file.startswith("<"):
            file = str(frame.f_globals.get("__file__") or file)
        if Path(file).parent != _HERE:
            found.append(traceback.FrameSummary(file, line, code.co_name))
    return found


def error_info(error: BaseException) -> ErrorInfo:
    """Any error of a call as a value."""
    if isinstance(error, HerasysError):
        return error.info()
    return ErrorInfo("internal", _utf8(f"calling the tool broke: {_said(error)}"))


def _said(error: BaseException) -> str:
    """Type and words of an exception, whose own ``__str__`` may be broken."""
    try:
        words = str(error)
    except Exception as e:
        words = f"(its text cannot be had: {type(e).__name__})"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _utf8(text: str) -> str:
    return cast(str, text.encode("utf-8", "replace").decode())
