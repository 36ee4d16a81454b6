"""Reading recorded files: every fault of a file at once, with its line."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from herasys_rt.errors import ConfigError
from herasys_rt.workloads.draws import MAX_TOKENS

T = TypeVar("T")

_SHOWN = 10


class Faults:
    """What is wrong in a file, gathered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._count = 0

    def add(self, where: str, problem: str) -> None:
        """Take note of a fault; the first few are told, the others counted."""
        self._count += 1
        if self._count <= _SHOWN:
            self._lines.append(f"\n  - {where}: {problem}")

    def settle(self, found: int, what: str) -> None:
        """Errors: `ConfigError` when there are faults, or ``found`` nothing at all."""
        if self._count:
            more = self._count - len(self._lines)
            tail = f"\n  - and {more} more" if more else ""
            faults = "1 fault" if self._count == 1 else f"{self._count} faults"
            refuse(self._path, f"has {faults}:{''.join(self._lines)}{tail}")
        if not found:
            refuse(self._path, f"holds no {what}")


def refuse(path: Path, problem: str) -> NoReturn:
    """Errors: `ConfigError`, always."""
    raise ConfigError(
        f"{path} {problem}",
        hint="docs/workloads.md says what each file holds and where it comes from.",
        path=str(path),
    )


def text_of(path: Path) -> str:
    """The text of a file, unpacked when it ends in ``.gz``.

    Errors: `ConfigError` when it is not there, cannot be read or is no UTF-8.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except FileNotFoundError:
        refuse(path, "does not exist")
    except (OSError, EOFError) as e:
        refuse(path, f"cannot be read: {e}")
    except UnicodeDecodeError as e:
        refuse(path, f"is no UTF-8 text: byte {e.start} is {e.object[e.start]:#04x}")


def json_lines(path: Path, kind: type[T], faults: Faults) -> Iterator[tuple[str, T]]:
    """(``line N``, record) of each line that is a ``kind``; the others become faults."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if line.strip():
            try:
                yield f"line {number}", decoder.decode(line)
            except (msgspec.MsgspecError, ValueError) as e:
                faults.add(f"line {number}", str(e))


def json_document(path: Path, kind: type[T]) -> T:
    """The one document of a file. Errors: `ConfigError`."""
    try:
        return msgspec.json.decode(text_of(path), type=kind)
    except (msgspec.MsgspecError, ValueError) as e:
        refuse(path, f"is not as it should be: {e}")


def length_fault(prompt: int, output: int) -> str:
    """What is wrong with a call of these tokens; ``""`` for nothing."""
    if not 1 <= prompt <= MAX_TOKENS:
        return f"a prompt of {prompt} tokens, and 1 to {MAX_TOKENS:,} are taken"
    if not 0 <= output <= MAX_TOKENS:
        return f"an output of {output} tokens, and 0 to {MAX_TOKENS:,} are taken"
    return ""
