"""The fidelity benchmark: live runs become jobs, predictions are held against them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks import fidelity
from benchmarks.fidelity import BLOCK_TOKENS, Latencies, Live
from herasys_rt.costs.batch import LinearBatch
from herasys_rt.costs.layered import StepParts
from herasys_rt.costs.profile import Point, PoolProfile, Profile, VerbProfile
from herasys_rt.costs.service import profiled_service
from herasys_rt.sim.prefix import KvMemory

USAGE = {"prompt_tokens": 70, "completion_tokens": 9, "cached_tokens": 32, "tokens": 14}


def live(latency_s: float, first: int = 0) -> Live:
    return Live(latency_s, tuple(range(first, first + 70)), USAGE)


def verb(name: str, seconds: float) -> VerbProfile:
    return VerbProfile(name, times=LinearBatch(seconds))


def pool(resource: str, slots: int, *verbs: VerbProfile, **more: Any) -> PoolProfile:
    return PoolProfile(resource, resource, "real", "cpu", slots, verbs, **more)


PROFILE = Profile(
    (
        pool(
            "llm",
            4,
            VerbProfile("llm.generate", steps=StepParts(((0, 0.0), (100, 100.0)))),
            kv_capacity_tokens=10_000,
            token_budget=512,
        ),
        pool("embedding", 1, verb("embed", 0.010), batch_limit=8),
        pool("retrieval", 8, verb("pg.search", 0.002)),
    ),
    control_s=0.001,
)


def test_a_live_run_becomes_a_job_of_its_work_without_its_times():
    job = fidelity.job_of(fidelity.rag.spec, 3, live(1.5))
    embed, search, answer = job.steps
    assert (embed.verb, embed.truth.tokens, embed.truth.items) == ("embed", 14, 1)
    assert (search.verb, search.parents) == ("pg.search", ("embed",))
    assert (answer.truth.prompt_tokens, answer.truth.output_tokens) == (70, 9)
    assert all(step.truth.seconds is None for step in job.steps)
    assert answer.truth.cached_tokens == 0, "the model finds out what is cached"


def test_jobs_of_different_runs_share_no_content_key():
    keys = [
        step.truth.prompt_key
        for number in range(3)
        for step in fidelity.job_of(fidelity.rag.spec, number, live(1.0)).steps
    ]
    assert len(set(keys)) == 9


def test_prompts_share_whole_blocks_of_the_engine_and_no_part_of_one():
    head = tuple(range(BLOCK_TOKENS + 20))
    one = fidelity.blocks(head + tuple(range(1000, 1050)))
    other = fidelity.blocks(head + tuple(range(2000, 2050)))
    memory = KvMemory(10_000)
    hold = memory.admit(102, 1, one)
    assert hold is not None
    memory.fill(hold, 102, one)
    assert memory.cached_tokens(102, other) == BLOCK_TOKENS
    assert memory.cached_tokens(103, one) == 3 * BLOCK_TOKENS


def test_the_same_runs_are_simulated_on_the_machine_of_the_profile():
    jobs = [fidelity.job_of(fidelity.rag.spec, n, live(1.0, 100 * n)) for n in range(5)]
    alone = fidelity.simulated(PROFILE, jobs, 1)
    # Prompt 70 ms, eight more tokens of 1 ms; embedding, search; three nodes' links.
    assert alone.mean_s == pytest.approx(0.070 + 0.008 + 0.012 + 0.003)
    assert alone.throughput_rps == pytest.approx(1 / alone.mean_s)
    together = fidelity.simulated(PROFILE, jobs, 5)
    assert together.mean_s > alone.mean_s
    assert together.throughput_rps > alone.throughput_rps


def test_the_worst_error_over_the_concurrencies_counts_whatever_its_sign():
    told = fidelity.compared(
        {
            1: (Latencies(1.0, 1.0, 2.0, 1.0), Latencies(1.02, 1.0, 2.2, 1.0)),
            8: (Latencies(2.0, 2.0, 4.0, 4.0), Latencies(1.8, 2.0, 4.0, 4.4)),
        }
    )
    assert told["mean_error"] == pytest.approx(0.1)
    assert told["p95_error"] == pytest.approx(0.1)
    of_8 = told["by_concurrency"]["8"]
    assert of_8["mean_error"] == pytest.approx(-0.1)
    assert of_8["throughput_error"] == pytest.approx(0.1)
    assert of_8["live"]["p95_s"] == 4.0 and of_8["simulated"]["mean_s"] == 1.8


def test_the_report_has_the_promised_figures():
    recorded = {c: ([live(0.1, 100 * n) for n in range(4)], 0.4) for c in (1, 8, 30)}
    told = fidelity.figures(PROFILE, recorded, {"profile": 0.0})
    assert {"mean_error", "p95_error", "runs", "length_scale", "by_concurrency"} <= set(
        told
    )
    assert told["runs"] == 12
    assert set(told["by_concurrency"]) == {"1", "8", "30"}
    msgspec.json.encode(told)


def test_a_quick_benchmark_still_serves_200_runs_on_seeds_of_their_own():
    assert sum(fidelity.QUICK_RUNS.values()) >= 200
    assert set(fidelity.QUICK_RUNS) == set(fidelity.RUNS) == {1, 8, 30}
    assert fidelity.PROFILE_SEED not in fidelity.SEEDS.values()


def test_drawn_questions_all_differ_and_answers_have_the_workloads_mean():
    drawn = fidelity.drawn(11, 300) + fidelity.drawn(12, 300)
    assert len({inputs["question"] for inputs in drawn}) == 600
    mean = sum(inputs["tokens"] for inputs in drawn) / 600
    assert mean == pytest.approx(150 * fidelity.LENGTH_SCALE, rel=0.1)


def test_a_profile_in_parts_is_their_medians_fitted_anew():
    def part(seconds: float) -> Profile:
        points = tuple(Point(seconds * n, items=n) for n in (1, 2, 4))
        tokens = tuple(
            Point(seconds * n, prompt_tokens=n, output_tokens=1) for n in (9, 90)
        )
        embed = VerbProfile("embed", points, LinearBatch(0.0))
        answer = VerbProfile("llm.generate", tokens, steps=StepParts(((1, 1.0),)))
        llm = pool("llm", 4, answer, token_budget=512)
        pools = (pool("embedding", 1, embed), llm)
        return Profile(pools, control_s=seconds)

    one = fidelity.merged([part(1.0), part(2.0), part(60.0)])
    assert one.control_s == 2.0
    embedding = one.pools[0]
    assert embedding.verbs[0].times is not None
    assert embedding.verbs[0].times.batch_s(3, 0) == pytest.approx(6.0)
    steps = profiled_service(one, "llm").steps
    assert steps is not None
    assert steps.prefill_s(90) == pytest.approx(180.0, rel=0.01)
