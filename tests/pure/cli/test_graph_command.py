"""`herasys graph`: charts and pictures of workflows and of runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from herasys_rt.cli.shell import execute

FLOW = """
from herasys_rt import agent, map_over, workflow
from operators import generate

@workflow
def notes(words: list[str]):
    said = map_over(words, lambda word: generate("{word}", word=word))
    return generate("{said}", said=said)

@agent
async def think(run, question: str):
    return await run.call(generate("{q}", q=question))
"""
REPORT = {
    "run_id": "run-7",
    "nodes": [
        {"id": "plan", "operator": "generate@1", "state": "succeeded"},
        {"id": "act", "operator": "tool@1", "state": "failed", "parents": ["plan"]},
    ],
}


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "drawn_flow.py"
    path.write_text(FLOW)
    return str(path)


@pytest.fixture
def no_dot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_region_is_in_the_chart_and_in_the_json(target, capfd):
    assert execute(["graph", f"{target}:notes"]) == 0
    assert "subgraph g0" in capfd.readouterr().out
    assert execute(["graph", f"{target}:notes", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [node["region"] for node in told["nodes"]] == ["map_over", None]
    assert (told["svg"], told["drawn_by"]) == (None, None)


def test_a_picture_is_drawn_without_graphviz(target, tmp_path, capfd, no_dot):
    picture = tmp_path / "new" / "notes.svg"
    assert execute(["graph", f"{target}:notes", "--svg", str(picture)]) == 0
    told = capfd.readouterr()
    assert told.out == ""
    assert "drawn by the built-in layout" in told.err
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")


def test_a_graphviz_that_fails_is_told_and_done_without(target, tmp_path, capfd, no_dot):
    broken = tmp_path / "dot"
    broken.write_text("#!/bin/false\n")
    broken.chmod(0o755)
    picture = tmp_path / "notes.svg"
    assert execute(["graph", f"{target}:notes", "--svg", str(picture)]) == 0
    assert "graphviz does not work here" in capfd.readouterr().err
    assert picture.read_text().startswith("<?xml")


def test_graphviz_draws_where_it_is(target, tmp_path, capfd, no_dot):
    fake = tmp_path / "dot"
    fake.write_text('#!/bin/sh\nread first\necho "<svg>$first</svg>"\n')
    fake.chmod(0o755)
    picture = tmp_path / "notes.svg"
    assert execute(["graph", f"{target}:notes", "--svg", str(picture), "--mermaid"]) == 0
    told = capfd.readouterr()
    assert told.out.startswith("flowchart TD")
    assert "drawn by graphviz" in told.err
    assert picture.read_text() == '<svg>digraph "notes" {</svg>\n'


def test_a_finished_run_is_drawn_from_its_report(tmp_path, capfd):
    report = tmp_path / "report.json"
    report.write_text(json.dumps(REPORT))
    assert execute(["graph", "--run", str(report)]) == 0
    assert "n0 --> n1" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "cannot read"),
        ("{", "holds no JSON"),
        ("[]", "holds no report"),
        ("{}", "no rep"),
    ],
)
def test_something_else_than_a_report_is_refused(tmp_path, capfd, content, line):
    report = tmp_path / "report.json"
    if content is not None:
        report.write_text(content)
    assert execute(["graph", "--run", str(report)]) == 2
    assert line in capfd.readouterr().err


def test_an_agent_is_drawn_from_its_runs(target, capfd):
    assert execute(["graph", f"{target}:think"]) == 2
    told = capfd.readouterr().err
    assert "'think' is an agent" in told
    assert "herasys graph --run report.json" in told


@pytest.mark.parametrize("both", [True, False])
def test_one_thing_is_drawn(target, capfd, both):
    words = [f"{target}:notes", "--run", "x.json"] if both else []
    assert execute(["graph", *words]) == 2
    assert "say what to draw" in capfd.readouterr().err


def test_a_picture_that_cannot_be_written_is_told(target, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    picture = tmp_path / "file" / "notes.svg"
    assert execute(["graph", f"{target}:notes", "--svg", str(picture)]) == 1
    assert "cannot be written" in capfd.readouterr().err
