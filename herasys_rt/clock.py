"""Time. Ages and time-outs use one machine's monotonic clock, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns monotonic seconds. The live runtime passes `monotonic_s`, tests a fake."""

monotonic_s: Clock = time.monotonic


class ManualClock:
    """A clock that moves only when told to; for tests and simulations."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """The seconds it stands at."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds`` (>= 0)."""
        if seconds < 0:
            raise ValueError(f"time never goes back: {seconds}")
        self.now_s += seconds
