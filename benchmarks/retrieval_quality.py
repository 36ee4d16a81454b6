"""How well retrieval finds what people judged relevant: Cranfield, on the real engines.

Prints one JSON object:

    exact, hnsw, text, hybrid, hybrid_rerank: ndcg10, recall100, p50_ms

The 1,400 abstracts of the Cranfield collection, one chunk each, are embedded by
all-MiniLM-L6-v2 (which reads their first 256 tokens) and written into a collection of an
embedded PostgreSQL of its own; nothing is kept. One pass of the model over them gives both
their vectors and the token embeddings for reranking; that the runtime's embedding engine
gives the same vectors is checked on a sample. Every query is embedded by that engine and
asks the runtime's own verbs with their defaults:

    exact          pg.search, index exact
    hnsw           pg.search, index hnsw (m 16, ef_construction 64, ef_search 100)
    text           pg.text: BM25, k1 1.2, b 0.75, words stemmed as English
    hybrid         pg.hybrid: reciprocal-rank fusion of both, 100 candidates each, rrf_k 60
    hybrid_rerank  rerank of hybrid's first 20 by late interaction over the same model's
                   token embeddings, its rank fused with hybrid's; the others follow

Nothing else was fitted to the judgements than the depth of the rerank: at 50 or 100
chunks a model that was not trained for late interaction moves more good chunks down than
up (nDCG@10 0.422 for 0.424), and takes longer. ``p50_ms`` is the median over queries, one
at a time, from submitting an item to its outcome; the query's vector is there before, and
for hybrid_rerank the texts' token embeddings are in the engine's cache, as for texts that
were reranked before (``rerank_cold_ms`` is the first query with an empty one).

Queries join judgements by their position in the file (1-225), not by their number.
Judgements above 0 are relevant, all alike. Where nothing relevant is known of a query it
is left out. ``--quick`` asks every ninth query.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import (
    emit,
    facts,
    find_data,
    no_data,
    standard_arguments,
)
from herasys_rt.config import EngineName, PoolConfig, Resource
from herasys_rt.engines.models import resolve_model
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.engines.rerank.engine import RerankEngine
from herasys_rt.engines.rerank.late_interaction import (
    LateInteractionOptions,
    LateInteractionScorer,
    VectorCache,
    cache_key,
    unit_rows,
)
from herasys_rt.engines.sentence_model import SentenceModel, prefixes
from herasys_rt.errors import error_from_info
from herasys_rt.figures import percentile
from herasys_rt.graph.reductions import ranked
from herasys_rt.runtime.registry import create_engine

DATA = ("retrieval", "cranfield")
MODEL = "all-minilm-l6-v2"
COLLECTION = "cranfield"
DEPTH = 100
RERANKED = 20
QUICK_STEP = 9
_FORWARD = 16  # texts of about equal length in one pass of the model
_WRITTEN = 200  # chunks in one write
_CHECKED = 8  # documents embedded by the engine as well
_CACHE_BYTES = 512 * 1024**2  # every document at once


@dataclass(frozen=True)
class Cranfield:
    """The collection: texts by document number, queries and what is relevant to each."""

    texts: dict[str, str]
    queries: list[str]
    relevant: list[set[str]]


def read_cranfield(folder: Path) -> Cranfield:
    """Read the three files; the documents' has many roots and is no XML that parses."""
    documents = (folder / "cran.all.1400.xml").read_text(encoding="utf-8")
    texts: dict[str, str] = {}
    for part in re.findall(r"<doc>(.*?)</doc>", documents, re.DOTALL):
        text = _element(part, "text") or _element(part, "title")
        if text:  # two of the 1,400 are empty
            texts[_element(part, "docno")] = text
    tops = re.findall(
        r"<top>(.*?)</top>",
        (folder / "cran.qry.xml").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    queries = [_element(top, "title") for top in tops]
    relevant: list[set[str]] = [set() for _ in queries]
    for line in (folder / "cranqrel.trec.txt").read_text(encoding="utf-8").splitlines():
        ordinal, _, document, grade = line.split()
        if int(grade) > 0 and document in texts:
            relevant[int(ordinal) - 1].add(document)
    return Cranfield(texts, queries, relevant)


def _element(part: str, name: str) -> str:
    found = re.search(rf"<{name}>(.*?)</{name}>", part, re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def ndcg(ranked: Sequence[str], relevant: set[str], depth: int = 10) -> float:
    """Normalised discounted cumulative gain of binary judgements."""
    gained = sum(
        1 / math.log2(rank + 1)
        for rank, id in enumerate(ranked[:depth], 1)
        if id in relevant
    )
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(depth, len(relevant)) + 1))
    return gained / best


def recall(ranked: Sequence[str], relevant: set[str], depth: int = DEPTH) -> float:
    """The share of what is relevant among the first ``depth``."""
    return len(relevant & set(ranked[:depth])) / len(relevant)


class Asker:
    """An engine and its sink: one item at a time, waited for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ended = threading.Event()
        self._outcome = Outcome()
        self._asked = 0

    def ask(self, verb: str, **args: Any) -> Any:
        """The value of one item. Errors: what the item ended with."""
        self._ended.clear()
        self._asked += 1
        self._engine.submit([Item(str(self._asked), verb, args)])
        self._ended.wait()
        if self._outcome.error is not None:
            raise error_from_info(self._outcome.error)
        return self._outcome.value

    def started(self, key: str) -> None:
        """See `Sink`."""

    def piece(self, key: str, text: str, tokens: int) -> None:
        """See `Sink`."""

    def finished(self, key: str, outcome: Outcome) -> None:
        """See `Sink`."""
        self._outcome = outcome
        self._ended.set()

    def collection_changed(self, collection: str, revision: int) -> None:
        """See `Sink`."""


def engine_of(resource: Resource, engine: EngineName, dsn: str = "") -> Engine:
    """One of the runtime's engines with its defaults, models on every core."""
    model = None if resource == "retrieval" else MODEL
    options = {} if model is None else {"threads": _threads()}
    pool = PoolConfig(
        name=resource, resource=resource, engine=engine, model=model, options=options
    )
    return create_engine(pool, dsn)


def reranker_knowing(cache: VectorCache | None) -> Engine:
    """The late-interaction engine over texts whose token embeddings are in the cache."""
    scorer = LateInteractionScorer(MODEL, LateInteractionOptions(threads=_threads()), cache)
    return RerankEngine(scorer, name="rerank", batch_limit=8)


@contextlib.contextmanager
def running(engine: Engine) -> Iterator[Asker]:
    """A started engine, closed afterwards."""
    asker = Asker(engine)
    engine.start(asker)
    try:
        yield asker
    finally:
        engine.close()


def _threads() -> int:
    return os.cpu_count() or 1


@contextlib.contextmanager
def database() -> Iterator[str]:
    """The DSN of an embedded PostgreSQL that is gone afterwards."""
    from herasys_rt.engines.postgres.server import EmbeddedPostgres

    with tempfile.TemporaryDirectory(prefix="hq-") as home:
        place = Path(home)
        place.chmod(0o755)  # as root, the server runs as another user
        with EmbeddedPostgres(place / "data", place / "run") as server:
            yield server.dsn


@dataclass(frozen=True)
class Encoded:
    """What the model makes of the documents: a unit vector by id, and the cache of the
    reranker with the token embeddings of each."""

    vectors: dict[str, np.ndarray[Any, np.dtype[np.float32]]]
    tokens: VectorCache


def encode(texts: Mapping[str, str]) -> Encoded:
    """Read every document once; those of about equal length together, so that little is
    padded."""
    loaded = SentenceModel.load(
        resolve_model(MODEL).path,
        threads=_threads(),
        device=None,
        dtype="float32",
        trust_remote_code=False,
    )
    prefix = prefixes(loaded.model.prompts, None, None)["document"]
    found = Encoded({}, VectorCache(_CACHE_BYTES))
    ids = sorted(texts, key=lambda id: loaded.tokens.count(texts[id]))
    for at in range(0, len(ids), _FORWARD):
        part = ids[at : at + _FORWARD]
        read = [prefix + texts[id] for id in part]
        rows = loaded.model.encode(
            read,
            prompt="",
            batch_size=len(read),
            output_value=None,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        for id, text, row in zip(part, read, rows, strict=True):
            found.vectors[id] = row["sentence_embedding"].numpy()
            own = row["attention_mask"].bool()
            tokens = row["token_embeddings"][own].numpy()
            found.tokens.put(cache_key("", text), unit_rows(tokens))
    return found


def check_vectors(data: Cranfield, encoded: Encoded, embedder: Asker) -> None:
    """See that the embedding engine gives the same vectors. Errors: `ValueError`."""
    ids = list(data.texts)[:: max(1, len(data.texts) // _CHECKED)]
    texts = [data.texts[id] for id in ids]
    theirs = embedder.ask("embed", text=texts, kind="document")
    apart = max(
        float(np.abs(theirs[i] - encoded.vectors[id]).max()) for i, id in enumerate(ids)
    )
    if apart > 1e-4:
        raise ValueError(f"the embedding engine's vectors differ by up to {apart:.2g}")


def ingest(data: Cranfield, encoded: Encoded, db: Asker) -> None:
    """Write every document as one chunk."""
    ids = list(data.texts)
    for at in range(0, len(ids), _WRITTEN):
        part = ids[at : at + _WRITTEN]
        chunks = [{"id": id, "source": id, "text": data.texts[id]} for id in part]
        vectors = np.stack([encoded.vectors[id] for id in part])
        db.ask(
            "pg.write",
            embedded={"chunks": chunks, "vectors": vectors},
            collection=COLLECTION,
        )


@dataclass
class Tally:
    """What one way to retrieve got, query by query."""

    ndcg10: list[float]
    recall100: list[float]
    seconds: list[float]

    def figures(self) -> dict[str, float]:
        """Means over the queries and the median time."""
        count = len(self.ndcg10)
        return {
            "ndcg10": round(sum(self.ndcg10) / count, 4),
            "recall100": round(sum(self.recall100) / count, 4),
            "p50_ms": round(1e3 * percentile(self.seconds, 50), 2),
        }


def retrieved(db: Asker, query: str, vector: Any, way: str) -> list[dict[str, Any]]:
    """The chunks that one way without a reranker finds."""
    where = {"collection": COLLECTION, "top_k": DEPTH}
    if way == "text":
        return db.ask("pg.text", query=query, **where)
    if way == "hybrid":
        return db.ask("pg.hybrid", vector=vector, query=query, **where)
    return db.ask("pg.search", vector=vector, index=way, **where)


def reranked(reranker: Asker, query: str, chunks: list[dict[str, Any]]) -> Any:
    """The same chunks, the order of the first fused with the reranker's."""
    args = {"query": query, "chunks": chunks[:RERANKED]}
    scores = reranker.ask("rerank", **args)
    best = {**args, "top_k": RERANKED, "fuse_first_stage": True}
    return [*ranked(best, scores), *chunks[RERANKED:]]


def measure(data: Cranfield, step: int) -> dict[str, Any]:
    """The figures of every way, over every ``step``-th query."""
    asked = [i for i in range(0, len(data.queries), step) if data.relevant[i]]
    ways = ("exact", "hnsw", "text", "hybrid")
    tallies = {way: Tally([], [], []) for way in (*ways, "hybrid_rerank")}

    def note(way: str, i: int, began_s: float, chunks: list[dict[str, Any]]) -> None:
        tally = tallies[way]
        tally.seconds.append(time.perf_counter() - began_s)
        ranked = [chunk["id"] for chunk in chunks]
        tally.ndcg10.append(ndcg(ranked, data.relevant[i]))
        tally.recall100.append(recall(ranked, data.relevant[i]))

    began_s = time.perf_counter()
    encoded = encode(data.texts)
    encode_s = time.perf_counter() - began_s
    with database() as dsn, running(engine_of("retrieval", "pgvector", dsn)) as db:
        began_s = time.perf_counter()
        ingest(data, encoded, db)
        write_s = time.perf_counter() - began_s
        with running(engine_of("embedding", "sentence_transformers")) as embedder:
            check_vectors(data, encoded, embedder)
            vectors = {
                i: embedder.ask("embed", text=data.queries[i], kind="query") for i in asked
            }
        for way in ways:
            retrieved(db, data.queries[asked[0]], vectors[asked[0]], way)  # builds, plans
            for i in asked:
                began_s = time.perf_counter()
                chunks = retrieved(db, data.queries[i], vectors[i], way)
                note(way, i, began_s, chunks)
        with running(reranker_knowing(None)) as reranker:
            first = asked[0]
            chunks = retrieved(db, data.queries[first], vectors[first], "hybrid")
            began_s = time.perf_counter()
            reranked(reranker, data.queries[first], chunks)
            cold_s = time.perf_counter() - began_s
        with running(reranker_knowing(encoded.tokens)) as reranker:
            for i in asked:
                began_s = time.perf_counter()
                chunks = retrieved(db, data.queries[i], vectors[i], "hybrid")
                note(
                    "hybrid_rerank", i, began_s, reranked(reranker, data.queries[i], chunks)
                )
    return {
        **{way: tally.figures() for way, tally in tallies.items()},
        "queries": len(asked),
        "documents": len(data.texts),
        "encode_s": round(encode_s, 1),
        "write_s": round(write_s, 1),
        "rerank_cold_ms": round(1e3 * cold_s, 1),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    standard_arguments(parser)
    args = parser.parse_args(argv)
    folder = find_data(*DATA)
    figures: Mapping[str, Any]
    if folder is None:
        figures = {"skipped": no_data(*DATA)}
    else:
        step = QUICK_STEP if args.quick else 1
        figures = {**measure(read_cranfield(folder), step), **facts(seeds=[])}
    emit(figures, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
