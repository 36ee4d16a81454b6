"""The journal: everything the kernel was told, so that it can be told again.

A file of records, each a little-endian 32-bit length and that many bytes in the canonical
codec. The first is the `Header`, every other one (now, event). A file cut anywhere (a
crash, a full disk) reads as the records before the cut.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from herasys_rt.core.commands import Command
from herasys_rt.core.events import Event
from herasys_rt.core.kernel import handle
from herasys_rt.core.policy import Policies, PolicyNames
from herasys_rt.core.state import KernelConfig, new_state
from herasys_rt.errors import UsageError
from herasys_rt.graph import codec

FORMAT = 1

_LENGTH = struct.Struct("<I")
_FLUSH_BYTES = 64 * 1024


class JournalError(UsageError):
    """A file that is no journal, or one of another format."""

    code = "invalid_journal"


class Header(msgspec.Struct, frozen=True):
    """What a journal was recorded with."""

    format: int
    config: KernelConfig
    policies: PolicyNames


_headers = codec.typed_decoder(Header)
_records: msgspec.msgpack.Decoder[tuple[float, Event]] = codec.typed_decoder(
    tuple[float, Event]
)


class JournalWriter:
    """Writes a new journal; an existing file is replaced.

    Records gather in memory until 64 KiB are there or `flush` is called, and reach the
    operating system then. With ``max_bytes`` recording ends before the file would exceed
    it: `full` is True from then on, and what was written replays as far as it goes.
    """

    def __init__(
        self,
        path: Path | str,
        config: KernelConfig,
        policies: PolicyNames,
        max_bytes: int | None = None,
    ) -> None:
        self.full = False
        self._max_bytes = max_bytes
        self._written = 0
        self._buffer = bytearray()
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by close()
        self._add(codec.encode(Header(FORMAT, config, policies)))
        self.flush()

    def append(self, now: float, event: Event) -> None:
        """Record that the kernel is told ``event`` at ``now``."""
        if not self.full:
            self._add(codec.encode((now, event)))

    def flush(self) -> None:
        """Hand everything recorded so far to the operating system."""
        view = memoryview(self._buffer)
        while view:
            view = view[self._file.write(view) :]
        view.release()
        self._buffer.clear()

    def close(self) -> None:
        """Flush and close; idempotent."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _add(self, body: bytes) -> None:
        size = _LENGTH.size + len(body)
        if self._max_bytes is not None and self._written + size > self._max_bytes:
            self.full = True
            return
        self._written += size
        self._buffer += _LENGTH.pack(len(body))
        self._buffer += body
        if len(self._buffer) >= _FLUSH_BYTES:
            self.flush()


def read_header(path: Path | str) -> Header:
    """What a journal was recorded with. Errors: `JournalError`."""
    body = next(_bodies(path), None)
    if body is None:
        raise JournalError(
            f"{path} holds no complete record", hint="Give a journal's file."
        )
    try:
        header = _headers.decode(body)
    except msgspec.MsgspecError as e:
        raise JournalError(
            f"{path} is no journal: {e}",
            hint="Give a file that a runtime recorded, in the format of this version.",
        ) from e
    if header.format != FORMAT:
        raise JournalError(
            f"{path} has journal format {header.format}; this version reads {FORMAT}",
            hint="Replay it with the version that recorded it.",
        )
    return header


def read_journal(path: Path | str) -> Iterator[tuple[float, Event]]:
    """Every complete (now, event) of a journal, in order. Errors: `JournalError`."""
    read_header(path)
    bodies = _bodies(path)
    next(bodies)
    for body in bodies:
        try:
            yield _records.decode(body)
        except msgspec.MsgspecError as e:
            raise JournalError(
                f"{path} holds a record that is no event: {e}",
                hint="Replay it with the version that recorded it, if the file is whole.",
            ) from e


def replay(
    path: Path | str, build: Callable[[PolicyNames], Policies]
) -> list[list[Command]]:
    """The commands a fresh kernel gives for each event of a journal.

    ``build`` makes policies of names (`herasys_rt.policies.build`). Errors:
    `JournalError`, and what ``build`` raises for a name it does not know.
    """
    header = read_header(path)
    state = new_state(header.config, *build(header.policies))
    return [handle(state, event, now) for now, event in read_journal(path)]


def _bodies(path: Path | str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while True:
            head = file.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return
            (size,) = _LENGTH.unpack(head)
            body = file.read(size)
            if len(body) < size:
                return
            yield body
