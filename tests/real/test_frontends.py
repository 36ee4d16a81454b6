"""Agents in frontends that are Ray actors: by `connect(frontends=...)` and in a Ray job.

The engines are modelled; everything between an agent and them is real.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import herasys_rt
from herasys_rt import Client, agent, connect, load_config
from herasys_rt.config import with_modelled_engines
from herasys_rt.errors import ClusterError, FrontendLostError, RunCancelledError
from herasys_rt.runtime import daemon
from operators import generate
from tests.real.ray_jobs import submit_job

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]


@agent
async def research(run, question: str):
    plan = await run.call(generate("Plan {q}", q=question, label="plan"))
    looks = [generate(f"Look {i}: {{p}}", p=plan, label="look") for i in range(3)]
    found = await run.gather(*looks)
    return await run.call(generate("Sum up {f}", f=found, label="sum"), stream=True)


@agent
async def whereabouts(run):
    return {"pid": os.getpid(), "package": herasys_rt.__file__}


@agent
async def endless(run, question: str):
    await run.call(generate("{q}", q=question))
    await asyncio.Event().wait()


@pytest.fixture(scope="module")
def runtime() -> Iterator[dict[str, Any]]:
    config = with_modelled_engines(load_config())
    ray = config.ray.model_copy(update={"dashboard": True})
    yield daemon.up(config.model_copy(update={"ray": ray}))
    assert daemon.down()


@pytest.fixture(scope="module")
def client(runtime: dict[str, Any]) -> Iterator[Client]:
    with connect(frontends=1) as client:
        yield client


def until(client: Client, what: Callable[[dict[str, Any]], bool]) -> None:
    """Return once the runtime's status satisfies ``what``."""
    while not what(client.status()):
        pass


def story(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a run's nodes without times."""
    timed = ("queued_s", "run_s")
    return [{k: v for k, v in node.items() if k not in timed} for node in report["nodes"]]


def test_an_agent_in_an_actor_gives_what_it_gives_in_the_client(runtime: dict[str, Any]):
    stories: list[Any] = []
    outputs: list[Any] = []
    for tenant, count in (("here", 0), ("there", 2)):
        with connect(tenant=tenant, frontends=count) as client:
            reports = [client.submit(research, question=q).report(60) for q in "abc"]
        assert [report["error"] for report in reports] == [None] * 3
        outputs.append([report["output"] for report in reports])
        stories.append([story(report) for report in reports])
    assert outputs[0] == outputs[1]
    assert stories[0] == stories[1]
    assert len(stories[0][0]) == 5


def test_a_frontend_is_another_process_with_the_same_package(client: Client):
    there = client.submit(whereabouts).result(60)
    assert there["pid"] != os.getpid()
    assert there["package"] == herasys_rt.__file__


def test_streamed_pieces_concatenate_to_the_result(client: Client):
    run = client.submit(research, _stream=True, question="why?")
    assert "".join(run.stream()) == run.result(60) != ""


def test_cancelling_and_deadlines_end_the_coroutine_in_the_actor(client: Client):
    run = client.submit(endless, question="cancelled")
    until(client, lambda s: s["counters"]["runs"]["active"] == 1)
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(60)
    late = client.submit(endless, question="late", _deadline_s=0.5)
    assert late.report(60)["error"]["code"] == "deadline_exceeded"
    until(client, lambda s: s["counters"]["runs"]["active"] == 0)


def test_a_killed_frontend_fails_its_run_and_is_replaced(client: Client):
    before = client.submit(whereabouts).result(60)["pid"]
    done = client.status()["counters"]["fragments"]["succeeded"]
    run = client.submit(endless, question="orphan")
    until(client, lambda s: s["counters"]["fragments"]["succeeded"] > done)
    os.kill(before, signal.SIGKILL)
    with pytest.raises(FrontendLostError) as caught:
        run.result(60)
    assert caught.value.retryable
    assert [node["state"] for node in run.report()["nodes"]] == ["succeeded"]
    assert client.submit(whereabouts).result(60)["pid"] != before


def test_a_process_on_another_cluster_is_told_so(runtime: dict[str, Any], client: Client):
    from herasys_rt.runtime.cluster import visit_ray

    with pytest.raises(ClusterError, match=r"on 10\.0\.0\.1:1"):
        visit_ray("10.0.0.1:1", Path("no-token"))


FLOW = """
import os
import sys
from herasys_rt import agent
from operators import generate

import beside

@agent
async def look(run, question: str):
    import lazily  # Only the working directory of the job has it.
    said = await run.call(generate("{q}", q=beside.shorten(question)))
    return {"said": said, "pid": os.getpid(), "env": os.environ.get("OF_THE_JOB"),
            "lazily": lazily.WORD, "program": os.path.basename(sys.argv[0])}
"""


def test_a_job_runs_its_agents_in_a_frontend_with_its_environment(
    runtime: dict[str, Any], client: Client, tmp_path: Path
):
    here = tmp_path / "job"
    here.mkdir()
    (here / "flow.py").write_text(FLOW)
    (here / "beside.py").write_text("def shorten(text):\n    return text[:2]\n")
    (here / "lazily.py").write_text("WORD = 'late'\n")
    rows = [{"question": f"q{i}..."} for i in range(5)]
    given, got = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    entry = f"python -m herasys_rt.batch flow.py:look -i {given} -o {got} --label team=x"
    said = submit_job(runtime, here, entry, {"OF_THE_JOB": "seen"}, python_path=ROOT)
    assert got.exists(), said
    out = [json.loads(line) for line in got.read_text().splitlines()]
    assert [row["error"] for row in out] == [None] * 5, said
    outputs = [row["output"] for row in out]
    assert {output["env"] for output in outputs} == {"seen"}
    assert {output["lazily"] for output in outputs} == {"late"}
    assert len({output["pid"] for output in outputs}) == 1
    assert {output["program"] for output in outputs} == {"default_worker.py"}
    assert [row["labels"] for row in out] == [{"team": "x"}] * 5
    assert [len(row["nodes"]) for row in out] == [1] * 5
