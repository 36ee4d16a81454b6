"""`when` and `map_over`: what runs, what comes out, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.dsl import (
    Node,
    all_of,
    any_of,
    as_text,
    contains,
    edge,
    equals,
    flatten,
    is_empty,
    join,
    length,
    less_than,
    map_over,
    more_than,
    negate,
    operator,
    param,
    when,
    workflow,
)
from herasys_rt.errors import GraphError, InputError, NodeError, UsageError
from herasys_rt.graph.spec import (
    ChoiceRef,
    Expr,
    Guard,
    InputRef,
    ItemRef,
    Lit,
    NodeRef,
    Region,
)
from herasys_rt.graph.types import PortType
from tests.pure.dsl.small_runtime import run


def _op(name: str, output: PortType, port: PortType, **more: Any) -> Any:
    @operator(
        name=name,
        version="1",
        verb=name,
        resource="cpu",
        output=output,
        ports={"x": edge(port, **more), "k": param(PortType.INT, minimum=0)},
    )
    def declared(x: Any, *, k: int = 0, model: str | None = None, label: str = ""):
        """Of a test."""

    return declared


say: Any = _op("c.say", PortType.TEXT, PortType.TEXT)
find: Any = _op("c.find", PortType.CHUNKS, PortType.TEXT)
split: Any = _op("c.split", PortType.TEXTS, PortType.TEXT)
vector: Any = _op("c.vector", PortType.VECTOR, PortType.TEXT)
ask: Any = _op("c.ask", PortType.JSON, PortType.ANY)
many: Any = _op("c.many", PortType.TEXT, PortType.TEXTS)
use: Any = _op("c.use", PortType.TEXT, PortType.ANY)
rank: Any = _op("c.rank", PortType.TEXT, PortType.CHUNKS)
index: Any = _op("c.index", PortType.INT, PortType.VECTORS)
maybe: Any = _op("c.maybe", PortType.TEXT, PortType.TEXT, optional=True)

VERBS = {
    "c.say": lambda a: f"say({a['x']})",
    "c.find": lambda a: [
        {"id": f"{a['x']}{i}", "text": f"{a['x']}{i}", "source": "s"} for i in range(2)
    ],
    "c.split": lambda a: a["x"].split(),
    "c.vector": lambda a: np.array([len(a["x"]), 1], np.float32),
    "c.ask": lambda a: a["x"],
    "c.many": lambda a: "+".join(a["x"]),
    "c.use": lambda a: repr(a["x"]),
    "c.rank": lambda a: "".join(c["text"] for c in a["x"]),
    "c.index": lambda a: a["x"].shape[0],
    "c.maybe": lambda a: f"maybe({a['x']})",
}


def faults_of(function: Any) -> str:
    with pytest.raises(GraphError) as caught:
        workflow(name="flow")(function)
    return "\n".join(str(fault) for fault in caught.value.fields["faults"])


# map_over: what it becomes


def test_a_function_becomes_a_region_and_its_result_a_list():
    @workflow
    def flow(q: str):
        return many(map_over(split(q), lambda word: say(say(word), label="end")))

    spec = flow.spec
    assert spec.regions == (Region("map_over", NodeRef("c.split"), 10_000),)
    assert [(n.id, n.region) for n in spec.nodes] == [
        ("c.split", ""),
        ("c.say", "map_over"),
        ("end", "map_over"),
        ("c.many", ""),
    ]
    assert spec.nodes[1].args["x"] == ItemRef("map_over")
    assert spec.nodes[2].args["x"] == NodeRef("c.say")
    assert spec.nodes[3].args["x"] == NodeRef("end")
    ran = run(flow, VERBS, q="a b c")
    assert ran.output == "say(say(a))+say(say(b))+say(say(c))"
    assert ran.counts == {"c.split": 1, "c.say": 3, "end": 3, "c.many": 1}


def test_an_empty_list_runs_nothing_and_gives_an_empty_list():
    @workflow
    def flow(q: str):
        return many(map_over(split(q), say))

    assert run(flow, VERBS, q="").output == ""
    assert run(flow, VERBS, q="").counts["c.say"] == 0


def test_a_list_may_be_an_input_a_literal_or_hold_nodes():
    @workflow
    def flow(words: list[str]):
        return {
            "input": map_over(words, say),
            "literal": map_over(["x", "y"], say),
            "mixed": map_over([say("z"), "x"], say),
        }

    assert [type(region.items) for region in flow.spec.regions] == [InputRef, Lit, NodeRef]
    assert run(flow, VERBS, words=["a"]).outputs == {
        "input": ["say(a)"],
        "literal": ["say(x)", "say(y)"],
        "mixed": ["say(say(z))", "say(x)"],
    }


def test_the_function_may_use_what_is_around_it_and_pieces_of_the_item():
    @workflow
    def flow(q: str, k: int = 3):
        head = say(q)
        return map_over(find(q), lambda c: use([head, c["text"], k], k=k))

    assert run(flow, VERBS, q="a").output == ["['say(a)', 'a0', 3]", "['say(a)', 'a1', 3]"]


def test_taking_pieces_of_items_needs_no_step():
    @workflow
    def flow(q: str):
        found = find(q)
        return many(map_over(found, lambda chunk: as_text(chunk["text"])))

    assert flow.spec.regions == ()
    assert len(flow.spec.nodes) == 2
    assert run(flow, VERBS, q="a").output == "a0+a1"


def test_an_expression_of_the_regions_nodes_is_computed_per_item():
    @workflow
    def flow(q: str):
        return map_over(
            split(q), lambda w: {"word": w, "best": find(w)[0]["text"], "said": say(w)}
        )

    assert run(flow, VERBS, q="a b").output == [
        {"word": "a", "best": "a0", "said": "say(a)"},
        {"word": "b", "best": "b0", "said": "say(b)"},
    ]


@pytest.mark.parametrize(
    ("make", "take", "wanted"),
    [
        (say, many, "say(a)+say(b)"),
        (vector, index, 2),
        (ask, use, "['a', 'b']"),
        (lambda w: length(w), use, "[1, 1]"),
    ],
)
def test_lists_of_results_have_the_type_of_their_items(make, take, wanted):
    @workflow
    def flow(q: str):
        return take(map_over(split(q), make))

    assert run(flow, VERBS, q="a b").output == wanted


def test_lists_of_lists_are_flattened_by_wish():
    @workflow
    def flow(q: str):
        return rank(flatten(map_over(split(q), find)))

    assert run(flow, VERBS, q="a b").output == "a0a1b0b1"


def test_a_result_may_be_gone_over_again():
    @workflow
    def flow(q: str):
        return map_over(map_over(split(q), say), say)

    assert run(flow, VERBS, q="a b").output == ["say(say(a))", "say(say(b))"]
    assert [r.items for r in flow.spec.regions] == [NodeRef("c.split"), NodeRef("items")]


def test_the_same_expression_is_settled_once():
    @workflow
    def flow(q: str):
        parts = ask(q)["parts"]
        return {"a": map_over(parts, use), "b": map_over(parts, use)}

    assert [n.operator for n in flow.spec.nodes].count("value@1") == 1


def test_projections_may_stand_inside_a_function():
    @workflow
    def flow(q: str):
        return map_over(
            [{"parts": [{"t": "x"}, {"t": "y"}]}],
            lambda d: use(map_over(d["parts"], lambda p: [p["t"], d["parts"][0]["t"], q])),
        )

    assert run(flow, VERBS, q="q").output == ["[['x', 'x', 'q'], ['y', 'x', 'q']]"]


def test_a_label_names_the_region_and_the_limit_is_kept():
    @workflow
    def flow(words: list[str]):
        return map_over(words, say, label="each_word", max_items=2)

    assert flow.spec.regions[0] == Region("each_word", InputRef("words"), 2)
    with pytest.raises(InputError, match=r"has 3 items, at most 2 \(for 'each_word'\)"):
        flow.bind(words=["a", "b", "c"])


def test_an_open_input_that_is_gone_over_must_be_a_list():
    @workflow
    def flow(words):
        return map_over(words, use)

    with pytest.raises(InputError, match="expected a list, got int 3"):
        flow.bind(words=3)
    assert run(flow, VERBS, words=[1, "b"]).output == ["1", "'b'"]


# map_over: what is refused


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda q: map_over(q, lambda c: say(q)), "map_over: goes over <input q: any>"),
        (lambda q: map_over(vector("a"), use), "goes over <node c.vector: vector>"),
        (lambda q: map_over(3, use), "map_over: goes over int"),
        (lambda q: map_over("abc", use), "map_over: goes over str"),
        (lambda q: map_over(["a"], lambda w: say(q)), ""),
        (lambda q: map_over(["a"], lambda w: q), "depends on the item"),
        (lambda q: map_over(["a"], lambda w: None), "depends on the item"),
        (lambda q: map_over(["a"], lambda w: [say("b"), None][1]), "depends on the item"),
        (lambda q: map_over(["a"], say, max_items=0), "max_items is 0"),
        (lambda q: map_over(["a"], say, max_items=q), "max_items is <input"),
        (lambda q: map_over(["a", "b"], say, max_items=1), "has 2 items, at most 1"),
        (lambda q: map_over(["a"], say, label="a b"), "is no name"),
        (lambda q: map_over(["a"], lambda w: say("b", k=w)), "is a parameter"),
        (lambda q: map_over([1], say), "takes text, got int from the item of 'map_over'"),
        (
            lambda q: map_over(["a"], lambda w: map_over(split(w), say)),
            "regions do not nest",
        ),
        (
            lambda q: map_over(["a"], lambda w: when(w, lambda: say(w), "no")),
            "would run for some items only",
        ),
    ],
)
def test_a_wrong_map_over_is_refused(function, line):
    if not line:
        assert workflow(name="flow")(function).spec.regions
    elif "goes over <input" in line:
        assert workflow(name="flow")(function).spec.regions  # any input may be a list
    else:
        assert line in faults_of(function)


def test_what_belongs_to_an_item_does_not_leave_its_function():
    kept: list[Any] = []

    def flow(q: str):
        words = map_over(split(q), lambda w: kept.append((w, say(w))) or kept[0][1])
        return use([words, *kept[0]])

    found = faults_of(flow)
    assert "<item of map_over: text> belongs to one item of 'map_over'" in found
    assert "<node c.say: text> belongs to one item of 'map_over'" in found
    assert "map_over gives the list of all of them" in found


# when: what runs


@workflow
def branching(question: str, deep: bool = False):
    """Answers briefly or at length."""
    return when(deep, lambda: say(say(question, label="a"), label="b"), lambda: say("no"))


def test_only_the_taken_branch_runs():
    spec = branching.spec
    assert [n.guards for n in spec.nodes] == [
        (Guard(InputRef("deep"), True),),
        (Guard(InputRef("deep"), True),),
        (Guard(InputRef("deep"), False),),
    ]
    assert spec.outputs["output"] == ChoiceRef(
        InputRef("deep"), NodeRef("b"), NodeRef("c.say")
    )
    ran = run(branching, VERBS, question="q", deep=True)
    assert (ran.output, ran.counts) == ("say(say(q))", {"a": 1, "b": 1, "c.say": 0})
    ran = run(branching, VERBS, question="q")
    assert (ran.output, ran.counts) == ("say(no)", {"a": 0, "b": 0, "c.say": 1})


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        *((x, True) for x in (True, 1, -0.5, "x", "False", [0], {"a": 0}, np.zeros(1))),
        *((x, False) for x in (False, 0, 0.0, "", " \n", [], {}, np.zeros(0))),
    ],
)
def test_a_condition_counts_by_its_truth(value, taken):
    @workflow
    def flow(x):
        return when(ask(x), lambda: use("yes"), lambda: use("no"))

    assert run(flow, VERBS, x=value).output == ("'yes'" if taken else "'no'")


def test_a_condition_that_is_known_decides_at_once():
    @workflow
    def flow(q: str):
        return when([], lambda: say("lost"), lambda: say(q))

    assert [(n.id, n.guards) for n in flow.spec.nodes] == [("c.say", ())]


def test_a_branch_knows_what_it_is_about():
    @workflow
    def flow(q: str):
        return when(q, lambda: when(q, lambda: say("a"), lambda: say("lost")), "c")

    assert [n.guards for n in flow.spec.nodes] == [(Guard(InputRef("q"), True),)]


def test_branches_nest():
    @workflow
    def flow(a: bool, b: bool):
        return when(a, lambda: when(b, lambda: say("1"), lambda: say("2")), "3")

    assert flow.spec.nodes[1].guards == (
        Guard(InputRef("a"), True),
        Guard(InputRef("b"), False),
    )
    results = [
        run(flow, VERBS, a=a, b=b).output for a in (1 > 0, 1 < 0) for b in (True, False)
    ]
    assert results == ["say(1)", "say(2)", "3", "3"]


def test_an_expression_decides_through_a_small_step():
    @workflow
    def flow(q: str):
        found = find(q)
        return when(is_empty(found), lambda: say("nothing"), lambda: rank(found))

    settled = flow.spec.nodes[1]
    assert (settled.id, settled.operator) == ("condition", "value@1")
    assert (settled.verb, settled.resource) == ("text.value", "python")
    assert settled.args == {"value": Expr("is_empty", {"value": NodeRef("c.find")})}
    assert run(flow, VERBS, q="a").output == "a0a1"


def test_a_choice_between_values_that_are_there_is_no_step():
    @workflow
    def flow(q: str, k: int):
        return use(when(more_than(k, 2), q, "few"))

    assert len(flow.spec.nodes) == 1
    assert run(flow, VERBS, q="q", k=3).output == "'q'"
    assert run(flow, VERBS, q="q", k=2).output == "'few'"


def test_without_otherwise_the_value_may_be_none():
    @workflow
    def flow(q: str, deep: bool):
        return maybe(when(deep, lambda: say(q)))

    assert run(flow, VERBS, q="q", deep=False).output == "maybe(None)"
    assert "may be None" in faults_of(lambda q: say(when(ask(q), lambda: say("a"))))


def test_a_region_may_stand_in_a_branch():
    @workflow
    def flow(q: str, deep: bool):
        return when(
            deep,
            lambda: many(map_over(split(q), lambda w: say(w, label="each"))),
            lambda: say(q),
        )

    ran = run(flow, VERBS, q="a b", deep=False)
    assert ran.output == "say(a b)"
    assert ran.counts["each"] == 0
    assert run(flow, VERBS, q="a b", deep=True).output == "say(a)+say(b)"


def test_a_branch_on_something_outside_may_stand_in_a_region():
    @workflow
    def flow(q: str, deep: bool):
        return many(
            map_over(split(q), lambda w: when(deep, lambda: say(say(w)), lambda: say(w)))
        )

    assert run(flow, VERBS, q="a b", deep=True).output == "say(say(a))+say(say(b))"
    assert run(flow, VERBS, q="a b", deep=False).output == "say(a)+say(b)"


def test_an_item_may_choose_between_values():
    @workflow
    def flow(q: str):
        return map_over(split(q), lambda w: use(when(equals(w, "a"), "first", w)))

    assert run(flow, VERBS, q="a b").output == ["'first'", "'b'"]


def test_conditions_are_made_of_values():
    @workflow
    def flow(n: int, words: list[str]):
        conditions = [
            equals(n, 2.0),
            less_than(n, 3),
            more_than(n, 3),
            contains(words, "b"),
            contains(join(words, " "), "a b"),
            is_empty(words),
            negate(words),
            all_of(n, words),
            any_of(equals(n, 1), is_empty(words)),
            length(words),
        ]
        return use(conditions)

    shown = run(flow, VERBS, n=2, words=["a", "b"]).output
    assert shown == ("[True, True, False, True, True, False, False, True, False, 2]")


# when: what is refused


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (
            lambda q: use(when(q, lambda: say("a"), lambda: find("a"))),
            "the two sides of a choice differ: the output of node 'c.say' is text, "
            "the output of node 'c.find' is chunks",
        ),
        (lambda q: say(when(q, lambda: find("a"), lambda: find("b"))), "takes text, got"),
        (lambda q: when(q, None), "gives None on both sides"),
        (lambda q: when(q, "a", "b"), "which no node makes"),
        (lambda q: say("a", k=when(q, 1, 2)), "is a parameter"),
    ],
)
def test_a_wrong_when_is_refused(function, line):
    assert line in faults_of(function)


def test_a_node_of_a_branch_is_no_value_outside_of_it():
    kept: list[Node] = []

    def flow(q: str):
        taken = when(q, lambda: kept.append(say("a", label="x")) or kept[0], "b")
        return {
            "anywhere": say(kept[0], label="out"),
            "other": when(q, taken, lambda: say(kept[0], label="else")),
            "join": many([taken, kept[0]], label="joined"),
        }

    found = faults_of(flow)
    head = "takes node 'x', which runs only when input 'q' is true"
    assert f"out.x: {head} (take what when() gives" in found
    assert f"joined.x[1]: {head}" in found
    assert (
        "else.x: takes node 'x' of the branch not taken: there input 'q' is true" in found
    )


def test_branching_in_python_explains_what_there_is():
    def flow(q: str):
        return say(q) if say(q) else say("no")

    found = faults_of(flow)
    assert "when(condition, then, otherwise)" in found
    assert "map_over(items, function)" in found
    assert "@agent" in found


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda q: q == "a", "equals(a, b)"),
        (lambda q: list(q), "map_over(items, function) makes a step"),
        (lambda q: len(q), "length(items)"),
    ],
)
def test_asking_for_a_value_names_what_to_use(wrong, line):
    assert line in faults_of(lambda q: wrong(q))


def test_outside_of_a_workflow_both_say_what_to_do():
    for call in (lambda: map_over(["a"], say), lambda: equals("a", "b")):
        with pytest.raises(UsageError, match="outside of a workflow"):
            call()


# Pieces of symbols


def test_pieces_are_taken_where_they_are_consumed():
    @workflow
    def flow(q: str):
        found, answer = find(q), ask({"a": [1, {"b": "deep"}]})
        return {
            "text": say(found[0]["text"]),
            "last": use(found[-1]),
            "part": rank(found[1:]),
            "path": use(answer["a"][1]["b"]),
            "lines": many(say("- a\n\n2. b").lines()),
            "dict": use({"q": q, "in": [found[0]["id"], {"x": q}]}),
        }

    assert run(flow, VERBS, q="a").outputs == {
        "text": "say(a0)",
        "last": "{'id': 'a1', 'source': 's', 'text': 'a1'}",
        "part": "a1",
        "path": "'deep'",
        "lines": "say(- a+b)",
        "dict": "{'in': ['a0', {'x': 'a'}], 'q': 'a'}",
    }


def test_a_piece_that_is_not_there_names_the_expression():
    @workflow
    def flow(q: str):
        return use(ask({"a": 1})["b"])

    with pytest.raises(
        NodeError, match="'x' cannot be computed: field: there is no 'b'"
    ) as e:
        run(flow, VERBS, q="")
    assert (e.value.code, e.value.fields["expression"]) == ("expression_failed", "field")
    assert "'a'" in e.value.hint


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda q: say("a")[0], "no item 0 can be taken from it"),
        (lambda q: say("a")[:2], "lists have parts"),
        (lambda q: find("a")["text"], "it has positions"),
        (lambda q: find("a")[::2], "lists have parts"),
        (lambda q: vector("a")[0], "no item 0"),
        (lambda q: find("a").lines(), "only a text has"),
        (lambda q: join(say("a")), "takes texts or chunks"),
        (lambda q: less_than(say("a"), 1), "takes float, got text"),
    ],
)
def test_a_piece_that_cannot_be_is_refused(wrong, line):
    assert line in faults_of(lambda q: use(wrong(q)))


# Workflows in workflows


@workflow
def summary(text: str, deep: bool = True):
    """A region in a branch."""
    return when(
        deep, lambda: many(map_over(split(text), say, label="parts")), lambda: say(text)
    )


def test_regions_and_branches_are_inlined_with_readable_ids():
    @workflow
    def flow(q: str, d: bool):
        return say(summary(say(q), deep=d))

    assert [r.id for r in flow.spec.regions] == ["summary.parts"]
    assert flow.spec.nodes[2].id == "summary.c.say"
    assert flow.spec.nodes[2].guards == (Guard(InputRef("d"), True),)
    assert run(flow, VERBS, q="a", d=True).output == "say(say(say(a)))"
    assert run(flow, VERBS, q="a", d=False).output == "say(say(say(a)))"


def test_a_literal_decides_a_branch_of_an_inner_workflow():
    @workflow
    def flow(q: str):
        return {"deep": summary(q), "flat": summary(q, deep=False)}

    assert [n.id for n in flow.spec.nodes] == [
        *("summary.c.split", "summary.c.say", "summary.c.many", "summary_2.c.say_2"),
    ]
    assert all(n.guards == () for n in flow.spec.nodes)
    assert run(flow, VERBS, q="a b").outputs == {
        "deep": "say(a)+say(b)",
        "flat": "say(a b)",
    }


def test_an_inner_branch_is_decided_by_an_expression_through_a_step():
    @workflow
    def flow(q: str):
        return summary(q, deep=more_than(length(q), 3))

    assert flow.spec.nodes[0].id == "summary.deep"
    assert run(flow, VERBS, q="a b c").output == "say(a)+say(b)+say(c)"
    assert run(flow, VERBS, q="a").output == "say(a)"


def test_an_inner_workflow_stands_in_branches_and_regions_of_the_outer():
    @workflow
    def inner(text: str):
        return say(say(text))

    @workflow
    def flow(q: str, deep: bool):
        return many([when(deep, lambda: inner(q), "no"), *[inner("x")]])

    assert flow.spec.nodes[0].guards == (Guard(InputRef("deep"), True),)
    assert run(flow, VERBS, q="a", deep=True).output == "say(say(a))+say(say(x))"

    @workflow
    def mapped(q: str):
        return many(map_over(split(q), inner))

    assert run(mapped, VERBS, q="a b").output == "say(say(a))+say(say(b))"


def test_an_inner_region_inside_a_region_is_refused():
    found = faults_of(lambda q: map_over(["a b"], lambda w: summary(w)))
    assert "summary: has a map_over inside (parts) and stands in one itself" in found


def test_an_item_does_not_decide_a_branch_of_an_inner_workflow():
    found = faults_of(lambda q: map_over(["a"], lambda w: branching("x", deep=w)))
    assert "branching.deep: input 'deep' decides which of its nodes run, once per" in found


# All of it together


@st.composite
def programs(draw: st.DrawFn) -> tuple[Any, Any]:
    """(a function that declares a text, one that computes it) over a word and a flag."""
    kind = draw(st.sampled_from(["word", "say", "when", "map", "piece"]))
    if kind == "word" or draw(st.integers(0, 3)) == 0:
        return (lambda word, flag: word), (lambda word, flag: word)
    inner, computed = draw(programs())
    if kind == "say":
        return (
            lambda word, flag: say(inner(word, flag)),
            lambda word, flag: f"say({computed(word, flag)})",
        )
    if kind == "when":
        other, other_computed = draw(programs())
        return (
            lambda word, flag: when(
                flag, lambda: inner(word, flag), lambda: other(word, flag)
            ),
            lambda word, flag: (computed if flag else other_computed)(word, flag),
        )
    if kind == "piece":
        return (
            lambda word, flag: find(inner(word, flag))[1]["text"],
            lambda word, flag: computed(word, flag) + "1",
        )
    flat = draw(st.sampled_from([say, lambda w: say(say(w)), lambda w: find(w)[0]["text"]]))
    shown = {id(say): lambda w: f"say({w})"}.get(id(flat))
    if shown is None:
        probe = workflow(name="probe")(lambda w: flat(w))
        shown = lambda w: run(probe, VERBS, w=w).output  # noqa: E731
    return (
        lambda word, flag: join(map_over([inner(word, flag), "z"], flat), "+"),
        lambda word, flag: "+".join(shown(w) for w in (computed(word, flag), "z")),
    )


@given(programs(), st.text("ab", min_size=1, max_size=2), st.booleans())
def test_what_is_declared_is_what_is_computed(program, word, flag):
    declared, computed = program

    @workflow
    def flow(word: str, flag: bool):
        return use(declared(word, flag))

    assert run(flow, VERBS, word=word, flag=flag).output == repr(computed(word, flag))
