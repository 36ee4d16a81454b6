"""Reading a collection: the nearest chunks, the best by text, and both fused.

The functions work on a connection and answer None when the collection is gone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from herasys_rt.engines.postgres import ranking, rows
from herasys_rt.engines.postgres.settings import (
    DISTANCES,
    Settings,
    check_choice,
    check_same,
)
from herasys_rt.engines.postgres.words import words_of
from herasys_rt.errors import InputError
from herasys_rt.graph.rank_fusion import RRF_K, fuse_ranks, ranks_of

if TYPE_CHECKING:
    from psycopg import AsyncConnection

INDEXES = ("auto", "exact", "hnsw")
CANDIDATES = 100
K1, B = 1.2, 0.75
_EF_SEARCH_LIMIT = 1000  # pgvector's

Chunk = dict[str, Any]


class Known(msgspec.Struct, frozen=True):
    """What never changes about a collection while it exists."""

    id: int
    name: str
    dimensions: int
    settings: Settings


class Found(NamedTuple):
    """What a search gave: chunks best first, the revision they were read at, and how many
    the whole collection held then."""

    chunks: list[Chunk]
    revision: int
    held: int


@dataclass(frozen=True, slots=True)
class ByVector:
    """A search by nearness; see `CollectionStore.search` for what the fields mean."""

    vector: Any
    top_k: int
    distance: str | None = None
    filter: Mapping[str, Any] | None = None
    index: str = "auto"
    ef_search: int | None = None

    def __post_init__(self) -> None:
        check_whole("top_k", self.top_k)
        if self.distance is not None:
            check_choice("distance", self.distance, DISTANCES)
        check_choice("index", self.index, INDEXES)
        if self.ef_search is not None:
            check_whole("ef_search", self.ef_search, _EF_SEARCH_LIMIT)

    @property
    def tuned(self) -> bool:
        """Whether it sets something for its transaction, and so needs one."""
        return self.index == "hnsw" or (self.index == "auto" and self.ef_search is not None)


@dataclass(frozen=True, slots=True)
class ByText:
    """A search by BM25; see `CollectionStore.search_text` for what the fields mean."""

    query: str
    top_k: int
    filter: Mapping[str, Any] | None = None
    language: str | None = None
    k1: float = K1
    b: float = B

    def __post_init__(self) -> None:
        if not isinstance(self.query, str):
            raise InputError(
                f"the query must be a text, not {type(self.query).__name__}",
                hint="Pass the text to look for.",
            )
        check_whole("top_k", self.top_k)
        check_number("k1", self.k1, 0.0, math.inf)
        check_number("b", self.b, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Fusing:
    """How two orders become one; see `CollectionStore.hybrid`."""

    top_k: int
    candidates: int = CANDIDATES
    rrf_k: float = RRF_K
    vector_weight: float = 1.0
    text_weight: float = 1.0

    def __post_init__(self) -> None:
        check_whole("top_k", self.top_k)
        check_whole("candidates", self.candidates)
        check_number("rrf_k", self.rrf_k, 0.0, math.inf)
        check_number("vector_weight", self.vector_weight, 0.0, math.inf)
        check_number("text_weight", self.text_weight, 0.0, math.inf)

    @property
    def depth(self) -> int:
        """Chunks that each of the two searches gives."""
        return max(self.candidates, self.top_k)


async def nearest(conn: AsyncConnection[Any], known: Known, ask: ByVector) -> Found | None:
    """The nearest chunks. A ``tuned`` search must be inside a transaction."""
    from herasys_rt.engines.postgres import statements as s

    by = ask.distance or known.settings.distance
    storage = known.settings.storage
    query = rows.query_vector(ask.vector, known.name, known.dimensions, by, storage)
    conditions, params = s.where(ask.filter)
    if ask.tuned:
        await conn.execute(s.by_index(ask.ef_search, forced=ask.index == "hnsw"))

    async def read(*, exact: bool) -> Sequence[Any]:
        cast = s.cast_to(storage, known.dimensions)
        statement = s.search(known.id, by, ask.top_k, conditions, exact=exact, cast=cast)
        cursor = await conn.execute(statement, {**params, "vector": query})
        return await cursor.fetchall()

    exact = ask.index == "exact"
    result = await read(exact=exact)
    found = [row for row in result if row[2] is not None]
    if result and not exact and len(found) < ask.top_k and len(found) < result[0][1]:
        # An index scan may end early; what it missed is there all the same.
        result = await read(exact=True)
        found = [row for row in result if row[2] is not None]
    if not result:
        return None
    chunks = [_chunk(row[2:7], _score(row[7], by)) for row in found]
    return Found(chunks, result[0][0], result[0][1])


async def best_by_text(
    conn: AsyncConnection[Any], known: Known, ask: ByText, rank_steps: Sequence[float]
) -> Found | None:
    """The best chunks by BM25. Must be inside a transaction that reads one snapshot."""
    from herasys_rt.engines.postgres import statements as s
    from herasys_rt.engines.postgres import text_statements as t

    if ask.language is not None:
        check_same(known.name, known.settings, {"language": ask.language})
    conditions, params = s.where(ask.filter)
    words = {"language": known.settings.language, "query": words_of(ask.query)}
    cursor = await conn.execute(t.query_terms(known.id), words)
    result = await cursor.fetchall()
    if not result:
        return None
    revision, held, length = result[0][:3]
    terms = ranking.terms_of((row[3:] for row in result if row[3] is not None), held)
    if not terms:
        return Found([], revision, held)
    params |= {"steps": rank_steps, "k1": ask.k1, "b": ask.b, "average": length / held}

    async def look(looked_up: int) -> Sequence[Any]:
        statement, own = t.best_by_text(known.id, terms, looked_up, ask.top_k, conditions)
        return await (await conn.execute(statement, {**params, **own})).fetchall()

    first = ranking.first_look(terms, ask.top_k)
    best = await look(first)
    threshold = best[-1][0] if len(best) == ask.top_k else -math.inf
    wanted = ranking.enough(terms, ask.k1, threshold)
    if wanted > first:
        best = await look(wanted)
    return Found([_chunk(row[1:], float(row[0])) for row in best], revision, held)


def fused(near: Found, text: Found, how: Fusing) -> Found:
    """Both results in one order by reciprocal-rank fusion, equals by id.

    A chunk's ``score`` is the fused one; ``vector_rank`` and ``text_rank`` say where it
    was (from 1; None where it was not).
    """
    orders = [[chunk["id"] for chunk in part.chunks] for part in (near, text)]
    weights = (how.vector_weight, how.text_weight)
    scores = fuse_ranks(orders, weights=weights, rrf_k=how.rrf_k)
    by_vector, by_text = ranks_of(orders[0]), ranks_of(orders[1])
    by_id = {chunk["id"]: chunk for chunk in (*text.chunks, *near.chunks)}
    best = sorted(scores, key=lambda id: (-scores[id], id))[: how.top_k]
    chunks = [
        {
            **by_id[id],
            "score": scores[id],
            "vector_rank": by_vector.get(id),
            "text_rank": by_text.get(id),
        }
        for id in best
    ]
    return Found(chunks, near.revision, near.held)


@contextlib.asynccontextmanager
async def snapshot(conn: AsyncConnection[Any]):
    """A transaction whose statements all see the collection at one revision."""
    async with conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def check_whole(name: str, value: Any, limit: int | None = None) -> None:
    """Refuse what is no whole number from 1 to ``limit``. Errors: `InputError`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < 1 or (limit is not None and value > limit):
        bound = "of at least 1" if limit is None else f"from 1 to {limit}"
        raise InputError(
            f"{name} must be a whole number {bound}, not {value!r}",
            hint="Ask for one chunk or more." if name == "top_k" else "Correct it.",
        )


def check_number(name: str, value: Any, low: float, high: float) -> None:
    """Refuse what is no finite number from ``low`` to ``high``. Errors: `InputError`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high:
        bound = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise InputError(
            f"{name} must be a finite number {bound}, not {value!r}", hint="Correct it."
        )


def _score(far: float, distance: str) -> float:
    return float(1.0 - far if distance == "cosine" else 0.0 - far)


def _chunk(row: Sequence[Any], score: float) -> Chunk:
    id, source, text, metadata, fields = row
    chunk = {**fields, "id": id, "source": source, "text": text, "score": score}
    if metadata is not None:
        chunk["metadata"] = metadata
    return chunk
