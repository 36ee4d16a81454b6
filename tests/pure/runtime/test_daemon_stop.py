"""The daemon's wish to end, which signals may express in the middle of one another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from herasys_rt.runtime.daemon import _Stop


def interrupted(action: Callable[[], object], handler: Callable[[], object]) -> bool:
    """Whether an action ends when a signal's handler runs at each of its steps."""

    def step(*_: Any) -> None:
        sys.setprofile(None)
        handler()
        sys.setprofile(step)

    def act() -> None:
        sys.setprofile(step)
        action()
        sys.setprofile(None)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


@pytest.mark.parametrize("action", ["wish", "wait"])
def test_a_signal_in_the_middle_of_another_or_of_the_wait_holds_nothing_up(action: str):
    stop = _Stop(private=True)
    wish: Callable[[], object] = lambda: stop.wish("a signal")  # noqa: E731
    assert interrupted(wish if action == "wish" else lambda: stop.wait(0.01), wish)
    assert stop.wished and stop.wait(0)


def test_only_the_first_wish_is_the_first():
    stop = _Stop(private=True)
    assert not stop.wait(0)
    assert [stop.wish("one"), stop.wish("two")] == [True, False]
    assert stop.reason == "one"
