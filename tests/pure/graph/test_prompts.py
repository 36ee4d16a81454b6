"""How much of a chat prompt is known before a node's parents have ended."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.dsl import workflow
from herasys_rt.engines.prompting import render
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.prompts import PromptHead, message_fault, prompt_head
from herasys_rt.graph.spec import NodeSpec
from operators import choose_tool, embed, generate, prompt, retrieve


def last_node(function: Any) -> NodeSpec:
    return workflow(name="flow")(function).spec.nodes[-1]


def rag(question: str):
    chunks = retrieve(embed(question), collection="docs")
    return generate(
        "About {question}:\n{context}\nAnswer {question} {{briefly}}.",
        system="Be kind.",
        context=chunks,
        question=question,
    )


def test_the_head_ends_at_the_first_output_of_another_node():
    head = prompt_head(last_node(rag), {"question": "{why}?"})
    assert head == PromptHead((("system", "Be kind."), ("user", "About {why}?:\n")), True)


def test_without_the_runs_inputs_it_ends_at_the_first_input():
    head = prompt_head(last_node(rag))
    assert head == PromptHead((("system", "Be kind."), ("user", "About ")), True)


def test_a_prompt_of_known_values_is_all_head():
    def flow(question: str):
        return generate("{question} {ns}", question=question, ns=[1, 2])

    head = prompt_head(last_node(flow), {"question": "Why?"})
    assert head == PromptHead((("user", "Why? [1, 2]"),), False)


@pytest.mark.parametrize("found", [[], ["a", "b"], [{"id": "1", "text": "t"}], [[]], {}])
def test_a_value_reads_alike_in_a_prompt_a_head_and_an_expression(found: Any):
    def direct(found: Any):
        return generate("Of:\n{found}", found=found)

    def rendered(found: Any):
        return generate(prompt("Of:\n{found}", found=found))

    node, late = last_node(direct), last_node(rendered)
    seen = render(resolve(node.args, {"found": found}, {})).messages
    assert render(resolve(late.args, {"found": found}, {})).messages == seen
    head = prompt_head(node, {"found": found})
    assert head == PromptHead((("user", seen[0]["content"]),), False)


def test_no_passages_are_no_text():
    def flow(question: str):
        return generate("{none}Q: {question}", none=[], question=question)

    head = prompt_head(last_node(flow), {"question": "why?"})
    assert head == PromptHead((("user", "Q: why?"),), False)


def test_a_system_text_that_comes_late_leaves_no_head():
    def flow(question: str):
        return generate("Known.", system=generate(question))

    assert prompt_head(last_node(flow), {"question": "x"}) is None


def test_a_prompt_that_begins_with_an_output_has_no_head_of_its_own():
    assert prompt_head(last_node(lambda: generate(generate("x")))) is None
    head = prompt_head(last_node(lambda: generate(generate("x"), system="s")))
    assert head == PromptHead((("system", "s"),), True)


def test_messages_are_known_up_to_the_first_late_one():
    def flow(question: str):
        return generate(
            messages=[
                {"role": "system", "content": "A {letter}"},
                "{history}",
                {"role": "user", "content": generate(question)},
            ],
            letter="b",
            history=[{"role": "user", "content": "{x}"}],
            system="S {",
        )

    head = prompt_head(last_node(flow), {"question": "q"})
    assert head == PromptHead((("system", "S {\n\nA b"), ("user", "{x}")), True)


def test_a_whole_conversation_may_come_late():
    def flow(history: list[dict[str, Any]]):
        return generate(messages=history, system="S")

    node = last_node(flow)
    assert prompt_head(node) == PromptHead((("system", "S"),), True)
    known = prompt_head(node, {"history": [{"role": "user", "content": "q"}]})
    assert known == PromptHead((("system", "S"), ("user", "q")), False)
    assert prompt_head(node, {"history": "no list"}) == prompt_head(node)


def test_the_tools_are_a_head_that_every_step_shares():
    def flow(history: list[dict[str, Any]]):
        return choose_tool(history, tools=[])

    head = prompt_head(last_node(flow))
    assert head is not None and "answer" in head.messages[0][1]


def test_other_nodes_have_no_prompt():
    assert prompt_head(last_node(lambda: embed("x"))) is None


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("hi", "is str, no message"),
        ({"role": "tool", "content": "x"}, "has the role 'tool'"),
        ({"content": "x"}, "has the role None"),
        ({"role": "user"}, "has NoneType as content"),
        ({"role": "user", "content": [{"type": "text"}]}, "has list as content"),
        ({"role": "user", "content": "x", "name": "y"}, "has the unknown field 'name'"),
    ],
)
def test_what_is_no_message_is_told_with_what_fits(message, problem):
    fault = message_fault(message)
    assert fault is not None and fault[0] == problem and fault[1]
