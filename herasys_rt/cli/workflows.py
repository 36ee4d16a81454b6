"""`herasys graph`: what a workflow compiles to."""

from __future__ import annotations

from typing import Any

from herasys_rt.cli.options import JsonOption, WorkflowArgument
from herasys_rt.cli.output import Output


def graph(target: WorkflowArgument, json: JsonOption = None) -> None:
    """Draw a workflow as a Mermaid flowchart; nothing runs.

    [bold]Examples[/bold]

    herasys graph examples/stdlib_rag.py:rag

    herasys graph examples/stdlib_rag.py:rag --json
    """
    with Output(json) as output:
        from herasys_rt.dsl.loading import load_workflow
        from herasys_rt.dsl.mermaid import to_mermaid

        spec = load_workflow(target).spec
        chart = to_mermaid(spec)
        if not output.json:
            output.write(chart.rstrip("\n") + "\n")
        output.emit({**_describe(spec), "mermaid": chart, "error": None})


def _describe(spec: Any) -> dict[str, Any]:
    """A spec as JSON: names, types and edges."""
    return {
        "workflow": spec.name,
        "id": spec.id,
        "inputs": [
            {
                "name": declared.name,
                "type": declared.type.value,
                "required": declared.required,
                "default": declared.default,
            }
            for declared in spec.inputs
        ],
        "nodes": [
            {
                "id": node.id,
                "operator": node.operator,
                "verb": node.verb,
                "resource": node.resource,
                "model": node.model,
                "purity": node.purity,
                "output": node.output.value,
            }
            for node in spec.nodes
        ],
        "edges": [
            {"source": edge.source, "target": edge.target, "port": edge.port}
            for edge in spec.edges
        ],
        "outputs": list(spec.outputs),
    }
