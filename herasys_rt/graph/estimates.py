"""How much work a node is, before it has run: HeraSys's workload w and split rule s.

An estimate is declared per verb, since the verb is what costs; an operator that does
something else with it declares its own. Workloads are in the unit of the estimate and
compare nodes of one cost key with each other; what a unit costs in seconds is measured,
under the cost key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from herasys_rt.graph.spec import Arg, InputRef, ListRef, Lit, NodeSpec

CHARS_PER_TOKEN = 4.0
"""Of English prose, for tokenizers of today; a tokenizer's own count is exact."""
UNKNOWN_TEXT_TOKENS = 128.0
"""Taken for a text that is another node's output."""
UNKNOWN_ITEMS = 8
"""Taken for the length of a list that is another node's output."""
DECODE_CHUNK_TOKENS = 64
"""Tokens of one decode sub-node: where a long decode may be ordered anew."""


class Split(msgspec.Struct, frozen=True):
    """A node may be cut into nodes over parts of the list at ``port``.

    ``merge`` says how their outputs become the node's: ``concat`` (in order: lists,
    arrays by their first axis) or ``ranked`` (as the verb ``rerank`` merges its parts:
    best first, equal scores in the order of the list). Exact either way.
    """

    port: str
    merge: str


class Estimate(msgspec.Struct, frozen=True):
    """What makes a node much work.

    ``cost_key`` names the measured curve of seconds over work. ``unit`` is ``tokens``,
    ``items`` or ``calls``. Work is the size of the arguments ``sizes`` (names, or
    prefixes that end in ``:``), for each item of the list ``each`` where one is named,
    and what the numbers ``adds`` say, those as often as the number ``times`` says.
    ``split`` cuts a node over data. Of a language model's node ``prefill_head`` says that
    the known head of its prompt (`graph.prompts.prompt_head`) may be prefilled early, and
    ``decode_chunk_tokens`` how long its decode sub-nodes are.
    """

    cost_key: str
    unit: str = "calls"
    sizes: tuple[str, ...] = ()
    each: str = ""
    adds: tuple[str, ...] = ()
    times: str = ""
    split: Split | None = None
    prefill_head: bool = False
    decode_chunk_tokens: int | None = None


ESTIMATES: Mapping[str, Estimate] = {
    "llm.generate": Estimate(
        "llm.generate",
        "tokens",
        sizes=("prompt", "messages", "system", "schema", "var:"),
        adds=("max_tokens",),
        times="n",
        prefill_head=True,
        decode_chunk_tokens=DECODE_CHUNK_TOKENS,
    ),
    "embed": Estimate(
        "embed", "tokens", sizes=("text", "documents"), split=Split("text", "concat")
    ),
    "rerank": Estimate(
        "rerank",
        "tokens",
        sizes=("query",),
        each="chunks",
        split=Split("chunks", "ranked"),
    ),
    "pg.search": Estimate("pg.search"),
    "pg.text": Estimate("pg.text"),
    "pg.hybrid": Estimate("pg.hybrid"),
    "pg.write": Estimate("pg.write", "items", each="embedded"),
    "pg.delete": Estimate("pg.delete"),
    "http.search": Estimate("http.search"),
    "python.call": Estimate("python.call"),
    "text.chunk": Estimate("text.chunk", "tokens", sizes=("documents", "text")),
}
"""By verb. An unknown verb costs one call of itself."""


def workload(
    node: NodeSpec, inputs: Mapping[str, Any], estimate: Estimate | None = None
) -> float:
    """The work of a node in the unit of its estimate (None: its verb's), above 0.

    ``inputs`` are the run's as far as they are known; what is not known yet counts with
    `UNKNOWN_TEXT_TOKENS` and `UNKNOWN_ITEMS`.
    """
    how = estimate or ESTIMATES.get(node.verb, Estimate(node.verb))
    if how.unit == "calls":
        return 1.0
    if how.unit == "items":
        return max(1.0, float(_items(node.args.get(how.each), inputs)[0]))
    work = sum(_tokens(node.args[name], inputs) for name in _named(node, how.sizes))
    if how.each:
        count, tokens = _items(node.args.get(how.each), inputs)
        work = work * count + tokens
    added = sum(_number(node, name, inputs, 0.0) for name in how.adds)
    return max(1.0, work + added * _number(node, how.times, inputs, 1.0))


def _named(node: NodeSpec, names: tuple[str, ...]) -> list[str]:
    return [
        given
        for given in node.args
        if any(given == n or (n.endswith(":") and given.startswith(n)) for n in names)
    ]


def _number(node: NodeSpec, name: str, inputs: Mapping[str, Any], default: float) -> float:
    value = _value(node.args.get(name), inputs)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else default


def _tokens(arg: Arg, inputs: Mapping[str, Any]) -> float:
    if isinstance(arg, ListRef):
        return sum(_tokens(item, inputs) for item in arg.items)
    value = _value(arg, inputs)
    return UNKNOWN_TEXT_TOKENS if value is _UNKNOWN else _size(value)


def _items(arg: Arg | None, inputs: Mapping[str, Any]) -> tuple[int, float]:
    """Length of a list and tokens of all its items."""
    if isinstance(arg, ListRef):
        return len(arg.items), sum(_tokens(item, inputs) for item in arg.items)
    value = _value(arg, inputs)
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("chunks")
    if not isinstance(value, list):
        return UNKNOWN_ITEMS, UNKNOWN_ITEMS * UNKNOWN_TEXT_TOKENS
    items = cast("list[Any]", value)
    return len(items), _size(items)


def _size(value: Any) -> float:
    """Tokens of the text in a value."""
    if isinstance(value, str):
        return len(value) / CHARS_PER_TOKEN
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if isinstance(fields.get("text"), str):  # a chunk, a document
            return _size(fields["text"])
        return sum(_size(part) for part in fields.values())
    if isinstance(value, list | tuple):
        return sum(_size(part) for part in cast("list[Any]", value))
    return 0.0


_UNKNOWN = object()


def _value(arg: Arg | None, inputs: Mapping[str, Any]) -> Any:
    match arg:
        case Lit(value):
            return value
        case InputRef(name):
            return inputs.get(name, _UNKNOWN)
        case _:
            return _UNKNOWN
