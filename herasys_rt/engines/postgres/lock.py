"""The lock of a data directory: one owner, and everybody can read who."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.errors import RuntimeStateError

_POLL_S = 0.05


class DataLock:
    """An exclusive ``flock`` on a file that holds its owner's process id.

    The kernel drops it with its owner, however that ends. `release` removes the file.
    """

    def __init__(self, path: Path, clock: Clock = monotonic_s) -> None:
        self._path = path
        self._clock = clock
        self._fd: int | None = None

    def acquire(self, wait_s: float) -> None:
        """Take the lock, waiting up to ``wait_s`` seconds for a leaving owner.

        Errors: `RuntimeStateError` with the owner's process id.
        """
        deadline = self._clock() + wait_s
        while not self._try():
            if self._clock() >= deadline:
                owner = self._owner()
                raise RuntimeStateError(
                    f"the data directory {self._path.parent} is in use by process {owner}",
                    hint="Use the runtime that is up (herasys status), stop it (herasys "
                    "down), or choose another database.data_dir.",
                    pid=owner,
                )
            time.sleep(_POLL_S)

    def release(self) -> None:
        """Give the lock up; idempotent."""
        if self._fd is None:
            return
        # Removed while still held: whoever opened the old file notices in `_try`.
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = None

    def _try(self) -> bool:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_current(fd):
                raise BlockingIOError("the file was replaced while we waited")
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def _is_current(self, fd: int) -> bool:
        try:
            here = self._path.stat()
        except FileNotFoundError:
            return False
        held = os.fstat(fd)
        return (here.st_dev, here.st_ino) == (held.st_dev, held.st_ino)

    def _owner(self) -> str:
        try:
            return self._path.read_text().strip() or "unknown"
        except OSError:
            return "unknown"
