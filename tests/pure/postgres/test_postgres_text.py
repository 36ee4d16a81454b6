"""Text search without a server: words, weights of terms, and what need not be looked up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herasys_rt.engines.postgres import text_statements
from herasys_rt.engines.postgres.ranking import (
    QUERY_TERMS,
    Term,
    enough,
    first_look,
    idf,
    terms_of,
)
from herasys_rt.engines.postgres.words import LIMIT_BYTES, words_of

any_text = st.text(alphabet=st.characters(exclude_categories=()))


# -- words ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Boundary-layer control", "boundary layer control"),
        ("os.path.join(/usr/bin)", "os path join usr bin"),
        ("read_text isn't 3.14", "read text isn t 3 14"),
        ("a & b | !c <-> 'd' (e):*", "a b c d e"),
        ("ÜBER Straße ΣΊΣΥΦΟΣ", "über strasse σίσυφοσ"),
        ("\ufb01le \uff46\uff55\uff4c\uff4c cafe\u0301", "file full café"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("黒猫 cat", "黒 猫 黒猫 cat"),
        ("猫", "猫"),
        ("👍 — “…”", ""),
        (" \n\x00\ud800", ""),
        ("", ""),
    ],
)
def test_texts_become_words(text: str, words: str):
    assert words_of(text) == words


@given(any_text)
def test_words_hold_no_character_that_any_syntax_knows(text: str):
    words = words_of(text)
    words.encode()
    assert all(c == " " or ord(c) > 127 or c.isalnum() for c in words)
    assert words.split() == [word for word in words.split(" ") if word]


@given(any_text)
def test_words_of_words_are_those_words_but_for_unspaced_scripts(text: str):
    words = words_of(text)
    if words.isascii():
        assert words_of(words) == words


def test_endless_texts_and_words_are_cut():
    assert len(words_of("x" * 5000)) == 200
    long = words_of("wörter " * 100_000)
    assert LIMIT_BYTES - 10 < len(long.encode()) <= LIMIT_BYTES


# -- terms ----------------------------------------------------------------------------


def test_rare_lexemes_weigh_more_and_none_weighs_nothing():
    assert idf(1000, 1) > idf(1000, 10) > idf(1000, 999) > 0
    assert idf(1000, 1000) > 0
    found = [("common", 1, 900), ("rare", 1, 2), ("twice", 2, 900), ("gone", 1, 0)]
    terms = terms_of(found, 1000)
    assert [term.lexeme for term in terms] == ["rare", "common", "twice"]
    assert terms[2].weight == pytest.approx(2 * terms[1].weight)


def test_of_very_long_queries_the_rarest_lexemes_count():
    terms = terms_of([(f"l{i:04}", 1, i + 1) for i in range(3000)], 5000)
    assert len(terms) == QUERY_TERMS
    assert terms[-1].chunks == QUERY_TERMS


def test_the_first_look_finds_enough_chunks_and_no_more_than_is_cheap():
    terms = [Term("a", 5, 3), Term("b", 4, 100), Term("c", 3, 1000), Term("d", 1, 30_000)]
    assert first_look(terms, 2) == 3
    assert first_look(terms, 5000) == 4
    assert first_look(terms[:1], 10) == 1
    assert first_look([Term("d", 1, 30_000)], 10) == 1


def test_terms_that_cannot_reach_the_threshold_need_no_look():
    terms = [Term("a", 5.0, 3), Term("b", 2.0, 100), Term("c", 1.0, 1000)]
    assert enough(terms, 1.0, -math.inf) == 3
    assert enough(terms, 1.0, 1.9) == 3
    assert enough(terms, 1.0, 2.0) == 3  # an equal score would be a tie
    assert enough(terms, 1.0, 2.1) == 2
    assert enough(terms, 1.0, 6.1) == 1
    assert enough(terms, 1.0, 99.0) == 0


@given(
    st.lists(st.tuples(st.floats(0.01, 9), st.integers(1, 500)), min_size=1, max_size=8),
    st.floats(0, 3),
    st.floats(0, 1),
    st.integers(1, 5),
    st.data(),
)
def test_leaving_out_common_terms_never_changes_the_best(
    facts: list[tuple[float, int]], k1: float, b: float, top_k: int, data: st.DataObject
):
    terms = [Term(f"t{i}", w, n) for i, (w, n) in enumerate(sorted(facts, reverse=True))]
    counts = st.lists(st.integers(0, 5), min_size=len(terms), max_size=len(terms))
    chunks = data.draw(st.lists(st.tuples(counts, st.integers(1, 50)), max_size=30))

    def score(chunk: tuple[list[int], int]) -> float:
        norm = max(k1 * (1 - b + b * chunk[1] / 10), 1e-9)
        parts = zip(terms, chunk[0], strict=True)
        return (k1 + 1) * sum(term.weight * n / (n + norm) for term, n in parts)

    def best(looked_up: int) -> list[tuple[float, int]]:
        seen = [
            (-score(chunk), at)
            for at, chunk in enumerate(chunks)
            if any(chunk[0][:looked_up])
        ]
        return sorted(seen)[:top_k]

    first = data.draw(st.integers(1, len(terms)))
    found = best(first)
    threshold = -found[-1][0] if len(found) == top_k else -math.inf
    wanted = enough(terms, k1, threshold)
    found = best(wanted) if wanted > first else found
    assert found == best(len(terms))


# -- statements -----------------------------------------------------------------------


def test_a_lexeme_stays_a_lexeme_inside_a_query():
    assert text_statements.quoted("it's a \\ | !b:*") == "'it''s a \\\\ | !b:*'"
