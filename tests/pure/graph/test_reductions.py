"""What is made of parts: chunks in the order of their scores, for any scores and ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.dsl import workflow
from herasys_rt.errors import NodeError
from herasys_rt.graph import codec
from herasys_rt.graph.rank_fusion import fuse_ranks, ranks_of
from herasys_rt.graph.reductions import ranked, sources_of
from herasys_rt.graph.spec import Reduction, WorkflowSpec
from herasys_rt.graph.validation import validate_spec
from operators import rerank, search_text
from tests.pure.graph.test_item_seeds import edited

# Few different scores, so that most of them are equal to others.
few_scores = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0]), max_size=40)


def chunk(name: str, score: float) -> dict[str, Any]:
    return {"id": name, "text": f"text {name}", "source": f"s-{name}", "score": score}


CHUNKS = [chunk("a", 0.9), chunk("b", 0.8), chunk("c", 0.7), chunk("d", 0.6)]


def best(scores: list[float], chunks: Any = CHUNKS, **args: Any) -> list[dict[str, Any]]:
    return ranked({"query": "q", "chunks": chunks, "top_k": 9, **args}, scores)


def ids(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["id"] for chunk in chunks)


def test_chunks_come_best_first_and_keep_their_first_score():
    found = best([2.0, 1.0, 3.0, 0.0], top_k=2)
    assert found == [
        {**CHUNKS[2], "score": 3.0, "first_score": 0.7, "first_rank": 3},
        {**CHUNKS[0], "score": 2.0, "first_score": 0.9, "first_rank": 1},
    ]
    assert sources_of(found) == [
        {"id": "c", "source": "s-c", "score": 3.0, "text": "text c"},
        {"id": "a", "source": "s-a", "score": 2.0, "text": "text a"},
    ]
    codec.encode(found)


def test_given_chunks_are_left_as_they_were():
    before = [dict(c) for c in CHUNKS]
    best([1.0, 2.0, 3.0, 4.0])
    assert before == CHUNKS


def test_equal_scores_keep_their_first_order():
    assert ids(best([0.0] * 4)) == "abcd"


def test_no_chunks_give_none():
    assert best([], chunks=[]) == [] == sources_of([])


def test_a_chunk_without_a_score_or_source_gets_one():
    (found,) = best([1.0], chunks=[{"id": "x", "text": "red"}])
    assert (found["score"], found["first_score"]) == (1.0, None)
    assert sources_of([found]) == [{"id": "x", "source": "", "score": 1.0, "text": "red"}]


def test_the_first_stage_fuses_with_the_scores_by_rank():
    scores = [2.0, 1.0, 3.0, 0.0]
    assert ids(best(scores)) == "cabd"
    # a was first and is second, c was third and is first: 1/61 + 1/62 beats 1/63 + 1/61.
    fused = best(scores, fuse_first_stage=True)
    assert ids(fused) == "acbd"
    assert fused[0]["score"] == 1 / 61 + 1 / 62
    assert (fused[0]["rerank_score"], fused[0]["first_score"]) == (2.0, 0.9)
    assert best(scores, fuse_first_stage=True, top_k=2) == fused[:2]
    codec.encode(fused)


def test_fused_ties_keep_the_order_before():
    fused = best([0.0, 1.0], chunks=CHUNKS[:2], fuse_first_stage=True)
    assert ids(fused) == "ab"  # ranks (1, 2) and (2, 1): equal sums
    assert fused[0]["score"] == fused[1]["score"]


def test_ranking_twice_keeps_the_last_first_stage():
    again = best([0.0, 1.0, 0.0, 1.0], chunks=best([0.0, 1.0, 0.0, 1.0]))
    assert [(c["id"], c["first_rank"], c["first_score"]) for c in again] == [
        *(("d", 2, 1.0), ("c", 4, 0.0), ("b", 1, 1.0), ("a", 3, 0.0)),
    ]


@given(few_scores, st.integers(1, 50), st.booleans())
def test_the_order_is_by_score_and_then_the_first(
    scores: list[float], top_k: int, fuse: bool
):
    chunks = [chunk(f"{i}", -i) for i in range(len(scores))]
    found = best(scores, chunks=chunks, top_k=top_k, fuse_first_stage=fuse)
    keys = [(-c["score"], c["first_rank"]) for c in found]
    assert keys == sorted(keys) and len(found) == min(top_k, len(chunks))
    told = [c["rerank_score"] if fuse else c["score"] for c in found]
    assert told == [scores[c["first_rank"] - 1] for c in found]
    if not fuse:
        left = sorted(scores, reverse=True)[:top_k]
        assert [c["score"] for c in found] == left


@pytest.mark.parametrize(
    ("args", "scores", "code"),
    [
        ({"top_k": 0}, [0.0] * 4, "invalid_argument"),
        ({"top_k": True}, [0.0] * 4, "invalid_argument"),
        ({"top_k": 1.5}, [0.0] * 4, "invalid_argument"),
        ({"fuse_first_stage": 1}, [0.0] * 4, "invalid_argument"),
        ({}, [0.0] * 3, "not_aligned"),
        ({}, [0.0, float("nan"), 0.0, 0.0], "not_finite"),
        ({}, [0.0, float("-inf"), 0.0, 0.0], "not_finite"),
        ({}, None, "not_aligned"),
        ({}, "0000", "not_aligned"),
        ({}, CHUNKS, "not_aligned"),
        ({}, [True] * 4, "not_aligned"),
        ({}, np.zeros((4, 1), np.float32), "not_aligned"),
        ({"chunks": None}, [0.0] * 4, "invalid_argument"),
        ({"chunks": ["a", "b", "c", "d"]}, [0.0] * 4, "invalid_argument"),
    ],
)
def test_what_cannot_be_ranked_is_an_error(args: dict[str, Any], scores: Any, code: str):
    with pytest.raises(NodeError) as caught:
        ranked({"chunks": CHUNKS, "top_k": 9, **args}, scores)
    assert caught.value.code == code


def test_ranks_fuse_by_weight_and_a_repeated_item_counts_once():
    assert ranks_of(["a", "b", "a"]) == {"a": 1, "b": 2}
    fused = fuse_ranks([["a", "b", "a"], ["b"]], weights=[2.0, 1.0], rrf_k=1)
    assert fused == {"a": 2 / 2, "b": 2 / 3 + 1 / 2}
    assert fuse_ranks([[], []]) == {}


@workflow
def reranked(question: str):
    return rerank(question, search_text(question, collection="c"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"reduction": Reduction("rank")}, "there is no reduction 'rank'"),
        ({"reduction": Reduction("ranked", ("chunks",))}, "reads 'chunks'"),
        ({"reduction": Reduction("ranked", ("k",))}, "reads 'k'"),
        ({"list_port": None}, "has a reduction and no list port"),
    ],
)
def test_a_reduction_that_nobody_can_carry_out_is_a_fault(
    changes: dict[str, Any], problem: str
):
    def faults(spec: WorkflowSpec) -> str:
        return "\n".join(fault.problem for fault in validate_spec(spec))

    assert faults(reranked.spec) == ""
    assert problem in faults(edited(reranked.spec, **changes))
