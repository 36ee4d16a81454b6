"""The commands against a runtime that is a fake: what they ask of it and what they say."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

import operators
from herasys_rt.cli import execute, ingestion, lifecycle, runs, runtime
from herasys_rt.engines.postgres.settings import (
    DISTANCES,
    STORAGES,
    Settings,
    check_same,
)
from herasys_rt.errors import (
    InputError,
    NodeError,
    ResultTimeoutError,
    RunCancelledError,
    RuntimeStateError,
    error_from_info,
)
from herasys_rt.graph.validation import check_inputs
from herasys_rt.ingestion import ingest_spec

SOURCE = {"id": "zip#0", "source": "builtins", "score": 0.8312, "text": "zip  makes\npairs"}


def report(**changed: Any) -> dict[str, Any]:
    return {
        "run_id": "run-1",
        "status": "succeeded",
        "output": "pairs",
        "sources": [SOURCE],
        "usage": {"completion_tokens": 2},
        "billed": {"engine_s": 0.5, "completion_tokens": 2.0},
        "error": None,
        "latency_s": 0.5,
        "nodes": [
            {"id": "a", "state": "succeeded", "fused_into": "", "reused": False},
            {"id": "b", "state": "succeeded", "fused_into": "run-0/b", "reused": False},
            {"id": "c", "state": "succeeded", "fused_into": "", "reused": True},
            {"id": "d", "state": "skipped", "fused_into": "", "reused": False},
        ],
        **changed,
    }


class FakeRun:
    """A run whose end is known beforehand."""

    def __init__(self, told: dict[str, Any], pieces: Iterable[str] = ()) -> None:
        self.id = "run-1"
        self._told = told
        self._pieces = list(pieces)
        self.cancelled = False
        self.error: BaseException | None = None

    def report(self, timeout_s: float | None = None) -> dict[str, Any]:
        if isinstance(self.error, ResultTimeoutError | KeyboardInterrupt):
            raise self.error
        return self._told

    def result(self, timeout_s: float | None = None) -> Any:
        if self.error is not None:
            raise self.error
        return self._told["output"]

    def stream(self) -> Iterator[str]:
        yield from self._pieces
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.cancelled = True


class FakeClient:
    """A client that gives out prepared runs and remembers what it was asked."""

    def __init__(self, *prepared: FakeRun) -> None:
        self.prepared = list(prepared)
        self.asked: list[tuple[str, dict[str, Any], bool]] = []
        self.labels: dict[str, str] = {}
        self.closed = False

    def submit(
        self,
        workflow: Any,
        /,
        *,
        _stream: bool = False,
        _labels: Mapping[str, str] | None = None,
        **inputs: Any,
    ) -> FakeRun:
        self.asked.append((workflow.spec.name, inputs, _stream))
        self.labels = dict(_labels or {})
        return self.prepared.pop(0)

    def map(
        self, workflow: Any, inputs: Iterable[Mapping[str, Any]], *, concurrency: int
    ) -> Iterator[FakeRun]:
        for each in inputs:
            self.asked.append((workflow.name, check_inputs(workflow, each), False))
            yield self.prepared.pop(0)

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch):
    """Put a fake client in the runtime's place; connecting without one fails the test."""
    monkeypatch.setattr(runtime, "connect", lambda *_: pytest.fail("connected"))

    def put(*prepared: FakeRun) -> FakeClient:
        client = FakeClient(*prepared)
        monkeypatch.setattr(runtime, "connect", lambda *_: client)
        return client

    return put


@pytest.fixture
def flow(tmp_path: Path) -> str:
    """A workflow file made of nothing but an operator of its own."""
    path = tmp_path / "cli_flow.py"
    path.write_text(
        "from herasys_rt.dsl import workflow\n"
        "from operators import generate\n"
        "@workflow\n"
        "def ask(question: str, n: int = 1):\n"
        "    return generate('{q} {number}', q=question, number=n)\n"
    )
    return f"{path}:ask"


# --- run ----------------------------------------------------------------------------
def test_run_prints_answer_sources_and_what_it_took(serve, flow, capsys) -> None:
    client = serve(FakeRun(report()))
    assert execute(["run", flow, "-i", "question=why?", "-i", "n=3"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "pairs\n\nsources\n[1] builtins (0.83): zip makes pairs\n"
    assert shown.err == (
        "0.50 s, 4 nodes: 1 executed, 1 fused, 1 reused, 1 not needed, run-1\n"
    )
    assert client.asked == [("ask", {"question": "why?", "n": 3}, False)]
    assert client.closed


def test_run_gives_the_report_as_json(serve, flow, capfd) -> None:
    serve(FakeRun(report()))
    assert execute(["run", flow, "--input", "question=why?", "--json"]) == 0
    shown = capfd.readouterr()
    assert json.loads(shown.out) == report()
    assert "pairs" in shown.err


def test_run_streams_pieces_and_says_the_answer_once(serve, flow, capsys) -> None:
    client = serve(FakeRun(report(output="pairs"), ["pa", "irs"]))
    assert execute(["run", flow, "-i", "question=why?", "--stream"]) == 0
    assert capsys.readouterr().out.startswith("pairs\n\nsources\n[1] builtins")
    assert client.asked[0][2] is True


def test_an_answer_that_is_more_than_what_was_streamed_is_printed_too(
    serve, flow, capsys
) -> None:
    serve(FakeRun(report(output="pairs\nof both", sources=[]), ["pa", "irs"]))
    assert execute(["run", flow, "-i", "question=why?", "--stream"]) == 0
    assert capsys.readouterr().out == "pairs\npairs\nof both\n"


def test_run_labels_the_run(serve, flow) -> None:
    client = serve(FakeRun(report()))
    words = ["--label", "team=search", "--label", "url=a=b"]
    assert execute(["run", flow, "-i", "question=why?", *words]) == 0
    assert client.labels == {"team": "search", "url": "a=b"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--label", "team"], "not of the form KEY=VALUE"),
        (["--label", "a=1", "--label", "a=2"], "given twice"),
        (["--label", "=1"], "1 to 256 characters"),
        ([w for i in range(17) for w in ("--label", f"k{i}=v")], "at most 16 labels"),
    ],
)
def test_labels_that_are_none_are_refused_before_connecting(
    serve, flow, capsys, words, told
) -> None:
    assert execute(["run", flow, "-i", "question=a", *words]) == 2
    assert told in capsys.readouterr().err


def test_an_output_that_is_no_text_is_printed_as_json(serve, flow, capsys) -> None:
    serve(FakeRun(report(output={"a": [1]}, sources=[])))
    execute(["run", flow, "-i", "question=why?"])
    assert json.loads(capsys.readouterr().out) == {"a": [1]}


def test_a_run_that_fails_exits_1_with_its_error(serve, flow, capfd) -> None:
    error = {"code": "prompt_too_long", "message": "2049 tokens", "hint": "Shorten it."}
    failed = report(status="failed", output=None, sources=[], error=error)
    serve(FakeRun(failed))
    assert execute(["run", flow, "-i", "question=why?", "--json"]) == 1
    shown = capfd.readouterr()
    assert json.loads(shown.out) == failed
    assert "error[prompt_too_long]: 2049 tokens\nhint: Shorten it.\n" in shown.err


def test_a_stream_that_breaks_ends_with_the_runs_error(serve, flow, capsys) -> None:
    error = {"code": "node_failed", "message": "it broke", "hint": ""}
    broken = FakeRun(report(status="failed", output=None, error=error), ["pa"])
    broken.error = NodeError("it broke")
    serve(broken)
    assert execute(["run", flow, "-i", "question=why?", "--stream"]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("pa\n")
    assert "error[node_failed]: it broke" in shown.err


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ([], "question: missing"),
        (["-i", "question=a", "-i", "m=1"], "m: is no input of this workflow"),
        (["-i", "question=a", "-i", "n=many"], "n:"),
        (["-i", "question"], "not of the form NAME=VALUE"),
        (["-i", "question=a", "-i", "question=b"], "given twice"),
    ],
)
def test_bad_inputs_are_refused_before_connecting(
    serve, flow, capsys, inputs, told
) -> None:
    assert execute(["run", flow, *inputs]) == 2
    assert told in capsys.readouterr().err


def test_a_refused_run_has_the_keys_of_a_report(serve, flow, capfd) -> None:
    assert execute(["run", flow, "--json"]) == 2
    told = json.loads(capfd.readouterr().out)
    assert told.keys() == report().keys()
    assert told["error"]["code"] == "invalid_input"


def test_a_run_that_takes_too_long_is_cancelled(serve, flow, capsys) -> None:
    late = FakeRun(report())
    late.error = ResultTimeoutError("not yet")
    client = serve(late)
    assert execute(["run", flow, "-i", "question=a", "--timeout", "0.5"]) == 1
    assert late.cancelled
    assert client.closed
    assert "did not end within 0.5 s and was cancelled" in capsys.readouterr().err


def test_an_interrupt_cancels_the_run_and_leaves(serve, flow, capsys) -> None:
    run = FakeRun(report())
    run.error = KeyboardInterrupt()
    client = serve(run)
    assert execute(["run", flow, "-i", "question=a"]) == 130
    assert run.cancelled
    assert client.closed
    assert "error" not in capsys.readouterr().err


def test_a_stream_cut_off_by_its_timeout_says_so(flow) -> None:
    class Endless(FakeRun):
        def stream(self) -> Iterator[str]:
            while not self.cancelled:
                yield ""
            raise RunCancelledError("cancelled")

    run = Endless(report(status="cancelled"))
    with runs.Output("-") as output, pytest.raises(ResultTimeoutError, match=r"0\.01 s"):
        runs._await(run, output, True, 0.01)  # pyright: ignore[reportArgumentType]


# --- lifecycle ----------------------------------------------------------------------
STATUS = {
    "state": "up",
    "pid": 42,
    "uptime_s": 7260.0,
    "run_dir": "/tmp/x",
    "endpoint": "a key",
    "token_path": "/tmp/x/token",
    "dsn": "postgresql://u:s3cret@h/d",
    "job_address": "http://127.0.0.1:8265",
    "pools": [
        {
            "name": "llm",
            "resource": "llm",
            "engine": "vllm",
            "model": "smollm2-135m",
            "slots": 16,
            "instances": [{"id": "llm-1", "state": "up", "running": 3}],
        },
        {"name": "retrieval", "resource": "retrieval", "engine": "pgvector"},
    ],
    "counters": {
        "nodes": {"executed": 5, "fused": 2},
        "runs": {"accepted": 4, "active": 1},
        "events": {"stale": 0},
    },
}


def test_status_shows_pools_and_counters_but_no_keys(monkeypatch, capfd) -> None:
    monkeypatch.setattr(runtime, "status", lambda: STATUS)
    assert execute(["status"]) == 0
    shown = capfd.readouterr().out
    for text in (
        "up (process 42, for 2 h 1 min)",
        "llm-1",
        "3/16",
        "runs: 4 accepted, 1 active",
        "nodes: 5 executed, 2 fused",
    ):
        assert text in shown
    assert execute(["status", "--json"]) == 0
    shown = capfd.readouterr().out
    told = json.loads(shown)
    assert told["pools"] == STATUS["pools"]
    assert told["error"] is None
    for secret in ("a key", "s3cret"):
        assert secret not in shown


def test_a_status_fits_80_columns(monkeypatch, capfd) -> None:
    pool = {
        "name": "embedding",
        "resource": "embedding",
        "engine": "sentence_transformers",
        "model": "all-minilm-l6-v2",
        "slots": 16,
        "instances": [{"id": "embedding-0", "state": "starting", "running": 16}],
    }
    monkeypatch.setattr(runtime, "status", lambda: {"state": "up", "pools": [pool]})
    monkeypatch.setenv("COLUMNS", "80")
    assert execute(["status"]) == 0
    shown = capfd.readouterr().out
    row = next(line for line in shown.splitlines() if "embedding-0" in line)
    for text in ("sentence_transformers", "all-minilm-l6-v2", "starting", "16/16"):
        assert text in row


def test_a_source_is_one_line_of_the_screen() -> None:
    source = {"source": "guide.md", "score": 0.5, "text": "many words\n" * 50}
    line = runs.source_line(1, source, 80)
    assert len(line) == 80
    assert line.startswith("[1] guide.md (0.50): many words many")


def test_status_without_a_runtime_is_no_error(monkeypatch, capsys) -> None:
    monkeypatch.setattr(runtime, "status", lambda: {"state": "down"})
    assert execute(["status"]) == 0
    assert "herasys up" in capsys.readouterr().out


def test_a_runtime_that_does_not_answer_is_told_with_its_error(monkeypatch, capfd) -> None:
    error = {"code": "runtime_state", "message": "no answer", "hint": ""}
    silent = {"state": "silent", "pid": 42, "error": error}
    monkeypatch.setattr(runtime, "status", lambda: silent)
    assert execute(["status", "--json"]) == 0
    shown = capfd.readouterr()
    assert json.loads(shown.out) == silent
    assert "does not answer" in shown.err


def test_up_hands_configuration_and_address_over(monkeypatch, tmp_path, capsys) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("scheduler: {max_attempts: 7}\n")
    asked: list[Any] = []

    def start(config: Any, address: Any, progress: Any) -> dict[str, Any]:
        asked.append((config.scheduler.max_attempts, address))
        progress("starting Ray")
        return STATUS

    monkeypatch.setattr(runtime, "start", start)
    assert execute(["up", "--config", str(path), "--address", "auto"]) == 0
    assert asked == [(7, "auto")]
    shown = capsys.readouterr()
    assert "starting Ray" in shown.err
    assert "llm-1" in shown.out


def test_up_twice_is_told(monkeypatch, capsys) -> None:
    def start(*_: Any) -> dict[str, Any]:
        raise RuntimeStateError("already up", hint="Use it.")

    monkeypatch.setattr(runtime, "start", start)
    assert execute(["up"]) == 1
    assert "error[runtime_state]: already up" in capsys.readouterr().err


def test_a_wrong_configuration_is_refused_before_anything_starts(
    monkeypatch, capsys
) -> None:
    monkeypatch.setattr(runtime, "start", lambda *_: pytest.fail("started"))
    assert execute(["up", "--config", "/absent/c.yaml"]) == 2
    assert "error[invalid_config]" in capsys.readouterr().err


@pytest.mark.parametrize("was_up", [True, False])
def test_down_succeeds_either_way(monkeypatch, capfd, was_up) -> None:
    monkeypatch.setattr(runtime, "stop", lambda _: was_up)
    assert execute(["down", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told == {"state": "down", "was_up": was_up, "error": None}


@pytest.mark.parametrize(
    ("seconds", "told"), [(3.9, "3 s"), (303, "5 min 3 s"), (7500, "2 h 5 min")]
)
def test_durations_are_told_in_two_units(seconds, told) -> None:
    assert lifecycle.duration(seconds) == told


# --- ingest -------------------------------------------------------------------------
def stored(
    documents: int, chunks: int, revision: int, shared: int = 0, reused: bool = False
) -> FakeRun:
    output = {"documents": documents, "chunks": chunks, "revision": revision}
    embed = {"operator": "embed_many@1", "fused_into": None}
    nodes = [{**embed, "reused": reused, "shared_items": shared}]
    return FakeRun(report(output=output, nodes=nodes))


def test_ingest_tells_how_many_chunks_were_embedded_already(
    serve, tmp_path, capfd, monkeypatch
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(f"text of {name}")
    monkeypatch.setattr(ingestion, "BATCH_CHARACTERS", 1)
    serve(stored(1, 3, 1, shared=2), stored(1, 4, 2, reused=True))
    assert execute(["ingest", str(tmp_path), "-n", "docs"]) == 0
    said = capfd.readouterr().out
    assert "2 documents, 7 chunks (6 of them embedded already)" in said


def test_ingest_sends_files_in_batches_and_counts(
    serve, tmp_path, capfd, monkeypatch
) -> None:
    for name in ("a.md", "b.txt", "c.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    (tmp_path / "d.bin").write_bytes(b"\0\1\2")
    monkeypatch.setattr(ingestion, "BATCH_CHARACTERS", 20)
    client = serve(stored(1, 2, 1), stored(1, 3, 2), stored(1, 1, 3))
    assert execute(["ingest", str(tmp_path), "-n", "docs", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["documents"], told["chunks"], told["revision"]) == (3, 6, 3)
    assert [Path(entry["path"]).name for entry in told["skipped"]] == ["d.bin"]
    assert told["error"] is None
    sent = [inputs for _, inputs, _ in client.asked]
    assert [[d["id"] for d in each["documents"]] for each in sent] == [
        ["a.md"],
        ["b.txt"],
        ["c.txt"],
    ]
    assert sent[0]["collection"] == "docs"
    assert sent[0]["replace"] is True


def test_a_batch_that_fails_does_not_stop_the_others(
    serve, tmp_path, capfd, monkeypatch
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("text")
    monkeypatch.setattr(ingestion, "BATCH_CHARACTERS", 1)
    broken = FakeRun(report())
    broken.error = NodeError("no room", hint="Free some.")
    serve(broken, stored(1, 1, 1))
    assert execute(["ingest", str(tmp_path), "-n", "docs", "--json"]) == 1
    shown = capfd.readouterr()
    told = json.loads(shown.out)
    assert told["documents"] == 1
    assert told["failed"][0]["documents"] == ["a.md"]
    assert told["error"]["message"] == "no room"
    assert "1 documents were not stored" in shown.err


def test_what_a_new_collection_is_made_with_goes_along(serve, tmp_path, capfd) -> None:
    (tmp_path / "a.md").write_text("text")
    client = serve(stored(1, 1, 1), stored(1, 1, 2))
    words = ["ingest", str(tmp_path), "-n", "docs", "--json"]
    chosen = ["--distance", "l2", "--storage", "halfvec", "--language", "german"]
    sized = ["--chunk-tokens", "50", "--overlap", "5"]
    assert execute([*words, *chosen, *sized]) == 0
    assert execute(words) == 0
    first, second = (inputs for _, inputs, _ in client.asked)
    for inputs, settings in ((first, ("l2", "halfvec", "german")), (second, (None,) * 3)):
        names = ("distance", "storage", "language")
        assert tuple(inputs[name] for name in names) == settings
    assert (first["chunk_tokens"], first["overlap"]) == (50, 5)
    assert (second["chunk_tokens"], second["overlap"]) == (200, 20)
    capfd.readouterr()


def test_a_collection_that_was_made_otherwise_is_one_refusal_not_one_a_batch(
    serve, tmp_path, capfd, monkeypatch
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("text")
    monkeypatch.setattr(ingestion, "BATCH_CHARACTERS", 1)
    made = Settings(distance="cosine")
    refused = FakeRun(report())
    with pytest.raises(InputError) as caught:
        check_same("docs", made, {"distance": "l2"})
    refused.error = error_from_info(caught.value.info())
    client = serve(refused, stored(1, 1, 1))
    words = ["ingest", str(tmp_path), "-n", "docs", "--distance", "l2", "--json"]
    assert execute(words) != 0
    shown = capfd.readouterr()
    told = json.loads(shown.out)
    assert told["error"]["code"] == "distance_mismatch"
    assert told["error"]["message"] == (
        "collection 'docs' was made with distance cosine, not l2"
    )
    assert "drop the collection" in told["error"]["hint"]
    assert len(client.asked) == 1
    assert client.closed


def test_the_settings_offered_are_those_of_the_store() -> None:
    assert get_args(ingestion.Distance) == DISTANCES
    assert get_args(ingestion.Storage) == STORAGES


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/absent/folder", "-n", "docs"], "does not exist"),
        (["{empty}", "-n", "docs"], "holds no document"),
        (["{empty}", "-n", " "], "name is empty"),
        (["{empty}", "-n", "d", "--overlap", "200"], "leaves nothing new"),
        (["{empty}", "-n", "d", "--distance", "far"], "'cosine', 'inner_product', 'l2'"),
        (["{empty}", "-n", "d", "--storage", "bit"], "'vector', 'halfvec'"),
        (["{empty}", "-n", "d", "--language", " "], "language is empty"),
        (["{empty}"], "Missing option"),
    ],
)
def test_ingest_refuses_what_cannot_work_before_connecting(
    serve, tmp_path, capsys, arguments, told
) -> None:
    words = [word.replace("{empty}", str(tmp_path)) for word in arguments]
    assert execute(["ingest", *words]) == 2
    assert told in capsys.readouterr().err


def test_the_ingest_workflow_is_well_formed_and_has_the_commands_defaults() -> None:
    from herasys_rt.graph.validation import validate_spec

    spec = ingest_spec()
    assert validate_spec(spec) == []
    defaults = {item.name: item.default for item in spec.inputs}
    declared = ingestion.ingest.__defaults__
    assert declared is not None
    names = ("chunk_tokens", "overlap", "distance", "storage", "language")
    assert tuple(defaults[name] for name in names) == declared[: len(names)]
    operator = inspect.signature(operators.ingest).parameters
    assert tuple(operator[name].default for name in names) == declared[: len(names)]


def test_the_ingest_workflow_is_what_the_operators_would_make() -> None:
    from herasys_rt.dsl import workflow
    from operators import ingest

    @workflow
    def traced(
        documents: list[dict],  # pyright: ignore[reportMissingTypeArgument]
        collection: str,
        chunk_tokens: int = 200,
        overlap: int = 20,
        replace: bool = True,
        distance: str | None = None,
        storage: str | None = None,
        language: str | None = None,
    ):
        return ingest(
            documents,  # pyright: ignore[reportArgumentType]
            collection=collection,
            chunk_tokens=chunk_tokens,
            overlap=overlap,
            replace=replace,
            distance=distance,
            storage=storage,
            language=language,
        )

    def shape(spec: Any) -> list[Any]:
        return [
            (n.operator, n.verb, n.resource, dict(n.args), n.output, n.purity)
            for n in spec.nodes
        ]

    assert shape(ingest_spec()) == shape(traced.spec)


# --- collections, models, graph -----------------------------------------------------
def test_dropping_without_a_yes_and_nobody_to_ask_is_refused(capsys) -> None:
    assert execute(["collections", "drop", "docs"]) == 2
    assert "Add --yes" in capsys.readouterr().err


def test_models_lists_the_aliases(capfd) -> None:
    assert execute(["models", "--json"]) == 0
    names = [model["alias"] for model in json.loads(capfd.readouterr().out)["models"]]
    assert names == ["smollm2-135m", "all-minilm-l6-v2"]


def test_graph_prints_a_chart_or_json(flow, capfd) -> None:
    assert execute(["graph", flow]) == 0
    assert capfd.readouterr().out.startswith("flowchart TD\n")
    assert execute(["graph", flow, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["workflow"] == "ask"
    assert [node["operator"] for node in told["nodes"]] == ["generate@1"]
    assert [item["name"] for item in told["inputs"]] == ["question", "n"]


# --- cache --------------------------------------------------------------------------
CACHE = {
    "entries": 3,
    "bytes": 1_200,
    "max_bytes": 10_000,
    "held_bytes": {"generate@1": 1_200},
    "generation": 2,
    "hints": {"taken": 1, "ignored": 0},
    "nodes": {
        "seen": 4,
        "executed": 2,
        "joined": 1,
        "reused": 1,
        "shared_items": 0,
        "saved_s": 3.5,
        "saved_tokens": 96,
        "hit_ratio": 0.5,
    },
    "operators": [
        {
            "operator": "generate@1",
            "tenant": "acme",
            "seen": 4,
            "executed": 2,
            "joined": 1,
            "reused": 1,
            "shared_items": 0,
            "saved_s": 3.5,
            "saved_tokens": 96,
            "hit_ratio": 0.5,
        }
    ],
    "store": None,
}


def test_cache_stats_tell_what_is_kept_and_saved(monkeypatch, capsys) -> None:
    monkeypatch.setattr(runtime, "status", lambda: {"state": "up", "cache": CACHE})
    assert execute(["cache", "stats"]) == 0
    shown = capsys.readouterr().out
    assert "3 results" in shown and "50.0%" in shown and "96 tokens" in shown
    assert "acme" in shown
    assert execute(["cache", "stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**CACHE, "error": None}


def test_cache_stats_of_no_runtime_are_an_error(monkeypatch, capsys) -> None:
    monkeypatch.setattr(runtime, "status", lambda: {"state": "down"})
    assert execute(["cache", "stats"]) == 1
    assert "is down" in capsys.readouterr().err


def test_what_an_operator_holds_is_told_once_and_fits_a_narrow_screen(
    monkeypatch, capsys
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (entry,) = CACHE["operators"]
    two = {**CACHE, "operators": [entry, {**entry, "tenant": "beta"}]}
    monkeypatch.setattr(runtime, "status", lambda: {"state": "up", "cache": two})
    assert execute(["cache", "stats"]) == 0
    acme, beta = capsys.readouterr().out.splitlines()[-3:-1]
    assert acme.split()[:2] == ["generate@1", "acme"] and acme.split()[-1] == "1,200"
    assert beta.split()[:2] == ["generate@1", "beta"] and "1,200" not in beta


def test_a_purge_that_finds_nothing_says_so(monkeypatch, capsys) -> None:
    done = {"entries": 0, "bytes": 0, "stored": 0}
    monkeypatch.setattr(runtime, "purge_cache", lambda *_: done)
    assert execute(["cache", "purge", "--collection", "dcos", "--yes"]) == 0
    assert "no results that depend on collection 'dcos'" in capsys.readouterr().out


def test_cache_purge_passes_its_filters_on_and_asks_for_a_yes(monkeypatch, capsys) -> None:
    asked: list[tuple[str | None, ...]] = []

    def purge(*filters: Any) -> dict[str, Any]:
        asked.append(filters[:3])
        return {"entries": 2, "bytes": 10, "stored": None}

    monkeypatch.setattr(runtime, "purge_cache", purge)
    assert execute(["cache", "purge", "--collection", "docs"]) == 2
    assert "--yes" in capsys.readouterr().err and asked == []
    assert execute(["cache", "purge", "--tenant", "acme", "--yes"]) == 0
    assert "those on disk follow" in capsys.readouterr().out
    assert execute(["cache", "purge", "--signature", "ab" * 32, "-y", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == 2
    assert asked == [("acme", None, None), (None, None, "ab" * 32)]
