"""Drawings: what is on them, and that nothing lies upon anything else."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.dsl import edge, map_over, operator, to_mermaid, when, workflow
from herasys_rt.dsl.dot import dot_of
from herasys_rt.dsl.drawing import (
    Box,
    Drawing,
    Group,
    Link,
    drawing_of,
    drawing_of_report,
)
from herasys_rt.dsl.mermaid import mermaid_of, report_to_mermaid
from herasys_rt.dsl.svg import Rect, placed, report_to_svg, svg_of, text_width, to_svg
from herasys_rt.errors import UsageError
from herasys_rt.graph.types import PortType


@operator(
    name="d.say",
    version="1",
    verb="say",
    resource="cpu",
    output=PortType.TEXT,
    ports={"text": edge(PortType.ANY)},
)
def say(text: Any, *, model: str | None = None, label: str = ""):
    """Says it."""


@workflow
def flow(words: list[str], deep: bool):
    """Everything that is drawn."""
    said = map_over(words, lambda w: say(say(w, label="first"), label="second"))
    return when(deep, lambda: say(said, label="a"), lambda: say("no", label="b"))


REPORT: dict[str, Any] = {
    "run_id": "run-1",
    "status": "failed",
    "nodes": [
        {"id": "plan", "operator": "generate@1", "state": "succeeded", "run_s": 0.4567},
        {
            "id": "look <up>",
            "operator": "search@1",
            "state": "failed",
            "parents": ["plan", "gone"],
        },
        {"id": "again", "operator": "", "state": "joined", "fused_into": "r/n"},
    ],
}


def test_a_workflow_is_drawn_with_its_regions_and_conditions():
    drawing = drawing_of(flow.spec)
    assert drawing.groups == (Group("g0", "map_over: each of words"),)
    assert [(box.id, box.kind, box.group) for box in drawing.boxes] == [
        ("i0", "input", ""),
        ("i1", "input", ""),
        ("n0", "node", "g0"),
        ("n1", "node", "g0"),
        ("n2", "node", ""),
        ("n3", "node", ""),
        ("o0", "output", ""),
    ]
    assert drawing.links == (
        Link("i0", "n0", "text"),
        Link("n0", "n1", "text"),
        Link("n1", "n2", "text"),
        Link("i1", "n2", "if true", dashed=True),
        Link("i1", "n3", "if false", dashed=True),
        Link("n2", "o0"),
        Link("n3", "o0"),
    )


def test_a_node_that_ignores_the_item_still_hangs_on_the_list():
    @workflow
    def rolls(words: list[str]):
        return map_over(words, lambda w: [w, say("x")])

    links = drawing_of(rolls.spec).links
    assert Link("i0", "n0", "each") in links


def test_mermaid_has_subgraphs_and_dashed_edges():
    chart = to_mermaid(flow.spec)
    assert '    subgraph g0["map_over: each of words"]\n        n0["first' in chart
    assert '    i1 -.->|"if true"| n2\n' in chart
    assert flow.to_mermaid() == chart


def test_a_run_is_drawn_from_its_report():
    drawing = drawing_of_report(REPORT)
    assert [box.lines for box in drawing.boxes] == [
        ("plan", "generate@1", "succeeded 0.457 s"),
        ("look <up>", "search@1", "failed"),
        ("again", "joined (joined)"),
    ]
    assert drawing.links == (Link("n0", "n1"),)
    chart = report_to_mermaid(REPORT)
    assert "look #60;up#62;" in chart
    assert "class n1 failed" in chart
    assert "look &lt;up&gt;" in report_to_svg(REPORT)


@pytest.mark.parametrize("wrong", [{}, {"nodes": 3}, {"nodes": ["x"]}, {"nodes": [{}]}])
def test_something_else_than_a_report_is_refused(wrong):
    with pytest.raises(UsageError, match="no report of a run"):
        drawing_of_report(wrong)


def test_the_picture_is_a_document_of_its_own():
    text = to_svg(flow.spec)
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "href" not in text
    assert "prefers-color-scheme: dark" in text
    words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"first", "second", "deep: bool", "if true", "output"} <= words


def test_odd_names_stay_inside_their_marks():
    odd = Box("n0", ('</text>"\x00\x1b<&', "\u4e2d\u6587\U0001f600" * 40))
    text = svg_of(Drawing("a & b < c", (odd,), ()))
    root = ET.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "\u2026" in text
    assert "\x00" not in text


def test_dot_quotes_what_it_is_given():
    odd = Box("n0", ('a"b\\c', "d"), state="failed", group="g0")
    source = dot_of(
        Drawing("x", (odd,), (Link("n0", "n0", 'l"', True),), (Group("g0", "g"),))
    )
    assert r'label="a\"b\\c\nd"' in source
    assert "style=dashed" in source
    if shutil.which("dot"):
        subprocess.run(
            ["dot", "-Tsvg"], input=source.encode(), check=True, capture_output=True
        )


def test_text_is_measured_rather_too_wide():
    assert text_width("iiii", 10) < text_width("mmmm", 10)
    assert text_width("\u4e2d", 10) > text_width("a", 10)
    assert text_width("e\u0301", 10) == text_width("e", 10)


# The layout, whatever is drawn


@st.composite
def drawings(draw: st.DrawFn) -> Drawing:
    count = draw(st.integers(1, 12))
    groups = [Group(f"g{i}", "group " * (i + 1)) for i in range(draw(st.integers(0, 2)))]
    names = ["", *(group.id for group in groups)]
    boxes = [
        Box(
            f"n{i}",
            tuple(draw(st.lists(st.text("aW \u4e2d", max_size=9), min_size=1, max_size=3))),
            draw(st.sampled_from(["node", "input", "output"])),
            group=draw(st.sampled_from(names)),
        )
        for i in range(count)
    ]
    used = {box.group for box in boxes}
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    ends = draw(st.lists(pairs, max_size=20))
    if not draw(st.booleans()):  # without cycles, as nearly always
        ends = [(min(pair), max(pair)) for pair in ends]
    links = [
        Link(
            f"n{a}",
            f"n{b}",
            draw(st.sampled_from(["", "x", "a label"])),
            draw(st.booleans()),
        )
        for a, b in ends
    ]
    kept = tuple(group for group in groups if group.id in used)
    return Drawing("d", tuple(boxes), tuple(links), kept)


def overlap(a: Rect, b: Rect, slack: float = 0.01) -> bool:
    return (
        a.x + slack < b.x + b.width
        and b.x + slack < a.x + a.width
        and a.y + slack < b.y + b.height
        and b.y + slack < a.y + a.height
    )


def inside(a: Rect, b: Rect) -> bool:
    return (
        b.x - 0.01 <= a.x
        and b.y - 0.01 <= a.y
        and a.x + a.width <= b.x + b.width + 0.01
        and a.y + a.height <= b.y + b.height + 0.01
    )


@given(drawings())
def test_boxes_labels_and_groups_do_not_overlap(drawing):
    at = placed(drawing)
    whole = Rect(0, 0, at.width, at.height)
    labels = [link.label for link in at.links if link.label is not None]
    rects = [*at.boxes.values(), *labels]
    assert all(inside(rect, whole) for rect in [*rects, *at.groups.values()])
    assert not any(overlap(a, b) for a, b in itertools.combinations(rects, 2))
    assert not any(overlap(a, b) for a, b in itertools.combinations(at.groups.values(), 2))
    for box in drawing.boxes:
        for group, frame in at.groups.items():
            mine = box.group == group
            assert (
                inside(at.boxes[box.id], frame)
                if mine
                else not overlap(at.boxes[box.id], frame)
            )


@given(drawings())
def test_links_lead_from_box_to_box_and_past_all_others(drawing):
    at = placed(drawing)
    wanted = {(k.source, k.target) for k in drawing.links if k.source != k.target}
    assert {(k.link.source, k.link.target) for k in at.links} == wanted
    for link in at.links:
        source, target = at.boxes[link.link.source], at.boxes[link.link.target]
        (x, y), (to_x, to_y) = link.points[0], link.points[-1]
        assert source.x <= x <= source.x + source.width
        assert any(abs(y - edge) < 0.01 for edge in (source.y, source.y + source.height))
        assert target.x <= to_x <= target.x + target.width
        assert any(abs(to_y - edge) < 0.01 for edge in (target.y, target.y + target.height))
        for a, b in itertools.pairwise(link.points):
            step = Rect(
                min(a[0], b[0]), min(a[1], b[1]), abs(a[0] - b[0]), abs(a[1] - b[1])
            )
            for box in at.boxes.values():
                assert not overlap(step, box, 0.02)


@given(drawings())
def test_every_drawing_is_well_formed_and_always_the_same(drawing):
    text = svg_of(drawing)
    ET.fromstring(text)
    assert svg_of(drawing) == text
    assert mermaid_of(drawing).startswith("flowchart TD\n")
    assert dot_of(drawing).endswith("}\n")
