"""What was written down is used for as long as it may be, and never longer."""

from __future__ import annotations

import math

import pytest

from herasys_rt.runtime.lifetimes import SKEW_S, Moment, left_s, moment_now

MADE = Moment("boot", 1_000.0, 50_000.0)
HOUR_S = 3_600.0


@pytest.mark.parametrize("set_s", [-5 * HOUR_S, -HOUR_S, 0.0, HOUR_S])
def test_within_a_boot_the_time_of_day_changes_nothing(set_s: float) -> None:
    now = Moment("boot", 1_100.0, 50_100.0 + set_s)
    assert left_s(300.0, MADE, now) == 200.0
    assert left_s(100.0, MADE, now) == 0.0


@pytest.mark.parametrize("set_s", [-HOUR_S, -60.0, 0.0, HOUR_S])
def test_after_a_reboot_an_hour_of_skew_only_shortens(set_s: float) -> None:
    true_age_s = 2 * HOUR_S
    now = Moment("next", 5.0, MADE.wall_s + true_age_s + set_s)
    assert left_s(10 * HOUR_S, MADE, now) <= 10 * HOUR_S - true_age_s
    assert left_s(10 * HOUR_S, MADE, now) >= 10 * HOUR_S - true_age_s - 2 * SKEW_S


def test_a_clock_that_went_back_ends_what_it_cannot_date() -> None:
    assert left_s(1e9, MADE, Moment("next", 5.0, MADE.wall_s - 1.0)) == 0.0
    assert left_s(1e9, MADE, Moment("boot", MADE.boot_s - 1.0, MADE.wall_s)) == 0.0


def test_what_has_no_end_has_none() -> None:
    assert math.isinf(left_s(math.inf, MADE, Moment("next", 0.0, 0.0)))


def test_this_moment_is_of_this_boot() -> None:
    first, second = moment_now(), moment_now()
    assert first.boot == second.boot != ""
    assert left_s(60.0, first, second) > 0
