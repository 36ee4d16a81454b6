"""Batches: a workflow over the rows of a file; the command is `herasys_rt.batch`."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from herasys_rt.client.client import Client, HasSpec
from herasys_rt.client.connecting import connect
from herasys_rt.client.run import Run
from herasys_rt.config import load_config
from herasys_rt.dsl.loading import load_workflow
from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    InputError,
    InternalError,
    UsageError,
)
from herasys_rt.graph.labels import parsed_labels
from herasys_rt.graph.spec import WorkflowSpec

SUCCEEDED, FAILED, USAGE, SOME_ROWS_FAILED = 0, 1, 2, 3


Row = str | bytes
"""A line of JSON; bytes are UTF-8."""


def run_rows(
    client: Client,
    workflow: HasSpec | WorkflowSpec,
    rows: Iterable[Row],
    concurrency: int,
    labels: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """One report per non-blank row, in order. ``rows`` is read as far as it is needed."""
    faults: dict[int, ErrorInfo] = {}
    for number, run in enumerate(
        client.map(workflow, _inputs(rows, faults), concurrency=concurrency, labels=labels),
        start=1,
    ):
        yield _outcome(number, run, faults.pop(number, None))


_UNREADABLE = {"\0unreadable": True}
"""Stands in for a row that is no object: no workflow takes it, so the run fails."""


def _inputs(rows: Iterable[Row], faults: dict[int, ErrorInfo]) -> Iterator[dict[str, Any]]:
    number = 0
    for row in rows:
        if not row.strip():
            continue
        number += 1
        try:
            yield _parse(row, number)
        except InputError as e:
            faults[number] = e.info()
            yield _UNREADABLE


def _parse(row: Row, number: int) -> dict[str, Any]:
    try:
        value = json.loads(row)
    except (ValueError, RecursionError) as e:
        raise InputError(
            f"row {number} is not JSON: {e}",
            hint='Write one object per line, such as {"question": "..."}.',
            code="invalid_row",
        ) from e
    if not isinstance(value, dict):
        raise InputError(
            f"row {number} is a JSON {type(value).__name__}, not an object",
            hint='Write one object per line, such as {"question": "..."}.',
            code="invalid_row",
        )
    return value


def _outcome(number: int, run: Run, fault: ErrorInfo | None) -> dict[str, Any]:
    report = run.report()
    if fault is not None:
        report["error"] = fault.to_json()
    return {"row": number, **report}


class _Tally:
    """Counts rows and shows progress on standard error."""

    def __init__(self, quiet: bool) -> None:
        self.done = self.failed = 0
        self._quiet = quiet
        self._live = sys.stderr.isatty()

    def count(self, report: dict[str, Any]) -> None:
        self.done += 1
        self.failed += report["status"] != "succeeded"
        if not self._quiet and (self._live or self.done % 10 == 0):
            self._show("\r" if self._live else "\n")

    def close(self) -> None:
        if not self._quiet:
            self._show("\n")

    def _show(self, end: str) -> None:
        text = f"{self.done} rows done, {self.failed} failed"
        print(text, end=end, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m herasys_rt.batch",
        description="Run a workflow over the rows of a JSON Lines file.",
    )
    parser.add_argument("workflow", metavar="FILE.py:NAME")
    parser.add_argument("-i", "--input", required=True, help="JSON Lines, or - for stdin")
    parser.add_argument("-o", "--output", required=True, help="JSON Lines, or - for stdout")
    parser.add_argument("--concurrency", type=int, default=8, help="runs at once (8)")
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label of every run; once per label",
    )
    parser.add_argument(
        "--frontends",
        type=int,
        metavar="N",
        help="processes of the cluster that execute agents (in a Ray job 1; else 0: "
        "they run in this process)",
    )
    parser.add_argument("--config", type=Path, help="for a private runtime")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--debug", action="store_true", help="tracebacks")
    return parser


def _run(args: argparse.Namespace) -> int:
    workflow = load_workflow(args.workflow)
    labels = parsed_labels(args.label)
    if args.concurrency < 1:
        raise UsageError(
            f"--concurrency must be at least 1, not {args.concurrency}",
            hint="Say how many runs may be at work at once.",
        )
    config = load_config(args.config) if args.config else None
    tally = _Tally(args.quiet)
    with _open_input(args.input) as given:
        _check_output(args.output, given)
        # Opening empties the output: only when nothing but the runs can fail any more.
        with (
            connect(config, frontends=args.frontends, on_progress=lambda _: None) as client,
            _open_output(args.output) as out,
        ):
            for report in run_rows(
                client, workflow, _lines(given), args.concurrency, labels
            ):
                _write(out, json.dumps(report, ensure_ascii=False) + "\n", args.output)
                tally.count(report)
            tally.close()
    return SOME_ROWS_FAILED if tally.failed else SUCCEEDED


def _open_input(path: str) -> io.FileIO:
    """Unbuffered: a thread that waits for a terminal must hold no lock at exit."""
    if path == "-":
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    try:
        return io.FileIO(path)
    except OSError as e:
        raise _cannot_open(path, e) from e


def _check_output(path: str, given: io.FileIO) -> None:
    """Refuse what could not be written, or must not be, before a runtime is started."""
    if path == "-":
        return
    spot = path if os.path.exists(path) else os.path.dirname(path) or "."
    try:
        there = os.stat(spot)
        if os.path.samestat(there, os.fstat(given.fileno())):
            raise UsageError(
                f"{path} is the input and would be overwritten",
                hint="Write to another file.",
            )
        if spot == path and stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(spot, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        raise _cannot_open(path, e) from e


def _open_output(path: str) -> io.FileIO:
    """The output, emptied; every row in it is whole as soon as it is there."""
    if path == "-":
        return io.FileIO(sys.stdout.fileno(), "w", closefd=False)
    try:
        return io.FileIO(path, "w")
    except OSError as e:
        raise _cannot_open(path, e) from e


def _cannot_open(path: str, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be opened: {error.strerror}", hint="Check the path.")


def _lines(file: io.FileIO) -> Iterator[bytes]:
    """The lines of an unbuffered file, each as soon as it is there."""
    rest: list[bytes] = []
    while chunk := file.read(_CHUNK_BYTES):
        first, *more = chunk.split(b"\n")
        rest.append(first)
        for line in more:
            yield b"".join(rest)
            rest = [line]
    yield b"".join(rest)


_CHUNK_BYTES = 64 * 1024


def _write(out: io.FileIO, line: str, path: str) -> None:
    # A lone surrogate is written as the JSON escape that it came as.
    view = memoryview(line.encode("utf-8", "backslashreplace"))
    try:
        while view:
            view = view[out.write(view) :]
    except OSError as e:
        raise HerasysError(
            f"{path} cannot be written any more: {e.strerror}",
            hint="Make room there, or see why its reader ended; then run the rest.",
            code="output_lost",
        ) from e


def execute(argv: list[str] | None = None) -> int:
    """Run one command line and give its exit status; what failed is told on standard
    error. Raises nothing but with ``--debug``, and `KeyboardInterrupt`."""
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except Exception as e:
        if args.debug:
            raise
        if not isinstance(e, HerasysError):
            e = InternalError(
                f"{type(e).__name__}: {e}",
                hint="Run it again with --debug and report what it prints.",
            )
        hint = f"\n  {e.hint}" if e.hint else ""
        print(f"error[{e.code}]: {e.message}{hint}", file=sys.stderr)
        return USAGE if isinstance(e, UsageError) else FAILED
