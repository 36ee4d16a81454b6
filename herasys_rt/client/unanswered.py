"""What a client has told its runtime and may have to tell again."""

from __future__ import annotations

from typing import Any

from herasys_rt.core.events import SpecRegistered
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.links import Endpoint, Outbox
from herasys_rt.messages import Abandon, Cancel, Close, Hello, Reveal, Submit

_KNOWN_SPECS = 4096
"""So many workflows are remembered to be known there; then each is told once more."""


class Unanswered:
    """Posts to the ``door`` what concerns runs, and keeps it until it is answered.

    It goes out again when the door changes, and once more when all that is wrong with it
    is that its workflow was forgotten there. For one thread at a time.
    """

    def __init__(self, outbox: Outbox, hello: Hello, door: Endpoint) -> None:
        self.door = door
        self._outbox = outbox
        self._hello = hello
        self._known_specs: set[str] = set()
        self._submitted: dict[str, tuple[WorkflowSpec, Submit]] = {}
        self._revealed: dict[tuple[str, int], tuple[WorkflowSpec, Reveal]] = {}
        self._closing: dict[str, Close] = {}
        self._cancelled: set[str] = set()
        self._sent_again: set[str | tuple[str, int]] = set()

    def post(self, message: Any) -> None:
        """Say something once."""
        self._outbox.post(self.door, message)

    def submit(self, spec: WorkflowSpec, message: Submit) -> None:
        """Submit a run, until it is `accepted` or `refused`."""
        self._submitted[message.run_id] = (spec, message)
        self._post_with(spec, message)

    def reveal(self, spec: WorkflowSpec, message: Reveal) -> None:
        """Reveal a fragment, until it is `ended`."""
        self._revealed[(message.run_id, message.fragment)] = (spec, message)
        self._post_with(spec, message)

    def abandon(self, run_id: str, fragment: int) -> None:
        """A fragment is not wanted any more."""
        self._revealed.pop((run_id, fragment), None)
        self.post(Abandon(run_id, fragment, self._hello.client))

    def close(self, run_id: str, error: ErrorInfo | None) -> None:
        """An agent's coroutine has ended. The first word counts, also when it has to be
        said again."""
        message = Close(run_id, self._hello.client, error)
        self.post(self._closing.setdefault(run_id, message))

    def cancel(self, run_id: str) -> None:
        """A run is to stop."""
        self._cancelled.add(run_id)
        self.post(Cancel(run_id, self._hello.client))

    def accepted(self, run_id: str) -> None:
        """A run was taken."""
        self._submitted.pop(run_id, None)

    def refused(self, run_id: str, error: ErrorInfo | None) -> bool:
        """Whether it stays refused: not when its submission, or what is left of it, goes
        out once more, nor when it was sent twice and the run is taken or has ended."""
        sent = self._submitted.get(run_id)
        if sent is None:
            return False
        if not self._send_again(run_id, sent, error):
            return True
        # What an agent has told of its run so far came while nobody knew the run.
        for (of_run, _), (spec, reveal) in self._revealed.items():
            if of_run == run_id:
                self._post_with(spec, reveal)
        closing = self._closing.get(run_id)
        if closing is not None:
            self.post(closing)
        return False

    def ended(self, run_id: str, fragment: int, error: ErrorInfo | None) -> bool:
        """Whether a fragment has ended: not when it goes out once more."""
        key = (run_id, fragment)
        if self._send_again(key, self._revealed.get(key), error):
            return False
        self._revealed.pop(key, None)
        self._sent_again.discard(key)
        return True

    def forget(self, run_id: str) -> None:
        """Nothing of a run need be said again."""
        self._submitted.pop(run_id, None)
        self._cancelled.discard(run_id)
        self._sent_again.discard(run_id)
        if self._closing.pop(run_id, None) is not None or self._revealed:
            for key in [key for key in self._revealed if key[0] == run_id]:
                del self._revealed[key]
                self._sent_again.discard(key)

    def move(self, door: Endpoint) -> None:
        """Another door: introduce the client there, and say everything again."""
        self.door = door
        self._known_specs.clear()
        self.post(self._hello)
        for spec, message in [*self._submitted.values(), *self._revealed.values()]:
            self._post_with(spec, message)
        for closing in self._closing.values():
            self.post(closing)
        for run_id in self._cancelled:
            self.post(Cancel(run_id, self._hello.client))

    def _post_with(self, spec: WorkflowSpec, message: Submit | Reveal) -> None:
        if spec.id not in self._known_specs:
            if len(self._known_specs) >= _KNOWN_SPECS:
                self._known_specs.clear()
            self._known_specs.add(spec.id)
            self.post(SpecRegistered(spec))
        self.post(message)

    def _send_again(
        self,
        key: str | tuple[str, int],
        sent: tuple[WorkflowSpec, Submit | Reveal] | None,
        error: ErrorInfo | None,
    ) -> bool:
        """Whether what was ``sent`` goes out once more, now with its workflow."""
        if sent is None or error is None or error.code != "unknown_spec":
            return False
        if key in self._sent_again:
            return False  # It was told right before: it does not hold.
        self._sent_again.add(key)
        self._known_specs.discard(sent[0].id)
        self._post_with(*sent)
        return True
