"""The fusion benchmark: its loads, its figures, its table."""

from __future__ import annotations

import pytest

from benchmarks import _fusion_engines as engines
from benchmarks import fusion
from benchmarks._fusion_engines import Blocks, Load, Served
from herasys_rt.core.state import KernelConfig


def served(seconds: float, runs: int, cpu_s: float, executed: int = 0) -> Served:
    ends_s = tuple(seconds * (i + 1) / runs for i in range(runs))
    return Served(ends_s, cpu_s, 3 * runs, executed or 3 * runs)


def test_a_repeated_run_asks_what_an_earlier_one_of_its_kind_asked():
    asks = engines.asked(Load("mixed", 0.3, 5), 200)
    seen: set[tuple[str, str]] = set()
    for ask in asks:
        known = (ask.kind, ask.inputs["question"])
        assert ask.repeats == (known in seen)
        seen.add(known)
    assert {ask.kind for ask in asks} == {"rag", "rag_rerank", "web"}
    assert 0.2 < sum(ask.repeats for ask in asks) / len(asks) < 0.4
    assert asks == engines.asked(Load("mixed", 0.3, 5), 200)


def test_the_runs_of_quick_repeat_as_much_as_all_do():
    for load, effort in fusion.FULL.items():
        few = fusion.QUICK[load].blocks * fusion.QUICK[load].runs
        asks = engines.asked(load, effort.blocks * effort.runs)
        for some in (asks[:few], asks):
            share = sum(ask.repeats for ask in some) / len(some)
            assert share == pytest.approx(load.duplicates, abs=0.05)


def test_figures_hold_the_gain_against_what_is_there_twice():
    blocks = Blocks(
        on=[served(80.0, 40, 100.0, executed=90)],
        off=[served(100.0, 40, 125.0)],
        single=[served(75.0, 30, 90.0)],
    )
    told = engines.figures(blocks)
    assert told["ratio"] == 1.25
    assert engines.ratio_interval(blocks) == pytest.approx((1.25, 1.25))
    assert told["w"] == 0.28
    assert told["cpu_ratio"] == 1.25
    assert told["bound"] == pytest.approx(1.3889)
    assert told["share_of_bound"] == 0.9
    assert told["executed_share"] == 0.75
    assert told["runs_per_s"] == {"on": 0.5, "off": 0.4}
    assert (told["runs_per_arm"], told["runs_repeated"]) == (40, 10)


def test_gaps_add_up_to_the_whole_time_with_a_last_one_that_may_be_short():
    ends_s = tuple(float(i) for i in range(1, 26))
    assert engines.gaps(ends_s) == [10.0, 10.0, 5.0]
    assert sum(engines.gaps(ends_s[:20])) == 20.0


def test_the_table_stays_within_its_bounds(monkeypatch):
    monkeypatch.setattr(fusion, "PORTION", 1_000)
    told = fusion.million(3_000, KernelConfig(reuse_max_entries=1_000))
    assert told["entries"] == 1_000
    assert 0 < told["bytes_per_entry"] < 2000
