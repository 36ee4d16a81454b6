"""Large values that Ray's object store loses, on the real actors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from herasys_rt import workflow
from herasys_rt.client.client import Client
from herasys_rt.client.link import Link
from herasys_rt.config import Config, PoolConfig
from herasys_rt.errors import ValueLostError
from herasys_rt.runtime.stack import Stack
from operators import tool

pytestmark = pytest.mark.real

SIZE = 200_000


@tool(pure=True, version="1")
def grow(words: str) -> str:
    return words * (SIZE // len(words))


@tool(pure=True, version="1")
def measure(text: str, part: int) -> int:
    return len(text) // part


@workflow
def long_text(words: str):
    return grow(words)


@workflow
def length(words: str, part: int):
    return measure(grow(words), part=part)


class Giver:
    """Owns large objects, for as long as it lives."""

    def give(self, count: int) -> list[Any]:
        import ray

        return [ray.put(np.zeros(SIZE, dtype=np.uint8)) for _ in range(count)]


def exchange(scheduler: Any, references: list[Any]) -> None:
    """Within the scheduler's process: let it hold these in place of what it holds."""
    held = scheduler._objects._refs
    held.update(dict(zip(list(held), references, strict=True)))


class Bench:
    """A runtime on Ray, and how to lose a value of it."""

    def __init__(self, run_dir: Path) -> None:
        pool = PoolConfig(
            name="python",
            resource="python",
            engine="python",
            slots=4,
            options={"isolate": "process", "workers": 1},
        )
        self.stack = Stack(Config(pools=(pool,)), run_dir)
        link = Link(self.stack.start(lambda _: None), "test")
        link.open()
        self.client = Client(link, "test", lambda: None)

    def lose(self) -> None:
        """Let every large value that is held be one whose owner has died."""
        import ray
        from ray.exceptions import ObjectLostError

        runtime: Any = self.stack._runtime  # pyright: ignore[reportPrivateUsage]
        scheduler = runtime._scheduler
        count = ray.get(scheduler.held.remote())
        giver: Any = ray.remote(num_cpus=0)(Giver).remote()  # pyright: ignore
        references = ray.get(giver.give.remote(count))
        ray.get(scheduler.__ray_call__.remote(exchange, references))
        ray.kill(giver)
        for reference in references:
            with pytest.raises(ObjectLostError):
                while True:  # Ray itself hears of it a little later.
                    ray.get(reference, timeout=60)

    def close(self) -> None:
        self.client.close()
        self.stack.stop()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        made = Bench(Path(folder))
        yield made
        made.close()


def reused(run: Any) -> list[bool]:
    return [node["reused"] for node in run.report(60)["nodes"]]


def test_a_result_that_is_lost_fails_one_run_and_the_next_one_computes_it(bench: Bench):
    client = bench.client
    assert len(client.submit(long_text, words="otter ").result(60)) <= SIZE
    assert reused(client.submit(long_text, words="otter ")) == [True]
    bench.lose()
    with pytest.raises(ValueLostError) as caught:
        client.submit(long_text, words="otter ").result(60)
    assert caught.value.retryable and "again" in caught.value.hint
    again = client.submit(long_text, words="otter ")
    assert again.result(60) == "otter " * (SIZE // 6)
    assert reused(again) == [False]


def test_a_node_whose_input_is_lost_fails_its_run_and_the_next_one_computes_it(
    bench: Bench,
):
    client = bench.client
    assert client.submit(length, words="lynx ", part=2).result(60) == SIZE // 2
    bench.lose()
    with pytest.raises(ValueLostError) as caught:
        client.submit(length, words="lynx ", part=4).result(60)
    assert caught.value.retryable
    again = client.submit(length, words="lynx ", part=4)
    assert again.result(60) == SIZE // 4
    assert reused(again) == [False, False]
