"""Clusters: what fits, what does not and with which numbers, the file form."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from herasys_rt.errors import ConfigError
from herasys_rt.sim.cluster_files import parse_cluster, read_cluster
from herasys_rt.sim.clusters import (
    CLUSTERS,
    Cluster,
    Group,
    PoolShape,
    cluster,
    in_turn,
)
from herasys_rt.sim.machines import Machines
from herasys_rt.workloads import Job, Step, Truth, workload
from tests.pure.sim.sim_lab import toy_cluster

FITTING = [
    ("testbed-4x4090", "llama-3-8b"),
    ("testbed-4x4090", "smollm2-135m"),
    *[
        (name, model)
        for name in ("hetero-1", "hetero-2", "homog-h200", "homog-a100")
        for model in ("llama-3.1-70b", "qwen3-235b-a22b", "qwen3-coder-30b-a3b")
    ],
]


@pytest.mark.parametrize(("name", "model"), FITTING)
def test_the_papers_clusters_take_their_models(name: str, model: str) -> None:
    machines = Machines(cluster(name), model)
    assert len(machines.machines) == sum(p.instances for p in cluster(name).pools)


def test_hetero_clusters_are_those_of_the_paper() -> None:
    counts = {
        name: [(g.gpu, g.count) for g in cluster(name).pools[0].groups]
        for name in ("hetero-1", "hetero-2")
    }
    assert counts == {
        "hetero-1": [("a100-80g", 2), ("h100", 3), ("h200", 3)],
        "hetero-2": [("a100-80g", 3), ("h100", 4), ("h200", 3)],
    }
    assert [p.role for p in cluster("hetero-1").pools] == ["prefill", "decode"]


def test_an_unknown_cluster_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown cluster 'x'; known: testbed-4x4090"):
        cluster("x")


def test_kinds_take_turns_so_that_small_numbers_prefer_none() -> None:
    a, b = Group(1, "a"), Group(3, "b")
    assert in_turn((a, b)) == [a, b, b, b]
    assert in_turn((Group(2, "a"), b))[:3] == [Group(2, "a"), b, Group(2, "a")]


def test_everything_that_does_not_fit_is_said_at_once_with_its_numbers() -> None:
    shape = Cluster(
        "bad",
        (
            PoolShape("big", "llm", (Group(1, "rtx-4090"),)),
            PoolShape("odd", "llm", (Group(1, "h100", tp=3),)),
            PoolShape("none", "embedding", (Group(0, "h100"),), model="bge-large"),
            PoolShape("what", "embedding", (Group(1, "h100"),), model="bge-tiny"),
            PoolShape("where", "rerank", (Group(1, "b300"),), model="bge-reranker-large"),
            PoolShape("slow", "search", slots=0),
            PoolShape("role", "search", role="prefill"),
            PoolShape(
                "wide", "llm", (Group(1, "h200", tp=4),), slots=512, token_budget=256
            ),
        ),
        "llama-3.1-70b",
    )
    with pytest.raises(ConfigError) as told:
        Machines(shape)
    faults = "\n".join(told.value.fields["faults"])
    for part in (
        "pool big: llama-3.1-70b does not fit on 1 x rtx-4090: its weights take 141.1 GB",
        "pool odd: tensor parallelism of 3 does not divide the heads",
        "pool none: it has 0 instances",
        "bge-tiny",
        "b300",
        "pool slow: slots are 0",
        "pool role: there is no role 'prefill' of 'search'",
        "a token_budget of 256 does not hold one token of each of 512 slots",
    ):
        assert part in faults


@pytest.mark.parametrize(
    ("role", "missing"), [("prefill", "no decode pool"), ("decode", "no prefill pool")]
)
def test_a_stage_without_the_other_is_refused(role: str, missing: str) -> None:
    pool = PoolShape("p", "llm", (Group(1, "h200", 4),), role)
    with pytest.raises(ConfigError, match=missing):
        Machines(Cluster("half", (pool,)))


def test_an_instance_that_decodes_needs_a_token_of_each_slot() -> None:
    pools = [
        PoolShape(role, "llm", (Group(1, "h200", 4),), role, slots=8, token_budget=0)
        for role in ("prefill", "decode")
    ]
    with pytest.raises(ConfigError, match="pool decode: a token_budget of 0") as told:
        Machines(Cluster("stuck", tuple(pools)))
    assert "pool prefill" not in told.value.message


def test_stages_serve_one_model() -> None:
    pools = [
        PoolShape(role, "llm", (Group(1, "h200", 4),), role, model)
        for role, model in (("prefill", "llama-3-8b"), ("decode", ""))
    ]
    with pytest.raises(ConfigError, match="serve llama-3-8b and its decode pools llama"):
        Machines(Cluster("half", tuple(pools)))


def test_a_model_that_no_pool_would_serve_is_refused_and_the_served_ones_are_told() -> None:
    pools = (
        PoolShape("one", "llm", (Group(1, "h200"),), model="llama-3-8b"),
        PoolShape("two", "llm", (Group(1, "h200"),), model="smollm2-135m"),
    )
    own = Cluster("own", pools)
    assert Machines(own).served == "llama-3-8b, smollm2-135m"
    assert Machines(own, "llama-3-8b").served == "llama-3-8b, smollm2-135m"
    with pytest.raises(ConfigError, match="no pool would serve 'qwen3-coder-30b-a3b'"):
        Machines(own, "qwen3-coder-30b-a3b")


def test_a_cluster_has_no_more_instances_than_can_be_made() -> None:
    search = PoolShape("s", "search", (Group(10**9),))
    with pytest.raises(ConfigError, match="it has 1,000,000,000 instances; at most 10,000"):
        Machines(Cluster("vast", (search,)))


def test_names_of_pools_differ_and_there_are_some() -> None:
    with pytest.raises(ConfigError, match="it has no pools"):
        Machines(Cluster("empty", ()))
    search = PoolShape("s", "search")
    with pytest.raises(ConfigError, match="two pools are called 's'"):
        Machines(Cluster("twins", (search, search)))


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="llama-3-8b"):
        Machines(cluster("hetero-1"), "gpt-9")


def test_a_workload_that_a_cluster_cannot_serve_is_refused_with_what_it_lacks() -> None:
    machines = Machines(cluster("hetero-1"))
    jobs = workload("mixed").jobs(0, 40, None)
    with pytest.raises(ConfigError) as told:
        machines.check(jobs)
    faults = told.value.fields["faults"]
    assert len(faults) == 4
    assert "needs embed of resource 'embedding' and no pool offers it" in faults[0]
    named = replace(jobs[0].steps[-1], model="gpt-9")
    with pytest.raises(ConfigError, match="wants model 'gpt-9'"):
        Machines(cluster("testbed-4x4090")).check([replace(jobs[0], steps=(named,))])


def test_a_step_of_which_no_time_is_known_is_refused() -> None:
    tool = Step("a", "python.call", "python", "tool@1")
    machines = Machines(cluster("testbed-4x4090"))
    with pytest.raises(ConfigError, match="step 'a' has no seconds, and nobody knows how"):
        machines.check([Job("j", "job", (tool,))])
    machines.check([Job("j", "job", (replace(tool, truth=Truth(seconds=0.2)),))])


def call(prompt: int, output: int) -> Job:
    truth = Truth(prompt_tokens=prompt, output_tokens=output)
    step = Step("answer", "llm.generate", "llm", "generate@1", truth=truth)
    return Job(f"r{prompt}", "call", (step,))


def test_calls_beyond_the_context_of_their_model_are_refused_with_the_numbers() -> None:
    jobs = [call(8000, 192), call(8000, 193), call(9000, 100)]
    with pytest.raises(ConfigError) as told:
        Machines(cluster("testbed-4x4090")).check(jobs)
    assert told.value.fields["faults"] == (
        "2 of 3 runs have calls beyond the 8,192 tokens of context of pool 'llm': step "
        "'answer' of run r9000 has a prompt of 9,000 and an output of 100 tokens; "
        "let texts be shorter (length_scale) or the pool take longer ones (context_tokens)",
    )
    Machines(cluster("testbed-4x4090"), "llama-3.1-8b").check(jobs)


@pytest.mark.parametrize("split", [False, True])
def test_a_pool_may_serve_less_or_more_than_its_model_says(split: bool) -> None:
    def served(context: int) -> Machines:
        whole = PoolShape("llm", "llm", (Group(1, "h200"),), context_tokens=context)
        roles = ("prefill", "decode") if split else ("both",)
        pools = tuple(replace(whole, name=role, role=role) for role in roles)
        return Machines(Cluster("own", pools, "qwen3-coder-30b-a3b"))

    with pytest.raises(ConfigError, match="the 1,000 tokens of context of pool"):
        served(1_000).check([call(900, 101)])
    served(1_000).check([call(900, 100)])
    with pytest.raises(ConfigError, match="the 262,144 tokens of context"):
        served(0).check([call(300_000, 1)])
    served(400_000).check([call(300_000, 1)])


def test_a_step_goes_where_the_kernel_would_send_it() -> None:
    pools = (PoolShape("one", "search"), PoolShape("two", "search"))
    (job,) = workload("web").jobs(0, 1, None)
    search = next(step for step in job.steps if step.resource == "search")
    with pytest.raises(ConfigError, match="not exactly one is the default"):
        Machines(Cluster("two", pools)).check([replace(job, steps=(search,))])
    chosen = Machines(Cluster("two", (pools[0], replace(pools[1], default=True))))
    assert chosen.shape_for(search).name == "two"


@pytest.mark.parametrize("known", [*CLUSTERS, toy_cluster()], ids=lambda c: c.name)
def test_the_file_form_reads_back_as_the_same_cluster(
    known: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(msgspec.yaml.encode(known))
    assert read_cluster(path) == known


def test_a_file_says_every_fault_of_its_form() -> None:
    text = """
pools:
  - {name: Bad Name, resource: llm, slot: 3}
  - {resource: search, slots: many}
"""
    with pytest.raises(ConfigError) as told:
        parse_cluster(text, "my.yaml")
    faults = "\n".join(told.value.fields["faults"])
    assert "pools.Bad Name.name (line 3): must be at most 31 lower-case letters" in faults
    assert "pools.Bad Name.slot (line 3): unknown key; did you mean 'slots'?" in faults
    assert "pools.#2.name (line 4): this key is required" in faults
    assert "pools.#2.slots (line 4): " in faults


def test_what_is_no_cluster_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_cluster(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match=r"x\.yaml, line 1"):
        parse_cluster("a: [", "x.yaml")
    with pytest.raises(ConfigError, match="pools: this key is required"):
        parse_cluster("", "x.yaml")


def test_a_file_without_a_name_is_called_as_the_file() -> None:
    text = "pools: [{name: s, resource: search, slots: 2}]"
    assert parse_cluster(text, "lab.yaml", "lab").name == "lab"
