"""The rivals' programs really run, against vLLM's own server: what they are compared by
is the same work."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jinja2
import pytest

from benchmarks._common import ROOT
from benchmarks.rivals.serve import TOOL_TEMPLATE, Server, ServerFailed, serve
from examples.stdlib_docs import gather
from herasys_rt.engines.models import resolve_model

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(400)]

PYTHON = ROOT / ".venv-rivals" / "bin" / "python"
PLANTED = {
    "id": "zander",
    "text": "zander.mistral(pressure) opens the floodgate of the Quellmar dam when the "
    "pressure exceeds ninety.",
}
ASKED = "What does zander.mistral do to the Quellmar dam?"

needs_rivals = pytest.mark.skipif(
    not PYTHON.exists(), reason="no .venv-rivals (make rivals makes it)"
)

Ask = Callable[..., dict[str, Any]]


class SearchServer:
    """Answers as SearXNG does, but the first request, which it cannot serve."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = parse_qs(urlsplit(self.path).query)
                assert asked["format"] == ["json"]
                owner.queries.append(asked["q"][0])
                status = 503 if len(owner.queries) == 1 else 200
                body = json.dumps({"results": owner.results()}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @staticmethod
    def results() -> list[dict[str, str]]:
        text = "Ada Lovelace wrote the first program."
        return [
            {"title": f"Page {i}", "url": f"http://pages/{i}", "content": text}
            for i in range(3)
        ]

    def __enter__(self) -> SearchServer:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(slots=8) as up:
        yield up


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than a reranker is given, with the planted one among them."""
    others = [{"id": d["id"], "text": d["text"][:600]} for d in gather(limit=20)]
    path = tmp_path_factory.mktemp("rivals") / "passages.jsonl"
    rows = [*others[:10], PLANTED, *others[10:]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def ask(server: Server, passages: Path) -> Ask:
    """``ask(framework, program, question)``: the row that a rival's process gives."""

    def run(framework: str, program: str, question: str, search: str = "") -> Any:
        words = [PYTHON, "-m", "benchmarks.rivals.run", framework, program]
        words += ["--llm-url", server.url, "--passages", passages, "--search-url", search]
        done = subprocess.run(
            words,
            cwd=ROOT,
            input=json.dumps({"question": question}) + "\n",
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (line,) = done.stdout.splitlines()
        row = json.loads(line)
        assert row["status"] == "succeeded"
        assert row["latency_s"] > 0
        assert row["answer"].strip()
        return row

    return run


@needs_rivals
@pytest.mark.parametrize(
    ("framework", "program"),
    [
        ("langgraph", "rag"),
        ("langgraph_functional", "rag"),
        ("llamaindex", "rag"),
        ("llamaindex", "rag_engine"),
        ("langgraph", "rag_rerank"),
        ("langgraph_functional", "rag_rerank"),
        ("llamaindex", "rag_rerank"),
        ("llamaindex", "rag_rerank_engine"),
    ],
)
def test_the_planted_passage_is_the_first_of_the_four(
    ask: Ask, framework: str, program: str
) -> None:
    sources = ask(framework, program, ASKED)["sources"]
    assert sources[0] == PLANTED["id"]
    assert len(set(sources)) == 4


@needs_rivals
@pytest.mark.parametrize("framework", ["langgraph", "langgraph_functional", "llamaindex"])
def test_queries_reach_the_search_server_and_a_refused_one_again(
    ask: Ask, framework: str
) -> None:
    question = "Who was Ada Lovelace?"
    with SearchServer() as search:
        row = ask(framework, "research", question, search.url)
    assert question in row["queries"]
    assert 1 <= len(row["queries"]) <= 2
    refused, *_ = search.queries
    assert sorted(search.queries) == sorted([*row["queries"], refused])
    assert row["sources"] == ["http://pages/0", "http://pages/1"]


@needs_rivals
@pytest.mark.parametrize("framework", ["langgraph", "llamaindex"])
def test_the_tool_is_called_with_the_arguments_of_the_question(
    ask: Ask, framework: str
) -> None:
    row = ask(framework, "assistant", "What is the capital of Japan?")
    assert {"tool": "capital_of", "arguments": {"country": "Japan"}} in row["calls"]
    assert "Tokyo" in row["results"]
    assert len(row["calls"]) <= 2


def test_without_tools_the_template_is_the_models_own() -> None:
    path = Path(resolve_model("smollm2-135m").path) / "chat_template.jinja"
    engine = jinja2.Environment()
    ours = engine.from_string(TOOL_TEMPLATE.read_text())
    own = engine.from_string(path.read_text())
    user = {"role": "user", "content": "Hello"}
    told = {"role": "system", "content": "Be brief."}
    said = {"role": "assistant", "content": "Hi"}
    for messages in ([user], [told, user], [user, said, user]):
        for prompt in (False, True):
            values = {"messages": messages, "add_generation_prompt": prompt}
            assert ours.render(**values) == own.render(**values)


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(ServerFailed, match="no-such-option"),
        serve(options=["--no-such-option"]),
    ):
        pass
