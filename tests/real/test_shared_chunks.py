"""Ingests that overlap, with a real embedder, a real database and Ray: the chunks that
documents share are embedded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from herasys_rt import Client, connect, map_over, workflow
from herasys_rt.config import Config, PoolConfig, SchedulerConfig
from herasys_rt.graph.hashing import HASHES, HashName
from herasys_rt.runtime import daemon
from operators import chunk, embed, embed_many, ingest, retrieve

pytestmark = pytest.mark.real

MODEL = "all-minilm-l6-v2"
TOKENS = 100
"""Of a chunk: a chapter fills more than half of it, so that each is cut off by itself."""
SENTENCE = (
    "The keeper of {name} lighthouse wrote in his book that night number {n} was calm."
)


@workflow
def fill(documents: list[dict], collection: str):  # pyright: ignore[reportMissingTypeArgument]
    return ingest(documents, collection=collection, chunk_tokens=TOKENS, overlap=0)


@workflow
def each(texts: list[str]):
    return map_over(texts, lambda t: embed_many(chunk(t, max_tokens=TOKENS, overlap=0)))


@workflow
def find(question: str, collection: str):
    return retrieve(embed(question, kind="document"), collection=collection, top_k=2)


@pytest.fixture(scope="module", params=HASHES)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    fusion_hash: HashName = request.param
    pools = (
        PoolConfig(
            name="embedding",
            resource="embedding",
            engine="sentence_transformers",
            model=MODEL,
        ),
        PoolConfig(name="retrieval", resource="retrieval", engine="pgvector", slots=4),
        PoolConfig(name="python", resource="python", engine="python", slots=4),
    )
    scheduler = SchedulerConfig(fusion_hash=fusion_hash)
    folder: Path = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERASYS_STATE_DIR", str(folder))
        daemon.up(Config(pools=pools, scheduler=scheduler))
        with connect() as client:
            yield client
        assert daemon.down()


def chapter(name: str) -> str:
    return " ".join(SENTENCE.format(name=name, n=n) for n in range(4))


def text(names: str, of: str) -> str:
    """A document with a chapter per letter, out of the book ``of``."""
    return "\n\n".join(chapter(f"{of} {name}") for name in names)


def embedded(report: dict[str, Any], chunks: int) -> int:
    """How many of a run's chunks its embedder was asked for."""
    nodes = [n for n in report["nodes"] if n["operator"] == "embed_many@1"]
    assert all(node["state"] == "succeeded" for node in nodes)
    return chunks - sum(node["shared_items"] for node in nodes)


def test_an_ingest_embeds_what_no_earlier_one_has(client: Client) -> None:
    counts: list[int] = []
    for name, letters in (("first", "abcd"), ("second", "xbcdy")):
        documents = [{"id": name, "text": text(letters, "one")}]
        run = client.submit(fill, documents=documents, collection="one")
        stored = run.result(120)
        assert stored["chunks"] == len(letters)
        counts.append(embedded(run.report(), len(letters)))
    assert counts == [4, 2]
    shared = client.submit(find, question=chapter("one c"), collection="one").result(60)
    assert {found["source"] for found in shared} == {"first", "second"}
    assert all(found["text"] == chapter("one c") for found in shared)
    assert [found["score"] for found in shared] == pytest.approx([1, 1], abs=1e-4)


def test_ingests_at_once_embed_the_union_of_their_chunks(client: Client) -> None:
    books = ["abcd", "bcde", "abcd", "dea"]
    runs = [
        client.submit(
            fill,
            documents=[{"id": f"book {at}", "text": text(letters, "two")}],
            collection="two",
        )
        for at, letters in enumerate(books)
    ]
    assert [run.result(120)["chunks"] for run in runs] == [len(b) for b in books]
    asked = [embedded(run.report(), len(b)) for run, b in zip(runs, books, strict=True)]
    assert sum(asked) == len(set("".join(books)))


def test_documents_of_a_region_embed_the_union_of_their_chunks(client: Client) -> None:
    books = ["abc", "bcd", "cda"]
    run = client.submit(each, texts=[text(letters, "three") for letters in books])
    found = run.result(120)
    assert [len(vectors) for vectors in found] == [3, 3, 3]
    np.testing.assert_array_equal(found[0][1:], found[1][:2])
    np.testing.assert_array_equal(found[0][0], found[2][2])
    assert embedded(run.report(), 9) == 4
