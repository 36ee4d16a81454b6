"""Large values that Ray's object store loses, on the real actors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt import workflow
from herasys_rt.client.client import Client
from herasys_rt.client.link import Link
from herasys_rt.config import Config, PoolConfig, SchedulerConfig
from herasys_rt.core.events import ItemFinished
from herasys_rt.core.journal import read_journal
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
        config = Config(pools=(pool,), scheduler=SchedulerConfig(journal=True))
        self.journal = run_dir / "journal.bin"
        self.stack = Stack(config, run_dir)
        link = Link(self.stack.start(lambda _: None), "test")
        link.open()
        self.client = Client(link, "test", lambda: None)

    def lose(self) -> None:
        """Free, behind the runtime's back, every large value that it has made."""
        import ray
        from ray._private.internal_api import free  # pyright: ignore
        from ray.exceptions import ObjectLostError

        runtime: Any = self.stack._runtime  # pyright: ignore[reportPrivateUsage]
        places = self.places()
        while not places:  # The journal is written twice a second.
            places = self.places()
        for place in places:
            for reference in ray.get(runtime._scheduler.reference.remote(place)):
                free([reference])
                with pytest.raises(ObjectLostError):
                    ray.get(reference, timeout=60)

    def places(self) -> list[str]:
        events = [event for _, event in read_journal(self.journal)]
        made = [event.value.place for event in events if isinstance(event, ItemFinished)]
        return [place for place in made if place]

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
