"""What is going to happen: a heap of (time, sequence), and the clock that it moves."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from herasys_rt.errors import InternalError

Action = Callable[[], None]


class Agenda:
    """A virtual clock with everything that is due on it.

    Actions run in the order of their times, equal times in the order in which they were
    put in. When everything due at one moment has run, what was given to `after_moment`
    runs, once each, still at that moment.
    """

    __slots__ = ("_heap", "_later", "_sequence", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._later: dict[object, Action] = {}
        self._sequence = 0

    def at(self, time_s: float, action: Action) -> None:
        """Run ``action`` at ``time_s``. Errors: `InternalError` when that is in the past
        or no time."""
        if not time_s >= self.now:
            raise InternalError(
                f"something is planned for {time_s:.9f} s and it is {self.now:.9f} s",
                hint="A modelled duration is negative or no number; report it.",
            )
        self._sequence += 1
        heapq.heappush(self._heap, (time_s, self._sequence, action))

    def after_moment(self, key: object, action: Action) -> None:
        """Run ``action`` when all that is due now has run; once per ``key``."""
        self._later[key] = action

    def run(self) -> None:
        """Let time pass until nothing is due any more."""
        heap, later = self._heap, self._later
        pop = heapq.heappop
        while True:
            while heap and heap[0][0] == self.now:
                pop(heap)[2]()
            while later:
                actions = list(later.values())
                later.clear()
                for action in actions:
                    action()
            if not heap:
                return
            self.now = heap[0][0]
