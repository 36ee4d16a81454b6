"""How much work nodes are, before they have run."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.dsl import find_operator, workflow
from herasys_rt.graph.estimates import (
    DECODE_CHUNK_TOKENS,
    ESTIMATES,
    UNKNOWN_ITEMS,
    UNKNOWN_TEXT_TOKENS,
    Estimate,
    workload,
)
from herasys_rt.graph.spec import NodeSpec
from operators import embed, embed_many, generate, ingest, rerank, retrieve


def nodes(function: Any) -> tuple[NodeSpec, ...]:
    return workflow(name="flow")(function).spec.nodes


def test_generation_is_its_prompt_and_what_it_may_write():
    (node,) = nodes(lambda: generate("x" * 400, max_tokens=50))
    assert workload(node, {}) == 150.0
    (many,) = nodes(lambda: generate("x" * 400, max_tokens=50, n=3, temperature=1.0))
    assert workload(many, {}) == 250.0


def test_inputs_count_once_they_are_known_and_outputs_by_a_guess():
    def flow(question: str):
        return generate(
            "{question}{late}", question=question, late=generate("x"), max_tokens=10
        )

    node = nodes(flow)[-1]
    template = len("{question}{late}") / 4
    assert workload(node, {}) == 2 * UNKNOWN_TEXT_TOKENS + template + 10
    assert workload(node, {"question": "y" * 40}) == (
        10 + UNKNOWN_TEXT_TOKENS + template + 10
    )


def test_chunks_count_by_their_text_alone():
    chunks = [{"id": "1", "text": "z" * 80, "source": "a long source name", "score": 1.0}]
    (node,) = nodes(lambda: rerank("q" * 40, chunks))
    assert workload(node, {}) == 10 + 20
    more = nodes(lambda: rerank("q" * 40, retrieve(embed("x"), collection="c")))[-1]
    assert workload(more, {}) == UNKNOWN_ITEMS * (10 + UNKNOWN_TEXT_TOKENS)


def test_embedding_counts_tokens_and_a_search_is_one_call():
    one, search = nodes(lambda: retrieve(embed("x" * 40), collection="c"))
    assert (workload(one, {}), workload(search, {})) == (10.0, 1.0)
    (many,) = nodes(lambda: embed_many(["x" * 40, "y" * 40]))
    assert workload(many, {}) == 20.0
    assert ESTIMATES["embed"].split is not None


def test_storing_counts_chunks_and_nothing_is_free():
    def flow(documents: list[dict[str, Any]]):
        return ingest(documents, collection="c")

    embedding, write = nodes(flow)[-2:]
    assert workload(write, {}) == UNKNOWN_ITEMS
    assert workload(embedding, {"documents": []}) == 1.0


@pytest.mark.parametrize(
    "operator", ["generate@1", "generate_json@1", "judge@1", "classify@1", "choose_tool@1"]
)
def test_language_model_operators_declare_their_sub_nodes(operator):
    estimate = find_operator(operator).estimate
    assert (
        estimate.prefill_head and estimate.decode_chunk_tokens == DECODE_CHUNK_TOKENS == 64
    )
    assert estimate.cost_key == "llm.generate"


def test_an_operators_own_estimate_counts_instead_of_its_verbs():
    (node,) = nodes(lambda: embed("x" * 40))
    assert workload(node, {}, Estimate("mine")) == 1.0
