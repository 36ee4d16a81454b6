"""Run a rival's program: questions in, one JSON line per answer out.

    .venv-rivals/bin/python -m benchmarks.rivals.run langgraph rag \
        --llm-url http://127.0.0.1:8000/v1 --passages passages.jsonl < questions.jsonl

Each line of standard input is ``{"question": ...}``. Each line of output has ``index``
(of the question), ``status``, ``latency_s``, ``error`` (null or ``{type, message}``) and
what the program gave: ``answer``, ``sources``, ``queries``, ``calls``. Exit status 0 when
all succeeded, 3 when some failed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rivals.settings import Settings

FRAMEWORKS = {
    "langgraph": "langgraph_programs",
    "langgraph_functional": "langgraph_functional",
    "llamaindex": "llamaindex_programs",
}


async def run_all(
    framework: Any, program: str, settings: Settings, asked: Sequence[str], limit: int
) -> bool:
    """Run a program for every question, ``limit`` at once; whether all succeeded."""
    parts = framework.connect(settings)
    places = asyncio.Semaphore(limit)

    async def one(index: int, question: str) -> bool:
        async with places:
            started_s = time.perf_counter()
            row: dict[str, Any] = {"index": index, "status": "succeeded", "error": None}
            try:
                row |= await framework.run(parts, program, question)
            except Exception as error:  # a framework's own; the row is its outcome
                told = {"type": type(error).__name__, "message": str(error)}
                row |= {"status": "failed", "error": told}
            row["latency_s"] = time.perf_counter() - started_s
        print(json.dumps(row), flush=True)
        return row["status"] == "succeeded"

    try:
        done = await asyncio.gather(*(one(i, text) for i, text in enumerate(asked)))
    finally:
        await parts.web.aclose()
    return all(done)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("program")
    parser.add_argument("--llm-url", required=True)
    parser.add_argument("--search-url", default="")
    parser.add_argument("--passages", type=Path)
    parser.add_argument("--concurrency", type=int, default=1)
    args = parser.parse_args()
    framework = importlib.import_module(f"benchmarks.rivals.{FRAMEWORKS[args.framework]}")
    if args.program not in framework.PROGRAMS:
        parser.error(f"no {args.program}; there are {', '.join(framework.PROGRAMS)}")
    settings = Settings(args.llm_url, args.search_url, args.passages)
    asked = [json.loads(line)["question"] for line in sys.stdin if line.strip()]
    return (
        0
        if asyncio.run(run_all(framework, args.program, settings, asked, args.concurrency))
        else 3
    )


if __name__ == "__main__":
    sys.exit(main())
