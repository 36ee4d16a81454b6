"""What a collection is made with and what a search asks for: checked before the server."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.modelled import ModelledEngine
from herasys_rt.engines.modelled import create as create_modelled
from herasys_rt.engines.postgres import rows, verbs
from herasys_rt.engines.postgres.searching import ByText, ByVector, Found, Fusing, fused
from herasys_rt.engines.postgres.settings import Settings, check_same, given_settings
from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.engines.protocol import Item
from herasys_rt.errors import InputError
from herasys_rt.runtime.registry import declare
from operators import ingestion, retrieval
from tests.outcome_sink import OutcomeSink


def test_only_given_settings_are_asked_of_a_collection():
    assert given_settings({"distance": None, "storage": "halfvec", "other": 1}) == {
        "storage": "halfvec"
    }
    made = Settings(distance="l2")
    check_same("c", made, {"distance": "l2", "m": 16})
    with pytest.raises(InputError, match="made with distance l2, not cosine") as error:
        check_same("c", made, {"distance": "cosine"})
    assert error.value.code == "distance_mismatch"


@pytest.mark.parametrize(
    "wrong",
    [
        {"distance": "hamming"},
        {"storage": "bit"},
        {"language": " "},
        {"language": 7},
        {"m": 1},
        {"m": True},
        {"m": 101},
        {"ef_construction": 3},
        {"ef_construction": 1.5},
        {"m": 50, "ef_construction": 64},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]):
    with pytest.raises(InputError):
        given_settings(wrong)


def test_halfvec_refuses_what_float16_cannot_hold():
    large = np.array([1.0, 70_000.0])
    rows.query_vector(large, "c", 2, "l2")
    with pytest.raises(InputError, match=r"70000\.0 at position 1"):
        rows.query_vector(large, "c", 2, "l2", "halfvec")
    tiny = np.array([1e-9, 0.0])
    rows.query_vector(tiny, "c", 2, "cosine")
    with pytest.raises(InputError, match="zeros"):
        rows.query_vector(tiny, "c", 2, "cosine", "halfvec")


@pytest.mark.parametrize("distance", ["cosine", "inner_product", "l2"])
def test_vectors_whose_distances_would_be_no_numbers_are_refused(distance: str):
    with pytest.raises(InputError, match="too long"):
        rows.query_vector(np.full(3, 1e19), "c", 3, distance)
    rows.query_vector(np.full(3, 1e18), "c", 3, distance)
    short = np.full(3, 1e-30)
    if distance == "cosine":
        with pytest.raises(InputError, match="too short"):
            rows.query_vector(short, "c", 3, distance)
    else:
        rows.query_vector(short, "c", 3, distance)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: ByVector([1.0], 0),
        lambda: ByVector([1.0], 1, distance="far"),
        lambda: ByVector([1.0], 1, index="ivf"),
        lambda: ByVector([1.0], 1, ef_search=0),
        lambda: ByVector([1.0], 1, ef_search=1001),
        lambda: ByText(None, 1),  # pyright: ignore[reportArgumentType]
        lambda: ByText("a", True),
        lambda: ByText("a", 1, k1=-1),
        lambda: ByText("a", 1, k1=math.inf),
        lambda: ByText("a", 1, b=1.01),
        lambda: ByText("a", 1, b=math.nan),
        lambda: Fusing(1, candidates=0),
        lambda: Fusing(1, rrf_k=-1),
        lambda: Fusing(1, text_weight=math.nan),
    ],
)
def test_impossible_searches_are_refused(ask: Any):
    with pytest.raises(InputError):
        ask()


def test_a_search_sets_something_only_when_it_must():
    assert not ByVector([1.0], 1).tuned
    assert not ByVector([1.0], 1, index="exact", ef_search=50).tuned
    assert ByVector([1.0], 1, ef_search=50).tuned
    assert ByVector([1.0], 1, index="hnsw").tuned


def found(*ids: str) -> Found:
    return Found([{"id": id, "text": id, "score": 9.0} for id in ids], 7, 3)


def test_both_orders_fuse_and_ties_go_by_id():
    both = fused(found("b", "a"), found("a", "b", "c"), Fusing(3))
    assert [(c["id"], c["vector_rank"], c["text_rank"]) for c in both.chunks] == [
        ("a", 2, 1),
        ("b", 1, 2),
        ("c", None, 3),
    ]
    assert both.chunks[0]["score"] == both.chunks[1]["score"] == 1 / 61 + 1 / 62
    assert (both.revision, both.held) == (7, 3)


def test_weights_and_depth_decide_the_fused_order():
    near, text = found("a", "b"), found("b", "a")
    assert fused(near, text, Fusing(1, vector_weight=2)).chunks[0]["id"] == "a"
    assert fused(near, text, Fusing(1, text_weight=2)).chunks[0]["id"] == "b"
    assert fused(near, Found([], 7, 3), Fusing(5)).chunks[1]["text_rank"] is None
    assert Fusing(200).depth == 200
    assert Fusing(5).depth == 100


class Revisions(OutcomeSink):
    def __init__(self) -> None:
        super().__init__()
        self.revisions: list[int] = []

    def collection_changed(self, collection: str, revision: int) -> None:
        self.revisions.append(revision)


async def test_arguments_of_a_wrong_kind_never_reach_the_server():
    store = CollectionStore("nowhere")
    for verb, args in (
        ("pg.search", {"vector": [1.0], "filter": ["x"]}),
        ("pg.text", {"query": 7}),
        ("pg.text", {"query": None}),
        ("pg.hybrid", {"vector": [1.0], "query": "a", "candidates": "all"}),
        ("pg.delete", {"ids": "abc"}),
        ("pg.delete", {"ids": [1]}),
        ("pg.delete", {"source": 1}),
        ("pg.delete", {}),
        ("pg.delete", {"ids": [], "source": "s"}),
        ("pg.write", {"embedded": {"chunks": [], "vectors": []}, "storage": "bit"}),
    ):
        with pytest.raises(InputError):
            await verbs.VERBS[verb](store, {"collection": "c", **args})
    for name in (None, "", " ", "a\x00"):
        for verb in verbs.VERBS.values():
            with pytest.raises(InputError):
                await verb(store, {"collection": name})


@pytest.mark.parametrize(
    ("operator", "verb"),
    [
        (retrieval.retrieve, "pg.search"),
        (retrieval.search_text, "pg.text"),
        (retrieval.hybrid, "pg.hybrid"),
        (ingestion.store, "pg.write"),
        (ingestion.delete, "pg.delete"),
    ],
)
def test_every_operator_has_its_verb(operator: Any, verb: str):
    assert operator.verb == verb
    assert verb in verbs.VERBS


def test_the_verbs_are_those_that_every_engine_of_the_resource_has():
    pool = PoolConfig(name="retrieval", resource="retrieval", engine="pgvector")
    assert set(declare(pool, alone=True).verbs) == set(verbs.VERBS)
    assert set(verbs.VERBS) <= ModelledEngine.verbs


def test_a_modelled_change_moves_the_revision_as_a_real_one():
    sink = Revisions()
    pool = PoolConfig(name="retrieval", resource="retrieval", engine="modelled")
    engine = create_modelled(pool)
    engine.start(sink)
    embedded = {"chunks": [{"id": "a", "source": "s", "text": "t"}], "vectors": None}
    for key, verb, args in (
        ("w", "pg.write", {"embedded": embedded}),
        ("d", "pg.delete", {"source": "s"}),
        ("i", "pg.delete", {"ids": ["a", "b"]}),
        ("t", "pg.text", {"query": "q", "top_k": 2}),
        ("h", "pg.hybrid", {"query": "q", "vector": [1.0], "top_k": 3}),
    ):
        engine.submit([Item(key, verb, {"collection": "c", **args})])
        assert sink.outcomes[key].error is None
    engine.close()
    assert sink.revisions == [1, 2, 3]
    assert sink.outcomes["i"].value["chunks"] == 2
    assert (len(sink.outcomes["t"].value), len(sink.outcomes["h"].value)) == (2, 3)
