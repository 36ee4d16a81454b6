"""Signatures: everything that changes a value changes them, and nothing else does."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from herasys_rt.errors import InputError
from herasys_rt.graph.codec import CodecError
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
)
from herasys_rt.graph.types import PortType
from tests.pure.graph.asking import change, node


def spec(*nodes: NodeSpec, inputs: str = "xyz", share: str = "tenant") -> WorkflowSpec:
    declared = tuple(InputSpec(name, PortType.ANY) for name in inputs)
    return WorkflowSpec("flow", declared, nodes, {"output": NodeRef(nodes[-1].id)}, share)


def model(_: NodeSpec) -> str:
    return "model-1"


def sign(
    *nodes: NodeSpec, tenant="t", run_id="r", fingerprint=model, share="tenant", **inputs
) -> tuple[bytes, ...]:
    return (
        Signer(spec(*nodes, share=share), fingerprint)
        .signed(inputs, tenant, run_id)
        .signatures
    )


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
    signer.signed({}, "t", "1")
    signer.signed({}, "t", "2")
    assert asked == ["a", "b"]


# Lists, choices, expressions and regions


def each_of(items: Arg, body: Arg, region: str = "r") -> Expr:
    return Expr("each", {"items": items, "item": ItemRef(region), "body": body})


def test_every_form_of_an_argument_signs_differently():
    a, b = node("a", text=Lit("1")), node("b", text=Lit("2"))
    one, two = NodeRef("a"), NodeRef("b")
    field = Expr("field", {"value": one, "key": Lit("k")})
    forms: list[Arg] = [
        one,
        two,
        ListRef((one,)),
        ListRef((ListRef((one,)),)),
        ListRef((ListRef((one,)), two)),
        ListRef((ListRef((one, two)),)),
        ListRef((ListRef((ListRef((one,)), two)),)),
        ListRef((ListRef((ListRef((one, two)),)),)),
        Expr("text", {"value": ListRef((ListRef((one,)), two))}),
        Expr("text", {"value": ListRef((ListRef((one, two)),))}),
        ChoiceRef(one, one, two),
        ChoiceRef(one, two, one),
        ChoiceRef(two, one, two),
        ChoiceRef(InputRef("x"), one, two),
        Expr("choose", {"condition": one, "then": one, "otherwise": two}),
        field,
        Expr("field", {"value": one, "key": Lit("l")}),
        Expr("field", {"value": two, "key": Lit("k")}),
        Expr("text", {"value": one}),
        Expr("text", {"value": field}),
        Expr("record", {"a": one, "b": two}),
        Expr("record", {"a": one, "c": two}),
        Expr("record", {"b": one, "a": two}),
        each_of(one, ItemRef("r")),
        each_of(two, ItemRef("r")),
        each_of(one, ListRef((ItemRef("r"),))),
        each_of(one, one),
        each_of(one, each_of(two, ItemRef("s"), "s")),
        each_of(one, each_of(two, ItemRef("r"), "s")),
    ]
    signed = [last(a, b, node("c", text=form), x="1") for form in forms]
    assert len(set(signed)) == len(forms)


def test_an_expression_over_an_input_signs_like_one_over_the_literal():
    def form(value: Arg) -> NodeSpec:
        choice = ChoiceRef(InputRef("x"), value, Lit("z"))
        return node(text=Expr("text", {"value": ListRef((choice,))}))

    assert last(form(InputRef("y")), x=True, y="v") == last(form(Lit("v")), x=True)
    assert last(form(InputRef("y")), x=True, y="v") != last(form(Lit("v")), x=False)


def test_names_of_bound_items_change_nothing():
    def signed(name: str) -> bytes:
        return last(node(text=each_of(InputRef("x"), ItemRef(name), name)), x=["a"])

    assert signed("r") == signed("s")


def test_a_guard_changes_nothing_and_its_condition_is_no_ancestor():
    read = change(node("a", text=Lit("x")), collection="shelf")
    free = node("b", text=Lit("x"))
    guarded = change(free, guards=(Guard(NodeRef("a"), True),))
    assert last(read, guarded) == last(read, free)
    assert Signer(spec(read, guarded), model).collections({}) == (("docs",), ())
    effect = change(read, purity="effect")
    assert len(last(effect, guarded)) == 32


def region_spec(
    *inner: NodeSpec, items: Any = None, take: Arg | None = None, region: str = "r"
) -> WorkflowSpec:
    head = node("list", text=InputRef("x"))
    inside = [change(one, region=region) for one in inner]
    end = node("end", text=take or NodeRef(inner[-1].id))
    declared = tuple(InputSpec(name, PortType.ANY) for name in "xyz")
    regions = (Region(region, items or NodeRef("list")),)
    nodes = (head, *inside, end)
    return WorkflowSpec("flow", declared, nodes, {"o": NodeRef("end")}, regions=regions)


def sign_region(whole: WorkflowSpec, run_id: str = "r", **inputs: Any) -> tuple[bytes, ...]:
    values = {"x": "1", "y": [], "z": 0, **inputs}
    return Signer(whole, model).signed(values, "t", run_id).signatures


def test_nodes_of_a_region_are_unsigned_and_their_list_is_signed():
    whole = region_spec(node("in", text=ItemRef("r")))
    signed = sign_region(whole)
    assert [len(one) for one in signed] == [32, 0, 32]
    assert signed == sign_region(whole, run_id="other")
    assert signed[2] != sign_region(whole, x="2")[2]


def test_the_list_of_a_region_is_signed_over_all_that_makes_it():
    inner = node("in", text=ItemRef("r"))
    base = region_spec(inner)
    others = [
        region_spec(inner, items=InputRef("x")),
        region_spec(inner, items=Lit(["a"])),
        region_spec(change(inner, operator="ask@2")),
        region_spec(node("in", text=ListRef((ItemRef("r"), InputRef("z"))))),
        region_spec(node("in", text=Lit("x"))),
        region_spec(inner, node("in2", text=NodeRef("in"))),
        region_spec(inner, take=each_of(NodeRef("list"), ItemRef("r"))),
        region_spec(
            inner,
            take=each_of(
                NodeRef("list"),
                Expr("own", {"node": NodeRef("in"), "item": ItemRef("r")}),
            ),
        ),
    ]
    signed = {sign_region(one)[-1] for one in [base, *others]}
    assert len(signed) == len(others) + 1
    same = region_spec(node("in", text=ItemRef("s")), region="s")
    assert sign_region(same)[-1] == sign_region(base)[-1]


def test_which_node_an_item_has_its_output_from_is_told():
    def taking(name: str) -> bytes:
        own = Expr("own", {"node": NodeRef(name), "item": ItemRef("r")})
        first, other = node("in", text=ItemRef("r")), node("in2", text=Lit("x"))
        return sign_region(region_spec(first, other, take=each_of(NodeRef("list"), own)))[
            -1
        ]

    assert taking("in") != taking("in2")


def test_a_node_outside_and_the_same_inside_a_region_differ():
    inner = node("in", text=Lit("x"))
    in_region = region_spec(inner)
    outside = spec(node("list", text=InputRef("x")), inner, node("end", text=NodeRef("in")))
    assert sign_region(in_region)[-1] != sign_region(outside)[-1]


@pytest.mark.parametrize("purity", ["effect", "sampled"])
def test_a_region_with_a_node_that_may_not_fuse_taints_its_takers(purity):
    whole = region_spec(change(node("in", text=ItemRef("r")), purity=purity))
    assert sign_region(whole)[-1] != sign_region(whole, run_id="other")[-1]
    above = region_spec(node("in", text=ItemRef("r")))
    head = change(above.nodes[0], purity=purity)
    tainted = msgspec.structs.replace(above, nodes=(head, *above.nodes[1:]))
    assert sign_region(tainted)[-1] != sign_region(tainted, run_id="other")[-1]


def test_a_region_depends_on_the_collections_of_its_list():
    whole = region_spec(node("in", text=Lit("x")))
    head = change(whole.nodes[0], collection="shelf")
    reading = msgspec.structs.replace(whole, nodes=(head, *whole.nodes[1:]))
    assert Signer(reading, model).collections({}) == (("docs",), ("docs",), ("docs",))


def test_a_sample_that_is_shared_signs_with_its_number():
    def sampled(heat: Arg, sample: int | None) -> NodeSpec:
        asked = node(text=Lit("x"), heat=heat)
        return change(asked, sampling=Sampling("heat", "seed"), sample=sample)

    first, second = (last(sampled(Lit(0.5), n), run_id="1") for n in (0, 1))
    assert first != second
    assert first == last(sampled(Lit(0.5), 0), run_id="2")
    assert len(first) == 32
    assert last(sampled(Lit(0.5), None)) == b""
    # Not drawing, there are no samples to tell apart.
    assert last(sampled(InputRef("x"), 1), x=0.0) == last(BASE)
    assert last(sampled(InputRef("x"), 0), x=0.5) == first


def test_options_change_nothing():
    options = NodeOptions(timeout_s=1.0, retry=Retry(), priority=5, cache=False)
    assert last(change(BASE, options=options)) == last(BASE)
