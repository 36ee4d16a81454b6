"""Output lengths learnt online, and predictions corrected online."""

from __future__ import annotations

import pytest

from herasys_rt.costs.correction import Correction
from herasys_rt.costs.lengths import UNSEEN_TOKENS, OutputLengths

EMBED = ("embed@1", "embedder")


def seen(*tokens: int) -> OutputLengths:
    lengths = OutputLengths()
    for one in tokens:
        lengths.observe("m", "generate@1", one)
    return lengths


def test_an_unseen_kind_is_expected_to_be_ordinary_but_within_its_limit():
    lengths = OutputLengths()
    assert lengths.expected("m", "generate@1") == UNSEEN_TOKENS
    assert lengths.expected("m", "generate@1", 20) == 20.0


def test_kinds_are_learnt_apart():
    lengths = seen(10, 30)
    lengths.observe("m", "judge@1", 500)
    assert lengths.expected("m", "generate@1") == 20.0
    assert lengths.expected("m", "judge@1") == 500.0
    assert lengths.expected("other", "generate@1") == UNSEEN_TOKENS


def test_a_decode_past_its_prediction_is_expected_to_go_on():
    lengths = seen(*[100] * 90, *[1000] * 10)
    assert lengths.expected("m", "generate@1") == pytest.approx(190.0)
    assert lengths.expected_given_more_than("m", "generate@1", 0) == pytest.approx(190.0)
    assert lengths.expected_given_more_than("m", "generate@1", 150) == pytest.approx(1000.0)
    assert lengths.expected_given_more_than("m", "generate@1", 5000) == 5064.0
    assert lengths.expected_given_more_than("m", "generate@1", 5000, 5010) == 5010.0
    unseen = OutputLengths()
    assert unseen.expected_given_more_than("m", "generate@1", 100) == 164.0


def test_old_lengths_fade():
    lengths = seen(*[1000] * 2000, *[10] * 6000)
    assert lengths.expected("m", "generate@1") < 150.0


def test_equal_histories_predict_equally():
    tokens = [3 + 7 * i % 501 for i in range(3000)]
    one, other = seen(*tokens), seen(*tokens)
    assert one.expected("m", "generate@1") == other.expected("m", "generate@1")


def test_an_empty_output_is_an_observation():
    assert seen(0).expected("m", "generate@1") == 0.0


def test_nothing_is_corrected_before_anything_was_seen():
    assert Correction().factor(EMBED) == 1.0


def test_a_constant_ratio_is_found_at_once_and_kept():
    correction = Correction()
    for _ in range(50):
        correction.observe(EMBED, 2.0, 3.0)
        assert correction.factor(EMBED) == pytest.approx(1.5)
    assert correction.factor(("rerank@1", "reranker")) == 1.0


def test_half_and_double_cancel():
    correction = Correction()
    correction.observe(EMBED, 1.0, 2.0)
    correction.observe(EMBED, 1.0, 0.5)
    assert correction.factor(EMBED) == pytest.approx(1.0)


def test_one_stall_changes_little_and_nothing_is_corrected_beyond_the_limit():
    correction = Correction()
    for _ in range(50):
        correction.observe(EMBED, 1.0, 1.0)
    correction.observe(EMBED, 1.0, 1e6)
    assert 1.0 < correction.factor(EMBED) < 1.2
    for _ in range(500):
        correction.observe(EMBED, 1.0, 1e6)
    assert correction.factor(EMBED) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("predicted", "measured"), [(0.0, 1.0), (1.0, 0.0), (float("inf"), 1.0), (1.0, -1.0)]
)
def test_what_cannot_be_a_ratio_is_ignored(predicted, measured):
    correction = Correction()
    correction.observe(EMBED, predicted, measured)
    assert correction.factor(EMBED) == 1.0


def test_a_trend_is_followed():
    correction = Correction()
    for _ in range(30):
        correction.observe(EMBED, 1.0, 1.0)
    for _ in range(60):
        correction.observe(EMBED, 1.0, 2.0)
    assert correction.factor(EMBED) == pytest.approx(2.0, rel=0.02)
