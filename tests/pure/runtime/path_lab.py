"""Workflows for the whole path, and when its loops are ready."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.dsl import workflow
from herasys_rt.graph.hashing import HASHES
from operators import embed, generate, retrieve

under_both_hashes = pytest.mark.parametrize("fusion_hash", HASHES)


@workflow
def answer(question: str):
    return generate("Say: {question}", question=question, max_tokens=8)


@workflow
def both(question: str):
    first = generate("1: {question}", question=question, max_tokens=8)
    second = generate("2: {question}", question=question, max_tokens=8)
    return {"first": first, "second": second}


@workflow
def rag(question: str):
    found = retrieve(embed(question), collection="docs", top_k=1)
    return generate("{found} {question}", found=found, question=question)


def await_fuser(client: Any) -> None:
    """Until the fuser serves (the client was told its door in the welcome or later) and
    knows every model's fingerprint: what it signs before is equal to nothing after."""

    def serves(status: dict[str, Any]) -> bool:
        instances = [i for pool in status["pools"] for i in pool["instances"]]
        return status["fuser"] == "up" and all(i["state"] == "up" for i in instances)

    while not serves(client.status()):
        pass


def await_accepted(client: Any, count: int) -> None:
    """Until the kernel has taken ``count`` runs."""
    while client.status()["counters"]["runs"]["accepted"] < count:
        pass


def streaming(start_runtime: Any, engine: Any) -> tuple[Any, Any, Any]:
    """(client, run, item): a run of `answer` to "q" that streams, at the engine."""
    client = start_runtime(llm=engine).connect()
    await_fuser(client)
    run = client.submit(answer, _stream=True, question="q")
    (item,) = engine.wait_for(1)
    assert engine.sink is not None
    return client, run, item
