"""The lists at list ports: where their items' digests come from.

A node with a list port gives one output item per item of that list, so that equal items
of different lists are equal work (`NodeSpec.list_port`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from herasys_rt.graph.facts import items_of, text_items_of
from herasys_rt.graph.hashing import Hash
from herasys_rt.graph.spec import (
    Arg,
    InputRef,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    WorkflowSpec,
    listed_of,
    records_of,
)


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of records: of an input (its name) or of a node's output (its
    position)."""

    of: str | int


ListSource = str | int | Texts | tuple[bytes | int, ...] | None
"""What stands at a list port: an input's name, the position of the node that gives the
list, the `Texts` of either, or of each item its digest or the position of the node that
gives it. None: nothing whose items can be told before the node is executed."""


def list_source(spec: WorkflowSpec, node: NodeSpec, hashing: Hash) -> ListSource:
    """What stands at a node's list port; ``hashing`` names literals."""
    records = records_of(node)
    if records is not None:
        return _texts(spec, node, records, hashing)
    match listed_of(node):
        case InputRef(name):
            return name
        case NodeRef(source):
            return spec.index[source]
        case Lit(value):
            return items_of(value, hashing) or None
        case ListRef(items):
            return _parts(spec, node, items, hashing)
        case _:
            return None


def _texts(spec: WorkflowSpec, node: NodeSpec, records: Arg, hashing: Hash) -> ListSource:
    match records:
        case Lit(value):
            return text_items_of(value, hashing) or None
        case InputRef(name):
            return Texts(name)
        case NodeRef(source) if _is_single(spec, node, source):
            return Texts(spec.index[source])
        case _:
            return None


def _parts(
    spec: WorkflowSpec, node: NodeSpec, items: tuple[Any, ...], hashing: Hash
) -> ListSource:
    parts: list[bytes | int] = []
    for item in items:
        match item:
            case Lit(value):
                parts.append(hashing.of(value))
            case NodeRef(source) if _is_single(spec, node, source):
                parts.append(spec.index[source])
            case _:
                return None
    return tuple(parts) or None


def _is_single(spec: WorkflowSpec, node: NodeSpec, source: str) -> bool:
    """Whether a node sees one output of another, and not those of a region as a list."""
    return spec.nodes[spec.index[source]].region in ("", node.region)
