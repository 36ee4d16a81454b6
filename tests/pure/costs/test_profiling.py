"""`herasys profile`: what is asked of the engines, and what is made of their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import operators  # noqa: F401 - registers what profiling asks for
from herasys_rt.cli import execute
from herasys_rt.config import Config, PoolConfig
from herasys_rt.costs.layered import LayeredSteps, StepParts
from herasys_rt.costs.profile import PoolProfile, Profile
from herasys_rt.costs.service import profiled_service
from herasys_rt.costs.steps import attended_pairs
from herasys_rt.errors import ConfigError, NodeError
from herasys_rt.profiling import (
    FULL,
    QUICK,
    Profiler,
    Sample,
    profile_client,
)
from herasys_rt.profiling_calls import AnyWorkflow, Texts

TEMPLATE_TOKENS = 20
BESIDE_S = 0.003
ENGINE = LayeredSteps(
    StepParts(
        dense=((1, 40.0), (16, 48.0), (256, 200.0), (272, 300.0), (2048, 2000.0)),
        context_ms=0.001,
        pair_ms=0.0001,
    ),
    kv_capacity_tokens=11_648,
    kv_bytes_per_token=23_040,
)


class FakeEngines:
    """`Runner` whose engines take the time of a formula; keeps what they were asked."""

    def __init__(self, *, broken: str = "") -> None:
        self.asked: list[tuple[str, int, dict[str, Any]]] = []
        self.broken = broken

    def together(
        self, declared: AnyWorkflow, inputs: Sequence[Mapping[str, Any]]
    ) -> list[Sample]:
        name = declared.spec.name.rpartition(".")[2]
        self.asked += [(name, len(inputs), dict(one)) for one in inputs]
        if name == self.broken:
            raise NodeError("nobody answered")
        return [self.sample(declared, one, len(inputs)) for one in inputs]

    def sample(self, declared: AnyWorkflow, given: Mapping[str, Any], count: int) -> Sample:
        nodes = [node.operator for node in declared.spec.nodes]
        seconds = dict.fromkeys(nodes, 0.001)
        usage: dict[str, int] = {}
        match nodes[-1]:
            case "generate@1":
                prompt = len(given["prompt"].split()) + TEMPLATE_TOKENS
                output = given["tokens"]
                usage = {"prompt_tokens": prompt, "completion_tokens": output}
                seconds["generate@1"] = answer_s(count, prompt, output)
            case "embed_many@1":
                texts = given["texts"]
                tokens = sum(len(text.split()) for text in texts)
                seconds["embed_many@1"] = 0.01 + 0.001 * len(texts) + 0.0002 * tokens
            case "store@1":
                seconds["store@1"] = 0.004 + 0.0002 * len(given["documents"])
            case "delete@1":
                seconds["delete@1"] = 0.003
            case "rerank@1":
                found = declared.spec.nodes[0].args["top_k"]
                items = found.value  # type: ignore[union-attr]
                usage = {"tokens": 60 * items}
                seconds["rerank@1"] = 0.005 + 0.0001 * usage["tokens"]
            case "chunk@1":
                seconds["chunk@1"] = 0.00001 * len(given["text"].split())
        beside_s = BESIDE_S * len(nodes)
        return Sample(seconds, 0.5, 0.5 + sum(seconds.values()) + beside_s, usage)


def answer_s(count: int, prompt: int, output: int) -> float:
    prefill = ENGINE.mixed_s(count * prompt, count * attended_pairs(prompt), 0, 0)
    steps = (ENGINE.decode_s(count, count * (prompt + i)) for i in range(1, output))
    return prefill + sum(steps)


def pool(resource: str, **facts: Any) -> dict[str, Any]:
    return {
        "name": resource,
        "resource": resource,
        "engine": "modelled",
        "model": "smollm2-135m" if resource == "llm" else None,
        "slots": 16,
        "facts": facts,
    }


LLM = pool(
    "llm", kv_capacity_tokens=11_648, max_num_batched_tokens=4096, context_tokens=2048
)


def measure(
    *pools: dict[str, Any], engines: FakeEngines | None = None, **more: Any
) -> list[PoolProfile]:
    profiler = Profiler(engines or FakeEngines(), lambda _: None, more.pop("effort", FULL))
    return list(profiler.pools(pools, more.pop("declared", {})))


def test_prefill_and_decode_of_a_language_model_are_found():
    (found,) = measure(LLM)
    verb = found.verb("llm.generate")
    assert verb is not None and isinstance(verb.steps, StepParts)
    assert verb.fit_error < 0.02
    steps = LayeredSteps(verb.steps, kv_capacity_tokens=1, kv_bytes_per_token=1)
    for batch in (1, 4, 16):
        wanted = ENGINE.decode_s(batch, 100 * batch)
        assert steps.decode_s(batch, 100 * batch) == pytest.approx(wanted, rel=0.05)
    for tokens in (128, 512, 1024):
        wanted = ENGINE.prefill_s(tokens)
        assert steps.prefill_s(tokens) == pytest.approx(wanted, rel=0.05)


def test_the_edge_of_the_token_budget_is_found():
    (found,) = measure(LLM)
    assert found.token_edge == 256
    assert found.token_budget == 4096


def test_a_profiled_language_model_is_ready_for_the_simulator():
    profile_of = measure(LLM)
    assert profile_of[0].kv_capacity_tokens == 11_648
    assert profile_of[0].kv_bytes_per_token == 23_040
    assert profile_of[0].context_tokens == 2048
    assert profile_of[0].instance_class == "cpu"


def test_what_would_not_fit_the_context_or_the_cache_is_not_asked():
    small = pool("llm", kv_capacity_tokens=600, context_tokens=256)
    engines = FakeEngines()
    measure(small, engines=engines)
    for _, count, given in engines.asked:
        held = len(given["prompt"].split()) + TEMPLATE_TOKENS + given["tokens"]
        assert held <= 256
        assert count * held <= 600


def test_a_pool_too_small_to_measure_is_refused_with_its_numbers():
    with pytest.raises(ConfigError, match="a context of 16 and a KV cache of 0 tokens"):
        measure(pool("llm", context_tokens=16))


def test_concurrency_goes_up_to_the_slots_and_prompts_all_differ():
    engines = FakeEngines()
    measure(LLM, engines=engines, effort=QUICK)
    assert {count for _, count, _ in engines.asked} == {1, 2, 4, 8, 16}
    prompts = [given["prompt"] for _, _, given in engines.asked]
    assert len({" ".join(prompt.split()[:12]) for prompt in prompts}) == len(prompts)


def test_batches_of_every_other_engine_are_fitted():
    resources = ("embedding", "retrieval", "rerank", "search", "python")
    found = {p.resource: p for p in measure(*(pool(r) for r in resources))}
    assert tuple(found) == resources
    embed = found["embedding"].verb("embed")
    assert embed is not None and embed.times is not None
    assert embed.times.batch_s(8, 8 * 66) == pytest.approx(0.01 + 0.008 + 0.1056)
    assert [verb.verb for verb in found["retrieval"].verbs] == [
        "pg.write",
        "pg.delete",
        "pg.search",
        "pg.text",
        "pg.hybrid",
    ]
    write = found["retrieval"].verb("pg.write")
    assert write is not None and write.times is not None
    assert write.times.batch_s(100, 0) == pytest.approx(0.024)
    delete = found["retrieval"].verb("pg.delete")
    assert delete is not None and delete.times is not None
    assert delete.times.batch_s(1, 0) == pytest.approx(0.003)
    rerank = found["rerank"].verb("rerank")
    assert rerank is not None and rerank.times is not None
    assert rerank.times.batch_s(10, 600) == pytest.approx(0.065)
    assert all(
        verb.fit_error < 0.01 for profile in found.values() for verb in profile.verbs
    )


def test_the_class_of_instances_comes_from_the_configuration():
    declared = {
        "llm": PoolConfig(
            name="llm",
            resource="llm",
            engine="vllm",
            model="smollm2-135m",
            gpus=1,
            gpu_class="H100",
        )
    }
    (found,) = measure(LLM, declared=declared, effort=QUICK)
    assert found.instance_class == "H100"


def test_a_search_that_nobody_answers_is_left_out():
    said: list[str] = []
    profiler = Profiler(FakeEngines(broken="search"), said.append, QUICK)
    (found,) = profiler.pools([pool("search")], {})
    assert found.verbs == ()
    assert said[-1] == "http.search is left out: nobody answered"


def test_documents_that_are_deleted_were_written_for_it():
    engines = FakeEngines()
    measure(pool("retrieval"), engines=engines, effort=QUICK)
    written = [
        document["id"]
        for name, _, given in engines.asked
        if name == "ingest"
        for document in given["documents"]
    ]
    deleted = [given["source"] for name, _, given in engines.asked if name == "delete"]
    assert len(set(deleted)) == len(deleted) == 3
    assert set(deleted) < set(written)
    assert len(set(written)) == len(written)


def test_a_tool_is_not_measured_and_that_is_said():
    said: list[str] = []
    (found,) = Profiler(FakeEngines(), said.append, QUICK).pools([pool("python")], {})
    assert [verb.verb for verb in found.verbs] == ["text.chunk"]
    assert said[-1] == "python.call is left out: a tool takes what its function takes"


def test_what_a_node_takes_beside_its_engine_is_the_control_path():
    profiler = Profiler(FakeEngines(), lambda _: None, QUICK)
    assert profiler.control_s() == 0.0
    list(profiler.pools([pool("python")], {}))
    assert profiler.control_s() == pytest.approx(BESIDE_S)


def test_texts_have_the_wanted_length_and_differ():
    texts = Texts("salt")
    assert len(texts.of(30).split()) == 30
    assert texts.of(30) != texts.of(30)
    assert Texts("salt").of(5) == Texts("salt").of(5) != Texts("pepper").of(5)


def test_the_collection_to_drop_is_known_also_when_measuring_fails():
    engines = FakeEngines(broken="retrieve")
    profiler = Profiler(engines, lambda _: None, QUICK)
    with pytest.raises(NodeError):
        list(profiler.pools([pool("retrieval")], {}))
    assert profiler.collection.startswith("herasys-profile-")
    written = {given["collection"] for name, _, given in engines.asked if name == "ingest"}
    assert written == {profiler.collection}


class StatusOnly:
    def status(self) -> dict[str, Any]:
        return {"pools": [LLM]}


def test_a_pool_that_is_not_up_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"no pool is called gpu; there are llm"):
        profile_client(
            StatusOnly(),  # type: ignore[arg-type]
            Config(),
            lambda text: None,
            lambda name: None,
            only=["gpu"],
        )


def test_a_service_model_is_made_of_what_was_profiled():
    service = profiled_service(Profile(tuple(measure(LLM))), "llm")
    assert service.steps is not None
    assert service.steps.kv_capacity_tokens == 11_648
    assert service.token_budget == 4096


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert execute(["profile", "--out", str(tmp_path), "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert told["error"]["message"].endswith("cannot be written: it is a folder")
