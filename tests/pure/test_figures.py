"""Percentiles and what is told of many values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.figures import distribution, percentile

floats = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def test_the_percentile_lies_between_neighbours() -> None:
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([1.0, 2.0], 75) == 1.75
    assert percentile([1, 2, 3], 0) == 1
    assert percentile([1, 2, 3], 100) == 3
    assert percentile([7], 99) == 7


@given(floats, st.floats(0, 100))
def test_the_percentile_stays_within_the_values(values: list[float], q: float) -> None:
    slack = 1e-9 * max(1.0, *(abs(v) for v in values))
    found = percentile(values, q)
    assert min(values) - slack <= found <= max(values) + slack


def test_no_values_have_no_percentile() -> None:
    assert math.isnan(percentile([], 50))
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], 101)


def test_a_distribution_is_its_mean_and_percentiles() -> None:
    told = distribution([float(i) for i in range(101)])
    assert told == {"mean": 50.0, "p50": 50.0, "p95": 95.0, "p99": 99.0}
