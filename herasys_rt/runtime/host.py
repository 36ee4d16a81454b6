"""The engine host's loop: work in, outcomes and text out. One per engine instance.

The link thread resolves arguments and submits to the engine; the engine reports from
whatever thread it likes. Whatever is reported while the link thread is draining its
inbox leaves with its next flush; reports from other threads leave at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec.structs import replace

from herasys_rt.core.commands import (
    AbortItem,
    AddSubscriber,
    ForgetSpec,
    StartBatch,
    Subscriber,
    WorkItem,
)
from herasys_rt.core.events import (
    CollectionChanged,
    ItemAborted,
    ItemFailed,
    ItemFinished,
    ItemStarted,
    ValuesLost,
)
from herasys_rt.core.values import INLINE_LIMIT_BYTES, Value
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.errors import ErrorInfo, HerasysError, NodeError, ValueLostError
from herasys_rt.graph import codec
from herasys_rt.graph.reductions import REDUCTIONS, sources_of
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.links import Endpoint, Inbox, Outbox
from herasys_rt.messages import (
    Announce,
    ForgetClient,
    Heartbeat,
    HostReady,
    KnowClient,
    KnowSpec,
    Named,
    Piece,
    Stop,
    ToHost,
)
from herasys_rt.runtime.assembly import Assembly
from herasys_rt.runtime.lowering import arguments_of, lost_of, values_in
from herasys_rt.runtime.objects import ValueStore
from herasys_rt.runtime.outputs import meta_of, tokens_of, with_facts

log = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0


class _Work:
    """An item on the engine: its workflow, who listens and what they were sent.
    ``assembly`` is set while items of its output come from elsewhere, ``reduced`` when
    the output is made of what the engine gives, out of the node's arguments."""

    __slots__ = (
        "assembly",
        "attempt",
        "flight",
        "itemise",
        "itemise_texts",
        "reduced",
        "sent",
        "spec",
        "subscribers",
        "text",
    )

    def __init__(self, item: WorkItem, spec: WorkflowSpec | None) -> None:
        self.flight = item.flight
        self.attempt = item.attempt
        self.spec = spec
        self.subscribers = list(item.subscribers)
        self.itemise = item.itemise
        self.itemise_texts = item.itemise_texts
        self.assembly: Assembly | None = None
        self.reduced: Callable[[Any], list[Any]] | None = None
        self.text: list[str] = []
        self.sent = 0


class HostLoop:
    """Runs an engine for the scheduler; is the engine's `Sink`. `run` blocks.

    ``on_broken`` is told when the engine as a whole is dead; it ends the process, so
    that work moves and a fresh one starts.
    """

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox[ToHost],
        outbox: Outbox,
        scheduler: Endpoint,
        values: ValueStore,
        on_broken: Callable[[ErrorInfo], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._on_broken = on_broken
        self._inbox = inbox
        self._outbox = outbox
        self._scheduler = scheduler
        self._values = values
        self._clock = clock
        self._instance = ""
        self._ready: HostReady | None = None
        self._specs: dict[str, WorkflowSpec] = {}
        self._clients: dict[str, Endpoint] = {}
        self._work: dict[str, _Work] = {}
        self._aborted: set[str] = set()
        self._lock = threading.Lock()
        self._link_thread: int | None = None
        self._carriers = ThreadPoolExecutor(2, thread_name_prefix="values")
        self._stopping = False
        self._takers: dict[type, Callable[[Any], None]] = {
            Named: self._named,
            KnowSpec: self._know_spec,
            ForgetSpec: self._forget_spec,
            KnowClient: self._know_client,
            ForgetClient: self._forget_client,
            Announce: self._announce_again,
            StartBatch: self._start_batch,
            AbortItem: self._abort,
            AddSubscriber: self._add_subscriber,
            Stop: self._stop,
        }

    def run(self, pool: str, index: int) -> None:
        """Announce the loaded engine and serve until told to stop; closes the engine."""
        self._link_thread = threading.get_ident()
        facts = {**self._engine.describe(), "pid": os.getpid()}
        self._ready = HostReady(pool, index, self._inbox.endpoint, facts)
        self._outbox.send(self._scheduler, self._ready)
        next_beat_s = self._clock() + _HEARTBEAT_S
        while not self._stopping:
            for message in self._inbox.receive(_HEARTBEAT_S):
                self._takers[type(message)](message)
            if self._clock() >= next_beat_s:
                next_beat_s = self._clock() + _HEARTBEAT_S
                self._beat()
            self._outbox.flush()
        self._engine.close()
        self._carriers.shutdown(wait=False, cancel_futures=True)
        self._outbox.close()
        self._inbox.close()

    def _beat(self) -> None:
        seen = self._engine.snapshot()
        if seen.fault is not None:
            self._on_broken(seen.fault)
            return
        if self._instance:
            beat = Heartbeat(self._instance, seen.running, seen.waiting, seen.kv_usage)
            self._report(beat)
        elif self._ready is not None:
            self._report(self._ready)

    def _report(self, message: Any) -> None:
        """To the scheduler: with the next flush on the link thread, else at once."""
        self._outbox.post(self._scheduler, message)
        if threading.get_ident() != self._link_thread:
            self._outbox.flush()

    # --- from the scheduler ---------------------------------------------------------
    def _named(self, message: Named) -> None:
        self._instance = message.instance

    def _know_spec(self, message: KnowSpec) -> None:
        self._specs[message.spec.id] = message.spec

    def _forget_spec(self, command: ForgetSpec) -> None:
        self._specs.pop(command.spec_id, None)

    def _know_client(self, message: KnowClient) -> None:
        self._clients[message.client] = message.endpoint

    def _forget_client(self, message: ForgetClient) -> None:
        with self._lock:  # Pieces are posted under it: none opens the socket again.
            endpoint = self._clients.pop(message.client, None)
            if endpoint is not None:
                self._outbox.forget(endpoint)

    def _announce_again(self, _: Announce) -> None:
        if not self._instance:
            return  # Two of its heartbeats crossed the first request.
        self._instance = ""
        self._specs.clear()  # Under its next name everything is told again.
        with self._lock:
            keys = list(self._work)
            for key in keys:
                self._work[key].subscribers.clear()
            self._aborted.update(keys)
        for key in keys:
            self._engine.abort(key)
        self._report(self._ready)

    def _stop(self, _: Stop) -> None:
        self._stopping = True

    def _start_batch(self, command: StartBatch) -> None:
        if command.instance != self._instance:
            return  # For the instance this host was before it was given up.
        with self._lock:
            for item in command.items:
                work = _Work(item, self._specs.get(item.spec_id))
                self._work[_key(item.flight, item.attempt)] = work
        if any(_is_placed(item) for item in command.items):
            self._carriers.submit(self._submit_beside, command.items)
        else:
            self._submit(command.items)

    def _submit_beside(self, items: tuple[WorkItem, ...]) -> None:
        """`_submit` on a helper thread, where an exception would go unnoticed."""
        try:
            self._submit(items)
        except Exception as e:
            log.exception("an engine did not take its items")
            self._on_broken(_broken(e))

    def _submit(self, items: tuple[WorkItem, ...]) -> None:
        ready: list[Item] = []
        for item in items:
            key = _key(item.flight, item.attempt)
            try:
                lowered = self._lowered(item, key)
                if lowered is None:
                    self.finished(key, Outcome())
                else:
                    ready.append(lowered)
            except HerasysError as e:
                if isinstance(e, ValueLostError):
                    self._report(ValuesLost(lost_of(item, self._values)))
                self.finished(key, Outcome(error=e.info()))
            except Exception as e:  # The item must end; a helper thread would hide it.
                log.exception("item %s could not be lowered", key)
                self.finished(key, Outcome(error=_broken(e)))
        with self._lock:
            aborted = self._aborted & {item.key for item in ready}
            self._aborted -= aborted
        if aborted:
            ready = [item for item in ready if item.key not in aborted]
            for key in aborted:
                self.finished(key, Outcome(aborted=True))
        if not ready:
            return
        try:
            self._engine.submit(ready)
        except HerasysError as e:
            for item in ready:
                self.finished(item.key, Outcome(error=e.info()))
        # An abort that came between the look above and the submit met an engine that
        # did not know the item yet.
        with self._lock:
            late = self._aborted & {item.key for item in ready}
        for key in late:
            self._engine.abort(key)

    def _lowered(self, item: WorkItem, key: str) -> Item | None:
        """What the engine gets; None when its whole output lies elsewhere."""
        work = self._work[key]
        spec = work.spec
        assert spec is not None, "the scheduler introduces a workflow before its items"
        node = spec.nodes[item.node]
        args = arguments_of(item, spec, self._values)
        if node.reduction is not None:
            work.reduced = partial(REDUCTIONS[node.reduction.function], args)
            args = {k: v for k, v in args.items() if k not in node.reduction.params}
        if item.shared is not None and node.list_port is not None:
            work.assembly = Assembly(item.shared, self._values)
            if work.assembly.lost:
                self._report(ValuesLost(tuple(work.assembly.lost)))
            args = work.assembly.lacking(args, node.list_port)
            if not work.assembly.missing:
                return None
        return Item(
            key=key,
            verb=node.verb,
            args=args,
            stream=bool(item.subscribers) or node.streams,
            trust_scope=spec.trust_scope(item.tenant),
        )

    def _abort(self, command: AbortItem) -> None:
        key = _key(command.flight, command.attempt)
        with self._lock:
            work = self._work.get(key)
            if work is None:
                return  # Its outcome is on the way and settles the abort.
            work.subscribers.clear()
            self._aborted.add(key)
        self._engine.abort(key)

    def _add_subscriber(self, command: AddSubscriber) -> None:
        with self._lock:
            work = self._work.get(_key(command.flight, command.attempt))
            if work is None:
                return  # It has just finished; the result carries the whole text.
            work.subscribers.append(command.subscriber)
            text = "".join(work.text)
            if text:
                self._send_piece(command.subscriber, 0, text)

    # --- from the engine (any thread) -----------------------------------------------
    def started(self, key: str) -> None:
        """See `Sink.started`."""
        work = self._work.get(key)
        if work is not None:
            self._report(ItemStarted(work.flight, work.attempt, self._instance))

    def piece(self, key: str, text: str, tokens: int) -> None:
        """See `Sink.piece`."""
        with self._lock:
            work = self._work.get(key)
            if work is None or not text:
                return
            work.text.append(text)
            offset, work.sent = work.sent, work.sent + len(text)
            for subscriber in work.subscribers:
                self._send_piece(subscriber, offset, text)
        if threading.get_ident() != self._link_thread:
            self._outbox.flush()

    def _send_piece(self, to: Subscriber, offset: int, text: str) -> None:
        endpoint = self._clients.get(to.client)
        if endpoint is not None:
            piece = Piece(to.run_id, to.node, offset, text, to.fragment)
            self._outbox.post(endpoint, piece)

    def finished(self, key: str, outcome: Outcome) -> None:
        """See `Sink.finished`."""
        with self._lock:
            work = self._work.pop(key, None)
            self._aborted.discard(key)
        if work is None:
            log.warning("the engine finished %s twice or never had it", key)
            return
        if outcome.aborted:
            self._report(ItemAborted(work.flight, work.attempt, self._instance))
        elif outcome.error is not None:
            self._fail(work, outcome.error, outcome.run_s)
        else:
            self._succeed(work, outcome)

    def _fail(self, work: _Work, error: ErrorInfo, run_s: float) -> None:
        fault = self._engine.snapshot().fault
        if fault is not None:
            # Unsaid, the loss of the instance moves the item without costing it a try.
            self._on_broken(fault)
            return
        self._report(ItemFailed(work.flight, work.attempt, self._instance, error, run_s))

    def _succeed(self, work: _Work, outcome: Outcome) -> None:
        assembly, shared, parts = work.assembly, 0, None
        try:
            if assembly is not None:
                outcome = replace(outcome, value=assembly.whole(outcome.value))
                shared = assembly.shared
            if work.reduced is not None:
                parts = codec.encode(outcome.value) if assembly is not None else None
                records = work.reduced(outcome.value)
                outcome = replace(outcome, value=records, sources=sources_of(records))
            data = codec.encode(outcome.value)
            meta = meta_of(outcome, shared)
        except (codec.CodecError, NodeError) as e:
            self._fail(work, e.info(), outcome.run_s)
            return
        if max(len(data), len(parts or b"")) > INLINE_LIMIT_BYTES:
            self._carriers.submit(self._succeed_large, work, outcome, data, meta, parts)
        else:
            value = self._inline(data)
            lent = None if parts is None else self._inline(parts)
            self._report(self._success(work, outcome, value, meta, lent))

    def _inline(self, data: bytes) -> Value:
        return Value(self._values.hashing.digest(data), len(data), inline=data)

    def _succeed_large(
        self, work: _Work, outcome: Outcome, data: bytes, meta: bytes, parts: bytes | None
    ) -> None:
        try:
            value = self._values.pack(data)
        except Exception as e:  # The item must end, whatever the store says.
            self._fail(
                work,
                ErrorInfo(
                    "value_store",
                    f"a result of {len(data)} bytes could not be stored: {e}",
                    "Give Ray's object store more memory (ray.object_store_mb).",
                    retryable=True,
                ),
                outcome.run_s,
            )
            return
        self._report(self._success(work, outcome, value, meta, self._lent(parts)))

    def _lent(self, parts: bytes | None) -> Value | None:
        """What an output was made of, stored; None when it cannot be, which the output
        does not need."""
        try:
            return None if parts is None else self._values.pack(parts)
        except Exception:  # The output, which may lie in the store, must reach its owner.
            log.warning("the parts of an output are not lent", exc_info=True)
            return None

    def _success(
        self, work: _Work, outcome: Outcome, value: Value, meta: bytes, parts: Value | None
    ) -> ItemFinished:
        return ItemFinished(
            flight=work.flight,
            attempt=work.attempt,
            instance=self._instance,
            value=with_facts(
                value,
                outcome.value,
                self._values.hashing,
                itemise=work.itemise,
                itemise_texts=work.itemise_texts,
            ),
            run_s=outcome.run_s,
            meta=meta,
            revisions=outcome.revisions,
            truncated=outcome.partial,
            output_tokens=outcome.usage.get("completion_tokens", 0),
            tokens=tokens_of(outcome),
            parts=parts,
        )

    def collection_changed(self, collection: str, revision: int) -> None:
        """See `Sink.collection_changed`."""
        self._report(CollectionChanged(collection, revision))


def _key(flight: int, attempt: int) -> str:
    return f"{flight}.{attempt}"


def _broken(error: Exception) -> ErrorInfo:
    return ErrorInfo(
        "internal",
        f"an item could not be given to the engine: {type(error).__name__}: {error}",
        "This should not have happened; please report it with the workflow.",
    )


def _is_placed(item: WorkItem) -> bool:
    return any(value.place for value in values_in(item))
