"""How long work takes alone, and what is predicted of it."""

from __future__ import annotations

import pytest

from herasys_rt.sim.clusters import cluster
from herasys_rt.sim.durations import Forecast, Standalone
from herasys_rt.sim.machines import Machines
from herasys_rt.sim.staging import staged
from herasys_rt.workloads import Job, workload
from tests.pure.sim.sim_lab import (
    FakeMachines,
    LinearSteps,
    UnequalMachines,
    play,
    step,
    toy_cluster,
)


def toy(*steps: object, **more: object) -> Job:
    return Job("j", "kind", tuple(steps), 0.0, **more)  # type: ignore[arg-type]


def test_a_run_alone_takes_its_longest_way() -> None:
    job = toy(
        step("a", "python", seconds=1.0),
        step("b", "python", seconds=3.0),
        step("c", "search", "a", "b", seconds=0.5, after_s=2.0),
        step("d", "search", "a", seconds=0.5),
        revealed=True,
    )
    assert Standalone(FakeMachines(toy_cluster())).seconds(job) == 5.5


def test_batches_of_one_run_wait_for_each_other_as_far_as_instances_are_short() -> None:
    steps = [step(f"e{i}", "embedding", items=10) for i in range(4)]
    for count, rounds in ((1, 4), (2, 2), (4, 1)):
        machines = FakeMachines(toy_cluster(embedders=count))
        assert Standalone(machines).seconds(toy(*steps)) == pytest.approx(rounds * 0.02)


def test_prompts_of_one_run_take_the_machine_that_is_done_first() -> None:
    """Of a fast and a slow one; what waits for the fast one may be done before the slow."""
    fast, slow = LinearSteps(base_s=1.0), LinearSteps(base_s=2.5)
    machines = UnequalMachines({"fast": fast, "slow": slow})
    steps = [step(f"c{i}", "llm", prompt_tokens=1, output_tokens=1) for i in range(3)]
    ends = [Standalone(machines).seconds(staged(toy(*steps[:n]))) for n in (1, 2, 3)]
    decode_s = fast.decode_s(1, 1)
    assert ends == pytest.approx([1 + decode_s, 2 + decode_s, 2.5 + decode_s], abs=1e-3)


@pytest.mark.parametrize("name", ["rag", "rag_rerank", "web", "docs"])
def test_a_single_run_is_simulated_as_fast_as_it_is_said_to_be_alone(name: str) -> None:
    machines = Machines(cluster("testbed-4x4090"))
    (job,) = workload(name).jobs(5, 1, 1.0)
    trace, _ = play(machines, [job])
    assert 0.98 < trace.records[0].stretch < 1.05  # the kernel's batches are not optimal


def test_a_single_agent_on_a_split_cluster_is_as_fast_as_alone() -> None:
    machines = Machines(cluster("homog-h200"))
    for name in ("sharegpt", "bfcl"):
        (job,) = workload(name).jobs(5, 1, 1.0)
        trace, _ = play(machines, [job], checked=False)
        assert trace.records[0].stretch == pytest.approx(1.0, abs=0.02)


def test_a_run_alone_goes_to_the_fastest_machines() -> None:
    (job,) = workload("bfcl").jobs(5, 1, 1.0)
    mixed = Standalone(Machines(cluster("hetero-1"))).seconds(staged(job))
    slow = Standalone(Machines(cluster("homog-a100"))).seconds(staged(job))
    assert mixed < 0.8 * slow


def test_a_prompt_finds_what_its_own_run_has_computed() -> None:
    machines = FakeMachines(toy_cluster())
    again = toy(
        step("a", "llm", prompt_tokens=160, output_tokens=1, prefix=tuple(range(10))),
        step("b", "llm", "a", prompt_tokens=176, output_tokens=1, prefix=tuple(range(11))),
    )
    assert Standalone(machines).seconds(again) == pytest.approx(0.026 + 0.0116)


def test_outputs_are_predicted_like_those_of_their_kind() -> None:
    machines = FakeMachines(toy_cluster())
    forecast = Forecast(machines)
    call = step("a", "llm", prompt_tokens=100, output_tokens=10)
    wait = step("w", "python", seconds=7.0)
    job = toy(call, wait)
    before, _ = forecast.seconds(job, job.steps)
    for _ in range(50):
        forecast.observe(job, call)
        forecast.observe(job, wait)
    after, waited = forecast.seconds(job, job.steps)
    assert before > after == pytest.approx(0.02 + 9 * 0.0111, rel=0.05)
    assert waited == pytest.approx(7.0)
