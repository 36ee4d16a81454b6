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
    "connect": "herasys_rt.client.client",
    "connect_async": "herasys_rt.client.client",
    "load_config": "herasys_rt.config",
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
    "connect",
    "connect_async",
    "load_config",
    "workflow",
]

if TYPE_CHECKING:
    from herasys_rt.client.client import AsyncClient, Client, connect, connect_async
    from herasys_rt.client.run import AsyncRun, Run
    from herasys_rt.config import Config, load_config
    from herasys_rt.dsl import workflow
    from herasys_rt.errors import HerasysError


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'herasys_rt' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
