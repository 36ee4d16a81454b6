"""`web_search`: what it lowers to and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.config import default_config
from herasys_rt.dsl import find_operator, workflow
from herasys_rt.errors import GraphError
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import InputRef, Lit, NodeRef
from herasys_rt.graph.types import PortType
from operators import generate, rerank, web_search


def nodes_of(function: Any):
    return workflow(name="flow")(function).spec.nodes


def test_a_search_lowers_to_its_verb_and_feeds_prompts_and_rerankers():
    def flow(question: str):
        found = web_search(generate("Rewrite: {q}", q=question), top_k=3)
        return generate("{pages}", pages=rerank(question, found))

    _, search, best, _ = nodes_of(flow)
    assert (search.verb, search.resource) == ("http.search", "search")
    assert (search.purity, search.output) == ("pure", PortType.CHUNKS)
    assert search.args == {
        "query": NodeRef("generate"),
        "top_k": Lit(3),
        "provider": Lit(None),
        "collection": Lit("web"),
    }
    assert best.args["chunks"] == NodeRef("web_search")
    assert find_operator("web_search@1") is web_search


def test_results_stay_reusable_for_five_minutes():
    assert default_config().scheduler.reuse.ttl_s["http.search"] == 300.0


def test_a_search_depends_on_the_collection_it_may_read():
    def flow(question: str, where: str = "pages"):
        return web_search(question, collection=where)

    spec = workflow(name="flow")(flow).spec
    signer = Signer(spec, lambda node: "")
    assert signer.collections({"question": "q", "where": "pages"}) == (("pages",),)


def test_everything_that_changes_the_results_changes_the_signature():
    def signed(function: Any) -> bytes:
        return (
            Signer(workflow(name="flow")(function).spec, str)
            .signed({}, "t", "r")
            .signatures[-1]
        )

    others = [
        signed(lambda: web_search("a")),
        signed(lambda: web_search("b")),
        signed(lambda: web_search("a", top_k=6)),
        signed(lambda: web_search("a", provider="google")),
        signed(lambda: web_search("a", collection="c")),
    ]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: web_search(" "), "web_search.query: is empty"),
        (lambda: web_search("a", top_k=0), "at least 1"),
        (lambda: web_search("a", top_k=101), "at most 100"),
        (lambda: web_search("a", provider="bing"), "must be one of 'local', 'google'"),
        (lambda: web_search("a", collection=""), "web_search.collection: is empty"),
    ],
)
def test_a_wrong_call_is_refused(call, told):
    with pytest.raises(GraphError) as caught:
        nodes_of(call)
    assert told in str(caught.value)


def test_a_query_may_be_an_input():
    def flow(question: str):
        return web_search(question)

    assert nodes_of(flow)[0].args["query"] == InputRef("question")
