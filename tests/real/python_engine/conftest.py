"""Engines that every file here calls functions with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.engines.python.engine import create
from tests.real.python_engine.bench import Bench, Gate, Start, pool


@pytest.fixture
def start() -> Iterator[Start]:
    benches: list[Bench] = []

    def begin(**options: Any) -> Bench:
        bench = Bench(create(pool(**options)))
        benches.append(bench)
        return bench

    yield begin
    for bench in benches:
        bench.engine.close()
        assert bench.sink.each_ended_once()


@pytest.fixture(params=["thread", "process"])
def either(request: pytest.FixtureRequest, start: Start) -> Bench:
    """An engine that calls in threads, and one that calls in processes."""
    return start(isolate=request.param)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.open()
