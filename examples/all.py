"""Every example on the real engines, one JSON line each: ``python -m examples.all --json``.

Fills two small collections first: passages about the standard library for the retrieval
examples, and pages for the web-search example's offline index. Only the demo, which has a
corpus of its own, is not among them: ``make demo``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from examples.hello import hello
from examples.long_document import summarise
from examples.mixed import run_mixed
from examples.react_agent import assistant
from examples.self_refine import refine
from examples.stdlib_docs import gather
from examples.stdlib_rag import rag, rag_hybrid, rag_rerank
from examples.tree_search import search
from examples.web_search_agent import research
from herasys_rt import Client, connect, workflow
from operators import ingest

PAGES = [
    {
        "id": "https://example.org/ada",
        "text": "Ada Lovelace wrote the first published program, for Babbage's engine.",
    },
    {
        "id": "https://example.org/grace",
        "text": "Grace Hopper built one of the first compilers and popularised COBOL.",
    },
]

QUESTION = "What does textwrap.dedent do?"
DOCUMENT = "\n\n".join(
    f"Chapter {n}. The expedition moved on, and on day {n} it counted {n * 3} penguins."
    for n in range(1, 13)
)

JOBS: dict[str, tuple[Any, dict[str, Any]]] = {
    "hello": (hello, {"name": "Ada"}),
    "stdlib_rag:rag": (rag, {"question": QUESTION}),
    "stdlib_rag:rag_rerank": (rag_rerank, {"question": QUESTION}),
    "stdlib_rag:rag_hybrid": (rag_hybrid, {"question": QUESTION}),
    "web_search_agent": (research, {"question": "Who wrote the first program?"}),
    "react_agent": (assistant, {"question": "What is the capital of Japan?"}),
    "tree_search": (search, {"question": "How do I tidy a desk?", "depth": 2}),
    "self_refine": (refine, {"topic": "glaciers", "rounds": 1}),
    "long_document": (summarise, {"document": DOCUMENT}),
}
MIXED = "mixed"
NAMES = (*JOBS, MIXED)


@workflow
def fill(documents: list[dict], collection: str):  # pyright: ignore[reportMissingTypeArgument]
    """Embed and store documents."""
    return ingest(documents, collection=collection)


def prepare(client: Client) -> None:
    """Store what the examples look for; what is there already is stored again."""
    names = ("textwrap", "functools", "heapq", "shutil")
    modules = [document for document in gather() if document["id"] in names]
    client.submit(fill, documents=modules, collection="stdlib").result(300)
    client.submit(fill, documents=PAGES, collection="web").result(300)


def run_all(client: Client, names: list[str]) -> Iterator[dict[str, Any]]:
    """The report of each example named, with the example's name; the mix has several."""
    for name in names:
        if name == MIXED:
            for kind, run in run_mixed(client, runs=8, concurrency=4):
                yield {"example": f"{MIXED}:{kind}", **run.report()}
            continue
        job, inputs = JOBS[name]
        yield {"example": name, **client.submit(job, **inputs).report(600)}


def main(argv: list[str] | None = None) -> int:
    """The command; exit status 1 when an example did not succeed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--json", action="store_true", help="whole reports, a line each")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(NAMES)}")
    failed = 0
    with connect(on_progress=lambda text: print(text, file=sys.stderr)) as client:
        prepare(client)
        for report in run_all(client, args.names or list(NAMES)):
            failed += report["status"] != "succeeded"
            if args.json:
                print(json.dumps(report, ensure_ascii=False), flush=True)
            else:
                told = report["error"]["message"] if report["error"] else report["output"]
                print(f"{report['example']}: {report['status']}: {told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
