"""What form the answer of ``llm.generate`` has, and how a model's text becomes it. Pure.

Arguments by port name: ``n`` (how many answers), ``logprobs`` (alternatives told per
token), ``schema`` (JSON text of a schema) or ``choices`` (the texts allowed) with
``values`` (what each stands for). Whatever cannot become a value of the asked form is a
`NodeError` of that one item.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from herasys_rt.errors import NodeError
from herasys_rt.graph import codec
from herasys_rt.graph.checks import finite_fault
from herasys_rt.graph.examples import example
from herasys_rt.graph.schemas import Schema, guide, value_fault

MOST_ANSWERS = 16
MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Part:
    """One answer as the model wrote it: its text, made of ``tokens`` tokens.

    ``cut`` says that it ended at max_tokens. ``logprobs`` has, per token, ``token``,
    ``logprob`` and the ``top`` alternatives (dicts with ``token`` and ``logprob``).
    """

    text: str
    tokens: int = 0
    cut: bool = False
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How many answers, with what beside the text, and what holds the text to a form.

    ``schema`` is what answers must satisfy; ``choices`` maps the texts allowed to what
    they stand for. At most one of them is given.
    """

    n: int = 1
    logprobs: int | None = None
    schema: Schema | None = None
    choices: Mapping[str, Any] | None = None

    @property
    def is_text(self) -> bool:
        """Whether the value is one plain text, which can be read while it is made."""
        return self == AnswerForm()

    @property
    def is_free(self) -> bool:
        """Whether the model may write what it likes."""
        return self.schema is None and self.choices is None

    def drawn(self, temperature: float) -> int:
        """How many answers to ask the model for: the likeliest one is always the same."""
        return self.n if temperature > 0 else 1

    @property
    def guiding_schema(self) -> Schema:
        """The schema that guides the model's JSON. Only where a schema is given."""
        assert self.schema is not None
        return guide(self.schema)


def form_of(args: Mapping[str, Any]) -> AnswerForm:
    """The form that the arguments ask for; None means omitted.

    Errors: `NodeError` with the code ``invalid_form``.
    """
    choices = _choices(args.get("choices"), args.get("values"))
    schema = _schema(args.get("schema"))
    if choices is not None and schema is not None:
        _refuse("choices", "choices and a schema are given; one of them holds the answer")
    count, told = args.get("n"), args.get("logprobs")
    if told is not None and (choices is not None or schema is not None):
        _refuse("logprobs", "logprobs are told of free text only")
    return AnswerForm(
        n=1 if count is None else _count("n", count, 1, MOST_ANSWERS),
        logprobs=None if told is None else _count("logprobs", told, 0, MOST_LOGPROBS),
        schema=schema,
        choices=choices,
    )


def value_of(form: AnswerForm, parts: Sequence[Part], max_tokens: int) -> Any:
    """The node's value: one answer, or a list of ``n``; a single part stands for all.

    Errors: `NodeError` with the code ``structured_cut`` for an answer that max_tokens
    cut before it had its form, ``structured_invalid`` for one that has not the form.
    """
    values = [_answer(form, part, max_tokens) for part in parts]
    if form.n == 1:
        return values[0]
    return values * form.n if len(values) == 1 else values


def is_cut(form: AnswerForm, parts: Sequence[Part]) -> bool:
    """Whether a free text among the answers was cut at max_tokens."""
    return form.is_free and any(part.cut for part in parts)


def modelled_value(form: AnswerForm, text: str, pick: Callable[[int], int]) -> Any:
    """A value of the form without a model: ``pick(n)`` chooses below n.

    Errors: `ValueError` where `example` knows no value.
    """

    def one(number: int) -> Any:
        if form.choices is not None:
            return [*form.choices.values()][pick(len(form.choices))]
        if form.schema is not None:
            return example(form.schema, pick)
        words = text if number == 0 else f"{text} ({number})"
        if form.logprobs is None:
            return words
        top = [{"token": f"t{i}", "logprob": -1.0 - i} for i in range(form.logprobs)]
        told = [{"token": w, "logprob": -1.0, "top": top} for w in words.split(" ")]
        return {"text": words, "logprobs": told}

    return one(0) if form.n == 1 else [one(i) for i in range(form.n)]


# From text to values


def _answer(form: AnswerForm, part: Part, max_tokens: int) -> Any:
    if form.choices is not None:
        return _chosen(form.choices, part, max_tokens)
    if form.schema is not None:
        return _parsed(form.schema, part, max_tokens)
    if form.logprobs is None:
        return part.text
    return {"text": part.text, "logprobs": part.logprobs}


def _chosen(choices: Mapping[str, Any], part: Part, max_tokens: int) -> Any:
    if part.cut:
        _cut(part, max_tokens)
    if part.text not in choices:
        allowed = ", ".join(repr(choice) for choice in list(choices)[:8])
        _invalid(part, f"it is none of {allowed}")
    return choices[part.text]


def _parsed(schema: Schema, part: Part, max_tokens: int) -> Any:
    try:
        value = json.loads(part.text, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        if part.cut:
            _cut(part, max_tokens)
        _invalid(part, f"it is no JSON ({e})")
    if part.cut and isinstance(value, int | float) and not isinstance(value, bool):
        _cut(part, max_tokens)  # its digits may have gone on
    fault = (
        codec.fault_of(value, "the value")
        or finite_fault(value, "the value")
        or value_fault(value, schema)
    )
    if fault is not None:
        _invalid(part, fault)
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _cut(part: Part, max_tokens: int) -> NoReturn:
    raise NodeError(
        f"max_tokens ({max_tokens}) cut the structured answer after {part.tokens} tokens, "
        f"{len(part.text)} characters; it ends in {part.text[-40:]!r}",
        code="structured_cut",
        hint="Raise max_tokens, or bound the schema's texts (maxLength) and lists "
        "(maxItems).",
        max_tokens=max_tokens,
        tokens=part.tokens,
        text=part.text,
    )


def _invalid(part: Part, why: str) -> NoReturn:
    raise NodeError(
        f"the model's answer {part.text[:80]!r} has not the form asked for: {why}",
        code="structured_invalid",
        hint="The endpoint did not hold the model to the form; use one that does "
        "(vLLM), or ask again.",
        text=part.text,
    )


# From arguments to the form


def _schema(text: Any) -> Schema | None:
    if text is None:
        return None
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        _refuse("schema", "the schema is no JSON text of an object")
    return cast("Schema", found)


def _choices(given: Any, values: Any) -> Mapping[str, Any] | None:
    if given is None:
        return None
    texts = cast("list[Any]", given) if isinstance(given, list | tuple) else []
    if not texts or not all(isinstance(text, str) and text for text in texts):
        _refuse("choices", "the choices are no list of texts, each with a character")
    if len(set(texts)) != len(texts):
        _refuse("choices", "one of the choices stands there twice")
    meant = cast("list[Any]", values) if isinstance(values, list | tuple) else texts
    if len(meant) != len(texts):
        _refuse("values", f"{len(texts)} choices have {len(meant)} values")
    return dict(zip(texts, meant, strict=True))


def _count(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        _refuse(name, f"{name} is {value!r}; it must be an integer from {least} to {most}")
    return value


def _refuse(field: str, problem: str) -> NoReturn:
    raise NodeError(
        problem,
        code="invalid_form",
        hint=f"Correct {field} of this generate step.",
        field=field,
    )
