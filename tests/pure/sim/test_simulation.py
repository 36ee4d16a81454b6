"""The whole loop: what goes in comes out, nothing exceeds its capacity, time moves on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from herasys_rt.core.commands import Command, StartBatch
from herasys_rt.core.events import Event, InstanceDown, ItemFinished, NodesRevealed
from herasys_rt.core.kernel import KernelConfig, counters
from herasys_rt.errors import ConfigError
from herasys_rt.policies import ORDERINGS, PLACEMENTS
from herasys_rt.policies.presets import preset
from herasys_rt.sim.arrivals import ClosedLoop, OpenLoop
from herasys_rt.sim.batching import ContinuousBatching
from herasys_rt.sim.clusters import Cluster, PoolShape, cluster
from herasys_rt.sim.experiment import Experiment, Load, simulate
from herasys_rt.sim.fleet import Outage
from herasys_rt.sim.machines import Machines
from herasys_rt.sim.prefill import PrefillServer
from herasys_rt.sim.records import records_text
from herasys_rt.sim.simulation import Simulation
from herasys_rt.sim.timeline import timeline
from herasys_rt.workloads import Job, workload
from tests.pure.sim.sim_lab import (
    SERVICES,
    FakeMachines,
    LinearSteps,
    UnequalMachines,
    play,
    step,
    toy_cluster,
)

ROOT = Path(__file__).parents[3]
ONE_SLOT = Cluster("one", (PoolShape("python", "python"),), "toy")


def rag(id: str, arrival_s: float | None = 0.0, key: str = "", **shape: int) -> Job:
    """Embed, search, generate; equal keys are equal work."""
    key = key or id
    prompt, output = shape.get("prompt", 120), shape.get("output", 20)
    return Job(
        id,
        "rag",
        (
            step("embed", "embedding", tokens=12, prompt_key=f"{key}/e"),
            step("search", "retrieval", "embed", prompt_key=f"{key}/s"),
            step(
                "answer",
                "llm",
                "search",
                prompt_tokens=prompt,
                output_tokens=output,
                prompt_key=f"{key}/a",
                prefix=tuple(range(prompt // 32)),
            ),
        ),
        arrival_s,
    )


def agent(id: str, arrival_s: float | None = 0.0, calls: int = 3, wide: int = 1) -> Job:
    """Calls in a chain, each ``wide`` side by side, with a tool in between."""
    steps = []
    before: tuple[str, ...] = ()
    for i in range(calls):
        here = [f"call-{i}-{j}" for j in range(wide)]
        for name in here:
            after_s = 0.25 if before else 0.0
            tokens = {"prompt_tokens": 50 * (i + 1), "output_tokens": 10}
            steps.append(step(name, "llm", *before, after_s=after_s, **tokens))
        before = tuple(here)
    return Job(id, "agent", tuple(steps), arrival_s, revealed=True)


# --- one run ------------------------------------------------------------------------


def test_a_run_takes_what_its_steps_take() -> None:
    trace, _ = play(FakeMachines(toy_cluster()), [rag("r", 1.0)])
    (record,) = trace.records
    embed_s, search_s = 0.01 + 0.001 + 12e-5, 0.001
    answer_s = 0.01 + 120e-4 + 19 * 0.011 + 1e-6 * sum(range(121, 140))
    assert record.arrival_s == 1.0
    assert record.latency_s == pytest.approx(embed_s + search_s + answer_s)
    assert record.alone_s == pytest.approx(record.latency_s, rel=1e-3)
    assert (record.status, record.executed, record.nodes) == ("succeeded", 3, 3)
    assert [span.step for span in trace.spans] == ["embed", "search", "answer"]


def test_equal_work_runs_once_and_its_result_is_reused() -> None:
    jobs = [rag("a", 0.0, "same"), rag("b", 0.001, "same"), rag("c", 9.0, "same")]
    trace, simulation = play(FakeMachines(toy_cluster()), jobs)
    shared = {r.run: (r.executed, r.fused, r.reused) for r in trace.records}
    assert shared == {"a": (3, 0, 0), "b": (0, 3, 0), "c": (0, 0, 3)}
    assert trace.records[2].latency_s == 0.0
    nodes = counters(simulation.state)["nodes"]
    assert (nodes["submitted"], nodes["executed"]) == (9, 3)


def test_equal_steps_are_shared_only_below_what_gave_equal_values() -> None:
    def searching(id: str, question: str, place: float = 0.0) -> Job:
        steps = (
            step("embed", "embedding", prompt_key=question),
            step("search", "retrieval", "embed", prompt_key="search"),
        )
        return Job(id, "searching", steps, place)

    jobs = [searching("a", "one"), searching("b", "another"), searching("c", "")]
    trace, _ = play(FakeMachines(toy_cluster()), jobs)
    assert {r.run: (r.executed, r.fused) for r in trace.records} == {
        "a": (2, 0),
        "b": (2, 0),
        "c": (2, 0),
    }


def test_an_agent_reveals_a_step_when_it_has_what_that_needs() -> None:
    log: list[tuple[float, Event, list[Command]]] = []
    jobs = [agent("g", 2.0, calls=3, wide=2)]
    trace, _ = play(FakeMachines(toy_cluster()), jobs, log=log)
    revealed = [(now, e) for now, e, _ in log if isinstance(e, NodesRevealed)]
    assert [e.fragment for _, e in revealed] == [0, 1, 2, 3, 4, 5]
    ends = {s.step: s.ended_s for s in trace.spans}
    assert revealed[0][0] == revealed[1][0] == 2.0
    assert revealed[2][0] == max(ends["call-0-0"], ends["call-0-1"]) + 0.25
    assert revealed[4][1].parents == ((2, "call-1-0"), (3, "call-1-1"))
    (record,) = trace.records
    assert (record.status, record.executed) == ("succeeded", 6)
    assert record.finish_s == max(ends.values())


def test_a_run_that_no_instance_can_hold_fails_and_the_others_go_on() -> None:
    jobs = [rag("long", 0.0, prompt=20_000), rag("short", 0.0), agent("g", 0.0)]
    trace, _ = play(FakeMachines(toy_cluster()), jobs)
    assert {r.run: r.status for r in trace.records} == {
        "long": "failed",
        "short": "succeeded",
        "g": "succeeded",
    }


def test_an_agent_whose_step_fails_fails() -> None:
    too_long = Job(
        "g", "agent", (step("a", "llm", prompt_tokens=20_000, output_tokens=1),), 0.0, True
    )
    trace, _ = play(FakeMachines(toy_cluster()), [too_long])
    assert [r.status for r in trace.records] == ["failed"]


def test_runs_beyond_the_kernels_bound_are_refused() -> None:
    jobs = [rag(f"r{i}", 0.0) for i in range(5)]
    config = KernelConfig(max_active_runs=3)
    trace, _ = play(FakeMachines(toy_cluster()), jobs, config=config)
    assert Counter(r.status for r in trace.records) == {"refused": 2, "succeeded": 3}


def test_the_control_path_delays_every_node() -> None:
    slow = {name: replace(service, control_s=0.5) for name, service in SERVICES.items()}
    fast, _ = play(FakeMachines(toy_cluster()), [rag("r")])
    late, _ = play(FakeMachines(toy_cluster(), slow), [rag("r")])
    assert late.records[0].latency_s == pytest.approx(fast.records[0].latency_s + 1.5)


# --- prefill and decode apart -------------------------------------------------------


def test_a_call_on_a_split_cluster_is_two_nodes_chained() -> None:
    machines = FakeMachines(toy_cluster(split=True))
    trace, simulation = play(machines, [rag("r"), agent("g")])
    where = {(s.run, s.step): s.instance for s in trace.spans}
    assert where[("r", "answer.prefill")] == "prefill-0"
    assert where[("r", "answer")] == "decode-0"
    assert where[("g", "call-2-0.prefill")] == "prefill-0"
    assert {r.run: r.executed for r in trace.records} == {"r": 4, "g": 6}
    prefill = simulation.fleet.instances["prefill-0"]
    assert isinstance(prefill, PrefillServer)
    assert prefill.prefilled == pytest.approx(120 + 50 + 100 + 150)


def test_eager_calls_go_to_machines_in_turn_and_wait_there() -> None:
    """Else they go to whichever is free: the slow machine gets what it can serve."""
    jobs = [Job(f"j{i}", "job", (step("a", "llm", prompt_tokens=1, output_tokens=1),), 0.0)
            for i in range(8)]  # fmt: skip
    served: dict[bool, Counter[str]] = {}
    for eager in (False, True):
        machines = UnequalMachines(
            {"fast": LinearSteps(base_s=1.0), "slow": LinearSteps(base_s=3.1)}
        )
        config = KernelConfig(fusion=False)
        trace, _ = play(
            machines, jobs, ordering="fcfs", placement="round_robin", eager=eager,
            config=config,
        )  # fmt: skip
        served[eager] = Counter(s.instance for s in trace.spans if "prefill" in s.step)
    assert served[False] == {"prefill-0": 6, "prefill-1": 2}
    assert served[True] == {"prefill-0": 4, "prefill-1": 4}


def test_decoding_goes_where_the_fewest_tokens_are_reserved() -> None:
    """By prompts, and by outputs as long as those of their kind so far."""
    jobs = [
        Job(
            f"j{i}",
            "job",
            (step("a", "llm", prompt_tokens=n, output_tokens=500),),
            float(i),
        )
        for i, n in enumerate((4000, 100, 100))
    ]
    where: dict[str, list[str]] = {}
    for placement in ("least_loaded", "least_reserved"):
        machines = FakeMachines(toy_cluster(llms=2, split=True))
        trace, _ = play(machines, jobs, ordering="fcfs", placement=placement)
        decoded = {s.run: s.instance for s in trace.spans if s.step == "a"}
        where[placement] = [decoded[job.id] for job in jobs]
    assert where["least_loaded"] == ["decode-0", "decode-1", "decode-0"]
    assert where["least_reserved"] == ["decode-0", "decode-1", "decode-1"]


def test_decoding_waits_for_the_keys_and_values() -> None:
    machines = Machines(cluster("homog-h200"), "llama-3.1-70b")
    job = Job("g", "x", (step("a", "llm", prompt_tokens=8192, output_tokens=2),), 0.0, True)
    trace, _ = play(machines, [job])
    first, second = trace.spans
    moved_s = 8192 * 327_680 / (0.7 * 50e9 * 4)
    assert second.begun_s - first.ended_s == pytest.approx(0.001 + moved_s)
    (record,) = trace.records
    assert record.stretch == pytest.approx(1.0, abs=0.01)


# --- queues -------------------------------------------------------------------------


def test_waits_of_a_single_server_are_lindleys() -> None:
    """W(n+1) = max(0, W(n) + S(n) - A(n+1)), on the same draws, over 3,000 jobs."""
    import numpy as np

    draws = np.random.Generator(np.random.PCG64(7))
    gaps = draws.exponential(1.0, 3_000)
    services = draws.exponential(0.8, 3_000)
    arrivals = np.cumsum(gaps)
    jobs = [
        Job(f"j{i}", "job", (step("a", "python", seconds=float(s)),), float(at))
        for i, (at, s) in enumerate(zip(arrivals, services, strict=True))
    ]
    trace, _ = play(FakeMachines(ONE_SLOT), jobs, checked=False)
    wait = 0.0
    worst = 0.0
    for i, record in enumerate(trace.records):
        assert record.run == f"j{i}"
        worst = max(worst, abs(record.queued_s - wait))
        if i + 1 < len(jobs):
            wait = max(0.0, wait + services[i] - gaps[i + 1])
    assert worst < 1e-9


def test_a_closed_loop_keeps_so_many_runs_and_thinks_in_between() -> None:
    jobs = [
        Job(f"j{i}", "job", (step("a", "python", seconds=1.0),), None) for i in range(6)
    ]
    loop = ClosedLoop(jobs, clients=2, think_s=0.5)
    trace, _ = play(FakeMachines(toy_cluster()), jobs, loop)
    begun = [(r.run, r.arrival_s, r.finish_s) for r in trace.records]
    assert begun == [
        ("j0", 0.0, 1.0), ("j1", 0.0, 1.0),
        ("j2", 1.5, 2.5), ("j3", 1.5, 2.5),
        ("j4", 3.0, 4.0), ("j5", 3.0, 4.0),
    ]  # fmt: skip


def test_loops_say_everything_that_cannot_be() -> None:
    job = rag("a", None)
    with pytest.raises(ConfigError, match="nothing would be simulated"):
        OpenLoop([])
    with pytest.raises(ConfigError) as told:
        OpenLoop([job, rag("a", -1.0), rag("b", float("nan"))])
    assert len(told.value.fields["faults"]) == 4
    with pytest.raises(ConfigError) as told:
        ClosedLoop([], clients=0, think_s=-1.0)
    assert [fault.split(";")[0] for fault in told.value.fields["faults"]] == [
        "there are no jobs: nothing would be simulated",
        "concurrency is 0",
        "the think time is -1 s",
    ]


# --- failures -----------------------------------------------------------------------


def test_work_of_a_lost_instance_goes_elsewhere_and_back_it_takes_more() -> None:
    jobs = [rag(f"r{i}", i * 0.05, output=80) for i in range(12)]
    outages = [Outage("llm-0", 0.5, 1.5), Outage("embedding-0", 0.1, 0.2)]
    log: list[tuple[float, Event, list[Command]]] = []
    machines = FakeMachines(toy_cluster(llms=2))
    trace, _ = play(machines, jobs, outages=outages, log=log)
    assert all(r.status == "succeeded" for r in trace.records)
    assert sum(r.attempts for r in trace.records) > 36
    lost = [now for now, e, _ in log if isinstance(e, InstanceDown)]
    assert lost == [0.1, 0.5]
    started = {c.instance for _, _, out in log for c in out if isinstance(c, StartBatch)}
    assert {"llm-0", "llm-1", "embedding-0#2"} <= started


def test_impossible_outages_are_refused() -> None:
    outages = [Outage("llm-9", 1.0), Outage("llm-0", -1.0), Outage("llm-0", 2.0, 1.0)]
    outages += [Outage("rerank-0", 1.0), Outage("rerank-0", 5.0)]
    with pytest.raises(ConfigError) as told:
        play(FakeMachines(toy_cluster()), [rag("r")], outages=outages)
    assert len(told.value.fields["faults"]) == 5


def test_runs_that_need_a_pool_lost_for_good_fail() -> None:
    jobs = [rag("before", 0.0, output=1), rag("during", 0.9), rag("after", 2.0)]
    outages = [Outage("llm-0", 1.0)]
    trace, _ = play(FakeMachines(toy_cluster()), jobs, outages=outages)
    assert {r.run: r.status for r in trace.records} == {
        "before": "succeeded",
        "during": "failed",
        "after": "refused",
    }


# --- conservation -------------------------------------------------------------------

small = st.fixed_dictionaries(
    {
        "llms": st.integers(1, 2),
        "slots": st.integers(1, 4),
        "budget": st.sampled_from([8, 64, 512]),
        "embedders": st.integers(1, 2),
        "batch_limit": st.integers(1, 4),
        "split": st.booleans(),
    }
)
runs = st.lists(
    st.tuples(
        st.sampled_from(["rag", "agent"]),
        st.integers(0, 2000),  # arrival in ms
        st.integers(0, 3),  # content
        st.integers(1, 400),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=10,
)
lost = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 1000), st.integers(0, 3)), max_size=2
)


@settings(deadline=None, max_examples=60)
@given(
    small,
    runs,
    lost,
    st.sampled_from(sorted(ORDERINGS)),
    st.sampled_from(sorted(PLACEMENTS)),
)
def test_what_goes_in_comes_out(
    shape: dict[str, int],
    drawn: list[tuple[str, int, int, int, int]],
    losses: list[tuple[int, int, int]],
    ordering: str,
    placement: str,
) -> None:
    jobs = [
        rag(
            f"r{i}",
            ms / 1000,
            f"k{content}-{prompt}-{output}",
            prompt=prompt,
            output=output,
        )
        if kind == "rag"
        else agent(f"g{i}", ms / 1000, calls=1 + content, wide=1 + prompt % 3)
        for i, (kind, ms, content, prompt, output) in enumerate(drawn)
    ]
    machines = FakeMachines(toy_cluster(**shape))  # type: ignore[arg-type]
    outages = [
        Outage(
            machines.machines[at % len(machines.machines)].name, ms / 1e3, (ms + d) / 1e3
        )
        for ms, d, at in losses
    ]
    if len({outage.machine for outage in outages}) < len(outages):
        outages = outages[:1]
    log: list[tuple[float, Event, list[Command]]] = []
    trace, simulation = play(
        machines,
        jobs,
        ordering=ordering,
        placement=placement,
        outages=outages,
        log=log,
        config=KernelConfig(max_losses=99),
    )
    assert [r.status for r in trace.records] == ["succeeded"] * len(jobs)
    state = simulation.state
    nodes = state.totals
    assert nodes.submitted == nodes.executed + nodes.fused + nodes.reused
    assert nodes.submitted == sum(r.nodes for r in trace.records)
    assert not state.flights and not state.runs
    assert all(i.fault() is None for i in simulation.fleet.instances.values())
    times = [now for now, _, _ in log]
    assert times == sorted(times)
    assert all(s.ended_s >= s.begun_s >= 0 for s in trace.spans)
    if not outages:
        _tokens_are_conserved(simulation, log)


def _tokens_are_conserved(
    simulation: Simulation, log: list[tuple[float, Event, list[Command]]]
) -> None:
    """Instances produced exactly the tokens of what they finished."""
    done = {(e.flight, e.attempt) for _, e, _ in log if isinstance(e, ItemFinished)}
    started = [
        (command.instance, item)
        for _, _, out in log
        for command in out
        if isinstance(command, StartBatch)
        for item in command.items
    ]
    assert {(item.flight, item.attempt) for _, item in started} == done
    for name, instance in simulation.fleet.instances.items():
        if isinstance(instance, ContinuousBatching):
            mine = [item for at, item in started if at == name]
            truths = [
                simulation.truth_of(item)  # what the item turned out to be
                for item in mine
            ]
            if name.startswith("llm"):
                assert instance.decoded == sum(t.output_tokens for t in truths)
            else:
                assert instance.decoded == sum(max(t.output_tokens - 1, 1) for t in truths)


# --- determinism --------------------------------------------------------------------


def digest_of_everything() -> str:
    """SHA-256 over the records and timelines of simulations of every kind."""
    told = hashlib.sha256()
    for name, where, policy, count in (
        ("mixed_long", "testbed-4x4090", "srtf", 60),
        ("docs", "testbed-4x4090", "static_split", 20),
        ("agents_mixed", "hetero-1", "atlas", 12),
        ("bfcl", "homog-a100", "llf+round_robin", 10),
    ):
        machines = Machines(cluster(where))
        experiment = Experiment(workload(name), machines, preset(policy), 3, Load(count))
        outcome = simulate(experiment, spans=True)
        told.update(records_text(outcome.trace.records))
        told.update(timeline(outcome.trace.spans, outcome.trace.records))
    return told.hexdigest()


def test_the_same_seed_gives_the_same_bytes_on_every_hash_seed() -> None:
    script = (
        "from tests.pure.sim.test_simulation import digest_of_everything; "
        "print(digest_of_everything())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert done.stdout.strip() == digest_of_everything()  # on another seed, here
