"""The main job on real input: ``make demo``.

Reads the documentation of Python's standard library, embeds and stores it once, answers
24 questions about it at concurrency 8, several of them repeated, and shows what was done
once instead of many times. Writes ``out/demo/report.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from examples.stdlib_docs import QUESTIONS, gather, sample
from examples.stdlib_rag import COLLECTION, rag
from herasys_rt import Client, HerasysError, connect, load_config, workflow
from herasys_rt.client.run import Run
from herasys_rt.figures import distribution
from operators import ingest

SAMPLE_CHUNKS = 1000
CHUNK_TOKENS = 200
CONCURRENCY = 8
DOCUMENTS_PER_RUN = 20

Document = dict[str, Any]

console = Console(stderr=True, highlight=False)
page = Console(highlight=False)


@workflow
def fill(documents: list[dict]):  # pyright: ignore[reportMissingTypeArgument]
    """Embed and store documents that are one chunk each."""
    return ingest(documents, collection=COLLECTION, chunk_tokens=CHUNK_TOKENS, overlap=0)


def corpus(everything: bool) -> list[Document]:
    """The chunks to store, each marked with a digest of the whole corpus."""
    from herasys_rt.engines.models import resolve_model
    from herasys_rt.engines.tokens import TextTokens

    tokens = TextTokens.load(resolve_model("all-minilm-l6-v2").path)
    limit = sys.maxsize if everything else SAMPLE_CHUNKS
    chunks = sample(gather(), limit, CHUNK_TOKENS, offsets=tokens.offsets)
    digest = hashlib.sha256("\0".join(c["text"] for c in chunks).encode()).hexdigest()
    for chunk in chunks:
        chunk["metadata"] = {**chunk["metadata"], "corpus": digest[:16]}
    return chunks


def missing(client: Client, documents: list[Document]) -> list[Document]:
    """The documents that are not stored yet, so that an interrupted ingest goes on."""
    if not client.dsn:
        return documents
    import numpy as np

    from herasys_rt.engines.postgres.sync import open_store

    mark = {"corpus": documents[0]["metadata"]["corpus"]}
    with open_store(client.dsn) as store:
        facts = {collection.name: collection for collection in store.list()}
        if COLLECTION not in facts:
            return documents
        direction = np.ones(facts[COLLECTION].dimensions, dtype=np.float32)
        found, _ = store.search(COLLECTION, direction, len(documents), filter=mark)
    there = {chunk["id"].rsplit("#", 1)[0] for chunk in found}
    return [document for document in documents if document["id"] not in there]


def store(client: Client, documents: list[Document]) -> None:
    """Embed and store documents, with a progress bar."""
    batches = [
        documents[i : i + DOCUMENTS_PER_RUN]
        for i in range(0, len(documents), DOCUMENTS_PER_RUN)
    ]
    with _progress("embedding", len(documents)) as (bar, task):
        inputs = ({"documents": batch} for batch in batches)
        for run, batch in zip(
            client.map(fill, inputs, concurrency=2), batches, strict=True
        ):
            run.result()
            bar.advance(task, len(batch))


def ask(client: Client) -> list[Run]:
    """All questions at concurrency 8; each answer is shown as it comes, in order."""
    runs: list[Run] = []
    with _progress("answering", len(QUESTIONS)) as (bar, task):
        inputs = ({"question": question} for question in QUESTIONS)
        for question, run in zip(
            QUESTIONS, client.map(rag, inputs, concurrency=CONCURRENCY), strict=True
        ):
            runs.append(run)
            bar.advance(task)
            _show_answer(question, run.report())
    return runs


def _show_answer(question: str, report: dict[str, Any]) -> None:
    page.print(f"\n[bold]{question}[/]", soft_wrap=True)
    if report["error"]:
        page.print(f"[red]{report['error']['message']}[/]")
        return
    page.print(report["output"].strip(), markup=False)
    last = report["nodes"][-1]
    how = "reused" if last["reused"] else "fused" if last["fused_into"] else "executed"
    names = ", ".join(modules(report))
    page.print(f"[dim]from {names} - {report['latency_s']:.2f} s, {how}[/]")


def modules(report: dict[str, Any]) -> list[str]:
    """The modules an answer came from, best first."""
    return list(dict.fromkeys(source["source"] for source in report["sources"]))


class _progress:
    """A progress bar: on standard error where answers do not go to the same screen."""

    def __init__(self, what: str, total: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            # A bar moves out of the way only of what its own console prints.
            console=page if page.is_terminal else console,
        )
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> tuple[Progress, Any]:
        self._bar.start()
        return self._bar, self._task

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def summary(runs: list[Run], documents: list[Document], asked_s: float) -> dict[str, Any]:
    """The report's figures, from the runs' own records."""
    reports = [run.report() for run in runs]
    good = [report for report in reports if report["status"] == "succeeded"]
    nodes = [node for report in reports for node in report["nodes"]]
    fused = sum(bool(node["fused_into"]) for node in nodes)
    reused = sum(node["reused"] for node in nodes)
    executed = sum(
        node["state"] in ("succeeded", "failed")
        and not node["fused_into"]
        and not node["reused"]
        for node in nodes
    )
    latencies = [report["latency_s"] for report in good] or [0.0]
    return {
        "runs": len(reports),
        "succeeded": len(good),
        "latency_s": {
            name: round(value, 3) for name, value in distribution(latencies).items()
        },
        "nodes": {
            "submitted": len(nodes),
            "executed": executed,
            "fused": fused,
            "reused": reused,
        },
        "tokens_per_s": round(_tokens_made(reports) / asked_s, 2),
        "corpus": {
            "documents": len({d["source"] for d in documents}),
            "chunks": len(documents),
        },
        "answers": [
            {
                "question": question,
                "answer": report["output"],
                "sources": modules(report),
            }
            for question, report in zip(QUESTIONS, reports, strict=True)
        ],
    }


def _tokens_made(reports: list[dict[str, Any]]) -> int:
    """Tokens that the LLM really produced: answers that were shared count once."""
    made = 0
    for report in reports:
        last = report["nodes"][-1] if report["nodes"] else None
        if last and not last["reused"] and not last["fused_into"]:
            made += report["usage"].get("completion_tokens", 0)
    return made


def _show_table(figures: dict[str, Any]) -> None:
    table = Table(show_header=False, title="24 questions at concurrency 8")
    latency, nodes = figures["latency_s"], figures["nodes"]
    rows: list[tuple[str, str]] = [
        ("runs", f"{figures['succeeded']} of {figures['runs']} succeeded"),
        *((f"latency {name}", f"{value:.2f} s") for name, value in latency.items()),
        *((f"nodes {name}", str(count)) for name, count in nodes.items()),
        ("tokens/s", f"{figures['tokens_per_s']:.1f}"),
        ("wall", f"{figures['wall_s']:.1f} s"),
    ]
    for row in rows:
        table.add_row(*row)
    page.print(table)


def run_demo(everything: bool, out: Path) -> int:
    """The whole demo; its exit status."""
    started_s = time.monotonic()
    console.print("Starting the runtime and reading the standard library's documentation.")
    with ThreadPoolExecutor(1) as beside:
        reading: Future[list[Document]] = beside.submit(corpus, everything)
        with connect(
            load_config(), on_progress=lambda text: console.print(f"  {text}")
        ) as client:
            documents = reading.result()
            absent = missing(client, documents)
            kept = len(documents) - len(absent)
            console.print(f"Corpus: {len(documents)} chunks, {kept} already stored.")
            if absent:
                store(client, absent)
            asked_s = time.monotonic()
            runs = ask(client)
            asked_s = time.monotonic() - asked_s
            figures = summary(runs, documents, asked_s)
            figures["wall_s"] = round(time.monotonic() - started_s, 2)
            _show_table(figures)
    out.mkdir(parents=True, exist_ok=True)
    report = out / "report.json"
    report.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    console.print(f"Written to {report}.")
    return 0 if figures["succeeded"] == figures["runs"] else 1


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--all", action="store_true", help="store every chunk, not a sample of 1,000"
    )
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = _arguments(argv)
    try:
        return run_demo(args.all, args.out)
    except HerasysError as e:
        console.print(f"[red]error\\[{e.code}][/]: {e.message}\n  {e.hint}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
