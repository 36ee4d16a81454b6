"""The batch loop: every item ends exactly once, whatever happens around it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from herasys_rt.engines.batching import BatchLoop, Job, Piece, Plan, spread
from herasys_rt.engines.protocol import Item
from herasys_rt.errors import InternalError, RuntimeStateError
from tests.outcome_sink import WAIT_S, OutcomeSink


class Gate:
    """Work that waits inside until it is let through."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, jobs: Sequence[Job]) -> None:
        self.entered.set()
        assert self.opened.wait(WAIT_S)
        for job in jobs:
            if job.live:
                job.succeed(job.item.key, usage={})


def items(*keys: str) -> list[Item]:
    return [Item(key, "embed", {}) for key in keys]


def nothing() -> None:
    pass


def test_a_batch_ends_item_by_item_in_order():
    def work(jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.succeed(job.item.key.upper(), usage={"items": 1})

    sink, loop = OutcomeSink(), BatchLoop("test", work)
    loop.start(sink, nothing)
    loop.submit(items("a", "b"))
    assert sink.outcome("b").value == "B"
    assert sink.outcome("a").usage == {"items": 1}
    assert sink.log[:2] == [("started", "a"), ("started", "b")]
    loop.close()


def test_what_work_raises_becomes_the_outcome_of_open_items_only():
    def work(jobs: Sequence[Job]) -> None:
        jobs[0].succeed(1, usage={})
        raise ZeroDivisionError("no")

    sink, loop = OutcomeSink(), BatchLoop("test", work)
    loop.start(sink, nothing)
    loop.submit(items("a", "b"))
    failed = sink.outcome("b").error
    assert failed is not None and failed.code == "engine_failed"
    assert "ZeroDivisionError" in failed.message
    assert sink.outcome("a").value == 1
    loop.submit(items("c", "d"))
    assert sink.outcome("c").value == 1, "the thread goes on after a failed batch"
    loop.close()


def test_items_that_work_forgets_end_with_an_internal_error():
    sink, loop = OutcomeSink(), BatchLoop("test", lambda jobs: None)
    loop.start(sink, nothing)
    loop.submit(items("a"))
    error = sink.outcome("a").error
    assert error is not None and error.code == "internal"
    loop.close()


def test_aborting_an_item_not_begun_ends_it_at_once():
    gate, sink = Gate(), OutcomeSink()
    loop = BatchLoop("test", gate)
    loop.start(sink, nothing)
    loop.submit(items("first"))
    assert gate.entered.wait(WAIT_S)
    loop.submit(items("second", "third"))
    assert (loop.snapshot().running, loop.snapshot().waiting) == (1, 2)
    loop.abort("second")
    assert sink.outcome("second").aborted
    assert loop.snapshot().waiting == 1
    gate.opened.set()
    assert sink.outcome("third").value == "third"
    assert ("started", "second") not in sink.log
    loop.close()


def test_aborting_a_begun_item_ends_it_when_work_lets_go():
    gate, sink = Gate(), OutcomeSink()
    loop = BatchLoop("test", gate)
    loop.start(sink, nothing)
    loop.submit(items("a", "b"))
    assert gate.entered.wait(WAIT_S)
    loop.abort("a")
    assert "a" not in sink.outcomes
    gate.opened.set()
    assert sink.outcome("a").aborted
    assert sink.outcome("b").value == "b"
    loop.abort("a")
    loop.abort("never seen")
    loop.close()
    assert sink.each_ended_once() and sorted(sink.outcomes) == ["a", "b"]


def test_nothing_is_reported_after_close():
    gate, sink = Gate(), OutcomeSink()
    loop = BatchLoop("test", gate)
    loop.start(sink, nothing)
    loop.submit(items("a"))
    assert gate.entered.wait(WAIT_S)
    loop.submit(items("b"))
    closer = threading.Thread(target=loop.close)
    closer.start()
    gate.opened.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert all(event == "started" for event, _ in sink.log)
    loop.close()
    with pytest.raises(RuntimeStateError):
        loop.submit(items("c"))


def test_a_failed_load_is_raised_by_start_and_leaves_no_thread():
    def load() -> None:
        raise ValueError("no such model")

    loop = BatchLoop("test-failed-load", lambda jobs: None)
    with pytest.raises(ValueError, match="no such model"):
        loop.start(OutcomeSink(), load)
    assert "test-failed-load" not in [t.name for t in threading.enumerate()]


def test_a_key_may_not_be_in_flight_twice():
    gate = Gate()
    loop = BatchLoop("test", gate)
    loop.start(OutcomeSink(), nothing)
    loop.submit(items("a"))
    with pytest.raises(InternalError):
        loop.submit(items("b", "a"))
    gate.opened.set()
    loop.close()


def test_many_threads_submit_and_abort_and_every_item_ends_once():
    def work(jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.live:
                job.succeed(None, usage={})

    sink, loop = OutcomeSink(), BatchLoop("test", work)
    loop.start(sink, nothing)

    def drive(name: int) -> None:
        for i in range(50):
            loop.submit(items(f"{name}-{i}-a", f"{name}-{i}-b"))
            loop.abort(f"{name}-{i}-a")

    threads = [threading.Thread(target=drive, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    keys = [f"{n}-{i}-{x}" for n in range(8) for i in range(50) for x in "ab"]
    for key in keys:
        sink.outcome(key)
    assert sink.each_ended_once() and sorted(sink.outcomes) == sorted(keys)
    assert loop.snapshot().running == loop.snapshot().waiting == 0
    loop.close()


def run_spread(
    lengths: dict[str, list[int]], limit: int, bad: int = -1
) -> tuple[OutcomeSink, list[list[int]]]:
    """Spread pieces whose payload is their length; a payload of ``bad`` raises."""
    passes: list[list[int]] = []

    def compute(pieces: list[Piece]) -> list[int]:
        if any(piece.payload == bad for piece in pieces):
            raise ValueError("bad piece")
        passes.append([piece.payload for piece in pieces])
        return [piece.payload * 10 for piece in pieces]

    def work(jobs: Sequence[Job]) -> None:
        def plan(job: Job) -> Plan:
            given = enumerate(lengths[job.item.key])
            pieces = [Piece(n, n, label=f"text[{i}]") for i, n in given]
            return Plan(job, pieces, lambda rows: job.succeed(rows, usage={}))

        spread([plan(job) for job in jobs], limit, compute)

    sink, loop = OutcomeSink(), BatchLoop("test", work)
    loop.start(sink, nothing)
    loop.submit(items(*lengths))
    for key in lengths:
        sink.outcome(key)
    loop.close()
    return sink, passes


def test_pieces_of_all_items_share_passes_shortest_first():
    sink, passes = run_spread({"a": [9, 1], "b": [5], "c": [3, 7], "d": []}, limit=2)
    assert passes == [[1, 3], [5, 7], [9]]
    assert sink.outcome("a").value == [90, 10]
    assert sink.outcome("c").value == [30, 70]
    assert sink.outcome("d").value == []


def test_a_raising_piece_fails_its_item_alone():
    sink, _ = run_spread({"a": [1, 6], "b": [4, 2], "c": [3]}, limit=8, bad=4)
    assert sink.outcome("a").value == [10, 60]
    assert sink.outcome("c").value == [30]
    error = sink.outcome("b").error
    assert error is not None and error.code == "engine_failed"
    assert "text[0]" in error.message and "bad piece" in error.message
