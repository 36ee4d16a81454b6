"""What user functions print goes to the log, line by line, under their name."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

_log = logging.getLogger("herasys_rt.tools")

_speaking: ContextVar[_Lines | None] = ContextVar("herasys_tool_output", default=None)
_lock = threading.Lock()
_users = 0
_before: TextIO | None = None
_LONGEST_LINE = 10_000


class _Lines:
    """Gathers what one call prints into lines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = ""

    def write(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._tell(line)
        if len(self._rest) > _LONGEST_LINE:
            self.flush()

    def flush(self) -> None:
        if self._rest:
            self._tell(self._rest)
            self._rest = ""

    def _tell(self, line: str) -> None:
        _log.info("%s: %s", self._name, line[:_LONGEST_LINE])


class _Router(io.TextIOBase):
    """Standard output of the process: a tool's words are logged, others go through."""

    def __init__(self, through: TextIO) -> None:
        self._through = through

    @property
    def encoding(self) -> str:
        return self._through.encoding

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        lines = _speaking.get()
        if lines is None:
            return self._through.write(text)
        lines.write(text)
        return len(text)

    def flush(self) -> None:
        if _speaking.get() is None:
            self._through.flush()

    def fileno(self) -> int:
        return self._through.fileno()

    def isatty(self) -> bool:
        return False


def listen() -> None:
    """Begin to route standard output; counted, so that several engines may."""
    global _users, _before
    with _lock:
        _users += 1
        if _users == 1:
            _before = sys.stdout
            sys.stdout = _Router(sys.stdout)  # pyright: ignore[reportAttributeAccessIssue]


def leave() -> None:
    """The opposite of `listen`; the last one puts things back as they were."""
    global _users, _before
    with _lock:
        _users -= 1
        if _users == 0 and _before is not None:
            if isinstance(sys.stdout, _Router):
                sys.stdout = _before
            _before = None


@contextmanager
def spoken_by(name: str) -> Generator[Any]:
    """While entered, what this thread or task prints is logged as the tool's."""
    lines = _Lines(name)
    token = _speaking.set(lines)
    try:
        yield
    finally:
        _speaking.reset(token)
        lines.flush()
