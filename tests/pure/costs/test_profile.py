"""Profiles: files, fits, and the service models made of them."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.costs.batch import LinearBatch
from herasys_rt.costs.fitting import non_negative
from herasys_rt.costs.layered import LayeredSteps, StepParts
from herasys_rt.costs.profile import (
    Point,
    PoolProfile,
    Profile,
    VerbProfile,
    profile_text,
    read_profile,
)
from herasys_rt.costs.profile_fits import fit_batch, fit_steps, token_edge
from herasys_rt.costs.service import catalogue_service, profiled_service
from herasys_rt.costs.steps import attended_pairs
from herasys_rt.costs.work import Work, work_of
from herasys_rt.dsl import workflow
from herasys_rt.errors import ConfigError
from herasys_rt.graph.estimates import Size
from herasys_rt.graph.spec import Arg, InputRef, Lit, NodeRef, NodeSpec
from herasys_rt.graph.types import PortType
from operators import generate

PARTS = StepParts(
    dense=((1, 40.0), (32, 60.0), (1024, 900.0)),
    head=((0, 0.0), (32, 32.0)),
    pair_ms=0.0002,
    context_ms=0.001,
)
TRUTH = LayeredSteps(PARTS, kv_capacity_tokens=11_000, kv_bytes_per_token=23_040)
BUDGET = 4096


def call_s(count: int, prompt: int, output: int) -> float:
    """What ``count`` equal calls at once take on the engine that `PARTS` describe."""
    pairs = count * attended_pairs(prompt)
    dense = TRUTH.mixed_s(count * prompt, pairs, 0, 0) - 0.001 + 0.001 * count
    decode = sum(
        TRUTH.decode_s(count, count * (prompt + i) + count // 2) for i in range(1, output)
    )
    return dense + decode


def llm_points(noise: float = 0.0) -> list[Point]:
    draws = random.Random(3)
    wanted = [(1, n, 1) for n in (16, 64, 128, 256, 512, 1024)]
    wanted += [(b, 32, m) for b in (1, 2, 4, 8, 16, 32) for m in (1, 33)]
    wanted += [(1, 512, 33), (2, 512, 33)]
    return [
        Point(
            call_s(b, n, m) * draws.uniform(1 - noise, 1 + noise),
            concurrency=b,
            prompt_tokens=n,
            output_tokens=m,
        )
        for b, n, m in wanted
    ]


def profile() -> Profile:
    fit = fit_steps(llm_points(), BUDGET)
    return Profile(
        (
            PoolProfile(
                pool="llm",
                resource="llm",
                engine="vllm",
                instance_class="cpu",
                slots=16,
                verbs=(VerbProfile("llm.generate", steps=fit.steps),),
                model="smollm2-135m",
                kv_capacity_tokens=11_000,
                kv_bytes_per_token=23_040,
                token_budget=BUDGET,
            ),
            PoolProfile(
                pool="embedding",
                resource="embedding",
                engine="sentence_transformers",
                instance_class="cpu",
                slots=1,
                verbs=(
                    VerbProfile(
                        "embed", (Point(0.02, items=1),), LinearBatch(0.01, 0.0, 0.0002)
                    ),
                ),
                model="all-minilm-l6-v2",
                batch_limit=8,
            ),
        ),
        control_s=0.004,
        machine={"cores": 2},
    )


# --- files ---------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["profile.yaml", "profile.json"])
def test_a_profile_survives_its_file(tmp_path, name):
    path = tmp_path / name
    path.write_text(profile_text(profile(), path.suffix))
    assert read_profile(path) == profile()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pools: {", "is no profile"),
        ("control_s: 1.0", "pools"),
        ("pools: []\nspeed: 3", "speed"),
        ("pools: []\nversion: 99", "version 99"),
        ("pools: [{pool: llm}]", "resource"),
        ("[]", "is no profile"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_what_is_wrong(tmp_path, text, problem):
    path = tmp_path / "profile.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_profile(path)
    assert problem in caught.value.message
    assert caught.value.hint


def test_an_absent_profile_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_profile(tmp_path / "none.yaml")
    assert "herasys profile" in caught.value.hint


# --- fits ----------------------------------------------------------------------------
@given(st.lists(st.floats(0.0, 10.0), min_size=3, max_size=3), st.integers(0, 1000))
def test_non_negative_least_squares_finds_what_made_the_values(wanted, seed):
    terms = np.random.Generator(np.random.PCG64(seed)).uniform(0.1, 1.0, (20, 3))
    found = non_negative(terms, terms @ np.array(wanted))
    assert found == pytest.approx(wanted, abs=1e-5)


def test_a_cost_never_comes_out_negative():
    terms = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    found = non_negative(terms, np.array([3.0, 2.0, 1.0]))
    assert found.tolist() == pytest.approx([2.0, 0.0])


def test_a_batch_engine_is_fitted_through_its_points():
    truth = LinearBatch(0.01, 0.002, 0.0003)
    points = [
        Point(truth.batch_s(n, n * t), items=n, tokens=n * t)
        for n in (1, 8, 32)
        for t in (16, 64)
    ]
    times, error = fit_batch(points)
    assert times.overhead_s == pytest.approx(truth.overhead_s)
    assert times.item_s == pytest.approx(truth.item_s)
    assert times.token_s == pytest.approx(truth.token_s)
    assert error < 1e-6


def test_a_single_point_is_an_overhead():
    times, error = fit_batch([Point(0.25, items=1)])
    assert times.batch_s(1, 0) == pytest.approx(0.25)
    assert error < 1e-9


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.03), (0.03, 0.08)])
def test_steps_are_found_through_calls_of_them(noise, tolerance):
    fit = fit_steps(llm_points(noise), BUDGET)
    assert fit.error < max(noise, 0.01)
    found = LayeredSteps(fit.steps, kv_capacity_tokens=1, kv_bytes_per_token=1)
    for batch in (1, 4, 16, 32):
        wanted = TRUTH.decode_s(batch, batch * 100)
        assert found.decode_s(batch, batch * 100) == pytest.approx(wanted, rel=tolerance)
    for tokens in (128, 400, 1024):
        wanted = TRUTH.prefill_s(tokens)
        assert found.prefill_s(tokens) == pytest.approx(wanted, rel=tolerance)


def test_prompts_beyond_the_budget_are_cut_into_chunks():
    points = [
        Point(seconds, prompt_tokens=tokens, output_tokens=1)
        for tokens, seconds in ((1, 0.1), (100, 0.2), (200, 0.4), (300, 0.6))
    ]
    fit = fit_steps(points, 100)
    assert [n for n, _ in fit.steps.dense] == [1, 100]
    found = LayeredSteps(fit.steps, kv_capacity_tokens=1, kv_bytes_per_token=1)
    assert found.prefill_s(100) == pytest.approx(0.2, rel=0.05)


def test_an_edge_is_where_a_few_more_tokens_cost_much_more():
    stairs = [(n, 10.0 * -(-n // 128)) for n in range(16, 600, 16)]
    assert token_edge([(n, 20 + t) for n, t in stairs]) == 128
    assert token_edge([(n, float(n)) for n in range(16, 600, 16)]) == 0
    assert token_edge([(128, 10.0), (256, 19.0)]) == 0
    assert token_edge([(1, 1.0)]) == 0


def test_prompts_of_nearly_one_length_share_a_knot_unless_an_edge_parts_them():
    seconds = {1: 0.1, 128: 0.5, 144: 0.6, 256: 1.0, 272: 1.5, 512: 2.0}
    points = [Point(s, prompt_tokens=n, output_tokens=1) for n, s in seconds.items()]
    fit = fit_steps(points, BUDGET)
    assert fit.edge == 256
    assert [n for n, _ in fit.steps.dense] == [1, 128, 256, 272, 512]


# --- service models ------------------------------------------------------------------
def test_a_profiled_pool_predicts_what_was_measured():
    service = profiled_service(profile(), "llm", "smollm2-135m")
    assert service.steps is not None
    assert service.steps.kv_capacity_tokens == 11_000
    assert service.token_budget == BUDGET
    assert service.control_s == 0.004
    work = Work(prompt_tokens=32, output_tokens=33)
    found = service.predicted_s("llm.generate", work)
    assert found == pytest.approx(call_s(1, 32, 33), rel=0.05)
    step_s = (call_s(16, 32, 33) - call_s(16, 32, 1)) / 32
    assert service.steps.decode_s(16, 16 * 48) == pytest.approx(step_s, rel=0.05)


def test_an_engine_that_does_not_tell_its_cache_is_not_bound_by_it():
    told = profile()
    silent = msgspec.structs.replace(told.pools[0], kv_capacity_tokens=0)
    service = profiled_service(Profile((silent,)), "llm")
    assert service.steps is not None
    assert service.steps.kv_capacity_tokens > 10**9


def test_a_batched_node_takes_as_long_as_its_batch():
    service = profiled_service(profile(), "embedding")
    assert service.steps is None
    assert service.predicted_s("embed", Work(items=1, tokens=50)) == pytest.approx(0.02)
    assert service.batch_s("embed", 8, 400) == pytest.approx(0.09)


def test_a_pool_that_was_not_measured_is_refused_with_those_that_were():
    with pytest.raises(ConfigError) as caught:
        profiled_service(profile(), "llm", "llama-3-8b")
    assert "llm smollm2-135m; embedding all-minilm-l6-v2" in caught.value.message


def test_a_catalogued_pool_is_served_by_the_catalogue():
    llm = catalogue_service("llm", "llama-3-8b", "rtx-4090")
    assert llm.steps is not None
    assert llm.predicted_s("llm.generate", Work(prompt_tokens=100, output_tokens=2)) > 0.03
    assert llm.predicted_s("llm.generate", Work()) == 0.0
    retrieval = catalogue_service("retrieval")
    assert retrieval.predicted_s("pg.search", Work()) == pytest.approx(0.001)
    assert retrieval.knows("pg.search")
    assert not catalogue_service("search").knows("http.search")


@pytest.mark.parametrize(
    ("model", "card", "missing"),
    [(None, "h100", "no model"), ("llama-3-8b", None, "no GPU")],
)
def test_a_language_model_on_a_cpu_needs_a_profile(model, card, missing):
    with pytest.raises(ConfigError, match=missing) as caught:
        catalogue_service("llm", model, card)
    assert "profile" in caught.value.hint


# --- work ----------------------------------------------------------------------------
def node(verb: str, output: PortType = PortType.TEXT, **args: object) -> NodeSpec:
    given: dict[str, Arg] = {
        name: arg if isinstance(arg, InputRef) else Lit(arg) for name, arg in args.items()
    }
    return NodeSpec("n", f"{verb}@1", verb, "r", given, (), output)


def test_a_call_of_a_language_model_is_prompt_and_output():
    spec = workflow(name="asked")(
        lambda q: generate("{q}", q=q, max_tokens=100, n=2, temperature=1.0)
    ).spec
    (call,) = spec.nodes
    inputs = {"q": "x" * 400}
    assert work_of(call, inputs) == Work(prompt_tokens=100, output_tokens=200)
    assert work_of(call, inputs, output_tokens=60) == Work(
        prompt_tokens=100, output_tokens=60
    )
    assert work_of(call, inputs, output_tokens=999).output_tokens == 200


def test_batch_engines_count_texts_and_their_tokens():
    one = node("embed", PortType.VECTOR, text="x" * 40)
    assert work_of(one, {}) == Work(items=1, tokens=10)
    many = node("embed", PortType.VECTORS, text=["x" * 40, "y" * 80])
    assert work_of(many, {}) == Work(items=2, tokens=30)
    documents = [{"text": "x" * 4000}]
    cutting = node("text.chunk", PortType.CHUNKS, documents=documents, max_tokens=200)
    assert work_of(cutting, {}) == Work(items=1, tokens=1000)
    late = msgspec.structs.replace(many, args={"text": NodeRef("n")})
    assert work_of(late, {}, outputs={"n": Size(1000, 5)}) == Work(items=5, tokens=1000)
    chunks = [{"text": "x" * 40}] * 3
    ranked = node("rerank", PortType.CHUNKS, query="y" * 20, chunks=chunks)
    assert work_of(ranked, {}) == Work(items=3, tokens=45)


def test_other_verbs_are_calls_or_items():
    assert work_of(node("pg.search", PortType.CHUNKS), {}) == Work()
    written = node("pg.write", PortType.JSON, embedded={"chunks": [{"text": "x"}] * 7})
    assert work_of(written, {}) == Work(items=7)
    assert work_of(node("unheard.of"), {}) == Work()
