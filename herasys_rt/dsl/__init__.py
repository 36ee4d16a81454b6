"""Declaring work: `workflow` for graphs, `operator` for what their nodes are."""

from herasys_rt.dsl.agent import Agent, AgentRun, agent
from herasys_rt.dsl.control import (
    all_of,
    any_of,
    as_text,
    contains,
    equals,
    flatten,
    is_empty,
    join,
    length,
    less_than,
    map_over,
    more_than,
    negate,
    texts_of,
    when,
)
from herasys_rt.dsl.mermaid import to_mermaid
from herasys_rt.dsl.operator import (
    Call,
    Operator,
    discover,
    edge,
    find_operator,
    operator,
    param,
)
from herasys_rt.dsl.options import OPTIONS, Options, retry
from herasys_rt.dsl.symbols import Node, Symbol
from herasys_rt.dsl.tool import Tool, python_operator, tool
from herasys_rt.dsl.workflow import Workflow, workflow

__all__ = [
    "OPTIONS",
    "Agent",
    "AgentRun",
    "Call",
    "Node",
    "Operator",
    "Options",
    "Symbol",
    "Tool",
    "Workflow",
    "agent",
    "all_of",
    "any_of",
    "as_text",
    "contains",
    "discover",
    "edge",
    "equals",
    "find_operator",
    "flatten",
    "is_empty",
    "join",
    "length",
    "less_than",
    "map_over",
    "more_than",
    "negate",
    "operator",
    "param",
    "python_operator",
    "retry",
    "texts_of",
    "to_mermaid",
    "tool",
    "when",
    "workflow",
]
