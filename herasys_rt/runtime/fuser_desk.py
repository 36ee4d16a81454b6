"""The scheduler's side of the fuser: which one serves, and what it is told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from herasys_rt.core.events import CollectionChanged, ItemFinished
from herasys_rt.core.state import State
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.links import Endpoint, Outbox
from herasys_rt.messages import Catalogue, FuserLost, FuserReady, Lengths, Route, StoreFacts
from herasys_rt.runtime.cache_desk import CacheDesk
from herasys_rt.runtime.roster import Roster

log = logging.getLogger(__name__)


class FuserDesk:
    """Knows the fuser that serves and tells it what it signs and predicts by.

    While none serves nothing is told, and clients are sent to the scheduler. ``clients``,
    ``specs``, ``roster`` and ``cache`` are the scheduler's own.
    """

    def __init__(
        self,
        state: State,
        outbox: Outbox,
        clients: Mapping[str, Endpoint],
        specs: Mapping[str, WorkflowSpec],
        roster: Roster,
        cache: CacheDesk,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._clients = clients
        self._specs = specs
        self._roster = roster
        self._cache = cache
        self._clock = clock
        self._heard_s = 0.0
        self._told_revisions: dict[str, int] = {}
        self._lengths: list[tuple[str | None, str, int]] = []
        self.endpoint: Endpoint | None = None
        """Where the fuser is; None while it is away."""
        self.store: StoreFacts | None = None
        """How its store of results is, as it said last."""

    # --- which one serves -----------------------------------------------------------
    def ready(self, message: FuserReady) -> None:
        """A fuser serves, another one or the same still."""
        self._heard_s = self._clock()
        self.store = message.store
        if message.endpoint != self.endpoint:
            if self.endpoint is not None:
                self._outbox.forget(self.endpoint)
            self.endpoint = message.endpoint
            self.tell_catalogue()
            self._cache.fuser_up(message.endpoint)
            self._reroute()

    def lost(self, message: FuserLost) -> None:
        """The fuser is gone; nothing happens when it was known to be."""
        if self.endpoint is not None:
            log.warning("the fuser is away (%s); runs come directly", message.reason)
            self._outbox.forget(self.endpoint)
            self.endpoint = self.store = None
            self._cache.fuser_down()
            self._reroute()

    def is_silent(self, now: float, limit_s: float) -> bool:
        """Whether there is one and nothing was heard of it for ``limit_s`` seconds."""
        return self.endpoint is not None and now - self._heard_s > limit_s

    def _reroute(self) -> None:
        for client in self._clients.values():
            self._outbox.post(client, Route(self.endpoint))

    # --- what it is told ------------------------------------------------------------
    def tell(self, message: Any) -> None:
        """Post it a message, while it is there."""
        if self.endpoint is not None:
            self._outbox.post(self.endpoint, message)

    def tell_catalogue(self) -> None:
        """Tell it of all instances, and of every revision."""
        if self.endpoint is not None:
            self._told_revisions = dict(self._state.revisions)
            self.tell(Catalogue(self._roster.facts(), self._told_revisions))

    def tell_revision(self, collection: str) -> None:
        """Tell it of what the kernel learned; once."""
        revision = self._state.revisions.get(collection, 0)
        if (
            self.endpoint is not None
            and self._told_revisions.get(collection, 0) != revision
        ):
            self._told_revisions[collection] = revision
            self.tell(CollectionChanged(collection, revision))

    def note_length(self, event: ItemFinished) -> None:
        """Remember how much a model has written, where keys depend on predictions; for
        `tell_lengths`. The kernel must not have had the event yet."""
        if self._state.tracker is None:
            return
        flight = self._state.flights.get(event.flight)
        payload = flight.payload if flight is not None else None
        spec = self._specs.get(payload.spec_id) if payload is not None else None
        if payload is not None and spec is not None:
            node = spec.nodes[payload.node]
            self._lengths.append((node.model, node.operator, event.output_tokens))

    def tell_lengths(self) -> None:
        """Tell it of what was noted since the last time."""
        if self._lengths:
            self.tell(Lengths(tuple(self._lengths)))
            self._lengths.clear()
