"""A sink that tests of batch engines share: outcomes by key, each item ending once."""

from __future__ import annotations

import threading

from herasys_rt.engines.protocol import Outcome

WAIT_S = 60.0


class OutcomeSink:
    """Keeps what an engine reports and lets a test wait for an outcome."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.outcomes: dict[str, Outcome] = {}
        self._changed = threading.Condition()

    def started(self, key: str) -> None:
        with self._changed:
            self.log.append(("started", key))

    def piece(self, key: str, text: str, tokens: int) -> None:
        raise AssertionError("batch engines stream nothing")

    def finished(self, key: str, outcome: Outcome) -> None:
        with self._changed:
            self.log.append(("finished", key))
            self.outcomes[key] = outcome
            self._changed.notify_all()

    def collection_changed(self, collection: str, revision: int) -> None:
        raise AssertionError("no database here")

    def outcome(self, key: str) -> Outcome:
        """The outcome of an item, once there is one."""
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.outcomes, WAIT_S), key
            return self.outcomes[key]

    def each_ended_once(self) -> bool:
        """Whether no item was reported finished a second time."""
        ends = [key for event, key in self.log if event == "finished"]
        return len(ends) == len(set(ends))
