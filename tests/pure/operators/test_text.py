"""Text operators: prompts and JSON where they are consumed, cutting as a step."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.dsl import workflow
from herasys_rt.errors import GraphError, NodeError, UsageError
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.spec import Expr, InputRef, Lit, NodeRef
from herasys_rt.graph.types import PortType
from operators import chunk, generate, parse_json, prompt


def spec_of(function: Any) -> Any:
    return workflow(name="flow")(function).spec


def faults_of(function: Any) -> str:
    with pytest.raises(GraphError) as caught:
        workflow(name="flow")(function)
    return "\n".join(str(fault) for fault in caught.value.fields["faults"])


def test_a_prompt_is_no_step_and_is_rendered_where_it_is_consumed():
    def flow(question: str):
        return generate(prompt("{{json}} {q}\n{notes}", q=question, notes=["a", "b"]))

    (node,) = spec_of(flow).nodes
    arg = node.args["var:prompt"]
    assert arg == Expr(
        "render",
        {
            "template": Lit("{{json}} {q}\n{notes}"),
            "q": InputRef("question"),
            "notes": Lit(["a", "b"]),
        },
    )
    assert resolve({"p": arg}, {"question": "{q}?"}, {}) == {"p": "{json} {q}?\na\nb"}


def test_chunks_become_numbered_passages():
    passages = [{"id": "1", "text": "One.", "source": "a"}, {"id": "2", "text": "Two."}]
    spec = spec_of(lambda q: generate(prompt("{p}", p=passages)))
    shown = resolve({"p": spec.nodes[0].args["var:prompt"]}, {"q": ""}, {})["p"]
    assert shown == "[1] (a) One.\n\n[2] Two."


def test_json_of_a_text_has_pieces():
    def flow(question: str):
        plan = parse_json(generate("Plan {question}", question=question))
        return generate("{step}", step=plan["steps"][0])

    arg = spec_of(flow).nodes[1].args["var:step"]
    text = '```json\n{"steps": ["look", "answer"]}\n```'
    assert resolve({"s": arg}, {}, {"generate": text}) == {"s": "look"}
    with pytest.raises(NodeError, match="parse_json: the text is no JSON"):
        resolve({"s": arg}, {}, {"generate": "Sure! Here is"})


def test_chunk_is_a_step_of_the_python_pool():
    (node, _) = spec_of(lambda document: generate("{x}", x=chunk(document))).nodes
    assert (node.verb, node.resource, node.output) == (
        "text.chunk",
        "python",
        PortType.TEXTS,
    )
    assert node.args == {
        "text": InputRef("document"),
        "max_tokens": Lit(200),
        "overlap": Lit(20),
    }
    assert node.purity == "pure"


def test_pieces_go_where_texts_go():
    spec = spec_of(lambda document: generate("{first}", first=chunk(document)[0]))
    assert spec.nodes[1].args["var:first"] == Expr(
        "field", {"value": NodeRef("chunk"), "key": Lit(0)}
    )


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda q: prompt("{a} {b}", a=q), "asks for {b}, which is not given (pass b=...)"),
        (lambda q: prompt("{quest}", question=q), "(did you mean 'question'?)"),
        (lambda q: prompt("{a}", a=q, b=q), "does not ask for 'b'"),
        (lambda q: prompt("{a.b}", a=q), "is no placeholder"),
        (lambda q: prompt(q), "the template is no literal text"),
        (lambda q: chunk(q, max_tokens=0)[0], "chunk.max_tokens: must be at least 1"),
        (lambda q: chunk(q, max_tokens=5, overlap=5)[0], "must be below max_tokens (5)"),
        (lambda q: chunk(q, overlap=-1)[0], "chunk.overlap: must be at least 0"),
        (lambda q: parse_json(chunk(q)), "parse_json.text: takes text, got texts"),
    ],
)
def test_a_wrong_call_is_refused(function, line):
    assert line in faults_of(lambda q: generate("{x}", x=function(q)))


def test_outside_of_a_workflow_they_say_what_to_do():
    for call in (lambda: prompt("x"), lambda: parse_json("{}")):
        with pytest.raises(UsageError, match="outside of a workflow"):
            call()
