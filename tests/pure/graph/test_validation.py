"""A spec that arrives over the wire: every fault is found, sound ones pass."""

from __future__ import annotations

import msgspec
import pytest

from herasys_rt.graph.spec import (
    Arg,
    Constraint,
    InputRef,
    InputSpec,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    Sampling,
    WorkflowSpec,
    decode_spec,
)
from herasys_rt.graph.types import PortType
from herasys_rt.graph.validation import validate_spec

TEXT = Port("text", PortType.TEXT)
COUNT = Port("count", PortType.INT, is_param=True, constraint=Constraint(minimum=1))


def node(name: str, *ports: Port, output=PortType.TEXT, **args: Arg) -> NodeSpec:
    return NodeSpec(name, f"{name}@1", "do", "cpu", args, ports, output)


def spec(*nodes: NodeSpec, inputs: tuple[InputSpec, ...] = (), **more) -> WorkflowSpec:
    more.setdefault("outputs", {"output": NodeRef(nodes[-1].id)} if nodes else {})
    return WorkflowSpec("flow", inputs, nodes, **more)


def lines(faulty: WorkflowSpec) -> str:
    return "\n".join(str(fault) for fault in validate_spec(faulty))


QUESTION = InputSpec("question", PortType.TEXT)


def sound() -> WorkflowSpec:
    return spec(
        node("a", TEXT, text=InputRef("question")),
        node("b", TEXT, COUNT, text=NodeRef("a"), count=Lit(2)),
        inputs=(QUESTION,),
    )


def test_a_sound_spec_passes_also_after_the_wire():
    assert validate_spec(sound()) == []
    assert validate_spec(decode_spec(sound().encoded)) == []
    assert decode_spec(sound().encoded).id == sound().id


def test_a_wrong_type_on_an_edge_says_what_would_have_fitted():
    faulty = spec(
        node("vector", output=PortType.VECTOR),
        node("words"),
        node("end", TEXT, text=NodeRef("vector")),
        inputs=(QUESTION,),
    )
    assert "end.text: takes text, got vector from node 'vector'" in lines(faulty)
    assert "text comes from input 'question', node 'words'" in lines(faulty)


def test_an_input_of_the_wrong_type_is_a_fault():
    faulty = spec(node("a", COUNT, count=InputRef("question")), inputs=(QUESTION,))
    assert "a.count: takes int, got text from input 'question'" in lines(faulty)


def test_an_optional_input_does_not_fit_a_port_that_wants_a_value():
    maybe = InputSpec("question", PortType.TEXT, False, None, True)
    faulty = spec(node("a", TEXT, text=InputRef("question")), inputs=(maybe,))
    assert "may be None" in lines(faulty)


def test_a_cycle_is_refused():
    faulty = spec(
        node("a", TEXT, text=NodeRef("b")),
        node("b", TEXT, text=NodeRef("a")),
    )
    assert "nodes a, b: depend on each other in a cycle" in lines(faulty)


def test_a_node_before_its_parent_is_refused():
    faulty = spec(
        node("b", TEXT, text=NodeRef("a")), node("a"), outputs={"output": NodeRef("b")}
    )
    assert lines(faulty) == "b: stands before node 'a', whose output it takes"


def test_a_dead_node_is_refused_and_an_effect_is_not_dead():
    dead = spec(node("lost"), node("end"))
    assert "lost: no output depends on it" in lines(dead)
    effect = msgspec.structs.replace(node("lost"), purity="effect")
    assert validate_spec(spec(effect, node("end"))) == []


@pytest.mark.parametrize(
    ("faulty", "line"),
    [
        (spec(), "output: the workflow has none"),
        (spec(node("a", TEXT)), "a.text: missing; it takes text"),
        (
            spec(node("a", TEXT, txt=Lit("x"))),
            "has no argument 'txt' (did you mean 'text'?)",
        ),
        (spec(node("a", COUNT, count=Lit(0))), "a.count: must be at least 1, got 0"),
        (spec(node("a", COUNT, count=Lit("2"))), "a.count: expected int"),
        (spec(node("a", COUNT, count=Lit(None))), "a.count: expected int"),
        (spec(node("b"), node("a", COUNT, count=NodeRef("b"))), "is a parameter"),
        (spec(node("a", TEXT, text=InputRef("q"))), "input 'q', which is none"),
        (spec(node("a", TEXT, text=NodeRef("q"))), "node 'q', which does not exist"),
        (spec(node("a", TEXT, text=ListRef((Lit("x"),)))), "not a list of arguments"),
        (spec(node("a", TEXT, text=Lit("\ud800"))), "lone surrogate"),
        (spec(node("a"), node("a")), "node a: 2 of this name"),
        (spec(node("a"), outputs={"x": NodeRef("b")}), "node 'b', which does not exist"),
        (spec(node("a"), inputs=(QUESTION, QUESTION)), "input question: 2 of this name"),
        (spec(node("a"), share="all"), "share: is 'all' (one of tenant, public)"),
        (spec(node("")), "must not be empty"),
        (
            spec(msgspec.structs.replace(node("a"), purity="impure")),
            "purity is 'impure' (one of pure, sampled, effect)",
        ),
        (
            spec(
                msgspec.structs.replace(node("a", TEXT, text=Lit("x")), collection="text")
            ),
            "refers to 'text', which is none of its parameters",
        ),
        (
            spec(msgspec.structs.replace(node("a"), sampling=Sampling("t", "s"))),
            "refers to 't', which is none of its parameters",
        ),
        (
            spec(node("a"), inputs=(InputSpec("n", PortType.INT, False, "x"),)),
            "input n: default: expected int",
        ),
        (
            spec(
                node("a", COUNT, count=InputRef("n")),
                inputs=(InputSpec("n", PortType.INT, False, 0),),
            ),
            "default of input 'n' must be at least 1, got 0",
        ),
    ],
)
def test_a_fault_is_told(faulty, line):
    assert line in lines(faulty)


def test_all_faults_are_told_together():
    faulty = spec(node("a", TEXT, COUNT, count=Lit(0)), node("b", x=Lit(1)))
    assert len(validate_spec(faulty)) == 3


def test_a_list_of_arguments_is_checked_item_by_item():
    texts = Port("texts", PortType.TEXTS)
    good = ListRef((Lit("x"), NodeRef("a"), InputRef("question")))
    bad = ListRef((Lit("x"), NodeRef("v"), Lit(3)))
    assert (
        validate_spec(spec(node("a"), node("b", texts, texts=good), inputs=(QUESTION,)))
        == []
    )
    faulty = spec(node("v", output=PortType.VECTOR), node("b", texts, texts=bad))
    assert "b.texts[1]: takes text, got vector" in lines(faulty)
    assert "b.texts[2]: expected text, got int 3" in lines(faulty)
