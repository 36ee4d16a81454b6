"""Candidates that overlap, with real rerankers and Ray: equal pairs are scored once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt import Client, connect, workflow
from herasys_rt.config import Config, PoolConfig, SchedulerConfig
from herasys_rt.dsl.workflow import Workflow
from herasys_rt.graph.hashing import HASHES, HashName
from herasys_rt.runtime import daemon
from operators import rerank
from tests.real.test_rerank_models import save_cross_encoder

pytestmark = pytest.mark.real

LATE = "all-minilm-l6-v2"
TEXTS = {
    "p": "Paris is the capital and largest city of France.",
    "h": "A heap keeps its smallest element at the front.",
    "r": "Tomorrow it will rain in the north and be dry elsewhere.",
    "b": "Berlin is a city, and the capital of Germany.",
    "m": "Milk is white.",
}


def reranking(model: str) -> Workflow[...]:
    @workflow
    def flow(question: str, passages: list[dict], top_k: int):  # pyright: ignore[reportMissingTypeArgument]
        return rerank(question, passages, top_k=top_k, model=model)

    return flow


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_cross_encoder(tmp_path_factory.mktemp("cross") / "model", labels=1))


@pytest.fixture(scope="module", params=HASHES)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cross: str
) -> Iterator[Client]:
    fusion_hash: HashName = request.param
    folder: Path = tmp_path_factory.mktemp("state")
    pools = (
        PoolConfig(
            name="late",
            resource="rerank",
            engine="late_interaction",
            model=LATE,
            default=True,
        ),
        PoolConfig(
            name="cross",
            resource="rerank",
            engine="cross_encoder",
            model=cross,
        ),
    )
    scheduler = SchedulerConfig(fusion_hash=fusion_hash)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERASYS_STATE_DIR", str(folder))
        daemon.up(Config(pools=pools, scheduler=scheduler))
        with connect() as client:
            yield client
        assert daemon.down()


def passages(names: str, of: str) -> list[dict[str, Any]]:
    return [
        {"id": f"{of}-{name}", "text": TEXTS[name], "source": of, "score": at / 7}
        for at, name in enumerate(names)
    ]


@pytest.mark.parametrize("kind", ["late_interaction", "cross_encoder"])
def test_pairs_are_scored_once_and_the_ranking_is_the_engines(
    client: Client, cross: str, kind: str
):
    flow = reranking(LATE if kind == "late_interaction" else cross)

    def ask(question: str, names: str, of: str) -> tuple[list[dict[str, Any]], int]:
        run = client.submit(flow, question=question, passages=passages(names, of), top_k=4)
        best = run.result(60)
        (node,) = run.report()["nodes"]
        return best, len(names) - node["shared_items"]

    question = "What is the capital of France?"
    first, computed = ask(question, "phr", "first")
    assert computed == 3
    second, computed = ask(question, "bhpm", "second")
    assert computed == 2
    scores = [c["score"] for c in second]
    assert scores == sorted(scores, reverse=True) and len(scores) == 4
    told = [{c["text"]: c["score"] for c in best} for best in (first, second)]
    for text in (TEXTS["p"], TEXTS["h"]):
        assert told[0][text] == told[1][text]
    assert {c["source"] for c in second} == {"second"}
    assert ask(question, "bhpm", "third")[1] == 0
    alone, computed = ask(f" {question}", "bhpm", "second")
    assert computed == 4
    # Blanks are no tokens, so the words of the question are the same.
    assert {c["text"]: c["score"] for c in alone} == pytest.approx(told[1], abs=1e-3)
