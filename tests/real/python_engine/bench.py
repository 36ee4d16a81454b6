"""A python engine on a bench, and functions that wait to be let go."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pydantic

from herasys_rt.config import PoolConfig
from herasys_rt.dsl import workflow
from herasys_rt.dsl.tool import Tool
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.expressions import resolve
from operators import tool
from tests.outcome_sink import OutcomeSink


def pool(cpus: float = 0.1, gpus: float = 0.0, **options: Any) -> PoolConfig:
    return PoolConfig(
        name="python",
        resource="python",
        engine="python",
        cpus=cpus,
        gpus=gpus,
        options=options,
    )


class Bench:
    """An engine with its sink; calls are lowered as in a workflow."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sink = OutcomeSink()
        self.count = 0
        engine.start(self.sink)

    def item(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> Item:
        spec = workflow(name="flow")(lambda: called(*args, **kwargs)).spec
        self.count += 1
        node = spec.nodes[0]
        return Item(f"{self.count}.1", node.verb, resolve(node.args, {}, {}))

    def submit(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> str:
        item = self.item(called, *args, **kwargs)
        self.engine.submit([item])
        return item.key

    def call(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> Outcome:
        return self.sink.outcome(self.submit(called, *args, **kwargs))

    def value(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> Any:
        outcome = self.call(called, *args, **kwargs)
        assert outcome.error is None, outcome.error
        return outcome.value

    def error(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> ErrorInfo:
        error = self.call(called, *args, **kwargs).error
        assert error is not None
        return error


Start = Callable[..., Bench]


class Hit(pydantic.BaseModel):
    title: str
    rank: int = 0


@tool
async def shout(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


@tool
def echo(value: Any) -> Any:
    return value


@tool
def hang(ready: str, gate: str) -> str:
    """Say who runs, then wait until somebody opens the gate."""
    with open(ready, "w") as told:
        told.write(str(os.getpid()))
    with open(gate) as opened:
        return opened.read() or "late"


class Gate:
    """Two named pipes: functions tell when they run, and wait to be let go."""

    def __init__(self, folder: Path) -> None:
        self.ready, self.way = folder / "ready", folder / "gate"
        os.mkfifo(self.ready)
        os.mkfifo(self.way)
        self.args = (str(self.ready), str(self.way))

    def await_caller(self) -> int:
        """Wait until a function runs; the process it runs in."""
        return int(self.ready.read_text())

    def let_go(self) -> None:
        """Let the function that runs end; it may not have come to its gate yet."""
        os.close(os.open(self.way, os.O_WRONLY))

    def open(self) -> None:
        """Let who waits go; nobody has to."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.way, os.O_WRONLY | os.O_NONBLOCK))


def gone(pid: int) -> None:
    """Wait until a process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.wait(20)
