"""The verb ``rerank`` over any `Scorer`: what all rerank engines share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from herasys_rt.documents import clean_text
from herasys_rt.engines.batch_engine import BatchEngine, Model, bad_argument
from herasys_rt.engines.batching import Job, Piece, Plan
from herasys_rt.errors import NodeError


@dataclass(frozen=True, slots=True)
class Request:
    """One item's texts, cleaned. ``scope`` separates tenants inside caches."""

    query: str
    texts: list[str]
    scope: str


class Scorer(Model, Protocol):
    """A loaded model that says how well texts answer a query. ``max_tokens`` is of a text
    or a pair, as the model takes them."""

    def pieces(self, request: Request) -> list[Piece]:
        """What must be computed for a request, each piece bounded and independent."""
        ...

    def compute(self, pieces: list[Piece]) -> Sequence[Any]:
        """One result per piece, in one forward pass."""
        ...

    def scores(self, request: Request, results: list[Any]) -> list[float]:
        """One score per text from the results of the request's pieces; larger is better."""
        ...


class RerankEngine(BatchEngine[Scorer]):
    """An `Engine` with the verb ``rerank``.

    Arguments: ``query`` (str) and ``chunks`` (CHUNKS). The value is the list of the chunks'
    scores in their order, each of which depends on the query and the chunk's text alone;
    larger is better. Which chunks are best is no matter of the engine
    (`graph.reductions.ranked`). ``usage`` counts ``items`` (chunks) and ``tokens``
    computed, not those taken from a cache.
    Errors of an item, none of which touches its batch-mates: ``invalid_argument``,
    ``empty_text``, ``not_finite``, ``engine_failed``.
    """

    verbs = frozenset({"rerank"})

    def __init__(self, scorer: Scorer, *, name: str, batch_limit: int) -> None:
        super().__init__(scorer, name=f"rerank-{name}", batch_limit=batch_limit)

    def _compute(self, pieces: list[Piece]) -> Sequence[Any]:
        return self._model.compute(pieces)

    def _plan(self, job: Job) -> Plan:
        query, chunks = _arguments(job.item.args)
        texts = [clean_text(chunk["text"]) for chunk in chunks]
        request = Request(query, texts, job.item.trust_scope)
        pieces = self._model.pieces(request) if chunks else []

        def assemble(results: list[Any]) -> None:
            scores = self._model.scores(request, results) if chunks else []
            _check_finite(chunks, scores)
            tokens = sum(min(p.length, self._model.max_tokens) for p in pieces)
            job.succeed(scores, usage={"items": len(chunks), "tokens": tokens})

        return Plan(job, pieces, assemble)


def _arguments(args: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Query and chunks of an item, checked. Errors: `NodeError`."""
    query, chunks = args.get("query"), args.get("chunks")
    if not isinstance(query, str):
        raise bad_argument(f"'query' is a str, not {type(query).__name__}")
    query = clean_text(query)
    if not query.strip():
        raise NodeError(
            "query is empty: chunks cannot be compared with nothing",
            hint="Pass a query that is not blank.",
            code="empty_text",
        )
    if not isinstance(chunks, list | tuple):
        raise bad_argument(f"'chunks' is a list, not {type(chunks).__name__}")
    for i, chunk in enumerate(cast(Sequence[Any], chunks)):
        if not isinstance(chunk, Mapping):
            raise bad_argument(f"chunks[{i}] is not a record but {type(chunk).__name__}")
        if not isinstance(cast(Mapping[str, Any], chunk).get("text"), str):
            raise bad_argument(f"chunks[{i}] has no text field 'text'")
    return query, cast(list[dict[str, Any]], list(chunks))


def _check_finite(chunks: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> None:
    wrong = [i for i, score in enumerate(scores) if not math.isfinite(score)]
    if wrong:
        named = ", ".join(str(chunks[i].get("id", f"chunks[{i}]")) for i in wrong[:5])
        raise NodeError(
            f"the model gave a score that is not finite for: {named}",
            hint="Look at these texts; if every text does this, the model is damaged.",
            code="not_finite",
        )
