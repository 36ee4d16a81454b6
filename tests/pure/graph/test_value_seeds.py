"""Value seeds: everything that decides a value, except what parents and items give."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.graph import codec
from herasys_rt.graph.hashing import SHA256, XXH3
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    Guard,
    InputRef,
    InputSpec,
    ItemRef,
    ListRef,
    Lit,
    NodeOptions,
    NodeRef,
    NodeSpec,
    Region,
    Retry,
    Sampling,
    WorkflowSpec,
    decode_spec,
)
from herasys_rt.graph.types import PortType
from tests.pure.graph.asking import change, node

ROOT = Path(__file__).resolve().parents[3]


def flow(*nodes: NodeSpec, share: str = "tenant", items: Arg | None = None) -> WorkflowSpec:
    declared = tuple(InputSpec(name, PortType.ANY) for name in "xyz")
    names = dict.fromkeys(n.region for n in nodes if n.region)
    regions = tuple(Region(name, items or InputRef("z")) for name in names)  # pyright: ignore
    outputs: dict[str, Arg] = {"output": NodeRef(nodes[-1].id)}
    return WorkflowSpec("flow", declared, nodes, outputs, share, regions=regions)


def seeds(
    *nodes: NodeSpec,
    tenant: str = "t",
    model: str = "m",
    share: str = "tenant",
    **inputs: Any,
) -> tuple[bytes, ...]:
    signer = Signer(flow(*nodes, share=share), lambda _: model)
    return signer.signed({"x": 1, "y": 2, "z": [], **inputs}, tenant, "r").seeds


def last(*nodes: NodeSpec, **more: Any) -> bytes:
    return seeds(*nodes, **more)[-1]


A, B = node("a", text=Lit("1")), node("b", text=Lit("2"))
BASE = node(text=Lit("x"))


def test_a_seed_is_32_bytes_and_no_signature():
    signed = Signer(flow(BASE), lambda _: "m").signed({"x": 1, "y": 2, "z": 3}, "t", "r")
    assert [len(seed) for seed in signed.seeds] == [32]
    assert set(signed.seeds).isdisjoint(signed.signatures)


@pytest.mark.parametrize(
    "other",
    [
        change(BASE, operator="ask@2"),
        change(BASE, operator="tell@1"),
        change(BASE, verb="redo"),
        change(BASE, resource="cpu"),
        node(text=Lit("y")),
        node(text=Lit(["x"])),
        node(text=ListRef((Lit("x"),))),
        node(text=NodeRef("b")),
        node(text=Lit("x"), seed=Lit(0)),
        node(text=Lit("x"), heat=Lit(0.5), seed=Lit(0)),
        node(text=Lit("x"), shelf=Lit("books")),
    ],
)
def test_everything_that_changes_a_value_changes_its_seed(other):
    assert last(B, other) != last(B, BASE)


def test_the_model_and_the_scope_change_a_seed():
    assert last(BASE, model="n") != last(BASE)
    assert last(BASE, tenant="u") != last(BASE)
    assert last(BASE, share="public", tenant="u") == last(BASE, share="public")
    assert last(BASE, share="public") != last(BASE)


@pytest.mark.parametrize(
    "other",
    [
        change(BASE, id="c", label="c"),
        change(BASE, streams=True),
        change(BASE, options=NodeOptions(5.0, Retry(), 3, False, 1.0)),
        change(BASE, guards=(Guard(NodeRef("b"), True),)),
        node(text=Lit("x"), heat=Lit(0), seed=Lit(None)),
        node(text=InputRef("y")),
    ],
)
def test_what_changes_no_value_changes_no_seed(other):
    assert last(B, other, y="x") == last(B, BASE)


def test_what_parents_are_changes_no_seed_but_their_places_do():
    below = node("c", text=NodeRef("a"))
    alone = last(A, B, below)
    assert alone == last(change(A, operator="tell@9"), B, below, tenant="t")
    assert alone == last(change(A, purity="effect"), B, below)
    assert alone == last(A, B, node("c", text=NodeRef("b")))

    def pair(left: str, right: str) -> bytes:
        return last(A, B, node("c", text=ListRef((NodeRef(left), NodeRef(right)))))

    assert pair("a", "b") == pair("b", "a")  # in the order of their parents
    assert pair("a", "a") == pair("b", "b") != pair("a", "b")


def test_a_choice_and_its_two_sides_are_told_apart_by_their_places():
    one, two = NodeRef("a"), NodeRef("b")
    forms: list[Arg] = [
        one,
        ListRef((one,)),
        ChoiceRef(one, one, two),
        ChoiceRef(one, two, one),
        ChoiceRef(one, two, two),
        ChoiceRef(InputRef("x"), one, two),
        Expr("text", {"value": one}),
        Expr("record", {"a": one, "b": two}),
        Expr("record", {"a": one, "c": two}),
        Expr("field", {"value": one, "key": Lit("k")}),
        Expr("each", {"items": one, "item": ItemRef("s"), "body": ItemRef("s")}),
        Expr("each", {"items": one, "item": ItemRef("s"), "body": two}),
    ]
    assert len({last(A, B, node("c", text=form)) for form in forms}) == len(forms)


@pytest.mark.parametrize("purity", ["effect", "sampled"])
def test_what_may_not_fuse_has_no_seed_and_leaves_its_successors_theirs(purity):
    below = node("b", text=NodeRef("a"))
    found = seeds(change(BASE, purity=purity), below)
    assert found == (b"", last(BASE, below))


def test_sampling_is_settled_per_run_and_a_shared_sample_is_numbered():
    asked = node(text=Lit("x"), heat=InputRef("x"), seed=InputRef("y"))
    drawn = change(asked, sampling=Sampling("heat", "seed"))
    assert last(drawn, x=0.5, y=None) == b""
    assert last(drawn, x=0.0, y=None) == last(BASE)
    assert len(last(drawn, x=0.5, y=3)) == 32
    shared = [last(change(drawn, sample=n), x=0.5, y=None) for n in (0, 1)]
    assert len({*shared, last(drawn, x=0.5, y=3), b""}) == 4
    assert last(change(drawn, sample=1), x=0.0, y=None) == last(BASE)


def test_a_node_of_a_region_has_a_seed_without_its_list():
    inner, end = node("in", "r", text=ItemRef("r")), node("end", text=NodeRef("in"))
    found = seeds(inner, end)
    assert [len(seed) for seed in found] == [32, 32]
    other = Signer(flow(inner, end, items=Lit(["a"])), lambda _: "m")
    assert other.signed({}, "t", "r").seeds == found
    assert (
        Signer(flow(inner, end), lambda _: "m").signed({"z": []}, "t", "r").signatures[0]
        == b""
    )


def test_an_element_shares_with_the_same_work_outside_but_its_item_is_none():
    same = node("in", "r", text=Lit("x"))
    assert seeds(same)[0] == last(BASE)
    item, literal = node("in", "r", text=ItemRef("r")), node("in", "r", text=Lit("r"))
    assert seeds(item) != seeds(literal)


def test_one_output_and_the_list_of_a_region_are_told_apart():
    inside = node("in", "r", text=ItemRef("r"))
    beside = node("next", "r", text=NodeRef("in"))
    after = node("next", text=NodeRef("in"))
    assert last(inside, beside) != last(inside, after)
    assert last(inside, beside) == last(A, node("next", text=NodeRef("a")))


def test_own_collections_are_those_a_node_names_itself():
    read = change(node("a", text=Lit("x")), collection="shelf")
    dynamic = change(node("b", text=NodeRef("a"), shelf=InputRef("x")), collection="shelf")
    plain = node("c", text=NodeRef("b"))
    signer = Signer(flow(read, dynamic, plain), lambda _: "m")
    assert signer.own_collections({"x": "books"}) == (("docs",), ("books",), ())
    assert signer.own_collections({"x": "docs"}) == (("docs",), ("docs",), ())
    assert signer.collections({"x": "books"})[-1] == ("books", "docs")


def test_names_are_as_long_as_the_hash_gives_them():
    spec = flow(A, change(B, purity="effect"), node("c", text=NodeRef("b")))
    for hashing in (SHA256, XXH3):
        signer = Signer(spec, lambda _: "m", hashing)
        inputs = {"x": "1", "y": 0.5, "z": [1]}
        signed = signer.signed(inputs, "t", "r")
        for names in (signed.signatures, signed.seeds, [signed.inputs]):
            assert {len(name) for name in names if name} == {hashing.size}


def test_inputs_are_named_by_their_names_and_values_whether_read_or_not():
    signer = Signer(flow(node(text=InputRef("x"))), lambda _: "m")
    base = {"x": "1", "y": 1, "z": None}
    name = signer.signed(base, "t", "r").inputs
    assert name == signer.signed(dict(reversed(base.items())), "u", "s").inputs
    others = [base | {"x": "2"}, base | {"y": 1.0}, base | {"z": []}]
    assert len({name, *(signer.signed(o, "t", "r").inputs for o in others)}) == 4
    renamed = replace(
        signer.spec, inputs=(*signer.spec.inputs[:2], InputSpec("w", PortType.ANY))
    )
    inputs = {"x": "1", "y": 1, "w": None}
    assert Signer(renamed, lambda _: "m").signed(inputs, "t", "r").inputs != name


def test_a_spec_that_travelled_signs_and_seeds_equally():
    spec = flow(A, B, node("c", text=ListRef((NodeRef("b"), NodeRef("a"), Lit(1.5)))))
    inputs = {"x": 1, "y": 2, "z": 3}
    expected = Signer(spec, lambda _: "m").signed(inputs, "t", "r")
    for copy in (
        decode_spec(codec.encode(spec)),
        decode_spec(spec.encoded),
        pickle.loads(pickle.dumps(spec)),
    ):
        sent = pickle.loads(pickle.dumps(inputs))
        assert Signer(copy, lambda _: "m").signed(sent, "t", "r") == expected


_SCRIPT = """
from examples.stdlib_rag import rag_rerank
from herasys_rt.graph.hashing import HASHES
from herasys_rt.graph.signature import Signer
inputs = rag_rerank.bind(question="What is caf\\u00e9?")
for hashing in HASHES.values():
    signer = Signer(rag_rerank.spec, lambda node: "m:" + node.resource, hashing)
    signed = signer.signed(inputs, "t", "r")
    print(*(name.hex() for name in (*signed.signatures, *signed.seeds, signed.inputs)))
"""


def test_signatures_and_seeds_are_equal_in_every_process_and_under_every_hash_seed():
    printed = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "4242")
    }
    assert len(printed) == 1
    assert len(printed.pop().split()) == 18
