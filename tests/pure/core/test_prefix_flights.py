"""Partial prefills: one flight per head and instance, and nothing kept of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.core.prefix_flights import HeadKey, PrefixFlights, Warming, head_digest

HEAD = HeadKey(b"head", "llm-0")


def test_equal_heads_on_one_instance_share_a_flight():
    table = PrefixFlights()
    assert table.warm(HEAD, 1, resident=False) == Warming(1, False)
    assert table.warm(HEAD, 2, resident=False) == Warming(1, True)
    assert len(table) == 1


def test_each_instance_warms_its_own():
    table = PrefixFlights()
    table.warm(HEAD, 1, resident=False)
    other = HeadKey(HEAD.head, "llm-1")
    assert table.warm(other, 2, resident=False) == Warming(2, False)


def test_a_head_that_the_instance_holds_needs_no_flight():
    assert PrefixFlights().warm(HEAD, 1, resident=True) is None


def test_residency_is_asked_anew_after_a_flight_has_ended():
    table = PrefixFlights()
    table.warm(HEAD, 1, resident=False)
    table.end(1)
    assert len(table) == 0
    assert table.warm(HEAD, 2, resident=True) is None
    assert table.warm(HEAD, 3, resident=False) == Warming(3, False), "it was evicted"


def test_a_flight_under_way_is_joined_whatever_the_instance_says():
    table = PrefixFlights()
    table.warm(HEAD, 1, resident=False)
    assert table.warm(HEAD, 2, resident=True) == Warming(1, True)


def test_an_instance_that_goes_down_takes_its_flights_along():
    table = PrefixFlights()
    elsewhere = HeadKey(HEAD.head, "llm-1")
    for flight, key in enumerate([HEAD, HeadKey(b"other", "llm-0"), elsewhere]):
        table.warm(key, flight, resident=False)
    assert table.drop("llm-0") == [0, 1]
    assert table.drop("llm-0") == []
    table.end(0)
    assert table.warm(HEAD, 3, resident=False) == Warming(3, False)
    assert table.warm(elsewhere, 4, resident=False) == Warming(2, True)


def test_one_test_per_field_that_decides_the_kv_of_a_head():
    tokens = list(range(32))
    base = head_digest(b"scope", "model", tokens, 16)
    assert base == head_digest(b"scope", "model", tuple(tokens), 16)
    assert base != head_digest(b"other", "model", tokens, 16)
    assert base != head_digest(b"scope", "other", tokens, 16)
    assert base != head_digest(b"scope", "model", [*tokens[:-1], 99], 16)
    assert base != head_digest(b"scopem", "odel", tokens, 16)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 16))
def test_only_whole_blocks_count(tokens, block):
    whole = len(tokens) // block * block
    digest = head_digest(b"", "m", tokens, block)
    assert digest == head_digest(b"", "m", tokens[:whole], block)
    assert (digest is None) == (len(tokens) < block)
