"""Texts as words, before PostgreSQL stems them; documents and queries alike.

What a word is must not depend on the database's locale (under ``C`` it lowers ASCII only
and takes a dash for a letter) nor on PostgreSQL's parser, which reads ``os.path`` as a
host name and ``/usr/bin`` as a file and then finds neither by its parts. So texts are cut
here, and the server sees words and blanks only: no character of a text ever is syntax.
"""

from __future__ import annotations

import unicodedata

import regex

VERSION = 1
"""Raise it when equal texts give other words: collections are then indexed anew."""
LIMIT_BYTES = 256 * 1024
"""Words of one text that count, in UTF-8; PostgreSQL's tsvector holds 1 MB."""
_WORD_LIMIT = 200  # characters; what is longer is no word and nobody types it

# Scripts written without blanks: single characters and pairs stand for words.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_RUN = regex.compile(
    rf"([{_UNSPACED}]+)|[[\p{{L}}\p{{N}}\p{{M}}]--[{_UNSPACED}]]+", regex.V1
)


def words_of(text: str) -> str:
    """The words of a text, case folded, separated by single blanks.

    A word is a run of letters, digits and combining marks; compatibility forms (full
    width, ligatures) count as what they stand for.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    found: list[str] = []
    left = LIMIT_BYTES
    for run in _RUN.finditer(folded):
        for word in _unspaced(run[0]) if run[1] else (run[0][:_WORD_LIMIT],):
            left -= len(word.encode(errors="ignore")) + 1
            if left < 0:
                return " ".join(found)
            found.append(word)
    return " ".join(found)


def _unspaced(run: str) -> list[str]:
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    return [*run, *pairs]
