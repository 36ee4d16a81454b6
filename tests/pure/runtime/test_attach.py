"""What who waits for a runtime is told."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from herasys_rt.config import Config, PoolConfig
from herasys_rt.links import Endpoint
from herasys_rt.runtime import daemon
from herasys_rt.runtime.attach import attach

LLM = PoolConfig(name="llm", resource="llm", engine="vllm", model="smollm2-135m")
DOCS = PoolConfig(name="docs", resource="retrieval", engine="pgvector")


class Screen(io.StringIO):
    """A standard error that is a terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Started:
    """A daemon that nobody has to wait for."""

    endpoint = Endpoint("here", "ipc:///nowhere")
    state: dict[str, Any] = {"dsn": ""}

    def stop(self) -> None:
        """Nothing to stop."""


def told(
    monkeypatch: pytest.MonkeyPatch,
    config: Config,
    *,
    terminal: bool,
    progress: Callable[[str], None] | None = None,
) -> str:
    """What standard error got while a private runtime was started."""

    def spawn(_: Config, *, private: bool, progress: Callable[[str], None]) -> Started:
        assert private
        progress("Ray is up after 7.0 s")
        return Started()

    screen = Screen(terminal)
    monkeypatch.setattr(daemon, "spawn", spawn)
    monkeypatch.setattr(sys, "stderr", screen)
    assert attach(config, progress).kind == "private"
    return screen.getvalue()


def test_one_line_on_a_screen_says_that_a_private_runtime_starts(monkeypatch):
    line = told(monkeypatch, Config(pools=(LLM, DOCS)), terminal=True)
    assert line.startswith(
        "herasys_rt: starting a private runtime (Ray, database, 2 pools); "
    )
    assert "herasys up" in line and line.count("\n") == 1


def test_a_runtime_without_a_database_names_none(monkeypatch):
    line = told(monkeypatch, Config(pools=(LLM,)), terminal=True)
    assert "(Ray, 1 pool);" in line


def test_nothing_is_said_where_nobody_looks(monkeypatch):
    assert told(monkeypatch, Config(pools=(LLM,)), terminal=False) == ""


def test_whoever_asked_for_progress_gets_it_instead(monkeypatch):
    heard: list[str] = []
    config = Config(pools=(LLM,))
    assert told(monkeypatch, config, terminal=True, progress=heard.append) == ""
    assert heard == ["Ray is up after 7.0 s"]
