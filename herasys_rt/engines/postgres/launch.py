"""Starting PostgreSQL's programs: identity dropped, tied to our life, own session."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from herasys_rt.engines.postgres.account import Account
from herasys_rt.errors import EnvironmentFaultError

_PR_SET_PDEATHSIG = 1
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "LANG": "C"}
"""Nothing of ours leaks in: PGDATA, PGPORT or LD_PRELOAD would change what runs."""


def spawn(
    argv: Sequence[str | Path],
    account: Account | None,
    output: IO[bytes] | int,
    *,
    death_signal: signal.Signals,
) -> subprocess.Popen[bytes]:
    """Start a program that gets ``death_signal`` when the *calling thread* ends.

    That is Linux's rule for parent death signals, so call from a thread that lives as
    long as the program may. ``output`` takes standard output and error. The program has
    a session of its own: a Ctrl-C at the terminal does not reach it.
    Errors: `EnvironmentFaultError` when it cannot be started.
    """
    identity: dict[str, Any] = {}
    if account is not None:
        identity = {"user": account.uid, "group": account.gid, "extra_groups": []}
    try:
        return subprocess.Popen[bytes](
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",  # ours may be closed to the account, and postgres asks for it
            env=_ENVIRONMENT,
            umask=0o077,
            start_new_session=True,
            preexec_fn=_die_with_parent(death_signal),
            **identity,
        )
    except (OSError, subprocess.SubprocessError) as e:
        who = "" if account is None else f" as user {account.uid}"
        raise EnvironmentFaultError(
            f"cannot start {Path(argv[0]).name}{who}: {e}",
            hint="Check that this process may change users and that the file system "
            "allows programs to run, or give a server of your own as database.dsn.",
        ) from e


def _die_with_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    """A hook for the child between fork and exec, after the identity has changed.

    A change of identity clears the signal, hence the order. Everything the hook touches
    is looked up here: a fork of a process with threads must not import or allocate much.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    number, parent = int(death_signal), os.getpid()
    getppid, leave = os.getppid, os._exit

    def hook() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if getppid() != parent:  # it died before the signal was set
            leave(1)

    return hook
