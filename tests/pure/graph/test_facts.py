"""Truth and length of values, and which inputs are asked for them."""

from __future__ import annotations

import numpy as np
import pytest

from herasys_rt.core.values import Fact as KernelFact
from herasys_rt.graph import codec
from herasys_rt.graph.facts import (
    MAX_ITEMS,
    Fact,
    fact_of,
    facts_of,
    items_of,
    text_items_of,
)
from herasys_rt.graph.hashing import HASHES, SHA256, XXH3
from herasys_rt.graph.spec import (
    ChoiceRef,
    Expr,
    Guard,
    InputRef,
    InputSpec,
    Lit,
    NodeRef,
    NodeSpec,
    Region,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        (None, (False, -1)),
        (True, (True, -1)),
        (0, (False, -1)),
        (float("nan"), (True, -1)),
        ("", (False, -1)),
        (" \t", (False, -1)),
        ("a", (True, -1)),
        (b"", (False, -1)),
        ([], (False, 0)),
        ([0, 0], (True, 2)),
        ({}, (False, -1)),
        (np.zeros(3), (True, -1)),
        (np.zeros((0, 3)), (False, -1)),
    ],
)
def test_a_value_has_a_truth_and_a_list_a_length(value, fact):
    assert fact_of(value) == fact


NAMES = ("c", "g", "items", "plain", "texts", "o")


def test_the_items_of_a_list_are_told_by_their_canonical_encodings():
    value = ["é", float("nan"), -0.0, {"b": 1, "a": [True]}]
    assert items_of(value) == tuple(codec.digest(codec.canonical(v)) for v in value)
    assert items_of([0.0, float("nan")]) == items_of((-0.0, -float("nan")))
    assert len(set(items_of([1, True, 1.0, "1", b"1", None, ["1"]]))) == 7


@pytest.mark.parametrize(
    "value", ["text", {"a": 1}, None, np.zeros(3), [], [{1}], ["ok", "\ud800"]]
)
def test_no_items_are_told_of_what_is_no_list_or_cannot_be_encoded(value):
    assert items_of(value) == ()


def test_a_list_that_is_too_long_has_no_digests():
    assert len(items_of([0] * MAX_ITEMS)) == MAX_ITEMS
    assert items_of([0] * (MAX_ITEMS + 1)) == ()


def test_the_texts_of_records_are_told_as_those_of_a_list_of_texts():
    records = [{"id": "1", "text": "é"}, {"id": "2", "text": "b", "metadata": {}}]
    assert text_items_of(records) == items_of(["é", "b"])
    assert text_items_of(records, XXH3) == items_of(["é", "b"], XXH3)
    for other in ([], "text", ["é"], [{"text": 1}], [{"id": "1"}], [{"text": "\ud800"}]):
        assert text_items_of(other) == ()


@pytest.mark.parametrize("hashing", HASHES.values(), ids=HASHES)
def test_an_item_has_the_name_that_it_has_as_an_output_of_its_own(hashing):
    value = ["é", {"b": 1, "a": [True]}, 2, np.ones(3, np.float32)]
    names = [hashing.digest(codec.encode(each)) for each in value]
    assert items_of(value, hashing) == tuple(names)


def test_the_texts_of_an_input_are_told_where_they_stand_at_a_list_port():
    texts = Expr("texts_of", {"items": InputRef("items")})
    node = NodeSpec("n", "o@1", "v", "r", {"z": texts}, (), PortType.ANY, list_port="z")
    declared = (InputSpec("items", PortType.DOCUMENTS),)
    spec = WorkflowSpec("flow", declared, (node,), {"output": NodeRef("n")})
    inputs = {"items": [{"id": "1", "text": "a"}]}
    fact = Fact(True, 1, (), items_of(["a"]))
    assert facts_of(spec, inputs, SHA256) == {"items": fact}
    assert facts_of(spec, inputs) == {}


def test_the_facts_of_a_run_are_those_that_are_asked_for():
    node = NodeSpec(
        id="n",
        operator="o@1",
        verb="v",
        resource="r",
        args={
            "x": ChoiceRef(InputRef("c"), Lit(1), Lit(2)),
            "y": InputRef("plain"),
            "z": InputRef("texts"),
        },
        ports=(),
        output=PortType.ANY,
        region="each",
        guards=(Guard(InputRef("g"), True),),
        list_port="z",
    )
    spec = WorkflowSpec(
        "flow",
        tuple(InputSpec(name, PortType.ANY) for name in NAMES),
        (node,),
        {"output": ChoiceRef(InputRef("o"), NodeRef("n"), Lit(None))},
        regions=(Region("each", InputRef("items")),),
    )
    inputs = {"c": "", "g": 1, "items": [1, 2], "plain": "x", "texts": ["a"], "o": []}
    assert facts_of(spec, inputs, SHA256) == {
        "c": Fact(False, -1),
        "g": Fact(True, -1),
        "items": Fact(True, 2, items_of([1, 2])),
        "texts": Fact(True, 1, items_of(["a"])),
        "o": Fact(False, 0),
    }
    decisive = facts_of(spec, inputs)
    assert decisive["items"] == Fact(True, 2) and "texts" not in decisive
    assert KernelFact is Fact
