"""Streamed text leaves in slices, in order and whole."""

from __future__ import annotations

import threading

from herasys_rt.clock import ManualClock
from herasys_rt.engines.slices import SLICE_S, Slices


class Emitted:
    def __init__(self) -> None:
        self.pieces: list[tuple[str, str, int]] = []
        self.changed = threading.Event()

    def __call__(self, key: str, text: str, tokens: int) -> None:
        self.pieces.append((key, text, tokens))
        self.changed.set()


def manual() -> tuple[Slices, Emitted, ManualClock]:
    emitted, clock = Emitted(), ManualClock()
    return Slices(emitted, clock=clock, threaded=False), emitted, clock


def test_the_first_text_goes_out_at_once_and_a_burst_together_when_due() -> None:
    slices, emitted, clock = manual()
    for word in ("a", "b", "c"):
        slices.push("k", word, 1)
    assert emitted.pieces == [("k", "a", 1)]
    clock.advance(SLICE_S / 2)
    assert slices.flush() == SLICE_S / 2
    clock.advance(SLICE_S / 2)
    assert slices.flush() is None
    assert emitted.pieces == [("k", "a", 1), ("k", "bc", 2)]


def test_slow_text_is_never_held() -> None:
    slices, emitted, clock = manual()
    for word in ("a", "b"):
        slices.push("k", word, 1)
        clock.advance(SLICE_S)
    assert [text for _, text, _ in emitted.pieces] == ["a", "b"]


def test_the_end_takes_what_is_held_along() -> None:
    slices, emitted, _ = manual()
    slices.push("k", "a", 1)
    slices.push("k", "b", 1)
    slices.finish("k", "c", 1)
    assert emitted.pieces == [("k", "a", 1), ("k", "bc", 2)]
    assert slices.flush() is not None  # the stale due time
    assert len(emitted.pieces) == 2


def test_tokens_without_text_count_with_the_text_that_follows() -> None:
    slices, emitted, _ = manual()
    slices.push("k", "", 1)
    slices.push("k", "", 1)
    assert emitted.pieces == []
    slices.push("k", "界", 1)
    assert emitted.pieces == [("k", "界", 3)]


def test_a_dropped_item_emits_nothing_more_and_others_go_on() -> None:
    slices, emitted, clock = manual()
    for key in ("x", "y"):
        slices.push(key, "1", 1)
        slices.push(key, "2", 1)
    slices.drop("x")
    clock.advance(SLICE_S)
    slices.flush()
    assert emitted.pieces == [("x", "1", 1), ("y", "1", 1), ("y", "2", 1)]


def test_the_thread_sends_held_text_while_the_producer_is_busy_and_ends_on_close() -> None:
    emitted = Emitted()
    slices = Slices(emitted)
    slices.push("k", "a", 1)
    emitted.changed.clear()
    slices.push("k", "b", 1)
    assert emitted.changed.wait(10)
    slices.close()
    slices.close()
    slices.push("k", "late", 1)
    assert "".join(text for _, text, _ in emitted.pieces) == "ab"
    assert not [t for t in threading.enumerate() if t.name == "slices"]
