"""Simulations from names, policies side by side, and the command."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from herasys_rt.cli import execute
from herasys_rt.errors import ConfigError
from herasys_rt.policies.presets import preset
from herasys_rt.sim.clusters import cluster
from herasys_rt.sim.compare import rows_of, simulate_all, table
from herasys_rt.sim.experiment import Experiment, Load, jobs_of, simulate
from herasys_rt.sim.machines import Machines
from herasys_rt.sim.records import records_text
from herasys_rt.workloads import workload

KEYS = [
    "policy", "workload", "cluster", "model", "seed", "runs", "mean_s", "p50_s", "p95_s",
    "p99_s", "throughput_rps", "req95", "req99", "utilisation", "fused_share",
    "plan_ms_mean", "events", "wall_s", "error",
]  # fmt: skip


def experiment(
    name: str = "rag",
    where: str = "testbed-4x4090",
    policy: str = "workflow_fcfs",
    seed: int = 0,
    **load: int | float,
) -> Experiment:
    machines = Machines(cluster(where))
    return Experiment(workload(name), machines, preset(policy), seed, Load(**load))  # type: ignore[arg-type]


def test_a_workload_without_a_rate_is_a_closed_loop_and_one_with_is_open() -> None:
    closed = simulate(experiment(runs=40))
    starts = [r.arrival_s for r in closed.trace.records]
    assert starts.count(0.0) == 30  # the workload's own concurrency
    two = simulate(experiment(runs=9, concurrency=2))
    assert [r.arrival_s for r in two.trace.records].count(0.0) == 2
    opened = simulate(experiment(runs=9, rate=2.0))
    assert len({r.arrival_s for r in opened.trace.records}) == 9


def test_the_rate_changes_nothing_but_the_arrivals() -> None:
    slow, fast = jobs_of(experiment(runs=5, rate=1.0)), jobs_of(experiment(runs=5, rate=9))
    assert [j.steps for j in slow] == [j.steps for j in fast]


def test_a_load_that_cannot_be_is_refused_with_every_number() -> None:
    with pytest.raises(ConfigError) as told:
        simulate(experiment(runs=0, rate=-2.0, concurrency=0, seed=-1))
    assert [fault.split(";")[0] for fault in told.value.fields["faults"]] == [
        "runs are 0",
        "the rate is -2 runs/s",
        "concurrency is 0",
        "a rate of -2 runs/s and 0 clients of a closed loop exclude each other",
        "the seed is -1",
    ]


def test_fusion_does_less_and_splitting_more() -> None:
    fused = simulate(experiment("docs", runs=30))
    static = simulate(experiment("docs", runs=30, policy="static_split"))
    assert fused.summary.fused_share > 0.1
    assert static.summary.fused_share == 0.0
    assert sum(r.nodes for r in static.trace.records) > sum(
        r.nodes for r in fused.trace.records
    )
    assert static.summary.succeeded == fused.summary.succeeded == 30


def test_policies_are_compared_on_the_same_runs_and_alone_means_the_same() -> None:
    outcomes = simulate_all(
        [
            experiment("bfcl", "hetero-1", policy, seed, runs=8)
            for policy in ("fcfs", "llf")
            for seed in (0, 1)
        ]
    )
    rows = rows_of(outcomes)
    assert [row.policy for row in rows] == ["fcfs", "llf"]
    alone = [
        {r.run: (r.arrival_s, r.alone_s) for r in outcome.trace.records}
        for outcome in outcomes
    ]
    assert alone[0] == alone[2] and alone[1] == alone[3] and alone[0] != alone[1]
    assert table(rows).count("\n") == 4


@pytest.mark.parametrize(
    ("name", "where"),
    [("docs", "testbed-4x4090"), ("rag_rerank", "testbed-4x4090"), ("bfcl", "hetero-1")],
)
def test_a_preset_that_cuts_graphs_is_held_against_the_whole_ones(
    name: str, where: str
) -> None:
    alone: list[dict[str, float]] = []
    for policy in ("fcfs", "static_split"):
        records = simulate(experiment(name, where, policy, runs=8)).trace.records
        alone.append({r.run: r.alone_s for r in records})
    assert alone[0] == alone[1]


def test_experiments_travel_to_other_processes() -> None:
    mine = experiment("lats", "hetero-2", "atlas", runs=2)
    theirs = pickle.loads(pickle.dumps(mine))
    assert records_text(simulate(theirs).trace.records) == records_text(
        simulate(mine).trace.records
    )


def test_a_bfcl_simulation_is_complete() -> None:
    outcome = simulate(experiment("bfcl", "hetero-1", runs=100))
    assert (outcome.summary.runs, outcome.summary.succeeded) == (100, 100)


# --- the command --------------------------------------------------------------------


def test_the_command_gives_exactly_its_keys(capfd: pytest.CaptureFixture[str]) -> None:
    words = "simulate --workload rag --cluster testbed-4x4090 --model llama-3-8b"
    words += " --ordering srtf --placement round_robin --seed 3 --runs 12 --json"
    assert execute(words.split()) == 0
    told = json.loads(capfd.readouterr().out)
    assert list(told) == KEYS
    assert (told["policy"], told["runs"], told["seed"]) == ("srtf+round_robin", 12, 3)


def test_the_command_writes_records_and_a_timeline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", "-w", "web", "--runs", "5", "--rate", "3", "--out", str(tmp_path)]
    assert execute(words) == 0
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 5
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert "succeeded" in capfd.readouterr().out


def test_the_command_compares_policies(capfd: pytest.CaptureFixture[str]) -> None:
    words = "simulate -w bfcl -c homog-a100 --runs 4 --compare fcfs,llf+round_robin"
    assert execute([*words.split(), "--seeds", "1", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [row["policy"] for row in told["policies"]] == ["fcfs", "llf+round_robin"]
    assert told["seeds"] == [0] and told["policies"][0]["req95"] >= 1.0


def test_the_command_takes_step_times_from_either_back_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    means: list[float] = []
    for backend in ("auto", "measured", "roofline"):
        words = f"simulate -w lats -c homog-h200 --runs 2 --backend {backend} --json"
        assert execute(words.split()) == 0
        means.append(json.loads(capfd.readouterr().out)["mean_s"])
    assert means[0] == means[1] != means[2]


def test_a_policy_named_twice_is_compared_once(capfd: pytest.CaptureFixture[str]) -> None:
    words = "simulate -w web --runs 2 --compare fcfs,fcfs+least_loaded --seeds 1 --json"
    assert execute(words.split()) == 0
    told = json.loads(capfd.readouterr().out)
    assert [row["policy"] for row in told["policies"]] == ["fcfs"]


def test_a_folder_that_cannot_be_is_refused_before_the_simulation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    words = ["simulate", "-w", "web", "--runs", "2", "--out", str(file / "under"), "--json"]
    assert execute(words) == 1
    told = capfd.readouterr()
    assert json.loads(told.out)["error"]["code"] == "environment"
    assert "mean_s" not in told.err


def test_a_stricter_slo_leaves_less_goodput() -> None:
    mine = experiment("bfcl", "homog-h200", "fcfs", runs=60)
    strict, mild = (simulate(replace(mine, slo=slo)).summary for slo in (1.5, 1e6))
    assert strict.goodput_rps < mild.goodput_rps == pytest.approx(mild.throughput_rps)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cluster moon", "unknown cluster 'moon'; known: testbed-4x4090"),
        ("--workload moon", "unknown workload 'moon'; known: rag"),
        ("--model moon", "llama-3-8b"),
        ("--ordering moon", "unknown policy 'moon'; known: atlas"),
        ("--placement moon", "unknown placement 'moon'; known: least_loaded"),
        ("--ordering static_split --placement round_robin", "places by least_loaded"),
        ("--compare fcfs,moon", "unknown policy 'moon'"),
        ("--compare fcfs --seeds 0", "1 policies over 0 seeds"),
        ("--compare fcfs --ordering llf", "exclude each other"),
        ("--backend moon", "no back end of step times is called 'moon'"),
        ("--backend roofline --profile absent.yaml", "--backend roofline is for"),
        ("--seeds 3", "--seeds goes with --compare"),
        ("--slo 0", "the SLO is 0 times H"),
        ("--rate -1", "the rate is -1 runs/s"),
        ("--rate 1e-300", "it must be 1e-06 or more"),
        ("--concurrency 0", "concurrency is 0"),
        ("--model llama-3.1-70b", "its weights take 141.1 GB"),
        ("--cluster hetero-1", "no pool offers it"),
        ("--cluster absent.yaml", "cannot be read"),
        ("--workload absent.yaml", "absent.yaml"),
        ("--profile absent.yaml", "absent.yaml"),
    ],
)
def test_the_command_refuses_what_cannot_be(
    words: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute(["simulate", *words.split(), "--json"]) == 2
    told = json.loads(capfd.readouterr().out)
    assert said in told["error"]["message"]
