"""What schemas are taken, what guides the model, and values that are valid for them."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import itertools
import json
import random
import uuid
from typing import Annotated, Any, Literal

import pydantic
import pytest

from herasys_rt.graph.examples import example
from herasys_rt.graph.schemas import (
    FORMATS,
    bounded,
    embedded,
    faults_of,
    guide,
    schema_text,
    value_fault,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "größe"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = pydantic.Field(ge=0, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    barks: bool = False


class Home(pydantic.BaseModel):
    title: str = pydantic.Field(max_length=20)
    colour: Colour
    score: float = pydantic.Field(ge=0, le=1)
    count: int
    share: float
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    tags: list[Annotated[str, pydantic.Field(max_length=5)]] = pydantic.Field(
        min_length=1, max_length=3
    )
    note: int | None = None
    more: dict[str, Any] = {}
    pair: tuple[int, str] = (1, "a")


class Tree(pydantic.BaseModel):
    name: str
    children: list[Tree]


def schema_of(given: object) -> dict[str, Any]:
    text, faults = schema_text(given)
    assert faults == []
    return json.loads(text)


def test_a_model_class_becomes_text_with_its_properties_in_order():
    text, faults = schema_text(Home)
    assert faults == []
    assert list(json.loads(text)["properties"])[:3] == ["title", "colour", "score"]
    assert text == schema_text(Home.model_json_schema())[0]


def test_the_order_of_properties_is_part_of_the_text():
    one = {"type": "object", "properties": {"a": {}, "b": {}}}
    other = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert schema_text(one)[0] != schema_text(other)[0]


@pytest.mark.parametrize(
    ("given", "where", "problem"),
    [
        (3, "", "is int, no schema"),
        (str, "", "is type, no schema"),
        ({"a": {1, 2}}, "", "cannot be written as JSON"),
        ({"const": float("nan")}, "", "cannot be written as JSON"),
        ({"const": "\ud800"}, "", "cannot be written as JSON"),
        ({"type": "strin"}, "#/type", "is no JSON schema"),
        ({"pattern": "("}, "#/pattern", "is no JSON schema"),
        ({"type": "array", "uniqueItems": True}, "#", "'uniqueItems'"),
        ({"patternProperties": {"a": {}}}, "#", "'patternProperties'"),
        ({"not": {"type": "string"}}, "#", "'not'"),
        ({"if": {}}, "#", "'if'"),
        ({"items": {"type": "object", "minProperties": 1}}, "#/items", "'minProperties'"),
        ({"type": "array", "contains": {}}, "#", "'contains'"),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "#", "allOf of several"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#", "oneOf of schemas"),
        ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "#", "oneOf of schemas"),
        ({"properties": {"a": {"minimum": 3, "maximum": 1}}}, "#/properties/a", "above"),
        ({"minItems": 3, "maxItems": 1}, "#", "minItems 3 is above maxItems 1"),
        ({"type": "integer", "multipleOf": 5}, "#", "from 0 upwards"),
        ({"type": "number", "minimum": 0, "multipleOf": 0.1}, "#", "whole steps"),
        ({"pattern": "(?=a)b"}, "#", "look-around"),
        ({"pattern": r"(a)\1"}, "#", "back references"),
        ({"format": "regex"}, "#", "format 'regex'"),
        ({"$ref": "http://x/y"}, "#", "not in the schema"),
        ({"$ref": "#/$defs/None"}, "#", "not in the schema"),
        ({"enum": []}, "#", "enum is empty"),
        ({"properties": {}, "required": ["z"]}, "#", "requires 'z'"),
    ],
)
def test_what_the_model_could_not_be_held_to_is_refused(given, where, problem):
    _, faults = schema_text(given)
    assert [(f.where, problem in f.problem) for f in faults] == [(where, True)], faults


def test_every_fault_is_told():
    schema = {"properties": {"a": {"uniqueItems": True}, "b": {"not": {}}}}
    assert len(faults_of(schema)) == 2


def test_a_schema_is_bounded_in_size_and_depth():
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    assert any("nested deeper" in fault.problem for fault in faults_of(deep))
    assert "characters" in faults_of({"enum": ["x" * 70_000]})[0].problem


def test_the_guide_closes_objects_and_bounds_numbers():
    guiding = guide(
        {
            "title": "T",
            "type": "object",
            "properties": {
                "whole": {"type": "integer"},
                "part": {"type": "number", "minimum": 0},
                "any": {},
                "free": {"type": "object"},
                "list": {"type": "array"},
                "one": {"oneOf": [{"type": "string"}, {"type": "null"}]},
            },
            "additionalProperties": True,
        }
    )
    parts = guiding["properties"]
    assert guiding["additionalProperties"] is False and "title" not in guiding
    assert parts["whole"] == {
        "type": "integer",
        "minimum": -(2**53 - 1),
        "maximum": 2**53 - 1,
    }
    assert parts["part"]["maximum"] == 1e15 and parts["part"]["multipleOf"] == 1e-9
    scalar = parts["any"]
    assert [part["type"] for part in scalar["anyOf"]] == [
        *("string", "number", "boolean", "null")
    ]
    assert parts["free"]["additionalProperties"] == parts["list"]["items"] == scalar
    assert "oneOf" not in parts["one"] and len(parts["one"]["anyOf"]) == 2


@pytest.mark.parametrize(
    ("schema", "low", "high"),
    [
        ({"minimum": 5}, 5, 1e15),
        ({"maximum": 5}, -1e15, 5),
        ({"minimum": 1e16}, 1e16, 1e17),
        ({"maximum": -1e16}, -1e17, -1e16),
    ],
)
def test_a_missing_bound_never_contradicts_the_given_one(schema, low, high):
    guiding = guide({"type": "number", **schema})
    assert (guiding["minimum"], guiding["maximum"]) == (low, high)


def test_a_guide_leaves_the_schema_as_it_was():
    schema = schema_of(Home)
    before = json.dumps(schema)
    guide(schema)
    bounded(schema, 10)
    assert json.dumps(schema) == before


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("model", [Home, Tree])
def test_an_example_is_valid_for_schema_and_model(model, start):
    schema = schema_of(model)
    counter = itertools.count(start)
    value = example(schema, lambda n: next(counter) % n)
    assert value_fault(value, schema) is None
    model.model_validate(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
        {"type": "integer", "minimum": 7, "multipleOf": 5},
        {"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.2},
        {"type": "integer", "maximum": -4},
        {"type": "string", "minLength": 30},
        {"type": "string", "maxLength": 2},
        {"type": "string", "pattern": "^a+$", "examples": ["b", "aa"]},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 5},
        {"type": "array", "prefixItems": [{"const": 1}], "items": False},
        {"type": ["null", "integer"]},
    ],
)
def test_examples_keep_every_bound(schema):
    assert faults_of(schema) == []
    for i in range(5):
        value = example(schema, lambda n, i=i: i % n)
        assert value_fault(value, schema) is None, value


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("date", datetime.date.fromisoformat),
        ("time", datetime.time.fromisoformat),
        ("date-time", datetime.datetime.fromisoformat),
        ("duration", pydantic.TypeAdapter(datetime.timedelta).validate_python),
        ("uuid", uuid.UUID),
        ("ipv4", ipaddress.IPv4Address),
        ("ipv6", ipaddress.IPv6Address),
        ("uri", pydantic.AnyUrl),
        ("hostname", lambda text: pydantic.AnyUrl(f"https://{text}")),
        ("email", lambda text: pydantic.AnyUrl(f"mailto://{text}")),
    ],
)
def test_an_example_has_the_format_that_is_asked_for(name, read):
    schema = {"type": "string", "format": name}
    assert name in FORMATS and faults_of(schema) == []
    for seed in range(50):
        drawn = random.Random(seed)
        read(example(schema, drawn.randrange))
    assert example(schema, lambda n: 0) == example(schema, lambda n: 0)


def test_an_example_of_the_schema_comes_before_one_that_is_made():
    schema = {"type": "string", "format": "date", "examples": ["no date", "1999-12-31"]}
    known = {"pattern": r"^\d{4}-12-31$", "default": "1999-12-31"}
    assert example(schema | known, lambda n: 0) == "1999-12-31"
    assert example({"type": "string", "format": "uuid", **known}, lambda n: 0) == (
        "1999-12-31"
    )


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"pattern": "^a"}, "#/properties/x asks for a text with pattern '.a'"),
        ({"format": "date", "maxLength": 3}, "#/properties/x asks for .* format 'date'"),
        ({"format": "date", "pattern": "^a"}, "pattern '.a' and format 'date'"),
    ],
)
def test_where_no_example_is_known_the_property_is_named(schema, told):
    held = {"type": "string", **schema}
    whole = {"type": "object", "properties": {"a": {"type": "integer"}, "x": held}}
    with pytest.raises(ValueError, match=told):
        example(whole, lambda n: 0)
    inside = {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/X"}]}}
    inside["$defs"] = {"X": {"type": "object", "properties": {"deep": held}}}
    with pytest.raises(ValueError, match="#/\\$defs/X/properties/deep asks"):
        example(inside, lambda n: 0)


def test_where_every_value_is_endless_it_is_said():
    endless = {
        "$ref": "#/$defs/A",
        "$defs": {
            "A": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/A"}},
                "required": ["a"],
            }
        },
    }
    with pytest.raises(ValueError, match="endless"):
        example(endless, lambda n: 0)


def test_a_fault_of_a_value_names_its_place():
    fault = value_fault(
        {"pets": [{"age": "old"}]},
        {"properties": {"pets": {"items": {"properties": {"age": {"type": "integer"}}}}}},
    )
    assert fault is not None and fault.startswith("pets/0/age: ")


def test_texts_get_a_bound_where_they_have_none():
    schema = {
        "type": "object",
        "properties": {
            "free": {"type": "string"},
            "own": {"type": "string", "maxLength": 3},
            "fixed": {"type": "string", "enum": ["a"]},
            "long": {"type": ["string", "null"], "minLength": 50},
        },
    }
    parts = bounded(schema, 20)["properties"]
    assert [parts[name].get("maxLength") for name in parts] == [20, 3, None, 50]


def test_a_schema_takes_its_definitions_along_into_another():
    shared: dict[str, Any] = {}
    whole = {
        "anyOf": [
            embedded(schema_of(Tree), "tree", shared),
            embedded(
                {"type": "object", "properties": {"self": {"$ref": "#"}}}, "s", shared
            ),
        ],
        "$defs": shared,
    }
    assert faults_of(whole) == []
    assert (
        value_fault({"name": "a", "children": [{"name": "b", "children": []}]}, whole)
        is None
    )
    assert sorted(shared) == ["s.", "tree.Tree"]
