"""Cutting documents: bounded, complete, and never through a character."""

from __future__ import annotations

import itertools
import re
import unicodedata

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from herasys_rt.engines.chunking import chunk_document, cut
from herasys_rt.errors import NodeError


def words(text: str) -> list[tuple[int, int]]:
    """A token per word or sign: cutting between words changes no counts."""
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def triples(text: str) -> list[tuple[int, int]]:
    """Tokens of up to three letters, greedy from the left: cuts shift what follows."""
    return [match.span() for match in re.finditer(r"\S{1,3}", text)]


def utf8(text: str) -> list[tuple[int, int]]:
    """A token per UTF-8 byte, as byte-level tokenizers do at worst."""
    return [(i, i + 1) for i, char in enumerate(text) for _ in char.encode()]


TOKENIZERS = {"words": words, "triples": triples, "utf8": utf8}

UNHURRIED = settings(deadline=None)
"""A loaded machine is no fault of a cut."""

SCRIPTS = st.sampled_from(
    [
        *("word", "Sentence one.", "two!", " ", "\n", "\n\n", "\t", "a", "longerword" * 4),
        *("日本語の文章。", "続きです", "ภาษาไทย", "กำ", "हिन्दी", "क्षि", "한국어"),
        *("👨\u200d👩\u200d👧\u200d👦", "🇩🇪", "👍🏽", "e\u0301", "a\u0308\u0323", "\u0301"),
        *("\n# Head\n", "\n\n### Sub head\n\n", "\f"),
        *("\r\n", "\u200b", "\u00a0", "\u0600", "x" * 30, ".", "…"),
    ]
)
TEXTS = st.lists(SCRIPTS, max_size=60).map("".join) | st.text(max_size=120)


def graphemes(text: str) -> list[int]:
    return [0, *(match.end() for match in regex.finditer(r"\X", text))]


@UNHURRIED
@given(
    TEXTS,
    st.sampled_from(sorted(TOKENIZERS)),
    st.integers(1, 40),
    st.integers(0, 39),
)
@example("a" + "\u0301" * 50 + " b", "utf8", 4, 2)
@example(" \u0301x", "words", 1, 0)
@example("a\r\nb", "words", 1, 0)
def test_chunks_are_bounded_complete_slices_between_graphemes(
    text: str, tokenizer: str, max_tokens: int, overlap: int
):
    overlap %= max_tokens
    offsets = TOKENIZERS[tokenizer]
    spans = cut(text, max_tokens, overlap, offsets)
    boundaries = set(graphemes(text))
    covered = bytearray(len(text))
    for start, end in spans:
        piece = text[start:end]
        assert piece.strip(), "no chunk is blank"
        one_character = len(regex.findall(r"\X", piece)) == 1
        split = not {start, end} <= boundaries
        if split:  # only inside a grapheme that is too long by itself
            around = max(b for b in boundaries if b <= start)
            beyond = min(b for b in boundaries if b > start)
            assert len(offsets(text[around:beyond])) > max_tokens
        assert len(offsets(piece)) <= max_tokens or (one_character and len(piece) == 1)
        covered[start:end] = b"\1" * (end - start)
    missed = [c for c, seen in zip(text, covered, strict=True) if not seen]
    assert not "".join(missed).strip(), "everything but blanks is in some chunk"


@UNHURRIED
@given(TEXTS, st.integers(2, 40), st.integers(0, 39))
def test_chunks_advance_and_share_at_most_the_overlap(
    text: str, max_tokens: int, overlap: int
):
    overlap %= max_tokens
    spans = cut(text, max_tokens, overlap, words)
    for (start, end), (next_start, next_end) in itertools.pairwise(spans):
        assert next_start > start and next_end > end
        assert len(words(text[next_start:end])) <= overlap


@UNHURRIED
@given(TEXTS, st.integers(1, 40))
def test_without_overlap_chunks_do_not_share_anything(text: str, max_tokens: int):
    spans = cut(text, max_tokens, 0, triples)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


@UNHURRIED
@given(TEXTS)
def test_a_chunk_cut_again_stays_whole(text: str):
    document = {"id": "d", "text": text}
    for chunk in chunk_document(document, max_tokens=12, overlap=0, offsets=triples):
        again = chunk_document(chunk, max_tokens=12, overlap=3, offsets=triples)
        assert [c["text"] for c in again] == [chunk["text"]]


def texts(text: str, max_tokens: int, overlap: int = 0) -> list[str]:
    document = {"id": "d", "text": text}
    return [
        chunk["text"]
        for chunk in chunk_document(
            document, max_tokens=max_tokens, overlap=overlap, offsets=words
        )
    ]


def test_ends_of_paragraphs_come_before_sentences_before_words():
    assert texts("one two three.\n\nfour five. six seven eight", 8) == [
        "one two three.",
        "four five. six seven eight",
    ]
    assert texts("one two three four. five six seven eight", 8) == [
        "one two three four.",
        "five six seven eight",
    ]
    assert texts("one two three four five six", 4) == ["one two three four", "five six"]


def test_a_heading_begins_a_chunk_and_nothing_before_it_is_repeated():
    text = "One two three.\n\n## Second\n\nFour five six.\n\n#no heading\n\nSeven."
    spans = cut(text, 14, 3, words)
    assert [text[a:b] for a, b in spans] == [
        "One two three.",
        "## Second\n\nFour five six.\n\n#no heading\n\nSeven.",
    ]


def test_a_heading_soon_after_another_one_stays_with_it():
    text = "# Title\n\n## Part\n\n" + "word " * 30
    assert text[slice(*cut(text, 20, 0, words)[0])].startswith("# Title\n\n## Part")


def test_sections_are_cut_alike_whatever_stands_before_them():
    section = "# Shared\n\n" + "\n\n".join(f"Some {'more ' * n}words." for n in range(30))

    def chunks(before: str) -> set[str]:
        text = before + section
        return {text[a:b] for a, b in cut(text, 40, 10, words)}

    alone = chunks("")
    assert len(alone) > 10
    for length in range(20, 80):
        assert alone <= chunks("# Other\n\n" + "word " * length + "\n\n")


def test_a_boundary_that_would_leave_a_tiny_chunk_is_passed_over():
    assert texts("Hi.\n\none two three four five six seven eight nine", 8)[0] == (
        "Hi.\n\none two three four five six"
    )


def test_the_overlap_begins_with_a_whole_sentence_when_one_fits():
    assert texts("a b c d e f. g h. i j k l m n o", 10, overlap=4) == [
        "a b c d e f. g h.",
        "g h. i j k l m n o",
    ]


def test_the_overlap_begins_with_a_whole_word_when_no_sentence_fits():
    assert texts("a b c d e f", 4, overlap=2) == ["a b c d", "c d e f"]


@pytest.mark.parametrize(
    "character",
    [
        "👨\u200d👩\u200d👧\u200d👦",  # a family: four people joined
        "🇹🇭",  # a flag: two regional indicators
        "👍🏽",  # a thumb with a skin tone
        "e\u0301",  # a letter with a combining accent
        "กำ",  # Thai: consonant with sara am
        "हि",  # Devanagari: consonant with a vowel sign
        "각",  # Hangul jamo
    ],
)
def test_characters_of_several_code_points_are_never_cut(character: str):
    whole = unicodedata.normalize("NFD", character)
    limit = 2 * len(utf8(whole)) + 1
    document = {"id": "d", "text": whole * 9}
    chunks = chunk_document(document, max_tokens=limit, overlap=0, offsets=utf8)
    assert [chunk["text"] for chunk in chunks] == [whole * 2] * 4 + [whole]


def test_text_without_blanks_is_cut_at_its_own_marks():
    assert texts("これは文です。これも文です。", 3) == [
        "これは文です。",
        "これも文です。",
    ]


def test_ids_source_index_and_metadata_are_those_of_the_document():
    document = {
        "id": "guide.md",
        "text": "one two three four",
        "source": "guide",
        "metadata": {"title": "G"},
    }
    chunks = chunk_document(document, max_tokens=2, overlap=0, offsets=words)
    assert [(c["id"], c["index"], c["text"]) for c in chunks] == [
        ("guide.md#0", 0, "one two"),
        ("guide.md#1", 1, "three four"),
    ]
    assert {c["source"] for c in chunks} == {"guide"}
    assert all(c["metadata"] == {"title": "G"} for c in chunks)
    chunks[0]["metadata"]["title"] = "changed"
    assert document["metadata"] == {"title": "G"}
    plain = chunk_document({"id": "x", "text": "one"}, offsets=words)
    assert (plain[0]["source"], plain[0]["metadata"]) == ("x", {})


@pytest.mark.parametrize("text", ["", " ", "\n\t \u00a0", "\0", " \0 "])
def test_a_blank_document_gives_no_chunks(text: str):
    assert chunk_document({"id": "d", "text": text}, offsets=words) == []


def test_nul_and_lone_surrogates_do_not_reach_the_tokenizer():
    seen: list[str] = []

    def offsets(text: str) -> list[tuple[int, int]]:
        seen.append(text)
        text.encode()
        return words(text)

    chunks = chunk_document({"id": "d", "text": "a\0b \ud83d c"}, offsets=offsets)
    assert [chunk["text"] for chunk in chunks] == ["ab \ufffd c"]
    assert all("\0" not in text for text in seen)


def test_text_that_no_token_stands_for_is_kept():
    chunks = chunk_document({"id": "d", "text": "☃"}, offsets=lambda text: [])
    assert [chunk["text"] for chunk in chunks] == ["☃"]


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (-1, 0), (5, 5), (5, -1)])
def test_sizes_that_cannot_work_are_refused(size: int, overlap: int):
    with pytest.raises(NodeError) as caught:
        chunk_document(
            {"id": "d", "text": "x"}, max_tokens=size, overlap=overlap, offsets=words
        )
    assert caught.value.code == "invalid_chunking"
