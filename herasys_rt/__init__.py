"""herasys_rt: a runtime that serves many LLM workflows at once.

The public names are imported when they are first used, so that ``import herasys_rt``
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "herasys_rt.client.client",
    "AsyncRun": "herasys_rt.client.run",
    "Client": "herasys_rt.client.client",
    "Config": "herasys_rt.config",
    "HerasysError": "herasys_rt.errors",
    "Run": "herasys_rt.client.run",
    "agent": "herasys_rt.dsl.agent",
    "all_of": "herasys_rt.dsl",
    "any_of": "herasys_rt.dsl",
    "as_text": "herasys_rt.dsl",
    "connect": "herasys_rt.client.connecting",
    "connect_async": "herasys_rt.client.connecting",
    "contains": "herasys_rt.dsl",
    "equals": "herasys_rt.dsl",
    "flatten": "herasys_rt.dsl",
    "is_empty": "herasys_rt.dsl",
    "join": "herasys_rt.dsl",
    "length": "herasys_rt.dsl",
    "less_than": "herasys_rt.dsl",
    "load_config": "herasys_rt.config",
    "map_over": "herasys_rt.dsl",
    "more_than": "herasys_rt.dsl",
    "negate": "herasys_rt.dsl",
    "retry": "herasys_rt.dsl",
    "texts_of": "herasys_rt.dsl",
    "tool": "herasys_rt.dsl",
    "when": "herasys_rt.dsl",
    "workflow": "herasys_rt.dsl",
}

__all__ = [
    "AsyncClient",
    "AsyncRun",
    "Client",
    "Config",
    "HerasysError",
    "Run",
    "__version__",
    "agent",
    "all_of",
    "any_of",
    "as_text",
    "connect",
    "connect_async",
    "contains",
    "equals",
    "flatten",
    "is_empty",
    "join",
    "length",
    "less_than",
    "load_config",
    "map_over",
    "more_than",
    "negate",
    "retry",
    "texts_of",
    "tool",
    "when",
    "workflow",
]

if TYPE_CHECKING:
    from herasys_rt.client.client import AsyncClient, Client
    from herasys_rt.client.connecting import connect, connect_async
    from herasys_rt.client.run import AsyncRun, Run
    from herasys_rt.config import Config, load_config
    from herasys_rt.dsl import (
        all_of,
        any_of,
        as_text,
        contains,
        equals,
        flatten,
        is_empty,
        join,
        length,
        less_than,
        map_over,
        more_than,
        negate,
        retry,
        texts_of,
        tool,
        when,
        workflow,
    )
    from herasys_rt.dsl.agent import agent
    from herasys_rt.errors import HerasysError


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'herasys_rt' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
