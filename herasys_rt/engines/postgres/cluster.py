"""A database cluster on disk: making one, and what its ``postmaster.pid`` tells.

Line 1 of that file is the server's process id, line 8 how far its start has come; the
other lines (the shared memory's key among them) are the server's own guard against two
servers over one cluster and are never removed here.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from herasys_rt.clock import monotonic_s
from herasys_rt.engines.postgres.account import Account, give, named_account
from herasys_rt.engines.postgres.binaries import Install
from herasys_rt.engines.postgres.launch import spawn
from herasys_rt.errors import EnvironmentFaultError

SUPERUSER = "herasys"
_POLL_S = 0.05
_LEAVE_S = 5.0


def make_cluster(
    install: Install, cluster: Path, account: Account | None, given_up: Callable[[], bool]
) -> None:
    """Make ``cluster`` unless it is there; it appears whole or not at all.

    What an interrupted attempt left is cleared. ``given_up`` is asked while ``initdb``
    works. Errors: `EnvironmentFaultError`.
    """
    partial = cluster.with_name(cluster.name + ".partial")
    if partial.exists():
        shutil.rmtree(partial)
    if cluster.exists():
        return
    partial.mkdir(mode=0o700)
    maker = named_account() if account is not None else None
    if maker is not None:
        give(partial, maker)
    log = cluster.with_name("initdb.log")
    with log.open("wb") as output:
        process = spawn(
            [
                install.program("initdb"),
                *("--pgdata", partial, "--username", SUPERUSER, "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C"),
                *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
            ],
            maker,
            output,
            death_signal=signal.SIGKILL,
        )
        code = _outcome(process, given_up)
    if code != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise EnvironmentFaultError(
            f"initdb failed (exit status {code}): {tail(log)}",
            hint="Check the free space and permissions of the data directory, or give a "
            "server of your own as database.dsn.",
        )
    if account is not None:
        give(partial, account)
    partial.rename(cluster)
    log.unlink(missing_ok=True)


def _outcome(process: Popen[bytes], given_up: Callable[[], bool]) -> int:
    while True:
        try:
            return process.wait(_POLL_S)
        except TimeoutExpired:
            if given_up():
                process.kill()


def tail(log: Path, start: int = 0, limit: int = 1500) -> str:
    """The last ``limit`` characters of a log file from byte ``start`` on."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            return file.read()[-limit:].decode(errors="replace").strip()
    except OSError:
        return "(no log)"


def recorded_pid(cluster: Path) -> int | None:
    """The process id in ``postmaster.pid``; None without a readable one."""
    lines = _pid_lines(cluster)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def is_ready(cluster: Path, pid: int) -> bool:
    """Whether server ``pid`` has written that it takes connections."""
    lines = _pid_lines(cluster)
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _pid_lines(cluster: Path) -> list[str]:
    try:
        return (cluster / "postmaster.pid").read_text().splitlines()
    except OSError:
        return []


def clear_stale_server(cluster: Path) -> None:
    """End a server that outlived its owner. The caller holds the data lock.

    A server in the middle of its own orderly shutdown gets the time for it; one that
    stays is told to quit, then killed: committed rows are safe in every case. When the
    recorded process is somebody else's by now, our own id takes its place, which the
    next server, our child, knows to be no server; its other guards stay in force.
    """
    pid = recorded_pid(cluster)
    if pid is None or not _runs(pid):
        return
    if not _serves(pid, cluster):
        path = cluster / "postmaster.pid"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([f"{os.getpid()}\n", *lines[1:]]))
        return
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        if _left(pid, cluster, _LEAVE_S):
            return
    raise EnvironmentFaultError(
        f"a PostgreSQL server (process {pid}) left over {cluster} cannot be ended",
        hint=f"End process {pid} and start again.",
    )


def _left(pid: int, cluster: Path, patience_s: float) -> bool:
    deadline = monotonic_s() + patience_s
    while _runs(pid) and _serves(pid, cluster):
        if monotonic_s() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _serves(pid: int, cluster: Path) -> bool:
    """Whether the process works over this cluster: a server's directory is its cluster.

    A zombie has no directory any more and counts as gone.
    """
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")) == cluster.resolve()
    except OSError:
        return False
