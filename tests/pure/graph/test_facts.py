"""Truth and length of values, and which inputs are asked for them."""

from __future__ import annotations

import numpy as np
import pytest

from herasys_rt.core.values import Fact as KernelFact
from herasys_rt.graph.facts import Fact, fact_of, facts_of
from herasys_rt.graph.spec import (
    ChoiceRef,
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


def test_the_facts_of_a_run_are_those_that_are_asked_for():
    node = NodeSpec(
        id="n",
        operator="o@1",
        verb="v",
        resource="r",
        args={"x": ChoiceRef(InputRef("c"), Lit(1), Lit(2)), "y": InputRef("plain")},
        ports=(),
        output=PortType.ANY,
        region="each",
        guards=(Guard(InputRef("g"), True),),
    )
    spec = WorkflowSpec(
        "flow",
        tuple(InputSpec(name, PortType.ANY) for name in ("c", "g", "items", "plain", "o")),
        (node,),
        {"output": ChoiceRef(InputRef("o"), NodeRef("n"), Lit(None))},
        regions=(Region("each", InputRef("items")),),
    )
    inputs = {"c": "", "g": 1, "items": [1, 2], "plain": "x", "o": []}
    assert facts_of(spec, inputs) == {
        "c": Fact(False, -1),
        "g": Fact(True, -1),
        "items": Fact(True, 2),
        "o": Fact(False, 0),
    }
    assert KernelFact is Fact
