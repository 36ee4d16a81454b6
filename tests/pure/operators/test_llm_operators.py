"""Operators of a language model: what they lower to, what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest

from herasys_rt.dsl import tool, workflow
from herasys_rt.dsl.agent import Revealed, agent
from herasys_rt.dsl.tracked import track
from herasys_rt.engines.prompting import render, sampling
from herasys_rt.engines.structured import AnswerForm, form_of
from herasys_rt.errors import GraphError
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.schemas import faults_of, value_fault
from herasys_rt.graph.signature import Signer
from herasys_rt.graph.spec import (
    InputRef,
    Lit,
    NodeRef,
    NodeSpec,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType
from operators import choose_tool, classify, embed, generate, generate_json, judge


def nodes_of(function: Any) -> tuple[NodeSpec, ...]:
    return workflow(name="flow")(function).spec.nodes


def args_of(function: Any) -> dict[str, Any]:
    """What an engine is given for the only node."""
    (node,) = nodes_of(function)
    return resolve(node.args, {}, {})


def faults(function: Any) -> str:
    with pytest.raises(GraphError) as caught:
        workflow(name="flow")(function)
    return "\n".join(str(fault) for fault in caught.value.fields["faults"])


def signed(function: Any) -> bytes:
    spec = workflow(name="flow")(function).spec
    return Signer(spec, lambda node: "m").signed({}, "t", "r").signatures[-1]


def say(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


# Messages


def test_messages_are_templates_like_a_prompt():
    args = args_of(
        lambda: generate(
            messages=[say("system", "{{S}}"), "{history}", say("user", "{q}")],
            history=[say("user", "{raw}"), say("assistant", "ok")],
            q="why?",
        )
    )
    assert [m["content"] for m in render(args).messages] == ["{S}", "{raw}", "ok", "why?"]


def test_values_stand_for_a_conversation_an_item_or_a_content():
    def flow(history: list, question: str):  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
        whole = generate(messages=history)
        rest = [say("assistant", whole), say("user", question)]
        return generate(messages=[history, *rest])  # pyright: ignore[reportArgumentType]

    whole, mixed = nodes_of(flow)
    assert whole.args["messages"] == Lit(["{messages}"])
    assert whole.args["var:messages"] == InputRef("history")
    assert mixed.args["messages"] == Lit(
        ["{message_1}", say("assistant", "{message_2}"), say("user", "{message_3}")]
    )
    assert mixed.args["var:message_1"] == InputRef("history")
    assert mixed.args["var:message_2"] == NodeRef("generate")
    assert mixed.args["var:message_3"] == InputRef("question")


class Answering:
    """Reveals an agent's steps: keeps what each is asked, and answers with one value."""

    def __init__(self, value: Any) -> None:
        self.asked: list[list[dict[str, str]]] = []
        self._value = value

    async def reveal(
        self, spec: WorkflowSpec, inputs: dict[str, Any], parents: Any, streamed: Any = None
    ) -> Any:
        args = resolve(spec.nodes[-1].args, inputs, {})
        self.asked.append(render(args).messages)
        origin = frozenset({(len(self.asked), spec.nodes[-1].id)})
        return Revealed(track(self._value, origin), origin)


async def test_text_that_came_from_a_node_is_no_template():
    @agent
    async def talk(run: Any, question: str):
        found = await run.call(generate("{q}", q=question))
        await run.call(generate(found))
        history = [say("user", found), say("assistant", "{plain}"), say("user", "more")]
        await run.call(generate(messages=["{history}"], history=history))
        await run.call(choose_tool(history, tools=[]))
        return found

    answering = Answering('{"a": 1}')
    await talk.execute(answering, {"question": "{why}"})
    first, second, third, fourth = answering.asked
    assert [first[0]["content"], second[0]["content"]] == ["{why}", '{"a": 1}']
    assert [m["content"] for m in third] == ['{"a": 1}', "{plain}", "more"]
    assert fourth[1:] == third


async def test_messages_that_came_from_a_node_are_no_templates():
    @agent
    async def talk(run: Any):
        history = await run.call(generate_json("x", schema={"type": "array"}))
        await run.call(generate(messages=history))
        await run.call(generate(messages=[history[0], say("user", "{q}")], q="?"))
        await run.call(choose_tool(history, tools=[]))

    answering = Answering([say("user", "{raw}")])
    await talk.execute(answering, {})
    contents = [[m["content"] for m in messages] for messages in answering.asked[1:]]
    assert contents[:2] == [["{raw}"], ["{raw}", "?"]]
    assert contents[2][1:] == ["{raw}"]


def test_a_prompt_and_messages_with_the_same_text_are_different_work():
    prompt = signed(lambda: generate("x"))
    assert signed(lambda: generate(messages=[say("user", "x")])) != prompt
    assert signed(lambda: generate(messages=[say("user", "x")])) == signed(
        lambda: generate(None, messages=[say("user", "x")], n=1, logprobs=None)
    )


# Several answers, log-probabilities


@pytest.mark.parametrize(
    ("more", "output", "streams"),
    [
        ({}, PortType.TEXT, True),
        ({"n": 1}, PortType.TEXT, True),
        ({"n": 3}, PortType.TEXTS, False),
        ({"logprobs": 0}, PortType.JSON, False),
        ({"n": 2, "logprobs": 2}, PortType.JSON, False),
    ],
)
def test_the_output_follows_from_n_and_logprobs(more, output, streams):
    (node,) = nodes_of(lambda: generate("x", **more))
    assert (node.output, node.streams) == (output, streams)


def test_several_answers_feed_what_takes_texts():
    nodes = nodes_of(lambda: generate("{all}", all=generate("x", n=2, temperature=1.0)))
    assert [node.purity for node in nodes] == ["sampled", "pure"]
    assert "takes text, got texts" in faults(lambda: embed(generate("x", n=2)))


def test_equal_answers_sign_equally_and_every_field_counts():
    base = signed(lambda: generate("x"))
    assert signed(lambda: generate("x", n=1, logprobs=None, min_tokens=0)) == base
    others = [
        signed(lambda: generate("x", n=2)),
        signed(lambda: generate("x", logprobs=0)),
        signed(lambda: generate("x", logprobs=1)),
        signed(lambda: generate("x", min_tokens=1)),
    ]
    assert len({base, *others}) == 5


# Structured answers


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_a_schema_becomes_text_and_the_answer_json():
    (node,) = nodes_of(lambda: generate_json("Who? {{}}", schema=Person))
    assert (node.output, node.streams, node.verb) == (PortType.JSON, False, "llm.generate")
    args = args_of(lambda: generate_json("Who? {{}}", schema=Person))
    assert list(json.loads(args["schema"])["properties"]) == ["name", "age"]
    assert form_of(args) == AnswerForm(schema=Person.model_json_schema())
    assert sampling(args).max_tokens == 256


def test_the_schema_is_part_of_the_signature():
    schema = Person.model_json_schema()
    base = signed(lambda: generate_json("x", schema=Person))
    assert signed(lambda: generate_json("x", schema=schema, temperature=0)) == base
    turned = {**schema, "properties": dict(reversed(schema["properties"].items()))}
    assert signed(lambda: generate_json("x", schema=turned)) != base
    assert signed(lambda: generate("x")) != base


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda q: generate(), "takes a prompt or messages; neither is given"),
        (lambda q: generate("x", messages=[say("user", "y")]), "both are given"),
        (lambda q: generate(messages=[]), "messages: is no list of messages"),
        (lambda q: generate(messages="x"), "messages: is no list of messages"),
        (lambda q: generate(messages=[say("tool", "x")]), "[0] has the role 'tool'"),
        (lambda q: generate(messages=[say("user", 3)]), "[0] has int as content"),
        (lambda q: generate(messages=[3]), "[0] is int, no message"),  # pyright: ignore
        (lambda q: generate(messages=[say("user", "{a}")]), "asks for {a}"),
        (lambda q: generate(messages=[say("user", '{"a"}')]), "is no placeholder"),
        (lambda q: generate(messages=["{h}"]), "asks for {h}, which is not given"),
        (lambda q: generate(messages=[say("user", "x")], b=1), "'b' is neither"),
        (lambda q: generate(messages=q, b=1), "is no literal"),
        (lambda q: generate("x", n=0), "generate.n: must be at least 1"),
        (lambda q: generate("x", n=17), "generate.n: must be at most 16"),
        (lambda q: generate("x", n=q), "generate.n: is an input or a node"),
        (lambda q: generate("x", logprobs=21), "generate.logprobs: must be at most 20"),
        (lambda q: generate("x", min_tokens=200), "must be at most max_tokens (128)"),
        (lambda q: generate_json("x", schema=q), "schema: is an input or a node"),
        (lambda q: generate_json("x", schema=3), "schema: is int, no schema"),
        (
            lambda q: generate_json(
                "x", schema={"items": {"type": "array", "uniqueItems": True}}
            ),
            "generate_json.schema/items: 'uniqueItems' is not supported (bound the list",
        ),
        (lambda q: generate_json("{a}", schema={}), "asks for {a}"),
        (lambda q: generate_json("x", schema={}, stop="a"), "'stop' is neither"),
        (lambda q: classify("x", []), "holds 0 labels"),
        (lambda q: classify("x", q), "no list of labels"),
        (lambda q: classify("x", ["a", "a"]), "holds 'a' twice"),
        (lambda q: classify("x", ["a", " "]), "holds ' ', which is no label"),
        (lambda q: classify("x", ["a\nb"]), "not printable"),
        (lambda q: judge("ok?", prompt="x"), "judge: got two values for 'prompt'"),
    ],
)
def test_a_wrong_call_is_refused(function, line):
    def flow(q: str):
        return function(q)

    assert line in faults(flow)


# Deciding


def test_a_judgement_is_a_bool_about_the_texts_it_was_given():
    (node,) = nodes_of(lambda: judge("Is it {so}?", "a {b} c", label="fits"))
    assert (node.id, node.operator, node.output) == ("fits", "judge@1", PortType.BOOL)
    assert node.purity == "pure" and not node.streams
    args = args_of(lambda: judge("Is it {so}?", "a {b} c"))
    assert form_of(args).choices == {"yes": True, "no": False}
    content = render(args).messages[0]["content"]
    assert content.startswith("Is it {so}?\n\nText: a {b} c\n\n")
    named = args_of(lambda: judge("Supported?", answer="A", found_passages=["p", "q"]))
    assert "Answer: A\n\nFound passages: p\nq" in render(named).messages[0]["content"]
    alone = render(args_of(lambda: judge("Is water wet?"))).messages[0]["content"]
    assert alone == "Is water wet?\n\nAnswer with yes or no."


def test_the_chunks_that_a_judgement_saw_are_its_sources():
    chunk = {"id": "1", "text": "t", "source": "s", "score": 0.5}
    assert render(args_of(lambda: judge("Ok?", passages=[chunk]))).sources == [chunk]


def test_a_label_is_one_of_the_choices_with_room_for_the_longest():
    labels = ["a {b}", "größe & more"]
    (node,) = nodes_of(lambda: classify("x", labels))
    assert (node.operator, node.output) == ("classify@1", PortType.TEXT)
    args = args_of(lambda: classify("x", labels))
    assert form_of(args).choices == {label: label for label in labels}
    assert sampling(args).max_tokens > len("größe & more".encode())
    assert "Labels: a {b}, größe & more" in render(args).messages[0]["content"]
    task = args_of(lambda: classify("x", labels, task="Which one?"))
    assert render(task).messages[0]["content"].startswith("Which one?")


def test_deciding_takes_outputs_of_other_nodes():
    nodes = nodes_of(lambda: judge("Good?", classify(generate("x"), ["a", "b"])))
    assert [node.id for node in nodes] == ["generate", "classify", "judge"]
    assert nodes[2].args["var:text"] == NodeRef("classify")


# Tools

ADD = {
    "name": "add",
    "description": "Adds {numbers}.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/N"}, "note": {"type": "string"}},
        "required": ["a"],
        "$defs": {"N": {"type": "integer", "minimum": 0}},
    },
}
LOOK = {
    "name": "look-up",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}
ASKED = [say("user", "What is {1} + 1?")]


def schema_of(function: Any) -> dict[str, Any]:
    return json.loads(args_of(function)["schema"])


def test_a_choice_is_a_call_of_one_of_the_tools_or_an_answer():
    schema = schema_of(lambda: choose_tool(ASKED, tools=[ADD, LOOK], max_tokens=50))
    assert faults_of(schema) == []
    for fits in (
        {"tool": "add", "arguments": {"a": 1, "note": "x"}},
        {"tool": "look-up", "arguments": {}},
        {"answer": "2"},
    ):
        assert value_fault(fits, schema) is None
    for wrong in (
        {"tool": "add", "arguments": {"a": -1}},
        {"tool": "add", "arguments": {"a": 1, "note": "x" * 101}},
        {"tool": "mul", "arguments": {}},
        {"tool": "add", "arguments": {"a": 1}, "answer": "2"},
        {"answer": "x" * 101},
        {},
    ):
        assert value_fault(wrong, schema) is not None


def test_an_answer_may_be_forbidden_or_all_there_is():
    must = schema_of(lambda: choose_tool(ASKED, tools=[ADD], may_answer=False))
    assert value_fault({"answer": "2"}, must) is not None
    only = schema_of(lambda: choose_tool(ASKED, tools=[]))
    assert list(only["properties"]) == ["answer"]


def test_the_model_is_told_the_tools_and_the_conversation_is_data():
    args = args_of(lambda: choose_tool(ASKED, tools=[ADD], system="Be {brief}."))
    system, user = render(args).messages
    assert user == ASKED[0]
    assert system["content"].startswith("Be {brief}.\n\nYou can use tools.")
    assert "- add: Adds {numbers}." in system["content"]
    later = [say("system", "S"), *ASKED]
    joined = render(args_of(lambda: choose_tool(later, tools=[]))).messages
    assert joined[0]["content"].endswith("\n\nS") and len(joined) == 2


def test_a_conversation_may_be_an_input_or_hold_outputs():
    def flow(history: list):  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
        return choose_tool(history, tools=[ADD])

    (node,) = nodes_of(flow)
    assert node.args["var:messages"] == InputRef("history")
    assert node.output == PortType.JSON and node.id == "choose_tool"

    def asking(question: str):
        return choose_tool([say("user", "{x}"), say("user", question)], tools=[ADD])

    (node,) = nodes_of(asking)
    assert node.args["var:message_2"] == InputRef("question")
    assert node.args["messages"] == Lit([say("user", "{{x}}"), say("user", "{message_2}")])


def test_a_tool_of_the_library_is_taken_as_it_describes_itself():
    @tool
    def count_letters(text: str, letter: str) -> int:
        """How often a letter occurs."""
        return text.count(letter)

    schema = schema_of(lambda: choose_tool(ASKED, tools=[count_letters]))
    call = {"tool": "count_letters", "arguments": {"text": "aa", "letter": "a"}}
    assert value_fault(call, schema) is None
    assert value_fault(call | {"arguments": {"text": "aa"}}, schema) is not None


@pytest.mark.parametrize(
    ("tools", "more", "line"),
    [
        (3, {}, "choose_tool.tools: is int 3, no literal list of tools"),
        ([], {"may_answer": False}, "is empty, and an answer is not allowed"),
        ([3], {}, "choose_tool.tools[0]: is int 3, no tool"),
        ([LOOK | {"name": "a b"}], {}, "tools[0]: has the name 'a b'"),
        ([LOOK, LOOK], {}, "tools[1]: has the name 'look-up', like one before it"),
        ([{"name": "x"}], {}, "tools[0]: has no parameters"),
        ([LOOK | {"parameters": {"type": "string"}}], {}, "has no parameters"),
        ([LOOK | {"description": 3}], {}, "a description that is no text"),
        (
            [LOOK | {"parameters": {"type": "object", "minProperties": 1}}],
            {},
            "tools[0].parameters: 'minProperties' is not supported",
        ),
        ([], {"may_answer": "yes"}, "may_answer is str 'yes'"),
        ([], {"system": generate}, "choose_tool.system"),
    ],
)
def test_wrong_tools_are_refused(tools, more, line):
    assert line in faults(lambda: choose_tool(ASKED, tools=tools, **more))


def test_a_wrong_conversation_is_refused():
    wrong = [say("tool", "x")]
    assert "has the role 'tool'" in faults(lambda: choose_tool(wrong, tools=[]))
    assert "is no list of messages" in faults(lambda: choose_tool([], tools=[]))
