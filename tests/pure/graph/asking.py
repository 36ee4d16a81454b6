"""Nodes of one small operator, for tests of what names work."""

from __future__ import annotations

import msgspec

from herasys_rt.graph.spec import Arg, NodeSpec, Port
from herasys_rt.graph.types import PortType

PORTS = (
    Port("text", PortType.ANY),
    Port("heat", PortType.FLOAT, required=False, default=0.0, is_param=True),
    Port("seed", PortType.INT, required=False, is_param=True, optional=True),
    Port("shelf", PortType.TEXT, required=False, default="docs", is_param=True),
)


def node(name: str = "a", region: str = "", **args: Arg) -> NodeSpec:
    """A node that asks, with these arguments."""
    return NodeSpec(name, "ask@1", "do", "llm", args, PORTS, PortType.TEXT, region=region)


def change(original: NodeSpec, **fields: object) -> NodeSpec:
    """The node with other fields."""
    return msgspec.structs.replace(original, **fields)
