"""A profile as the cluster that it was measured on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from herasys_rt.cli import execute
from herasys_rt.costs.batch import LinearBatch
from herasys_rt.costs.layered import StepParts
from herasys_rt.costs.profile import PoolProfile, Profile, VerbProfile, profile_text
from herasys_rt.errors import ConfigError
from herasys_rt.sim.machines import Machines
from herasys_rt.sim.profiled import profiled_cluster

LLM = PoolProfile(
    "llm",
    "llm",
    "vllm",
    "cpu",
    16,
    (VerbProfile("llm.generate", steps=StepParts(((1, 40.0), (500, 500.0)))),),
    model="smollm2-135m",
    kv_capacity_tokens=11_648,
    token_budget=4096,
)
EMBEDDING = PoolProfile(
    "embedding",
    "embedding",
    "sentence_transformers",
    "cpu",
    1,
    (VerbProfile("embed", times=LinearBatch(0.01)),),
    instances=2,
    batch_limit=8,
)


def test_pools_are_as_they_were_measured():
    profile = Profile((LLM, EMBEDDING))
    cluster = profiled_cluster(profile)
    llm, embedding = cluster.pools
    assert cluster.model == "smollm2-135m"
    assert (llm.slots, llm.token_budget) == (16, 4096)
    assert (embedding.batch_limit, embedding.instances) == (8, 2)
    machines = Machines(cluster, profile=profile)
    assert [m.name for m in machines.machines] == ["llm-0", "embedding-0", "embedding-1"]


def test_a_pool_of_which_nothing_was_measured_is_left_out():
    unmeasured = PoolProfile("search", "search", "web_search", "cpu", 8, ())
    cluster = profiled_cluster(Profile((unmeasured, LLM)))
    assert [pool.name for pool in cluster.pools] == ["llm"]
    with pytest.raises(ConfigError, match="no pool that was measured"):
        profiled_cluster(Profile((unmeasured,)))


def test_of_two_pools_of_a_resource_the_first_is_the_default():
    twin = PoolProfile("large", "llm", "vllm", "cpu", 4, LLM.verbs, model="other")
    cluster = profiled_cluster(Profile((LLM, twin)))
    assert [pool.default for pool in cluster.pools] == [True, False]


def test_the_command_simulates_the_machine_of_a_profile(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = VerbProfile("pg.search", times=LinearBatch(0.002))
    search = PoolProfile("pg", "retrieval", "pgvector", "cpu", 8, (found,))
    file = tmp_path / "profile.yaml"
    file.write_text(profile_text(Profile((LLM, EMBEDDING, search))))
    words = ["simulate", "-w", "rag", "--profile", str(file), "--runs", "5", "--json"]
    assert execute([*words, "--concurrency", "2"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["cluster"], told["model"], told["runs"]) == ("profile", "smollm2-135m", 5)
    assert told["mean_s"] > 1.0
