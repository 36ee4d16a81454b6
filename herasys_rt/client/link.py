"""A client's link to its runtime: one subscription for all deliveries, one thread."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from herasys_rt.client.inbox import inbox_for
from herasys_rt.client.questions import Questions
from herasys_rt.client.run import Run
from herasys_rt.client.unanswered import Unanswered
from herasys_rt.core.commands import AcceptRun, FinishFragment, FinishRun, RefuseRun
from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    InputError,
    RuntimeStateError,
    error_from_info,
)
from herasys_rt.graph import codec
from herasys_rt.graph.explain import Explanation
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.ids import new_id
from herasys_rt.links import Endpoint, Inbox, Outbox
from herasys_rt.messages import (
    AgentEnded,
    CallStreamed,
    CallStreams,
    ExplainReply,
    ExplainRequest,
    FromAgent,
    Gone,
    Goodbye,
    Hello,
    Piece,
    Ping,
    Pong,
    PurgeReply,
    PurgeRequest,
    Reveal,
    Route,
    StatusReply,
    StatusRequest,
    Submit,
    ToClient,
    Welcome,
)

log = logging.getLogger(__name__)

_WELCOME_S = 15.0
_ROUND_S = 0.5
_PING_EVERY_S = 2.0
_SILENCE_LIMIT_S = 20.0
_RECONNECT_S = 0.5
"""How long a lost connection may take to come back. It never does when the scheduler's
process has ended; that is noticed by the connection, a machine's end by the silence."""


class Link:
    """Sends runs through the current door and hands deliveries to their `Run`s.

    The door is the fuser, or the scheduler while the fuser is away; when it changes,
    what was not accepted yet is sent again (a run id is taken once, whoever brings it).
    ``name`` identifies this end of it; empty: a fresh one.
    """

    def __init__(self, scheduler: Endpoint, tenant: str, name: str = "") -> None:
        self._id = name or new_id("client")
        self._scheduler = scheduler
        self._outbox = Outbox()
        self._inbox: Inbox[ToClient] = inbox_for(scheduler, "client", ToClient)
        self._watch = self._outbox.watch(scheduler)
        self._hello = Hello(self._id, self._inbox.endpoint, tenant)
        self._lock = threading.RLock()
        self._unanswered = Unanswered(self._outbox, self._hello, scheduler)
        self._runs: dict[str, Run] = {}
        self._welcomed = threading.Event()
        self._statuses = Questions[StatusReply]()
        self._explanations = Questions[ExplainReply]()
        self._purges = Questions[PurgeReply]()
        self._closed = False
        self._gone: ErrorInfo | None = None
        self._heard_s = time.monotonic()
        self._lost_s: float | None = None
        self._thread = threading.Thread(target=self._serve, name="link", daemon=True)

    def open(self) -> None:
        """Introduce this client. Errors: `RuntimeStateError` when nobody answers; the
        link is closed then."""
        try:
            self._outbox.send(self._scheduler, self._hello)
            # A way to wake the thread later: once this client has said goodbye, its
            # socket file may be removed before a new connection is made.
            self._outbox.send(self._inbox.endpoint, Pong())
            self._thread.start()
            if not self._welcomed.wait(_WELCOME_S):
                raise RuntimeStateError(
                    f"the runtime did not answer within {_WELCOME_S:.0f} s",
                    hint="`herasys status` shows how it is; `herasys down` clears it up.",
                )
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self) -> Endpoint:
        """Where this end listens."""
        return self._inbox.endpoint

    # --- sending (any thread) -------------------------------------------------------
    def submit(self, run: Run, spec: WorkflowSpec, message: Submit) -> Run:
        """Send a run; gives the run of that id that is at work already, if there is one.
        Errors: `RuntimeStateError` when the runtime is gone."""
        with self._lock:
            self._check_open()
            known = self._runs.setdefault(run.id, run)
            if known is not run:
                return known
            self._unanswered.submit(spec, message)
        self._flush()
        return run

    def make_submit(
        self, run_id: str, spec: WorkflowSpec, inputs: bytes, **options: Any
    ) -> Submit:
        """The message that submits a run of this client; ``options`` are its fields."""
        return Submit(run_id, spec.id, self._id, inputs, agent=spec.agent, **options)

    def reveal(
        self,
        run: Run,
        fragment: int,
        spec: WorkflowSpec,
        inputs: bytes,
        parents: list[tuple[int, str]],
        *,
        stream: bool = False,
    ) -> None:
        """Send a piece of an agent's graph; the run's ``on_fragment`` gets the answer."""
        message = Reveal(
            run.id, fragment, spec.id, self._id, inputs, tuple(parents), stream
        )
        with self._lock:
            if run.id not in self._runs or self._closed:
                return  # The run has ended, and its coroutine is being told.
            self._unanswered.reveal(spec, message)
        self._flush()

    def abandon(self, run: Run, fragment: int) -> None:
        """An agent does not want a piece any more."""
        with self._lock:
            if run.id in self._runs and not self._closed:
                self._unanswered.abandon(run.id, fragment)
        self._flush()

    def close_run(self, run: Run, error: ErrorInfo | None) -> None:
        """An agent's coroutine has ended."""
        with self._lock:
            if run.id in self._runs and not self._closed:
                self._unanswered.close(run.id, error)
        self._flush()

    def adopt(self, run: Run) -> None:
        """Take part in an agent's run that another link submitted, until `release`.
        Errors: `RuntimeStateError` when the runtime is gone."""
        with self._lock:
            self._check_open()
            self._runs[run.id] = run

    def release(self, run_id: str) -> Run | None:
        """Let go of an adopted run; None when it was let go before."""
        return self._forget(run_id)

    def dismiss(self, frontend: str, orders: Endpoint | None) -> None:
        """A frontend of this client, which took orders at ``orders``, is gone: the
        runtime need not wait for it."""
        if orders is not None:
            self._inbox.remove_neighbour(orders)
        with self._lock:
            if not self._closed:
                self._unanswered.post(Goodbye(frontend))
        self._flush()

    def cancel(self, run: Run) -> None:
        """Ask for a run to stop."""
        with self._lock:
            if run.id in self._runs and not self._closed:
                self._unanswered.cancel(run.id)
        self._flush()

    def status(self, timeout_s: float = 10.0, *, key: str = "") -> dict[str, Any]:
        """The scheduler's status; with the operator's ``key`` of every tenant. Errors:
        `RuntimeStateError`."""
        self._check_open()
        reply = self._statuses.ask(
            lambda question: self._outbox.send(
                self._scheduler, StatusRequest(self._id, question, key)
            ),
            timeout_s,
        )
        if reply is None:
            raise _silent()
        return reply.status

    def explain(self, run_id: str, node: str, timeout_s: float = 10.0) -> Explanation:
        """How a node of a run was signed. Errors: `InputError` for what is not known,
        `RuntimeStateError`."""
        self._check_open()
        reply = self._explanations.ask(
            lambda question: self._outbox.send(
                self._unanswered.door, ExplainRequest(self._id, question, run_id, node)
            ),
            timeout_s,
        )
        if reply is None or reply.explanation is None:
            raise _not_explained(reply)
        return reply.explanation

    def purge(
        self,
        *,
        tenant: str | None = None,
        collection: str | None = None,
        signature: bytes = b"",
        key: str = "",
        timeout_s: float = 20.0,
    ) -> PurgeReply:
        """Have completed results forgotten. Errors: `HerasysError` (``not_permitted``),
        `RuntimeStateError`."""
        self._check_open()
        reply = self._purges.ask(
            lambda question: self._outbox.send(
                self._scheduler,
                PurgeRequest(self._id, question, tenant, collection, signature, key),
            ),
            timeout_s,
        )
        if reply is None:
            raise _silent()
        if reply.error is not None:
            raise error_from_info(reply.error)
        return reply

    def _flush(self) -> None:
        """At once from a user's thread; from the link's own with its next round."""
        if threading.current_thread() is not self._thread:
            self._outbox.flush()

    def _check_open(self) -> None:
        if self._gone is not None:
            raise RuntimeStateError(self._gone.message, hint=self._gone.hint)
        if self._closed:
            raise RuntimeStateError(
                "this client is closed", hint="Connect again with herasys_rt.connect()."
            )

    # --- receiving (the link's thread) ----------------------------------------------
    def _serve(self) -> None:
        try:
            self._receive()
        except Exception as e:  # Nobody may wait for a link that no longer listens.
            log.exception("the client's link broke")
            self._runtime_gone(Gone(f"this client's link broke ({type(e).__name__}: {e})"))
        self._inbox.close()

    def _receive(self) -> None:
        takers = {
            FinishRun: self._finish,
            FinishFragment: self._fragment,
            AcceptRun: self._accept,
            RefuseRun: self._refuse,
            Piece: self._piece,
            CallStreams: self.hear,
            CallStreamed: self.hear,
            AgentEnded: self.hear,
            Welcome: self._welcome,
            Route: lambda m: self._reroute(m.door),
            StatusReply: self._statuses.hear,
            ExplainReply: self._explanations.hear,
            PurgeReply: self._purges.hear,
            Pong: lambda _: None,
            Gone: self._runtime_gone,
        }
        next_ping_s = time.monotonic() + _PING_EVERY_S
        while not self._closed:
            messages = self._inbox.receive(_ROUND_S)
            now = time.monotonic()
            if messages:
                self._heard_s = now
            for message in messages:
                takers[type(message)](message)
            if now >= next_ping_s:
                next_ping_s = now + _PING_EVERY_S
                self._outbox.post(self._scheduler, Ping(self._id))
            if self._gone is None and not self._closed:
                self._look_after_scheduler(now)
            self._outbox.flush()

    def _look_after_scheduler(self, now: float) -> None:
        if not self._watch.lost():
            self._lost_s = None
        elif self._lost_s is None:
            self._lost_s = now
        elif now - self._lost_s >= _RECONNECT_S:
            self._runtime_gone(Gone("its scheduler has ended"))
            return
        if now - self._heard_s > _SILENCE_LIMIT_S:
            self._runtime_gone(Gone("it has stopped answering"))

    def _finish(self, message: FinishRun) -> None:
        run = self._forget(message.run_id)
        if run is None:
            return
        try:
            run.finish(message)
        except Exception:
            with self._lock:  # `_serve` tells it with everybody else.
                self._runs[run.id] = run
            raise

    def _fragment(self, message: FinishFragment) -> None:
        with self._lock:
            if not self._unanswered.ended(message.run_id, message.fragment, message.error):
                return
            run = self._runs.get(message.run_id)
        if run is not None and run.on_fragment is not None:
            run.on_fragment(message)

    def _accept(self, message: AcceptRun) -> None:
        self._unanswered.accepted(message.run_id)
        run = self._runs.get(message.run_id)
        if run is not None:
            run.accept()

    def hear(self, message: FromAgent) -> None:
        """What the agent of a run says: one of this process, or one in a frontend."""
        run = self._runs.get(message.run_id)
        if run is None:
            return  # It has ended, and its coroutine is being told.
        match message:
            case CallStreams():
                run.open_part(message.fragment, message.node)
            case CallStreamed():
                run.close_part(message.fragment, message.text)
            case AgentEnded():
                if message.error is None:
                    output = codec.decode(message.output)
                    run.agent_output = (output, frozenset(message.origin))
                self.close_run(run, message.error)

    def _refuse(self, message: RefuseRun) -> None:
        with self._lock:
            if not self._unanswered.refused(message.run_id, message.error):
                return
        run = self._forget(message.run_id)
        if run is not None:
            run.fail(message.error)

    def _forget(self, run_id: str) -> Run | None:
        with self._lock:
            self._unanswered.forget(run_id)
            return self._runs.pop(run_id, None)

    def _piece(self, message: Piece) -> None:
        run = self._runs.get(message.run_id)
        if run is not None:
            run.take_piece(message)

    def _welcome(self, message: Welcome) -> None:
        if not self._welcomed.is_set():
            self._reroute(message.door)
            self._welcomed.set()

    def _reroute(self, door: Endpoint | None) -> None:
        with self._lock:
            former, now = self._unanswered.door, door or self._scheduler
            if now == former:
                return
            if former != self._scheduler:
                self._outbox.forget(former)
            self._unanswered.move(now)

    def _runtime_gone(self, message: Gone) -> None:
        error = ErrorInfo(
            "runtime_state",
            f"the runtime is gone: {message.reason}",
            "Start it again with `herasys up`, connect again, and submit the runs that had "
            "not ended again.",
            retryable=True,
        )
        with self._lock:
            self._gone = error
            runs, self._runs = list(self._runs.values()), {}
        for run in runs:
            run.fail(error)
        for questions in (self._statuses, self._explanations, self._purges):
            questions.end()

    # --- the end --------------------------------------------------------------------
    def close(self) -> None:
        """Leave: runs that have not ended are cancelled. Idempotent."""
        with self._lock:
            if self._closed:
                return
            runs, self._runs = list(self._runs.values()), {}
            self._outbox.post(self._scheduler, Goodbye(self._id))
            if self._unanswered.door != self._scheduler:
                self._unanswered.post(Goodbye(self._id))
            self._outbox.flush()
            self._closed = True
        for run in runs:
            run.fail(
                ErrorInfo("cancelled", f"run {run.id} was cancelled: its client closed"),
                "cancelled",
            )
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._outbox.send(self._inbox.endpoint, Pong())  # Wakes the thread.
            self._thread.join()
        self._watch.close()
        self._outbox.close()
        self._inbox.close()


def _not_explained(reply: ExplainReply | None) -> HerasysError:
    error = reply.error if reply is not None else None
    if error is not None:
        kind = RuntimeStateError if error.code == RuntimeStateError.code else InputError
        return kind(error.message, hint=error.hint, code=error.code)
    return RuntimeStateError(
        "the runtime's fuser does not answer",
        hint="Ask again; `herasys status` shows how the runtime is.",
    )


def _silent() -> RuntimeStateError:
    return RuntimeStateError(
        "the scheduler does not answer",
        hint="`herasys down` and `herasys up` start afresh.",
    )
