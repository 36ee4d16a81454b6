"""Where a command's words go: answers, progress, JSON, errors."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from typer import Abort, Exit

from herasys_rt.errors import EnvironmentFaultError, HerasysError

if TYPE_CHECKING:
    from rich.console import Console

_STDOUT, _STDERR = 1, 2
_PIPE_COLUMNS = 200


def counted(number: int, noun: str) -> str:
    """``1 node``, ``1,200 nodes``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


class Output:
    """One command's output, as a context.

    Without ``json_path`` answers go to standard output. With it (``-`` or a file) the
    one JSON object given to `emit` is all that standard output or the file gets: answers,
    and whatever libraries and child processes print, go to standard error. If the
    command fails before it emitted, the object is ``failure`` with ``error`` filled in.
    Where the object itself goes to a screen, answers are not told a second time.
    """

    def __init__(
        self, json_path: str | None, failure: dict[str, Any] | None = None
    ) -> None:
        self.json_path = json_path
        self.json = json_path is not None
        self._failure = failure or {}
        self._emitted = False
        self._saved: int | None = None
        self.in_words = True
        """Whether answers are also told in words: not where a screen shows the object."""
        self._python: contextlib.redirect_stdout[Any] | None = None

    def __enter__(self) -> Output:
        if self.json:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                self._saved = os.dup(_STDOUT)
                self.in_words = self.json_path != "-" or not os.isatty(_STDOUT)
                os.dup2(_STDERR, _STDOUT)
            # What prints through a replaced sys.stdout does not pass descriptor 1.
            self._python = contextlib.redirect_stdout(sys.stderr)
            self._python.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
        if not isinstance(error, Exception) or isinstance(error, _NO_FAILURE):
            return
        if self.json and not self._emitted:
            self.emit({**self._failure, "error": told_error(error).info().to_json()})

    @property
    def console(self) -> Console:
        """For answers and tables."""
        console = _console(stderr=self.json)
        console.quiet = not self.in_words
        return console

    @property
    def progress(self) -> Console:
        """For progress: always standard error."""
        return _console(stderr=True)

    def say(self, text: str) -> None:
        """A line of progress."""
        self.progress.print(text, style="dim", markup=False, highlight=False)

    def write(self, text: str) -> None:
        """Text as it is, at once: pieces of a stream."""
        stream = sys.stderr if self.json else sys.stdout
        stream.write(text)
        stream.flush()

    def emit(self, data: dict[str, Any]) -> None:
        """The command's JSON object; nothing without ``--json``.

        Errors: `EnvironmentFaultError` when the file cannot be written.
        """
        if not self.json:
            return
        self._emitted = True
        self._restore()
        text = json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n"
        if self.json_path == "-":
            # A lone surrogate must not turn a finished run into a traceback.
            safe = text.encode("utf-8", "replace").decode()
            sys.stdout.write(safe)
            sys.stdout.flush()
        else:
            _write_file(Path(str(self.json_path)), text)

    def _restore(self) -> None:
        if self._python is not None:
            self._python.__exit__(None, None, None)
            self._python = None
        if self._saved is not None:
            sys.stdout.flush()
            os.dup2(self._saved, _STDOUT)
            os.close(self._saved)
            self._saved = None


_NO_FAILURE = (Exit, Abort, BrokenPipeError)


def told_error(error: Exception) -> HerasysError:
    """The error to tell for an exception: itself, or that it should not have happened."""
    if isinstance(error, HerasysError):
        return error
    return HerasysError(
        f"{type(error).__name__}: {error}",
        code="internal",
        hint="This should not have happened. Run it again with --debug and report what "
        "it prints.",
    )


def report_error(error: HerasysError) -> None:
    """An error on standard error: what and why, then what to do next."""
    from rich.text import Text

    text = Text.assemble((f"error[{error.code}]", "bold red"), f": {error.message}")
    if error.hint:
        text.append("\n").append("hint", style="bold cyan").append(f": {error.hint}")
    _console(stderr=True).print(text, soft_wrap=True, highlight=False)


def _console(*, stderr: bool) -> Console:
    # Made when used: a console remembers the stream it was made with.
    from rich.console import Console

    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Whoever reads a pipe has no screen to fit: do not cut tables.
        console.width = _PIPE_COLUMNS
    return console


def _write_file(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8", errors="replace")
        draft.replace(path)
    except OSError as e:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise EnvironmentFaultError(
            f"the JSON file {path} cannot be written: {e.strerror}",
            hint="Give a path that can be written, or --json=- for standard output.",
            path=str(path),
        ) from e
