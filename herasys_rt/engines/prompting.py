"""From the arguments of ``llm.generate`` to a prompt and sampling parameters. Pure.

Arguments by port name: ``prompt`` (a template with ``{name}`` placeholders, ``{{`` and
``}}`` for braces), its values under ``var:NAME``, ``system`` (literal text), and the
sampling fields of `Sampling`. Everything wrong is a `NodeError` of that one item.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from herasys_rt.errors import NodeError
from herasys_rt.graph.template import TemplateError, placeholders, template_parts

__all__ = ["VAR", "RenderedPrompt", "Sampling", "placeholders", "render", "sampling"]

VAR = "var:"
"""Prefix of the arguments that hold placeholder values."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Chat messages (``role``, ``content``) and the chunks that they were made from.

    ``sources`` are dicts with ``id``, ``source``, ``score`` and ``text``, in order of
    appearance, each id once.
    """

    messages: list[dict[str, str]]
    sources: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; an omitted one has the value that the engine would use.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1 means all tokens, ``top_p`` 1 likewise.
    ``max_tokens`` bounds the completion. ``stop`` strings end the text and are not part
    of it. ``seed`` None draws a fresh one where sampling is random.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 128
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
    "seed": (int, -(2**63), 2**63 - 1),
    "presence_penalty": (float, -2.0, 2.0),
    "frequency_penalty": (float, -2.0, 2.0),
    "repetition_penalty": (float, 1e-6, 100.0),
}


def render(args: Mapping[str, Any]) -> RenderedPrompt:
    """The prompt of one ``llm.generate`` item.

    Values are put in as they are: braces inside them are text. Errors: `NodeError` with
    the code ``invalid_prompt``.
    """
    template = args.get("prompt")
    if not isinstance(template, str):
        _refuse("prompt", f"the prompt is {type(template).__name__}, not text")
    pieces: list[str] = []
    sources: dict[str, dict[str, Any]] = {}
    for name, literal in _parts(template):
        if not name:
            pieces.append(literal)
            continue
        if VAR + name not in args:
            given = sorted(key[len(VAR) :] for key in args if key.startswith(VAR))
            _refuse(
                name,
                f"the prompt asks for {{{name}}} and no value of that name was given",
                f"Pass {name}=...; given: {', '.join(given) or 'none'}. "
                "A literal brace is written twice.",
            )
        value = args[VAR + name]
        pieces.append(_text(name, value))
        _collect(value, sources)
    return RenderedPrompt(
        _messages(args.get("system"), "".join(pieces)), [*sources.values()]
    )


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
    return Sampling(**given)


def _parts(template: str) -> list[tuple[str, str]]:
    try:
        return list(template_parts(template))
    except TemplateError as e:
        _refuse("prompt", e.message, e.hint)


def _messages(system: Any, user: str) -> list[dict[str, str]]:
    if system is not None and not isinstance(system, str):
        _refuse("system", f"the system text is {type(system).__name__}, not text")
    if not user.strip():
        _refuse("prompt", "the prompt is empty", "Give the model something to answer.")
    for name, text in (("system", system or ""), ("prompt", user)):
        try:
            text.encode()
        except UnicodeEncodeError as e:
            _refuse(name, f"the {name} text holds a lone surrogate at character {e.start}")
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": user}]


def _text(name: str, value: Any) -> str:
    """A placeholder's value as text: text as it is, chunks as numbered passages, lists
    of text one a line, everything else as JSON."""
    if isinstance(value, str):
        return value
    if _are_chunks(value):
        return "\n\n".join(_passage(i, chunk) for i, chunk in enumerate(value, 1))
    if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):  # pyright: ignore[reportUnknownVariableType]
        return "\n".join(value)  # pyright: ignore[reportUnknownArgumentType]
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as e:
        _refuse(name, f"the value of {{{name}}} cannot be written as text: {e}")


def _are_chunks(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)  # pyright: ignore[reportUnknownArgumentType]
        and all(
            isinstance(v, dict) and isinstance(v.get("text"), str) and "id" in v  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            for v in value  # pyright: ignore[reportUnknownVariableType]
        )
    )


def _passage(number: int, chunk: Mapping[str, Any]) -> str:
    source = chunk.get("source")
    head = f"[{number}] ({source})" if source else f"[{number}]"
    return f"{head} {chunk['text']}"


def _collect(value: Any, sources: dict[str, dict[str, Any]]) -> None:
    if not _are_chunks(value):
        return
    for chunk in value:
        key = str(chunk["id"])
        if key not in sources:
            sources[key] = {
                "id": key,
                "source": chunk.get("source", ""),
                "score": chunk.get("score"),
                "text": chunk["text"],
            }


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
