"""How fast requests may leave: a token bucket, and a pause that a server asked for."""

from __future__ import annotations

import asyncio

from herasys_rt.clock import Clock, monotonic_s


class Pace:
    """``per_s`` requests per second, ``burst`` of them at once; belongs to one loop.

    Turns are given in the order in which they are asked for.
    """

    def __init__(self, per_s: float, burst: int, clock: Clock = monotonic_s) -> None:
        self._interval_s = 1.0 / per_s
        self._tolerance_s = (burst - 1) * self._interval_s
        self._clock = clock
        self._due_s = 0.0  # when the bucket would be full again
        self._not_before_s = 0.0

    def reserve(self) -> float:
        """Take the next turn; when it is, on the clock."""
        now = self._clock()
        due_s = max(self._due_s, now)
        self._due_s = due_s + self._interval_s
        return max(due_s - self._tolerance_s, now)

    def hold_back(self, wait_s: float) -> None:
        """Let nothing leave for so many seconds."""
        self._not_before_s = max(self._not_before_s, self._clock() + wait_s)

    async def turn(self) -> None:
        """Wait for the next turn."""
        at_s = self.reserve()
        while (wait_s := max(at_s, self._not_before_s) - self._clock()) > 0:
            await asyncio.sleep(wait_s)
