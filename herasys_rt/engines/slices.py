"""Slices of streamed text: what an engine produces in a burst leaves as one piece.

The first text of an item goes out at once; what follows is held for at most 20 ms since
the item's last piece and goes out together. The order of an item's pieces is kept, and
everything held goes out before the item's `Sink.finished`.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from herasys_rt.clock import Clock, monotonic_s

SLICE_S = 0.02
"""Longest time that produced text is held back, in seconds."""

Emit = Callable[[str, str, int], None]
"""Takes (key, text, tokens), as `Sink.piece` does; must not call back into `Slices`."""


@dataclass(slots=True)
class _Held:
    """Text of one item not emitted yet, and when its last piece went out."""

    text: str = ""
    tokens: int = 0
    last_s: float = -math.inf


class Slices:
    """Gathers text per item and emits it in slices. Thread-safe.

    `push`, `finish` and `drop` are called by the producer; a thread that sleeps until
    the next slice is due emits what is held while the producer is busy. ``threaded``
    False leaves that to the caller of `flush`. Empty text is never emitted: its tokens
    count with the text that follows.
    """

    def __init__(
        self, emit: Emit, *, clock: Clock = monotonic_s, threaded: bool = True
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._changed = threading.Condition()
        self._items: dict[str, _Held] = {}
        self._due: list[tuple[float, str]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="slices", daemon=True)
        if threaded:
            self._thread.start()

    def push(self, key: str, text: str, tokens: int) -> None:
        """More text of an item; emitted now or within `SLICE_S`."""
        now = self._clock()
        with self._changed:
            if self._closed:
                return
            held = self._items.setdefault(key, _Held())
            was_empty = not held.text
            held.text += text
            held.tokens += tokens
            if not held.text or not was_empty:
                return
            due_s = held.last_s + SLICE_S
            if due_s <= now:
                self._send(key, held, now)
            else:
                heapq.heappush(self._due, (due_s, key))
                self._changed.notify()

    def finish(self, key: str, text: str = "", tokens: int = 0) -> None:
        """Emit what is held together with the last text; forget the item."""
        with self._changed:
            held = self._items.pop(key, _Held())
            held.text += text
            held.tokens += tokens
            if held.text and not self._closed:
                self._send(key, held, self._clock())

    def drop(self, key: str) -> None:
        """Forget an item and what is held of it."""
        with self._changed:
            self._items.pop(key, None)

    def flush(self) -> float | None:
        """Emit every slice that is due; seconds until the next one, None without one."""
        with self._changed:
            now = self._clock()
            while self._due and self._due[0][0] <= now:
                key = heapq.heappop(self._due)[1]
                held = self._items.get(key)
                if held is not None and held.text:
                    self._send(key, held, now)
            return self._due[0][0] - now if self._due else None

    def close(self) -> None:
        """Emit nothing more and end the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._due.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _send(self, key: str, held: _Held, now: float) -> None:
        text, tokens = held.text, held.tokens
        held.text, held.tokens, held.last_s = "", 0, now
        self._emit(key, text, tokens)

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                self._changed.wait(self.flush())
