"""What a client asks its runtime, and waits to be answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Answer(Protocol):
    """A message that answers the question of the same number."""

    @property
    def question(self) -> int:
        """The number."""
        ...


A = TypeVar("A", bound=Answer)


class Questions(Generic[A]):
    """Questions of one kind by number. Any thread asks, another one hears the answers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = 0
        self._answers: dict[int, A | None] = {}
        self._over = False

    def ask(self, send: Callable[[int], object], timeout_s: float) -> A | None:
        """The answer to what ``send`` sends under a number that it is given; None when none
        came within ``timeout_s``, or none will."""
        with self._changed:
            self._last = number = self._last + 1
            self._answers[number] = None
            try:
                send(number)
                self._changed.wait_for(
                    lambda: self._over or self._answers[number] is not None, timeout_s
                )
            finally:
                answer = self._answers.pop(number)
        return answer

    def hear(self, answer: A) -> None:
        """An answer came; one that nobody waits for any more is ignored."""
        with self._changed:
            if answer.question in self._answers:
                self._answers[answer.question] = answer
                self._changed.notify_all()

    def end(self) -> None:
        """Nobody answers any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
