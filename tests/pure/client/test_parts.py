"""What a run's stream shows, whatever order its pieces come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.client.parts import Parts
from herasys_rt.messages import Piece


def piece(offset: int, text: str, fragment: int = 0, node: int = 0) -> Piece:
    return Piece("r", node, offset, text, fragment)


def test_text_is_shown_as_it_comes_and_the_rest_at_the_end() -> None:
    parts = Parts()
    assert parts.open(0, 0) == ""
    assert [parts.take(piece(0, "ab")), parts.take(piece(2, "c"))] == ["ab", "c"]
    assert parts.close(0, "abcd") == "d"
    assert not parts.diverged


def test_what_a_repeated_attempt_says_again_is_dropped() -> None:
    parts = Parts()
    parts.open(0, 0)
    texts = [parts.take(p) for p in (piece(0, "abc"), piece(0, "ab"), piece(1, "bcde"))]
    assert texts == ["abc", "", "de"]
    assert parts.take(piece(9, "a gap")) == ""


def test_only_the_text_of_the_nodes_own_is_taken() -> None:
    parts = Parts()
    parts.open(0, 1)
    assert parts.take(piece(0, "other", node=0)) == ""
    assert parts.take(piece(0, "mine", node=1)) == "mine"


def test_a_part_waits_until_those_before_it_are_complete() -> None:
    parts = Parts()
    parts.open(3, 0)
    parts.open(5, 0)
    assert parts.take(piece(0, "second", fragment=5)) == ""
    assert parts.take(piece(0, "fi", fragment=3)) == "fi"
    assert parts.close(5, "second!") == ""
    assert parts.close(3, "first ") == "rst second!"


def test_pieces_that_come_before_their_part_is_opened_are_kept() -> None:
    parts = Parts()
    assert parts.take(piece(0, "ab", fragment=2)) == ""
    assert parts.take(piece(2, "cd", fragment=2)) == ""
    assert parts.open(2, 0) == "abcd"


def test_a_part_that_failed_keeps_what_was_shown_and_lets_the_next_one_begin() -> None:
    parts = Parts()
    parts.open(0, 0)
    parts.open(1, 0)
    assert parts.take(piece(0, "half a sen")) == "half a sen"
    assert parts.take(piece(0, "whole", fragment=1)) == ""
    assert parts.close(0, None) == "whole"
    assert parts.take(piece(10, "tence")) == ""


def test_shown_text_that_turns_out_differently_is_told() -> None:
    parts = Parts()
    parts.open(0, 0)
    parts.take(piece(0, "one"))
    assert parts.close(0, "two") == ""
    assert parts.diverged


def test_text_that_nobody_saw_may_turn_out_differently() -> None:
    parts = Parts()
    parts.open(0, 0)
    parts.open(1, 0)
    parts.take(piece(0, "one", fragment=1))
    parts.close(1, "two")
    assert parts.close(0, "first, ") == "first, two"
    assert not parts.diverged


def test_the_end_of_a_run_shows_what_still_waited() -> None:
    parts = Parts()
    parts.open(0, 0)
    parts.open(1, 0)
    parts.take(piece(0, "later", fragment=1))
    assert parts.close_all() == "later"


TEXTS = st.lists(st.text(max_size=8), min_size=1, max_size=4)


@given(texts=TEXTS, data=st.data())
def test_pieces_concatenate_to_the_texts_in_the_order_of_the_calls(
    texts: list[str], data: st.DataObject
) -> None:
    parts = Parts()
    shown: list[str] = []
    left = dict(enumerate(texts))
    opened: list[int] = []
    sent = dict.fromkeys(left, 0)
    while left:
        ready = sorted(left)
        which = data.draw(st.sampled_from(ready))
        what = data.draw(st.sampled_from(["open", "take", "close"]))
        if what == "open" and len(opened) < len(texts):
            shown.append(parts.open(len(opened), 0))
            opened.append(len(opened))
        elif what == "take":
            count = data.draw(st.integers(0, 3))
            at = max(0, sent[which] - data.draw(st.integers(0, 2)))
            text = texts[which][at : at + count]
            shown.append(parts.take(piece(at, text, fragment=which)))
            sent[which] = max(sent[which], at + len(text))
        elif which in opened:
            shown.append(parts.close(which, left.pop(which)))
    assert "".join(shown) == "".join(texts)
    assert not parts.diverged


@pytest.mark.parametrize("text", ["", "whole"])
def test_a_part_without_pieces_shows_its_text_at_its_end(text: str) -> None:
    parts = Parts()
    parts.open(0, -1)
    assert parts.close(0, text) == text
