"""What decisions need to know of a value: whether it is true, how long it is, its items.

Branches are decided by truth and regions sized by length, by whoever has no access to the
value itself; so whoever makes a value tells both. Where the items of a list are worked on
one by one, each has a digest besides, by which equal ones are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import numpy as np

from herasys_rt.graph import codec
from herasys_rt.graph.hashing import SHA256, Hash
from herasys_rt.graph.spec import WorkflowSpec
from herasys_rt.graph.text import texts_of

MAX_ITEMS = 65_536
"""A list longer than this has no digests of its items: they would be too many to carry."""


class Fact(msgspec.Struct, frozen=True):
    """The facts of a run's input; see `fact_of`, `items_of` and `text_items_of`."""

    truth: bool = True
    length: int = -1
    items: tuple[bytes, ...] = ()
    texts: tuple[bytes, ...] = ()


def fact_of(value: Any) -> tuple[bool, int]:
    """``(truth, length)`` of a value.

    Truth is as Python's `bool` says, but a blank text is false and an array is true when
    it is not empty. The length is that of a list, and -1 for anything else.
    """
    return is_true(value), _length(value)


def items_of(value: Any, hashing: Hash = SHA256) -> tuple[bytes, ...]:
    """The digest of each item's canonical encoding; empty for what is no list, for a list
    longer than `MAX_ITEMS` and for one with an item that has no canonical encoding."""
    if not 0 < _length(value) <= MAX_ITEMS:
        return ()
    try:
        return tuple([hashing.of(item) for item in value])
    except codec.CodecError:
        return ()


def text_items_of(value: Any, hashing: Hash = SHA256) -> tuple[bytes, ...]:
    """The digest of each record's text, as `items_of` has it for the list of the texts;
    empty for what is no list of records with texts."""
    if not 0 < _length(value) <= MAX_ITEMS:
        return ()
    try:
        return items_of(texts_of(value), hashing)
    except ValueError:
        return ()


def is_true(value: Any) -> bool:
    """Whether a value counts as true in a condition; see `fact_of`."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, np.ndarray):
        return cast("np.ndarray[Any, Any]", value).size > 0
    return bool(value)


def facts_of(
    spec: WorkflowSpec, inputs: Mapping[str, Any], hashing: Hash | None = None
) -> dict[str, Fact]:
    """The facts of the inputs that regions, guards, choices and list ports of ``spec`` ask
    for; without ``hashing``, which names items, only what decides the run's path.

    ``inputs`` are checked inputs with defaults filled in.
    """
    facts = {name: Fact(*fact_of(inputs[name])) for name in spec.asked_inputs}
    if hashing is None:
        return facts
    whole, texts = set(spec.itemised_inputs), set(spec.itemised_texts)
    for name in dict.fromkeys((*spec.itemised_inputs, *spec.itemised_texts)):
        value = inputs[name]
        facts[name] = Fact(
            *fact_of(value),
            items_of(value, hashing) if name in whole else (),
            text_items_of(value, hashing) if name in texts else (),
        )
    return facts


def _length(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list | tuple) else -1
