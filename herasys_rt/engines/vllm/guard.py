"""Ends vLLM's engine process when the process that started it is gone.

vLLM imports `Guarded` in its worker, as a worker extension; importing it starts the
watch. An orphan would otherwise hold the accelerator for ever after a kill -9.
"""

from __future__ import annotations

import os
import select
import signal
import threading

from herasys_rt.engines.vllm.options import OWNER_VARIABLE

_GRACE_MS = 5_000


class Guarded:
    """Adds nothing to the worker; being imported is its purpose."""


def _watch(owner: int) -> None:
    """Wait for the owner's end without polling, then end this process."""
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(1)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    select.poll().poll(_GRACE_MS)
    os._exit(1)


def _begin() -> None:
    owner = int(os.environ.get(OWNER_VARIABLE, "0"))
    if owner and owner != os.getpid() and hasattr(os, "pidfd_open"):
        threading.Thread(
            target=_watch, args=(owner,), name="owner-watch", daemon=True
        ).start()


_begin()
