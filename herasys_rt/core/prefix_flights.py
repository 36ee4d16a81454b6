"""Partial prefills in flight: the known head of a prompt, computed once per instance.

A partial prefill warms the prefix cache of one instance. That is instance-local state and
not a value: its key names the instance, it never enters the reuse cache, and whether the
instance still holds a head is asked anew each time. Nodes with equal heads on one instance
share its flight.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple


class HeadKey(NamedTuple):
    """What a partial-prefill flight computes, a `head_digest`, and on which instance."""

    head: bytes
    instance: str


class Warming(NamedTuple):
    """What a node finds: the flight that warms its head, ``joined`` when that was there
    before."""

    flight: int
    joined: bool


def head_digest(
    scope: bytes, model: str, tokens: Sequence[int], block_tokens: int
) -> bytes | None:
    """The SHA-256 of what decides the KV of a prompt's head: trust scope, model fingerprint
    and the ids of the tokens in whole KV blocks. None for less than one block.

    Token ids are from 0 up to 2**32 - 1; ``block_tokens`` is at least 1.
    """
    whole = len(tokens) - len(tokens) % block_tokens
    if not whole:
        return None
    name = model.encode()
    hashed = hashlib.sha256(b"head")
    hashed.update(struct.pack("<II", len(scope), len(name)) + scope + name)
    hashed.update(struct.pack(f"<{whole}I", *tokens[:whole]))
    return hashed.digest()


class PrefixFlights:
    """The live partial-prefill flights by key. Nodes that use it come with the scheduler
    that plans both placement and order."""

    __slots__ = ("_keys", "_live")

    def __init__(self) -> None:
        self._live: dict[str, dict[bytes, int]] = {}
        self._keys: dict[int, HeadKey] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def warm(self, key: HeadKey, flight: int, resident: bool) -> Warming | None:
        """What warms a head: the flight that does so already, or else ``flight`` from now
        on. None when there is nothing to do, as the instance holds the head by its newest
        word (``resident``).

        A flight under way is joined whatever the instance says: it may hold blocks that an
        earlier request left and evict them before this one is done.
        """
        here = self._live.get(key.instance)
        if here is not None and (live := here.get(key.head)) is not None:
            return Warming(live, True)
        if resident:
            return None
        self._live.setdefault(key.instance, {})[key.head] = flight
        self._keys[flight] = key
        return Warming(flight, False)

    def end(self, flight: int) -> None:
        """A flight ended, however: nothing of it is kept, and who comes next asks the
        instance. One that is not here is ignored (its instance went down)."""
        key = self._keys.pop(flight, None)
        if key is not None:
            here = self._live[key.instance]
            del here[key.head]
            if not here:
                del self._live[key.instance]

    def drop(self, instance: str) -> list[int]:
        """An instance went down, and its heads with it; gives the flights that it had, in
        the order they began. Nobody waits for them, so none is done again elsewhere."""
        flights = list(self._live.pop(instance, {}).values())
        for flight in flights:
            del self._keys[flight]
        return flights
