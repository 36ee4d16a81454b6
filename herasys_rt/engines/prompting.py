"""From the arguments of ``llm.generate`` to chat messages and sampling parameters. Pure.

Arguments by port name: ``prompt`` (a template with ``{name}`` placeholders, ``{{`` and
``}}`` for braces) or ``messages`` (a list: ``{"role", "content"}`` with a template as
content, or ``"{name}"`` for messages that are a value), the values under ``var:NAME``,
``system`` (literal text), and the sampling fields of `Sampling`. Everything wrong is a
`NodeError` of that one item.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from herasys_rt.errors import NodeError
from herasys_rt.graph.prompts import VAR, Message, message_fault
from herasys_rt.graph.template import TemplateError, placeholders, template_parts
from herasys_rt.graph.text import are_chunks, text_of

__all__ = [
    "VAR",
    "Message",
    "RenderedPrompt",
    "Sampling",
    "defused",
    "placeholders",
    "render",
    "sampling",
]


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Chat messages and the chunks that they were made from.

    ``sources`` are dicts with ``id``, ``source``, ``score`` and ``text``, in order of
    appearance, each id once.
    """

    messages: list[Message]
    sources: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; an omitted one has the value that the engine would use.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1 means all tokens, ``top_p`` 1 likewise.
    ``max_tokens`` bounds the completion, which does not end by itself before
    ``min_tokens``. ``stop`` strings end the text and are not part of it. ``seed`` None
    draws a fresh one where sampling is random.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 128
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0


_RANGES: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0.0, 100.0),
    "top_p": (float, 1e-6, 1.0),
    "top_k": (int, -1, 2**31 - 1),
    "min_p": (float, 0.0, 1.0),
    "max_tokens": (int, 1, 2**31 - 1),
    "min_tokens": (int, 0, 2**31 - 1),
    "seed": (int, -(2**63), 2**63 - 1),
    "presence_penalty": (float, -2.0, 2.0),
    "frequency_penalty": (float, -2.0, 2.0),
    "repetition_penalty": (float, 1e-6, 100.0),
}


def render(args: Mapping[str, Any]) -> RenderedPrompt:
    """The messages of one ``llm.generate`` item.

    Values are put in as they are: braces inside them are text. A system text precedes
    the messages, or the system message that is there. Errors: `NodeError` with the code
    ``invalid_prompt``.
    """
    used: list[Any] = []
    given = args.get("messages")
    if given is None:
        messages = [{"role": "user", "content": _filled(args.get("prompt"), args, used)}]
    else:
        messages = list(_conversation(given, args, used))
    messages = _with_system(args.get("system"), messages)
    _check_conversation(messages, "prompt" if given is None else "messages")
    return RenderedPrompt(messages, _sources(used))


def sampling(args: Mapping[str, Any]) -> Sampling:
    """The sampling parameters among the arguments; None means omitted.

    Errors: `NodeError` with the code ``invalid_sampling`` naming the field.
    """
    given: dict[str, Any] = {
        name: _number(name, args[name]) for name in _RANGES if args.get(name) is not None
    }
    stop = args.get("stop")
    if stop is not None:
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list | tuple) or not all(
            isinstance(text, str) and text
            for text in stops  # pyright: ignore[reportUnknownVariableType]
        ):
            _refuse_sampling("stop", stop, "a list of non-empty strings")
        given["stop"] = tuple(stops)  # pyright: ignore[reportUnknownArgumentType]
    found = Sampling(**given)
    if found.min_tokens > found.max_tokens:
        wanted = f"an integer up to max_tokens ({found.max_tokens})"
        _refuse_sampling("min_tokens", found.min_tokens, wanted)
    return found


_MARKER = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<(?=(?:start|end)_of_turn>)|<<SYS>>"
    r"|\[/?(?:INST|SYSTEM_PROMPT)\]|<(?=/?s>|bos>|eos>|\uff5c)"
)
"""What models mark turns with: ``<|im_start|>``, ``<start_of_turn>``, ``[INST]``, ..."""


def defused(messages: list[Message]) -> list[Message]:
    """The messages for an endpoint that makes tokens of them by itself.

    What looks like a mark between turns gets an invisible character (U+2060) after its
    first one, so that text from a document cannot begin a turn of its own.
    """

    def broken(found: re.Match[str]) -> str:
        return found[0][0] + "\u2060" + found[0][1:]

    return [m | {"content": _MARKER.sub(broken, m["content"])} for m in messages]


def _filled(template: Any, args: Mapping[str, Any], used: list[Any]) -> str:
    """A template with its values put in; they are added to ``used``."""
    if not isinstance(template, str):
        _refuse("prompt", f"the prompt is {type(template).__name__}, not text")
    pieces: list[str] = []
    for name, literal in _parts(template):
        if not name:
            pieces.append(literal)
            continue
        value = _value(name, args)
        used.append(value)
        try:
            pieces.append(text_of(value))
        except ValueError as e:
            _refuse(name, f"the value of {{{name}}}: {e}")
    return "".join(pieces)


def _value(name: str, args: Mapping[str, Any]) -> Any:
    if VAR + name not in args:
        given = sorted(key[len(VAR) :] for key in args if key.startswith(VAR))
        _refuse(
            name,
            f"the prompt asks for {{{name}}} and no value of that name was given",
            f"Pass {name}=...; given: {', '.join(given) or 'none'}. "
            "A literal brace is written twice.",
        )
    return args[VAR + name]


def _conversation(
    given: Any, args: Mapping[str, Any], used: list[Any]
) -> Iterator[Message]:
    """The messages of a list: templates filled, values of messages put in between."""
    for where, item in _numbered(given, "messages"):
        if isinstance(item, str):
            names = [name for name, _ in _parts(item)]
            if len(names) != 1 or not names[0]:
                _refuse(where, f"{where} is {item[:40]!r}, which is no {{placeholder}}")
            value = _value(names[0], args)
            if isinstance(value, dict):  # one message
                value = [value]
            for place, message in _numbered(value, names[0]):
                yield _checked(message, place)
        else:
            message = _checked(item, where)
            yield message | {"content": _filled(message["content"], args, used)}


def _numbered(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, list | tuple):
        fits = 'A list of {"role": ..., "content": ...}.'
        _refuse(name, f"{name} is {type(value).__name__}, no list of messages", fits)
    for i, item in enumerate(cast("list[Any]", value)):
        yield f"{name}[{i}]", item


def _checked(message: Any, where: str) -> Message:
    """A message as it is: role and content and nothing else."""
    fault = message_fault(message)
    if fault is not None:
        problem, fits = fault
        _refuse(where, f"{where} {problem}", f"It may be: {fits}.")
    return cast(Message, message)


def _with_system(system: Any, messages: list[Message]) -> list[Message]:
    if system is None or system == "":
        return messages
    if not isinstance(system, str):
        _refuse("system", f"the system text is {type(system).__name__}, not text")
    if messages and messages[0]["role"] == "system":
        both = f"{system}\n\n{messages[0]['content']}"
        return [{"role": "system", "content": both}, *messages[1:]]
    return [{"role": "system", "content": system}, *messages]


def _check_conversation(messages: list[Message], name: str) -> None:
    for i, message in enumerate(messages):
        role, content = message["role"], message["content"]
        where = "system" if role == "system" else name
        if role == "system" and i:
            fits = "Put it first, or say it as the user."
            _refuse(name, f"{name}[{i}] is a system message, which comes first", fits)
        if role == "user" and not content.strip():
            subject = "the prompt" if name == "prompt" else f"{name}[{i}]"
            _refuse(name, f"{subject} is empty", "Give the model something to answer.")
        try:
            content.encode()
        except UnicodeEncodeError as e:
            problem = f"the {where} text holds a lone surrogate at character {e.start}"
            _refuse(where, problem)
    if not messages or messages[-1]["role"] != "user":
        last = messages[-1]["role"] if messages else "nobody"
        fits = "End with a user's message: the model answers it."
        _refuse(name, f"the last one to speak in {name} is {last}", fits)


def _parts(template: str) -> list[tuple[str, str]]:
    try:
        return list(template_parts(template))
    except TemplateError as e:
        _refuse("prompt", e.message, e.hint)


def _sources(used: list[Any]) -> list[dict[str, Any]]:
    sources: dict[str, dict[str, Any]] = {}
    for chunk in (chunk for value in used if are_chunks(value) for chunk in value):
        key = str(chunk["id"])
        sources.setdefault(
            key,
            {
                "id": key,
                "source": chunk.get("source", ""),
                "score": chunk.get("score"),
                "text": chunk["text"],
            },
        )
    return [*sources.values()]


def _number(name: str, value: Any) -> float | int:
    kind, least, most = _RANGES[name]
    allowed = (int, float) if kind is float else (int,)
    if (
        isinstance(value, bool)
        or not isinstance(value, allowed)
        or not math.isfinite(value)
        or not least <= value <= most
    ):
        article = "a number" if kind is float else "an integer"
        _refuse_sampling(name, value, f"{article} from {least} to {most}")
    return value


def _refuse(field: str, problem: str, hint: str = "") -> NoReturn:
    raise NodeError(problem, code="invalid_prompt", hint=hint, field=field)


def _refuse_sampling(field: str, value: Any, wanted: str) -> NoReturn:
    raise NodeError(
        f"{field} is {value!r}; it must be {wanted}",
        code="invalid_sampling",
        hint=f"Correct {field} of this generate step.",
        field=field,
    )
