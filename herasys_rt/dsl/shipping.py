"""User functions and agents as bytes that any process of the cluster can call.

What is installed (Python, packages) travels by name; what is not, such as the file of a
workflow and the modules next to it, travels by value, since nobody else can import it.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import pickle
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from herasys_rt.errors import UsageError
from herasys_rt.graph.code_digest import is_installed

if TYPE_CHECKING:
    from herasys_rt.dsl.agent import Agent

LARGEST_BYTES = 16 * 1024 * 1024
"""Most that a function may weigh with everything it takes along."""

_lock = threading.Lock()


def packed(function: Callable[..., Any], hints: Mapping[str, Any], name: str) -> bytes:
    """The function with its evaluated type hints, as ``pickle.loads`` restores them.

    Errors: `UsageError` when something it takes along cannot travel, or is too large.
    """
    return _packed((function, dict(hints)), name)


def packed_agent(agent: Agent[...]) -> bytes:
    """The agent with the tools, workflows and agents it calls, as ``pickle.loads``
    restores it. Errors: as `packed`."""
    return _packed(agent, agent.name)


def _packed(value: object, name: str) -> bytes:
    try:
        with _lock, _own_modules_by_value():
            data = _dumped(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as e:
        raise UsageError(
            f"{name!r} cannot be sent to where it would run: {e}",
            hint="Make what cannot travel (a lock, a connection, an open file) inside the "
            "function, or in a package that is installed on the cluster.",
            code="not_shippable",
        ) from e
    if len(data) > LARGEST_BYTES:
        raise UsageError(
            f"{name!r} takes {len(data)} bytes along, {LARGEST_BYTES} at most may travel "
            "with a function",
            hint="Pass large values as arguments, or load them inside the function.",
            code="not_shippable",
        )
    return data


def _dumped(value: Any) -> bytes:
    """Pickled, so that classes by value stay whole in another process."""

    class Pickler(_cloudpickle().Pickler):
        def reducer_override(self, obj: Any) -> Any:
            # A dataclass knows fields without a default by this very object.
            if obj is dataclasses.MISSING:
                return getattr, (dataclasses, "MISSING")
            standard: Any = super()
            return standard.reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


@contextmanager
def _own_modules_by_value() -> Generator[None]:
    """While entered, modules that only this process has are pickled by value."""
    cloudpickle = _cloudpickle()
    own = [module for name, module in list(sys.modules.items()) if _is_own(name, module)]
    registered: list[ModuleType] = []
    try:
        for module in own:
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                registered.append(module)
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(name: str, module: object) -> bool:
    """Whether a module is user code: a file or folder outside of every installation."""
    if not isinstance(module, ModuleType) or module.__name__ != name:
        return False
    if name in ("__main__", "__mp_main__") or getattr(module, "__file__", None) is None:
        return False
    return not is_installed(name)


def _cloudpickle() -> Any:
    """The library, which has no types."""
    return importlib.import_module("cloudpickle")
