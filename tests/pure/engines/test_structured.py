"""What form an answer has, and how a model's text becomes a value of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from herasys_rt.engines.structured import (
    AnswerForm,
    Part,
    form_of,
    is_cut,
    modelled_value,
    value_of,
)
from herasys_rt.errors import NodeError

AGE: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0}},
    "required": ["age"],
}


def fault_of(form: AnswerForm, *parts: Part) -> NodeError:
    with pytest.raises(NodeError) as caught:
        value_of(form, parts, 32)
    return caught.value


def test_free_text_is_the_default_and_the_only_form_that_streams() -> None:
    form = form_of({"prompt": "x", "n": None, "logprobs": None, "schema": None})
    assert form == AnswerForm() and form.is_text and form.is_free
    for args in ({"n": 2}, {"logprobs": 0}, {"schema": "{}"}, {"choices": ["a"]}):
        assert not form_of(args).is_text


def test_the_likeliest_answer_is_asked_for_once() -> None:
    form = form_of({"n": 4})
    assert (form.drawn(0.0), form.drawn(0.5)) == (1, 4)
    assert value_of(form, [Part("a")], 8) == ["a"] * 4
    assert value_of(form, [Part(t) for t in "abcd"], 8) == list("abcd")


def test_logprobs_come_with_their_text() -> None:
    told = [{"token": "a", "logprob": -0.5, "top": []}]
    part = Part("a", 1, logprobs=told)
    assert value_of(form_of({"logprobs": 0}), [part], 8) == {"text": "a", "logprobs": told}
    many = value_of(form_of({"logprobs": 0, "n": 2}), [part, part], 8)
    assert [one["text"] for one in many] == ["a", "a"]


def test_json_is_read_and_held_against_the_schema() -> None:
    form = form_of({"schema": json.dumps(AGE)})
    assert value_of(form, [Part('{"age": 3}')], 32) == {"age": 3}
    for text in ('{"age": -1}', "{}", '{"age": 1e999}', '{"age": NaN}', "no", '"\\ud800"'):
        fault = fault_of(form, Part(text))
        assert fault.code == "structured_invalid" and not fault.info().retryable, text


def test_numbers_and_texts_that_cannot_travel_are_invalid() -> None:
    anything = form_of({"schema": "{}"})
    for text in (str(2**70), "1e999", '"\\ud800"'):
        assert fault_of(anything, Part(text)).code == "structured_invalid"


def test_a_cut_is_told_with_its_numbers() -> None:
    fault = fault_of(form_of({"schema": json.dumps(AGE)}), Part('{"ag', 32, cut=True))
    assert fault.code == "structured_cut"
    assert "max_tokens (32)" in fault.message and "32 tokens" in fault.message
    assert "maxLength" in fault.hint


def test_an_answer_that_was_complete_when_cut_counts() -> None:
    form = form_of({"schema": json.dumps(AGE)})
    assert value_of(form, [Part('{"age": 3}', 32, cut=True)], 32) == {"age": 3}
    whole = form_of({"schema": '{"type": "integer"}'})
    assert fault_of(whole, Part("12", 32, cut=True)).code == "structured_cut"
    flag = form_of({"schema": '{"type": "boolean"}'})
    assert value_of(flag, [Part("true", 32, cut=True)], 32) is True


def test_only_free_text_is_served_cut() -> None:
    cut = [Part("a", 3, cut=True)]
    assert is_cut(AnswerForm(), cut) and is_cut(form_of({"n": 2}), [Part("b"), *cut])
    assert not is_cut(form_of({"schema": "{}"}), cut)


def test_choices_stand_for_themselves_or_for_values() -> None:
    assert value_of(form_of({"choices": ["a", "b"]}), [Part("b")], 8) == "b"
    judged = form_of({"choices": ["yes", "no"], "values": [True, False]})
    assert value_of(judged, [Part("no")], 8) is False
    assert fault_of(judged, Part("maybe")).code == "structured_invalid"
    assert fault_of(judged, Part("ye", 8, cut=True)).code == "structured_cut"


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1.5}, "logprobs"),
        ({"schema": "[]"}, "schema"),
        ({"schema": "{"}, "schema"),
        ({"schema": {}}, "schema"),
        ({"choices": []}, "choices"),
        ({"choices": ["a", "a"]}, "choices"),
        ({"choices": [""]}, "choices"),
        ({"choices": ["a"], "values": [1, 2]}, "values"),
        ({"choices": ["a"], "schema": "{}"}, "choices"),
        ({"logprobs": 1, "schema": "{}"}, "logprobs"),
    ],
)
def test_a_form_out_of_range_is_refused_by_name(args: dict[str, Any], field: str) -> None:
    with pytest.raises(NodeError) as caught:
        form_of(args)
    assert caught.value.code == "invalid_form" and field in caught.value.message


def test_a_modelled_value_has_the_form() -> None:
    def pick(below: int) -> int:
        return below - 1

    assert modelled_value(AnswerForm(), "t", pick) == "t"
    assert modelled_value(form_of({"n": 2}), "t", pick) == ["t", "t (1)"]
    assert modelled_value(form_of({"choices": ["a", "b"]}), "t", pick) == "b"
    value = modelled_value(form_of({"schema": json.dumps(AGE)}), "t", pick)
    assert (
        value_of(form_of({"schema": json.dumps(AGE)}), [Part(json.dumps(value))], 9)
        == value
    )
    told = modelled_value(form_of({"logprobs": 2}), "a b", pick)["logprobs"]
    assert [(entry["token"], len(entry["top"])) for entry in told] == [("a", 2), ("b", 2)]
