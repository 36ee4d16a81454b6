"""Drawings in the language of graphviz, which lays out better than anything built in."""

from __future__ import annotations

from collections.abc import Iterator

from herasys_rt.dsl.drawing import Box, Drawing

_FONT = 'fontname="Helvetica,Arial,sans-serif"'
_FILLS = {
    "input": "#dde7f7",
    "output": "#dde7f7",
    "succeeded": "#d7f0dd",
    "failed": "#f9d7d7",
    "cancelled": "#e6e6e6",
    "skipped": "#e6e6e6",
}


def dot_of(drawing: Drawing) -> str:
    """A drawing as a digraph; `dot -Tsvg` draws it on a transparent ground."""
    return "\n".join(_lines(drawing)) + "\n"


def _lines(drawing: Drawing) -> Iterator[str]:
    yield f"digraph {_quoted(drawing.title)} {{"
    yield "  bgcolor=transparent;"
    yield f'  node [shape=box style="rounded,filled" fillcolor="#f6f6f6" {_FONT}];'
    yield f'  edge [color="#7a7a7a" fontcolor="#7a7a7a" fontsize=11 {_FONT}];'
    for box in drawing.boxes:
        if not box.group:
            yield f"  {_box(box)}"
    for group in drawing.groups:
        yield f"  subgraph {_quoted('cluster_' + group.id)} {{"
        yield f"    label={_quoted(group.label)}; {_FONT}; fontsize=11;"
        yield '    style="rounded,dashed"; color="#7a7a7a"; fontcolor="#7a7a7a";'
        for box in drawing.boxes:
            if box.group == group.id:
                yield f"    {_box(box)}"
        yield "  }"
    for link in drawing.links:
        style = " style=dashed" if link.dashed else ""
        label = f" label={_quoted(' ' + link.label)}" if link.label else ""
        yield f"  {link.source} -> {link.target} [{(label + style).strip()}];"
    yield "}"


def _box(box: Box) -> str:
    fill = _FILLS.get(box.state) or _FILLS.get(box.kind)
    colour = f" fillcolor={_quoted(fill)}" if fill else ""
    return f"{box.id} [label={_quoted(chr(10).join(box.lines))}{colour}];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
