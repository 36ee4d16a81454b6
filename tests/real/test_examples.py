"""Every example on the real engines; each test looks at what only a correct run has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from examples import all as examples
from examples.long_document import summarise
from examples.mixed import run_mixed
from examples.react_agent import assistant
from examples.self_refine import refine
from examples.stdlib_rag import rag, rag_hybrid, rag_rerank
from examples.tree_search import search
from examples.web_search_agent import research
from herasys_rt import Client, connect

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with connect() as client:
        examples.prepare(client)
        yield client


def operators(report: dict[str, Any]) -> list[str]:
    return [node["operator"].partition("@")[0] for node in report["nodes"]]


@pytest.mark.parametrize("flow", [rag, rag_rerank, rag_hybrid], ids=lambda flow: flow.name)
def test_the_module_asked_about_is_among_the_sources(client: Client, flow: Any):
    report = client.submit(flow, question=examples.QUESTION).report(120)
    assert report["error"] is None
    assert "textwrap" in [source["source"] for source in report["sources"]]
    assert len(report["sources"]) == 4


def test_the_web_search_agent_searches_and_answers_from_what_it_found(client: Client):
    run = client.submit(research, question="Who wrote the first program?")
    report = run.report(120)
    assert report["error"] is None
    assert operators(report).count("web_search") == 2
    assert "https://example.org/ada" in [s["source"] for s in report["sources"]]
    last = report["nodes"][-1]
    assert last["id"].endswith("/synthesise")
    assert all("web_search" in parent for parent in last["parents"])


def test_the_react_agent_calls_the_tool_with_the_right_arguments(client: Client):
    output = client.submit(assistant, question="What is the capital of Japan?").result(180)
    first = output["steps"][0]
    assert first["tool"] == "capital_of"
    assert first["arguments"] == {"country": "Japan"}
    assert first["result"] == "Tokyo"
    assert isinstance(output["answer"], str)


def test_the_tree_search_reaches_its_depth_and_no_more(client: Client):
    run = client.submit(search, question="How do I tidy a desk?", depth=2, width=2)
    report = run.report(180)
    output = report["output"]
    assert output["depth"] == 2 == len(output["steps"])
    assert all(0 <= score <= 10 for score in output["scores"])
    assert len(report["nodes"]) == 2 * (2 + 2)
    second = [n for n in report["nodes"] if "expand_2" in n["id"]]
    assert all(node["parents"] for node in second)


def test_self_refine_revises_as_often_as_it_was_told(client: Client):
    report = client.submit(refine, topic="glaciers", rounds=1).report(120)
    assert report["output"]["drafts"] == 2
    assert [node["id"].partition("/")[2] for node in report["nodes"]] == [
        *("generate", "critique", "revise")
    ]


def test_a_long_document_is_noted_part_by_part(client: Client):
    report = client.submit(summarise, document=examples.DOCUMENT).report(180)
    notes = [node for node in report["nodes"] if node["id"].startswith("note[")]
    assert len(notes) >= 2
    assert {node["state"] for node in notes} == {"succeeded"}
    assert report["nodes"][-1]["operator"].startswith("generate")
    empty = client.submit(summarise, document="   ").report(120)
    assert not [node for node in empty["nodes"] if node["id"].startswith("note[")]


def test_the_mix_runs_all_kinds_at_once(client: Client):
    ended = run_mixed(client, runs=8, concurrency=4)
    assert {kind for kind, _ in ended} == {"rag", "rag_rerank", "web"}
    assert [run.report()["error"] for _, run in ended] == [None] * 8
