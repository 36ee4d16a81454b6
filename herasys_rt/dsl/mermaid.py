"""A workflow as a Mermaid flowchart: inputs, nodes, outputs and the ports between."""

from __future__ import annotations

from herasys_rt.graph.spec import Arg, InputRef, ListRef, NodeRef, NodeSpec, WorkflowSpec

# Mermaid reads quotes, brackets and its own marks even inside quoted labels.
_ESCAPES = {ord(c): f"#{ord(c)};" for c in "#&<>\"'`|[]{}()\\;"} | {ord("\n"): " "}


def to_mermaid(spec: WorkflowSpec) -> str:
    """The flowchart's source, a line per input, node, output and edge; ends in a newline.

    A node shows its id, operator and model; an edge the port that it feeds.
    """
    boxes = {f"in {item.name}": f"i{i}" for i, item in enumerate(spec.inputs)}
    boxes |= {f"node {node.id}": f"n{i}" for i, node in enumerate(spec.nodes)}
    lines = ["flowchart TD"]
    for i, item in enumerate(spec.inputs):
        lines.append(f'    i{i}(["{_label(f"{item.name}: {item.type.value}")}"])')
    for i, node in enumerate(spec.nodes):
        lines.append(f'    n{i}["{_node_label(node)}"]')
    for i, name in enumerate(spec.outputs):
        lines.append(f'    o{i}(["{_label(name)}"])')
    for i, node in enumerate(spec.nodes):
        for port, arg in node.args.items():
            shown = _label(port.removeprefix("var:"))
            for source in _sources(arg):
                lines.append(f'    {boxes[source]} -->|"{shown}"| n{i}')
    for i, arg in enumerate(spec.outputs.values()):
        lines.extend(f"    {boxes[source]} --> o{i}" for source in _sources(arg))
    return "\n".join(lines) + "\n"


def _node_label(node: NodeSpec) -> str:
    parts = [node.id, node.operator, *([node.model] if node.model else [])]
    return "<br/>".join(_label(part) for part in parts)


def _label(text: str) -> str:
    return text.translate(_ESCAPES)


def _sources(arg: Arg) -> list[str]:
    items = arg.items if isinstance(arg, ListRef) else (arg,)
    found: list[str] = []
    for item in items:
        if isinstance(item, InputRef):
            found.append(f"in {item.name}")
        elif isinstance(item, NodeRef):
            found.append(f"node {item.node}")
    return list(dict.fromkeys(found))
