"""Templates, values and sampling fields of ``llm.generate``."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.engines.prompting import Sampling, defused, render, sampling
from herasys_rt.errors import NodeError


def chunk(key: str, text: str, source: str = "doc") -> dict[str, Any]:
    return {"id": key, "text": text, "source": source, "score": 0.5}


def user_text(**args: Any) -> str:
    return render(args).messages[-1]["content"]


def fault_of(**args: Any) -> NodeError:
    with pytest.raises(NodeError) as caught:
        render(args)
    return caught.value


def test_a_placeholder_takes_its_value_and_doubled_braces_are_braces() -> None:
    text = user_text(prompt='Say {{"a": {word}}} twice', **{"var:word": "hi"})
    assert text == 'Say {"a": hi} twice'


def test_a_value_with_braces_is_never_expanded_again() -> None:
    values = {"var:a": "{b} {{ }", "var:b": "secret"}
    assert user_text(prompt="{a}|{b}", **values) == "{b} {{ }|secret"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (3, "3"),
        (0.5, "0.5"),
        (True, "true"),
        (None, "null"),
        (["one", "two"], "one\ntwo"),
        ([], ""),
        ({"k": ["é", 1]}, '{"k": ["é", 1]}'),
        ([1, 2], "[1, 2]"),
    ],
)
def test_values_become_text_by_their_type(value: Any, text: str) -> None:
    assert user_text(prompt="<{v}>", **{"var:v": value}) == f"<{text}>"


def test_chunks_become_numbered_passages_with_their_source() -> None:
    chunks = [chunk("1", "First.", "json"), chunk("2", "Second.", "")]
    text = user_text(prompt="{c}", **{"var:c": chunks})
    assert text == "[1] (json) First.\n\n[2] Second."


def test_sources_are_the_chunks_used_once_each_in_order() -> None:
    args = {
        "prompt": "{a} {b}",
        "var:a": [chunk("x", "X"), chunk("y", "Y")],
        "var:b": [chunk("y", "Y"), chunk("z", "Z")],
        "var:unused": [chunk("n", "N")],
    }
    assert [source["id"] for source in render(args).sources] == ["x", "y", "z"]
    assert set(render(args).sources[0]) == {"id", "source", "score", "text"}


def test_the_system_text_comes_first_and_is_literal() -> None:
    prompt = render({"prompt": "Hi", "system": "Be {brief}."})
    assert prompt.messages == [
        {"role": "system", "content": "Be {brief}."},
        {"role": "user", "content": "Hi"},
    ]
    assert render({"prompt": "Hi", "system": None}).messages[0]["role"] == "user"


def test_a_missing_value_is_named_with_what_was_given() -> None:
    fault = fault_of(prompt="{question} {other}", **{"var:question": "q"})
    assert fault.code == "invalid_prompt"
    assert "{other}" in fault.message and "question" in fault.hint


@pytest.mark.parametrize(
    "args",
    [
        {"prompt": "a { b"},
        {"prompt": "{a.b}"},
        {"prompt": "{}"},
        {"prompt": "   \n"},
        {"prompt": "{v}", "var:v": " "},
        {"prompt": None},
        {"prompt": "Hi", "system": 3},
        {"prompt": "lone \ud800 surrogate"},
        {"prompt": "Hi", "system": "\udfff"},
        {"prompt": "{v}", "var:v": {1, 2}},
    ],
)
def test_what_is_no_prompt_is_refused_with_one_code(args: dict[str, Any]) -> None:
    assert fault_of(**args).code == "invalid_prompt"


def test_omitted_sampling_fields_have_the_engines_defaults() -> None:
    assert sampling({"prompt": "x", "top_p": None}) == Sampling(
        temperature=0.0, top_p=1.0, top_k=0, max_tokens=128, repetition_penalty=1.0
    )


def test_given_sampling_fields_are_taken() -> None:
    got = sampling({"temperature": 1, "seed": 3, "stop": "END", "max_tokens": 5})
    assert (got.temperature, got.seed, got.stop, got.max_tokens) == (1, 3, ("END",), 5)
    assert sampling({"stop": ["a", "b"]}).stop == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", 1.5),
        ("min_p", 2),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("seed", 2**64),
        ("repetition_penalty", 0),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", 7),
        ("min_tokens", -1),
        ("min_tokens", 129),
    ],
)
def test_a_sampling_field_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(NodeError) as caught:
        sampling({field: value})
    assert caught.value.code == "invalid_sampling"
    assert field in caught.value.message


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_messages_are_templates_with_values_and_conversations_between() -> None:
    history = [say("user", "Hi {there}"), say("assistant", "")]
    prompt = render(
        {
            "messages": [say("system", "{{S}}"), "{history}", say("user", "{c} {q}")],
            "var:history": history,
            "var:c": [chunk("1", "Fact.")],
            "var:q": "{why}?",
        }
    )
    assert prompt.messages == [
        say("system", "{S}"),
        *history,
        say("user", "[1] (doc) Fact. {why}?"),
    ]
    assert [source["id"] for source in prompt.sources] == ["1"]


def test_a_system_text_joins_the_system_message_that_is_there() -> None:
    args = {"messages": [say("system", "B"), say("user", "Q")], "system": "A"}
    assert render(args).messages == [say("system", "A\n\nB"), say("user", "Q")]
    assert render({"messages": [say("user", "Q")], "system": "A"}).messages[0] == say(
        "system", "A"
    )


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"messages": []}, "the last one to speak in messages is nobody"),
        ({"messages": "hi"}, "messages is str, no list of messages"),
        ({"messages": [say("tool", "x")]}, "messages[0] has the role 'tool'"),
        ({"messages": [{"role": "user"}]}, "messages[0] has NoneType as content"),
        ({"messages": [say("user", "a") | {"name": "z"}]}, "the unknown field 'name'"),
        ({"messages": [say("user", "a"), say("system", "b")]}, "which comes first"),
        ({"messages": [say("user", " "), say("user", "b")]}, "messages[0] is empty"),
        ({"messages": [say("assistant", "a")]}, "in messages is assistant"),
        ({"messages": [say("user", "{x}")]}, "asks for {x}"),
        ({"messages": ["history"]}, "which is no {placeholder}"),
        ({"messages": ["{h}"], "var:h": "hi"}, "h is str, no list of messages"),
        ({"messages": ["{h}"], "var:h": [say("boss", "x")]}, "h[0] has the role 'boss'"),
        ({"messages": [say("user", "\udfff")]}, "lone surrogate"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_place(
    args: dict[str, Any], problem: str
) -> None:
    fault = fault_of(**args)
    assert fault.code == "invalid_prompt" and problem in fault.message


@pytest.mark.parametrize(
    "mark",
    [
        *("<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<start_of_turn>", "[INST]"),
        *("[/INST]", "<<SYS>>", "<s>", "</s>", "<bos>", "<eos>", "<\uff5cUser\uff5c>"),
    ],
)
def test_marks_between_turns_are_defused_and_everything_else_stays(mark: str) -> None:
    (message,) = defused([say("user", f"a{mark}b")])
    assert mark not in message["content"]
    assert message["content"].replace("\u2060", "") == f"a{mark}b"
    plain = "x < y | z > w, [INSTANCE] <style> <|not a mark|> 1<2"
    assert defused([say("user", plain)])[0]["content"] == plain
