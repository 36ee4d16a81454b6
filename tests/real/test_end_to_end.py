"""The whole product on real parts: vLLM, the embedder, pgvector and Ray, as a user
starts it with `herasys up`."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt import Client, connect, load_config, workflow
from herasys_rt.cli import execute
from herasys_rt.client.background import runtime_status
from herasys_rt.client.report import node_json
from herasys_rt.core.commands import Command, FinishRun, StartBatch
from herasys_rt.costs.profile import read_profile
from herasys_rt.costs.service import profiled_service
from herasys_rt.errors import HerasysError, RunCancelledError, RuntimeStateError
from herasys_rt.policies import build
from herasys_rt.runtime import daemon
from herasys_rt.sim.replay import replay
from operators import embed, generate, ingest, rerank, retrieve
from tests.real.ray_jobs import submit_job

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
PLANTED = "The lighthouse keeper of Vrondal keeps a purple otter named Quibbleton."
FILLER = [
    "Glaciers carve valleys over thousands of years and leave moraines behind.",
    "A sorting network compares elements in an order that is fixed beforehand.",
    "Bread rises because yeast turns sugar into carbon dioxide and alcohol.",
    "The violin is tuned in fifths and played with a bow of horsehair.",
    "Tides follow the moon, and twice a month they are larger than usual.",
]


@workflow
def fill(documents: list[dict], collection: str):  # pyright: ignore
    return ingest(documents, collection=collection)


@workflow
def ask(question: str, collection: str):
    found = retrieve(embed(question), collection=collection, top_k=3)
    best = rerank(question, found, top_k=2)
    prompt = "{context}\nQuestion: {question}\nAnswer:"
    return generate(prompt, context=best, question=question, max_tokens=24)


@workflow
def tell(subject: str, tokens: int = 48):
    return generate("Tell a long story about {s}.", s=subject, max_tokens=tokens)


@pytest.fixture(scope="module")
def runtime() -> Iterator[dict[str, Any]]:
    config = load_config()
    ray = config.ray.model_copy(update={"dashboard": True})
    state = daemon.up(config.model_copy(update={"ray": ray}))
    yield state
    assert daemon.down()
    assert runtime_status() == {"state": "down"}
    assert not Path(state["run_dir"]).exists()


@pytest.fixture(scope="module")
def client(runtime: dict[str, Any]) -> Iterator[Client]:
    with connect() as client:
        assert client.kind == "daemon"
        documents = [
            {"id": f"doc-{i}", "text": text} for i, text in enumerate([*FILLER, PLANTED])
        ]
        run = client.submit(fill, documents=documents, collection="facts")
        assert run.result(60)["chunks"] == len(documents)
        yield client


def until(client: Client, what: Any) -> dict[str, Any]:
    """The first status that satisfies ``what``, within half a minute."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        status = client.status()
        if what(status):
            return status
    pytest.fail(f"it never came to that; the last status was {status}")


def instance(status: dict[str, Any], resource: str) -> dict[str, Any]:
    (pool,) = [pool for pool in status["pools"] if pool["resource"] == resource]
    return pool["instances"][0]


def test_the_planted_fact_is_among_the_sources_by_provenance(client: Client):
    question = "What animal does the lighthouse keeper of Vrondal keep?"
    run = client.submit(ask, question=question, collection="facts")
    assert isinstance(run.result(60), str)
    report = run.report()
    assert report["sources"][0]["source"] == "doc-5"
    assert PLANTED in report["sources"][0]["text"]
    assert len(report["sources"]) == 2
    assert {node["state"] for node in report["nodes"]} == {"succeeded"}
    assert report["usage"]["completion_tokens"] > 0


def test_streamed_pieces_concatenate_to_the_result(client: Client):
    run = client.submit(tell, _stream=True, subject="a glacier")
    pieces = list(run.stream())
    assert len(pieces) > 1
    assert "".join(pieces) == run.result(60)


async def test_the_asynchronous_twin_inside_a_running_event_loop(runtime: Any):
    from herasys_rt import connect_async

    async with await connect_async() as client:
        run = await client.submit(tell, _stream=True, subject="a violin", tokens=8)
        pieces = [piece async for piece in run.stream()]
        assert "".join(pieces) == await run.result(60)
        inputs = [{"subject": f"bread {i}", "tokens": 4} for i in range(3)]
        runs = [run async for run in client.map(tell, inputs, concurrency=2)]
        assert all([isinstance(await run.result(), str) for run in runs])
    with connect() as blocking:  # Also works inside a running loop, as in a notebook.
        assert isinstance(blocking.submit(tell, subject="tides", tokens=2).result(60), str)


def test_two_identical_concurrent_questions_execute_each_node_once(client: Client):
    before = client.status()["counters"]["nodes"]
    question = "Why does bread rise?"
    runs = [client.submit(ask, question=question, collection="facts") for _ in range(2)]
    assert runs[0].result(60) == runs[1].result(60)
    after = client.status()["counters"]["nodes"]
    changed = {name: after[name] - before[name] for name in after}
    assert changed["submitted"] == 8
    assert changed["executed"] == 4
    assert changed["fused"] + changed["reused"] == 4


def test_documents_added_later_are_found_and_nothing_stale_is_reused(client: Client):
    question = "Who owns the emerald tricycle?"
    first = {"id": "a", "text": "Nothing of note happened in the village today."}
    client.submit(fill, documents=[first], collection="news").result(60)
    before = client.submit(ask, question=question, collection="news")
    assert [s["source"] for s in before.report(60)["sources"]] == ["a"]
    second = {"id": "b", "text": "The emerald tricycle is owned by the baker's uncle."}
    client.submit(fill, documents=[second], collection="news").result(60)
    after = client.submit(ask, question=question, collection="news")
    assert after.report(60)["sources"][0]["source"] == "b"
    records = {node["id"]: node for node in after.report()["nodes"]}
    assert records["embed"]["reused"]
    assert not records["retrieve"]["reused"]
    assert not records["generate"]["reused"]


def test_a_cancelled_run_leaves_the_engine_idle(client: Client):
    run = client.submit(tell, _stream=True, subject="an endless river", tokens=1500)
    next(run.stream())
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(30)
    until(client, lambda s: s["counters"]["pools"]["llm"]["running"] == 0)
    until(client, lambda s: instance(s, "llm")["running"] == 0)
    assert client.submit(tell, subject="a lake", tokens=4).result(60)


def test_a_prompt_beyond_the_context_is_a_typed_error_with_both_numbers(client: Client):
    run = client.submit(tell, subject="word " * 3000, tokens=48)
    with pytest.raises(HerasysError, match=r"\d{4}.*2048") as caught:
        run.result(60)
    assert caught.value.code == "prompt_too_long"


def test_the_journal_of_running_engines_replays_in_the_simulators_loop(
    runtime: dict[str, Any], client: Client
):
    """What the kernel commands when told again is what the clients were told: each run's
    end with its nodes, where they ran, how long, and what they shared."""
    questions = ["What do tides follow?", "Who bakes?", "What is tuned in fifths?"]
    runs = [
        client.submit(ask, question=questions[i % 3], collection="facts") for i in range(5)
    ]
    reports = {run.id: run.report(60) for run in runs}
    path = Path(runtime["run_dir"]) / "journal.bin"
    deadline_s = time.monotonic() + 30
    commands: list[Command] = []
    ends: dict[str, FinishRun] = {}
    while not reports.keys() <= ends.keys():  # it is written every half second
        assert time.monotonic() < deadline_s
        commands = [c for answer in replay(path, build) for c in answer]
        ends = {c.run_id: c for c in commands if isinstance(c, FinishRun)}
    for run_id, report in reports.items():
        end = ends[run_id]
        assert end.status == report["status"] == "succeeded"
        assert [node_json(node) for node in end.nodes] == report["nodes"]
    started = {c.instance for c in commands if isinstance(c, StartBatch)}
    assert {name.partition("-")[0] for name in started} >= {"llm", "embedding", "rerank"}


def test_a_profile_of_the_engines_predicts_and_is_simulated(
    runtime: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    path = tmp_path / "profile.yaml"
    assert execute(["profile", "--quick", "--out", str(path), "--json"]) == 0
    told = capfd.readouterr()
    assert "python.call is left out" in told.err
    verbs = {v["verb"] for pool in json.loads(told.out)["pools"] for v in pool["verbs"]}
    assert verbs == {
        "llm.generate", "embed", "rerank", "text.chunk", "http.search",
        "pg.write", "pg.delete", "pg.search", "pg.text", "pg.hybrid",
    }  # fmt: skip
    profile = read_profile(path)
    assert not _collections(capfd) & {"herasys-profile"}
    embedder = profiled_service(profile, "embedding")
    pool = profile.pool("embedding")
    measured = pool.verb("embed") if pool is not None else None
    assert measured is not None
    for point in measured.points:
        predicted_s = embedder.batch_s("embed", point.items, point.tokens)
        assert point.seconds / 5 < predicted_s < point.seconds * 5
    seconds = [embedder.batch_s("embed", n, 16 * n) for n in (1, 2, 8, 32)]
    assert seconds[0] > 0
    assert seconds == sorted(seconds)
    llm = profile.pool("llm")
    assert llm is not None
    assert (llm.context_tokens, llm.kv_capacity_tokens > 2048) == (2048, True)
    words = ["simulate", "-w", "web", "--profile", str(path), "--runs", "4", "--json"]
    assert execute([*words, "--concurrency", "2", "--ordering", "srtf"]) == 0
    simulated = json.loads(capfd.readouterr().out)
    assert simulated["cluster"] == "profile"
    assert (simulated["runs"], simulated["error"]) == (4, None)
    assert simulated["mean_s"] > 0


def _collections(capfd: pytest.CaptureFixture[str]) -> set[str]:
    """Collections there are, without what tells those of one kind apart."""
    assert execute(["collections", "list", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)["collections"]
    return {one["name"].rpartition("-")[0] for one in listed}


def test_a_large_result_outlives_the_engine_that_produced_it(
    client: Client,
):
    # 300 documents of 384 dimensions: the chunks and vectors exceed the inline limit.
    documents = [{"id": f"n{i}", "text": f"Note number {i}."} for i in range(300)]
    before = client.status()["held_values"]
    client.submit(fill, documents=documents, collection="notes").result(120)
    embedder = instance(client.status(), "embedding")
    os.kill(embedder["pid"], signal.SIGKILL)
    run = client.submit(fill, documents=documents, collection="more notes")
    assert run.result(120)["chunks"] == 300
    reused = {node["id"]: node["reused"] for node in run.report()["nodes"]}
    assert reused == {"chunk_documents": True, "embed_many": True, "store": False}
    # The vectors stay for reuse; the runs' large inputs do not.
    until(client, lambda s: s["held_values"] == before + 1)


def test_killing_the_llm_in_mid_run_still_yields_the_answer(client: Client):
    victim = instance(client.status(), "llm")
    run = client.submit(tell, _stream=True, subject="a patient comet", tokens=400)
    pieces = run.stream()
    first = next(pieces)
    os.kill(victim["pid"], signal.SIGKILL)
    text = run.result(180)
    assert text.startswith(first)
    assert first + "".join(pieces) == text
    report = run.report()
    assert report["nodes"][0]["instance"] != victim["id"]


def test_a_second_up_says_that_one_is_there(runtime: dict[str, Any]):
    with pytest.raises(RuntimeStateError, match=str(runtime["pid"])):
        daemon.up(load_config())


def test_rows_go_through_ray_job_submit_to_the_running_runtime(
    runtime: dict[str, Any], client: Client, tmp_path: Path
):
    rows = [{"subject": f"a pond, part {i}", "tokens": 4} for i in range(20)]
    rows[7] = {"subject": 7}
    given, got = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flow = tmp_path / "flow.py"
    flow.write_text(
        "from herasys_rt import workflow\n"
        "from operators import generate\n"
        "@workflow\n"
        "def tell(subject: str, tokens: int = 4):\n"
        "    return generate('Describe {s}.', s=subject, max_tokens=tokens)\n"
    )
    before = client.status()["counters"]["runs"]
    entry = f"python -m herasys_rt.batch {flow}:tell -i {given} -o {got}"
    said = submit_job(runtime, ROOT, entry)
    assert got.exists(), said
    out = [json.loads(line) for line in got.read_text().splitlines()]
    assert len(out) == 20, said
    failed = [row for row in out if row["error"]]
    assert [row["row"] for row in failed] == [8]
    assert failed[0]["error"]["code"] == "invalid_input"
    after = client.status()["counters"]["runs"]
    assert after["succeeded"] - before["succeeded"] == 19
