"""Values computed where they are consumed, and the resolving of arguments."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.errors import InternalError, NodeError
from herasys_rt.graph.expressions import FORMS, FUNCTIONS, resolve
from herasys_rt.graph.facts import is_true
from herasys_rt.graph.shapes import SHAPERS
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
)


def value(function: str, **args: Any) -> Any:
    given: dict[str, Arg] = {name: Lit(arg) for name, arg in args.items()}
    return resolve({"x": Expr(function, given)}, {}, {})["x"]


def fault(function: str, **args: Any) -> str:
    with pytest.raises(NodeError) as caught:
        value(function, **args)
    assert caught.value.code == "expression_failed"
    assert caught.value.fields == {"argument": "x", "expression": function}
    assert caught.value.hint
    return caught.value.message


def test_every_function_has_a_shape_and_every_shape_a_function():
    assert set(SHAPERS) == set(FUNCTIONS) | {"choose"}
    assert set(FORMS) == {"choose", "each", "own"}


@pytest.mark.parametrize(
    ("function", "args", "wanted"),
    [
        ("text", {"value": "a"}, "a"),
        ("text", {"value": ["a", "b"]}, "a\nb"),
        ("text", {"value": [{"id": "1", "text": "t", "source": "s"}]}, "[1] (s) t"),
        ("text", {"value": {"a": 1}}, '{"a": 1}'),
        ("text", {"value": []}, ""),
        ("text", {"value": {"found": []}}, '{"found": []}'),
        ("render", {"template": "<{a}>", "a": []}, "<>"),
        ("render", {"template": "{{a}} {a}", "a": "{b}"}, "{a} {b}"),
        ("join", {"items": ["a", 1], "separator": "-"}, "a-1"),
        ("join", {"items": []}, ""),
        ("lines", {"text": " a\n\n- b\n2) c\n* d"}, ["a", "b", "c", "d"]),
        ("parse_json", {"text": ' {"a": [1]} '}, {"a": [1]}),
        ("parse_json", {"text": '```json\n{"a": 1}\n```'}, {"a": 1}),
        ("parse_json", {"text": "```\n[1]\n```"}, [1]),
        ("parse_json", {"text": "null"}, None),
        ("field", {"value": {"a": None}, "key": "a"}, None),
        ("field", {"value": [1, 2], "key": -1}, 2),
        ("slice", {"items": [1, 2, 3], "start": 1}, [2, 3]),
        ("slice", {"items": [1, 2, 3], "stop": -1}, [1, 2]),
        ("flatten", {"items": [[1], [], [2, [3]]]}, [1, 2, [3]]),
        ("record", {"a": 1, "b": [2]}, {"a": 1, "b": [2]}),
        ("length", {"value": "ab"}, 2),
        ("length", {"value": {"a": 1}}, 1),
        ("equals", {"left": 1, "right": 1.0}, True),
        ("equals", {"left": True, "right": 1}, False),
        ("equals", {"left": [1, {"a": "b"}], "right": [1, {"a": "b"}]}, True),
        ("equals", {"left": "a", "right": "A"}, False),
        ("equals", {"left": None, "right": None}, True),
        ("contains", {"container": "abc", "piece": "b"}, True),
        ("contains", {"container": [1.0], "piece": 1}, True),
        ("contains", {"container": {"a": 1}, "piece": "b"}, False),
        ("is_empty", {"value": " \n"}, True),
        ("is_empty", {"value": None}, True),
        ("is_empty", {"value": 0}, False),
        ("negate", {"value": " "}, True),
        ("less_than", {"left": 1, "right": 1.5}, True),
        ("more_than", {"left": 1, "right": 1}, False),
        ("all_of", {"conditions": []}, True),
        ("any_of", {"conditions": [0, "", [1]]}, True),
    ],
)
def test_a_function_gives(function, args, wanted):
    assert value(function, **args) == wanted


@pytest.mark.parametrize(
    ("function", "args", "line"),
    [
        ("text", {"value": b"x"}, "text: bytes cannot be written as text"),
        ("text", {"value": np.zeros(2)}, "ndarray cannot be written as text"),
        ("render", {"template": "{a}"}, "render: {a} has no value"),
        ("render", {"template": "{"}, "is no placeholder"),
        ("join", {"items": "ab"}, "items is str 'ab', not a list"),
        ("lines", {"text": 3}, "text is int 3, not text"),
        ("parse_json", {"text": "{'a': 1}"}, "parse_json: the text is no JSON"),
        ("parse_json", {"text": ""}, "the text is no JSON"),
        ("parse_json", {"text": "<html>"}, "of str '<html>'"),
        ("parse_json", {"text": "[NaN]"}, "the JSON holds NaN"),
        ("parse_json", {"text": "[" * 100_000}, "nested too deeply"),
        ("parse_json", {"text": str(2**70)}, "beyond 64 bits"),
        ("parse_json", {"text": '"\\ud800"'}, "lone surrogate"),
        ("field", {"value": {}, "key": "a"}, "there is no 'a'"),
        ("field", {"value": [1], "key": 1}, "there is no item 1 among 1"),
        ("field", {"value": [1], "key": "a"}, "a list has no 'a'"),
        ("field", {"value": [1], "key": True}, "a list has no True"),
        ("field", {"value": "ab", "key": 0}, "0 cannot be read from str 'ab'"),
        ("field", {"value": None, "key": "a"}, "cannot be read from NoneType"),
        ("flatten", {"items": [1]}, "an item is int 1, not a list"),
        ("stack", {"vectors": [np.zeros(2), np.zeros(3)]}, "cannot stand together"),
        ("length", {"value": 3}, "has no length"),
        ("less_than", {"left": "1", "right": 2}, "left is str '1', not a number"),
        ("more_than", {"left": 1, "right": True}, "right is bool True, not a number"),
        ("nothing", {}, "nothing: there is no such expression"),
    ],
)
def test_a_function_that_cannot_says_why(function, args, line):
    assert line in fault(function, **args)


def test_vectors_stack_and_no_vectors_are_an_empty_array():
    stacked = value("stack", vectors=[np.ones(2, np.float32)] * 3)
    assert stacked.shape == (3, 2)
    assert value("stack", vectors=[]).shape == (0, 0)


def test_a_choice_looks_at_the_taken_side_only():
    gone = NodeRef("skipped")
    args: dict[str, Arg] = {
        "a": ChoiceRef(InputRef("c"), gone, InputRef("v")),
        "b": Expr("choose", {"condition": Lit(""), "then": gone, "otherwise": Lit(2)}),
        "c": ListRef((ChoiceRef(InputRef("c"), ChoiceRef(gone, gone, gone), Lit(3)),)),
    }
    assert resolve(args, {"c": " ", "v": 1}, {}) == {"a": 1, "b": 2, "c": [3]}


def test_a_value_that_is_not_there_is_our_fault():
    with pytest.raises(InternalError, match="node 'n' has no value"):
        resolve({"x": NodeRef("n")}, {}, {})
    with pytest.raises(InternalError, match="no item of region 'r'"):
        resolve({"x": ItemRef("r")}, {}, {})


def test_an_item_is_given_and_one_that_is_bound_goes_before():
    inner = ListRef((ItemRef("r"), ItemRef("s")))
    each = Expr("each", {"items": Lit([1, 2]), "item": ItemRef("s"), "body": inner})
    assert resolve({"x": each, "y": ItemRef("r")}, {}, {}, item="i") == {
        "x": [["i", 1], ["i", 2]],
        "y": "i",
    }


def test_each_takes_of_nodes_of_its_region_the_output_of_the_item():
    own = Expr("own", {"node": NodeRef("n"), "item": ItemRef("r")})
    body = Expr("record", {"item": ItemRef("r"), "own": own, "all": NodeRef("n")})
    each = Expr("each", {"items": InputRef("i"), "item": ItemRef("r"), "body": body})
    outputs = {"n": ["A", "B"]}
    assert resolve({"x": each}, {"i": ["a", "b"]}, outputs)["x"] == [
        {"item": "a", "own": "A", "all": ["A", "B"]},
        {"item": "b", "own": "B", "all": ["A", "B"]},
    ]
    assert resolve({"x": each}, {"i": []}, {"n": []})["x"] == []


def test_a_failing_expression_inside_others_is_the_one_named():
    inner = Expr("field", {"value": Lit({}), "key": Lit("k")})
    with pytest.raises(NodeError, match="'context' cannot be computed: field: there is no"):
        resolve({"var:context": ListRef((Expr("text", {"value": inner}),))}, {}, {})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab ", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=5,
)
INPUTS = st.fixed_dictionaries({"p": VALUES, "q": VALUES})


@st.composite
def arguments(draw: st.DrawFn) -> tuple[Arg, Any]:
    """(an argument, a function of inputs and outputs that gives its value)."""
    kind = draw(st.sampled_from(["lit", "in", "node", "list", "choice", "record", "text"]))
    if kind == "lit":
        known = draw(VALUES)
        return Lit(known), lambda i, o: known
    if kind == "in":
        name = draw(st.sampled_from("pq"))
        return InputRef(name), lambda i, o: i[name]
    if kind == "node":
        return NodeRef("n"), lambda i, o: o["n"]
    if kind == "choice":
        name = draw(st.sampled_from("pq"))
        (then, take), (other, leave) = draw(arguments()), draw(arguments())
        return (
            ChoiceRef(InputRef(name), then, other),
            lambda i, o: (take if is_true(i[name]) else leave)(i, o),
        )
    parts = draw(st.lists(arguments(), max_size=3))
    args, values = [arg for arg, _ in parts], [compute for _, compute in parts]
    if kind == "list":
        return ListRef(tuple(args)), lambda i, o: [compute(i, o) for compute in values]
    if kind == "record":
        named = dict(zip("abc", args, strict=False))
        return (
            Expr("record", named),
            lambda i, o: {k: v(i, o) for k, v in zip("abc", values, strict=False)},
        )
    whole = ListRef(tuple(Expr("text", {"value": arg}) for arg in args))
    return (
        Expr("join", {"items": whole, "separator": Lit("|")}),
        lambda i, o: "|".join(_shown(compute(i, o)) for compute in values),
    )


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(x, str) for x in value):
        return "\n".join(value)
    return json.dumps(value, ensure_ascii=False)


@given(arguments(), INPUTS, VALUES)
def test_arguments_resolve_to_what_they_say(pair, inputs, output):
    arg, compute = pair
    outputs = {"n": output}
    assert resolve({"x": arg}, inputs, outputs) == {"x": compute(inputs, outputs)}


@given(arguments(), INPUTS, VALUES, st.lists(VALUES, max_size=4))
def test_each_is_the_body_once_per_item(pair, inputs, output, items):
    arg, compute = pair
    outputs = {"n": output}
    body = ListRef((ItemRef("r"), arg))
    each = Expr("each", {"items": Lit(items), "item": ItemRef("r"), "body": body})
    assert resolve({"x": each}, inputs, outputs)["x"] == [
        [item, compute(inputs, outputs)] for item in items
    ]
