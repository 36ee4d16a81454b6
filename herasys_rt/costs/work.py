"""How much work a node or batch is, in what cost models count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from herasys_rt.graph.estimates import ESTIMATES, Estimate, workload
from herasys_rt.graph.spec import InputRef, Lit, NodeSpec
from herasys_rt.graph.types import PortType

_CHUNK_TOKENS = 200.0
"""Taken for the pieces that documents will be cut into."""
_DEFAULT_OUTPUT = 128


class Work(msgspec.Struct, frozen=True):
    """What one node asks of its engine.

    Of a language model: ``prompt_tokens``, of which ``cached_tokens`` are held already,
    and ``output_tokens``. Of other engines: ``items`` with ``tokens`` in all.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    items: int = 1
    tokens: int = 0


def work_of(
    node: NodeSpec, inputs: Mapping[str, Any], output_tokens: float | None = None
) -> Work:
    """The work of a node, as far as its arguments and the run's inputs tell.

    ``output_tokens`` is what a length predictor expects; without one max_tokens counts.
    Sizes that are not known yet count as `graph.estimates` says.
    """
    how = ESTIMATES.get(node.verb, Estimate(node.verb))
    if node.verb.startswith("llm."):
        prompt = workload(node, inputs, msgspec.structs.replace(how, adds=()))
        limit = _number(node, "max_tokens", inputs, _DEFAULT_OUTPUT)
        expected = limit if output_tokens is None else min(output_tokens, limit)
        answers = _number(node, "n", inputs, 1)
        return Work(prompt_tokens=round(prompt), output_tokens=round(expected * answers))
    if how.unit == "calls":
        return Work()
    size = workload(node, inputs, how)
    if how.unit == "items":
        return Work(items=round(size))
    return Work(items=_items(node, inputs, size), tokens=round(size))


def _items(node: NodeSpec, inputs: Mapping[str, Any], tokens: float) -> int:
    """Texts that an embedder, reranker or chunker will look at."""
    if node.output in (PortType.VECTOR, PortType.TEXT):
        return 1
    if "documents" in node.args:
        return max(1, round(tokens / _CHUNK_TOKENS))
    listed = "chunks" if "chunks" in node.args else "text"
    return round(workload(node, inputs, Estimate("", "items", each=listed)))


def _number(node: NodeSpec, name: str, inputs: Mapping[str, Any], default: float) -> float:
    arg = node.args.get(name)
    value: Any = None
    if isinstance(arg, Lit):
        value = arg.value
    elif isinstance(arg, InputRef):
        value = inputs.get(arg.name)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known else default
