"""Values that remember which nodes of a run they came from.

What an agent gets from a node is an ordinary str, list or dict with an *origin*. Pieces
taken from it by the usual methods keep the origin, so that the edges of the graph are
known when the piece is passed on. Where the origin is lost (an f-string, a number, a
foreign function), the nodes that the coroutine awaited last stand in for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, cast

Origin = frozenset[tuple[int, str]]
"""(fragment, node id) of the nodes that a value came from."""

NOWHERE: Origin = frozenset()

_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")


class TrackedText(str):
    """A text with an origin."""

    origin: Origin

    def __new__(cls, text: str, origin: Origin) -> TrackedText:
        """Wrap a text."""
        made = super().__new__(cls, text)
        made.origin = origin
        return made

    def _of(self, text: str) -> TrackedText:
        return TrackedText(text, self.origin)

    def _all(self, texts: Iterable[str]) -> TrackedList:
        return TrackedList([self._of(text) for text in texts], self.origin)

    def lines(self) -> TrackedList:
        """The lines that are not blank, trimmed, without list marks (-, 1.) in front."""
        trimmed = (_MARK.sub("", line).strip() for line in plain(self).split("\n"))
        return self._all(line for line in trimmed if line)

    def __getitem__(self, key: SupportsIndex | slice) -> TrackedText:
        return self._of(super().__getitem__(key))

    def __add__(self, other: str) -> TrackedText:
        return TrackedText(super().__add__(other), self.origin | origin_of(other))

    def __radd__(self, other: str) -> TrackedText:
        return TrackedText(str(other) + str(self), self.origin | origin_of(other))

    def strip(self, chars: str | None = None, /) -> TrackedText:
        """See `str.strip`."""
        return self._of(super().strip(chars))

    def lower(self) -> TrackedText:
        """See `str.lower`."""
        return self._of(super().lower())

    def upper(self) -> TrackedText:
        """See `str.upper`."""
        return self._of(super().upper())

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> TrackedText:
        """See `str.replace`."""
        origin = self.origin | origin_of(new)
        return TrackedText(super().replace(old, new, count), origin)

    def removeprefix(self, prefix: str, /) -> TrackedText:
        """See `str.removeprefix`."""
        return self._of(super().removeprefix(prefix))

    def removesuffix(self, suffix: str, /) -> TrackedText:
        """See `str.removesuffix`."""
        return self._of(super().removesuffix(suffix))

    def split(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, sep: str | None = None, maxsplit: SupportsIndex = -1
    ) -> TrackedList:
        """See `str.split`."""
        return self._all(super().split(sep, maxsplit))

    def splitlines(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, keepends: bool = False
    ) -> TrackedList:
        """See `str.splitlines`."""
        return self._all(super().splitlines(keepends))

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class TrackedList(list[Any]):
    """A list with an origin; its items have one too."""

    origin: Origin

    def __init__(self, items: Iterable[Any], origin: Origin) -> None:
        super().__init__(track(item, origin) for item in items)
        self.origin = origin

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return TrackedList(found, self.origin) if isinstance(key, slice) else found

    def __add__(self, other: list[Any]) -> TrackedList:  # pyright: ignore[reportIncompatibleMethodOverride]
        return TrackedList([*self, *other], self.origin | origin_of(other))

    def copy(self) -> TrackedList:
        """See `list.copy`."""
        return TrackedList(self, self.origin)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (plain(self),)


class TrackedDict(dict[str, Any]):
    """A dict with an origin; its values have one too."""

    origin: Origin

    def __init__(self, items: dict[str, Any], origin: Origin) -> None:
        super().__init__({key: track(value, origin) for key, value in items.items()})
        self.origin = origin

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (plain(self),)


def track(value: Any, origin: Origin) -> Any:
    """The value with an origin where its type can carry one; tracked ones keep theirs."""
    if isinstance(value, TrackedText | TrackedList | TrackedDict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str):
        return TrackedText(value, origin)
    if isinstance(value, list):
        return TrackedList(cast("list[Any]", value), origin)
    if isinstance(value, dict):
        return TrackedDict(cast("dict[str, Any]", value), origin)
    return value


def origin_of(value: object) -> Origin:
    """The origins of a value and of everything in it."""
    tracked = isinstance(value, TrackedText | TrackedList | TrackedDict)
    found: Origin = value.origin if tracked else NOWHERE
    for part in _parts(value):
        found |= origin_of(part)
    return found


def plain(value: Any) -> Any:
    """The value as ordinary str, lists and dicts, all the way down."""
    if isinstance(value, TrackedText):
        return str.__str__(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: plain(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    return value


def _parts(value: object) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from cast("dict[str, Any]", value).values()
    elif isinstance(value, list | tuple):
        yield from cast("list[Any]", value)
