"""A real PostgreSQL per test module, and the proof that nothing of it stays."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from herasys_rt.engines.postgres.server import EmbeddedPostgres


def processes_over(area: Path) -> list[str]:
    """Living processes that work in ``area`` or name it on their command line."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if state != "Z" and (str(area) in command or where.startswith(str(area))):
            found.append(f"{entry.name}: {command}")
    return found


@pytest.fixture(scope="module")
def area() -> Iterator[Path]:
    """A short directory that the server's account may enter; fails on leftovers."""
    place = Path(tempfile.mkdtemp(prefix="hp-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    left = processes_over(place)
    shutil.rmtree(place)
    assert left == []


@pytest.fixture(scope="module")
def server(area: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(area / "data", area / "run") as running:
        yield running
    assert not (area / "run" / "pg").exists()
    assert not (area / "data" / "lock").exists()


@pytest.fixture(scope="module")
def dsn(server: EmbeddedPostgres) -> str:
    return server.dsn
