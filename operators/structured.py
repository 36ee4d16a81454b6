"""Answers that decide: yes or no, one of several labels, which tool to use.

Thin uses of structured output; verb ``llm.generate``, resource ``llm``. All of them are
pure: the likeliest answer, whatever the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack, cast

from herasys_rt.dsl import OPTIONS, Call, Node, Options, Symbol, operator, param
from herasys_rt.dsl.tracked import TrackedDict, TrackedList, TrackedText, plain
from herasys_rt.graph.schemas import bounded, embedded, schema_text
from herasys_rt.graph.spec import Port
from herasys_rt.graph.types import PortType, describe
from operators.llm import DRAWS, PROMPT_PORTS, SAMPLING_PORTS, Messages, bind_prompt

_MAX_LABELS = 100
_MAX_LABEL_CHARS = 200
_ROOM_TOKENS = 64  # for the JSON and the blanks that an endpoint puts around a choice
_TOOL_NAME = re.compile(r"[A-Za-z_][\w\-]{0,63}", re.ASCII)
_UNSAID_CHARS = 512  # where max_tokens is an input

_CHOICE_PORTS: dict[str, Port] = {
    **PROMPT_PORTS,
    "choices": param(PortType.TEXTS),
    "values": param(PortType.JSON, optional=True),
    "max_tokens": SAMPLING_PORTS["max_tokens"],
}

_JUDGE = """{question}

%s

Answer the question above with yes or no."""
_JUDGE_ALONE = """{question}

Answer with yes or no."""

_CLASSIFY = """{task}

Labels: {labels}

Text: {text}

Answer with the label only."""

_TOOL_FITS = '{"name": ..., "description": ..., "parameters": a JSON schema}'


@operator(
    name="judge",
    version="1",
    verb="llm.generate",
    resource="llm",
    output=PortType.BOOL,
    ports=_CHOICE_PORTS,
    prepare=bind_prompt,
)
def _judge(
    prompt: str | None = None,
    *,
    messages: Any = None,
    system: str | None = None,
    choices: Sequence[str],
    values: Sequence[Any] | None = None,
    max_tokens: int,
    model: str | None = None,
    label: str = "",
    **variables: Any,
):
    """Chooses one of two texts, which stand for true and false."""


def judge(
    question: str | Node,
    text: Any = None,
    **texts: Any,
) -> Node:
    """Whether a text meets a criterion: the model's yes or no, as true or false.

        supported = judge("Is the answer supported by the passages?",
                          answer=answer, passages=chunks)

    ``question`` asks for yes or no about ``text``, or about several texts given by name,
    which the model sees under their names. The options of every call are taken as well.
    Use it as the condition of `when`.
    """
    options = {name: texts.pop(name) for name in OPTIONS if name in texts}
    shown = {} if text is None else {"text": text}
    shown |= texts
    headed = [f"{name.capitalize().replace('_', ' ')}: {{{name}}}" for name in shown]
    template = _JUDGE % "\n\n".join(headed) if headed else _JUDGE_ALONE
    return _judge(
        template,
        question=question,
        choices=["yes", "no"],
        values=[True, False],
        max_tokens=_ROOM_TOKENS,
        **options,
        **shown,
    )


def _check_labels(call: Call) -> None:
    labels = call.args.get("choices")
    fault = _label_fault(labels)
    if fault:
        call.fault("choices", fault, "a literal list of different texts")
        call.args["choices"] = ["?"]  # keeps the node whole for the faults after it
    else:
        assert isinstance(labels, list)
        longest = max(len(label.encode()) for label in cast("list[str]", labels))
        call.args["max_tokens"] = longest + _ROOM_TOKENS
    bind_prompt(call)


def _label_fault(labels: Any) -> str:
    if not isinstance(labels, list):
        return f"is {type(labels).__name__}, no list of labels"
    known = cast("list[Any]", labels)
    if not 1 <= len(known) <= _MAX_LABELS:
        return f"holds {len(known)} labels; from 1 to {_MAX_LABELS} are taken"
    for label in known:
        if not isinstance(label, str) or not label.strip():
            return f"holds {label!r}, which is no label"
        if len(label) > _MAX_LABEL_CHARS or not label.isprintable():
            return f"holds the label {label[:40]!r}, which is too long or not printable"
    twice = sorted({label for label in known if known.count(label) > 1})
    return f"holds {twice[0]!r} twice" if twice else ""


@operator(
    name="classify",
    version="1",
    verb="llm.generate",
    resource="llm",
    output=PortType.TEXT,
    ports=_CHOICE_PORTS,
    prepare=_check_labels,
)
def _classify(
    prompt: str | None = None,
    *,
    messages: Any = None,
    system: str | None = None,
    choices: Any,
    values: Sequence[Any] | None = None,
    max_tokens: int,
    model: str | None = None,
    label: str = "",
    **variables: Any,
):
    """Chooses one of the texts."""


def classify(
    text: Any,
    labels: Sequence[str],
    *,
    task: str | Node = "Which label fits the text best?",
    **options: Unpack[Options],
) -> Node:
    """The label that fits a text best, exactly as it is written in ``labels``.

    ``labels`` are from 1 to 100 different texts, literal; ``task`` says what they are
    about ("Which department should answer this mail?").
    """
    if isinstance(labels, Symbol):
        given: Any = labels
    else:
        given = plain(list(labels)) if isinstance(labels, list | tuple) else labels
    names = [str(name) for name in given] if isinstance(given, list) else []
    return _classify(
        _CLASSIFY,
        text=text,
        task=task,
        labels=", ".join(names) or "none",
        choices=given,
        max_tokens=_ROOM_TOKENS,
        **options,
    )


# Tools


def _prepare_tools(call: Call) -> None:
    """Turn the tools into what the model is told and the schema of its choice."""
    tools, answers = _described(call.args.get("tools")), call.args.get("may_answer")
    faults = list(_tool_faults(tools, answers))
    for where, problem, fits in faults:
        call.trace.record(f"{call.where}.tools{where}", problem, fits)
    known = [] if faults else cast("list[dict[str, Any]]", plain(tools))
    may_answer = answers is not False or not known
    most = call.args.get("max_tokens")
    chars = 2 * most if isinstance(most, int) else _UNSAID_CHARS
    for name in ("tools", "may_answer"):
        call.args.pop(name, None)
        del call.ports[name]
    call.ports["schema"] = Port("schema", PortType.TEXT, is_param=True)
    call.args["schema"] = schema_text(_choice_schema(known, may_answer, chars))[0]
    own = call.args.get("system")
    if own is None or isinstance(own, str):
        told = _told(known, may_answer)
        call.args["system"] = f"{own}\n\n{told}" if own else told
    else:
        call.fault("system", "is no literal, and the tools are told in it", "a text")
    _bind_history(call)


def _described(tools: Any) -> Any:
    """Tools as dicts; those of `@tool` tell what they are by their ``schema``."""
    if not isinstance(tools, list | tuple):
        return tools
    known = cast("Sequence[Any]", tools)
    return [t if isinstance(t, dict) else getattr(t, "schema", t) for t in known]


def _bind_history(call: Call) -> None:
    """The conversation so far is data: braces in it are text."""
    messages = call.args.get("messages")
    if isinstance(messages, list | tuple) and not isinstance(messages, TrackedList):
        history = cast("Sequence[Any]", messages)
        call.args["messages"] = [_as_template(message) for message in history]
    call.args["prompt"] = None
    bind_prompt(call)


def _as_template(message: Any) -> Any:
    """A message written down, with the braces of its text doubled."""
    if not isinstance(message, dict) or isinstance(message, TrackedDict):
        return cast(Any, message)
    fields = cast("dict[str, Any]", message)
    content = fields.get("content")
    if not isinstance(content, str) or isinstance(content, TrackedText):
        return fields
    return fields | {"content": content.replace("{", "{{").replace("}", "}}")}


def _tool_faults(tools: Any, may_answer: Any) -> Iterator[tuple[str, str, str]]:
    """(where, what, what would have fitted) of everything wrong with the tools."""
    if not isinstance(may_answer, bool):
        yield "", f"may_answer is {describe(may_answer)}", "True or False, literal"
    elif not isinstance(tools, list | tuple):
        yield "", f"is {describe(tools)}, no literal list of tools", _TOOL_FITS
    elif not tools and not may_answer:
        yield "", "is empty, and an answer is not allowed either", _TOOL_FITS
    else:
        names: list[Any] = []
        for i, tool in enumerate(cast("Sequence[Any]", tools)):
            for place, problem, fits in _one_tool_faults(tool, names):
                yield f"[{i}]{place}", problem, fits


def _one_tool_faults(tool: Any, names: list[Any]) -> Iterator[tuple[str, str, str]]:
    if not isinstance(tool, dict):
        yield "", f"is {describe(tool)}, no tool", _TOOL_FITS
        return
    known = cast("dict[str, Any]", tool)
    name, parameters = known.get("name"), known.get("parameters")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        yield "", f"has the name {name!r}", "letters, digits, _ and -"
    elif name in names:
        yield "", f"has the name {name!r}, like one before it", "different names"
    names.append(name)
    if not isinstance(known.get("description", ""), str):
        yield "", "has a description that is no text", _TOOL_FITS
    if not isinstance(parameters, dict) or parameters.get("type") != "object":  # pyright: ignore[reportUnknownMemberType]
        yield "", "has no parameters: a JSON schema of an object", _TOOL_FITS
        return
    for place, problem, fits in schema_text(parameters)[1]:
        yield f".parameters{place.removeprefix('#')}", problem, fits


def _choice_schema(
    tools: Sequence[Mapping[str, Any]], may_answer: bool, chars: int
) -> dict[str, Any]:
    """The union of all calls and the answer, its texts bounded to ``chars``."""
    shared: dict[str, Any] = {}
    branches: list[dict[str, Any]] = []
    for tool in tools:
        arguments = embedded(bounded(tool["parameters"], chars), tool["name"], shared)
        name = {"type": "string", "const": tool["name"]}
        branches.append(_closed({"tool": name, "arguments": arguments}))
    if may_answer:
        branches.append(_closed({"answer": {"type": "string", "maxLength": chars}}))
    schema = branches[0] if len(branches) == 1 else {"anyOf": branches}
    return {**schema, "$defs": shared} if shared else schema


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _told(tools: Sequence[Mapping[str, Any]], may_answer: bool) -> str:
    """What the model is told about the tools and the form of its answer."""
    if not tools:
        return 'Answer with JSON: {"answer": your answer}.'
    lines = [
        "You can use tools. To use one, answer with JSON: "
        '{"tool": its name, "arguments": its arguments}. The tools:'
    ]
    for tool in tools:
        parameters = json.dumps(
            tool["parameters"].get("properties", {}), ensure_ascii=False
        )
        about = f": {tool['description']}" if tool.get("description") else ""
        lines.append(f"- {tool['name']}{about}\n  arguments: {parameters}")
    if may_answer:
        lines.append('Once you know the answer, answer with JSON: {"answer": your answer}.')
    return "\n".join(lines)


@operator(
    version="1",
    verb="llm.generate",
    resource="llm",
    output=PortType.JSON,
    ports={
        "messages": param(PortType.JSON),
        "tools": param(PortType.JSON),
        "may_answer": param(PortType.BOOL),
        "system": PROMPT_PORTS["system"],
        "max_tokens": SAMPLING_PORTS["max_tokens"],
        "temperature": SAMPLING_PORTS["temperature"],
        "seed": SAMPLING_PORTS["seed"],
    },
    sampling=DRAWS,
    prepare=_prepare_tools,
)
def choose_tool(
    messages: Messages,
    *,
    tools: Sequence[Any],
    may_answer: bool = True,
    system: str | None = None,
    max_tokens: int = 256,
    temperature: float = 0.0,
    seed: int | None = None,
    **options: Unpack[Options],
):
    """The model's next step: a tool with arguments, or its answer.

    Gives ``{"tool": name, "arguments": {...}}`` or ``{"answer": text}``; which of them,
    and that the arguments satisfy the tool's schema, is held by guided decoding and works
    with any model. ``messages`` is the conversation so far, as data (braces in it are
    text); a tool's result goes into it as a user's message. ``tools`` are those of `tool`,
    or dicts with ``name``, ``description`` and ``parameters``, a JSON schema of an object
    (see `generate_json` for what is supported).

    Without ``may_answer`` a tool must be used; with no tools the model must answer. Texts
    without a bound have at most 2 * ``max_tokens`` characters, so that a choice hardly
    ever ends in ``structured_cut``. ``system`` comes before what the model is told about
    the tools.
    """
