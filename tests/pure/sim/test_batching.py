"""Continuous batching against a plain loop over iterations, and where it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.batching import ContinuousBatching
from herasys_rt.sim.instances import Work
from tests.pure.sim.sim_lab import Desk, LinearSteps, call


def bench(
    slots: int = 4, budget: int = 64, **steps: float
) -> tuple[Agenda, Desk, ContinuousBatching]:
    agenda = Agenda()
    desk = Desk(agenda)
    times = LinearSteps(**steps)  # type: ignore[arg-type]
    llm = ContinuousBatching("llm", agenda, desk, times, slots=slots, budget=budget)
    return agenda, desk, llm


def reference(
    calls: list[tuple[float, int, int]], slots: int, budget: int, times: LinearSteps
) -> dict[int, float]:
    """When each of (arrival, prompt, output) ends: one iteration after the other."""
    now, ends = 0.0, {}
    waiting = sorted(range(len(calls)), key=lambda i: (calls[i][0], i))
    running: list[dict[str, int]] = []
    while waiting or running:
        here = [i for i in waiting if calls[i][0] <= now]
        if not running and not here:
            now = calls[waiting[0]][0]
            continue
        decoding = [r for r in running if r["left"] == 0]
        left = budget - len(decoding)
        context = sum(r["context"] for r in decoding)
        chunks: list[tuple[dict[str, int], int]] = []
        for r in running:
            if r["left"] and left > 0:
                chunks.append((r, min(r["left"], left)))
                left -= chunks[-1][1]
        while left > 0 and here and len(running) < slots:
            held = sum(r["size"] for r in running)
            i = here[0]
            size = calls[i][1] + calls[i][2]
            if held + size > times.kv_capacity_tokens:
                break
            here.pop(0)
            waiting.remove(i)
            r = {"i": i, "left": calls[i][1], "done": 0, "size": size, "context": 0}
            r["output"] = calls[i][2]
            running.append(r)
            chunks.append((r, min(r["left"], left)))
            left -= chunks[-1][1]
        attended = sum(n * r["done"] + n * n // 2 for r, n in chunks)
        prefill = sum(n for _, n in chunks)
        now += times.mixed_s(prefill, attended, len(decoding), context)
        for r in decoding:
            r["output"] -= 1
            r["context"] += 1
        for r, n in chunks:
            r["left"] -= n
            r["done"] += n
            if not r["left"]:
                r["output"] -= 1
                r["context"] = r["done"] + 1
        for r in list(running):
            if r["left"] == 0 and r["output"] <= 0:
                running.remove(r)
                ends[r["i"]] = now
    return ends


arrivals = st.lists(
    st.tuples(
        st.integers(0, 3000).map(lambda ms: ms / 1000 + 1e-7),
        st.integers(1, 300),
        st.integers(1, 200),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(arrivals, st.integers(1, 5), st.sampled_from([16, 64, 500]), st.integers(0, 1))
def test_stretches_end_items_when_single_iterations_would(
    calls: list[tuple[float, int, int]], slots: int, budget: int, pairs: int
) -> None:
    times = LinearSteps(kv_capacity_tokens=700, pair_s=1e-6 * pairs)
    agenda = Agenda()
    desk = Desk(agenda)
    llm = ContinuousBatching("llm", agenda, desk, times, slots=slots, budget=budget)
    for i, (at, prompt, output) in enumerate(calls):
        agenda.at(at, lambda i=i, p=prompt, o=output: llm.start([call(i, p, o)]))
    expected = reference(calls, slots, budget, times)
    faults: list[str | None] = []
    for ms in range(0, int(1000 * max(expected.values())) + 8, 7):
        agenda.at(ms / 1000, lambda: faults.append(llm.fault()))
    agenda.run()
    assert set(faults) == {None}
    assert desk.times().keys() == expected.keys()
    for i, end in desk.times().items():
        assert end == pytest.approx(expected[i], rel=1e-9, abs=1e-9)
    assert llm.prefilled == sum(prompt for _, prompt, _ in calls)
    assert llm.decoded == sum(output for _, _, output in calls)
    assert llm.memory.held == 0


def test_one_call_alone_takes_its_prefill_and_its_decode_steps() -> None:
    agenda, desk, llm = bench(budget=1000, context_s=0.0)
    llm.start([call(1, 100, 11)])
    agenda.run()
    assert desk.ends == [
        (pytest.approx(0.01 + 100e-4 + 10 * 0.011), "finished", 1),
    ]
    assert llm.busy_s == pytest.approx(desk.ends[0][0])


def test_whoever_comes_during_a_stretch_joins_at_the_end_of_an_iteration() -> None:
    agenda, desk, llm = bench(budget=1000, context_s=0.0)
    llm.start([call(1, 100, 101)])
    step_s, first_s = 0.011, 0.02
    agenda.at(first_s + 4.5 * step_s, lambda: llm.start([call(2, 100, 1)]))
    agenda.run()
    # Five iterations are over; then one prefill beside the first sequence's token.
    assert desk.ends[0] == (pytest.approx(first_s + 5 * step_s + 0.021), "finished", 2)
    assert desk.ends[1][0] == pytest.approx(first_s + 99 * step_s + 0.021)


def test_nobody_passes_the_first_that_does_not_fit() -> None:
    agenda, desk, llm = bench(slots=9, kv_capacity_tokens=300)
    llm.start([call(1, 200, 50), call(2, 200, 50), call(3, 10, 2)])
    agenda.run()
    assert [flight for _, _, flight in desk.ends] == [1, 3, 2]
    begun = desk.times()
    assert begun[3] > begun[1]


def test_a_call_that_can_never_fit_is_refused_with_the_numbers() -> None:
    agenda, desk, llm = bench(kv_capacity_tokens=100)
    said: list[str] = []
    desk.refused = lambda _, work, problem: said.append(problem)  # type: ignore[method-assign]
    llm.start([call(1, 90, 11)])
    agenda.run()
    assert said == [
        "prompt and output of 101 tokens exceed the 100 KV tokens of instance llm"
    ]


def test_an_aborted_sequence_leaves_at_the_end_of_the_iteration() -> None:
    agenda, desk, llm = bench(budget=1000, context_s=0.0)
    llm.start([call(1, 100, 1000), call(2, 100, 20)])
    agenda.at(0.1, lambda: llm.abort(1, 1))
    agenda.run()
    (aborted, finished) = desk.ends
    assert aborted[1:] == ("aborted", 1)
    assert 0.1 <= aborted[0] <= 0.1 + 0.012
    assert finished[1:] == ("finished", 2)
    assert llm.memory.held == 0
    assert llm.fault() is None


def test_abort_of_the_waiting_and_of_the_unknown() -> None:
    agenda, desk, llm = bench(slots=1)
    llm.start([call(1, 10, 500), call(2, 10, 500)])
    agenda.at(0.05, lambda: llm.abort(2, 1))
    agenda.at(0.06, lambda: llm.abort(7, 1))
    agenda.at(0.07, lambda: llm.abort(1, 1))
    agenda.at(0.07, lambda: llm.abort(1, 1))
    agenda.run()
    assert [(what, flight) for _, what, flight in desk.ends] == [
        ("aborted", 2),
        ("aborted", 1),
    ]
    assert desk.ends[0][0] == 0.05


def test_an_abort_during_prefill_frees_the_prompt() -> None:
    agenda, desk, llm = bench(budget=10)
    llm.start([call(1, 100, 5), call(2, 5, 1)])
    agenda.at(0.015, lambda: llm.abort(1, 1))
    agenda.run()
    assert [(what, flight) for _, what, flight in desk.ends] == [
        ("aborted", 1),
        ("finished", 2),
    ]
    assert llm.fault() is None


def test_a_lost_instance_says_nothing_any_more() -> None:
    agenda, desk, llm = bench()
    llm.start([call(1, 100, 50), call(2, 100_000, 1)])
    agenda.at(0.02, llm.lose)
    agenda.run()
    assert desk.ends == [(0.0, "refused", 2)]


def test_the_heads_of_prompts_are_computed_once() -> None:
    agenda, _, llm = bench(budget=1000)
    blocks = tuple(range(6))
    llm.start([call(1, 100, 2, prefix=blocks)])
    agenda.run()
    llm.start([call(2, 100, 2, prefix=blocks)])
    agenda.run()
    assert llm.prefilled == 100 + 4
    llm.start([call(3, 100, 2, cached_tokens=60)])
    agenda.run()
    assert llm.prefilled == 100 + 4 + 40


def test_a_prompt_from_elsewhere_arrives_later_and_only_decodes() -> None:
    agenda = Agenda()
    desk = Desk(agenda)
    llm = ContinuousBatching(
        "d", agenda, desk, LinearSteps(context_s=0.0), slots=2, budget=64,
        transfer_s=lambda tokens, source: tokens * 1e-3 + (source == "far") * 1.0,
    )  # fmt: skip
    for flight, source in ((1, "near"), (2, "far")):
        work = call(flight, 100, 11)
        llm.start([Work(flight, 1, "llm.decode", work.truth, source)])
    agenda.run()
    assert desk.times() == {
        1: pytest.approx(0.1 + 10 * 0.011),
        2: pytest.approx(1.1 + 10 * 0.011),
    }
    assert llm.prefilled == 0


def test_an_abort_on_the_way_ends_at_once() -> None:
    agenda = Agenda()
    desk = Desk(agenda)
    llm = ContinuousBatching(
        "d", agenda, desk, LinearSteps(), slots=2, budget=64,
        transfer_s=lambda tokens, source: 1.0,
    )  # fmt: skip
    llm.start([Work(1, 1, "llm.decode", call(1, 9, 9).truth, "p")])
    agenda.at(0.5, lambda: llm.abort(1, 1))
    agenda.run()
    assert desk.ends == [(0.5, "aborted", 1)]
