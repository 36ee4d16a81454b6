"""What fusion gains on the real engines: HeraSys's mixed load with it and without it.

Two private runtimes of equal configuration stand side by side (SmolLM2 on vLLM, MiniLM
embedding and reranking, PostgreSQL with pgvector; prefix caches on), one with fusion and
one without; only one works at a time. So neither has anything of the other's: no result,
no KV block, no place in a queue. Each is warmed with the same runs and then serves the
same questions in the same order, block by block, in turns.

A third series of blocks runs on the one without fusion: the same runs without those that
repeat an earlier one, for another tenant, so that no KV block of the same runs serves it
(a block of runs is more than the KV memory holds, so neither series finds what an earlier
block left). What that saves of the CPU time of the runtime's processes, which on a machine
without a GPU is its engines' busy time, is w, the share of work that is there twice; no
gain of throughput can exceed 1 / (1 - w). ``cpu_ratio`` is what fusion saves of that time:
where others use the machine too, it depends less on when they do than throughputs.
"""

from __future__ import annotations

import contextlib
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from benchmarks._common import private_home
from herasys_rt.client.client import Client
from herasys_rt.client.link import Link
from herasys_rt.config import Config, default_config
from herasys_rt.dsl import workflow
from herasys_rt.figures import percentile
from herasys_rt.ingestion import ingest_spec
from herasys_rt.profiling_calls import Texts
from herasys_rt.runtime.daemon import Daemon, spawn
from herasys_rt.workloads.catalogue import (
    CONCURRENCY,
    KEPT_CHUNKS,
    LEAST_TOKENS,
    QUESTION_TOKENS,
    RETRIEVED_CHUNKS,
    SNIPPETS,
    mixed,
)
from herasys_rt.workloads.mixture import Duplicates, Mixture
from operators import embed, generate, prompt, rerank, retrieve, web_search

LENGTH_SCALE = 1 / 8
CHUNK_TOKENS = 25
CHUNKS, PAGES = 400, 100
DOCS, WEB = "fusion-docs", "fusion-web"
BATCH = 10
"""Completions whose time together is one value of a throughput."""
PROMPT = "Answer from the passages only.\n{context}\nQuestion: {question}"
_WANTED = ("llm", "embedding", "rerank", "retrieval", "search")
_RESAMPLES = 2000


@workflow
def rag(question: str, tokens: int):
    """An answer of exactly so many tokens, from the nearest chunks."""
    found = retrieve(embed(question), collection=DOCS, top_k=RETRIEVED_CHUNKS)
    return generate(
        PROMPT, context=found, question=question, max_tokens=tokens, min_tokens=tokens
    )


@workflow
def rag_rerank(question: str, tokens: int):
    """As `rag`, from the best of the nearest chunks."""
    found = retrieve(embed(question), collection=DOCS, top_k=RETRIEVED_CHUNKS)
    best = rerank(question, found, top_k=KEPT_CHUNKS)
    return generate(
        PROMPT, context=best, question=question, max_tokens=tokens, min_tokens=tokens
    )


@workflow
def web(question: str, tokens: int):
    """Rewrite the question, search pages, answer from them. The question is searched for
    too, as what a small model writes may be found nowhere."""
    rewritten = generate(
        "Write a search query for this question.\n{question}",
        question=question,
        max_tokens=LEAST_TOKENS,
        min_tokens=LEAST_TOKENS,
    )
    query = prompt("{question} {rewritten}", question=question, rewritten=rewritten)
    pages = web_search(query, top_k=SNIPPETS, collection=WEB)
    return generate(
        PROMPT, context=pages, question=question, max_tokens=tokens, min_tokens=tokens
    )


_WORKFLOWS = {"rag": rag, "rag_rerank": rag_rerank, "web": web}


class Ask(NamedTuple):
    """One run of a load; ``repeats`` says that an earlier one was the same."""

    kind: str
    inputs: Mapping[str, Any]
    repeats: bool = False


class Served(NamedTuple):
    """A block that was served: seconds from its begin to each completion, in order, CPU
    seconds of the runtime, and its nodes."""

    ends_s: tuple[float, ...]
    cpu_s: float
    submitted: int
    executed: int


class Effort(NamedTuple):
    """How much is measured of a load: blocks, and runs in each."""

    blocks: int
    runs: int


class Load(NamedTuple):
    """A load: what share of its runs repeats an earlier one, by Zipf's law."""

    name: str
    duplicates: float
    seed: int


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


# --- what is asked ------------------------------------------------------------------
def asked(load: Load, runs: int) -> list[Ask]:
    """The runs of a load."""
    mixture = Mixture(load.name, mixed(LENGTH_SCALE), Duplicates(load.duplicates))
    texts = Texts(f"{load.name} {load.seed}")
    known: dict[str, Ask] = {}
    asks: list[Ask] = []
    for job in mixture.jobs(load.seed, runs, None):
        ask = known.get(job.duplicate_of)
        if ask is None:
            tokens = job.steps[-1].truth.output_tokens
            inputs = {"question": texts.of(QUESTION_TOKENS), "tokens": tokens}
            ask = known[job.id] = Ask(job.kind, inputs)
        asks.append(ask._replace(repeats=job.duplicate_of != ""))
    return asks


# --- a runtime ----------------------------------------------------------------------
class Runtime:
    """A private runtime and the processes it is made of."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._root = psutil.Process(daemon.state["pid"])

    @contextlib.contextmanager
    def connected(self, tenant: str = "default") -> Iterator[Client]:
        """A client of a tenant: what it computes is shared with no other tenant's."""
        link = Link(self._daemon.endpoint, tenant)
        link.open()
        with Client(link, "private", lambda: None, self._daemon.state["dsn"]) as client:
            yield client

    def cpu_s(self) -> float:
        """CPU seconds of its processes so far."""
        total = 0.0
        for process in [self._root, *self._root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                used = process.cpu_times()
                total += used.user + used.system
        return total

    def serve(self, client: Client, asks: Sequence[Ask]) -> Served:
        """Run all of them in a closed loop of `CONCURRENCY`."""
        waiting: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        for ask in asks:
            waiting.put(ask)
        told: list[tuple[float, dict[str, Any]]] = []

        def ask_on() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    ask = waiting.get_nowait()
                    run = client.submit(_WORKFLOWS[ask.kind], **ask.inputs)
                    report = run.report(600)
                    told.append((time.perf_counter() - began_s, report))

        before_s, began_s = self.cpu_s(), time.perf_counter()
        loop = [threading.Thread(target=ask_on) for _ in range(CONCURRENCY)]
        for one in loop:
            one.start()
        for one in loop:
            one.join()
        cpu_s = self.cpu_s() - before_s
        if len(told) < len(asks):
            raise SystemExit(f"only {len(told)} of {len(asks)} runs ended")
        for _, report in told:
            if report["error"] is not None:
                raise SystemExit(f"a run failed: {report['error']}")
        nodes = [node for _, report in told for node in report["nodes"]]
        executed = sum(_was_executed(node) for node in nodes)
        return Served(tuple(sorted(s for s, _ in told)), cpu_s, len(nodes), executed)


def _was_executed(node: Mapping[str, Any]) -> bool:
    return not (node["fused_into"] or node["reused"]) and node["state"] == "succeeded"


@contextlib.contextmanager
def runtime(config: Config) -> Iterator[Runtime]:
    """A private runtime with folders of its own; nothing of it is kept."""
    with private_home() as place:
        database = config.database.model_copy(update={"data_dir": place / "data"})
        mine = config.model_copy(update={"database": database})
        daemon = spawn(mine, private=True, progress=say)
        try:
            yield Runtime(daemon)
        finally:
            daemon.stop()


def with_fusion(config: Config, fusion: bool) -> Config:
    """The same configuration with fusion on or off."""
    scheduler = config.scheduler.model_copy(update={"fusion": fusion})
    return config.model_copy(update={"scheduler": scheduler})


def engines_config() -> Config:
    """The default configuration, cut to the pools that the load needs."""
    config = default_config()
    pools = tuple(pool for pool in config.pools if pool.resource in _WANTED)
    return config.model_copy(update={"pools": pools})


def fill(client: Client) -> None:
    """Store the chunks and the pages."""
    for collection, count, tokens in (
        (DOCS, CHUNKS, CHUNK_TOKENS),
        (WEB, PAGES, LEAST_TOKENS),
    ):
        texts = Texts(collection)
        documents = [{"id": f"d{i}", "text": texts.of(tokens)} for i in range(count)]
        client.submit(ingest_spec(), documents=documents, collection=collection).result(600)


# --- the measurement ----------------------------------------------------------------
class Blocks(NamedTuple):
    """What was served of one load, block by block."""

    on: list[Served]
    off: list[Served]
    single: list[Served]


def measure(loads: Mapping[Load, Effort], warm_runs: int = 12) -> dict[str, Blocks]:
    """The blocks of each load by its name."""
    config = engines_config()
    found: dict[str, Blocks] = {}
    with (
        runtime(with_fusion(config, True)) as on,
        runtime(with_fusion(config, False)) as off,
    ):
        for one in (on, off):
            with one.connected("warm") as client:
                say("storing chunks")
                fill(client)
                one.serve(client, asked(Load("warm", 0.0, 0), warm_runs))
        for load, effort in loads.items():
            found[load.name] = alternate(on, off, load, effort)
    return found


def alternate(on: Runtime, off: Runtime, load: Load, effort: Effort) -> Blocks:
    """Serve a load's blocks in turns: the three series in an order that rotates."""
    asks = asked(load, effort.blocks * effort.runs)
    blocks = Blocks([], [], [])
    with (
        on.connected(load.name) as fused,
        off.connected(load.name) as alone,
        off.connected(f"{load.name}-single") as single,
    ):
        for number in range(effort.blocks):
            part = asks[number * effort.runs : (number + 1) * effort.runs]
            turns = [
                (blocks.on, on, fused, part),
                (blocks.off, off, alone, part),
                (blocks.single, off, single, [a for a in part if not a.repeats]),
            ]
            for step in range(len(turns)):
                series, where, client, mine = turns[(number + step) % len(turns)]
                series.append(where.serve(client, mine))
            walls = ", ".join(f"{series[-1].ends_s[-1]:.1f}" for series in blocks)
            say(f"{load.name}, block {number + 1} of {effort.blocks}: {walls} s")
    return blocks


def figures(blocks: Blocks) -> dict[str, Any]:
    """What the blocks of a load come to."""
    ratio = _rate(blocks.on) / _rate(blocks.off)
    doubled = 1.0 - _cpu_s(blocks.single) / _cpu_s(blocks.off)
    bound = 1.0 / (1.0 - doubled)
    return {
        "ratio": round(ratio, 4),
        "bound": round(bound, 4),
        "share_of_bound": round(ratio / bound, 4),
        "w": round(doubled, 4),
        "cpu_ratio": round(_cpu_s(blocks.off) / _cpu_s(blocks.on), 4),
        "runs_per_arm": sum(len(block.ends_s) for block in blocks.on),
        "runs_repeated": sum(len(block.ends_s) for block in blocks.on)
        - sum(len(block.ends_s) for block in blocks.single),
        "runs_per_s": {
            "on": round(_rate(blocks.on), 4),
            "off": round(_rate(blocks.off), 4),
        },
        "executed_share": round(
            sum(b.executed for b in blocks.on) / sum(b.submitted for b in blocks.on), 4
        ),
    }


def gaps(ends_s: Sequence[float]) -> list[float]:
    """The seconds that every `BATCH` completions took; the last may be fewer."""
    edges = [*ends_s[BATCH - 1 :: BATCH]]
    if len(ends_s) % BATCH:
        edges.append(ends_s[-1])
    return [after - before for before, after in zip([0.0, *edges], edges, strict=False)]


def ratio_interval(blocks: Blocks) -> tuple[float, float]:
    """An interval of the ratio of throughputs, over pairs of batches of completions. Says
    little where most runs are joined: they end in clusters."""
    pairs = [
        pair
        for off, on in zip(blocks.off, blocks.on, strict=True)
        for pair in zip(gaps(off.ends_s), gaps(on.ends_s), strict=True)
    ]
    return interval(pairs, lambda some: sum(a for a, _ in some) / sum(b for _, b in some))


def interval(
    pairs: Sequence[tuple[float, float]],
    statistic: Callable[[Sequence[tuple[float, float]]], float],
    seed: int = 0,
) -> tuple[float, float]:
    """A 95 % bootstrap interval of a statistic of pairs; the same for the same pairs."""
    draw = random.Random(seed)
    found = [statistic(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES)]
    return percentile(found, 2.5), percentile(found, 97.5)


def _cpu_s(blocks: Sequence[Served]) -> float:
    return sum(block.cpu_s for block in blocks)


def _rate(blocks: Sequence[Served]) -> float:
    return sum(len(b.ends_s) for b in blocks) / sum(b.ends_s[-1] for b in blocks)
