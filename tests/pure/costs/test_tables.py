"""Curves and surfaces: monotone, exact at their points, and going on beyond them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.costs.tables import Curve, Surface, levelled

times = st.floats(0.0, 1e3)


def test_levelling_leaves_what_rises_alone():
    rising = np.array([[1.0, 2.0, 2.0], [1.5, 2.5, 9.0]])
    assert np.array_equal(levelled(rising), rising)


def test_levelling_goes_midway_between_the_envelopes():
    assert levelled(np.array([10.0, 12.0, 11.0, 20.0])).tolist() == [10.0, 11.5, 11.5, 20.0]


@given(st.lists(st.lists(times, min_size=3, max_size=3), min_size=2, max_size=5))
def test_levelled_values_rise_along_both_axes(rows):
    level = levelled(np.array(rows))
    assert (np.diff(level, axis=0) >= -1e-9).all()
    assert (np.diff(level, axis=1) >= -1e-9).all()


def test_a_curve_is_flat_before_its_points_and_goes_on_behind_them():
    curve = Curve([10, 20, 40], [1.0, 2.0, 3.0])
    assert [curve(x) for x in (0, 10, 15, 20, 30, 40, 60)] == [1, 1, 1.5, 2, 2.5, 3, 4]


def test_a_curve_that_ends_on_a_stair_goes_on_as_the_stairs_do():
    stairs = Curve([50, 100, 199, 200], [1.0, 2.0, 4.0, 4.0])
    assert stairs(300) == pytest.approx(6.0)


def test_a_curve_of_one_point_is_flat():
    assert Curve([5], [2.0])(1000) == 2.0


@pytest.mark.parametrize(("xs", "ys"), [([], []), ([1, 1], [1, 2]), ([1, 2], [1.0])])
def test_a_curve_needs_rising_points(xs, ys):
    with pytest.raises(ValueError, match="rising xs"):
        Curve(xs, ys)


def test_a_surface_is_exact_on_its_grid_and_bilinear_between():
    surface = Surface([1, 3], [10, 20], np.array([[1.0, 2.0], [3.0, 6.0]]))
    assert surface(1, 10) == 1.0
    assert surface(3, 20) == 6.0
    assert surface(2, 15) == pytest.approx(3.0)


def test_a_surface_goes_on_beyond_its_grid():
    surface = Surface([1, 3], [10, 20], np.array([[1.0, 2.0], [3.0, 6.0]]))
    assert surface(1, 30) == pytest.approx(3.0)
    assert surface(5, 10) == pytest.approx(5.0)
    assert surface(0, 10) == 1.0
    assert surface(1, 0) == 0.0


@pytest.mark.parametrize("values", [[[1.0]], [[1.0, 2.0]]])
def test_a_surface_needs_a_grid(values):
    with pytest.raises(ValueError, match="2 x 2"):
        Surface([1, 2][: len(values)], [1, 2][: len(values[0])], np.array(values))


@given(
    st.lists(st.lists(times, min_size=3, max_size=3), min_size=3, max_size=3),
    st.floats(0, 500),
    st.floats(0, 5000),
    st.floats(0, 100),
)
def test_a_surface_rises_also_outside_its_grid(rows, x, y, more):
    surface = Surface([1, 4, 16], [10, 100, 200], np.array(rows))
    here = surface(x, y)
    assert surface(x + more, y) >= here - 1e-6
    assert surface(x, y + more) >= here - 1e-6
    assert here >= 0.0
