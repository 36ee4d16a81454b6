"""Equal contents share work through the whole control path, whatever led to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from herasys_rt.client.client import Client
from herasys_rt.client.run import Run
from herasys_rt.config import PoolConfig
from herasys_rt.dsl import map_over, workflow
from herasys_rt.engines import modelled
from herasys_rt.engines.protocol import Item
from operators import embed, generate, retrieve
from tests.pure.runtime.path_lab import await_fuser, under_both_hashes

pytestmark = under_both_hashes

WORDS = "cats and mice"
CHUNK = {"id": "a#0", "source": "a", "text": "because", "score": 0.5}


@workflow
def politely(question: str):
    words = generate("Rewrite politely: {question}", question=question, max_tokens=8)
    return retrieve(embed(words), collection="docs", top_k=1)


@workflow
def briefly(text: str, top_k: int = 1):
    draft = generate("Draft: {text}", text=text, max_tokens=9)
    words = generate("Shorten: {draft}", draft=draft, max_tokens=8)
    found = retrieve(embed(words), collection="docs", top_k=top_k)
    return {"found": found, "words": words}


@workflow
def each_embedded(texts: list[str]):
    return map_over(texts, embed)


@workflow
def each_answer_embedded(texts: list[str]):
    said = map_over(texts, lambda text: generate("{text}", text=text))
    return map_over(said, embed)


class Bench:
    """A runtime whose language model says what the test says, and counts the rest."""

    def __init__(self, start: Callable[..., Any], engine: Callable[[], Any]) -> None:
        self.engines = {name: engine() for name in ("embedding", "search", "llm")}
        pool = PoolConfig(name="python", resource="python", engine="modelled")
        self.runtime = start(**self.engines, python=modelled.create(pool))
        self._said = 0

    def connect(self, tenant: str = "default") -> Client:
        client = self.runtime.connect(tenant)
        await_fuser(client)
        return client

    def say(self, text: str) -> None:
        """End the next call of the language model."""
        self._said += 1
        item = self.engines["llm"].wait_for(self._said)[self._said - 1]
        self.engines["llm"].finish(item, text)

    def serve(self, pool: str, count: int, value: Any, **outcome: Any) -> list[Item]:
        """End what a pool was given, once that is ``count`` items in all."""
        items = self.engines[pool].wait_for(count)
        for item in items:
            if item.key in self.engines[pool].items:
                self.engines[pool].finish(item, value, **outcome)
        return items


@pytest.fixture
def bench(start_runtime: Any, hand_engine: Any) -> Bench:
    return Bench(start_runtime, hand_engine)


def node(run: Run, operator: str) -> dict[str, Any]:
    """The record of a run's only node of an operator."""
    (found,) = [n for n in run.report()["nodes"] if n["operator"].startswith(operator)]
    return found


def test_workflows_whose_rewritten_queries_are_equal_share_the_search(bench: Bench):
    client = bench.connect()
    first = client.submit(politely, question="Tell me of cats and of mice")
    bench.say(WORDS)
    (embedding,) = bench.engines["embedding"].wait_for(1)
    second = client.submit(briefly, text="all I ever wanted to know of cats and mice")
    bench.say("a draft")
    bench.say(WORDS)
    bench.engines["embedding"].finish(embedding, np.ones(3, dtype=np.float32))
    bench.serve("search", 1, [CHUNK], revisions={"docs": 1})
    assert first.result(10) == second.result(10)["found"] == [CHUNK]
    assert [len(bench.engines[pool].seen) for pool in bench.engines] == [1, 1, 3]
    shared = [n["fused_into"] or n["reused"] for n in second.report()["nodes"]]
    assert [bool(way) for way in shared] == [False, False, True, True]


def test_with_one_input_different_they_share_up_to_there(bench: Bench):
    client = bench.connect()
    first = client.submit(politely, question="Tell me of cats and of mice")
    bench.say(WORDS)
    bench.serve("embedding", 1, np.ones(3, dtype=np.float32))
    bench.engines["search"].wait_for(1)
    second = client.submit(briefly, text="cats, mice", top_k=2)
    bench.say("a draft")
    bench.say(WORDS)
    bench.serve("search", 2, [CHUNK], revisions={"docs": 1})
    assert first.result(10) == second.result(10)["found"]
    assert len(bench.engines["embedding"].seen) == 1
    assert not node(second, "retrieve")["fused_into"]
    third = client.submit(briefly, text="dogs")
    bench.say("another draft")
    bench.say("dogs and bones")
    bench.serve("embedding", 2, np.zeros(3, dtype=np.float32))
    bench.serve("search", 3, [CHUNK], revisions={"docs": 1})
    assert third.result(10)["words"] == "dogs and bones"


def test_equal_items_share_whether_a_list_or_a_region_has_them(bench: Bench):
    client, vector = bench.connect(), np.ones(3, dtype=np.float32)
    run = client.submit(each_embedded, texts=["cats", "mice"])
    bench.serve("embedding", 2, vector)
    run.result(10)
    run = client.submit(each_answer_embedded, texts=["one", "two", "three"])
    bench.say("mice")
    bench.say("dogs")
    bench.say("cats")
    items = bench.serve("embedding", 3, vector)
    assert [item.args["text"] for item in items] == ["cats", "mice", "dogs"]
    run.result(10)
    embedded = [n for n in run.report()["nodes"] if n["operator"] == "embed@1"]
    assert [n["reused"] for n in embedded] == [True, False, True]


def test_tenants_never_share_by_value(bench: Bench):
    ours, theirs = bench.connect("ours"), bench.connect("theirs")
    runs = [client.submit(politely, question=f"{client}?") for client in (ours, theirs)]
    bench.say(WORDS)
    bench.say(WORDS)
    items = bench.serve("embedding", 2, np.ones(3, dtype=np.float32))
    assert {item.trust_scope for item in items} == {"tenant:ours", "tenant:theirs"}
    bench.serve("search", 2, [CHUNK], revisions={"docs": 1})
    for run in runs:
        assert run.result(10) == [CHUNK]
        assert not any(n["fused_into"] or n["reused"] for n in run.report()["nodes"])


def test_runs_that_come_unsigned_while_the_fuser_is_away_share_nothing(
    start_runtime: Any, hand_engine: Any
):
    engines = {name: hand_engine() for name in ("embedding", "search", "llm")}
    client = start_runtime(fuser=False, **engines).connect()
    for number in (1, 2):
        run = client.submit(politely, question=f"{number}?")
        for pool, value in (
            ("llm", WORDS),
            ("embedding", np.ones(3, dtype=np.float32)),
            ("search", [CHUNK]),
        ):
            engines[pool].finish(engines[pool].wait_for(number)[-1], value)
        assert run.result(10) == [CHUNK]
