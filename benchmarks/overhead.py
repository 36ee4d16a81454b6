"""What the control path costs: submit -> fuse -> schedule -> three chained pools -> result.

Three modelled pools of 0 ms, each in a process of its own, so that everything measured
is ours. Prints one JSON object:

    c1:   p50_ms, p95_ms                      one run at a time
    c100: runs_per_s, p50_ms, cpu_ms_per_run  100 runs at once; CPU over all processes

Every run has inputs of its own, so that nothing fuses.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import psutil

from benchmarks._common import emit, facts, standard_arguments
from herasys_rt import connect
from herasys_rt.client.client import Client
from herasys_rt.config import Config, PoolConfig
from herasys_rt.dsl import workflow
from herasys_rt.figures import percentile
from operators import embed, generate, retrieve


@workflow
def chain(question: str):
    """Three nodes, one after the other, each on a pool of its own."""
    found = retrieve(embed(question), collection="none", top_k=1)
    # The question again: what a modelled search finds is always equal.
    return generate("{question}\n{found}", question=question, found=found, max_tokens=1)


def modelled_config() -> Config:
    """Three pools that take no time."""
    wide = {"engine": "modelled", "slots": 256, "batch_limit": 64}
    return Config(
        pools=(
            PoolConfig(name="embedding", resource="embedding", **wide),
            PoolConfig(name="retrieval", resource="retrieval", **wide),
            PoolConfig(name="llm", resource="llm", **wide),
        )
    )


def one_at_a_time(client: Client, runs: int, salt: str) -> list[float]:
    """Latencies in seconds of runs submitted one after the other."""
    latencies: list[float] = []
    for i in range(runs):
        started_s = time.perf_counter()
        client.submit(chain, question=f"{salt} {i}").result(30)
        latencies.append(time.perf_counter() - started_s)
    return latencies


def many_at_once(
    client: Client, runs: int, concurrency: int, salt: str
) -> tuple[float, list[float], float]:
    """(wall seconds, latencies in seconds, CPU seconds over all processes)."""
    inputs = ({"question": f"{salt} {i}"} for i in range(runs))
    latencies: list[float] = []
    before_s = _cpu_s()
    started_s = time.perf_counter()
    for run in client.map(chain, inputs, concurrency=concurrency):
        latencies.append(run.report()["latency_s"])
    wall_s = time.perf_counter() - started_s
    return wall_s, latencies, _cpu_s() - before_s


def _cpu_s() -> float:
    """CPU seconds used so far by this process and every process of the runtime."""
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue
        total += used.user + used.system
    return total


def measure(quick: bool) -> dict[str, Any]:
    """The benchmark's result."""
    runs_1, runs_100, repeats = (300, 3000, 3) if quick else (2000, 20_000, 5)
    with connect(modelled_config()) as client:
        one_at_a_time(client, 200, "warm")
        many_at_once(client, 1000, 100, "warm too")
        c1: list[list[float]] = []
        c100: list[tuple[float, list[float], float]] = []
        for repeat in range(repeats):
            c1.append(one_at_a_time(client, runs_1, f"one {repeat}"))
            c100.append(many_at_once(client, runs_100, 100, f"many {repeat}"))
        nodes = client.status()["counters"]["nodes"]
    if nodes["executed"] != nodes["submitted"]:
        raise SystemExit(f"not every node was executed: {nodes}")
    rates = [len(latencies) / wall_s for wall_s, latencies, _ in c100]
    cpu = [1e3 * cpu_s / len(latencies) for _, latencies, cpu_s in c100]
    every_1 = [x for part in c1 for x in part]
    every_100 = [x for _, part, _ in c100 for x in part]
    return {
        "c1": {
            "p50_ms": round(1e3 * percentile(every_1, 50), 3),
            "p95_ms": round(1e3 * percentile(every_1, 95), 3),
            "p50_ms_by_repeat": [round(1e3 * percentile(p, 50), 3) for p in c1],
        },
        "c100": {
            "runs_per_s": round(percentile(rates, 50), 1),
            "p50_ms": round(1e3 * percentile(every_100, 50), 3),
            "cpu_ms_per_run": round(percentile(cpu, 50), 3),
            "runs_per_s_by_repeat": [round(r, 1) for r in rates],
            "cpu_ms_per_run_by_repeat": [round(c, 3) for c in cpu],
        },
        "runs": {"c1": runs_1 * repeats, "c100": runs_100 * repeats},
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    standard_arguments(parser)
    args = parser.parse_args()
    emit({**measure(args.quick), **facts(seeds=[])}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
