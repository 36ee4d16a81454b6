"""The verb ``rerank`` over any `Scorer`: what all rerank engines share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from herasys_rt.documents import clean_text
from herasys_rt.engines.batch_engine import BatchEngine, Model, bad_argument
from herasys_rt.engines.batching import Job, Piece, Plan
from herasys_rt.engines.rerank.merging import merge_ranked, ranked
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

    Arguments: ``query`` (str), ``chunks`` (CHUNKS), ``top_k`` (int >= 1), optionally
    ``fuse_first_stage`` (bool) and ``first_rank`` (int >= 1: where a part's first chunk
    was in the whole). The value is the ``top_k`` best chunks, best first, equals in their
    first order (see `merging`); each is a new dict with ``score`` replaced, the former one
    under ``first_score`` and its former position, from 1, under ``first_rank``. ``sources``
    are those chunks. No chunks give none. ``usage`` counts ``items`` (chunks) and
    ``tokens`` computed, not those taken from a cache.
    Errors of an item, none of which touches its batch-mates: ``invalid_argument``,
    ``empty_text``, ``not_finite``, ``engine_failed``.
    """

    verbs = frozenset({"rerank"})

    def __init__(self, scorer: Scorer, *, name: str, batch_limit: int) -> None:
        super().__init__(scorer, name=f"rerank-{name}", batch_limit=batch_limit)

    def _compute(self, pieces: list[Piece]) -> Sequence[Any]:
        return self._model.compute(pieces)

    def _plan(self, job: Job) -> Plan:
        ask = _arguments(job.item.args)
        chunks = ask.chunks
        texts = [clean_text(chunk["text"]) for chunk in chunks]
        request = Request(ask.query, texts, job.item.trust_scope)
        pieces = self._model.pieces(request) if chunks else []

        def assemble(results: list[Any]) -> None:
            scores = self._model.scores(request, results) if chunks else []
            _check_finite(chunks, scores)
            whole = ranked(chunks, scores, ask.first_rank)
            best = merge_ranked([whole], ask.top_k, fuse_first_stage=ask.fuse)
            tokens = sum(min(p.length, self._model.max_tokens) for p in pieces)
            job.succeed(
                best,
                usage={"items": len(chunks), "tokens": tokens},
                sources=[_source(chunk) for chunk in best],
            )

        return Plan(job, pieces, assemble)


@dataclass(frozen=True, slots=True)
class _Ask:
    """An item's arguments, checked."""

    query: str
    chunks: list[dict[str, Any]]
    top_k: int
    fuse: bool
    first_rank: int


def _arguments(args: Mapping[str, Any]) -> _Ask:
    """The arguments of an item, checked. Errors: `NodeError`."""
    query, chunks, top_k = args.get("query"), args.get("chunks"), args.get("top_k")
    fuse, first_rank = args.get("fuse_first_stage", False), args.get("first_rank", 1)
    if not isinstance(query, str):
        raise bad_argument(f"'query' is a str, not {type(query).__name__}")
    query = clean_text(query)
    if not query.strip():
        raise NodeError(
            "query is empty: chunks cannot be compared with nothing",
            hint="Pass a query that is not blank.",
            code="empty_text",
        )
    for name, number in (("top_k", top_k), ("first_rank", first_rank)):
        if type(number) is not int or number < 1:
            raise bad_argument(f"{name!r} is a whole number of at least 1, not {number!r}")
    if not isinstance(fuse, bool):
        raise bad_argument(f"'fuse_first_stage' is a bool, not {fuse!r}")
    if not isinstance(chunks, list | tuple):
        raise bad_argument(f"'chunks' is a list, not {type(chunks).__name__}")
    for i, chunk in enumerate(cast(Sequence[Any], chunks)):
        if not isinstance(chunk, Mapping):
            raise bad_argument(f"chunks[{i}] is not a record but {type(chunk).__name__}")
        if not isinstance(cast(Mapping[str, Any], chunk).get("text"), str):
            raise bad_argument(f"chunks[{i}] has no text field 'text'")
    records = cast(list[dict[str, Any]], list(chunks))
    return _Ask(query, records, cast(int, top_k), fuse, first_rank)


def _check_finite(chunks: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> None:
    wrong = [i for i, score in enumerate(scores) if not math.isfinite(score)]
    if wrong:
        named = ", ".join(str(chunks[i].get("id", f"chunks[{i}]")) for i in wrong[:5])
        raise NodeError(
            f"the model gave a score that is not finite for: {named}",
            hint="Look at these texts; if every text does this, the model is damaged.",
            code="not_finite",
        )


def _source(chunk: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": chunk.get("id", ""),
        "source": chunk.get("source", ""),
        "score": chunk["score"],
        "text": chunk["text"],
    }
