"""The benchmarks of kernel and queues measure what they say."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from benchmarks import baselines, kernel, length_scales, queueing
from herasys_rt.core.invariants import validate


def test_the_kernels_loop_stays_at_its_number_of_active_nodes() -> None:
    loop = kernel.Loop(active=300, events=200)
    for _ in range(200):
        loop.step()
    validate(loop.state)
    totals = loop.state.totals
    assert 90 <= len(loop.state.runs) <= 100
    assert totals.runs_refused == 0 and totals.executed > 50


def test_the_kernel_leaves_no_cycles_for_the_collector() -> None:
    loop = kernel.Loop(active=60, events=200)
    gc.collect()
    gc.disable()
    try:
        for _ in range(200):
            loop.step()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_exponent_is_the_slope_of_the_cost() -> None:
    sizes = (10, 100, 1000)
    assert kernel.exponent(sizes, [100.0, 100.0, 100.0]) == pytest.approx(0.0)
    assert kernel.exponent(sizes, [100.0, 10.0, 1.0]) == pytest.approx(1.0)


@pytest.mark.parametrize("queue", queueing.QUEUES)
def test_simulated_waits_are_lindleys_and_near_the_formula(queue: str) -> None:
    draws = np.random.Generator(np.random.PCG64(5))
    gaps, services = queueing.draw(queue, 0.8, 400, draws)
    waits = np.array(queueing.simulated(gaps, services))
    assert np.abs(waits - queueing.lindley(gaps, services)).max() < 1e-9
    many = queueing.lindley(*queueing.draw(queue, 0.8, 2_000_000, draws))
    assert float(many.mean()) == pytest.approx(queueing.theory(queue, 0.8), rel=0.03)


def test_a_length_scale_is_where_the_figure_crosses_nearest_to_one() -> None:
    def cell_at(scale: float) -> length_scales.Cell:
        # Falls to 1 at a scale of 1, and rises on either side.
        return 1 + abs(np.log(scale)), 9.0

    scale, tried = length_scales.bisect(cell_at, 2.2)
    assert scale is not None
    assert cell_at(scale)[0] == pytest.approx(2.2, rel=length_scales.TOLERANCE)
    assert [point[0] for point in tried] == sorted(point[0] for point in tried)


def test_a_figure_that_is_never_reached_has_no_length_scale() -> None:
    scale, tried = length_scales.bisect(lambda scale: (scale, scale), 99.0)
    assert scale is None
    assert [point[0] for point in tried] == list(length_scales.GRID)


def test_cells_of_baselines_are_medians_beside_the_papers() -> None:
    found = {
        baselines.Task(trace, "qwen-h1", policy, seed): baselines.Found(
            level + seed, 2 * level + seed, 0.1
        )
        for trace in baselines.TRACES
        for policy, level in (("llf_2x", 1.0), ("atlas", 2.0))
        for seed in range(3)
    }
    cells = baselines.cells_of(found, {"LLF": ("llf_2x",), "ATLAS": ("atlas",)})
    assert len(cells) == 8
    (cell,) = [c for c in cells if c["trace"] == "bfcl" and c["baseline"] == "LLF"]
    assert (cell["req95"], cell["req99"]) == ([2.0, 1.0, 3.0], [3.0, 2.0, 4.0])
    assert cell["paper"] == (8.90, 11.13)
    assert baselines.means_of(cells) == {
        "qwen-h1": {"best": [2.0, 3.0], "paper": (5.60, 7.22)}
    }
    table = baselines.table({"cells": cells, "means": baselines.means_of(cells)})
    assert "| setting | trace | LLF | ATLAS |" in table
    assert "| qwen-h1 | bfcl | 2.00 / 3.00 [1.00, 3.00] (paper 8.90 / 11.13) |" in table


def test_every_baseline_is_one_of_its_variants() -> None:
    assert {
        name: policy in baselines.VARIANTS[name]
        for name, policy in baselines.POLICIES.items()
    } == dict.fromkeys(baselines.POLICIES, True)


def test_a_baseline_is_simulated_by_names() -> None:
    found = baselines.run(baselines.Task("sharegpt", "llama-h200", "per_call", 1))
    assert 1.0 < found.req95 <= found.req99 < 10.0
