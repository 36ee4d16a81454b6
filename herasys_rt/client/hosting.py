"""A client's side of its frontends: which of them executes which run's agent."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from herasys_rt.client.frontend import KNOWN_AGENTS
from herasys_rt.client.link import Link
from herasys_rt.client.run import Run
from herasys_rt.dsl.agent import Agent
from herasys_rt.dsl.shipping import packed_agent
from herasys_rt.errors import ErrorInfo, FrontendLostError
from herasys_rt.graph import codec
from herasys_rt.links import Endpoint, Outbox
from herasys_rt.messages import KnowAgent, StartAgent, Stop, StopAgent
from herasys_rt.runtime.frontend import Watcher


class Keeper(Protocol):
    """What brings frontends up and watches them: `runtime.frontend.Frontends`."""

    names: list[str]

    def start(self, watcher: Watcher) -> None:
        """Bring all of them up, from then on telling ``watcher``; returns at once."""
        ...

    def stop(self) -> None:
        """End all of them; returns when they are gone."""
        ...


@dataclass(slots=True)
class _Seat:
    """A frontend: ``endpoint`` is None while it starts, ``runs`` are those placed there,
    ``waiting`` of them begin when it is up; ``known`` are the agents it has, by digest."""

    endpoint: Endpoint | None = None
    runs: dict[str, _Hosted] = field(default_factory=dict[str, "_Hosted"])
    waiting: dict[str, _Hosted] = field(default_factory=dict[str, "_Hosted"])
    known: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])


@dataclass(slots=True)
class _Hosted:
    """A run's agent: the packed ``agent`` and what starts it."""

    run: Run
    frontend: str
    agent: KnowAgent
    start: StartAgent


class HostedAgents:
    """Has agents executed in frontends instead of this process; as `AgentLoop`.

    Frontends are brought up with the first agent. An agent is packed once: what it
    captured is what it was when it was first submitted. Safe from any thread.
    """

    def __init__(
        self, link: Link, keeper: Keeper, leave: Callable[[], None] = lambda: None
    ) -> None:
        self._link = link
        self._keeper = keeper
        self._leave = leave
        self._outbox = Outbox()
        self._lock = threading.RLock()  # A keeper may tell what it was just asked for.
        self._packing = threading.Lock()
        self._seats: dict[str, _Seat] = {}
        self._runs: dict[str, _Hosted] = {}
        self._packed: weakref.WeakKeyDictionary[Agent[...], KnowAgent]
        self._packed = weakref.WeakKeyDictionary()
        self._closed = False

    def place(self, agent: Agent[...]) -> str:
        """The frontend with the fewest runs. Errors: `UsageError` for an agent that
        cannot travel."""
        with self._packing:
            if agent not in self._packed:
                data = packed_agent(agent)
                self._packed[agent] = KnowAgent(codec.digest(data), data)
        with self._lock:
            if not self._seats:
                self._seats = {name: _Seat() for name in self._keeper.names}
                self._keeper.start(self)
            return min(self._seats, key=lambda name: len(self._seats[name].runs))

    def start(
        self,
        run: Run,
        agent: Agent[...],
        inputs: dict[str, Any],
        *,
        frontend: str,
        stream: bool = False,
    ) -> None:
        """Have an agent executed for a run that was submitted; the run's end ends it.

        It begins once the runtime has accepted the run: what the frontend reveals must
        not come before it.
        """
        packed = self._packed[agent]
        order = StartAgent(run.id, packed.digest, codec.encode(inputs), stream)
        with self._lock:
            hosted = self._runs[run.id] = _Hosted(run, frontend, packed, order)
            seat = self._seats.get(frontend)
            if seat is not None:
                seat.runs[run.id] = hosted
        run.add_done_callback(self._ended)
        run.when_accepted(self._hand_over)

    def _hand_over(self, run: Run) -> None:
        with self._lock:
            hosted = self._runs.get(run.id)
            if hosted is None or self._closed:
                return
            seat = self._seats.get(hosted.frontend)
            if seat is not None and seat.endpoint is None:
                seat.waiting[run.id] = hosted
            elif seat is not None:
                self._send(seat, hosted)
        if seat is None:
            self._link.close_run(run, _lost(run.id, hosted.frontend, "it has ended"))

    def _send(self, seat: _Seat, hosted: _Hosted) -> None:
        assert seat.endpoint is not None
        digest = hosted.start.digest
        if digest not in seat.known:
            seat.known[digest] = None
            if len(seat.known) > KNOWN_AGENTS:
                seat.known.popitem(last=False)
            self._outbox.post(seat.endpoint, hosted.agent)
        self._outbox.send(seat.endpoint, hosted.start)

    def _ended(self, run: Run) -> None:
        with self._lock:
            hosted = self._runs.pop(run.id, None)
            seat = self._seats.get(hosted.frontend) if hosted is not None else None
            if seat is None or self._closed:
                return
            del seat.runs[run.id]
            if seat.waiting.pop(run.id, None) is None and seat.endpoint is not None:
                self._outbox.send(seat.endpoint, StopAgent(run.id))

    # --- what the keeper tells ------------------------------------------------------
    def up(self, name: str, endpoint: Endpoint) -> None:
        """See `Watcher.up`."""
        with self._lock:
            if self._closed:
                return
            seat = self._seats[name]
            seat.endpoint = endpoint
            for hosted in seat.waiting.values():
                self._send(seat, hosted)
            seat.waiting.clear()

    def lost(self, name: str, reason: str, heir: str) -> None:
        """See `Watcher.lost`: its runs fail, the next ones go to the heir."""
        with self._lock:
            seat = self._seats.pop(name)
            self._seats[heir] = _Seat()
            if seat.endpoint is not None:
                self._outbox.forget(seat.endpoint)
            orphans = list(seat.runs.values())
        for hosted in orphans:
            self._link.close_run(hosted.run, _lost(hosted.run.id, name, reason))
        self._link.dismiss(name, seat.endpoint)

    def close(self) -> None:
        """End the frontends. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for seat in self._seats.values():
                if seat.endpoint is not None:
                    self._outbox.post(seat.endpoint, Stop())
            self._outbox.flush()
        self._keeper.stop()
        self._outbox.close()
        self._leave()


def _lost(run_id: str, frontend: str, reason: str) -> ErrorInfo:
    return FrontendLostError(
        f"{frontend}, which executed the agent of run {run_id}, is gone: {reason}",
        hint="Submit the run again; the worker's log in Ray's session folder may say why.",
    ).info()
