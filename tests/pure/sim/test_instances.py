"""Batch servers and prefill servers: order, batches, aborts, losses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.instances import BatchServer, Work
from herasys_rt.sim.prefill import PrefillServer
from herasys_rt.workloads.arrivals import Truth
from tests.pure.sim.sim_lab import Desk, LinearSteps, call


def wait(flight: int, seconds: float) -> Work:
    return Work(flight, 1, "python.call", Truth(seconds=seconds))


def longest(verb: str, truths: Sequence[Truth]) -> float:
    return max([truth.seconds or 0.0 for truth in truths], default=0.0)


def server(parallel: int = 1) -> tuple[Agenda, Desk, BatchServer]:
    agenda = Agenda()
    desk = Desk(agenda)
    return agenda, desk, BatchServer("s", agenda, desk, longest, parallel)


def test_batches_are_served_in_order_and_their_items_end_together() -> None:
    agenda, desk, one = server()
    one.start([wait(1, 1.0), wait(2, 3.0)])
    one.start([wait(3, 1.0)])
    agenda.run()
    assert desk.ends == [
        (3.0, "finished", 1),
        (3.0, "finished", 2),
        (4.0, "finished", 3),
    ]
    assert one.busy_s == 4.0


def test_places_work_side_by_side() -> None:
    agenda, desk, two = server(parallel=2)
    for flight in (1, 2, 3):
        two.start([wait(flight, 2.0)])
        assert two.fault() is None
    agenda.run()
    assert desk.times() == {1: 2.0, 2: 2.0, 3: 4.0}
    assert two.busy_s == 3.0


def test_an_aborted_item_leaves_its_batch_at_once() -> None:
    agenda, desk, one = server()
    one.start([wait(1, 5.0), wait(2, 2.0)])
    one.start([wait(3, 1.0)])
    agenda.at(1.0, lambda: one.abort(1, 1))
    agenda.at(1.0, lambda: one.abort(3, 1))
    agenda.at(1.0, lambda: one.abort(9, 1))
    agenda.run()
    assert desk.ends == [
        (1.0, "aborted", 1),
        (1.0, "aborted", 3),
        (5.0, "finished", 2),
    ]


def test_a_lost_server_says_nothing_any_more() -> None:
    agenda, desk, one = server()
    one.start([wait(1, 5.0)])
    one.start([wait(2, 5.0)])
    one.abort(2, 1)
    one.lose()
    agenda.run()
    assert desk.ends == []


def prefill(**steps: float) -> tuple[Agenda, Desk, PrefillServer]:
    agenda = Agenda()
    desk = Desk(agenda)
    times = LinearSteps(**steps)  # type: ignore[arg-type]
    return agenda, desk, PrefillServer("p", agenda, desk, times)


def test_prompts_are_computed_one_after_the_other() -> None:
    agenda, desk, one = prefill()
    one.start([call(1, 100, 50), call(2, 200, 50, cached_tokens=150)])
    agenda.run()
    assert desk.times() == {1: pytest.approx(0.02), 2: pytest.approx(0.02 + 0.015)}
    assert one.prefilled == 150
    assert one.fault() is None


def test_a_prompt_begun_is_finished_even_when_unwanted() -> None:
    agenda, desk, one = prefill()
    one.start([call(1, 100, 5), call(2, 100, 5), call(3, 100, 5)])
    agenda.at(0.01, lambda: one.abort(1, 1))
    agenda.at(0.01, lambda: one.abort(2, 1))
    agenda.run()
    assert desk.ends == [
        (0.01, "aborted", 2),
        (pytest.approx(0.02), "aborted", 1),
        (pytest.approx(0.04), "finished", 3),
    ]


def test_a_prefill_server_keeps_heads_and_refuses_what_never_fits() -> None:
    agenda, desk, one = prefill(kv_capacity_tokens=128)
    one.start([call(1, 100, 5, prefix=(1, 2, 3, 4, 5, 6)), call(2, 129, 1)])
    one.start([call(3, 100, 5, prefix=(1, 2, 3, 4, 5, 6))])
    agenda.run()
    assert [(what, flight) for _, what, flight in desk.ends] == [
        ("refused", 2),
        ("finished", 1),
        ("finished", 3),
    ]
    assert one.prefilled == 100 + 4
