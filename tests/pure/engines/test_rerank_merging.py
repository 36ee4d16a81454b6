"""A rerank in parts is the rerank of the whole, for any scores, ties and cuts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.engines.ranks import fuse_ranks, ranks_of
from herasys_rt.engines.rerank.merging import merge_ranked, ranked, split

# Few different scores, so that most of them are equal to others.
scores = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0]), max_size=40)


def chunks_of(count: int) -> list[dict[str, Any]]:
    return [{"id": f"c{i}", "text": f"text {i}", "score": -float(i)} for i in range(count)]


def rerank(args: dict[str, Any], score_of: dict[str, float]) -> list[dict[str, Any]]:
    """What an engine gives whose scores depend on the chunk alone."""
    chunks = args["chunks"]
    whole = ranked(chunks, [score_of[c["id"]] for c in chunks], args.get("first_rank", 1))
    fuse = args["fuse_first_stage"]
    return merge_ranked([whole], args["top_k"], fuse_first_stage=fuse)


@given(scores, st.integers(1, 50), st.integers(1, 9), st.booleans())
def test_merged_parts_equal_the_unsplit(
    given_scores: list[float], top_k: int, parts: int, fuse: bool
):
    chunks = chunks_of(len(given_scores))
    score_of = {c["id"]: s for c, s in zip(chunks, given_scores, strict=True)}
    args = {"query": "q", "chunks": chunks, "top_k": top_k, "fuse_first_stage": fuse}
    done = [rerank(part, score_of) for part in split(args, parts)]
    merged = merge_ranked(done, top_k, fuse_first_stage=fuse)
    assert merged == rerank(args, score_of)


@given(scores, st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_parts_of_parts_merge_too(
    given_scores: list[float], parts: int, again: int, fuse: bool
):
    chunks = chunks_of(len(given_scores))
    score_of = {c["id"]: s for c, s in zip(chunks, given_scores, strict=True)}
    args = {"query": "q", "chunks": chunks, "top_k": 7, "fuse_first_stage": fuse}
    whole = split(args, parts)
    done = [rerank(small, score_of) for part in whole for small in split(part, again)]
    assert merge_ranked(done, 7, fuse_first_stage=fuse) == rerank(args, score_of)


@given(st.integers(0, 60), st.integers(1, 20))
def test_parts_are_neighbours_of_about_one_size(count: int, parts: int):
    args = {"query": "q", "chunks": chunks_of(count), "top_k": 3}
    made = split(args, parts)
    assert [c for part in made for c in part["chunks"]] == args["chunks"]
    sizes = [len(part["chunks"]) for part in made]
    assert max(sizes) - min(sizes) <= 1
    assert len(made) == max(1, min(parts, count))


def test_fused_ties_keep_the_order_before():
    chunks = chunks_of(2)
    whole = ranked(chunks, [0.0, 1.0])  # ranks (1, 2) and (2, 1): equal sums
    fused = merge_ranked([whole], 2, fuse_first_stage=True)
    assert [c["id"] for c in fused] == ["c0", "c1"]
    assert fused[0]["score"] == fused[1]["score"]


def test_ranks_fuse_by_weight_and_a_repeated_item_counts_once():
    assert ranks_of(["a", "b", "a"]) == {"a": 1, "b": 2}
    fused = fuse_ranks([["a", "b", "a"], ["b"]], weights=[2.0, 1.0], rrf_k=1)
    assert fused == {"a": 2 / 2, "b": 2 / 3 + 1 / 2}
    assert fuse_ranks([[], []]) == {}
