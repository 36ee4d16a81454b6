"""What a test may not leave behind."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

GRACE_S = 10.0
"""How long what was told to end may take to be gone."""


def no_new_threads(before: Collection[threading.Thread]) -> None:
    """Fail for threads that were not there ``before`` and do not end by themselves: an
    executor that was shut down without waiting is gone a moment later."""
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(GRACE_S / len(left))
    alive = [thread.name for thread in left if thread.is_alive()]
    if alive:
        pytest.fail(f"threads left over: {', '.join(alive)}", pytrace=False)
