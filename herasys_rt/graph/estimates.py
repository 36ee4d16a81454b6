"""How much work a node is, before it has run: HeraSys's workload w and split bound s.

An estimate is declared per verb, since the verb is what costs; an operator that does
something else with it declares its own. Workloads are in the unit of the estimate and
compare nodes of one cost key with each other; what a unit costs in seconds is measured,
under the cost key.

    workload(node, {"question": "Why?"}, {"retrieve": Size(tokens=2400, items=12)})

Values count by their size, and a `Size` may stand for a value that is not there: a
simulated run has sizes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
import numpy as np

from herasys_rt.graph.prompts import VAR, templates
from herasys_rt.graph.spec import (
    Arg,
    ChoiceRef,
    Expr,
    InputRef,
    ItemRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
)
from herasys_rt.graph.template import TemplateError, template_parts
from herasys_rt.graph.types import PortType

CHARS_PER_TOKEN = 4.0
"""Of English prose, for tokenizers of today; a tokenizer's own count is exact."""
DECODE_CHUNK_TOKENS = 64
"""Tokens of one decode sub-node: where a long decode may be ordered anew."""


class Size(msgspec.Struct, frozen=True):
    """How large a value is: the tokens of all its text, and how many items it has when
    it is a list of texts, chunks or documents (or what was embedded of them)."""

    tokens: float
    items: float = 1.0


UNKNOWN_TEXT = Size(128.0)
"""Taken for a text that is not known yet."""
UNKNOWN_LIST = Size(8 * 128.0, 8.0)
"""Taken for a list that is not known yet."""


class Estimate(msgspec.Struct, frozen=True):
    """What makes a node much work.

    ``cost_key`` names the measured curve of seconds over work. ``unit`` is ``tokens``,
    ``items`` or ``calls``. Work is the size of the texts ``sizes``; where a list ``each``
    is named, they meet every item of it. ``cut`` names the parameters (tokens of a piece,
    tokens that neighbours share) by which these texts are cut into the items of the
    output. ``splits`` are ports with lists over which a node may be cut into nodes over
    parts, at that one of them which the node has: what engines give for the parts, one
    after the other (lists, or arrays by their first axis), is exactly what one gives for
    the whole.

    A language model's node ``reads_prompt`` instead, whose known head
    (`graph.prompts.prompt_head`) may be prefilled early, and writes at most
    ``max_tokens``, ``n`` times where it draws; ``decode_chunk_tokens`` is how long its
    decode sub-nodes are.
    """

    cost_key: str
    unit: str = "calls"
    sizes: tuple[str, ...] = ()
    each: str = ""
    cut: tuple[str, str] | None = None
    splits: tuple[str, ...] = ()
    reads_prompt: bool = False
    decode_chunk_tokens: int | None = None


class Workload(msgspec.Struct, frozen=True):
    """The work of one node, as a cost model takes it.

    ``amount`` is HeraSys's w in ``unit``, at least 1: what the curve ``cost_key`` is over.
    Of a language model's node it is ``prompt_tokens`` (to be read, before any prefix
    cache) plus ``output_tokens`` (at most written: the length predicted is the cost
    model's); both are 0 elsewhere. ``items`` counts the texts to embed, the pairs to score
    or the chunks to write (0 of an empty list); 1 elsewhere. ``parts`` is the split bound
    s: into how many nodes it may be cut at most.
    """

    cost_key: str
    unit: str
    amount: float
    items: int = 1
    parts: int = 1
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0


ESTIMATES: Mapping[str, Estimate] = {
    "llm.generate": Estimate(
        "llm.generate",
        "tokens",
        reads_prompt=True,
        decode_chunk_tokens=DECODE_CHUNK_TOKENS,
    ),
    "embed": Estimate(
        "embed",
        "tokens",
        sizes=("text",),
        splits=("text",),
    ),
    "rerank": Estimate(
        "rerank",
        "tokens",
        sizes=("query",),
        each="chunks",
        splits=("chunks",),
    ),
    "pg.search": Estimate("pg.search"),
    "pg.text": Estimate("pg.text"),
    "pg.hybrid": Estimate("pg.hybrid"),
    "pg.write": Estimate("pg.write", "items", each="embedded"),
    "pg.delete": Estimate("pg.delete"),
    "http.search": Estimate("http.search"),
    "python.call": Estimate("python.call"),
    "text.chunk": Estimate(
        "text.chunk",
        "tokens",
        sizes=("text", "documents"),
        cut=("max_tokens", "overlap"),
        splits=("documents",),
    ),
}
"""By verb. An unknown verb costs one call of itself."""


def workload(
    node: NodeSpec,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    *,
    item: Any = UNKNOWN_TEXT,
    estimate: Estimate | None = None,
) -> Workload:
    """The work of a node by its estimate (None: its verb's).

    ``inputs`` are the run's and ``outputs`` those of other nodes by id, as far as they are
    known; ``item`` is that of the region that the node is in. Each is a value, or its
    `Size`. What is not known counts as `UNKNOWN_TEXT`, or as `UNKNOWN_LIST` where the port
    takes a list.
    """
    how = estimate or ESTIMATES.get(node.verb, Estimate(node.verb))
    known = _Known(node, inputs or {}, outputs or {}, item)
    if how.reads_prompt:
        return _generation(how, known)
    given = [known.size(name) for name in how.sizes if name in node.args]
    tokens = sum(size.tokens for size in given)
    items = sum(size.items for size in given) if given else 1.0
    if how.each:
        met = known.size(how.each)
        tokens, items = tokens * met.items + met.tokens, met.items
    amount = {"tokens": tokens, "items": items}.get(how.unit, 1.0)
    split = split_of(node.ports, how)
    parts = 1.0 if split is None else known.size(split).items
    return Workload(
        how.cost_key,
        how.unit,
        max(1.0, amount),
        items=math.ceil(items),
        parts=max(1, math.ceil(parts)),
    )


def output_size(
    node: NodeSpec,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
) -> Size | None:
    """The size of what a node gives, where that follows from its arguments: of texts that
    are cut, the pieces. None elsewhere."""
    how = ESTIMATES.get(node.verb)
    if how is None or how.cut is None:
        return None
    known = _Known(node, inputs or {}, outputs or {}, UNKNOWN_TEXT)
    given = [known.size(name) for name in how.sizes if name in node.args]
    whole = Size(sum(size.tokens for size in given), sum(size.items for size in given))
    return known.pieces(whole, how.cut)


def split_of(ports: Iterable[Port], estimate: Estimate) -> str | None:
    """The port with the list over which a node or operator with these ports may be cut;
    None: it may not."""
    lists = {port.name for port in ports if port.type in _LISTS}
    return next((port for port in estimate.splits if port in lists), None)


def size_of(value: Any) -> Size:
    """The size of a value; a `Size` is its own."""
    if isinstance(value, Size):
        return value
    if isinstance(value, dict) and isinstance(value.get("chunks"), list | tuple):  # pyright: ignore[reportUnknownMemberType]
        value = cast("dict[str, Any]", value)["chunks"]
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return Size(sum(_tokens(item) for item in items), float(len(items)))
    if isinstance(value, np.ndarray) and value.ndim == 2:  # pyright: ignore[reportUnknownMemberType]
        return Size(0.0, float(len(cast("np.ndarray[Any, Any]", value))))
    return Size(_tokens(value))


_LISTS = frozenset(
    (
        *(PortType.TEXTS, PortType.CHUNKS, PortType.DOCUMENTS),
        *(PortType.RECORDS, PortType.EMBEDDED),
    )
)
"""Port types at which several texts stand."""

_MADE_OF = ("text", "render", "join", "record", "parse_json")
"""Expressions that are about as large as all that goes into them."""


def _generation(how: Estimate, known: _Known) -> Workload:
    node = known.node
    prompt = known.prompt_tokens()
    draws = node.sampling is not None and known.number(node.sampling.amount, 0.0) > 0
    times = known.number("n", 1.0) if draws else 1.0  # else one answer stands for all
    output = known.number("max_tokens", 0.0) * times
    return Workload(
        how.cost_key,
        how.unit,
        max(1.0, prompt + output),
        prompt_tokens=prompt,
        output_tokens=output,
    )


class _Known:
    """What is known of a node's arguments."""

    def __init__(
        self,
        node: NodeSpec,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        item: Any,
    ) -> None:
        self.node = node
        self._inputs = inputs
        self._outputs = outputs
        self._item = item
        self._lists = {port.name for port in node.ports if port.type in _LISTS}

    def size(self, name: str) -> Size:
        """The size of an argument; nothing when there is none of that name."""
        arg = self.node.args.get(name)
        if arg is None:
            return Size(0.0, 0.0)
        return self._size(arg, UNKNOWN_LIST if name in self._lists else UNKNOWN_TEXT)

    def number(self, name: str, default: float) -> float:
        """The number that an argument is."""
        value = self._value(self.node.args.get(name))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else default

    def prompt_tokens(self) -> float:
        """Tokens of the system text, the templates and the values put into them."""
        found = self.size("system").tokens
        for role, template in templates(self.node):
            if role is None:
                found += self.size(VAR + template).tokens
                continue
            try:
                parts = list(template_parts(template))
            except TemplateError:  # told when the node runs
                parts = [("", template)]
            for name, literal in parts:
                found += self.size(VAR + name).tokens if name else _tokens(literal)
        return found

    def pieces(self, whole: Size, cut: tuple[str, str]) -> Size:
        """The size of the pieces that texts are cut into."""
        length, shared = (self.number(name, 0.0) for name in cut)
        step = max(1.0, length - shared)
        extra = max(0, math.ceil(whole.tokens / step) - math.ceil(whole.items))
        return Size(whole.tokens + extra * shared, whole.items + extra)

    def _size(self, arg: Arg, unknown: Size) -> Size:
        match arg:
            case ListRef(items):
                sizes = [self._size(item, UNKNOWN_TEXT) for item in items]
                return Size(sum(size.tokens for size in sizes), float(len(sizes)))
            case ChoiceRef(_, then, otherwise):
                sides = (self._size(side, unknown) for side in (then, otherwise))
                return max(sides, key=lambda size: size.tokens)
            case Expr("texts_of", {"items": records}):
                return self._size(records, unknown)
            case Expr("record", {"chunks": chunks}):
                return self._size(chunks, unknown)
            case Expr(function, parts) if function in _MADE_OF:
                made = (self._size(part, UNKNOWN_TEXT) for part in parts.values())
                return Size(sum(size.tokens for size in made))
            case _:
                value = self._value(arg)
                return unknown if value is _UNKNOWN else size_of(value)

    def _value(self, arg: Arg | None) -> Any:
        match arg:
            case Lit(value):
                return value
            case InputRef(name):
                return self._inputs.get(name, _UNKNOWN)
            case NodeRef(name):
                return self._outputs.get(name, _UNKNOWN)
            case ItemRef():
                return self._item
            case _:
                return _UNKNOWN


def _tokens(value: Any) -> float:
    """Tokens of the text in a value."""
    if isinstance(value, str):
        return len(value) / CHARS_PER_TOKEN
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if isinstance(fields.get("text"), str):  # a chunk, a document
            return _tokens(fields["text"])
        return sum(_tokens(part) for part in fields.values())
    if isinstance(value, list | tuple):
        return sum(_tokens(part) for part in cast("list[Any]", value))
    return 0.0


_UNKNOWN = object()
