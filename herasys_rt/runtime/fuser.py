"""The fuser's loop: validate, sign, forward. A stage on the way, never a round trip.

Every client message passes through it in order. What it drains from its inbox at once
leaves as one frame, so that twins that arrive together reach the kernel together.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from herasys_rt.core.commands import DropKept, FinishFragment, KeepResult, RefuseRun
from herasys_rt.core.events import (
    CollectionChanged,
    Hint,
    NodesRevealed,
    RunSubmitted,
    SpecRegistered,
)
from herasys_rt.costs.forecast import ProfileForecast
from herasys_rt.errors import ErrorInfo, HerasysError
from herasys_rt.graph import codec
from herasys_rt.graph.facts import facts_of
from herasys_rt.graph.labels import checked_labels
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import NodeSpec, WorkflowSpec
from herasys_rt.graph.validation import check_inputs, validate_spec
from herasys_rt.ids import new_id
from herasys_rt.links import Endpoint, Inbox, Outbox
from herasys_rt.messages import (
    Abandon,
    Cancel,
    Catalogue,
    Close,
    ExplainReply,
    ExplainRequest,
    ForgetClient,
    FuserReady,
    Generation,
    Goodbye,
    Hello,
    KeptDropped,
    Lengths,
    Ping,
    PoolFacts,
    PurgeRequest,
    Reveal,
    StatusRequest,
    Stop,
    Submit,
    ToFuser,
)
from herasys_rt.runtime.hints import Hinting
from herasys_rt.runtime.objects import ValueStore
from herasys_rt.runtime.signed_runs import WHOLE, SignedRuns

log = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0
_KNOWN_SPECS = 4096
"""So many workflows are known, those used last; a client tells one that it asks for and
that is not known again."""


class FuserLoop:
    """Signs runs on their way to the scheduler. `run` blocks until `Stop`.

    ``values`` stores inputs that are too large to travel inline. ``forecast`` predicts
    the seconds of nodes; without one the kernel goes by what it has seen. ``hinting`` has
    the results of earlier runs; it is closed with the loop.
    """

    def __init__(
        self,
        inbox: Inbox[ToFuser],
        outbox: Outbox,
        scheduler: Endpoint,
        values: ValueStore,
        clock: Callable[[], float] = time.monotonic,
        forecast: ProfileForecast | None = None,
        hinting: Hinting | None = None,
    ) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._scheduler = scheduler
        self._values = values
        self._clock = clock
        self._forecast = forecast
        self._hinting = hinting
        self._unknown = new_id("unknown")
        self._clients: dict[str, Hello] = {}
        self._specs: OrderedDict[str, WorkflowSpec] = OrderedDict()
        self._signers: dict[str, Signer] = {}
        self._pools: tuple[PoolFacts, ...] = ()
        self._revisions: dict[str, int] = {}
        self._signed_runs = SignedRuns()
        self._stopping = False
        self._takers: dict[type, Callable[[Any], None]] = {
            Hello: self._hello,
            SpecRegistered: self._register,
            Submit: self._submit,
            Reveal: self._reveal,
            Abandon: self._forward,
            Close: self._forward,
            Cancel: self._forward,
            Ping: self._forward,
            StatusRequest: self._forward,
            ExplainRequest: self._explain,
            CollectionChanged: self._collection_changed,
            PurgeRequest: self._forward,
            Goodbye: self._goodbye,
            ForgetClient: self._forget_client,
            Catalogue: self._catalogue,
            Lengths: self._observe,
            Generation: self._begin,
            KeepResult: self._keep_result,
            DropKept: self._drop_kept,
            Stop: self._stop,
        }

    def run(self) -> None:
        """Serve until told to stop."""
        next_beat_s = 0.0
        while not self._stopping:
            now = self._clock()
            if now >= next_beat_s:
                next_beat_s = now + _HEARTBEAT_S
                facts = self._hinting.facts() if self._hinting is not None else None
                ready = FuserReady(self._inbox.endpoint, facts)
                self._outbox.send(self._scheduler, ready)
            for message in self._inbox.receive(_HEARTBEAT_S):
                self._takers[type(message)](message)
            self._outbox.flush()
        if self._hinting is not None:
            self._hinting.close()
        self._outbox.close()
        self._inbox.close()

    def _forward(self, message: Any) -> None:
        self._outbox.post(self._scheduler, message)

    def _hello(self, message: Hello) -> None:
        self._clients[message.client] = message
        self._forward(message)

    def _goodbye(self, message: Goodbye) -> None:
        self._forget_client(message)
        self._forward(message)

    def _forget_client(self, message: Goodbye | ForgetClient) -> None:
        gone = self._clients.pop(message.client, None)
        if gone is not None:
            self._outbox.forget(gone.endpoint)

    def _catalogue(self, message: Catalogue) -> None:
        self._revisions = {**self._revisions, **message.revisions}
        if message.pools != self._pools:
            self._pools = message.pools
            self._signers.clear()

    def _collection_changed(self, event: CollectionChanged) -> None:
        # A new dict: signed runs keep the one of their time.
        self._revisions = {**self._revisions, event.collection: event.revision}

    def _explain(self, message: ExplainRequest) -> None:
        hello = self._clients.get(message.client)
        if hello is None:
            return
        try:
            found = self._signed_runs.explain(message.run_id, message.node, hello.tenant)
            reply = ExplainReply(message.question, found)
        except HerasysError as e:
            reply = ExplainReply(message.question, error=e.info())
        self._outbox.post(hello.endpoint, reply)

    def _observe(self, message: Lengths) -> None:
        if self._forecast is not None:
            for model, operator, tokens in message.outputs:
                self._forecast.observe(model, operator, tokens)

    def _begin(self, message: Generation) -> None:
        if self._hinting is not None:
            self._hinting.begin(message.generation)

    def _keep_result(self, command: KeepResult) -> None:
        if self._hinting is not None:
            self._hinting.keep(command)

    def _drop_kept(self, command: DropKept) -> None:
        def done(entries: int) -> None:
            self._outbox.send(self._scheduler, KeptDropped(command.generation, entries))

        if self._hinting is not None:
            self._hinting.drop(command, done)

    def _offers(self, signatures: tuple[bytes, ...]) -> tuple[Hint, ...]:
        return self._hinting.offers(signatures) if self._hinting is not None else ()

    def _stop(self, _: Stop) -> None:
        self._stopping = True

    def _register(self, event: SpecRegistered) -> None:
        spec = event.spec
        if spec.id not in self._specs:
            faults = validate_spec(spec)
            if faults:
                log.warning("a spec that does not hold was refused: %s", faults[0])
                return
            self._specs[spec.id] = spec
            if len(self._specs) > _KNOWN_SPECS:
                forgotten, _ = self._specs.popitem(last=False)
                self._signers.pop(forgotten, None)
        self._forward(event)  # Also a known one: the scheduler may have forgotten it.

    def _submit(self, message: Submit) -> None:
        hello = self._clients.get(message.client)
        if hello is None:
            return  # It said goodbye; nobody waits for this run.
        try:
            self._forward(self._signed(message, hello.tenant))
        except HerasysError as e:
            self._refuse(message, hello.endpoint, e.info())

    def _reveal(self, message: Reveal) -> None:
        hello = self._clients.get(message.client)
        if hello is None:
            return
        try:
            self._forward(self._signed_piece(message, hello.tenant))
        except HerasysError as e:
            ended = FinishFragment(
                message.run_id,
                message.client,
                message.fragment,
                "failed",
                (),
                error=e.info(),
            )
            self._outbox.post(hello.endpoint, ended)

    def _signed_piece(self, message: Reveal, tenant: str) -> NodesRevealed:
        spec, inputs, signer = self._checked(message)
        origin = f"{message.run_id}/{message.fragment}"
        signed = signer.signed(inputs, tenant, origin)
        self._keep(message, message.fragment, signer, tenant)
        return NodesRevealed(
            run_id=message.run_id,
            fragment=message.fragment,
            spec_id=message.spec_id,
            inputs=self._values.pack(message.inputs, signed.inputs),
            signatures=signed.signatures,
            collections=signer.collections(inputs),
            facts=facts_of(spec, inputs, self._values.hashing),
            parents=message.parents,
            stream=message.stream,
            seconds=self._predicted(spec, inputs),
            seeds=signed.seeds,
            own_collections=signer.own_collections(inputs),
            item_seeds=signed.item_seeds,
            hints=self._offers(signed.signatures),
        )

    def _signed(self, message: Submit, tenant: str) -> RunSubmitted:
        spec, inputs, signer = self._checked(message)
        signed = signer.signed(inputs, tenant, message.run_id)
        self._keep(message, WHOLE, signer, tenant)
        return RunSubmitted(
            run_id=message.run_id,
            spec_id=message.spec_id,
            client=message.client,
            tenant=tenant,
            inputs=self._values.pack(message.inputs, signed.inputs),
            signatures=signed.signatures,
            collections=signer.collections(inputs),
            stream=message.stream,
            priority=message.priority,
            deadline_s=message.deadline_s,
            facts=facts_of(spec, inputs, self._values.hashing),
            agent=message.agent,
            frontend=message.frontend,
            labels=checked_labels(message.labels),
            seconds=self._predicted(spec, inputs),
            seeds=signed.seeds,
            own_collections=signer.own_collections(inputs),
            item_seeds=signed.item_seeds,
            hints=self._offers(signed.signatures),
        )

    def _keep(
        self, message: Submit | Reveal, fragment: int, signer: Signer, tenant: str
    ) -> None:
        self._signed_runs.keep(
            message.run_id, fragment, signer, message.inputs, tenant, self._revisions
        )

    def _predicted(self, spec: WorkflowSpec, inputs: dict[str, Any]) -> tuple[float, ...]:
        return self._forecast.seconds(spec, inputs) if self._forecast is not None else ()

    def _checked(
        self, message: Submit | Reveal
    ) -> tuple[WorkflowSpec, dict[str, Any], Signer]:
        """The spec, the checked inputs and the signer of a run or a piece of one."""
        spec = self._specs.get(message.spec_id)
        if spec is None:
            raise HerasysError(
                f"run {message.run_id} names the unknown workflow {message.spec_id}",
                hint="Submit through a client: it registers the workflow first. A workflow "
                "that came and does not hold is in the runtime's log.",
                code="unknown_spec",
            )
        self._specs.move_to_end(spec.id)
        inputs = check_inputs(spec, codec.decode(message.inputs))
        signer = self._signers.get(spec.id)
        if signer is None:
            signer = self._signers[spec.id] = Signer(
                spec, self._fingerprint, self._values.hashing
            )
        return spec, inputs, signer

    def _refuse(self, message: Submit, client: Endpoint, error: ErrorInfo) -> None:
        self._outbox.post(client, RefuseRun(message.run_id, message.client, error))

    def _fingerprint(self, node: NodeSpec) -> str:
        """What identifies the model a node runs on; only has to differ when it does.

        While nobody has told, it is equal to itself and to nothing that is kept for
        later: whoever serves then may be another one.
        """
        pool = pool_of(node, self._pools)
        if pool is None:
            return f"{self._unknown}:{node.model}"
        return f"{pool.pool}:{pool.fingerprint or self._unknown}"


def pool_of(node: NodeSpec, pools: Iterable[PoolFacts]) -> PoolFacts | None:
    """The pool that the kernel lets serve a node (`core.plan.pool_for`), if there is."""
    fit = [
        pool
        for pool in pools
        if pool.resource == node.resource
        and (node.model is None or node.model in pool.names)
    ]
    return next(iter([pool for pool in fit if pool.default] or fit), None)
