"""The scheduler's loop: mailbox -> kernel -> journal -> interpreter.

One thread owns the kernel's state. It never waits for anything but its inbox.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from herasys_rt.core import events
from herasys_rt.core.commands import RefuseRun
from herasys_rt.core.journal import JournalWriter
from herasys_rt.core.kernel import State, counters, handle
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo, InputError
from herasys_rt.graph import codec
from herasys_rt.graph.facts import facts_of
from herasys_rt.graph.hashing import SHA256, Hash
from herasys_rt.graph.labels import checked_labels
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.graph.validation import check_inputs, validate_spec
from herasys_rt.links import Endpoint, Inbox, Outbox
from herasys_rt.messages import (
    Abandon,
    Announce,
    Cancel,
    Close,
    ExplainReply,
    ExplainRequest,
    ForgetClient,
    FuserLost,
    FuserReady,
    Gone,
    Goodbye,
    Heartbeat,
    Hello,
    HostFailed,
    HostLost,
    HostReady,
    KeptDropped,
    Named,
    Ping,
    Pong,
    PurgeNoted,
    PurgeRequest,
    Reveal,
    StatusReply,
    StatusRequest,
    Stop,
    Submit,
    ToScheduler,
    Welcome,
)
from herasys_rt.runtime.cache_desk import CacheDesk, Noting
from herasys_rt.runtime.fuser_desk import FuserDesk
from herasys_rt.runtime.interpreter import Interpreter
from herasys_rt.runtime.objects import ObjectHold
from herasys_rt.runtime.roster import Roster

log = logging.getLogger(__name__)

SILENCE_LIMIT_S = 20.0
"""After this silence a host, a fuser or a client counts as gone."""
_HOUSEKEEPING_S = 0.5


class SchedulerLoop:
    """Drives the kernel live.

    ``start_s`` is the monotonic time that arrivals count from. `run` blocks until a
    `Stop` message arrives; everything else may be called before it. ``operator_key`` is
    what the runtime's operator shows to act for every tenant; ``store`` is the folder of
    kept results, where there is one.
    """

    def __init__(
        self,
        state: State,
        pools: list[events.PoolDeclared],
        inbox: Inbox[ToScheduler],
        outbox: Outbox,
        objects: ObjectHold,
        journal: JournalWriter | None = None,
        clock: Callable[[], float] = time.monotonic,
        hashing: Hash = SHA256,
        operator_key: str = "",
        store: Path | None = None,
    ) -> None:
        self._state = state
        self._inbox = inbox
        self._outbox = outbox
        self._objects = objects
        self._journal = journal
        self._clock = clock
        self._hashing = hashing
        self._start_s = clock()
        self._clients: dict[str, Endpoint] = {}
        self._tenants: dict[str, str] = {}
        self._heard: dict[str, float] = {}
        self._specs: dict[str, WorkflowSpec] = {}
        self._next_housekeeping_s = 0.0
        self._wake_s = math.inf
        self._stopping = False
        self.roster = Roster(pools)
        self._cache = CacheDesk(
            state,
            outbox,
            self._clients,
            self._tenants,
            self.apply,
            operator_key,
            clock,
            None if store is None else Noting(store, self._tell_self),
        )
        self._fuser = FuserDesk(
            state, outbox, self._clients, self._specs, self.roster, self._cache, clock
        )
        self._interpreter = Interpreter(
            outbox,
            objects,
            self._clients,
            self.roster.endpoints,
            self._specs,
            self._wake,
            self._cache.keep,
            self._cache.drop,
            self._values_lost,
        )
        self._takers: dict[type, Callable[[Any], None]] = {
            Hello: self._hello,
            Submit: self._submit,
            Reveal: self._reveal,
            Abandon: self._abandon,
            Close: self._close_agent,
            Cancel: self._cancel,
            Ping: self._ping,
            Goodbye: lambda m: self._client_gone(m.client),
            StatusRequest: self._status_request,
            ExplainRequest: self._explain_request,
            PurgeRequest: self._cache.purge,
            PurgeNoted: self._cache.noted,
            KeptDropped: self._cache.dropped,
            HostReady: self._host_ready,
            HostFailed: self._host_failed,
            HostLost: self._host_lost,
            Heartbeat: self._heartbeat,
            FuserReady: self._fuser.ready,
            FuserLost: self._fuser.lost,
            Stop: self._stop,
            events.SpecRegistered: self._register,
            events.CollectionChanged: self._collection_changed,
            events.ItemFinished: self._item_finished,
        }
        for declared in pools:
            self.apply(declared)
        self.latest_status = self.status()
        """As of the last housekeeping; safe to read from any thread."""

    # --- the loop -------------------------------------------------------------------
    def run(self) -> None:
        """Serve until told to stop."""
        takers, apply = self._takers, self.apply
        while not self._stopping:
            for message in self._inbox.receive(self._patience_s()):
                taker = takers.get(type(message))
                if taker is None:
                    apply(message)  # pyright: ignore[reportArgumentType]
                else:
                    taker(message)
            now = self._clock()
            if now >= self._next_housekeeping_s:
                self._next_housekeeping_s = now + _HOUSEKEEPING_S
                self._housekeeping(now)
            self._fuser.tell_lengths()
            for peer in self._outbox.flush():
                self._refused(peer)
        self._close()

    def _wake(self, at_s: float) -> None:
        self._wake_s = at_s

    def _patience_s(self) -> float:
        """How long the inbox may be waited for: until the kernel wants to be woken."""
        left_s = self._wake_s - (self._clock() - self._start_s)
        if left_s <= 0:
            self._wake_s = math.inf
            self.apply(events.TimePassed())
            self._outbox.flush()
            return 0.0
        return min(left_s, _HOUSEKEEPING_S)

    def apply(self, event: events.Event) -> None:
        """Let the kernel handle one event and carry out what it commands."""
        now = self._clock() - self._start_s
        if self._journal is not None:
            self._journal.append(now, event)
        commands = handle(self._state, event, now)
        if commands:
            self._interpreter.carry_out(commands)

    def _values_lost(self, places: tuple[str, ...]) -> None:
        self._tell_self(events.ValuesLost(places))

    def _tell_self(self, message: events.ValuesLost | PurgeNoted) -> None:
        """From any thread: it is taken in its turn."""
        self._outbox.send(self._inbox.endpoint, message)

    def _housekeeping(self, now: float) -> None:
        for instance in self.roster.silent(now, SILENCE_LIMIT_S):
            self._instance_down(instance, f"silent for {SILENCE_LIMIT_S:.0f} s")
        if self._fuser.is_silent(now, SILENCE_LIMIT_S):
            self._fuser.lost(FuserLost("silent"))
        for client in [c for c, t in self._heard.items() if now - t > SILENCE_LIMIT_S]:
            self._client_gone(client)
        self._cache.look_after()
        self.latest_status = self.status()
        if self._journal is not None:
            self._journal.flush()

    def _close(self) -> None:
        for endpoint in self._clients.values():
            self._outbox.post(endpoint, Gone("the runtime was stopped"))
        for endpoint in self.roster.endpoints.values():
            self._outbox.post(endpoint, Stop())
        self._fuser.tell(Stop())
        self._interpreter.close()
        self._cache.close()
        self._outbox.close()
        self._inbox.close()
        if self._journal is not None:
            self._journal.close()

    def _stop(self, _: Stop) -> None:
        self._stopping = True

    def _refused(self, peer: Endpoint) -> None:
        """A peer's queue is full: it has stopped reading and counts as gone."""
        for client, endpoint in list(self._clients.items()):
            if endpoint == peer:
                log.warning("client %s does not read; dropping it", client)
                self._client_gone(client)
        for instance, endpoint in list(self.roster.endpoints.items()):
            if endpoint == peer:
                self._instance_down(instance, "does not read its messages")

    # --- clients --------------------------------------------------------------------
    def _hello(self, message: Hello) -> None:
        self._clients[message.client] = message.endpoint
        self._tenants[message.client] = message.tenant
        self._heard[message.client] = self._clock()
        self._outbox.post(message.endpoint, Welcome(self._fuser.endpoint))

    def _ping(self, message: Ping) -> None:
        endpoint = self._clients.get(message.client)
        if endpoint is not None:
            self._heard[message.client] = self._clock()
            self._outbox.post(endpoint, Pong())

    def _client_gone(self, client: str) -> None:
        self._heard.pop(client, None)
        self._tenants.pop(client, None)
        endpoint = self._clients.pop(client, None)
        # Also without an endpoint: a run on its way through the fuser may have arrived
        # between the goodbye that came directly and the one that came behind it.
        self.apply(events.ClientGone(client))
        if endpoint is not None:
            self._interpreter.forget_client(client)
            self._fuser.tell(ForgetClient(client))
            self._outbox.forget(endpoint)
            self._inbox.remove_neighbour(endpoint)

    def _register(self, event: events.SpecRegistered) -> None:
        spec = event.spec
        if spec.id in self._specs or validate_spec(spec):
            return
        self.apply(event)
        if spec.id in self._state.plans:
            self._specs[spec.id] = spec  # Until the kernel forgets it.

    def _cancel(self, message: Cancel) -> None:
        if self._may(message):
            self.apply(events.RunCancelled(message.run_id))

    def _may(self, message: Cancel | Reveal | Abandon | Close) -> bool:
        """A stranger's run is not theirs to touch; its agent's frontend is none."""
        run = self._state.runs.get(message.run_id)
        if run is None or run.client == message.client:
            return True
        return run.agent is not None and run.agent.executor == message.client

    def _abandon(self, message: Abandon) -> None:
        if self._may(message):
            self.apply(events.FragmentCancelled(message.run_id, message.fragment))

    def _close_agent(self, message: Close) -> None:
        if self._may(message):
            self.apply(events.RunClosed(message.run_id, message.error))

    def _reveal(self, message: Reveal) -> None:
        """A piece of an agent's run that came past the fuser; see `_submit`."""
        if not self._may(message):
            return
        spec = self._specs.get(message.spec_id)
        data = message.inputs
        self.apply(
            events.NodesRevealed(
                run_id=message.run_id,
                fragment=message.fragment,
                spec_id=message.spec_id,
                inputs=Value(self._hashing.digest(data), len(data), inline=data),
                facts={} if spec is None else facts_of(spec, codec.decode(data)),
                parents=message.parents,
                stream=message.stream,
            )
        )

    def _submit(self, message: Submit) -> None:
        """A run that came past the fuser: checked here, unsigned, so that it fuses with
        nothing; only while the fuser is away."""
        if message.client not in self._clients:
            return  # It said goodbye; nobody waits for this run.
        spec = self._specs.get(message.spec_id)
        facts: dict[str, Any] = {}
        try:
            labels = checked_labels(message.labels)
            if spec is not None:
                inputs = check_inputs(spec, codec.decode(message.inputs))
                facts = facts_of(spec, inputs)
        except (InputError, codec.CodecError) as e:
            self._refuse(message, e.info())
            return
        data = message.inputs
        self.apply(
            events.RunSubmitted(
                run_id=message.run_id,
                spec_id=message.spec_id,
                client=message.client,
                tenant=self._tenants[message.client],
                inputs=Value(self._hashing.digest(data), len(data), inline=data),
                stream=message.stream,
                priority=message.priority,
                deadline_s=message.deadline_s,
                facts=facts,
                agent=message.agent,
                frontend=message.frontend,
                labels=labels,
            )
        )

    def _refuse(self, message: Submit, error: Any) -> None:
        endpoint = self._clients.get(message.client)
        if endpoint is not None:
            self._outbox.post(endpoint, RefuseRun(message.run_id, message.client, error))

    # --- hosts ----------------------------------------------------------------------
    def _host_ready(self, message: HostReady) -> None:
        former = self.roster.instance_at(message.pool, message.index)
        if former is not None:
            if self.roster.endpoints[former] == message.endpoint:
                return  # Said again before its name reached it.
            self._instance_down(former, "restarted")
        instance = self.roster.admit(message, self._clock())
        self._outbox.post(message.endpoint, Named(instance))
        slots = self.roster.slots[message.pool]
        self.apply(events.InstanceUp(instance, message.pool, slots))
        self._fuser.tell_catalogue()

    def _host_failed(self, message: HostFailed) -> None:
        instance = self.roster.instance_at(message.pool, message.index)
        if instance is not None:
            self._instance_down(instance, message.error.message)
        self.roster.fail(message.pool, message.index, message.error)
        if self.roster.hopeless(message.pool):
            self.apply(events.PoolFailed(message.pool, message.error))

    def _host_lost(self, message: HostLost) -> None:
        instance = self.roster.instance_at(message.pool, message.index)
        if instance is not None and (
            message.gone or self.roster.is_of(instance, message.pid)
        ):
            self._instance_down(instance, message.reason)
        if message.gone:
            error = self.roster.lose(message.pool, message.index, message.reason)
            if self.roster.hopeless(message.pool):
                self.apply(events.PoolFailed(message.pool, error))

    def _instance_down(self, instance: str, reason: str) -> None:
        endpoint = self.roster.dismiss(instance)
        if endpoint is None:
            return
        log.warning("instance %s is down: %s", instance, reason)
        self._interpreter.forget_host(instance)
        self._outbox.forget(endpoint)
        self.apply(events.InstanceDown(instance, reason))

    def _heartbeat(self, message: Heartbeat) -> None:
        if self.roster.heard(message, self._clock()):
            return
        # Silent for too long, or its predecessor's end was told late: it comes back as a
        # fresh instance, since its work has moved.
        endpoint = self.roster.returned(message.instance)
        if endpoint is not None:
            log.warning("instance %s is back", message.instance)
            self._outbox.post(endpoint, Announce())

    def _item_finished(self, event: events.ItemFinished) -> None:
        """An outcome on its way to the kernel, of which the fuser is to hear: it predicts
        by output lengths, where keys depend on that, and tells revisions."""
        if event.output_tokens:
            self._fuser.note_length(event)
        self.apply(event)
        for collection in event.revisions:
            self._fuser.tell_revision(collection)

    def _collection_changed(self, event: events.CollectionChanged) -> None:
        self.apply(event)
        self._fuser.tell_revision(event.collection)

    # --- status ---------------------------------------------------------------------
    def _status_request(self, message: StatusRequest) -> None:
        endpoint = self._clients.get(message.client)
        if endpoint is not None:
            cache = self._cache.report(message.client, message.key)
            store = self._fuser.store
            cache["store"] = None if store is None else to_builtins(store)
            status = {**self.status(), "cache": cache}
            self._outbox.post(endpoint, StatusReply(message.question, status))

    def _explain_request(self, message: ExplainRequest) -> None:
        """It came past the fuser, who alone could tell."""
        endpoint = self._clients.get(message.client)
        if endpoint is not None:
            away = ErrorInfo(
                "runtime_state",
                "the fuser, which knows how runs were signed, is away",
                "Ask again in a few seconds; runs that come meanwhile are not signed.",
                retryable=True,
            )
            self._outbox.post(endpoint, ExplainReply(message.question, error=away))

    def status(self) -> dict[str, Any]:
        """Pools, counters and links as plain data."""
        return {
            "uptime_s": round(self._clock() - self._start_s, 3),
            "pools": self.roster.status(),
            "counters": counters(self._state),
            "clients": len(self._clients),
            "held_values": len(self._objects),
            "fuser": "up" if self._fuser.endpoint is not None else "away",
        }
