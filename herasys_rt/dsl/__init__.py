"""Declaring work: `workflow` for graphs, `operator` for what their nodes are."""

from herasys_rt.dsl.mermaid import to_mermaid
from herasys_rt.dsl.operator import (
    OPTIONS,
    Call,
    Operator,
    discover,
    edge,
    find_operator,
    operator,
    param,
)
from herasys_rt.dsl.symbols import Node, Symbol
from herasys_rt.dsl.workflow import Workflow, workflow

__all__ = [
    "OPTIONS",
    "Call",
    "Node",
    "Operator",
    "Symbol",
    "Workflow",
    "discover",
    "edge",
    "find_operator",
    "operator",
    "param",
    "to_mermaid",
    "workflow",
]
