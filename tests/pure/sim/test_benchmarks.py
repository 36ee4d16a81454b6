"""The benchmarks of kernel and queues measure what they say."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from benchmarks import kernel, queueing
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
