"""Tools, own operators and web search through the whole runtime: a real python pool, the
real database, and a language model and an embedder that only take time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt import Client, Config, connect, load_config, workflow
from herasys_rt.cli import execute
from herasys_rt.errors import HerasysError
from operators import generate, ingest, python_operator, tool, web_search

pytestmark = pytest.mark.real

POOLS = """
pools:
  - {name: llm, resource: llm, engine: modelled, slots: 8}
  - {name: embedding, resource: embedding, engine: modelled}
  - {name: retrieval, resource: retrieval, engine: pgvector, slots: 4}
  - {name: search, resource: search, engine: web_search, slots: 4}
  - name: python
    resource: python
    engine: python
    slots: 8
    options: {isolate: process, workers: 2}
"""


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tools") / "config.yaml"
    path.write_text(POOLS)
    return path


@pytest.fixture(scope="module")
def client(configured: Path) -> Iterator[Client]:
    config: Config = load_config(configured)
    with connect(config) as client:
        yield client


def value(client: Client, flow: Any, **inputs: Any) -> Any:
    return client.submit(flow, **inputs).result(60)


def failure(client: Client, flow: Any, **inputs: Any) -> HerasysError:
    with pytest.raises(HerasysError) as caught:
        client.submit(flow, **inputs).result(60)
    return caught.value


FACTOR = 3


def helper(x: int) -> int:
    return x * FACTOR


@tool(pure=True, version="1")
def scale(x: int, by: int = 2) -> int:
    return helper(x) * by


@tool
async def record(path: str, line: str) -> str:
    with open(path, "a") as file:
        file.write(line + "\n")
    return line


@tool
def where() -> int:
    return os.getpid()


@tool
def fail(words: str) -> str:
    raise ValueError(words)


@tool(timeout_s=1.0)
def hang(gate: str) -> str:
    with open(gate) as opened:
        return opened.read()


@python_operator(version="1")
def longest(texts: list[str]) -> str:
    return max(texts, key=len)


@workflow
def scaled(x: int):
    return generate("{number}", number=scale(x, by=5))


@workflow
def scaled_only(x: int):
    return scale(x)


@workflow
def recorded(path: str, line: str):
    return record(path, line)


@workflow
def located(x: int):
    return where()


@workflow
def failing(words: str):
    return fail(words)


@workflow
def hanging(gate: str):
    return hang(gate)


@workflow
def picked(first: str, second: str):
    return longest([first, second, generate("x")])


@workflow
def fill(documents: list[dict]):  # pyright: ignore
    return ingest(documents, collection="web")


@workflow
def searched(question: str):
    pages = web_search(question, top_k=2)
    return {"pages": pages, "answer": generate("{p}\n{q}", p=pages, q=question)}


def test_a_tool_runs_elsewhere_with_what_its_module_has(client: Client):
    assert value(client, scaled_only, x=7) == 42
    assert value(client, located, x=1) != os.getpid()


def test_equal_pure_calls_run_once(client: Client):
    runs = [client.submit(scaled_only, x=11) for _ in range(2)]
    assert [run.result(60) for run in runs] == [66, 66]
    later = client.submit(scaled_only, x=11)
    assert later.result(60) == 66
    (node,) = later.report()["nodes"]
    assert node["reused"]


def test_an_effect_happens_once_per_run(client: Client, tmp_path: Path):
    path = tmp_path / "lines"
    for _ in range(2):
        assert value(client, recorded, path=str(path), line="done 🚀") == "done 🚀"
    assert path.read_text() == "done 🚀\n" * 2


def test_a_python_operator_takes_edges_like_any_other(client: Client):
    assert value(client, picked, first="short", second="by far the longest") == (
        "by far the longest"
    )


def test_a_raising_tool_fails_its_run_with_its_own_words(client: Client):
    error = failure(client, failing, words="no such thing")
    assert error.code == "tool_failed"
    assert "raised ValueError: no such thing" in error.message
    assert "test_tools.py" in error.message
    assert "in fail" in error.message


def test_a_hanging_tool_ends_by_its_timeout_and_the_pool_serves_on(
    client: Client, tmp_path: Path
):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    error = failure(client, hanging, gate=str(gate))
    assert error.code == "node_timeout"
    assert value(client, scaled_only, x=100) == 600


def test_cancelling_a_run_ends_its_tool(client: Client, tmp_path: Path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    run = client.submit(hanging, gate=str(gate))
    # Opening succeeds once the tool reads: it is really at work when we cancel.
    with open(gate, "w"):
        run.cancel()
        with pytest.raises(HerasysError):
            run.result(60)
    assert run.report()["status"] == "cancelled"


def test_local_search_finds_pages_and_follows_the_collection(client: Client):
    pages = [
        {
            "id": "https://docs.example/zip",
            "text": "zip() iterates over several iterables in parallel.",
        },
        {
            "id": "https://docs.example/json",
            "text": "json.dumps serialises an object to a JSON formatted string.",
        },
    ]
    value(client, fill, documents=pages)
    question = "How do I iterate in parallel?"
    run = client.submit(searched, question=question)
    (page,) = run.result(60)["pages"]
    assert page["title"] == pages[0]["text"]  # its first line
    assert page["url"] == page["source"] == "https://docs.example/zip"
    assert page["snippet"] == pages[0]["text"]
    assert run.report()["sources"][0]["source"] == page["url"]

    again = client.submit(searched, question=question)
    again.result(60)
    assert {node["reused"] for node in again.report()["nodes"]} == {True}

    more = {"id": "https://docs.example/map", "text": "map can iterate in parallel, too."}
    value(client, fill, documents=[more])
    third = client.submit(searched, question=question).result(60)["pages"]
    assert {found["url"] for found in third} == {page["url"], more["id"]}


def test_an_empty_query_and_an_unknown_provider_are_refused(client: Client):
    assert failure(client, searched, question=" ").code == "invalid_input"

    @workflow
    def elsewhere(question: str):
        return web_search(question, provider="google")

    error = failure(client, elsewhere, question="zip")
    assert error.code == "unknown_provider"
    assert "it has local" in error.message


FLOW = '''
from dataclasses import dataclass

import helpers_of_flow
from herasys_rt import workflow
from operators import generate, tool


@dataclass
class Answer:
    text: str
    length: int


@tool(pure=True, version="1")
def measure(text: str) -> Answer:
    """Measure a text."""
    return Answer(helpers_of_flow.loud(text), len(text))


@workflow
def flow(text: str):
    return measure(text)
'''


def test_herasys_run_takes_the_tools_of_a_file_and_of_its_neighbours(
    tmp_path: Path, capfd, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    configured = tmp_path / "config.yaml"
    configured.write_text("pools:\n  - {name: p, resource: python, engine: python}\n")
    (tmp_path / "flow_of_tools.py").write_text(FLOW)
    (tmp_path / "helpers_of_flow.py").write_text("def loud(t): return t.upper() + '!'\n")
    command = ["run", "flow_of_tools.py:flow", "-i", "text=straße", "--json"]
    assert execute([*command, "--config", str(configured)]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["output"] == {"text": "STRASSE!", "length": 6}
