"""The verb ``rerank`` over any `Scorer`: what all rerank engines share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from herasys_rt.documents import clean_text
from herasys_rt.engines.batching import BatchLoop, Job, Piece, Plan, spread
from herasys_rt.engines.protocol import Item, Sink, Snapshot
from herasys_rt.engines.rerank.merging import merge_ranked, ranked
from herasys_rt.errors import HerasysError, NodeError


@dataclass(frozen=True, slots=True)
class Request:
    """One item's texts, cleaned. ``scope`` separates tenants inside caches."""

    query: str
    texts: list[str]
    scope: str


class Scorer(Protocol):
    """A loaded model that says how well texts answer a query. Used from one thread only."""

    fingerprint: str
    """Changes when equal texts may get other scores."""
    max_tokens: int
    """Longest text (or pair) in tokens; the model cuts what is longer."""

    def load(self) -> None:
        """Load the model. Errors: `EnvironmentFaultError` and its kinds."""
        ...

    def pieces(self, request: Request) -> list[Piece]:
        """What must be computed for a request, each piece bounded and independent."""
        ...

    def compute(self, pieces: list[Piece]) -> Sequence[Any]:
        """One result per piece, in one forward pass."""
        ...

    def scores(self, request: Request, results: list[Any]) -> list[float]:
        """One score per text from the results of the request's pieces; larger is better."""
        ...

    def close(self) -> None:
        """Free the model; called after the last use."""
        ...


class RerankEngine:
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
        self._scorer = scorer
        self._limit = batch_limit
        self._loop = BatchLoop(f"rerank-{name}", self._work)

    def start(self, sink: Sink) -> None:
        """Load the model on the engine's thread; blocks."""
        self._loop.start(sink, self._scorer.load)

    def describe(self) -> dict[str, Any]:
        """``fingerprint`` and ``max_tokens`` (also as ``context_tokens``)."""
        return {
            "fingerprint": self._scorer.fingerprint,
            "max_tokens": self._scorer.max_tokens,
            "context_tokens": self._scorer.max_tokens,
        }

    def submit(self, items: Sequence[Item]) -> None:
        """Take one batch; its texts share forward passes."""
        self._loop.submit(items)

    def abort(self, key: str) -> None:
        """Stop an item: at once when not begun, else after the current sub-batch."""
        self._loop.abort(key)

    def snapshot(self) -> Snapshot:
        """Items begun and items waiting."""
        return self._loop.snapshot()

    def close(self) -> None:
        """Stop the thread and free the model."""
        self._loop.close()
        self._scorer.close()

    def _work(self, jobs: Sequence[Job]) -> None:
        plans: list[Plan] = []
        for job in jobs:
            if not job.live:
                continue
            try:
                plans.append(self._plan(job))
            except HerasysError as e:
                job.fail(e)
        spread(plans, self._limit, self._scorer.compute)

    def _plan(self, job: Job) -> Plan:
        if job.item.verb not in self.verbs:
            raise _bad(f"this engine has no verb {job.item.verb!r}")
        ask = _arguments(job.item.args)
        chunks = ask.chunks
        texts = [clean_text(chunk["text"]) for chunk in chunks]
        request = Request(ask.query, texts, job.item.trust_scope)
        pieces = self._scorer.pieces(request) if chunks else []

        def assemble(results: list[Any]) -> None:
            scores = self._scorer.scores(request, results) if chunks else []
            _check_finite(chunks, scores)
            whole = ranked(chunks, scores, ask.first_rank)
            best = merge_ranked([whole], ask.top_k, fuse_first_stage=ask.fuse)
            tokens = sum(min(p.length, self._scorer.max_tokens) for p in pieces)
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
        raise _bad(f"'query' is a str, not {type(query).__name__}")
    query = clean_text(query)
    if not query.strip():
        raise NodeError(
            "query is empty: chunks cannot be compared with nothing",
            hint="Pass a query that is not blank.",
            code="empty_text",
        )
    for name, number in (("top_k", top_k), ("first_rank", first_rank)):
        if type(number) is not int or number < 1:
            raise _bad(f"{name!r} is a whole number of at least 1, not {number!r}")
    if not isinstance(fuse, bool):
        raise _bad(f"'fuse_first_stage' is a bool, not {fuse!r}")
    if not isinstance(chunks, list | tuple):
        raise _bad(f"'chunks' is a list, not {type(chunks).__name__}")
    for i, chunk in enumerate(cast(Sequence[Any], chunks)):
        if not isinstance(chunk, Mapping):
            raise _bad(f"chunks[{i}] is not a record but {type(chunk).__name__}")
        if not isinstance(cast(Mapping[str, Any], chunk).get("text"), str):
            raise _bad(f"chunks[{i}] has no text field 'text'")
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


def _bad(problem: str) -> NodeError:
    return NodeError(problem, hint="See the operator's ports.", code="invalid_argument")
