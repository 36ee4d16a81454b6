"""Inputs of a run: everything wrong with them is told at once, before anything runs."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pydantic
import pytest

from herasys_rt.errors import InputError
from herasys_rt.graph.spec import (
    Arg,
    Constraint,
    InputRef,
    InputSpec,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType
from herasys_rt.graph.validation import (
    check_inputs,
    describe_inputs,
    parse_input_text,
    validate_spec,
)


def node_of(*ports: Port, **args: Arg) -> NodeSpec:
    return NodeSpec("step", "step@1", "do", "cpu", args, ports, PortType.JSON)


def spec_of(*inputs: InputSpec, nodes: tuple[NodeSpec, ...] = ()) -> WorkflowSpec:
    return WorkflowSpec("flow", inputs, nodes, {"output": NodeRef("step")})


def one(kind: PortType, **more: object) -> WorkflowSpec:
    return spec_of(InputSpec("x", kind, **more))  # pyright: ignore[reportArgumentType]


def faults_of(spec: WorkflowSpec, inputs: dict[str, object]) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        check_inputs(spec, inputs)
    assert caught.value.code == "invalid_input"
    return {fault.where: str(fault) for fault in caught.value.fields["faults"]}


QUESTION = spec_of(
    InputSpec("question", PortType.TEXT),
    InputSpec("top_k", PortType.INT, False, 4),
    nodes=(
        node_of(
            Port("text", PortType.TEXT, constraint=Constraint(non_empty=True)),
            Port("k", PortType.INT, is_param=True, constraint=Constraint(minimum=1)),
            text=InputRef("question"),
            k=InputRef("top_k"),
        ),
    ),
)


def test_defaults_are_filled_in():
    assert check_inputs(QUESTION, {"question": "why?"}) == {"question": "why?", "top_k": 4}


def test_every_fault_is_told_at_once():
    spec = spec_of(
        InputSpec("a", PortType.TEXT),
        InputSpec("b", PortType.INT),
        InputSpec("question", PortType.TEXT),
    )
    found = faults_of(spec, {"b": "three", "questoin": "why?"})
    assert set(found) == {"a", "b", "question", "questoin"}
    assert "missing" in found["a"]
    assert "expected int" in found["b"]
    assert "did you mean 'question'?" in found["questoin"]


def test_the_hint_says_what_the_workflow_takes():
    with pytest.raises(InputError) as caught:
        check_inputs(QUESTION, {})
    assert "question: text, top_k: int = 4" in caught.value.hint
    assert describe_inputs(spec_of()) == "no inputs"


@pytest.mark.parametrize("top_k", [0, -1])
def test_a_number_out_of_the_range_of_the_port_it_feeds_is_refused(top_k):
    found = faults_of(QUESTION, {"question": "why?", "top_k": top_k})
    assert "must be at least 1" in found["top_k"]


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_a_blank_question_is_refused(text):
    assert "is empty" in faults_of(QUESTION, {"question": text})["question"]


ASKED = node_of(
    Port("var:question", PortType.ANY), **{"var:question": InputRef("question")}
)


@pytest.mark.parametrize("kind", [PortType.TEXT, PortType.ANY])
def test_a_blank_text_that_a_prompt_asks_about_is_refused(kind):
    spec = spec_of(InputSpec("question", kind), nodes=(ASKED,))
    assert "is empty" in faults_of(spec, {"question": " \n"})["question"]


def test_an_input_with_a_default_may_be_blank_in_a_prompt():
    spec = spec_of(InputSpec("question", PortType.TEXT, False, "why?"), nodes=(ASKED,))
    assert check_inputs(spec, {"question": ""}) == {"question": ""}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (PortType.TEXT, 3),
        (PortType.TEXT, b"a"),
        (PortType.INT, 1.0),
        (PortType.INT, True),
        (PortType.FLOAT, "1"),
        (PortType.BOOL, 1),
        (PortType.TEXTS, "abc"),
        (PortType.TEXTS, ["a", 1]),
        (PortType.DOCUMENTS, [{"id": "no text"}]),
        (PortType.RECORDS, ["no dict"]),
        (PortType.RECORDS, {"not": "a list"}),
        (PortType.VECTOR, [1.0, 2.0]),
        (PortType.VECTOR, np.zeros((1, 2))),
        (PortType.TEXT, None),
        (PortType.JSON, None),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(kind, value):
    assert set(faults_of(one(kind), {"x": value})) == {"x"}


@pytest.mark.parametrize("fed", [PortType.DOCUMENTS, PortType.CHUNKS, PortType.JSON])
def test_the_port_that_records_feed_says_what_their_keys_must_be(fed):
    node = node_of(Port("them", fed), them=InputRef("x"))
    spec = spec_of(InputSpec("x", PortType.RECORDS), nodes=(node,))
    whole, other = [{"id": "1", "text": "t"}], [{"role": "user", "content": "c"}]
    assert validate_spec(spec) == []
    assert check_inputs(spec, {"x": whole}) == {"x": whole}
    assert check_inputs(spec, {"x": []}) == {"x": []}
    if fed == PortType.JSON:
        assert check_inputs(spec, {"x": other}) == {"x": other}
    else:
        assert f"expected {fed}" in faults_of(spec, {"x": other})["x"]
        late = spec_of(InputSpec("x", PortType.RECORDS, False, other), nodes=(node,))
        assert "default of input 'x' expected" in str(validate_spec(late))


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, [1.0, math.nan], {"a": {"b": -math.inf}}, np.array([np.nan])],
    ids=repr,
)
def test_numbers_that_are_not_finite_are_refused(value):
    assert "finite" in faults_of(one(PortType.ANY), {"x": value})["x"]


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], {"a": "\ud800"}, {"\ud800": 1}])
def test_lone_surrogates_are_refused(value):
    assert "lone surrogate" in faults_of(one(PortType.ANY), {"x": value})["x"]


@pytest.mark.parametrize("value", [{1, 2}, object(), {1: 2}, 2**70])
def test_values_outside_the_closed_set_are_refused(value):
    assert set(faults_of(one(PortType.ANY), {"x": value})) == {"x"}


def test_an_int_given_for_a_float_becomes_one():
    checked = check_inputs(one(PortType.FLOAT), {"x": 2})
    assert (checked["x"], type(checked["x"])) == (2.0, float)


def test_tuples_and_numpy_scalars_become_plain():
    assert check_inputs(one(PortType.TEXTS), {"x": ("a", "b")}) == {"x": ["a", "b"]}
    assert type(check_inputs(one(PortType.INT), {"x": np.int64(3)})["x"]) is int


def test_none_is_taken_where_the_input_is_optional():
    assert check_inputs(one(PortType.INT, optional=True), {"x": None}) == {"x": None}


def test_an_untyped_input_is_held_against_the_port_it_feeds():
    text = Port("text", PortType.TEXT)
    spec = spec_of(
        InputSpec("x", PortType.ANY, optional=True),
        nodes=(node_of(text, text=InputRef("x")),),
    )
    assert check_inputs(spec, {"x": "a"}) == {"x": "a"}
    assert "expected text" in faults_of(spec, {"x": 1})["x"]
    assert "expected text" in faults_of(spec, {"x": None})["x"]


def test_changing_a_default_does_not_change_the_next_runs():
    spec = one(PortType.JSON, required=False, default={"a": [1]})
    check_inputs(spec, {})["x"]["a"].append(2)
    assert check_inputs(spec, {}) == {"x": {"a": [1]}}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (PortType.TEXT, "12", "12"),
        (PortType.TEXT, "@@home", "@home"),
        (PortType.INT, "12", 12),
        (PortType.FLOAT, "1e-3", 0.001),
        (PortType.BOOL, "True", True),
        (PortType.BOOL, "no", False),
        (PortType.TEXTS, '["a", "b"]', ["a", "b"]),
        (PortType.JSON, '{"a": null}', {"a": None}),
        (PortType.ANY, "12", "12"),
    ],
)
def test_text_is_read_as_the_declared_type(kind, text, value):
    assert parse_input_text(one(kind), {"x": text}) == {"x": value}


def test_an_untyped_input_is_read_as_the_port_it_feeds():
    number = Port("k", PortType.INT, is_param=True)
    spec = spec_of(InputSpec("x", PortType.ANY), nodes=(node_of(number, k=InputRef("x")),))
    assert parse_input_text(spec, {"x": "3"}) == {"x": 3}


def test_a_vector_is_read_from_json():
    assert parse_input_text(one(PortType.VECTOR), {"x": "[1, 2]"})["x"].dtype == np.float32


def test_null_is_none_for_an_optional_input():
    assert parse_input_text(one(PortType.INT, optional=True), {"x": "null"}) == {"x": None}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (PortType.INT, "1.5"),
        (PortType.FLOAT, "nan"),
        (PortType.FLOAT, "abc"),
        (PortType.BOOL, "maybe"),
        (PortType.JSON, "{'a'"),
        (PortType.VECTOR, '["a"]'),
        (PortType.TEXT, "@/nowhere/at/all"),
    ],
)
def test_text_that_cannot_be_read_is_refused_by_name(kind, text):
    with pytest.raises(InputError, match="x: "):
        parse_input_text(one(kind), {"x": text})


def test_a_text_can_come_from_a_file(tmp_path):
    path = tmp_path / "q.txt"
    path.write_text("gr\u00fc\u00dfe", encoding="utf-8")
    assert parse_input_text(one(PortType.TEXT), {"x": f"@{path}"}) == {
        "x": "gr\u00fc\u00dfe"
    }
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no UTF-8 text"):
        parse_input_text(one(PortType.TEXT), {"x": f"@{path}"})


def test_unknown_names_are_left_for_the_check():
    texts = parse_input_text(QUESTION, {"question": "a", "topk": "3"})
    assert "did you mean 'top_k'?" in faults_of(QUESTION, texts)["topk"]


def test_a_literal_argument_needs_no_input():
    spec = spec_of(nodes=(node_of(Port("a", PortType.INT), a=Lit(1)),))
    assert check_inputs(spec, {}) == {}


def test_a_pydantic_model_is_the_data_of_its_fields():
    class Query(pydantic.BaseModel):
        text: str = pydantic.Field(alias="query")
        since: datetime.date

    model = Query(query="wool", since=datetime.date(2026, 1, 2))
    data = {"query": "wool", "since": "2026-01-02"}
    for given, wanted in (
        (model, data),
        ([model, {"query": "x"}], [data, {"query": "x"}]),
        ((model,), [data]),
        ({"first": model, "n": 1}, {"first": data, "n": 1}),
    ):
        assert check_inputs(one(PortType.ANY), {"x": given}) == {"x": wanted}
    assert check_inputs(one(PortType.JSON), {"x": model}) == {"x": data}
    deep = faults_of(one(PortType.ANY), {"x": {"a": {"b": model}}})
    assert "value.a.b is of type Query" in deep["x"]


def test_a_model_that_cannot_be_written_as_data_is_a_fault_like_any_other():
    class Loose(pydantic.BaseModel):
        value: Any

    class Broken(pydantic.BaseModel):
        @pydantic.computed_field
        @property
        def total(self) -> int:
            raise KeyError("no total")

    for given in (Loose(value=object()), Loose(value=b"\xff"), [Broken()]):
        found = faults_of(one(PortType.ANY), {"x": given, "y": 1})
        assert "cannot be written as JSON data" in found["x"] and "y" in found


def test_lists_and_dicts_without_models_are_not_copied_item_by_item():
    records = [{"id": "a"}]
    assert check_inputs(one(PortType.ANY), {"x": records})["x"][0] is records[0]
