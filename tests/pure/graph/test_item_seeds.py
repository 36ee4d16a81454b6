"""What decides an item of an output beside the item of the list."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.dsl import map_over, workflow
from herasys_rt.graph.hashing import XXH3
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import InputRef, Lit, NodeSpec, WorkflowSpec
from operators import embed, embed_many, generate, rerank, search_text


@workflow
def by_input(texts: list[str], kind: str = "document"):
    return embed_many(texts, kind=kind)


@workflow
def by_literal():
    return embed_many(["a", "b"])


@workflow
def by_nodes(question: str):
    return embed_many(["a", generate("{q}", q=question)])


@workflow
def by_region(questions: list[str]):
    return embed_many(map_over(questions, lambda q: generate("{q}", q=q)))


@workflow
def without(text: str):
    return embed(text)


def seeds(
    spec: WorkflowSpec, tenant: str = "t", model: str = "m", **inputs: Any
) -> tuple[bytes, ...]:
    return Signer(spec, lambda _: model).signed(inputs, tenant, "r").item_seeds


def many(spec: WorkflowSpec) -> NodeSpec:
    return next(node for node in spec.nodes if node.list_port)


def edited(spec: WorkflowSpec, **changes: Any) -> WorkflowSpec:
    """The spec with other fields of its list-valued node."""
    nodes = [replace(n, **changes) if n.list_port else n for n in spec.nodes]
    return replace(spec, nodes=tuple(nodes))


SEED = seeds(by_literal.spec)[0]


def test_a_seed_says_nothing_of_the_list_and_where_it_comes_from():
    texts = {"texts": ["x"], "kind": "document"}
    assert seeds(by_input.spec, **texts) == (SEED,)
    assert seeds(by_input.spec, **{**texts, "texts": ["y", "z"]}) == (SEED,)
    assert seeds(by_nodes.spec, question="q") == (b"", SEED)
    assert seeds(by_region.spec, questions=["q"]) == (b"", SEED)


def test_a_workflow_without_list_ports_has_no_seeds():
    assert seeds(without.spec, text="a") == ()


def test_whatever_else_decides_an_item_is_in_its_seed():
    node = many(by_literal.spec)
    others = [
        seeds(by_literal.spec, tenant="other"),
        seeds(by_literal.spec, model="other"),
        seeds(by_input.spec, texts=["x"], kind="query"),
        seeds(edited(by_literal.spec, operator="embed_many@2")),
        seeds(edited(by_literal.spec, verb="rerank")),
        seeds(edited(by_literal.spec, resource="rerank")),
        seeds(edited(by_literal.spec, args={**node.args, "more": Lit(1)})),
        seeds(replace(by_literal.spec, share="public")),
    ]
    found = [SEED, *[seed for (seed,) in others]]
    assert len(set(found)) == len(found)


def test_a_seed_is_neither_a_signature_nor_a_value_seed():
    signed = Signer(by_literal.spec, lambda _: "m").signed({}, "t", "run")
    assert len({*signed.signatures, *signed.seeds, *signed.item_seeds}) == 3


def test_equal_workflows_of_public_sharing_have_one_seed_for_all_tenants():
    public = replace(by_literal.spec, share="public")
    assert seeds(public, tenant="a") == seeds(public, tenant="b")


def test_what_nodes_and_regions_give_enters_later_and_its_form_is_in_the_seed():
    def seed(flow: Any, **inputs: Any) -> bytes:
        return seeds(flow.spec, **inputs)[-1]

    @workflow
    def below(question: str, passages: list[dict[str, Any]]):
        return rerank(generate("{q}", q=question), passages, top_k=2)

    @workflow
    def below_another(question: str):
        found = search_text(question, collection="c")
        return rerank(generate("{q}!", q=question), found, top_k=3)

    @workflow
    def by_item(questions: list[str]):
        return map_over(questions, lambda q: rerank(q, search_text(q, collection="c")))

    @workflow
    def by_question(question: str):
        return rerank(question, search_text(question, collection="c"))

    node = seed(below_another, question="q")
    assert node == seed(below, question="other", passages=[])
    item = seed(by_item, questions=["q"])
    assert item == seed(by_item, questions=["other"])
    given = seed(by_question, question="q")
    assert given != seed(by_question, question="other")
    assert len({node, item, given}) == 3


def test_a_list_port_of_a_collections_content_has_no_seed():
    node = many(by_literal.spec)
    args = {**node.args, "shelf": Lit("c")}
    assert seeds(edited(by_literal.spec, args=args, collection="shelf")) == ()


@pytest.mark.parametrize("purity", ["effect", "sampled"])
def test_what_may_not_fuse_has_no_seed(purity):
    assert seeds(edited(by_literal.spec, purity=purity)) == (b"",)


def test_seeds_are_stable_and_made_by_the_hash_that_was_chosen():
    assert seeds(by_literal.spec)[0] == SEED and len(SEED) == 32
    (short,) = Signer(by_literal.spec, lambda _: "m", XXH3).signed({}, "t", "r").item_seeds
    assert len(short) == 16


def test_a_parameter_that_is_an_input_counts_by_its_value():
    spec = edited(by_input.spec, args={**many(by_input.spec).args, "p": InputRef("p")})
    texts = {"texts": ["x"], "kind": "document"}
    assert seeds(spec, **texts, p=1) != seeds(spec, **texts, p=2)
