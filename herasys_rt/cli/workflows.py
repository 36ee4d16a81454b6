"""`herasys graph`: what a workflow compiles to, and what a run made of it."""

from __future__ import annotations

import json as jsonlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from herasys_rt.cli.options import JsonOption
from herasys_rt.cli.output import Output
from herasys_rt.errors import EnvironmentFaultError, UsageError

if TYPE_CHECKING:
    from herasys_rt.dsl.drawing import Drawing
    from herasys_rt.graph.spec import WorkflowSpec

_DOT_TIMEOUT_S = 30.0

TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE.py:NAME", help="A workflow in a Python file.", show_default=False
    ),
]
SvgOption = Annotated[
    Path | None,
    typer.Option(
        "--svg",
        metavar="FILE.svg",
        help="Write a picture, made by graphviz where its dot command is installed.",
        show_default=False,
    ),
]
MermaidOption = Annotated[
    bool, typer.Option("--mermaid", help="Print the Mermaid source also with --svg.")
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="REPORT.json",
        help="Draw a finished run from what 'herasys run --json' wrote: the way to see "
        "an agent's graph.",
        show_default=False,
    ),
]


def graph(
    target: TargetArgument = None,
    svg: SvgOption = None,
    mermaid: MermaidOption = False,
    run: RunOption = None,
    json: JsonOption = None,
) -> None:
    """Draw a workflow or a finished run, as Mermaid flowchart or picture; nothing runs.

    [bold]Examples[/bold]

    herasys graph examples/stdlib_rag.py:rag

    herasys graph examples/stdlib_rag.py:rag --svg rag.svg

    herasys graph --run report.json --svg run.svg
    """
    with Output(json) as output:
        from herasys_rt.dsl.mermaid import mermaid_of

        described, drawing = _described(target, run)
        chart = mermaid_of(drawing)
        drawn_by: str | None = None
        if svg is not None:
            drawn_by = _write_picture(drawing, svg)
            output.say(f"{svg} drawn by {drawn_by}")
        if not output.json and (svg is None or mermaid):
            output.write(chart)
        picture = {"svg": str(svg) if svg else None, "drawn_by": drawn_by}
        output.emit({**described, "mermaid": chart, **picture, "error": None})


def _described(target: str | None, run: Path | None) -> tuple[dict[str, Any], Drawing]:
    """What is drawn as JSON, and its drawing. Errors: `UsageError` and its kinds."""
    from herasys_rt.dsl.drawing import drawing_of, drawing_of_report
    from herasys_rt.dsl.loading import load_workflow

    if (target is None) == (run is None):
        raise UsageError(
            "say what to draw: either FILE.py:NAME or --run REPORT.json",
            hint="For example: herasys graph examples/hello.py:hello",
        )
    if target is None:
        assert run is not None
        report = _read_report(run)
        return {"run_id": report.get("run_id")}, drawing_of_report(report)
    spec = load_workflow(target).spec
    if spec.agent:
        raise UsageError(
            f"{spec.name!r} is an agent: its graph is known when a run has revealed it",
            hint=f"herasys run {target} --json report.json, then "
            "herasys graph --run report.json",
        )
    return _describe(spec), drawing_of(spec)


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report: Any = jsonlib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}", hint="Check the path.") from e
    except ValueError as e:
        raise UsageError(
            f"{path} holds no JSON: {e}",
            hint="Make a report with: herasys run FILE.py:NAME --json report.json",
        ) from e
    if not isinstance(report, dict):
        raise UsageError(
            f"{path} holds no report of a run",
            hint="Make one with: herasys run FILE.py:NAME --json report.json",
        )
    return report


def _write_picture(drawing: Drawing, path: Path) -> str:
    """Write an SVG; tells what drew it. Errors: `EnvironmentFaultError`."""
    from herasys_rt.dsl.svg import svg_of

    text = _by_graphviz(drawing)
    drawn_by = "graphviz" if text is not None else "the built-in layout"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or svg_of(drawing), encoding="utf-8")
    except OSError as e:
        raise EnvironmentFaultError(
            f"the picture {path} cannot be written: {e.strerror}",
            hint="Give a path that can be written.",
            path=str(path),
        ) from e
    return drawn_by


def _by_graphviz(drawing: Drawing) -> str | None:
    """The drawing as SVG by graphviz; None where there is none that works."""
    from herasys_rt.dsl.dot import dot_of

    command = shutil.which("dot")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "-Tsvg"],
            input=dot_of(drawing),
            capture_output=True,
            encoding="utf-8",
            timeout=_DOT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as e:
        print(f"graphviz does not work here: {e}", file=sys.stderr)
        return None
    return done.stdout


def _describe(spec: WorkflowSpec) -> dict[str, Any]:
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
                "region": node.region or None,
                "conditional": bool(node.guards),
            }
            for node in spec.nodes
        ],
        "edges": [
            {"source": edge.source, "target": edge.target, "port": edge.port}
            for edge in spec.edges
        ],
        "outputs": list(spec.outputs),
    }
