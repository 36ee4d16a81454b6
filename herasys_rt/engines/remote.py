"""What a chat-completions endpoint says, read strictly: answers, streams, refusals.

Pure functions over bytes; `engines.openai` does the talking.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

from herasys_rt.engines.http_answers import (
    SHOWN_CHARS,
    RemoteError,
    is_transient,
    json_object,
    told,
    told_in,
)
from herasys_rt.engines.prompting import Sampling
from herasys_rt.engines.structured import AnswerForm, Part
from herasys_rt.graph.schemas import Schema

_WRAP = "value"
"""The property that holds an answer which is no object."""


class EndpointError(RemoteError):
    """An endpoint's failure."""

    code = "endpoint_failed"


@dataclass(slots=True)
class Completion:
    """An answer as far as it has come: text parts, why it ended, what it consumed.

    ``streams`` says that somebody listens. ``choices`` are a whole answer's, as the
    server sent them.
    """

    streams: bool = False
    texts: list[str] = field(default_factory=list[str])
    reason: str = ""
    choices: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    usage: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def tokens(self) -> int:
        """Tokens of the text, as the server counted them; 1 when it did not."""
        return self.usage.get("completion_tokens", 1)

    def take(self, data: bytes, where: str) -> str:
        """Add one event of a stream; the new text. Errors: `EndpointError`."""
        event = _object(data, where, "an event of its stream")
        _raise_error(event, where)
        self._count(event.get("usage"))
        choices = event.get("choices") or []
        if not choices:
            return ""
        self.reason = choices[0].get("finish_reason") or self.reason
        text = (choices[0].get("delta") or {}).get("content") or ""
        if text:
            self.texts.append(text)
        return text

    def take_whole(self, answer: dict[str, Any]) -> None:
        """Fill in from an answer that is no stream. Errors: KeyError, IndexError ..."""
        self.choices = sorted(answer["choices"], key=lambda c: c.get("index") or 0)
        choice = self.choices[0]
        self.texts = [choice["message"].get("content") or ""]
        self.reason = choice.get("finish_reason") or "stop"
        self._count(answer.get("usage"))

    def _count(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        counts = cast(dict[str, Any], usage)
        details = counts.get("prompt_tokens_details") or {}
        found = {
            "prompt_tokens": counts.get("prompt_tokens"),
            "completion_tokens": counts.get("completion_tokens"),
            "cached_tokens": details.get("cached_tokens", 0),
        }
        self.usage = {name: n for name, n in found.items() if isinstance(n, int)}


def answer_of(data: bytes, kind: str, where: str, into: Completion) -> None:
    """Read a whole answer of content type ``kind``. Errors: `EndpointError`."""
    answer = _object(data, where, f"{kind or 'no content type'}")
    _raise_error(answer, where)
    try:
        into.take_whole(answer)
    except (KeyError, IndexError, TypeError, AttributeError) as e:
        raise _foreign(where, f"JSON without choices ({e!r})") from e


def asking(form: AnswerForm, sampling: Sampling) -> dict[str, Any]:
    """The fields of a request that ask for a form.

    What is no object is asked for inside one: not every server takes another schema at
    the top. Choices are the values of an enumeration.
    """
    body: dict[str, Any] = {}
    if (drawn := form.drawn(sampling.temperature)) > 1:
        body["n"] = drawn
    if form.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": form.logprobs}
    if not form.is_free:
        schema = _sent_schema(form)
        name = {"name": "answer", "schema": schema, "strict": _is_strict(schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": name}
    return body


def parts_of(got: Completion, form: AnswerForm, where: str) -> list[Part]:
    """The answers of a completion, in order. Errors: `EndpointError`."""
    if not got.choices:
        return [Part("".join(got.texts), got.tokens, got.reason == "length")]
    try:
        each = got.tokens // len(got.choices)  # the server counts them together
        parts = [_part(choice, each, form, where) for choice in got.choices]
    except (KeyError, TypeError, AttributeError) as e:
        raise _foreign(where, f"a choice of another shape ({e!r})") from e
    if len(parts) not in (1, form.n):
        raise EndpointError(
            f"{where} sent {len(parts)} answers where {form.n} were asked for",
            code="endpoint_refused",
            hint="The endpoint does not know 'n': ask for one answer at a time.",
        )
    return parts


def _part(choice: dict[str, Any], tokens: int, form: AnswerForm, where: str) -> Part:
    message = choice["message"]
    if message.get("refusal"):
        raise EndpointError(
            f"the model at {where} declined: {str(message['refusal'])[:SHOWN_CHARS]}",
            code="endpoint_declined",
            hint="Ask for something else.",
        )
    text = message.get("content") or ""
    cut = choice.get("finish_reason") == "length"
    told = ((choice.get("logprobs") or {}).get("content")) or []
    logprobs = [
        {"token": t["token"], "logprob": float(t["logprob"])}
        | {"top": [_token(a) for a in t.get("top_logprobs") or ()]}
        for t in told
    ]
    if not form.is_free:
        text = _unwrapped(text, form)
    return Part(text, len(told) or tokens, cut, logprobs)


def _token(entry: dict[str, Any]) -> dict[str, Any]:
    return {"token": entry["token"], "logprob": float(entry["logprob"])}


def _sent_schema(form: AnswerForm) -> Schema:
    if form.choices is not None:
        inner: Schema = {"type": "string", "enum": [*form.choices]}
    elif form.guiding_schema.get("type") == "object":
        return form.guiding_schema
    else:
        inner = dict(form.guiding_schema)
    outer: Schema = {
        "type": "object",
        "properties": {_WRAP: inner},
        "required": [_WRAP],
        "additionalProperties": False,
    }
    for name in ("$defs", "definitions"):  # references start at the top
        if name in inner:
            outer[name] = inner.pop(name)
    return outer


def _unwrapped(text: str, form: AnswerForm) -> str:
    """The answer out of the object that `_sent_schema` put around it; text that is none
    is left for `value_of` to refuse."""
    if form.schema is not None and form.guiding_schema.get("type") == "object":
        return text
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if not isinstance(found, dict) or _WRAP not in found:
        return text
    inner: Any = cast(dict[str, Any], found)[_WRAP]
    if form.choices is not None and isinstance(inner, str):
        return inner
    return json.dumps(inner, ensure_ascii=False)


def _is_strict(schema: Any) -> bool:
    """Whether OpenAI's strict mode takes a schema: every object closed, all of its
    properties required."""
    if isinstance(schema, list):
        return all(_is_strict(part) for part in cast(list[Any], schema))
    if not isinstance(schema, dict):
        return True
    known = cast(Schema, schema)
    if known.get("type") == "object":
        named = set(known.get("properties", ()))
        closed = known.get("additionalProperties") is False
        if not closed or named != set(known.get("required", ())):
            return False
    return all(_is_strict(part) for part in known.values())


def refusal(status: int, data: bytes, where: str) -> EndpointError:
    """The error of an HTTP status other than 200."""
    said = told(data)
    text = f"{where} answered {status}: {said.words}"
    if is_transient(status):
        hint = "The runtime tries again; lower the pool's slots if this goes on."
        kind = "endpoint_busy" if status == 429 else "endpoint_failed"
        return EndpointError(text, code=kind, hint=hint, retryable=True, status=status)
    too_long = said.fields.get("code") == "context_length_exceeded"
    if too_long or "maximum context length" in said.words:
        hint = "Shorten the prompt (fewer or shorter passages) or lower max_tokens."
        return EndpointError(text, code="prompt_too_long", hint=hint, status=status)
    hints = {
        401: "Check the key in the variable that the option api_key_env names.",
        403: "Check the key in the variable that the option api_key_env names.",
        404: "Check base_url (it usually ends with /v1) and the model's name.",
    }
    hint = hints.get(status, "Correct the request; the endpoint will not take it as it is.")
    return EndpointError(text, code="endpoint_refused", hint=hint, status=status)


async def sse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events. Works on bytes: a line ends at a line feed only,
    and a character may arrive in two chunks."""
    pending, data = b"", list[bytes]()
    async for chunk in chunks:
        pending += chunk
        *lines, pending = pending.split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data.clear()
    if pending.startswith(b"data:"):
        data.append(pending[5:].strip())
    if data:
        yield b"\n".join(data)


def _object(data: bytes, where: str, what: str) -> dict[str, Any]:
    found = json_object(data)
    if found is None:
        raise _foreign(where, what)
    return found


def _foreign(where: str, what: str) -> EndpointError:
    return EndpointError(
        f"{where} does not speak the chat-completions protocol: it sent {what}",
        code="endpoint_not_openai",
        hint="Check the pool's base_url (it usually ends with /v1) and any proxy between.",
    )


def _raise_error(answer: dict[str, Any], where: str) -> None:
    """Servers report a failure after the status line as an ``error`` object."""
    if answer.get("error"):
        raise EndpointError(
            f"{where} failed: {told_in(answer).words}",
            hint="The runtime tries again; look at the server if this goes on.",
            retryable=True,
        )
