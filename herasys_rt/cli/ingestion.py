"""`herasys ingest`: files into a collection."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from herasys_rt.cli.options import ConfigOption, JsonOption, read_config
from herasys_rt.cli.output import Output, counted, report_error
from herasys_rt.errors import HerasysError, InputError, RunError

if TYPE_CHECKING:
    from herasys_rt.client.client import Client
    from herasys_rt.client.run import Run

BATCH_CHARACTERS = 50_000
"""Documents go out in batches of about this much text, to overlap reading, embedding and
storing; a longer document is a batch of its own.
"""
IN_FLIGHT = 3
"""Batches under way at once: one being embedded, one being stored, one waiting."""

Distance = Literal["cosine", "inner_product", "l2"]
Storage = Literal["vector", "halfvec"]

_HOPELESS = (
    *("distance_mismatch", "storage_mismatch", "language_mismatch"),
    *("dimension_mismatch", "unknown_language"),
)
"""Codes of errors that every batch would end with: the collection is another one."""


@dataclass
class Tally:
    """What became of what was read."""

    documents: int = 0
    chunks: int = 0
    shared: int = 0
    """Chunks that were embedded already, or for another document."""
    revision: int | None = None
    skipped: list[dict[str, str]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)


def ingest(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A text, Markdown, HTML or PDF file, or a folder of them.",
            show_default=False,
        ),
    ],
    collection: Annotated[
        str,
        typer.Option("--collection", "-n", metavar="NAME", help="Where the chunks go."),
    ],
    chunk_tokens: Annotated[
        int, typer.Option(min=1, help="Longest chunk, in tokens of the embedder.")
    ] = 200,
    overlap: Annotated[
        int, typer.Option(min=0, help="Tokens that neighbouring chunks share.")
    ] = 20,
    distance: Annotated[
        Distance | None,
        typer.Option(
            help="How the vectors of a new collection compare; cosine if not given.",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        Storage | None,
        typer.Option(
            help="How they are kept: vector (float32), or halfvec (float16) in half the "
            "space; vector if not given.",
            show_default=False,
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the texts of a new collection are in, for full-text search: "
            "english, german, simple (no stemming) ...; english if not given.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = None,
) -> int:
    """Cut files into chunks, embed them and store them in a collection.

    Files that cannot be read are skipped and named. A document that is ingested again
    replaces its older chunks, so that repeating an ingest is safe. What a collection was
    made with stays until it is dropped; asking for something else is refused.

    [bold]Examples[/bold]

    herasys ingest docs/ --collection handbook

    herasys ingest manual.pdf --collection handbook --chunk-tokens 300

    herasys ingest notizen/ --collection notizen --language german --storage halfvec
    """
    began = time.monotonic()
    failure = {"collection": collection, "documents": 0, "chunks": 0}
    with Output(json, failure) as output:
        _check(collection, chunk_tokens, overlap, language)
        tally = Tally()
        batches = _batches(_read(path, tally, output))
        first = next(batches, None)
        if first is None:
            raise InputError(
                f"{path} holds no document that can be read",
                hint="Text, Markdown, HTML and PDF files are read; "
                + (f"{len(tally.skipped)} files were skipped." if tally.skipped else ""),
            )
        loaded = read_config(config)
        from herasys_rt.cli import runtime

        fixed = {
            "collection": collection,
            "chunk_tokens": chunk_tokens,
            "overlap": overlap,
            "distance": distance,
            "storage": storage,
            "language": language,
        }
        with runtime.connect(loaded, None, output.say) as client:
            _send(client, itertools.chain([first], batches), fixed, tally, output)
        return _finish(collection, tally, output, time.monotonic() - began)


def _check(collection: str, chunk_tokens: int, overlap: int, language: str | None) -> None:
    if not collection.strip():
        raise InputError("the collection's name is empty", hint="Give --collection a name.")
    if language is not None and not language.strip():
        raise InputError("the language is empty", hint="Leave --language out for english.")
    if overlap >= chunk_tokens:
        raise InputError(
            f"an overlap of {overlap} tokens leaves nothing new in a chunk of "
            f"{chunk_tokens}",
            hint="Give an --overlap smaller than --chunk-tokens.",
        )


def _read(path: Path, tally: Tally, output: Output) -> Iterator[dict[str, Any]]:
    from herasys_rt.documents import read_path

    def skip(file: object, reason: str) -> None:
        tally.skipped.append({"path": str(file), "reason": reason})
        output.say(f"skipped {file}: {reason}")

    for document in read_path(path, on_skip=skip):
        yield dict(document)


def _batches(documents: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Documents in batches of about `BATCH_CHARACTERS`, in order."""
    batch: list[dict[str, Any]] = []
    held = 0
    for document in documents:
        size = len(document["text"])
        if batch and held + size > BATCH_CHARACTERS:
            yield batch
            batch, held = [], 0
        batch.append(document)
        held += size
    if batch:
        yield batch


def _send(
    client: Client,
    batches: Iterator[list[dict[str, Any]]],
    fixed: dict[str, Any],
    tally: Tally,
    output: Output,
) -> None:
    """Run the batches, `IN_FLIGHT` at a time, and count what comes back.

    Errors: what no batch could be stored for, however often it is tried.
    """
    from herasys_rt.ingestion import ingest_spec

    sent: deque[list[dict[str, Any]]] = deque()

    def inputs() -> Iterator[dict[str, Any]]:
        for batch in batches:
            sent.append(batch)
            yield {"documents": batch, **fixed}

    runs = client.map(ingest_spec(), inputs(), concurrency=IN_FLIGHT)
    with _bar(output) as advance:
        for run in runs:
            _count(run, sent.popleft(), tally)
            advance(tally)


def _count(run: Run, batch: list[dict[str, Any]], tally: Tally) -> None:
    """One batch's outcome; its failure is its own and the others go on."""
    try:
        stored = run.result()
    except HerasysError as e:
        if e.code in _HOPELESS:
            raise
        ids = [document["id"] for document in batch]
        tally.failed.append({"documents": ids, "error": e.info().to_json()})
        return
    tally.documents += int(stored["documents"])
    tally.chunks += int(stored["chunks"])
    tally.shared += _shared(run.report()["nodes"], int(stored["chunks"]))
    tally.revision = stored.get("revision", tally.revision)


def _shared(nodes: list[dict[str, Any]], chunks: int) -> int:
    """How many of a batch's chunks its run did not embed itself."""
    for node in nodes:
        if node["operator"].startswith("embed_many@"):
            whole = node["reused"] or node["fused_into"] is not None
            return chunks if whole else int(node["shared_items"])
    return 0


@contextlib.contextmanager
def _bar(output: Output) -> Iterator[Any]:
    """A line that counts; gives the function that moves it on."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=output.progress, transient=True) as progress:
        task = progress.add_task("embedding and storing", total=None)

        def advance(tally: Tally) -> None:
            told = f"{tally.documents} documents, {tally.chunks} chunks stored"
            progress.update(task, description=told)

        yield advance


def _finish(collection: str, tally: Tally, output: Output, wall_s: float) -> int:
    shared = f" ({tally.shared:,} of them embedded already)" if tally.shared else ""
    output.console.print(
        f"{collection}: {counted(tally.documents, 'document')}, "
        f"{counted(tally.chunks, 'chunk')}{shared} in {wall_s:.1f} s"
        + (f", {len(tally.skipped)} skipped" if tally.skipped else ""),
        markup=False,
        highlight=False,
    )
    error = None
    if tally.failed:
        error = tally.failed[0]["error"]
        count = sum(len(entry["documents"]) for entry in tally.failed)
        report_error(
            RunError(
                f"{count} documents were not stored; the first failed with: "
                f"{error['message']}",
                hint=error["hint"] or "Run the same command again once that is mended.",
                code=error["code"],
            )
        )
    output.emit(
        {
            "collection": collection,
            "documents": tally.documents,
            "chunks": tally.chunks,
            "shared_chunks": tally.shared,
            "revision": tally.revision,
            "skipped": tally.skipped,
            "failed": tally.failed,
            "wall_s": round(wall_s, 3),
            "error": error,
        }
    )
    return 1 if tally.failed else 0
