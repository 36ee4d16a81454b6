"""How much work a node or batch is, in what cost models count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from herasys_rt.graph.estimates import workload
from herasys_rt.graph.spec import NodeSpec


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
    node: NodeSpec,
    inputs: Mapping[str, Any],
    output_tokens: float = math.inf,
    outputs: Mapping[str, Any] | None = None,
) -> Work:
    """The work of a node, as far as its arguments and the run's inputs tell.

    ``output_tokens`` is what is expected of a language model, within the node's
    max_tokens; ``outputs`` are those of other nodes by id, or their sizes, where known.
    Sizes that are not known yet count as `graph.estimates` says.
    """
    asked = workload(node, inputs, outputs)
    if node.verb.startswith("llm."):
        expected = min(output_tokens, asked.output_tokens)
        return Work(prompt_tokens=round(asked.prompt_tokens), output_tokens=round(expected))
    tokens = asked.amount if asked.unit == "tokens" else 0.0
    return Work(items=asked.items, tokens=round(tokens))
