"""The examples of docs/own-operators.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.dsl import find_operator, workflow
from herasys_rt.graph.types import PortType

PAGE = (Path(__file__).parents[3] / "docs/own-operators.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def executed(number: int) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": f"own_operators_{number}"}
    exec(compile(EXAMPLES[number], "docs/own-operators.md", "exec"), scope)
    return scope


def test_the_tool_is_the_plain_function_outside_and_an_effect_inside():
    book = executed(0)["book"]
    assert book("Rome")["city"] == "Rome"
    assert book.parameters["properties"]["nights"]["description"] == "how many nights"
    assert workflow(name="f")(lambda: book("Rome")).spec.nodes[0].purity == "effect"


def test_the_operator_of_its_own_is_complete_typed_and_short():
    scope = executed(1)
    nodes = scope["ask"].spec.nodes
    assert [node.operator for node in nodes] == [
        *("embed@1", "retrieve@1", "one_per_source@1", "generate@1")
    ]
    assert nodes[2].output is PortType.CHUNKS
    assert find_operator("one_per_source@1") is scope["one_per_source"].operator
    chunks = [{"id": str(i), "source": s, "text": s} for i, s in enumerate("aabbc")]
    assert [c["id"] for c in scope["one_per_source"](chunks, top_k=2)] == ["0", "2"]
    declared = EXAMPLES[1].partition("@workflow")[0].partition("@python_operator")[2]
    assert len(declared.strip().splitlines()) <= 25


def test_an_operator_over_a_verb_lowers_to_it():
    paragraphs = executed(2)["paragraphs"]
    (node,) = workflow(name="f")(lambda: paragraphs("Some text.")).spec.nodes
    assert (node.verb, node.resource) == ("text.chunk", "python")
    assert len(EXAMPLES[2].strip().splitlines()) <= 25


def test_every_error_code_of_the_page_is_one_the_engine_gives():
    folder = Path(__file__).parents[3] / "herasys_rt/engines/python"
    code = "".join(file.read_text() for file in folder.glob("*.py"))
    told = set(re.findall(r"`(tool_\w+)`", PAGE))
    assert {name for name in told if f'"{name}"' not in code} == set()
    assert len(told) == 7


@pytest.mark.parametrize("option", ["workers", "isolate", "timeout_s", "max_result_mb"])
def test_every_option_of_the_page_is_one(option):
    from herasys_rt.engines.python.options import PythonOptions

    assert option in PythonOptions.model_fields
