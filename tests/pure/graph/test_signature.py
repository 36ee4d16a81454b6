"""Signatures: everything that changes a value changes them, and nothing else does."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from herasys_rt.errors import InputError
from herasys_rt.graph.codec import CodecError
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    InputSpec,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    Sampling,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType

ROOT = Path(__file__).resolve().parents[3]
PORTS = (
    Port("text", PortType.ANY),
    Port("heat", PortType.FLOAT, required=False, default=0.0, is_param=True),
    Port("seed", PortType.INT, required=False, is_param=True, optional=True),
    Port("shelf", PortType.TEXT, required=False, default="docs", is_param=True),
)


def node(name: str = "a", **args: Arg) -> NodeSpec:
    return NodeSpec(name, "ask@1", "do", "llm", args, PORTS, PortType.TEXT)


def change(original: NodeSpec, **fields: object) -> NodeSpec:
    return msgspec.structs.replace(original, **fields)


def spec(*nodes: NodeSpec, inputs: str = "xyz", share: str = "tenant") -> WorkflowSpec:
    declared = tuple(InputSpec(name, PortType.ANY) for name in inputs)
    return WorkflowSpec("flow", declared, nodes, {"output": NodeRef(nodes[-1].id)}, share)


def model(_: NodeSpec) -> str:
    return "model-1"


def sign(
    *nodes: NodeSpec, tenant="t", run_id="r", fingerprint=model, share="tenant", **inputs
) -> tuple[bytes, ...]:
    return Signer(spec(*nodes, share=share), fingerprint).sign(inputs, tenant, run_id)


def last(*nodes: NodeSpec, **more) -> bytes:
    return sign(*nodes, **more)[-1]


BASE = node(text=Lit("x"))


def test_a_signature_is_32_bytes_and_equal_for_equal_work():
    assert len(last(BASE)) == 32
    assert last(BASE) == last(BASE)


@pytest.mark.parametrize(
    "other",
    [
        change(BASE, operator="ask@2"),
        change(BASE, operator="tell@1"),
        change(BASE, verb="redo"),
        change(BASE, resource="cpu"),
        node(text=Lit("y")),
        node(text=Lit("x"), heat=Lit(0.5), seed=Lit(1)),
        node(text=Lit("x"), seed=Lit(1)),
        node(text=Lit("x"), seed=Lit(0)),
        node(text=Lit("x"), shelf=Lit("books")),
    ],
)
def test_every_field_that_changes_the_value_changes_the_signature(other):
    assert last(other) != last(BASE)


def test_the_model_fingerprint_and_the_tenant_are_part_of_it():
    assert last(BASE, fingerprint=lambda n: "model-2") != last(BASE)
    assert last(BASE, tenant="u") != last(BASE)


@pytest.mark.parametrize(
    "other",
    [
        change(BASE, id="b"),
        change(BASE, label="b"),
        change(BASE, streams=True),
        change(BASE, args={"shelf": Lit("docs"), "text": Lit("x")}),
        node(text=Lit("x"), heat=Lit(0.0), seed=Lit(None)),
        node(text=Lit("x"), heat=Lit(0)),
        node(text=Lit("x"), heat=Lit(-0.0)),
    ],
)
def test_names_labels_order_and_written_out_defaults_change_nothing(other):
    assert last(other) == last(BASE)


def test_the_run_does_not_change_the_signature_of_pure_work():
    assert last(BASE, run_id="other") == last(BASE)


def test_an_input_signs_like_the_same_literal():
    assert last(node(text=InputRef("x")), x="x") == last(BASE)
    assert last(node(text=InputRef("y")), y="x") == last(BASE)
    assert last(node(text=Lit("x"), heat=InputRef("y")), y=0) == last(BASE)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (1, 1.0),
        (1, "1"),
        (True, 1.0),
        ("caf\u00e9", "cafe\u0301"),
        (["ab", "c"], ["a", "bc"]),
        (["a"], "a"),
        ("", None),
        ([], {}),
        (b"a", "a"),
        (" a", "a"),
        ("A", "a"),
        (np.zeros(2, np.float32), np.zeros(2, np.float64)),
    ],
    ids=repr,
)
def test_values_that_differ_sign_differently(left, right):
    assert last(node(text=Lit(left))) != last(node(text=Lit(right)))
    assert last(node(text=InputRef("x")), x=left) != last(node(text=InputRef("x")), x=right)


def test_floats_that_are_equal_sign_equally():
    assert last(node(text=Lit(-0.0))) == last(node(text=Lit(0.0)))
    assert last(node(text=InputRef("x")), x=math.nan) == last(node(text=Lit(-math.nan)))


def test_a_node_depends_on_its_parents():
    above, below = node("a", text=InputRef("x")), node("b", text=NodeRef("a"))
    one, two = sign(above, below, x="1"), sign(above, below, x="2")
    assert one[0] != two[0]
    assert one[1] != two[1]
    assert one == sign(above, below, x="1")


def test_a_parent_is_no_value():
    above, below = node("a", text=Lit("1")), node("b", text=NodeRef("a"))
    parent, child = sign(above, below)
    assert child != last(node("b", text=Lit(parent)))


def test_lists_of_arguments_keep_their_order_and_their_borders():
    a, b = node("a", text=Lit("1")), node("b", text=Lit("2"))

    def joined(*items: Lit | InputRef | NodeRef) -> bytes:
        return last(a, b, node("c", text=ListRef(items)), x="1")

    forms = [
        joined(NodeRef("a"), NodeRef("b")),
        joined(NodeRef("b"), NodeRef("a")),
        joined(NodeRef("a")),
        joined(NodeRef("a"), NodeRef("a")),
        joined(NodeRef("a"), Lit("x")),
        joined(Lit("x"), NodeRef("a")),
        joined(),
        last(a, b, node("c", text=NodeRef("a"))),
    ]
    assert len(set(forms)) == len(forms)
    assert joined(NodeRef("a"), InputRef("x")) == joined(NodeRef("a"), Lit("1"))


def test_public_work_is_shared_across_tenants_and_apart_from_every_tenant():
    public = last(BASE, share="public", tenant="t")
    assert public == last(BASE, share="public", tenant="u")
    assert public not in {last(BASE, tenant=t) for t in ("t", "public", "")}


@pytest.mark.parametrize("purity", ["effect", "sampled"])
def test_a_node_that_may_not_fuse_has_no_signature_and_taints_what_follows(purity):
    above = change(node("a", text=Lit("x")), purity=purity)
    below = node("b", text=NodeRef("a"))
    other = node("c", text=Lit("x"))
    first = sign(above, below, other, run_id="1")
    again = sign(above, below, other, run_id="2")
    assert first[0] == again[0] == b""
    assert first[1] != again[1]
    assert first[2] == again[2] == last(BASE)


def test_two_unfusible_nodes_of_a_run_taint_differently():
    one = change(node("a", text=Lit("x")), purity="effect")
    two = change(node("b", text=Lit("x")), purity="effect")
    left, right = node("c", text=NodeRef("a")), node("d", text=NodeRef("b"))
    signed = sign(one, two, left, right)
    assert signed[2] != signed[3]


def test_sampling_is_settled_per_run():
    def heated(heat: float, seed: int | None = None) -> bytes:
        asked = node(text=Lit("x"), heat=InputRef("x"), seed=InputRef("y"))
        return last(change(asked, sampling=Sampling("heat", "seed")), x=heat, y=seed)

    assert heated(0.5) == b""
    assert heated(1) == b""
    assert len(heated(0.5, seed=7)) == 32
    assert heated(0.0) == last(BASE)


def test_a_missing_input_and_an_uncodable_one_are_named():
    with pytest.raises(InputError, match="'x' is missing"):
        sign(node(text=InputRef("x")))
    with pytest.raises(CodecError):
        sign(node(text=InputRef("x")), x={1})


def test_collections_include_those_of_ancestors():
    read = change(node("a", text=Lit("x")), collection="shelf")
    dynamic = change(node("b", text=NodeRef("a"), shelf=InputRef("x")), collection="shelf")
    plain, apart = node("c", text=NodeRef("b")), node("d", text=Lit("x"))
    signer = Signer(spec(read, dynamic, plain, apart), model)
    expected = (("docs",), ("books", "docs"), ("books", "docs"), ())
    assert signer.collections({"x": "books"}) == expected
    assert signer.collections({"x": "docs"}) == (("docs",), ("docs",), ("docs",), ())
    assert Signer(spec(read), model).collections({}) == (("docs",),)


def test_the_fingerprint_is_asked_once_per_node():
    asked: list[str] = []

    def count(one: NodeSpec) -> str:
        asked.append(one.id)
        return "m"

    signer = Signer(spec(node("a", text=Lit("x")), node("b", text=NodeRef("a"))), count)
    signer.sign({}, "t", "1")
    signer.sign({}, "t", "2")
    assert asked == ["a", "b"]


_SCRIPT = """
from examples.stdlib_rag import rag_rerank
from herasys_rt.graph.signature import Signer
signer = Signer(rag_rerank.spec, lambda node: "m:" + node.resource)
signed = signer.sign(rag_rerank.bind(question="What is caf\\u00e9?"), "t", "r")
print(rag_rerank.spec.id, *(s.hex() for s in signed))
"""


def test_signatures_are_equal_in_every_process_and_under_every_hash_seed():
    printed = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(printed) == 1
    assert len(printed.pop().split()) == 5
