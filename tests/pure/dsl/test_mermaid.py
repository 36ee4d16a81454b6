"""The drawn graph."""

from __future__ import annotations

from herasys_rt.dsl import to_mermaid
from herasys_rt.graph.spec import (
    InputRef,
    InputSpec,
    ListRef,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType


def test_inputs_nodes_outputs_and_ports_are_drawn():
    ports = (Port("text", PortType.TEXT),)
    args = {"var:context": ListRef((NodeRef("a"), InputRef("q"), Lit(1))), "n": Lit(1)}
    spec = WorkflowSpec(
        "flow",
        (InputSpec("q", PortType.TEXT),),
        (
            NodeSpec("a", "say@1", "v", "r", {"text": InputRef("q")}, ports, PortType.TEXT),
            NodeSpec("b", "say@1", "v", "r", args, ports, PortType.TEXT, model="org/m"),
        ),
        {"output": NodeRef("b")},
    )
    assert to_mermaid(spec).splitlines() == [
        "flowchart TD",
        '    i0(["q: text"])',
        '    n0["a<br/>say@1"]',
        '    n1["b<br/>say@1<br/>org/m"]',
        '    o0(["output"])',
        '    i0 -->|"text"| n0',
        '    n0 -->|"context"| n1',
        '    i0 -->|"context"| n1',
        "    n1 --> o0",
    ]


def test_names_cannot_break_out_of_their_labels():
    node = NodeSpec('a"]--><b>|`x;\n#', "o@1", "v", "r", {}, (), PortType.TEXT)
    spec = WorkflowSpec("flow", (), (node,), {"output": NodeRef(node.id)})
    label = to_mermaid(spec).splitlines()[1]
    inner = label.removeprefix('    n0["').removesuffix('"]').replace("<br/>", "")
    assert not set(inner) & set('"<>[]|`\n')
    assert "#34;#93;--#62;" in inner
