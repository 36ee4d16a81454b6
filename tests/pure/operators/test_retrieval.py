"""Retrieval, rerank and ingestion operators: what they lower to and refuse."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.dsl import find_operator, workflow
from herasys_rt.errors import GraphError
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import InputRef, ListRef, Lit, NodeSpec
from herasys_rt.graph.types import PortType
from operators import (
    delete,
    embed,
    hybrid,
    ingest,
    rerank,
    retrieve,
    search_text,
)


def nodes_of(function: Any) -> tuple[NodeSpec, ...]:
    return workflow(name="flow")(function).spec.nodes


def faults_of(function: Any) -> str:
    with pytest.raises(GraphError) as caught:
        workflow(name="flow")(function)
    return "\n".join(str(fault) for fault in caught.value.fields["faults"])


def signed(function: Any) -> bytes:
    spec = workflow(name="flow")(function).spec
    return Signer(spec, lambda node: "m").signed({}, "t", "r").signatures[-1]


def test_each_operator_lowers_to_its_verb():
    def flow(question: str):
        vector = embed(question)
        both = hybrid(vector, question, collection="c")
        return {
            "near": retrieve(vector, collection="c"),
            "text": search_text(question, collection="c"),
            "best": rerank(question, both, fuse_first_stage=True),
            "gone": delete(["a"], collection="c"),
        }

    found = {n.id: (n.verb, n.resource, n.output, n.purity) for n in nodes_of(flow)}
    assert found == {
        "embed": ("embed", "embedding", PortType.VECTOR, "pure"),
        "hybrid": ("pg.hybrid", "retrieval", PortType.CHUNKS, "pure"),
        "retrieve": ("pg.search", "retrieval", PortType.CHUNKS, "pure"),
        "search_text": ("pg.text", "retrieval", PortType.CHUNKS, "pure"),
        "rerank": ("rerank", "rerank", PortType.CHUNKS, "pure"),
        "delete": ("pg.delete", "retrieval", PortType.JSON, "effect"),
    }


@pytest.mark.parametrize("name", ["retrieve", "search_text", "hybrid"])
def test_searches_are_keyed_by_their_collections_revision(name: str):
    assert find_operator(f"{name}@1").collection == "collection"


def test_all_that_decides_a_search_is_in_its_signature():
    def near(**more: Any) -> bytes:
        args: dict[str, Any] = {"collection": "c", **more}
        return signed(lambda: retrieve(embed("q"), **args))

    def text(**more: Any) -> bytes:
        args: dict[str, Any] = {"collection": "c", **more}
        return signed(lambda: search_text("q", **args))

    def both(**more: Any) -> bytes:
        args: dict[str, Any] = {"collection": "c", **more}
        return signed(lambda: hybrid(embed("q"), "q", **args))

    of_any = [{}, {"collection": "d"}, {"top_k": 5}, {"filter": {"a": 1}}]
    of_vectors = [
        {"distance": "l2"},
        {"index": "exact"},
        {"index": "hnsw"},
        {"ef_search": 50},
    ]
    of_texts = [{"language": "german"}, {"k1": 1.0}, {"b": 0.5}]
    of_both = [
        {"candidates": 50},
        {"rrf_k": 10},
        {"vector_weight": 2},
        {"text_weight": 2},
    ]
    seen = [near(**args) for args in [*of_any, *of_vectors]]
    seen += [text(**args) for args in [*of_any, *of_texts]]
    seen += [both(**args) for args in [*of_any, *of_vectors, *of_texts, *of_both]]
    assert len(set(seen)) == len(seen)
    assert near(label="other") == near()
    plain = signed(lambda: rerank("q", search_text("q", collection="c")))
    fused = signed(
        lambda: rerank("q", search_text("q", collection="c"), fuse_first_stage=True)
    )
    assert plain != fused


def test_what_a_new_collection_is_made_with_goes_with_the_write():
    def flow(documents: list[dict[str, Any]]):
        return ingest(documents, collection="c", storage="halfvec", language="german", m=8)

    write = nodes_of(flow)[-1]
    given = {name: arg.value for name, arg in write.args.items() if isinstance(arg, Lit)}
    assert given == {
        "collection": "c",
        "replace": False,
        "distance": None,
        "storage": "halfvec",
        "language": "german",
        "m": 8,
        "ef_construction": None,
    }


def test_deletes_take_ids_or_a_source_known_later():
    def flow(names: list[str], document: str):
        return {
            "ids": delete(names, collection="c"),
            "source": delete(source=document, collection="c"),
            "mixed": delete([document, "b"], collection="c"),
        }

    nodes = {n.id: n for n in nodes_of(flow)}
    assert nodes["delete"].args["ids"] == InputRef("names")
    assert nodes["delete_2"].args["source"] == InputRef("document")
    assert nodes["delete_3"].args["ids"] == ListRef((InputRef("document"), Lit("b")))


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda q: retrieve(embed("a"), collection="c", distance="far"), "'far'"),  # pyright: ignore
        (lambda q: retrieve(embed("a"), collection="c", index="ivf"), "'exact', 'hnsw'"),
        (lambda q: retrieve(embed("a"), collection="c", ef_search=0), "at least 1"),
        (lambda q: retrieve(embed("a"), collection="c", ef_search=1001), "at most 1000"),
        (lambda q: search_text(" ", collection="c"), "search_text.query: is empty"),
        (lambda q: search_text(embed("a"), collection="c"), "takes text, got vector"),
        (lambda q: search_text("a", collection="c", k1=-0.1), "k1: must be at least 0"),
        (lambda q: search_text("a", collection="c", b=1.5), "b: must be at most 1"),
        (lambda q: search_text("a", collection="c", filter="x"), "no dict"),  # pyright: ignore
        (lambda q: hybrid("a", "a", collection="c"), "hybrid.vector"),  # pyright: ignore
        (lambda q: hybrid(embed("a"), "a", collection="c", candidates=0), "at least 1"),
        (lambda q: hybrid(embed("a"), "a", collection="c", text_weight=-1), "at least 0"),
        (lambda q: hybrid(embed("a"), "a", collection="c", rrf_k=float("inf")), "finite"),
        (lambda q: rerank("a", [], fuse_first_stage=1), "fuse_first_stage"),  # pyright: ignore
        (lambda q: delete(collection="c"), "either ids or a source"),
        (lambda q: delete(["a"], source="b", collection="c"), "either ids or a source"),
        (lambda q: delete(source=" ", collection="c"), "delete.source: is empty"),
        (lambda q: ingest([], collection="c", storage="bit"), "'vector', 'halfvec'"),
        (lambda q: ingest([], collection="c", m=1), "m: must be at least 2"),
    ],
)
def test_a_wrong_call_is_refused(function: Any, line: str):
    assert line in faults_of(function)
