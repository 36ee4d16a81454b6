"""Drawings as SVG, without any other program: one file, readable on light and dark."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from herasys_rt.dsl.drawing import (
    Box,
    Drawing,
    Link,
    drawing_of,
    drawing_of_report,
)
from herasys_rt.dsl.layout import Route, Vertex, directions, lay_out
from herasys_rt.graph.spec import WorkflowSpec

_MARGIN = 16.0
_TITLE, _SMALL = 13.0, 11.0  # font sizes in pixels
_PAD_X, _PAD_Y = 12.0, 8.0
_LEADING = 1.35
_ASIDE = 6.0  # between a link and its label
_MOST_CHARACTERS = 44
_NARROW, _WIDE = frozenset("iljtfrI.,:;|!'()[]{} "), frozenset("mwMW@%&")

_STYLE = """
text { font-family: Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #1c1c1c; }
.title { font-size: 13px; font-weight: bold; }
.small { font-size: 11px; fill: #555555; }
.over { paint-order: stroke; stroke: #f6f6f6; stroke-width: 4px; }
.link { fill: none; stroke: #7a7a7a; stroke-width: 1.3; }
.dashed { stroke-dasharray: 5 4; }
.head { fill: #7a7a7a; }
.box { fill: #f6f6f6; stroke: #8a8a8a; stroke-width: 1.2; }
.input, .output { fill: #e3ecf9; stroke: #5b7fb5; }
.succeeded { fill: #dcf3e2; stroke: #2e7d43; }
.failed { fill: #f9dcdc; stroke: #b3261e; }
.cancelled, .skipped { fill: #ececec; stroke: #8a8a8a; stroke-dasharray: 4 3; }
.group { fill: #7a7a7a; fill-opacity: 0.07; stroke: #7a7a7a; stroke-dasharray: 6 4; }
@media (prefers-color-scheme: dark) {
  text { fill: #ededed; }
  .small { fill: #b9b9b9; }
  .over { stroke: #262626; }
  .box { fill: #2b2b2b; stroke: #9a9a9a; }
  .input, .output { fill: #24344d; stroke: #7ea3dc; }
  .succeeded { fill: #1e3b27; stroke: #63b57b; }
  .failed { fill: #4a2020; stroke: #e57f78; }
  .cancelled, .skipped { fill: #333333; stroke: #9a9a9a; }
}
"""


def to_svg(spec: WorkflowSpec) -> str:
    """A workflow as a standalone SVG document; ends in a newline."""
    return svg_of(drawing_of(spec))


def report_to_svg(report: Mapping[str, Any]) -> str:
    """A finished run as a standalone SVG document, from its ``--json`` report.

    Errors: `UsageError` for something that is no report.
    """
    return svg_of(drawing_of_report(report))


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle in pixels from the upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class PlacedLink:
    """A link with the points of its way, and where its label goes."""

    link: Link
    points: tuple[tuple[float, float], ...]
    label: Rect | None


@dataclass(frozen=True, slots=True)
class Placed:
    """A drawing with places: boxes and groups by id, links in order, all within
    ``width`` and ``height``."""

    width: float
    height: float
    boxes: Mapping[str, Rect]
    groups: Mapping[str, Rect]
    links: tuple[PlacedLink, ...]


def text_width(text: str, size: float) -> float:
    """Pixels that a line takes in a sans-serif font, rather too many than too few."""
    return size * sum(_advance(character) for character in text)


def _advance(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.1
    if character in _NARROW:
        return 0.4
    if character in _WIDE:
        return 1.0
    return 0.75 if character.isupper() or not character.isascii() else 0.62


# Placing


def placed(drawing: Drawing) -> Placed:
    """Where everything of a drawing goes."""
    return _Placing(drawing).result()


class _Placing:
    """Lays groups out by themselves, then the whole with each group as one vertex."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        self.links = _merged(drawing.links)
        self.group_of = {box.id: box.group for box in drawing.boxes}
        self.boxes = {box.id: Vertex(*_size(box)) for box in drawing.boxes}
        self.frames: dict[str, Vertex] = {}
        self.inner: dict[tuple[int, str], Route] = {}
        self.heads: dict[str, float] = {}
        self.rising = self._rising_links()
        for group in drawing.groups:
            self._lay_out_group(group.id, group.label)
        self.outer = [self._outer_route(i) for i in range(len(self.links))]
        free = [self.boxes[b.id] for b in drawing.boxes if not b.group]
        seen = [route for route in self.outer if route is not None]
        self.size = lay_out([*free, *self.frames.values()], seen)

    def result(self) -> Placed:
        """Everything in the coordinates of the whole."""
        boxes: dict[str, Rect] = {}
        for box in self.drawing.boxes:
            vertex = self.boxes[box.id]
            x, y = self._corner(box.group)
            at_x, at_y = x + vertex.left, y + vertex.top
            boxes[box.id] = Rect(at_x, at_y, vertex.width, vertex.height)
        groups = {
            name: Rect(_MARGIN + v.left, _MARGIN + v.top, v.width, v.height)
            for name, v in self.frames.items()
        }
        return Placed(
            self.size.width + 2 * _MARGIN,
            self.size.height + 2 * _MARGIN,
            boxes,
            groups,
            tuple(self._placed_link(i) for i in range(len(self.links))),
        )

    def _rising_links(self) -> set[int]:
        """Links between groups or boxes that will lead upwards, to close a cycle."""
        ends = [
            tuple(self.group_of[box] or box for box in (link.source, link.target))
            for link in self.links
        ]
        free = [box.id for box in self.drawing.boxes if not box.group]
        names = [*free, *(group.id for group in self.drawing.groups)]
        vertices = {name: Vertex(0, 0) for name in names}
        outer = [i for i, (source, target) in enumerate(ends) if source != target]
        routes = [Route(vertices[ends[i][0]], vertices[ends[i][1]]) for i in outer]
        falling = directions(list(vertices.values()), routes)
        return {i for i, falls in zip(outer, falling, strict=True) if not falls}

    def _lay_out_group(self, name: str, label: str) -> None:
        members = [b.id for b in self.drawing.boxes if b.group == name]
        vertices = [self.boxes[member] for member in members]
        routes: list[Route] = []
        ports: list[Vertex] = []
        for i, link in enumerate(self.links):
            inside = link.source in members, link.target in members
            if inside == (True, True):
                route = Route(
                    self.boxes[link.source], self.boxes[link.target], _label_size(link)
                )
                self.inner[i, name] = route
            elif any(inside):
                on_top = inside[1] != (i in self.rising)
                port = Vertex(2.0, 0.0, first=on_top, last=not on_top)
                ports.append(port)
                mine = self.boxes[link.target if inside[1] else link.source]
                route = Route(port, mine) if on_top else Route(mine, port)
                self.inner[i, name] = route
            else:
                continue
            routes.append(route)
        size = lay_out([*vertices, *ports], routes)
        head = _SMALL * _LEADING + _PAD_Y
        self.heads[name] = head
        least = text_width(label, _SMALL) + 2 * _PAD_X
        width = max(size.width + 2 * _PAD_X, least)
        shift = (width - 2 * _PAD_X - size.width) / 2
        for vertex in [*vertices, *ports]:
            vertex.x += shift
        for route in routes:
            route.points = [(x + shift, y) for x, y in route.points]
            if route.label is not None:
                route.label.x += shift
        self.frames[name] = Vertex(width, size.height + head + 2 * _PAD_Y)

    def _outer_route(self, i: int) -> Route | None:
        link = self.links[i]
        groups = self.group_of[link.source], self.group_of[link.target]
        if groups[0] and groups[0] == groups[1]:
            return None
        source, target = (
            self.frames[group] if group else self.boxes[box]
            for box, group in zip((link.source, link.target), groups, strict=True)
        )
        return Route(
            source,
            target,
            _label_size(link),
            at_source=self._port_offset(i, groups[0]),
            at_target=self._port_offset(i, groups[1]),
        )

    def _port_offset(self, i: int, group: str) -> float | None:
        """Where a link crosses the frame of a group, from the frame's centre."""
        if not group:
            return None
        route = self.inner[i, group]
        port = route.source if route.source.first else route.target  # which is last then
        return port.x + _PAD_X - self.frames[group].width / 2

    def _corner(self, group: str) -> tuple[float, float]:
        """The corner from which a group's own coordinates count."""
        if not group:
            return _MARGIN, _MARGIN
        frame = self.frames[group]
        x, y = _MARGIN + frame.left + _PAD_X, _MARGIN + frame.top + self.heads[group]
        return x, y + _PAD_Y

    def _placed_link(self, i: int) -> PlacedLink:
        link, outer = self.links[i], self.outer[i]
        source_group, target_group = self.group_of[link.source], self.group_of[link.target]
        points: list[tuple[float, float]] = []
        label: Rect | None = None
        for route, group in (
            (self.inner.get((i, source_group)), source_group),
            (outer, ""),
            (
                self.inner.get((i, target_group)) if target_group != source_group else None,
                target_group,
            ),
        ):
            if route is None:
                continue
            x, y = self._corner(group)
            # Inside of a group a rising link was laid out downwards.
            turned = bool(group) and i in self.rising
            way = route.points[::-1] if turned else route.points
            points.extend((px + x, py + y) for px, py in way)
            if route.label is not None:
                spot = route.label
                label = Rect(spot.left + x, spot.top + y, spot.width, spot.height)
        return PlacedLink(link, tuple(points), label)


def _merged(links: Iterable[Link]) -> list[Link]:
    """Links between the same two boxes as one, their labels side by side."""
    labels: dict[tuple[str, str, bool], list[str]] = {}
    for link in links:
        known = labels.setdefault((link.source, link.target, link.dashed), [])
        if link.label and link.label not in known:
            known.append(link.label)
    return [
        Link(source, target, _cut(", ".join(texts)), dashed)
        for (source, target, dashed), texts in labels.items()
        if source != target
    ]


def _cut(text: str) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text)
    if len(clean) <= _MOST_CHARACTERS:
        return clean
    return clean[: _MOST_CHARACTERS - 1] + "\u2026"


def _size(box: Box) -> tuple[float, float]:
    widths = [
        text_width(_cut(line), _TITLE * 1.08 if i == 0 else _SMALL)  # the title is bold
        for i, line in enumerate(box.lines)
    ]
    small = max(len(box.lines) - 1, 0)
    height = (_TITLE + small * _SMALL) * _LEADING
    return max([*widths, 40.0]) + 2 * _PAD_X, height + 2 * _PAD_Y


def _label_size(link: Link) -> tuple[float, float] | None:
    if not link.label:
        return None
    return text_width(link.label, _SMALL) + _ASIDE + 2.0, _SMALL * _LEADING


# Writing


def svg_of(drawing: Drawing) -> str:
    """A drawing as a standalone SVG document; ends in a newline."""
    return "\n".join(_lines(drawing, placed(drawing))) + "\n"


def _lines(drawing: Drawing, at: Placed) -> Iterator[str]:
    width, height = f"{at.width:.0f}", f"{at.height:.0f}"
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">'
    )
    yield f"<title>{_text(drawing.title)}</title>"
    yield f"<style>{_STYLE}</style>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="head" d="M0,0 L8,4 L0,8 z"/>'
        "</marker></defs>"
    )
    for group in drawing.groups:
        yield _rect(at.groups[group.id], "group", 8)
    for link in at.links:
        yield _path(link)
    for group in drawing.groups:
        rect = at.groups[group.id]
        x, y = rect.x + _PAD_X, rect.y + _PAD_Y / 2 + _SMALL
        yield _line(x, y, _cut(group.label), "small over", "start")
    for box in drawing.boxes:
        yield from _box(box, at.boxes[box.id])
    for link in at.links:
        if link.label is not None:
            x, y = link.label.x + _ASIDE, link.label.y + _SMALL
            yield _line(x, y, link.link.label, "small", "start")
    yield "</svg>"


def _box(box: Box, at: Rect) -> Iterator[str]:
    classes = " ".join(part for part in ("box", box.kind, box.state) if part.isalpha())
    yield _rect(at, classes, 8 if box.kind == "node" else at.height / 2)
    middle, y = at.x + at.width / 2, at.y + _PAD_Y + _TITLE
    for i, line in enumerate(box.lines):
        yield _line(middle, y, _cut(line), "title" if i == 0 else "small")
        y += _SMALL * _LEADING if i else _SMALL * _LEADING + 1


def _rect(at: Rect, classes: str, radius: float) -> str:
    return (
        f'<rect class="{classes}" x="{at.x:.1f}" y="{at.y:.1f}" width="{at.width:.1f}" '
        f'height="{at.height:.1f}" rx="{radius:.1f}"/>'
    )


def _line(x: float, y: float, text: str, style: str, anchor: str = "middle") -> str:
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{_text(text)}</text>"
    )


def _path(link: PlacedLink) -> str:
    (x, y), *rest = link.points
    steps = [f"M{x:.1f},{y:.1f}"]
    for to_x, to_y in rest:
        if abs(to_x - x) < 0.5:
            steps.append(f"L{to_x:.1f},{to_y:.1f}")
        else:
            middle = (y + to_y) / 2
            steps.append(
                f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} {to_x:.1f},{to_y:.1f}"
            )
        x, y = to_x, to_y
    dashed = " dashed" if link.link.dashed else ""
    return f'<path class="link{dashed}" d="{" ".join(steps)}" marker-end="url(#head)"/>'


def _text(text: str) -> str:
    """Text as it may stand in XML: marks escaped, control characters left out."""
    return escape("".join(c for c in text if c.isprintable()))
