"""BM25 as numbers: which terms of a query weigh what, and how many must be looked up.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009),
with the inverse document frequency of Lucene, which is never negative:

    score(chunk) = sum over terms of  n * idf * (k1 + 1) * tf / (tf + K)
    idf = ln(1 + (N - df + 0.5) / (df + 0.5)),  K = k1 * (1 - b + b * length / average)

Common terms match half of a collection and decide little. Turtle and Flood, "Query
evaluation: strategies and optimizations" (1995): once ``top_k`` chunks reach a score that
the common terms together cannot give, chunks with only common terms need no look. The
result is exactly that of scoring every chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

QUERY_TERMS = 64
"""Terms of a query that count, the rarest; a whole document may come as a query."""
_CHEAP = 2_000  # chunks that are scored in a few milliseconds
_SLACK = 1.0 + 1e-9  # sums are rounded; a bound is never taken for lower than it is


@dataclass(frozen=True, slots=True)
class Term:
    """A lexeme of a query: its ``weight`` there (n * idf) and the chunks that have it."""

    lexeme: str
    weight: float
    chunks: int


def idf(collection_chunks: int, chunks: int) -> float:
    """Inverse document frequency of a lexeme that ``chunks`` of a collection have."""
    return math.log1p((collection_chunks - chunks + 0.5) / (chunks + 0.5))


def terms_of(found: Iterable[tuple[str, int, int]], collection_chunks: int) -> list[Term]:
    """Terms, rarest first, from (lexeme, times in the query, chunks that have it)."""
    terms = [
        Term(lexeme, times * idf(collection_chunks, chunks), chunks)
        for lexeme, times, chunks in found
        if chunks > 0
    ]
    terms.sort(key=lambda term: (term.chunks, term.lexeme))
    return terms[:QUERY_TERMS]


def first_look(terms: Sequence[Term], top_k: int) -> int:
    """How many of the rarest terms to look up first: enough to find ``top_k`` chunks,
    and more as long as that is cheap."""
    matched = 0
    for at, term in enumerate(terms):
        if matched >= top_k and matched + term.chunks > _CHEAP:
            return at
        matched += term.chunks
    return len(terms)


def enough(terms: Sequence[Term], k1: float, threshold: float) -> int:
    """The fewest of the rarest terms to look up, so that a chunk with none of them scores
    below ``threshold``, the score that ``top_k`` chunks have."""
    rest = 0.0
    for at in range(len(terms), 0, -1):
        rest += terms[at - 1].weight * (k1 + 1) * _SLACK
        if rest >= threshold:
            return at
    return 0
