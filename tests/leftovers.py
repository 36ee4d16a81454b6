"""What a test may not leave behind."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import pytest

GRACE_S = 10.0
"""How long what was told to end may take to be gone."""
_SOON_S = 1.0


def no_new_threads(before: Collection[threading.Thread]) -> None:
    """Fail for threads that were not there ``before`` and do not end by themselves.

    An executor that was shut down without waiting is gone a moment later, and one that
    only an exception's traceback still holds (vLLM, of a pattern it refuses) with it.
    """
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(_SOON_S / len(left))
    if any(thread.is_alive() for thread in left):
        gc.collect()
        for thread in left:
            thread.join(GRACE_S / len(left))
    alive = [_described(thread) for thread in left if thread.is_alive()]
    if alive:
        pytest.fail("threads left over:\n" + "\n".join(alive), pytrace=False)


def _described(thread: threading.Thread) -> str:
    """A thread with where it stands, and who holds its executor if it is of one."""
    frame = sys._current_frames().get(thread.ident or 0)
    told = f"{thread.name}\n{''.join(traceback.format_stack(frame)) if frame else ''}"
    executor = next((o for o in gc.get_objects() if thread in _workers(o)), None)
    if executor is not None:
        holders = [repr(holder)[:200] for holder in gc.get_referrers(executor)]
        told += f"of {vars(executor)}\nheld by\n" + "\n".join(holders)
    return told


def _workers(thing: object) -> Collection[object]:
    return thing._threads if isinstance(thing, ThreadPoolExecutor) else ()
