"""Explanations: the pre-image in words, and the first thing in which two nodes differ."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from herasys_rt.config import mask_dsn
from herasys_rt.config_source import is_secret
from herasys_rt.errors import InputError
from herasys_rt.graph.explain import (
    SHOWN_CHARACTERS,
    Comparison,
    Explanation,
    Secrets,
    compare,
    explain,
)
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    InputSpec,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    Region,
    Sampling,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType

PORTS = (
    Port("text", PortType.ANY),
    Port("heat", PortType.FLOAT, required=False, default=0.0, is_param=True),
    Port("seed", PortType.INT, required=False, is_param=True, optional=True),
    Port("shelf", PortType.TEXT, required=False, default="docs", is_param=True),
    Port("api_key", PortType.TEXT, required=False, default="", is_param=True),
)


def node(name: str = "a", **args: Arg) -> NodeSpec:
    return NodeSpec(name, "ask@1", "do", "llm", args, PORTS, PortType.TEXT)


def change(original: NodeSpec, **fields: object) -> NodeSpec:
    return msgspec.structs.replace(original, **fields)


def told(
    *nodes: NodeSpec,
    of: str = "",
    tenant: str = "t",
    run_id: str = "r",
    model: str = "m",
    share: str = "tenant",
    revisions: dict[str, int] | None = None,
    **inputs: Any,
) -> Explanation:
    declared = tuple(InputSpec(name, PortType.ANY) for name in inputs)
    regions = tuple(Region(n.region, Lit([1])) for n in nodes if n.region)
    outputs: dict[str, Arg] = {"o": NodeRef(nodes[-1].id)}
    spec = WorkflowSpec("flow", declared, nodes, outputs, share, regions=regions)
    signer = Signer(spec, lambda _: model)
    secrets = Secrets(is_secret, mask_dsn)
    name = of or nodes[-1].id
    return explain(signer, name, inputs, tenant, run_id, revisions or {}, secrets)


def shown(found: Explanation) -> dict[str, str]:
    return {field.name: field.shown for field in found.fields}


def test_every_field_of_the_preimage_is_told_in_order():
    read = change(node("a", text=InputRef("x")), collection="shelf")
    below = node("b", text=NodeRef("a"), heat=Lit(0.5))
    found = told(read, below, x="why?", revisions={"docs": 7, "books": 9})
    above = told(read, below, of="a", x="why?")
    assert shown(found) == {
        "format": "1",
        "operator": "ask@1",
        "verb": "do",
        "resource": "llm",
        "model": "m",
        "scope": "tenant 't'",
        "argument api_key": "***",
        "argument heat": "0.5",
        "argument seed": "None (the default)",
        "argument shelf": "'docs' (the default)",
        "argument text": f"node a ({above.signature[:16]})",
    }
    assert found.fields[-1].nodes == {"a": above.signature}
    assert shown(above)["argument text"] == "'why?' (input x)"
    assert found.collections == {"docs": 7}
    assert found.obstacle == ""
    assert len(found.signature) == len(found.seed) == 64


@pytest.mark.parametrize(
    ("arg", "words"),
    [
        (ListRef((Lit(1), InputRef("x"))), "[1, 'v' (input x)]"),
        (ChoiceRef(InputRef("x"), Lit("a"), Lit("b")), "'a' if 'v' (input x) else 'b'"),
        (Expr("field", {"value": InputRef("x"), "key": Lit("k")}), "field(key='k', value="),
        (
            Expr("each", {"items": InputRef("x"), "item": ItemRef("s"), "body": Lit(1)}),
            "each(",
        ),
        (Lit(b"1234"), "4 bytes"),
        (Lit(np.zeros((2, 3), np.float32)), "float32 array of shape (2, 3)"),
        (Lit({"token": "abc", "name": "n"}), "{'name': 'n', 'token': '***'}"),
        (
            Expr("record", {"password": Lit("abc"), "a": Lit(1)}),
            "record(a=1, password=***)",
        ),
        (Lit("postgresql://me:abc@host/db"), "'postgresql://me:***@host/db'"),
    ],
)
def test_every_form_of_an_argument_has_words(arg, words):
    assert shown(told(node(text=arg), x="v"))["argument text"].startswith(words)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        [list(range(100))] * 100,
        {str(i): i for i in range(1000)},
        b"x" * 10**6,
    ],
)
def test_values_are_shortened(value):
    assert len(shown(told(node(text=Lit(value))))["argument text"]) <= SHOWN_CHARACTERS


def test_what_is_named_like_a_secret_is_nowhere():
    found = told(
        node(
            text=ListRef((InputRef("token"), Lit({"secret": "hush"}))),
            api_key=Lit("hush"),
        ),
        token="hush",
    )
    assert "hush" not in str(found.to_json())


def test_why_a_node_may_not_fuse_is_said():
    effect = change(node("a", text=Lit("x")), purity="effect")
    below, far = node("b", text=NodeRef("a")), node("c", text=NodeRef("b"))
    found = told(effect, below, far, of="a")
    assert (found.signature, found.seed) == ("", "")
    assert (
        found.obstacle == "May not fuse: it has effects, which every run wants for itself."
    )
    assert "below a, which may not fuse" in told(effect, below, far).obstacle
    assert told(effect, below, of="b").fields[-1].nodes == {"a": ""}
    drawn = change(
        node(text=Lit("x"), heat=InputRef("x")), sampling=Sampling("heat", "seed")
    )
    assert "draws random numbers" in told(drawn, x=0.5).obstacle
    assert told(drawn, x=0.0).obstacle == ""
    shared = told(change(drawn, sample=3), x=0.5)
    assert (shared.obstacle, shown(shared)["sample"]) == ("", "3")


def test_a_node_of_a_region_and_its_elements_are_explained():
    inner = change(node("in", text=ItemRef("r")), region="r")
    for name in ("in", "in[3]"):
        found = told(inner, of=name)
        assert found.node == name
        assert shown(found)["region"] == "once per item of [1]"
        assert shown(found)["argument text"] == "the item"
        assert "each element of its list fuses by value" in found.obstacle
        assert found.signature == ""
        assert len(found.seed) == 64
    taken = told(inner, node("end", text=NodeRef("in")))
    assert shown(taken)["argument text"].startswith("the list of node in (")


def test_an_unknown_node_is_told_with_what_is_near():
    with pytest.raises(InputError, match="no node 'generat'") as caught:
        told(node("generate", text=Lit(1)), node("b", text=Lit(2)), of="generat")
    assert caught.value.code == "unknown_node"
    assert "generate" in caught.value.hint
    with pytest.raises(InputError) as caught:
        told(node("generate", text=Lit(1)), node("b", text=Lit(2)), of="zzz")
    assert caught.value.hint == "It has generate, b."


# Comparisons


BASE = node(text=Lit("x"))


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (told(change(BASE, operator="ask@2", verb="redo")), "operator"),
        (told(change(BASE, verb="redo")), "verb"),
        (told(change(BASE, resource="cpu")), "resource"),
        (told(BASE, model="n"), "model"),
        (told(BASE, tenant="u"), "scope"),
        (told(BASE, share="public"), "scope"),
        (told(node(text=Lit("y"), shelf=Lit("z"))), "argument shelf"),
        (told(node(text=Lit("y"))), "argument text"),
        (told(node(text=Lit("x"), api_key=Lit("hush"))), "argument api_key"),
        (told(node(text=Lit("x"), more=Lit("x"))), "argument more"),
    ],
)
def test_the_first_field_that_differs_is_named(other, field):
    for left, right in ((told(BASE), other), (other, told(BASE))):
        found = compare(left, right)
        assert (found.equal, found.field) == (False, field)
        assert "hush" not in str(found.to_json())


def test_the_two_sides_are_told():
    found = compare(told(BASE), told(node(text=Lit("y"))))
    assert found == Comparison(False, "They differ.", "argument text", "'x'", "'y'")
    longer = told(node(text=Lit("x"), zone=Lit(1)))
    assert compare(told(BASE), longer).left == "(no such field)"


def test_equal_work_is_told_as_such():
    found = compare(told(BASE), told(change(BASE, id="z"), run_id="other"))
    assert found == Comparison(True, "They are equal by the structural signature.")
    given = compare(told(BASE), told(node(text=InputRef("x")), x="x"))
    assert given.equal


def test_values_that_differ_beyond_what_is_shown_are_told_apart():
    long = "x" * 10**5
    found = compare(told(node(text=Lit(long + "a"))), told(node(text=Lit(long + "b"))))
    assert found.field == "argument text"


def test_another_revision_is_a_difference():
    read = change(BASE, collection="shelf")
    one, two = told(read, revisions={"docs": 1}), told(read, revisions={"docs": 2})
    assert compare(one, two) == Comparison(
        False, "They differ.", "collection docs", "revision 1", "revision 2"
    )
    assert compare(one, one).verdict.endswith("at equal revisions.")


def test_below_other_nodes_sharing_by_value_is_pointed_out():
    below = node("b", text=NodeRef("a"))
    left = told(node("a", text=Lit("1")), below)
    right = told(node("a", text=Lit("2")), below)
    found = compare(left, right)
    assert (found.equal, found.field) == (False, "argument text")
    assert "with equal outputs they share by value" in found.verdict


def test_all_fields_that_differ_are_named():
    first, second = node(text=Lit("x"), zone=Lit(1)), node(text=Lit("y"), zone=Lit(2))
    found = compare(told(first), told(second))
    assert (found.field, found.also) == ("argument text", ("argument zone",))


def test_equal_fields_of_what_may_not_fuse_are_no_equality():
    effect = change(BASE, purity="effect")
    found = compare(told(effect), told(effect, run_id="other"))
    assert (found.equal, found.field) == (False, "")
    assert "may not fuse: it has effects" in found.verdict
