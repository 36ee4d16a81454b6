"""Clients, hosts, fusers and schedulers that go away, over real sockets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import zmq

from herasys_rt.client.client import Client
from herasys_rt.client.link import Link
from herasys_rt.errors import (
    HerasysError,
    RuntimeStateError,
)
from herasys_rt.links import Endpoint, Inbox, Outbox, host_identity
from herasys_rt.messages import HostLost, Ping, ToScheduler, Welcome
from tests.pure.runtime.path_lab import (
    answer,
    await_fuser,
    under_both_hashes,
)


def test_a_run_repeated_after_a_loss_streams_each_character_once(
    start_runtime, hand_engine
):
    engine, again = hand_engine(), hand_engine()
    runtime = start_runtime(llm=engine)
    run = runtime.connect().submit(answer, _stream=True, question="q")
    (item,) = engine.wait_for(1)
    engine.sink.started(item.key)
    engine.sink.piece(item.key, "abc", 1)
    pieces = run.stream()
    assert next(pieces) == "abc"
    runtime.lose_host("llm")
    runtime.start_host("llm", again)
    (item,) = again.wait_for(1)
    again.sink.piece(item.key, "ab", 1)
    again.sink.piece(item.key, "cde", 1)
    assert next(pieces) == "de"
    again.finish(item, "abcdef")
    assert [*pieces] == ["f"]


def test_a_host_that_was_given_up_too_early_comes_back_and_serves(
    start_runtime, hand_engine
):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    run = client.submit(answer, question="q")
    (first,) = engine.wait_for(1)
    # Told late, of a process before: the host itself lives on.
    runtime.outbox.send(runtime.endpoint, HostLost("llm", 0, "killed"))
    _, again = engine.wait_for(2)
    assert first.key in engine.aborted
    engine.finish(again, "served")
    assert run.result(10) == "served"
    assert run.report()["nodes"][0]["instance"] == "llm-0.2"


def test_the_end_of_a_predecessor_told_late_changes_nothing(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    run = client.submit(answer, question="q")
    (item,) = engine.wait_for(1)
    pid = client.status()["pools"][0]["instances"][0]["pid"]
    runtime.outbox.send(runtime.endpoint, HostLost("llm", 0, "killed", pid=pid + 1))
    client.status()
    engine.finish(item, "served")
    assert run.result(10) == "served"
    assert run.report()["nodes"][0]["instance"] == "llm-0"


def test_a_client_that_left_is_forgotten_by_every_process(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    watcher, client = runtime.connect(), runtime.connect()
    await_fuser(watcher)
    run = client.submit(answer, _stream=True, question="q")
    (item,) = engine.wait_for(1)
    engine.sink.piece(item.key, "a", 1)
    engine.finish(item, "ab")
    assert run.result(10) == "ab"
    left = client._link._inbox.endpoint
    client.close()
    while any(left in outbox.peers() for outbox in runtime.outboxes):
        watcher.status()


@under_both_hashes
def test_without_a_fuser_runs_are_served_directly(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(fuser=False, llm=engine).connect()
    run = client.submit(answer, question="q")
    (item,) = engine.wait_for(1)
    engine.finish(item, "direct")
    assert run.result(10) == "direct"


@under_both_hashes
def test_runs_survive_the_loss_of_the_fuser(start_runtime, hand_engine):
    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    client = runtime.connect()
    await_fuser(client)
    before = client.submit(answer, question="before")
    engine.wait_for(1)
    runtime.lose_fuser()
    after = client.submit(answer, question="after")
    for item in engine.wait_for(2):
        engine.finish(item, item.args["var:question"])
    assert before.result(10) == "before"
    assert after.result(10) == "after"
    runtime.start_fuser()
    await_fuser(client)
    third = client.submit(answer, question="third")
    engine.finish(engine.wait_for(3)[2], "again")
    assert third.result(10) == "again"


def test_a_link_that_breaks_fails_its_runs_and_takes_no_more(
    start_runtime, hand_engine, monkeypatch, caplog
):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    broken, other = (client.submit(answer, question=q) for q in "ab")
    item = engine.wait_for(2)[0]
    monkeypatch.setattr(broken, "finish", lambda message: 1 / 0)
    monkeypatch.setattr(other, "finish", lambda message: 1 / 0)
    engine.finish(item, "x")
    for run in (broken, other):
        with pytest.raises(RuntimeStateError, match="ZeroDivisionError"):
            run.result(10)
    with pytest.raises(RuntimeStateError):
        client.submit(answer, question="c")
    assert "link broke" in caplog.text


def test_a_stopping_runtime_tells_its_clients(start_runtime, hand_engine):
    from herasys_rt.messages import Stop

    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    run = runtime.connect().submit(answer, question="q")
    engine.wait_for(1)
    runtime.outbox.send(runtime.endpoint, Stop())
    with pytest.raises(HerasysError) as caught:
        run.result(10)
    assert caught.value.code == "runtime_state"


def test_a_run_that_a_goodbye_overtakes_does_not_go_on(start_runtime, hand_engine):
    """The goodbye comes directly and once more behind the run, through the fuser."""
    from herasys_rt.core.events import RunSubmitted, SpecRegistered
    from herasys_rt.core.values import Value
    from herasys_rt.graph import codec
    from herasys_rt.messages import Goodbye

    engine = hand_engine()
    runtime = start_runtime(llm=engine)
    watching = runtime.connect()
    inputs = codec.encode({"question": "q"})
    value = Value(codec.digest(inputs), len(inputs), inline=inputs)
    for message in (
        SpecRegistered(answer.spec),
        RunSubmitted("late", answer.spec.id, "left", "default", value),
    ):
        runtime.outbox.post(runtime.endpoint, message)
    runtime.outbox.flush()
    engine.wait_for(1)
    runtime.outbox.send(runtime.endpoint, Goodbye("left"))
    while watching.status()["counters"]["runs"]["active"]:
        pass
    assert watching.status()["counters"]["runs"]["cancelled"] == 1


class Deaf:
    """A scheduler that welcomes one client and answers nothing after that."""

    def __init__(self, folder: Path) -> None:
        self.inbox: Inbox[Any] = Inbox(folder, "sched", ToScheduler)
        self._outbox = Outbox()
        self._thread = threading.Thread(target=self._welcome, daemon=True)
        self._thread.start()

    def _welcome(self) -> None:
        (hello,) = self.inbox.receive(10)
        self._outbox.send(hello.endpoint, Welcome(None))

    def die(self) -> None:
        """As a process that is killed: what it had open is closed, nobody is told."""
        self._thread.join()
        self.inbox.close()
        self._outbox.close()


def test_a_scheduler_that_is_killed_is_noticed_by_its_connection(short_folder):
    scheduler = Deaf(short_folder)
    link = Link(scheduler.inbox.endpoint, "default")
    link.open()
    client = Client(link, "test", lambda: None)
    run = client.submit(answer, question="q")
    scheduler.die()
    with pytest.raises(RuntimeStateError, match="its scheduler has ended") as caught:
        run.result(15)  # Less than what silence alone takes to tell.
    assert caught.value.retryable and "connect again" in caught.value.hint
    with pytest.raises(RuntimeStateError, match="its scheduler has ended"):
        client.submit(answer, question="q")
    client.close()


def listening(outbox: Outbox, peer: Endpoint) -> Any:
    """A socket at the peer's address to which the outbox has come through."""
    socket = zmq.Context.instance().socket(zmq.PULL)
    socket.bind(peer.ipc)
    for _ in range(100):
        outbox.send(peer, Ping("client"))  # One may still go the former's way.
        if socket.poll(100):
            return socket
    pytest.fail("nothing comes through")


def test_a_connection_that_comes_back_is_not_lost(short_folder):
    outbox = Outbox()
    peer = Endpoint(host_identity(), f"ipc://{short_folder / 'peer'}")
    watch = outbox.watch(peer)
    first = listening(outbox, peer)
    assert not watch.lost()
    first.close(linger=0)
    while not watch.lost():
        pass
    second = listening(outbox, peer)
    while watch.lost():
        pass
    watch.close()
    outbox.close()
    second.close(linger=0)


def test_what_becomes_of_a_peer_that_is_watched_no_more_holds_up_nothing(short_folder):
    outbox = Outbox()
    peer = Endpoint(host_identity(), f"ipc://{short_folder / 'peer'}")
    watch = outbox.watch(peer)
    socket = listening(outbox, peer)
    watch.close()
    for _ in range(3):
        socket.close(linger=0)
        socket = listening(outbox, peer)
    outbox.close()
    socket.close(linger=0)
