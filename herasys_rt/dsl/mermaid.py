"""Drawings as Mermaid flowcharts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from herasys_rt.dsl.drawing import Box, Drawing, drawing_of, drawing_of_report
from herasys_rt.graph.spec import WorkflowSpec

# Mermaid reads quotes, brackets and its own marks even inside quoted labels.
_ESCAPES = {ord(c): f"#{ord(c)};" for c in "#&<>\"'`|[]{}()\\;"} | {ord("\n"): " "}
_STATES = {
    "succeeded": "fill:#d7f0dd,stroke:#2e7d43,color:#10331b",
    "failed": "fill:#f9d7d7,stroke:#b3261e,color:#4a0d0a",
    "cancelled": "fill:#e6e6e6,stroke:#6f6f6f,color:#303030",
    "skipped": "fill:#e6e6e6,stroke:#6f6f6f,color:#303030,stroke-dasharray:4 3",
}


def to_mermaid(spec: WorkflowSpec) -> str:
    """A workflow's flowchart, a line per input, node, output and edge; ends in a newline.

    A node shows its id, operator and model; an edge the port that it feeds. Regions are
    subgraphs, conditions dashed edges.
    """
    return mermaid_of(drawing_of(spec))


def report_to_mermaid(report: Mapping[str, Any]) -> str:
    """The flowchart of a finished run from its ``--json`` report.

    Errors: `UsageError` for something that is no report.
    """
    return mermaid_of(drawing_of_report(report))


def mermaid_of(drawing: Drawing) -> str:
    """A drawing as the source of a flowchart."""
    return "\n".join(_lines(drawing)) + "\n"


def _lines(drawing: Drawing) -> Iterator[str]:
    yield "flowchart TD"
    drawn: set[str] = set()
    for box in drawing.boxes:
        if not box.group:
            yield f"    {_box(box)}"
        elif box.group not in drawn:
            drawn.add(box.group)
            label = next(group.label for group in drawing.groups if group.id == box.group)
            yield f'    subgraph {box.group}["{_label(label)}"]'
            for member in drawing.boxes:
                if member.group == box.group:
                    yield f"        {_box(member)}"
            yield "    end"
    for link in drawing.links:
        arrow = "-.->" if link.dashed else "-->"
        shown = f'|"{_label(link.label)}"|' if link.label else ""
        yield f"    {link.source} {arrow}{shown} {link.target}"
    states = dict.fromkeys(box.state for box in drawing.boxes if box.state in _STATES)
    for state in states:
        members = ",".join(box.id for box in drawing.boxes if box.state == state)
        yield f"    classDef {state} {_STATES[state]}"
        yield f"    class {members} {state}"


def _box(box: Box) -> str:
    text = "<br/>".join(_label(line) for line in box.lines)
    opening, closing = ("[", "]") if box.kind == "node" else ("([", "])")
    return f'{box.id}{opening}"{text}"{closing}'


def _label(text: str) -> str:
    return text.translate(_ESCAPES)
