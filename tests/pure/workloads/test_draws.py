from __future__ import annotations

import math
import statistics

import pytest

from herasys_rt.errors import ConfigError
from herasys_rt.workloads.draws import (
    MAX_COUNT,
    MAX_TOKENS,
    Spread,
    Streams,
    Zipf,
    fixed,
    poisson_times,
)

DRAWS = 20_000


def sample(spread: Spread, count: int = DRAWS, seed: int = 1) -> list[float]:
    stream = Streams(seed).of("test")
    return [spread.draw(stream) for _ in range(count)]


def test_a_lognormal_has_the_mean_it_names():
    values = sample(Spread(150, 0.6))
    assert statistics.fmean(values) == pytest.approx(150, rel=0.02)
    assert statistics.median(values) == pytest.approx(150 * math.exp(-0.18), rel=0.02)
    assert statistics.stdev(map(math.log, values)) == pytest.approx(0.6, rel=0.02)


def test_a_lognormal_of_a_median_has_that_median():
    values = sample(Spread.of_median(0.4, 0.5))
    assert statistics.median(values) == pytest.approx(0.4, rel=0.02)


def test_a_normal_has_mean_and_deviation():
    values = sample(Spread(16, 5, law="normal", low=-100))
    assert statistics.fmean(values) == pytest.approx(16, rel=0.01)
    assert statistics.stdev(values) == pytest.approx(5, rel=0.02)


def test_an_exponential_has_its_mean_behind_the_offset():
    values = sample(Spread(5.5, law="exponential", offset=1))
    assert statistics.fmean(values) == pytest.approx(6.5, rel=0.02)
    assert min(values) >= 1
    above = sum(value > 1 + 5.5 for value in values) / len(values)
    assert above == pytest.approx(math.exp(-1), abs=0.01)


def test_an_exponential_survives_the_far_tails():
    class Far:
        def standard_normal(self) -> float:
            return 60.0

    assert Spread(5.5, law="exponential", high=40).draw(Far()) == 40  # pyright: ignore[reportArgumentType]


def test_bounds_hold():
    values = sample(Spread(100, 2.0, low=20, high=300))
    assert min(values) == 20
    assert max(values) == 300


def test_without_sigma_every_draw_is_the_mean():
    assert set(sample(fixed(7), 10)) == {7.0}
    assert set(sample(fixed(0), 10)) == {0.0}


def test_whole_numbers_have_a_floor_and_a_ceiling():
    stream = Streams(1).of("test")
    assert fixed(0).whole(stream) == 1
    assert fixed(0).whole(stream, least=0) == 0
    assert fixed(10).whole(stream, scale=0.24) == 2
    assert fixed(1e300).whole(stream) == MAX_TOKENS
    assert fixed(1e300).count(stream) == MAX_COUNT


def test_a_scaled_spread_draws_scaled_values():
    spread = Spread(150, 0.6, high=512)
    plain, scaled = sample(spread), sample(spread.scaled(0.5, 8))
    for one, half in zip(plain, scaled, strict=True):
        assert half == pytest.approx(max(one / 2, 8))


@pytest.mark.parametrize(
    "spread",
    [fixed(3), Spread(9, 1), Spread(9, 1, law="normal"), Spread(9, law="exponential")],
)
def test_every_draw_takes_one_number(spread):
    one, other = Streams(3).of("test"), Streams(3).of("test")
    spread.draw(one)
    other.standard_normal()
    assert one.random() == other.random()


def test_streams_are_independent_of_each_other():
    alone = Streams(5).of("lengths").random(5).tolist()
    streams = Streams(5)
    streams.of("arrivals").random(1000)
    assert streams.of("lengths").random(5).tolist() == alone
    assert Streams(5).of("arrivals").random(5).tolist() != alone
    assert Streams(6).of("lengths").random(5).tolist() != alone
    assert Streams(5).below("part").of("lengths").random(5).tolist() != alone


def test_a_stream_goes_on_where_it_was_left():
    streams = Streams(5)
    first = streams.of("lengths").random(3).tolist()
    rest = streams.of("lengths").random(3).tolist()
    assert Streams(5).of("lengths").random(6).tolist() == first + rest


def test_streams_of_purposes_do_not_correlate():
    one = Streams(0).of("a").standard_normal(DRAWS)
    other = Streams(0).of("b").standard_normal(DRAWS)
    assert abs(float((one * other).mean())) < 0.03


def test_streams_take_any_name_and_any_size_of_seed():
    assert Streams(10**40).of("größe ♥ \ud800").random() >= 0


def test_the_seeds_of_streams_are_written_down():
    """A change here changes every result that was ever reported for a seed."""
    assert Streams(0).of("arrivals").random() == pytest.approx(0.21339481080009048)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed is -1"):
        Streams(-1)


def test_ranks_follow_zipfs_law():
    zipf, stream, count = Zipf(1.0), Streams(2).of("ranks"), 20
    drawn = [zipf.rank(count, stream) for _ in range(DRAWS)]
    harmonic = sum(1 / k for k in range(1, count + 1))
    for rank in range(count):
        share = drawn.count(rank) / DRAWS
        assert share == pytest.approx(1 / (rank + 1) / harmonic, abs=0.01)


def test_of_one_thing_the_rank_is_the_first():
    assert {Zipf(1.0).rank(1, Streams(2).of("ranks")) for _ in range(10)} == {0}


def test_without_an_exponent_all_ranks_are_alike():
    zipf, stream = Zipf(0.0), Streams(2).of("ranks")
    drawn = [zipf.rank(4, stream) for _ in range(DRAWS)]
    assert all(abs(drawn.count(rank) / DRAWS - 0.25) < 0.02 for rank in range(4))


def test_poisson_arrivals_have_the_rate_and_its_spread():
    times = poisson_times(DRAWS, 40.0, Streams(1).of("arrivals"))
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 40, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 40, rel=0.03)


def test_another_rate_stretches_the_same_arrivals():
    slow = poisson_times(50, 1.0, Streams(1).of("arrivals"))
    fast = poisson_times(50, 8.0, Streams(1).of("arrivals"))
    assert fast == pytest.approx([at / 8 for at in slow])
