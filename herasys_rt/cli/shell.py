"""Around every command: its arguments made plain, its ends made exit statuses."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from typer import Abort
from typer.exceptions import TyperException

from herasys_rt.cli.output import Output, report_error, told_error
from herasys_rt.errors import HerasysError, UsageError

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130


def execute(arguments: list[str]) -> int:
    """Run one command line and give its exit status.

    Errors are told on standard error; with ``--debug`` (or ``HERASYS_DEBUG=1``) with the
    traceback that led to them.
    """
    arguments, debug = take_debug(arguments)
    arguments = plain_json(arguments)
    try:
        with _ended_by_signals():
            from herasys_rt.cli.app import app

            status = app(args=arguments, prog_name="herasys", standalone_mode=False)
        return status if isinstance(status, int) else OK
    except HerasysError as error:
        _trace(debug)
        report_error(error)
        return USAGE if isinstance(error, UsageError) else FAILED
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`herasys ... | head`); nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except TyperException as error:
        return _refuse(error, arguments)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else FAILED
    except Exception as error:
        _trace(debug)
        report_error(told_error(error))
        return FAILED


def take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without ``--debug``, and whether tracebacks are wanted.

    The option may stand anywhere before a ``--``, as its wish comes after the fault.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [a for a in arguments[:end] if a != "--debug"]
    wanted = len(kept) < end or os.environ.get("HERASYS_DEBUG", "") not in ("", "0")
    return kept + arguments[end:], wanted


def plain_json(arguments: list[str]) -> list[str]:
    """The arguments with every ``--json`` given its value.

    A bare ``--json`` means standard output. The word after it is its path only when it
    ends in ``.json`` or is ``-``; any other word is the next argument.
    """
    plain: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*plain, word, *words]
        if word != "--json":
            plain.append(word)
            continue
        path = next(words, None)
        if path is not None and (path == "-" or path.endswith(".json")):
            plain.append(f"--json={path}")
        else:
            rest = [] if path is None else [path, *words]
            return [*plain, "--json=-", *plain_json(rest)]
    return plain


def _refuse(error: TyperException, arguments: list[str]) -> int:
    """Tell what is wrong with a command line; no command is there to give its JSON."""
    message = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
        return USAGE
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "herasys")
    hint = f"Run `{command} --help` for how to use it."
    if command.endswith(" run") and "unexpected extra argument" in message:
        hint = f"Inputs are given as --input NAME=VALUE. {hint}"
    usage = UsageError(message, hint=hint)
    report_error(usage)
    for word in arguments:
        if word.startswith("--json="):
            with contextlib.suppress(HerasysError):
                Output(word.removeprefix("--json=")).emit({"error": usage.info().to_json()})
            break
    return USAGE


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP when the terminal closes, unwind the stack, so that what a
    command started is stopped."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:  # nohup means it to be ignored
                before[number] = signal.signal(number, end)
    except ValueError:  # not the main thread: whoever embeds us handles signals
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
