"""Cutting documents into chunks of bounded token counts, at places a reader would choose.

Pure, given ``offsets``: a callable that gives each token's (start, end) character range
in a text, special tokens left out (`engines.tokens.TextTokens.offsets`).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import regex

from herasys_rt.documents import clean_text
from herasys_rt.errors import NodeError

Offsets = Callable[[str], Sequence[tuple[int, int]]]
"""Text -> (start, end) of each token in characters, in order, no special tokens."""

_SECTION = re.compile(r"^(?=#{1,6}[^\S\n]+\S)|\f", re.MULTILINE)
"""Before a Markdown heading; a form feed begins what follows it."""
_PARAGRAPH = re.compile(r"\n[^\S\n]*(?=\n)")
_SENTENCE = re.compile(
    r"[.!?\u2026][\"'\u201d\u2019)\]]*(?=\s)"
    # Ideographic full stop, fullwidth ! and ?: no blank follows them.
    r"|[\u3002\uff01\uff1f\uff61][\u300d\u300f\u201d\u2019\uff09]*"
    r"|\n"
)
_WORD = re.compile(r"\s+|[\u3001\uff0c\uff1b\uff1a]")


def chunk_document(
    document: Mapping[str, Any],
    *,
    max_tokens: int = 200,
    overlap: int = 20,
    offsets: Offsets,
) -> list[dict[str, Any]]:
    """Cut a document ``{id, text, source?, metadata?}`` into chunks.

    Chunks are dicts ``{id, text, source, index, metadata}`` of at most ``max_tokens``:
    ``id`` is ``<document id>#<index>``, ``source`` the document's ``source`` or else its
    id. A chunk's text is an exact slice of the document's cleaned text
    (`documents.clean_text`) without the blanks around it; together the chunks hold
    everything but blanks. Neighbours share up to ``overlap`` tokens.

    A text that fits stays whole. In others the first heading that leaves a quarter of
    ``max_tokens`` before it begins a chunk, without overlap: so a section is cut alike
    whatever stands before it, and documents with equal sections have equal chunks. Else
    cuts prefer ends of paragraphs, then of sentences, then of words. They never fall
    inside a character as a reader sees it (a grapheme), unless one alone exceeds
    ``max_tokens``: then between its code points. A blank document gives none.
    Errors: `NodeError` (``invalid_chunking``) for numbers that cannot work.
    """
    check_sizes(max_tokens, overlap)
    name = document["id"]
    text = clean_text(document["text"])
    return [
        {
            "id": f"{name}#{index}",
            "text": text[start:end],
            "source": document.get("source") or name,
            "index": index,
            "metadata": dict(document.get("metadata") or {}),
        }
        for index, (start, end) in enumerate(cut(text, max_tokens, overlap, offsets))
    ]


def check_sizes(max_tokens: int, overlap: int) -> None:
    """Refuse sizes that cannot work. Errors: `NodeError` (``invalid_chunking``)."""
    if max_tokens < 1 or not 0 <= overlap < max_tokens:
        raise NodeError(
            f"chunks of {max_tokens} tokens with an overlap of {overlap} cannot be cut",
            hint="Ask for at least 1 token and an overlap of 0 up to less than that.",
            code="invalid_chunking",
        )


def cut(
    text: str, max_tokens: int, overlap: int, offsets: Offsets
) -> list[tuple[int, int]]:
    """The (start, end) slices that `chunk_document` makes of a cleaned text."""
    marks = _Marks.of(text, offsets)
    spans: list[tuple[int, int]] = []
    start = covered = marks.skip_blanks(0)
    if start < len(text) and len(marks.starts) <= max_tokens:
        return [(start, marks.drop_blanks(start, len(text)))]
    while covered < len(text):
        start = marks.skip_blanks(start)
        if start >= len(text):
            break
        covered = max(covered, start)
        end = _fitting_end(marks, start, max_tokens, offsets)
        if end <= covered and start < covered:
            start = covered  # the overlap left no room for anything new: go without
            continue
        spans.append((start, marks.drop_blanks(start, end)))
        covered = marks.skip_blanks(end)
        start = marks.overlap_start(start, end, overlap)
    return spans


def _fitting_end(marks: _Marks, start: int, max_tokens: int, offsets: Offsets) -> int:
    """Where a chunk from ``start`` ends so that its text, by itself, fits.

    A slice may take more tokens than it had inside the whole text (a word cut in two, a
    leading blank that is gone), so the count that decides is the slice's own.
    """
    budget = max_tokens
    while True:
        end = marks.best_end(start, budget)
        excess = len(offsets(marks.text[start : marks.drop_blanks(start, end)]))
        excess -= max_tokens
        if excess <= 0:
            return end
        if budget > 1:
            budget = max(1, min(budget, marks.tokens(start, end)) - excess)
            continue
        return _longest_fitting(marks, start, end, max_tokens, offsets)


def _longest_fitting(
    marks: _Marks, start: int, end: int, max_tokens: int, offsets: Offsets
) -> int:
    """The last grapheme boundary in (start, end] up to which the text fits.

    When not even the first grapheme does, the last of its code points; one is taken in
    any case, so that cutting goes on.
    """

    def last_fitting(places: Sequence[int]) -> int:
        best, low, high = start, 0, len(places)
        while low < high:
            middle = (low + high) // 2
            if len(offsets(marks.text[start : places[middle]])) <= max_tokens:
                best, low = places[middle], middle + 1
            else:
                high = middle
        return best

    whole = marks.grapheme_ends(start, end)
    best = last_fitting(whole)
    if best == start:
        best = last_fitting(range(start + 1, whole[0] + 1))
    return max(best, start + 1)


@dataclass(frozen=True, slots=True)
class _Marks:
    """A text with its token starts and the places where it may be cut, all sorted.

    ``graphemes`` is None when every place is a boundary between graphemes.
    """

    text: str
    starts: list[int]
    sections: list[int]
    paragraphs: list[int]
    sentences: list[int]
    words: list[int]
    graphemes: list[int] | None

    @classmethod
    def of(cls, text: str, offsets: Offsets) -> _Marks:
        graphemes = _graphemes(text)
        whole = None if graphemes is None else set(graphemes)

        def ends(pattern: re.Pattern[str]) -> list[int]:
            found = (m.end() for m in pattern.finditer(text))
            return [at for at in found if whole is None or at in whole]

        return cls(
            text=text,
            starts=sorted(start for start, _ in offsets(text)),
            sections=ends(_SECTION),
            paragraphs=ends(_PARAGRAPH),
            sentences=ends(_SENTENCE),
            words=ends(_WORD),
            graphemes=graphemes,
        )

    def tokens(self, start: int, end: int) -> int:
        """How many tokens of the whole text begin in [start, end)."""
        left = bisect.bisect_left(self.starts, start)
        return bisect.bisect_left(self.starts, end) - left

    def best_end(self, start: int, budget: int) -> int:
        """The best cut after ``start`` within ``budget`` tokens of the whole text.

        The first section that begins after a quarter of the budget, else the best kind of
        boundary that fills at least half of it, the last of its kind; words need fill
        nothing; failing all, the last grapheme that fits, or one.
        """
        first = bisect.bisect_left(self.starts, start)
        section = self._section(first, start, budget)
        if section is not None:
            return section
        if first + budget >= len(self.starts):
            return len(self.text)
        limit = self.starts[first + budget]
        half = self.starts[first + max(budget // 2 - 1, 0)]
        for places, least in (
            (self.paragraphs, half),
            (self.sentences, half),
            (self.words, start),
        ):
            at = bisect.bisect_right(places, limit) - 1
            if at >= 0 and places[at] > max(least, start):
                return places[at]
        floor = self._grapheme(limit, back=True)
        return floor if floor > start else self._grapheme(start + 1, back=False)

    def _section(self, first: int, start: int, budget: int) -> int | None:
        """The first section that begins within ``budget`` tokens from ``start``, the token
        ``first``, and after a quarter of them."""
        quarter = first + max(budget // 4 - 1, 0)
        if quarter >= len(self.starts):
            return None
        place = bisect.bisect_right(self.sections, max(self.starts[quarter], start))
        if place == len(self.sections):
            return None
        section = self.sections[place]
        fits = bisect.bisect_left(self.starts, section) - first <= budget
        return section if fits else None

    def overlap_start(self, start: int, end: int, overlap: int) -> int:
        """Where the next chunk begins: up to ``overlap`` tokens before ``end``.

        The first sentence in that stretch, else the first word, else ``end`` itself:
        half a word or sentence repeated helps nobody, nor does the end of another section.
        """
        last = bisect.bisect_left(self.starts, end)
        place = bisect.bisect_left(self.sections, end)
        if overlap == 0 or last == 0 or self.sections[place : place + 1] == [end]:
            return end
        earliest = max(self.starts[max(0, last - overlap)], start + 1)
        for places in (self.sentences, self.words):
            at = bisect.bisect_left(places, earliest)
            if at < len(places) and places[at] < end:
                return places[at]
        return end

    def skip_blanks(self, at: int) -> int:
        """The first place from ``at`` on that shows something."""
        begin = at
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        # A blank that carries a combining mark belongs to what follows.
        return at if at == len(self.text) else max(begin, self._grapheme(at, back=True))

    def drop_blanks(self, start: int, end: int) -> int:
        """``end`` moved before the blanks that precede it, never below ``start + 1``."""
        at = end
        while at > start + 1 and self.text[at - 1].isspace():
            at -= 1
        return min(end, self._grapheme(at, back=False))

    def grapheme_ends(self, start: int, end: int) -> Sequence[int]:
        """Ends of the graphemes of [start, end), which is not empty."""
        if self.graphemes is None:
            return range(start + 1, end + 1)
        left = bisect.bisect_right(self.graphemes, start)
        return self.graphemes[left : bisect.bisect_right(self.graphemes, end)] or [end]

    def _grapheme(self, at: int, *, back: bool) -> int:
        """The nearest grapheme boundary at or before (``back``) / after ``at``."""
        if self.graphemes is None or at <= 0:
            return at
        if back:
            return self.graphemes[bisect.bisect_right(self.graphemes, at) - 1]
        place = bisect.bisect_left(self.graphemes, at)
        return self.graphemes[min(place, len(self.graphemes) - 1)]


def _graphemes(text: str) -> list[int] | None:
    """Boundaries between graphemes; None when that is every place of the text."""
    if text.isascii() and "\r" not in text:
        return None
    return [0, *(match.end() for match in regex.finditer(r"\X", text))]
