"""How a value is written into a prompt, and how a text is read back as lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

_MARK = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+")


def text_of(value: Any) -> str:
    """A value as text: text as it is, chunks as numbered passages, lists of text one a
    line, everything else as JSON.

    An empty list is an empty text: no passages and no lines, whichever it would have held.
    Prompts, expressions and what is prefilled early all write values by this one rule, and
    signatures are over the values, so equal signatures are equal prompts.

    Errors: `ValueError` for a value that cannot be written as text (bytes, an array).
    """
    if isinstance(value, str):
        return value
    if are_chunks(value):
        return "\n\n".join(_passage(i, chunk) for i, chunk in enumerate(value, 1))
    if _are_texts(value):
        return "\n".join(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"{type(value).__name__} cannot be written as text: {e}") from e


def are_chunks(value: Any) -> bool:
    """Whether a value is a list, not empty, of dicts with ``id`` and ``text``."""
    if not isinstance(value, list) or not value:
        return False
    return all(_is_chunk(item) for item in cast("list[Any]", value))


def texts_of(records: list[Any]) -> list[str]:
    """The texts of chunks or documents, in order. Errors: `ValueError` for a record that
    has none."""
    texts: list[str] = []
    for position, item in enumerate(records):
        text = cast("dict[str, Any]", item).get("text") if isinstance(item, dict) else None
        if not isinstance(text, str):
            raise ValueError(f"item {position} is no record with a text")
        texts.append(text)
    return texts


def lines_of(text: str) -> list[str]:
    """The lines that are not blank, trimmed, without list marks (``-``, ``1.``) in front:
    what a model that was asked for a list has written."""
    trimmed = (_MARK.sub("", line).strip() for line in text.split("\n"))
    return [line for line in trimmed if line]


def _are_texts(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(isinstance(item, str) for item in cast("list[Any]", value))


def _is_chunk(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    record = cast("dict[str, Any]", item)
    return isinstance(record.get("text"), str) and "id" in record


def _passage(number: int, chunk: Mapping[str, Any]) -> str:
    source = chunk.get("source")
    head = f"[{number}] ({source})" if source else f"[{number}]"
    return f"{head} {chunk['text']}"
