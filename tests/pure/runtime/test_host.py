"""An engine host's loop, spoken to as the scheduler does, over real sockets."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.core.commands import (
    AbortItem,
    ForgetSpec,
    SharedItems,
    StartBatch,
    Subscriber,
    WorkItem,
)
from herasys_rt.core.events import (
    ItemAborted,
    ItemFailed,
    ItemFinished,
    ValuesLost,
)
from herasys_rt.core.values import INLINE_LIMIT_BYTES, Value
from herasys_rt.dsl import workflow
from herasys_rt.errors import EnvironmentFaultError, ValueLostError
from herasys_rt.graph import codec
from herasys_rt.graph.facts import items_of
from herasys_rt.links import Inbox, Outbox
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
    ToClient,
    ToHost,
    ToScheduler,
)
from herasys_rt.runtime import host as host_module
from herasys_rt.runtime.host import HostLoop
from herasys_rt.runtime.objects import InlineValues
from operators import generate, rerank

PATIENCE_S = 10.0


@workflow
def answer(question: str):
    return generate("Say: {question}", question=question, max_tokens=8)


@workflow
def best(question: str, passages: list[dict[str, Any]]):
    return rerank(question, passages, top_k=1)


class Far(InlineValues):
    """Values that lie elsewhere: reading one waits for leave, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.leave = threading.Event()
        self.error: Exception | None = None

    def unpack(self, value: Value) -> bytes:
        if value.place:
            self.asked.set()
            assert self.leave.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
            return codec.encode({"question": "far"})
        return super().unpack(value)


class Packing(InlineValues):
    """Values of which large ones lie in places; ``full`` is from which size on there is no
    room."""

    def __init__(self, full: float = math.inf) -> None:
        super().__init__()
        self.full = full
        self.places: list[str] = []

    def pack(self, data: bytes, digest: bytes | None = None) -> Value:
        value = super().pack(data, digest)
        if len(data) <= INLINE_LIMIT_BYTES:
            return value
        if len(data) >= self.full:
            raise EnvironmentFaultError("the store is full")
        self.places.append(f"value-{len(self.places)}")
        return replace(value, inline=None, place=self.places[-1])


class Bench:
    """A host on a bench: the scheduler's side of its links is the test's."""

    def __init__(self, folder: Path, engine: Any, values: InlineValues) -> None:
        self.engine = engine
        self.inbox: Inbox[Any] = Inbox(folder, "sched", ToScheduler)
        self.outbox = Outbox()
        self.host_outbox = Outbox()
        inbox: Inbox[Any] = Inbox(folder, "host", ToHost)
        self.host = inbox.endpoint
        self.loop = HostLoop(engine, inbox, self.host_outbox, self.inbox.endpoint, values)
        engine.start(self.loop)
        self.thread = threading.Thread(target=lambda: self.loop.run("llm", 0), daemon=True)
        self.thread.start()
        self.heard: list[Any] = []

    def tell(self, *messages: Any) -> None:
        for message in messages:
            self.outbox.post(self.host, message)
        self.outbox.flush()

    def next(self, kind: type) -> Any:
        """The next message of a kind; heartbeats and the like are passed over."""
        for _ in range(100):
            for position, message in enumerate(self.heard):
                if isinstance(message, kind):
                    return self.heard.pop(position)
            self.heard.extend(self.inbox.receive(PATIENCE_S))
        raise AssertionError(f"no {kind.__name__} among {self.heard}")

    def start_item(self, instance: str, flight: int, inputs: Value, *to: str) -> None:
        listeners = tuple(Subscriber(client, "run-1", 0) for client in to)
        item = WorkItem(
            flight, 1, answer.spec.id, 0, "run-1", "t", inputs, subscribers=listeners
        )
        self.tell(KnowSpec(answer.spec), StartBatch(instance, (item,)))

    def close(self) -> None:
        self.tell(Stop())
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.outbox.close()
        self.inbox.close()


def near(question: str) -> Value:
    return InlineValues().pack(codec.encode({"question": question}))


FAR = Value(b"digest", 1 << 20, place="value-1")


@pytest.fixture
def bench(hand_engine: Any) -> Iterator[Callable[..., Bench]]:
    """Makes a `Bench`; ended after the test."""
    made: list[Bench] = []
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:

        def make(values: InlineValues | None = None) -> Bench:
            made.append(Bench(Path(folder), hand_engine(), values or InlineValues()))
            return made[-1]

        yield make
        for one in made:
            one.close()


def test_a_host_says_that_it_is_ready_until_it_has_a_name(bench, monkeypatch):
    monkeypatch.setattr(host_module, "_HEARTBEAT_S", 0.05)
    host = bench()
    assert host.next(HostReady) == host.next(HostReady)
    host.tell(Named("llm-0"))
    assert host.next(Heartbeat).instance == "llm-0"


def test_a_host_that_was_given_up_drops_its_work_and_comes_back(bench):
    host = bench()
    host.next(HostReady)
    host.tell(Named("llm-0"))
    host.start_item("llm-0", 1, near("old"))
    (old,) = host.engine.wait_for(1)
    host.tell(Announce(), Announce())
    host.next(HostReady)
    assert host.engine.aborted == [old.key]
    host.tell(Named("llm-0.2"))
    host.start_item("llm-0", 2, near("for its former self"))
    host.start_item("llm-0.2", 3, near("new"))
    _, new = host.engine.wait_for(2)
    host.engine.finish(new, "done")
    ended = host.next(ItemFinished)
    assert (ended.flight, ended.instance) == (3, "llm-0.2")
    assert [item.args["var:question"] for item in host.engine.seen] == ["old", "new"]


def test_an_abort_while_the_inputs_are_fetched_is_not_lost(bench):
    values = Far()
    host = bench(values)
    host.tell(Named("llm-0"))
    host.start_item("llm-0", 1, FAR)
    assert values.asked.wait(PATIENCE_S)
    host.tell(AbortItem("llm-0", 1, 1))
    host.start_item("llm-0", 2, near("after the abort"))
    host.engine.wait_for(1)
    values.leave.set()
    assert host.next(ItemAborted).flight == 1
    assert len(host.engine.seen) == 1


def test_a_host_digests_the_items_of_an_output_when_it_is_told_to(bench):
    host = bench()
    host.tell(Named("llm-0"), KnowSpec(answer.spec))
    item = WorkItem(1, 1, answer.spec.id, 0, "run-1", "t", near("q"))
    host.tell(StartBatch("llm-0", (item,)))
    host.tell(StartBatch("llm-0", (replace(item, flight=2, itemise=True),)))
    for done in host.engine.wait_for(2):
        host.engine.finish(done, ["a", "b"])
    assert host.next(ItemFinished).value.items == ()
    assert host.next(ItemFinished).value.items == items_of(["a", "b"])


def rank_many(host: Bench) -> ItemFinished:
    """A rerank of many chunks, whose scores are large and whose best one is not."""
    chunks = [{"id": f"{at}", "text": f"text {at}"} for at in range(8000)]
    inputs = InlineValues().pack(codec.encode({"question": "q", "passages": chunks}))
    shared = SharedItems(len(chunks), (), ())
    item = WorkItem(1, 1, best.spec.id, 0, "run-1", "t", inputs, shared=shared)
    host.tell(Named("llm-0"), KnowSpec(best.spec), StartBatch("llm-0", (item,)))
    (done,) = host.engine.wait_for(1)
    host.engine.finish(done, [float(at) for at in range(8000)])
    return host.next(ItemFinished)


def test_large_scores_of_a_small_ranking_travel_beside_the_message(bench):
    values = Packing()
    told = rank_many(bench(values))
    assert told.value.inline and told.parts is not None
    assert told.parts.inline is None and [told.parts.place] == values.places


def test_a_ranking_succeeds_whose_scores_cannot_be_stored(bench):
    told = rank_many(bench(Packing(full=INLINE_LIMIT_BYTES)))
    assert told.value.inline and codec.decode(told.value.inline)[0]["id"] == "7999"
    assert told.parts is None


def test_a_workflow_forgotten_while_the_inputs_are_fetched_still_serves_its_item(bench):
    values = Far()
    host = bench(values)
    host.tell(Named("llm-0"))
    host.start_item("llm-0", 1, FAR)
    assert values.asked.wait(PATIENCE_S)
    host.tell(ForgetSpec(answer.spec.id))
    while host.loop._specs:
        pass
    values.leave.set()
    (item,) = host.engine.wait_for(1)
    host.engine.finish(item, "served")
    assert host.next(ItemFinished).flight == 1


def test_an_abort_during_the_submit_is_not_lost(bench):
    values = Far()
    host = bench(values)
    take = host.engine.submit
    inside, go_on = threading.Event(), threading.Event()

    def slow(items: Any) -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        take(items)

    host.engine.submit = slow
    values.leave.set()
    host.tell(Named("llm-0"))
    host.start_item("llm-0", 1, FAR)
    assert inside.wait(PATIENCE_S)
    host.engine.submit = take
    host.tell(AbortItem("llm-0", 1, 1))
    host.start_item("llm-0", 2, near("after the abort"))
    host.engine.wait_for(1)
    go_on.set()
    assert host.next(ItemAborted).flight == 1


def test_an_item_whose_inputs_cannot_be_fetched_ends_whatever_the_reason(bench):
    values = Far()
    values.error = RuntimeError("the store fell over")
    values.leave.set()
    host = bench(values)
    host.tell(Named("llm-0"))
    host.start_item("llm-0", 1, FAR)
    failed = host.next(ItemFailed)
    assert failed.error.code == "internal"
    assert "the store fell over" in failed.error.message


def test_of_an_input_that_is_lost_the_kernel_hears_before_the_item_fails(bench):
    values = Far()
    values.error = ValueLostError("it was lost", place=FAR.place)
    values.leave.set()
    host = bench(values)
    host.tell(Named("llm-0"))
    host.start_item("llm-0", 1, FAR)
    failed = host.next(ItemFailed)
    assert (failed.error.code, failed.error.retryable) == ("value_lost", True)
    assert ValuesLost((FAR.place,)) in host.heard, "it came first"


def test_nothing_is_kept_of_a_client_that_is_gone(bench):
    host = bench()
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        client: Inbox[Any] = Inbox(Path(folder), "client", ToClient)
        host.tell(Named("llm-0"), KnowClient("c", client.endpoint))
        host.start_item("llm-0", 1, near("q"), "c")
        (item,) = host.engine.wait_for(1)
        host.loop.piece(item.key, "a", 1)
        assert client.receive(PATIENCE_S) == [Piece("run-1", 0, 0, "a")]
        assert client.endpoint in host.host_outbox.peers()
        host.tell(ForgetClient("c"))
        host.start_item("llm-0", 2, near("after it left"))
        host.engine.wait_for(2)
        host.loop.piece(item.key, "b", 1)
        assert client.endpoint not in host.host_outbox.peers()
        client.close()
