"""Results that outlast the runtime, with a real embedder, a real database and Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt import connect, workflow
from herasys_rt.cli import execute, runtime
from herasys_rt.config import Config, PoolConfig, ReuseConfig, SchedulerConfig
from herasys_rt.engines.postgres.sync import open_store
from herasys_rt.runtime import daemon
from operators import embed, ingest, retrieve

pytestmark = pytest.mark.real

OTTER = "The lighthouse keeper of Vrondal keeps an otter."
QUESTION = "What animal does the lighthouse keeper of Vrondal keep?"


@workflow
def fill(documents: list[dict], collection: str):  # pyright: ignore
    return ingest(documents, collection=collection)


@workflow
def find(question: str):
    return retrieve(embed(question), collection="lighthouses", top_k=2)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    # A database of its own: other modules' collections are not dropped.
    monkeypatch.setenv("HERASYS_STATE_DIR", str(tmp_path / "state"))
    model = "all-minilm-l6-v2"
    pools = (
        PoolConfig(
            name="embedding",
            resource="embedding",
            engine="sentence_transformers",
            model=model,
        ),
        PoolConfig(name="retrieval", resource="retrieval", engine="pgvector", slots=4),
    )
    scheduler = SchedulerConfig(reuse=ReuseConfig(store="disk"))
    yield Config(pools=pools, scheduler=scheduler)
    daemon.down()


def asked() -> dict[str, Any]:
    """The report of a run that asks for the otter."""
    with connect() as client:
        return client.submit(find, question=QUESTION).report(60)


def reused(report: dict[str, Any]) -> list[bool]:
    return [node["reused"] for node in report["nodes"]]


def test_what_ran_before_down_is_reused_after_up_unless_documents_changed(
    config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    daemon.up(config)
    documents = [{"id": "otter", "text": OTTER}]
    with connect() as client:
        client.submit(fill, documents=documents, collection="lighthouses").report(60)
    first = asked()
    assert reused(first) == [False, False]
    assert daemon.down()

    daemon.up(config)
    again = asked()
    assert reused(again) == [True, True]
    assert again["output"] == first["output"]
    assert again["sources"] == first["sources"] != []
    capfd.readouterr()
    assert execute(["cache", "stats", "--json"]) == 0
    stats = json.loads(capfd.readouterr().out)
    assert stats["hints"]["taken"] == 2
    assert stats["nodes"]["saved_s"] > 0
    assert stats["store"]["state"] == "up"
    assert daemon.down()

    with runtime.database(config) as dsn, open_store(dsn) as store:
        store.delete("lighthouses", source="otter")
    daemon.up(config)
    changed = asked()
    assert reused(changed) == [True, False], "the question is as it was"
    assert changed["output"] == []
    capfd.readouterr()
    assert execute(["cache", "purge", "--yes", "--json"]) == 0
    done = json.loads(capfd.readouterr().out)
    assert done["entries"] == 2 and done["stored"] >= 2
    assert reused(asked()) == [False, False]
    assert daemon.down()
