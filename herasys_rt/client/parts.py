"""The text that a run streams, put together from pieces that come in any order."""

from __future__ import annotations

from collections import deque

from herasys_rt.messages import Piece


class _Part:
    """The text of one node: what came, and how much of it may not be shown yet."""

    __slots__ = ("closed", "length", "node", "texts", "waiting")

    def __init__(self, node: int) -> None:
        self.node = node
        self.texts: list[str] = []
        self.length = 0
        self.waiting: list[str] = []
        self.closed = False

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.waiting.append(text)
        self.length += len(text)


class Parts:
    """Texts that follow one another: a part begins to show when those opened before it
    are closed. A workflow's run has one part, an agent's one per call that streams.

    Every method gives the text that may be shown now. `diverged` is True once a part was
    shown that its whole text does not begin with. Not safe from several threads.
    """

    def __init__(self) -> None:
        self.diverged = False
        self._parts: dict[int, _Part] = {}
        self._shown: deque[_Part] = deque()
        self._early: dict[int, list[Piece]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def open(self, fragment: int, node: int) -> str:
        """The next part is the text of node ``node`` of ``fragment``. Pieces of it may
        have come already: they take another way than who opens it."""
        part = self._parts[fragment] = _Part(node)
        self._shown.append(part)
        for piece in self._early.pop(fragment, ()):
            self._take(part, piece)
        return self._show()

    def take(self, piece: Piece) -> str:
        """More text of a part; what is already here (a repeated attempt) is dropped."""
        part = self._parts.get(piece.fragment)
        if part is None:
            self._early.setdefault(piece.fragment, []).append(piece)
            return ""
        self._take(part, piece)
        return self._show()

    def close(self, fragment: int, text: str | None) -> str:
        """A part is complete: ``text`` is all of it, None says that no more will come."""
        part = self._parts[fragment]
        if text is not None and not part.closed:
            here = "".join(part.texts)
            if text.startswith(here):
                part.add(text[len(here) :])
            elif len(part.waiting) == len(part.texts):
                part.waiting = [text]  # Nobody has seen what turned out differently.
            else:
                self.diverged = True
        part.closed = True
        return self._show()

    def close_all(self) -> str:
        """No more will come of anything."""
        for part in self._shown:
            part.closed = True
        return self._show()

    @staticmethod
    def _take(part: _Part, piece: Piece) -> None:
        if part.closed or piece.node != part.node or piece.offset > part.length:
            return
        fresh = piece.text[part.length - piece.offset :]
        if fresh:
            part.add(fresh)

    def _show(self) -> str:
        shown: list[str] = []
        while self._shown:
            part = self._shown[0]
            shown += part.waiting
            part.waiting = []
            if not part.closed:
                break
            self._shown.popleft()
        return "".join(shown)
