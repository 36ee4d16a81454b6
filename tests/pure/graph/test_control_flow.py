"""Regions, guards, choices and expressions of a spec from the wire: sound ones pass, and
every fault of the others is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

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
    Port,
    Region,
    Retry,
    Sampling,
    WorkflowSpec,
    decode_spec,
    leaves,
)
from herasys_rt.graph.topology import topology_of
from herasys_rt.graph.types import PortType
from herasys_rt.graph.validation import validate_spec

TEXT = Port("x", PortType.TEXT)
TEXTS = Port("x", PortType.TEXTS)
CHUNKS = Port("x", PortType.CHUNKS)
MAYBE = Port("x", PortType.TEXT, optional=True)
ANY = Port("x", PortType.ANY)
PARAM = Port("x", PortType.TEXT, is_param=True)
Q = InputSpec("q", PortType.TEXT)
L = InputSpec("l", PortType.TEXTS)
C = InputSpec("c", PortType.BOOL)
GUARD, ELSE = Guard(InputRef("c"), True), Guard(InputRef("c"), False)


def node(
    name: str, port: Port, x: Arg, output: PortType = PortType.TEXT, **more: Any
) -> NodeSpec:
    return NodeSpec(name, f"{name}@1", "do", "cpu", {"x": x}, (port,), output, **more)


def spec(*nodes: NodeSpec, out: Arg | None = None, **more: Any) -> WorkflowSpec:
    outputs = {"output": out or NodeRef(nodes[-1].id)}
    return WorkflowSpec("flow", (Q, L, C), nodes, outputs, **more)


def lines(faulty: WorkflowSpec) -> str:
    again = decode_spec(faulty.encoded)
    assert validate_spec(again) == validate_spec(faulty)
    return "\n".join(str(fault) for fault in validate_spec(faulty))


def each(region: str, items: Arg, body: Arg) -> Expr:
    return Expr("each", {"items": items, "item": ItemRef(region), "body": body})


def own(name: str, region: str) -> Expr:
    return Expr("own", {"node": NodeRef(name), "item": ItemRef(region)})


INSIDE = node("in", TEXT, ItemRef("r"), region="r")
REGION = (Region("r", InputRef("l")),)


@pytest.mark.parametrize(
    "sound",
    [
        spec(INSIDE, node("out", TEXTS, NodeRef("in")), regions=REGION),
        spec(INSIDE, regions=REGION, out=NodeRef("in")),
        spec(
            INSIDE,
            node(
                "out",
                TEXTS,
                each("r", InputRef("l"), Expr("text", {"value": own("in", "r")})),
            ),
            regions=REGION,
        ),
        spec(
            INSIDE,
            node("in2", TEXT, NodeRef("in"), region="r"),
            node("all", TEXT, Expr("text", {"value": NodeRef("in")}), region="r"),
            node("out", ANY, ListRef((NodeRef("in2"), NodeRef("all")))),
            regions=REGION,
        ),
        spec(
            node("a", TEXT, InputRef("q"), guards=(GUARD,)),
            node("b", TEXT, InputRef("q"), guards=(ELSE,)),
            node("out", TEXT, ChoiceRef(InputRef("c"), NodeRef("a"), NodeRef("b"))),
        ),
        spec(
            node("a", TEXT, InputRef("q"), guards=(GUARD,)),
            node("b", TEXT, NodeRef("a"), guards=(GUARD,)),
            out=ChoiceRef(InputRef("c"), NodeRef("b"), Lit(None)),
        ),
        spec(
            node("a", TEXT, InputRef("q"), guards=(GUARD,)),
            node("out", MAYBE, ChoiceRef(InputRef("c"), NodeRef("a"), Lit(None))),
        ),
        spec(
            msgspec.structs.replace(INSIDE, guards=(GUARD,)),
            node("out", TEXTS, ChoiceRef(InputRef("c"), NodeRef("in"), Lit([]))),
            regions=REGION,
        ),
        WorkflowSpec("agent", (Q,), (), {}, agent=True),
    ],
)
def test_sound_specs_pass(sound):
    assert lines(sound) == ""


@pytest.mark.parametrize(
    ("faulty", "line"),
    [
        # Regions
        (spec(INSIDE, out=NodeRef("in")), "in: is in region 'r', which does not exist"),
        (
            spec(node("a", TEXT, InputRef("q")), regions=REGION),
            "region r: has no nodes",
        ),
        (spec(INSIDE, regions=REGION * 2), "region r: 2 of this name"),
        (
            spec(INSIDE, regions=(Region("r", InputRef("q")),)),
            "region r: goes over no list: input 'q' is text, and only lists",
        ),
        (
            spec(INSIDE, regions=(Region("r", InputRef("none")),)),
            "region r: refers to input 'none', which is none",
        ),
        (
            spec(INSIDE, regions=(Region("r", NodeRef("none")),)),
            "region r: refers to node 'none', which does not exist",
        ),
        (
            spec(INSIDE, regions=(Region("r", Lit("abc")),)),
            "region r: goes over no list: 'abc' is no list",
        ),
        (
            spec(INSIDE, regions=(Region("r", Lit(["a", "b"]), 1),)),
            "region r: has 2 items, at most 1 are allowed",
        ),
        (
            spec(INSIDE, regions=(Region("r", InputRef("l"), 0),)),
            "region r: max_items is int 0",
        ),
        (
            spec(
                INSIDE,
                node("deep", TEXT, ItemRef("s"), region="s"),
                regions=(*REGION, Region("s", NodeRef("in"))),
            ),
            "region s: goes over the output of node 'in', which is in a region itself",
        ),
        (
            spec(node("a", TEXT, ItemRef("r"))),
            "a.x: refers to the item of region 'r' outside of it",
        ),
        (
            spec(INSIDE, node("out", TEXT, NodeRef("in")), regions=REGION),
            "out.x: takes text, got texts from node 'in'",
        ),
        (
            spec(node("in", PARAM, ItemRef("r"), region="r"), regions=REGION),
            "in.x: is a parameter and cannot take the item of 'r'",
        ),
        (
            spec(
                node("late", TEXT, ItemRef("r"), region="r"),
                node("list", TEXTS, InputRef("l"), PortType.TEXTS),
                node("out", TEXTS, NodeRef("late")),
                regions=(Region("r", NodeRef("list")),),
            ),
            "late: stands before node 'list'",
        ),
        (
            spec(
                node("list", TEXTS, NodeRef("in"), PortType.TEXTS),
                node("in", TEXT, ItemRef("r"), region="r"),
                regions=(Region("r", NodeRef("list")),),
            ),
            "nodes list, in: depend on each other in a cycle",
        ),
        # Guards and choices
        (
            spec(node("a", TEXT, InputRef("q"), guards=(Guard(NodeRef("z"), True),))),
            "a: condition 1: refers to node 'z', which does not exist",
        ),
        (
            spec(node("a", TEXT, InputRef("q"), guards=(GUARD, ELSE))),
            "a: never runs: it asks input 'c' to be true and false",
        ),
        (
            spec(
                node("a", TEXT, InputRef("q"), guards=(GUARD,)),
                node("out", TEXT, NodeRef("a")),
            ),
            "out.x: takes node 'a', which runs only when input 'c' is true",
        ),
        (
            spec(
                node("a", TEXT, InputRef("q"), guards=(GUARD,)),
                node("out", TEXT, NodeRef("a"), guards=(ELSE,)),
            ),
            "out.x: takes node 'a' of the branch not taken",
        ),
        (
            spec(
                node("a", TEXT, InputRef("q"), guards=(GUARD,)),
                node("out", TEXT, ChoiceRef(InputRef("c"), Lit("x"), NodeRef("a"))),
            ),
            "out.x: takes node 'a' of the branch not taken",
        ),
        (
            spec(
                node("a", TEXT, InputRef("q"), guards=(GUARD,)),
                node("out", ANY, InputRef("q"), guards=(Guard(NodeRef("a"), True),)),
            ),
            "out: its condition: takes node 'a', which runs only when",
        ),
        (
            spec(node("a", TEXT, InputRef("q"), guards=(GUARD,)), out=NodeRef("a")),
            "output output: takes node 'a', which runs only when",
        ),
        (
            spec(
                node("list", TEXT, InputRef("q"), PortType.TEXTS, guards=(GUARD,)),
                INSIDE,
                regions=(Region("r", NodeRef("list")),),
            ),
            "in: the list of r: takes node 'list', which runs only when",
        ),
        (
            spec(
                node(
                    "in",
                    TEXT,
                    ItemRef("r"),
                    region="r",
                    guards=(Guard(ItemRef("r"), True),),
                ),
                regions=REGION,
            ),
            "in: its condition: is decided by the item of 'r', once per item (filter",
        ),
        (
            spec(
                INSIDE,
                node("b", TEXT, InputRef("q"), guards=(Guard(NodeRef("in"), True),)),
                regions=REGION,
            ),
            "b: its condition: is decided by the output of node 'in', once per item",
        ),
        (
            spec(node("a", ANY, ChoiceRef(InputRef("c"), InputRef("q"), InputRef("l")))),
            "the two sides of a choice differ: input 'q' is text, input 'l' is texts",
        ),
        (
            spec(node("a", TEXT, ChoiceRef(InputRef("c"), InputRef("q"), Lit(None)))),
            "a.x: takes text, and the value of a choice may be None",
        ),
        (
            spec(node("a", PARAM, ChoiceRef(InputRef("c"), Lit("a"), Lit("b")))),
            "a.x: is a parameter and cannot take the value of a choice",
        ),
        (
            spec(node("a", TEXT, ChoiceRef(InputRef("z"), Lit("a"), Lit("b")))),
            "a.x: the condition: refers to input 'z', which is none",
        ),
        # Expressions
        (
            spec(node("a", TEXT, Expr("txt", {"value": InputRef("q")}))),
            "a.x: there is no expression 'txt' (did you mean 'text'?)",
        ),
        (
            spec(node("a", TEXT, Expr("join", {"separator": Lit("-")}))),
            "a.x: join: 'items' is missing",
        ),
        (
            spec(node("a", TEXT, Expr("text", {"value": Lit(1), "valu": Lit(1)}))),
            "a.x: text: has no argument 'valu' (did you mean 'value'?)",
        ),
        (
            spec(node("a", TEXTS, Expr("lines", {"text": InputRef("l")}))),
            "a.x: lines.text: takes text, got texts from input 'l'",
        ),
        (
            spec(node("a", TEXT, Expr("text", {"value": NodeRef("z")}))),
            "a.x: text.value: refers to node 'z', which does not exist",
        ),
        (
            spec(node("a", CHUNKS, Expr("slice", {"items": InputRef("l")}))),
            "a.x: takes chunks, got texts from the value of slice()",
        ),
        (
            spec(node("a", PARAM, Expr("text", {"value": InputRef("q")}))),
            "a.x: is a parameter and cannot take the value of text()",
        ),
        (
            spec(node("a", ANY, Expr("each", {"items": InputRef("l")}))),
            "a.x: each: takes items, item (a reference) and body",
        ),
        (
            spec(node("a", ANY, each("s", InputRef("q"), ItemRef("s")))),
            "a.x: each.items: input 'q' is text, and only lists",
        ),
        (
            spec(
                node("a", ANY, each("s", InputRef("l"), each("s", InputRef("l"), Lit(1))))
            ),
            "the item of 's' is bound twice",
        ),
        (
            spec(
                INSIDE, node("a", ANY, each("r", Lit([]), own("in", "r"))), regions=REGION
            ),
            "its items are not those of region 'r'",
        ),
        (
            spec(INSIDE, node("a", ANY, own("in", "r")), regions=REGION),
            "own: the item of 'r' is bound nowhere around it",
        ),
        (
            spec(
                node("n", TEXT, InputRef("q")),
                node("a", ANY, each("s", InputRef("l"), own("n", "s"))),
            ),
            "own: node 'n' is no node of region 's'",
        ),
        (
            spec(node("a", ANY, Expr("choose", {"then": Lit("x"), "otherwise": Lit(1)}))),
            "choose: 'condition' is missing",
        ),
        (
            spec(
                node("n", TEXT, InputRef("q")), out=Expr("text", {"value": InputRef("q")})
            ),
            "output output: is the value of text(), which no node makes",
        ),
        # An agent's
        (
            WorkflowSpec("a", (Q,), (INSIDE,), {}, agent=True),
            "a: is an agent's and may hold inputs only",
        ),
    ],
)
def test_a_fault_is_told(faulty, line):
    assert line in lines(faulty)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"timeout_s": 0.0}, "a.timeout_s: must be a number of seconds above 0"),
        ({"timeout_s": float("inf")}, "a.timeout_s: must be"),
        ({"cache_ttl_s": -1.0}, "a.cache: must be"),
        ({"priority": 2**31}, "a.priority: must be a whole number of 32 bits"),
        ({"retry": Retry(max_attempts=0)}, "a.retry.max_attempts: must be a whole number"),
        ({"retry": Retry(max_attempts=101)}, "a.retry.max_attempts"),
        (
            {"retry": Retry(initial_interval_s=-1)},
            "initial_interval_s: must be a number from",
        ),
        ({"retry": Retry(backoff_factor=0.5)}, "backoff_factor: must be a number from 1"),
        ({"retry": Retry(jitter=1.5)}, "jitter: must be a number from 0 to 1"),
        ({"retry": Retry(max_interval_s=float("nan"))}, "max_interval_s: must be"),
        ({"retry": Retry(retry_on=("",))}, "retry_on: must be error codes"),
    ],
)
def test_options_out_of_range_are_told(options, line):
    faulty = spec(node("a", TEXT, InputRef("q"), options=NodeOptions(**options)))
    assert line in "\n".join(str(fault) for fault in validate_spec(faulty))


def test_a_sample_needs_something_to_sample():
    assert "does not sample" in lines(spec(node("a", TEXT, InputRef("q"), sample=0)))
    heat = Port("heat", PortType.FLOAT, False, 0.0, True)
    seed = Port("seed", PortType.INT, False, None, True, True)
    sampled = msgspec.structs.replace(
        node("a", TEXT, InputRef("q"), sample=1, sampling=Sampling("heat", "seed")),
        ports=(TEXT, heat, seed),
    )
    assert lines(spec(sampled)) == ""


def test_all_faults_are_told_together():
    faulty = spec(
        node("a", TEXT, Expr("nothing", {}), guards=(GUARD,)),
        node("b", TEXT, NodeRef("a"), region="s", options=NodeOptions(timeout_s=-1)),
        node("c", PARAM, ItemRef("t")),
    )
    found = [fault.where for fault in validate_spec(faulty)]
    assert found == ["a.x", "b", "b.timeout_s", "c.x", "c.x", "b.x"]


# Topology


def test_a_node_of_a_region_waits_for_the_list_and_guards_for_their_conditions():
    whole = spec(
        node("list", TEXT, InputRef("q"), PortType.TEXTS),
        node("ask", TEXT, InputRef("q")),
        node("in", TEXT, Lit("x"), region="r", guards=(Guard(NodeRef("ask"), True),)),
        node("end", MAYBE, ChoiceRef(NodeRef("ask"), Lit("x"), Lit(None))),
        regions=(Region("r", NodeRef("list")),),
        out=ChoiceRef(
            NodeRef("ask"), NodeRef("in"), Expr("text", {"value": NodeRef("end")})
        ),
    )
    assert whole.parents_of(whole.nodes[2]) == ("list", "ask")
    topology = topology_of(whole)
    assert topology.parents == ((), (), (0, 1), (1,))
    assert topology.successors == ((2,), (2, 3), (), ())
    assert topology.depth == (1, 1, 0, 0)
    assert topology.sinks == (2, 3)
    assert topology.outputs == (1, 2, 3)


def test_an_item_that_an_expression_binds_is_no_leaf_of_it():
    inner = ListRef((ItemRef("r"), ItemRef("s"), own("n", "s")))
    arg = each("s", InputRef("l"), inner)
    assert list(leaves(arg)) == [InputRef("l"), ItemRef("r"), NodeRef("n")]
