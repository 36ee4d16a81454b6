"""Two documents that share chapters, with the real embedder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import stdlib_docs
from herasys_rt.client.client import Client
from herasys_rt.config import PoolConfig, SchedulerConfig
from herasys_rt.dsl import workflow
from herasys_rt.engines.embedding.sentence_transformers_engine import create
from operators import embed_many
from tests.pure.runtime.conftest import LocalRuntime
from tests.pure.runtime.path_lab import await_fuser

pytestmark = pytest.mark.real


@workflow
def index(chapters: list[str]):
    return embed_many(chapters)


@pytest.fixture(scope="module")
def runtime() -> Iterator[LocalRuntime]:
    pool = PoolConfig(
        name="embedding",
        resource="embedding",
        engine="sentence_transformers",
        model="all-minilm-l6-v2",
    )
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        engines = {"embedding": create(pool)}
        runtime = LocalRuntime(Path(folder), [pool], engines, SchedulerConfig())
        runtime.start_fuser()
        yield runtime
        runtime.close()


def embedded(client: Client, chapters: list[str]) -> tuple[Any, dict[str, int], int]:
    """The vectors of a run, its usage, and how many items it shared."""
    run = client.submit(index, chapters=chapters)
    vectors = run.result(120)
    report = run.report()
    (node,) = report["nodes"]
    return vectors, report["usage"], node["shared_items"]


def test_shared_chapters_are_embedded_once_and_the_vectors_are_the_same(
    runtime: LocalRuntime,
):
    texts = [document["text"][:2000] for document in stdlib_docs.gather(limit=12)]
    first, second = texts[:8], [*texts[11:7:-1], *texts[3:7], texts[9]]
    client = runtime.connect("documents")
    await_fuser(client)
    one, usage, shared = embedded(client, first)
    assert usage["items"] == 8 and shared == 0
    two, usage, shared = embedded(client, second)
    assert usage["items"] == 4 and shared == 5
    np.testing.assert_array_equal(two[4:8], one[3:7])
    np.testing.assert_array_equal(two[8], two[2])

    alone, usage, shared = embedded(runtime.connect("another"), second)
    assert usage["items"] == 8 and shared == 1  # a tenant of its own; one stands twice
    assert two.dtype == alone.dtype and two.shape == alone.shape
    np.testing.assert_allclose(two, alone, atol=1e-5)
