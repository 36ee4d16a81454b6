"""Who still refers to the values that lie in the object store."""

from __future__ import annotations

from collections import OrderedDict

from herasys_rt.core.values import Value

_REMEMBERED = 65_536


class Ledger:
    """Reference counts of placed values; inline values pass through untouched.

    A place whose last reference went is given out by `drain` exactly once, at the end of
    the event in which it happened, so that a value changing hands within one event is
    never let go. Places let go are remembered (the latest 65,536), so that an outcome
    delivered twice does not release its value twice.
    """

    __slots__ = ("_pending", "_released", "counts")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._pending: dict[str, None] = {}
        self._released: OrderedDict[str, None] = OrderedDict()

    def acquire(self, value: Value) -> None:
        """One more reference."""
        place = value.place
        if place:
            self._pending.pop(place, None)
            self._released.pop(place, None)
            self.counts[place] = self.counts.get(place, 0) + 1

    def release(self, value: Value) -> None:
        """One reference less. Errors: KeyError when nobody refers to it."""
        place = value.place
        if place:
            left = self.counts[place] - 1
            if left:
                self.counts[place] = left
            else:
                del self.counts[place]
                self._pending[place] = None

    def discard(self, value: Value) -> None:
        """A value that nobody will refer to: let it go, unless it is known already."""
        place = value.place
        if place and place not in self.counts and place not in self._released:
            self._pending[place] = None

    def drain(self) -> list[str]:
        """Places to release now; each is given out once."""
        if not self._pending:
            return []
        places = list(self._pending)
        self._pending.clear()
        for place in places:
            self._released[place] = None
        while len(self._released) > _REMEMBERED:
            self._released.popitem(last=False)
        return places
