"""Where the runtime keeps what on disk.

The *run directory* holds sockets, Ray's session and the journal; it is short (socket
paths end at 107 bytes), private (0700) and gone when the runtime is. The *state file*
says where the one background runtime of this user listens.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeGuard

import platformdirs
import psutil

from herasys_rt.errors import EnvironmentFaultError, HerasysError

if TYPE_CHECKING:
    from herasys_rt.config import Config

RUN_DIR_PREFIX = "hs-"
_OPERATOR_KEY = "operator-key"

_SOCKET_PATH_LIMIT = 107
_RAY_NEEDS = len(
    "/r/session_2026-01-01_00-00-00_000000_0000000/sockets/dash_UsageStatsHead"
)
"""What the longest socket path inside a run directory adds to it."""


def new_run_dir() -> Path:
    """A fresh, private run directory, under ``HERASYS_RUN_DIR`` or the temp directory.

    Errors: `EnvironmentFaultError` when ``HERASYS_RUN_DIR`` leaves no room for socket
    paths, or when the directory cannot be made; a temporary directory that is too long
    gives way to ``/tmp``.
    """
    given = os.environ.get("HERASYS_RUN_DIR")
    base = given or tempfile.gettempdir()
    room = _SOCKET_PATH_LIMIT - _RAY_NEEDS - len(f"/{RUN_DIR_PREFIX}12345678")
    if len(os.fsencode(base)) > room:
        if given:
            raise EnvironmentFaultError(
                f"HERASYS_RUN_DIR is {len(os.fsencode(base))} bytes long; "
                f"socket paths leave room for {room}",
                hint="Point it at a shorter directory, such as one under /run or /tmp.",
            )
        base = "/tmp"
    try:
        Path(base).mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=RUN_DIR_PREFIX, dir=base))
    except OSError as e:
        raise _unmade("run directory", base, "HERASYS_RUN_DIR", e) from e


def remove_run_dir(path: Path) -> None:
    """Remove a run directory with everything in it. Unknown paths are ignored, and so is
    what `new_run_dir` cannot have made: the name may come from a damaged state file."""
    if path.name.startswith(RUN_DIR_PREFIX):
        shutil.rmtree(path, ignore_errors=True)


def state_dir() -> Path:
    """``HERASYS_STATE_DIR`` or the user's state directory; created 0700.

    Errors: `EnvironmentFaultError` when it cannot be made.
    """
    path = Path(
        os.environ.get("HERASYS_STATE_DIR") or platformdirs.user_state_dir("herasys")
    )
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as e:
        raise _unmade("state directory", path, "HERASYS_STATE_DIR", e) from e
    return path


def _unmade(what: str, path: str | Path, variable: str, why: OSError) -> HerasysError:
    return EnvironmentFaultError(
        f"no {what} can be made at {path}: {why.strerror}",
        hint=f"Let {variable} name a directory that you may write to.",
    )


def write_operator_key(run_dir: Path) -> str:
    """A fresh key by which a runtime knows its operator: whoever may read its private run
    directory."""
    key = os.urandom(16).hex()
    path = run_dir / _OPERATOR_KEY
    path.touch(mode=0o600)
    path.write_text(key)
    return key


def operator_key(run_dir: Path | str) -> str:
    """The key of the runtime with this run directory; empty where it cannot be read."""
    try:
        return (Path(run_dir) / _OPERATOR_KEY).read_text()
    except OSError:
        return ""


def reuse_dir() -> Path:
    """Where completed results are kept when the configuration does not say."""
    return state_dir() / "reuse"


def store_folder(config: Config) -> Path:
    """Where completed results are kept, if they are."""
    folder = config.scheduler.reuse.store_dir or reuse_dir()
    return folder.expanduser().absolute()


def state_file() -> Path:
    """Where the background runtime tells how to reach it."""
    return state_dir() / "runtime.json"


def write_state(state: dict[str, Any]) -> None:
    """Replace the state file atomically, readable by its owner only."""
    target = state_file()
    draft = target.with_suffix(f".{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(state))
    draft.replace(target)


def read_state() -> dict[str, Any] | None:
    """The state of the background runtime if its process lives, else None.

    A state file left by a process that was killed is removed with its run directory; one
    that tells no state is removed. Neither while a daemon lives, whose file it may be.
    """
    state = _stored_state()
    if state is not None and is_process(state["pid"], state["started"]):
        return state
    with contextlib.suppress(BlockingIOError), daemon_lock():
        state = _stored_state()
        state_file().unlink(missing_ok=True)
        if state is not None:
            remove_run_dir(Path(state["run_dir"]))
    return None


def _stored_state() -> dict[str, Any] | None:
    try:
        state = json.loads(state_file().read_text())
    except (OSError, ValueError):
        return None
    return state if _is_state(state) else None


@contextlib.contextmanager
def daemon_lock() -> Iterator[IO[str]]:
    """Hold the lock that only one background daemon of a user can hold; gives its file.

    Errors: `BlockingIOError` when another process holds it.
    """
    with (state_dir() / "daemon.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock


def lock_holder() -> int | None:
    """The pid of the daemon that is starting or serving; None when there is none."""
    try:
        with daemon_lock():
            return None
    except BlockingIOError:
        text = (state_dir() / "daemon.lock").read_text().strip()
        return int(text) if text.isdigit() else None


def _is_state(state: Any) -> TypeGuard[dict[str, Any]]:
    kinds = dict.fromkeys(_STATE_TEXTS, str) | {"pid": int, "started": float}
    return isinstance(state, dict) and all(
        isinstance(state.get(key), kind)  # pyright: ignore[reportUnknownMemberType]
        for key, kind in kinds.items()
    )


_STATE_TEXTS = ("run_dir", "endpoint", "dsn", "job_address", "ray_address", "token_path")


def process_started(pid: int) -> float:
    """What with the pid names a process for good. Errors: `psutil.NoSuchProcess`.

    On Linux the clock ticks from boot to its start: the time of day may be set while it
    runs, which moves the creation time that psutil tells.
    """
    process = psutil.Process(pid)
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return float(words[19])
    except OSError:
        return process.create_time()


def is_process(pid: int, started: float) -> bool:
    """Whether the very process lives that `process_started` told of."""
    try:
        same = abs(process_started(pid) - started) < 1.0
        return same and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
