"""Eq. 3: the priority of a flight with several members, kept and recomputed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.core.merged_priority import Member, MergedPriority, Weights, merged

WEIGHTS = Weights(alpha=1.0, gamma=0.3, delta=0.5)
MEMBERS = st.builds(
    Member,
    srtf=st.floats(0.0, 1.0) | st.sampled_from([0.25, 0.5]),
    phi=st.floats(0.0, 1.0, exclude_max=True),
    heavy=st.booleans(),
    tenant=st.sampled_from("ab"),
    short=st.booleans(),
)
STEPS = st.lists(st.tuples(st.integers(0, 14), MEMBERS | st.none()), max_size=60)
"""(seat, what it brings); None: the member leaves."""


def member(srtf=0.0, phi=0.0, heavy=False, tenant="a", short=False) -> Member:
    return Member(srtf, phi, heavy, tenant, short)


def kept(*members: Member) -> MergedPriority:
    entry = MergedPriority(WEIGHTS)
    for seat, one in enumerate(members):
        entry.put(seat, one)
    return entry


@given(STEPS)
def test_what_is_kept_equals_the_recomputation_after_any_joins_and_leaves(steps):
    entry, model = MergedPriority(WEIGHTS), dict[int, Member]()
    for seat, joins in steps:
        if joins is not None:
            model[seat] = joins
            entry.put(seat, joins)
        elif model.pop(seat, None) is not None:
            entry.remove(seat)
        assert len(entry) == len(model)
        for contested in (False, True):
            if model:
                assert entry.value(contested) == merged(model, WEIGHTS, contested)


@given(st.lists(MEMBERS, min_size=1, max_size=12), st.booleans())
def test_a_flight_is_at_least_as_urgent_as_each_of_its_members_alone(members, contested):
    together = kept(*members).value(contested)
    for one in members:
        alone = kept(one).value(contested)
        assert together.score >= alone.score
        assert together.short or not alone.short


@given(st.lists(MEMBERS, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_joining_does_not_matter(members, random):
    seats = list(range(len(members)))
    random.shuffle(seats)
    entry = MergedPriority(WEIGHTS)
    for seat in seats:
        entry.put(seat, members[seat])
    assert entry.value(True) == kept(*members).value(True)


def test_the_weights_are_those_of_the_paper_unless_others_are_given():
    assert Weights() == WEIGHTS


def test_the_score_takes_the_best_term_the_sum_of_phi_and_the_largest_y():
    value = kept(member(srtf=0.25, phi=0.5, heavy=True), member(srtf=0.5, phi=0.25)).value(
        contested=False
    )
    assert value.score == pytest.approx(1.0 * 0.5 + 0.3 * 0.75 + 0.5)


def test_a_flight_is_short_when_any_member_is_and_long_when_that_one_leaves():
    entry = kept(member(), member(short=True))
    assert entry.value(False).short
    entry.remove(1)
    assert not entry.value(False).short


def test_a_short_member_beyond_the_four_keeps_the_flight_short():
    members = [member(srtf=0.5)] * 4 + [member(srtf=0.25, short=True)]
    assert kept(*members).value(contested=True).short


def test_leaving_takes_out_exactly_what_joining_put_in():
    entry = kept(member(srtf=0.5, phi=0.1))
    before = entry.value(False)
    for seat in range(1, 1000):
        entry.put(seat, member(phi=0.3 / seat))
    for seat in range(1, 1000):
        entry.remove(seat)
    assert entry.value(False) == before


def test_of_one_tenant_alone_all_members_count():
    assert kept(*[member(phi=0.5)] * 10).value(contested=False).score == pytest.approx(1.5)


def test_while_another_tenant_waits_the_best_four_of_each_count():
    members = [member(phi=i / 10) for i in range(1, 8)]
    best_four = 0.3 * (0.4 + 0.5 + 0.6 + 0.7)
    assert kept(*members).value(contested=True).score == pytest.approx(best_four)
    both = [*members, member(phi=0.5, tenant="b")]
    assert kept(*both).value(contested=False).score == pytest.approx(best_four + 0.15)


def test_the_fifth_counts_when_one_of_the_four_leaves():
    entry = kept(*[member(phi=0.5)] * 4, member(phi=0.25))
    assert entry.value(True).score == pytest.approx(0.6)
    entry.remove(0)
    assert entry.value(True).score == pytest.approx(0.3 * 1.75)


def test_copies_of_one_run_buy_a_tenant_no_more_than_four():
    four, many = kept(*[member(phi=0.9)] * 4), kept(*[member(phi=0.9)] * 400)
    assert many.value(True) == four.value(True)


def test_without_members_there_is_no_priority():
    entry = kept(member())
    entry.remove(0)
    with pytest.raises(ValueError, match="without members"):
        entry.value(False)
    with pytest.raises(KeyError):
        entry.remove(0)
