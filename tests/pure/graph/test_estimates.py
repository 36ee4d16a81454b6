"""How much work nodes are, before they have run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from herasys_rt.dsl import discover, find_operator, map_over, when, workflow
from herasys_rt.graph.estimates import (
    DECODE_CHUNK_TOKENS,
    ESTIMATES,
    UNKNOWN_LIST,
    UNKNOWN_TEXT,
    Estimate,
    Size,
    Workload,
    output_size,
    size_of,
    split_of,
    workload,
)
from herasys_rt.graph.spec import NodeSpec
from operators import (
    chunk,
    chunk_documents,
    embed,
    embed_many,
    generate,
    generate_json,
    ingest,
    prompt,
    rerank,
    retrieve,
    web_search,
)

TEXT_TOKENS = UNKNOWN_TEXT.tokens


def nodes(function: Any) -> tuple[NodeSpec, ...]:
    return workflow(name="flow")(function).spec.nodes


def last(function: Any) -> NodeSpec:
    return nodes(function)[-1]


# Language models


def test_generation_is_its_prompt_and_what_it_may_write():
    node = last(lambda: generate("x" * 400, max_tokens=50))
    assert workload(node) == Workload(
        "llm.generate", "tokens", 150.0, prompt_tokens=100.0, output_tokens=50.0
    )


def test_several_answers_are_written_only_where_they_are_drawn():
    drawn = last(lambda: generate("x" * 400, max_tokens=50, n=3, temperature=1.0))
    assert workload(drawn).output_tokens == 150.0
    alike = last(lambda: generate("x" * 400, max_tokens=50, n=3))
    assert workload(alike).output_tokens == 50.0


def test_values_count_where_they_stand_and_placeholders_not_at_all():
    def flow(question: str):
        return generate(
            "{question}{late}|{question}",
            system="s" * 8,
            question=question,
            late=generate("x", label="first"),
            max_tokens=10,
        )

    node = last(flow)
    assert workload(node).prompt_tokens == 2 + 2 * TEXT_TOKENS + TEXT_TOKENS + 0.25
    known = workload(node, {"question": "y" * 40}, {"first": "z" * 80})
    assert known.prompt_tokens == 2 + 2 * 10 + 20 + 0.25


def test_a_simulated_run_gives_sizes_instead_of_values():
    def rag(question: str):
        chunks = retrieve(embed(question), collection="docs", top_k=12)
        best = rerank(question, chunks, top_k=8)
        return generate("{context}{q}", context=best, q=question, max_tokens=150)

    embedding, search, ranking, answer = nodes(rag)
    inputs = {"question": Size(12)}
    outputs = {"retrieve": Size(12 * 200, 12), "rerank": Size(8 * 200, 8)}
    assert workload(embedding, inputs) == Workload("embed", "tokens", 12)
    assert workload(search, inputs) == Workload("pg.search", "calls", 1)
    assert workload(ranking, inputs, outputs) == Workload(
        "rerank", "tokens", 12 * (12 + 200), items=12, parts=12
    )
    assert workload(answer, inputs, outputs) == Workload(
        "llm.generate", "tokens", 1762, prompt_tokens=1612, output_tokens=150
    )


def test_messages_and_prompts_made_of_values_count_whole():
    def flow(question: str, history: list[dict[str, str]]):
        made = prompt("Of {q}:", q=question)
        chosen = when(question, then=lambda: question, otherwise=lambda: "none")
        return generate(
            messages=["{history}", {"role": "user", "content": "{made}{chosen}"}],
            history=history,
            made=made,
            chosen=chosen,
            max_tokens=1,
        )

    history = [{"role": "user", "content": "h" * 40}]
    work = workload(last(flow), {"question": Size(100), "history": history})
    role = len("user") / 4
    template = len("Of {q}:") / 4
    assert work.prompt_tokens == 10 + role + (100 + template) + 100


def test_the_schema_guides_and_is_not_read():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    guided = last(lambda: generate_json("x" * 40, schema=schema, max_tokens=5))
    assert workload(guided).prompt_tokens == 10


# Embedding, reranking, storing


def test_chunks_count_by_their_text_alone():
    chunks = [{"id": "1", "text": "z" * 80, "source": "a long source name", "score": 1.0}]
    node = last(lambda: rerank("q" * 40, chunks))
    assert workload(node).amount == 10 + 20
    more = last(lambda: rerank("q" * 40, retrieve(embed("x"), collection="c")))
    assert workload(more).amount == UNKNOWN_LIST.items * (10 + TEXT_TOKENS)
    none = last(lambda: rerank("q" * 40, []))
    assert (workload(none).amount, workload(none).items, workload(none).parts) == (1, 0, 1)


def test_embedding_counts_tokens_texts_and_into_how_many_it_may_be_cut():
    one = last(lambda: embed("x" * 40))
    assert workload(one) == Workload("embed", "tokens", 10.0)
    many = last(lambda: embed_many(["x" * 40, "y" * 40]))
    assert workload(many) == Workload("embed", "tokens", 20.0, items=2, parts=2)

    def flow(texts: list[str], first: str):
        return {"all": embed_many(texts), "two": embed_many([first, "y" * 40], label="two")}

    late, mixed = nodes(flow)
    assert workload(late).items == workload(late).parts == UNKNOWN_LIST.items
    assert workload(late, {"texts": Size(900, 30)}).amount == 900
    assert workload(mixed).amount == TEXT_TOKENS + 10


def test_documents_count_as_the_chunks_that_they_are_cut_into():
    def flow(documents: list[dict[str, Any]]):
        return ingest(documents, collection="c", chunk_tokens=200, overlap=20)

    cutting, embedding, write = nodes(flow)
    long, short = {"documents": Size(1800, 1)}, {"documents": Size(300, 3)}
    assert workload(cutting, long) == Workload("text.chunk", "tokens", 1800)
    assert workload(cutting, short) == Workload(
        "text.chunk", "tokens", 300, items=3, parts=3
    )
    pieces = output_size(cutting, long)
    assert pieces == Size(1800 + 9 * 20, 10)
    assert output_size(cutting, short) == Size(300, 3)
    assert output_size(embedding, long) is None
    known = {"chunk_documents": pieces}
    assert workload(embedding, {}, known) == Workload(
        "embed", "tokens", 1980, items=10, parts=10
    )
    assert workload(write, {}, known) == Workload("pg.write", "items", 10, items=10)
    assert workload(embedding).amount == UNKNOWN_LIST.tokens
    assert workload(write).amount == UNKNOWN_LIST.items
    assert workload(cutting, {"documents": []}).amount == 1.0


def test_a_text_that_is_cut_gives_its_pieces():
    whole = last(lambda: chunk("x" * 4000, max_tokens=100, overlap=0))
    assert output_size(whole) == Size(1000, 10)


def test_what_is_no_text_is_a_call():
    search = last(lambda: retrieve(embed("x" * 40), collection="c"))
    assert workload(search).amount == 1.0
    page = last(lambda: web_search("x" * 40))
    assert workload(page) == Workload("http.search", "calls", 1.0)
    assert workload(last(lambda: chunk("x" * 40))).amount == 10.0


def test_an_element_of_a_region_counts_by_its_item():
    def flow(texts: list[str]):
        return map_over(texts, lambda text: generate("{t}", t=text, max_tokens=1))

    node = last(flow)
    assert workload(node, item="x" * 40).prompt_tokens == 10
    assert workload(node).prompt_tokens == TEXT_TOKENS


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("x" * 8, Size(2)),
        ([], Size(0, 0)),
        (["x" * 8, "y" * 8], Size(4, 2)),
        ({"a": "x" * 8, "b": [1, "y" * 4]}, Size(3)),
        ({"chunks": [{"id": "1", "text": "x" * 8}], "vectors": None}, Size(2, 1)),
        (np.zeros((5, 3), dtype=np.float32), Size(0, 5)),
        (np.zeros(3, dtype=np.float32), Size(0)),
        (Size(3, 4), Size(3, 4)),
        (None, Size(0)),
    ],
)
def test_a_value_has_a_size(value, size):
    assert size_of(value) == size


# Declarations


def test_only_lists_are_cut_and_each_says_how_it_is_put_together():
    def cut(function: Any) -> str | None:
        node = last(function)
        return split_of(node.ports, ESTIMATES[node.verb])

    assert cut(lambda: embed("x")) is None
    assert cut(lambda: embed_many(["x"])) == "text"
    documents = [{"id": "1", "text": "t"}]
    assert cut(lambda: chunk_documents(documents)) == "documents"
    assert cut(lambda: chunk("x")) is None
    assert cut(lambda: rerank("x", [])) == "chunks"
    assert cut(lambda: generate("x")) is None


@pytest.mark.parametrize(
    "operator", ["generate@1", "generate_json@1", "judge@1", "classify@1", "choose_tool@1"]
)
def test_language_model_operators_declare_their_sub_nodes(operator):
    estimate = find_operator(operator).estimate
    assert estimate.reads_prompt
    assert estimate.decode_chunk_tokens == DECODE_CHUNK_TOKENS == 64
    assert estimate.cost_key == "llm.generate"


def test_every_operator_of_the_library_declares_what_its_work_is():
    library = [op for op in discover().values() if op.__module__.startswith("operators")]
    assert len(library) > 15
    for op in library:
        assert op.estimate == ESTIMATES[op.verb]
        if op.estimate.unit != "calls" and not op.estimate.reads_prompt:
            names = {port.name for port in op.ports}
            assert names & {*op.estimate.sizes, op.estimate.each}, op.id


def test_an_operators_own_estimate_counts_instead_of_its_verbs():
    node = last(lambda: embed("x" * 40))
    assert workload(node, estimate=Estimate("mine")) == Workload("mine", "calls", 1.0)
