"""The hashes that name values and work, and the digest of a value without copying it.

SHA-256 is the default: names made with it may meet in one runtime whoever chose the
values. XXH3 is many times faster and no cryptographic hash: somebody who chooses values
can make two that collide, so that it is for one tenant that trusts itself.

One rule: a runtime has one hash (``scheduler.fusion_hash``), and all its names of values
are made with it, whoever makes them: of inputs and outputs, and of the items of a list,
whether an input, a literal or a node's output has them. So equal values have equal names.
What the kernel makes of names (keys by value and of items), and what outlives a runtime
(ids of specs, checks of what is read from disk), is SHA-256 always.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import xxhash

from herasys_rt.graph import codec

HashName = Literal["sha256", "xxh3"]


class Hasher(Protocol):
    """A hash that is fed piece by piece."""

    def update(self, data: Any, /) -> None:
        """Feed a buffer."""
        ...

    def digest(self) -> bytes:
        """The digest of all that was fed."""
        ...


@dataclass(frozen=True, slots=True)
class Hash:
    """A hash function: ``digest`` of a buffer at once, ``new`` for piece by piece."""

    name: HashName
    size: int
    """Bytes of a digest."""
    digest: Callable[[Any], bytes]
    new: Callable[[], Hasher]

    def of(self, value: Any) -> bytes:
        """The digest of a value's `codec.canonical` bytes.

        An ndarray, bytes or text of more than 64 KiB, also within lists and dicts, is
        hashed where it lies. Errors: `CodecError`.
        """
        if not _holds_large(value):
            return self.digest(codec.canonical(value))
        codec.refuse_faults(value)
        hasher = self.new()
        _feed(hasher, value)
        return hasher.digest()


def _sha256(data: Any) -> bytes:
    return hashlib.sha256(data).digest()


SHA256 = Hash("sha256", 32, _sha256, hashlib.sha256)
XXH3 = Hash("xxh3", 16, xxhash.xxh3_128_digest, xxhash.xxh3_128)

HASHES: Mapping[HashName, Hash] = {h.name: h for h in (SHA256, XXH3)}
"""By the name that ``scheduler.fusion_hash`` takes."""

_LARGE_BYTES = 0xFFFF
"""Up to here copying costs nothing next to hashing; beyond it MessagePack writes every
length with 32 bits."""
_BLOCK = 1 << 16  # elements of an array that are normalised at once, within the cache


def _holds_large(value: Any) -> bool:
    """Whether a part of a value is worth hashing in place. Sound for any object."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is str or kind is bytes:
        return len(value) > _LARGE_BYTES
    if isinstance(value, np.ndarray):
        return cast("np.ndarray[Any, Any]", value).nbytes > _LARGE_BYTES
    try:
        if kind is dict:
            return any(map(_holds_large, cast("dict[Any, Any]", value).values()))
        if kind is list or kind is tuple:
            return any(map(_holds_large, cast("list[Any]", value)))
    except RecursionError:
        return False  # What encodes the value says so.
    return False


def _feed(hasher: Hasher, value: Any) -> None:
    """Feed the canonical bytes of a value that has no faults."""
    if not _holds_large(value):
        hasher.update(codec.canonical(value))
    elif isinstance(value, np.ndarray):
        _feed_array(hasher, cast("np.ndarray[Any, Any]", value))
    elif isinstance(value, str):
        size = len(value) if value.isascii() else sum(map(len, codec.utf8_parts(value)))
        hasher.update(_head(0xDB, size))
        for part in codec.utf8_parts(value):
            hasher.update(part)
    elif isinstance(value, bytes):
        hasher.update(_head(0xC6, len(value)))
        hasher.update(value)
    elif isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        hasher.update(_map_head(len(items)))
        for key in sorted(items):
            hasher.update(codec.canonical(key))
            _feed(hasher, items[key])
    else:
        members = cast("list[Any]", value)
        hasher.update(_list_head(len(members)))
        for member in members:
            _feed(hasher, member)


def _feed_array(hasher: Hasher, array: np.ndarray[Any, Any]) -> None:
    dtype, described = codec.array_head(array)
    hasher.update(_head(0xC9, len(described) + array.nbytes))
    hasher.update(bytes([codec.ARRAY_CODE]) + described)
    flat = array.reshape(-1)  # in C order; copied only when it does not lie so
    for start in range(0, flat.size, _BLOCK):
        block = codec.normalised_array(flat[start : start + _BLOCK])
        hasher.update(block.astype(dtype, copy=False).view(np.uint8))


def _head(code: int, length: int) -> bytes:
    if length > 0xFFFFFFFF:
        raise codec.CodecError(
            f"a value of {length} bytes is beyond 4 GiB", hint="Split it into parts."
        )
    return bytes([code]) + length.to_bytes(4, "big")


def _map_head(length: int) -> bytes:
    if length < 16:
        return bytes([0x80 | length])
    return _counted(0xDE, length)


def _list_head(length: int) -> bytes:
    if length < 16:
        return bytes([0x90 | length])
    return _counted(0xDC, length)


def _counted(code: int, length: int) -> bytes:
    if length <= 0xFFFF:
        return bytes([code]) + length.to_bytes(2, "big")
    return _head(code + 1, length)
