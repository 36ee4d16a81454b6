"""Chat prompts as data: who may speak, and how much of a prompt is known early."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from herasys_rt.graph.spec import Arg, InputRef, Lit, NodeSpec
from herasys_rt.graph.template import TemplateError, template_parts
from herasys_rt.graph.text import text_of

VAR = "var:"
"""Prefix of the arguments that hold the values of a prompt's placeholders."""

ROLES = ("system", "user", "assistant")
"""Who may speak in a chat; a tool's result is given as a user's message."""

Message = dict[str, str]
"""``role`` and ``content``."""


def message_fault(message: Any) -> tuple[str, str] | None:
    """What is wrong with a message, and what would have fitted; None when it is one."""
    if not isinstance(message, dict):
        fits = '{"role": ..., "content": ...}'
        return f"is {type(message).__name__}, no message", fits
    fields = cast("dict[str, Any]", message)
    role, content = fields.get("role"), fields.get("content")
    if role not in ROLES:
        fits = f"{', '.join(ROLES)}; a tool's result is given as a user's message"
        return f"has the role {role!r}", fits
    if not isinstance(content, str):
        return f"has {type(content).__name__} as content", "a text"
    extra = sorted(set(fields) - {"role", "content"})
    if extra:
        return f"has the unknown field {extra[0]!r}", "role and content"
    return None


class PromptHead(NamedTuple):
    """The beginning of a chat prompt: messages as (role, content).

    ``open`` says that more follows which is not known yet, perhaps within the last
    content.
    """

    messages: tuple[tuple[str, str], ...]
    open: bool


def prompt_head(
    node: NodeSpec, inputs: Mapping[str, Any] | None = None
) -> PromptHead | None:
    """The longest head of a node's prompt that is known before its parents have ended.

    That is the system text and the literal text of the template up to the first
    placeholder that stands for another node's output; placeholders that stand for
    literals or for the run's ``inputs`` (None: not known yet) are filled in. None when
    the node has no prompt or nothing of it is known. What may be prefilled early.
    """
    if node.verb != "llm.generate":
        return None
    known: list[tuple[str, str]] = []
    for role, content, is_open in _pieces(node, inputs or {}):
        if content or not is_open:
            known.append((role, content))
        if is_open:
            return PromptHead(tuple(known), True) if known else None
    return PromptHead(tuple(known), False) if known else None


def _pieces(node: NodeSpec, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(role, content, whether it goes on unknown) up to where nothing is known; the role
    is "" where not even that is."""
    is_known, system = _known(node.args.get("system", Lit(None)), inputs)
    if not is_known:
        yield "", "", True
        return
    for i, (role, content, is_open) in enumerate(_conversation(node, inputs)):
        if i == 0 and system:
            if role == "system":
                content = f"{system}\n\n{content}"
            else:  # what is not known may begin with more of the system text
                yield "system", str(system), not role
        if role:
            yield role, content, is_open
        if is_open:
            return


def _conversation(
    node: NodeSpec, inputs: Mapping[str, Any]
) -> Iterator[tuple[str, str, bool]]:
    for role, template in templates(node):
        if role is not None:
            yield role, *_filled(template, node, inputs)
            continue
        is_known, value = _known(node.args.get(VAR + template), inputs)  # messages
        if isinstance(value, dict):  # or one
            value = [cast("Any", value)]
        if not is_known or not isinstance(value, list):
            yield "", "", True
            return
        for message in cast("list[Any]", value):
            if message_fault(message) is not None:
                yield "", "", True
                return
            yield message["role"], message["content"], False


def templates(node: NodeSpec) -> Iterator[tuple[str | None, str]]:
    """(role, template) of each message; (None, name) where messages are a value."""
    given = node.args.get("messages", Lit(None))
    if isinstance(given, Lit) and isinstance(given.value, list):
        for item in cast("list[Any]", given.value):
            if isinstance(item, str):
                yield None, item.strip("{}")
            elif message_fault(item) is None:
                yield item["role"], item["content"]
    else:
        prompt = node.args.get("prompt", Lit(None))
        if isinstance(prompt, Lit) and isinstance(prompt.value, str):
            yield "user", prompt.value


def _filled(template: str, node: NodeSpec, inputs: Mapping[str, Any]) -> tuple[str, bool]:
    """The known beginning of a template's text, and whether more of it is unknown."""
    pieces: list[str] = []
    try:
        for name, literal in template_parts(template):
            if not name:
                pieces.append(literal)
                continue
            is_known, value = _known(node.args.get(VAR + name), inputs)
            if not is_known:
                return "".join(pieces), True
            pieces.append(text_of(value))
    except (TemplateError, ValueError):  # told when the node runs
        return "".join(pieces), True
    return "".join(pieces), False


def _known(arg: Arg | None, inputs: Mapping[str, Any]) -> tuple[bool, Any]:
    match arg:
        case Lit(value):
            return True, value
        case InputRef(name) if name in inputs:
            return True, inputs[name]
        case _:
            return False, None
