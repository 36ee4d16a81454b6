"""The HeraSys paper's mixed workload: three of four questions go to retrieval (half of
those with rerank), every fourth to the web-search agent.

    python -m examples.mixed --runs 20 --concurrency 8
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from examples.stdlib_docs import QUESTIONS
from examples.stdlib_rag import rag, rag_rerank
from examples.web_search_agent import research
from herasys_rt import Client, connect
from herasys_rt.client.run import Run

KINDS = {"rag": rag, "rag_rerank": rag_rerank, "web": research}


def pattern(runs: int) -> Iterator[tuple[str, str]]:
    """(kind, question) of each run: rag, rag with rerank and web in the paper's shares."""
    order = ("rag", "rag_rerank", "rag", "web", "rag_rerank", "rag", "rag_rerank", "web")
    for i in range(runs):
        yield order[i % len(order)], QUESTIONS[i % len(QUESTIONS)]


def run_mixed(client: Client, runs: int, concurrency: int) -> list[tuple[str, Run]]:
    """The runs of the mix, all ended, at most ``concurrency`` at once."""
    mix = list(pattern(runs))
    jobs = ((KINDS[kind], {"question": question}) for kind, question in mix)
    ended = client.map_many(jobs, concurrency=concurrency)
    return [(kind, run) for (kind, _), run in zip(mix, ended, strict=True)]


def main(argv: list[str] | None = None) -> int:
    """The command; prints one JSON line per kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=8)
    args = parser.parse_args(argv)
    started_s = time.monotonic()
    with connect(on_progress=lambda text: print(text, file=sys.stderr)) as client:
        ended = run_mixed(client, args.runs, args.concurrency)
    failed = 0
    for kind in KINDS:
        reports = [run.report() for k, run in ended if k == kind]
        good = [r["latency_s"] for r in reports if r["status"] == "succeeded"]
        failed += len(reports) - len(good)
        line: dict[str, Any] = {
            "kind": kind,
            "runs": len(reports),
            "succeeded": len(good),
            "mean_s": round(sum(good) / max(1, len(good)), 3),
            "wall_s": round(time.monotonic() - started_s, 3),
        }
        print(json.dumps(line))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
