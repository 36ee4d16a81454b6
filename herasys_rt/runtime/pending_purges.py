"""Purges that the store of results has yet to carry out, written down in its folder.

Whoever purges writes a record first, which is on the disk when `write` returns. Whoever
opens the store next carries out what it finds before it offers anything, so that nothing
comes back, whatever died in between. A record that is carried out twice takes what was
computed since as well, which costs time and nothing else.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from herasys_rt.core.commands import DropKept
from herasys_rt.graph import codec
from herasys_rt.ids import new_id

log = logging.getLogger(__name__)

_ENDING = ".purge"
_EVERYTHING = DropKept(0)

_records = codec.typed_decoder(DropKept)


class Pending(NamedTuple):
    """A purge and the file that it is written in."""

    path: Path
    drop: DropKept


def write(folder: Path, drop: DropKept) -> Path:
    """Write a purge down for good; gives the record. Errors: `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{new_id('p')}{_ENDING}"
    draft = path.with_suffix(".draft")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(codec.encode(drop))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    holder = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(holder)
    finally:
        os.close(holder)
    return path


def read(folder: Path) -> list[Pending]:
    """What is written down. A record that cannot be read means everything. Errors:
    `OSError`."""
    found: list[Pending] = []
    for path in sorted(folder.glob(f"*{_ENDING}")):
        try:
            found.append(Pending(path, _records.decode(path.read_bytes())))
        except FileNotFoundError:
            continue  # Somebody who carried it out has removed it.
        except msgspec.MsgspecError as e:
            log.error("%s cannot be read, so everything is purged: %s", path, e)
            found.append(Pending(path, _EVERYTHING))
    return found
