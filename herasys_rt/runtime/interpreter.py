"""From the kernel's commands to messages: the only place that carries commands out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from herasys_rt.core.commands import (
    AbortItem,
    AcceptRun,
    AddSubscriber,
    Command,
    DropKept,
    FinishFragment,
    FinishRun,
    ForgetSpec,
    KeepResult,
    RefuseRun,
    ReleaseValue,
    StartBatch,
    WakeAt,
)
from herasys_rt.core.values import Value
from herasys_rt.errors import EnvironmentFaultError, ValueLostError
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.links import Endpoint, Outbox
from herasys_rt.messages import ForgetClient, KnowClient, KnowSpec
from herasys_rt.runtime.objects import ObjectHold


class Interpreter:
    """Sends each command where it belongs, and first whatever the receiver must know.

    ``clients`` and ``hosts`` map names to endpoints and are the scheduler's own tables;
    ``specs`` holds every spec that the kernel knows; what it forgets is removed here.
    ``keep`` and ``drop`` pass on what the store of results is to hear; ``lost`` hears, from
    another thread, of places whose values could not be delivered because they are lost.
    Commands to somebody who is gone are dropped: the event that told so has already reached
    the kernel or is about to.
    """

    def __init__(
        self,
        outbox: Outbox,
        objects: ObjectHold,
        clients: dict[str, Endpoint],
        hosts: dict[str, Endpoint],
        specs: dict[str, WorkflowSpec],
        wake_at: Callable[[float], None] = lambda _: None,
        keep: Callable[[KeepResult], None] = lambda _: None,
        drop: Callable[[DropKept], None] = lambda _: None,
        lost: Callable[[tuple[str, ...]], None] = lambda _: None,
    ) -> None:
        self._outbox = outbox
        self._objects = objects
        self._clients = clients
        self._hosts = hosts
        self._specs = specs
        self._wake_at = wake_at
        self._lost = lost
        self._known: dict[str, set[str]] = {}
        self._fetchers = ThreadPoolExecutor(4, thread_name_prefix="fetch")
        self._carry: dict[type, Callable[[Any], None]] = {
            StartBatch: self._start_batch,
            AbortItem: self._to_host,
            AddSubscriber: self._add_subscriber,
            AcceptRun: self._to_client,
            RefuseRun: self._to_client,
            FinishRun: self._finish,
            FinishFragment: self._finish,
            WakeAt: self._wake,
            ReleaseValue: self._release,
            ForgetSpec: self._forget_spec,
            KeepResult: keep,
            DropKept: drop,
        }

    def carry_out(self, commands: list[Command]) -> None:
        """Carry commands out in order; messages leave with the next flush."""
        for command in commands:
            self._carry[type(command)](command)

    def forget_host(self, instance: str) -> None:
        """A host is gone: what it knew is void."""
        self._known.pop(instance, None)

    def forget_client(self, client: str) -> None:
        """A client is gone: hosts that streamed to it close their sockets."""
        for instance, known in self._known.items():
            host = self._hosts.get(instance)
            if client in known and host is not None:
                known.discard(client)
                self._outbox.post(host, ForgetClient(client))

    def close(self) -> None:
        """Stop the helper threads."""
        self._fetchers.shutdown(wait=False, cancel_futures=True)

    def _start_batch(self, command: StartBatch) -> None:
        host = self._hosts.get(command.instance)
        if host is None:
            return
        known = self._known.setdefault(command.instance, set())
        for item in command.items:
            if item.spec_id not in known:
                known.add(item.spec_id)
                self._outbox.post(host, KnowSpec(self._specs[item.spec_id]))
            for subscriber in item.subscribers:
                self._introduce(host, known, subscriber.client)
        self._outbox.post(host, command)

    def _add_subscriber(self, command: AddSubscriber) -> None:
        host = self._hosts.get(command.instance)
        if host is not None:
            known = self._known.setdefault(command.instance, set())
            self._introduce(host, known, command.subscriber.client)
            self._outbox.post(host, command)

    def _introduce(self, host: Endpoint, known: set[str], client: str) -> None:
        endpoint = self._clients.get(client)
        if endpoint is not None and client not in known:
            known.add(client)
            self._outbox.post(host, KnowClient(client, endpoint))

    def _to_host(self, command: AbortItem) -> None:
        host = self._hosts.get(command.instance)
        if host is not None:
            self._outbox.post(host, command)

    def _to_client(self, command: AcceptRun | RefuseRun) -> None:
        client = self._clients.get(command.client)
        if client is not None:
            self._outbox.post(client, command)

    def _finish(self, command: FinishRun | FinishFragment) -> None:
        client = self._clients.get(command.client)
        if client is None:
            return
        values = [value for _, value in command.outputs]
        values.extend(value for _, parts in command.gathered for value in parts)
        placed = [value.place for value in values if value.place]
        if not placed:
            self._outbox.post(client, command)
            return
        # Taken now, while the kernel's ReleaseValue has not come: a client without Ray
        # gets large outputs inline, fetched beside the loop.
        handles = {place: self._objects.handle(place) for place in placed}
        self._fetchers.submit(self._deliver_large, client, command, handles)

    def _deliver_large(
        self,
        client: Endpoint,
        command: FinishRun | FinishFragment,
        handles: dict[str, Any],
    ) -> None:
        try:
            outputs = tuple(
                (node, self._inlined(value, handles)) for node, value in command.outputs
            )
            gathered = tuple(
                (node, tuple(self._inlined(value, handles) for value in parts))
                for node, parts in command.gathered
            )
            ended = msgspec.structs.replace(command, outputs=outputs, gathered=gathered)
        except EnvironmentFaultError as e:  # Nobody reads this thread's future.
            if isinstance(e, ValueLostError):
                self._lost(tuple([p for p in handles if self._is_lost(p, handles[p])]))
            ended = msgspec.structs.replace(
                command, status="failed", outputs=(), gathered=(), error=e.info()
            )
        self._outbox.send(client, ended)

    def _inlined(self, value: Value, handles: dict[str, Any]) -> Value:
        if not value.place:
            return value
        data = self._objects.read(value.place, handles[value.place])
        return Value(value.digest, value.size, inline=data)

    def _is_lost(self, place: str, handle: Any) -> bool:
        try:
            self._objects.read(place, handle)
        except ValueLostError:
            return True
        except EnvironmentFaultError:
            return False
        return False

    def _wake(self, command: WakeAt) -> None:
        self._wake_at(command.at_s)

    def _release(self, command: ReleaseValue) -> None:
        self._objects.release(command.place)

    def _forget_spec(self, command: ForgetSpec) -> None:
        self._specs.pop(command.spec_id, None)
        for instance, known in self._known.items():
            host = self._hosts.get(instance)
            if command.spec_id in known and host is not None:
                known.discard(command.spec_id)
                self._outbox.post(host, command)
