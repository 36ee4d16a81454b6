"""The lists at list ports: where their items' digests come from.

A node with a list port gives one output item per item of that list, so that equal items
of different lists are equal work (`NodeSpec.list_port`).
"""

from __future__ import annotations

from typing import Any

from herasys_rt.graph.facts import items_of
from herasys_rt.graph.hashing import SHA256
from herasys_rt.graph.spec import InputRef, ListRef, Lit, NodeRef, NodeSpec, WorkflowSpec

ListSource = str | int | tuple[bytes | int, ...] | None
"""What stands at a list port: an input's name, the position of the node that gives the
list, or of each item its digest or the position of the node that gives it. None: nothing
whose items can be told before the node is executed."""


def list_source(spec: WorkflowSpec, node: NodeSpec) -> ListSource:
    """What stands at a node's list port."""
    match node.args.get(node.list_port) if node.list_port else None:
        case InputRef(name):
            return name
        case NodeRef(source):
            return spec.index[source]
        case Lit(value):
            return items_of(value) or None
        case ListRef(items):
            return _parts(spec, node, items)
        case _:
            return None


def _parts(spec: WorkflowSpec, node: NodeSpec, items: tuple[Any, ...]) -> ListSource:
    parts: list[bytes | int] = []
    for item in items:
        match item:
            case Lit(value):
                parts.append(SHA256.of(value))
            case NodeRef(source) if spec.nodes[spec.index[source]].region in (
                "",
                node.region,
            ):
                parts.append(spec.index[source])
            case _:
                return None
    return tuple(parts) or None
