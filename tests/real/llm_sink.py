"""A sink that tests of LLM engines share, and the items they submit."""

from __future__ import annotations

import threading
from typing import Any

from herasys_rt.engines.protocol import Item, Outcome


class Recorder:
    """A sink that remembers and lets a test wait for what it needs."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.began: list[str] = []
        self.pieces: dict[str, list[tuple[str, int]]] = {}
        self.outcomes: dict[str, list[Outcome]] = {}

    def started(self, key: str) -> None:
        with self.changed:
            self.began.append(key)
            self.changed.notify_all()

    def piece(self, key: str, text: str, tokens: int) -> None:
        with self.changed:
            assert key not in self.outcomes, "a piece after the end"
            self.pieces.setdefault(key, []).append((text, tokens))
            self.changed.notify_all()

    def finished(self, key: str, outcome: Outcome) -> None:
        with self.changed:
            self.outcomes.setdefault(key, []).append(outcome)
            self.changed.notify_all()

    def collection_changed(self, collection: str, revision: int) -> None:
        raise AssertionError("an LLM knows no collections")

    def outcome(self, key: str) -> Outcome:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.outcomes, 90), key
            return self.outcomes[key][0]

    def first_piece(self, key: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.pieces, 60), key


def ask(key: str, prompt: str, stream: bool = False, scope: str = "", **args: Any) -> Item:
    args.setdefault("max_tokens", 16)
    return Item(key, "llm.generate", {"prompt": prompt, **args}, stream, scope)
