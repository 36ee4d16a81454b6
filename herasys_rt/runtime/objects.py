"""Large values: kept in Ray's object store, owned by the scheduler.

The scheduler's process keeps one reference per *place*. An object dies with the process
that put it (Ray 2.56 removed ``ray.put(_owner=...)``), so a producer hands the bytes to
the scheduler in a Ray call, through shared memory, and the scheduler puts them: they
outlive the engine that made them. Consumers ask the scheduler for the reference. Both
calls cost a millisecond or two, which only values beyond `INLINE_LIMIT_BYTES` pay.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from herasys_rt.core.values import INLINE_LIMIT_BYTES, Value
from herasys_rt.errors import EnvironmentFaultError, ValueLostError
from herasys_rt.graph.hashing import SHA256, Hash
from herasys_rt.ids import new_id


class ObjectHold:
    """The scheduler's side: place -> reference. Safe from any thread (dict operations)."""

    def __init__(self) -> None:
        self._refs: dict[str, Any] = {}

    def keep(self, place: str, data: Any) -> None:
        """Put ``data`` (a uint8 array) into the store and keep it under ``place``."""
        import ray

        self._refs[place] = ray.put(data)

    def handle(self, place: str) -> Any:
        """The reference of a place; None when it is not (any longer) held."""
        return self._refs.get(place)

    def release(self, place: str) -> None:
        """Let the object go. Unknown places are ignored."""
        self._refs.pop(place, None)

    def read(self, place: str, handle: Any) -> bytes:
        """The bytes behind a place's reference; errors as of `read_ref`."""
        return read_ref(place, handle)

    def __len__(self) -> int:
        return len(self._refs)


def read_ref(place: str, ref: Any) -> bytes:
    """The bytes of a place's object reference (None: there is none).

    Errors: `ValueLostError` when the store has lost them, `EnvironmentFaultError` when it
    does not give them now.
    """
    import ray
    from ray import exceptions

    if ref is None:
        raise _lost(place, "is no longer held")
    try:
        array: Any = ray.get(ref, timeout=60)
        return array.tobytes()
    except exceptions.ObjectLostError as e:
        raise _lost(place, f"was lost from the object store ({type(e).__name__})") from e
    except exceptions.RayError as e:
        raise EnvironmentFaultError(
            f"a large value could not be fetched: {type(e).__name__}",
            hint="Submit the run again.",
        ) from e


def _lost(place: str, how: str) -> ValueLostError:
    return ValueLostError(
        f"a large value {how}",
        hint="Submit the run again: what is lost is computed again.",
        place=place,
    )


class ValueStore(Protocol):
    """Where a host or fuser puts and gets values; ``hashing`` names them."""

    hashing: Hash

    def pack(self, data: bytes, digest: bytes | None = None) -> Value:
        """The `Value` of encoded bytes, stored away when they are large.

        ``digest`` is their name when it is known, which spares hashing them.
        """
        ...

    def unpack(self, value: Value) -> bytes:
        """The encoded bytes of a value. Errors: `ValueLostError` when it is lost,
        `EnvironmentFaultError` when it cannot be had now."""
        ...


class InlineValues:
    """Keeps every value inline; for processes without Ray and for tests."""

    def __init__(self, hashing: Hash = SHA256) -> None:
        self.hashing = hashing

    def pack(self, data: bytes, digest: bytes | None = None) -> Value:
        """See `ValueStore`."""
        return Value(digest or self.hashing.digest(data), len(data), inline=data)

    def unpack(self, value: Value) -> bytes:
        """See `ValueStore`. Errors: `EnvironmentFaultError` for a placed value."""
        if value.inline is None:
            raise EnvironmentFaultError(
                "a stored value reached a process without Ray",
                hint="Connect through herasys_rt.connect().",
            )
        return value.inline


class RayValues:
    """Keeps large values in Ray's store, in the hands of the scheduler actor."""

    def __init__(self, scheduler: Any, hashing: Hash = SHA256) -> None:
        self._scheduler = scheduler
        self.hashing = hashing

    def pack(self, data: bytes, digest: bytes | None = None) -> Value:
        """See `ValueStore`. Blocks a few milliseconds for a large value."""
        name = digest or self.hashing.digest(data)
        if len(data) <= INLINE_LIMIT_BYTES:
            return Value(name, len(data), inline=data)
        import ray
        from ray import exceptions

        place = new_id("value")
        # As an array: Ray moves its buffer through shared memory without pickling it.
        array = np.frombuffer(data, dtype=np.uint8)
        try:
            ray.get(self._scheduler.keep.remote(place, array))
        except exceptions.RayError as e:
            raise EnvironmentFaultError(
                f"a value of {len(data)} bytes could not be stored: {type(e).__name__}",
                hint="Give Ray's object store more memory (ray.object_store_mb).",
                code="value_store",
            ) from e
        return Value(name, len(data), place=place)

    def unpack(self, value: Value) -> bytes:
        """See `ValueStore`."""
        if value.inline is not None:
            return value.inline
        import ray
        from ray import exceptions

        try:
            found: Any = ray.get(self._scheduler.reference.remote(value.place))
        except exceptions.RayError as e:
            raise EnvironmentFaultError(
                f"nobody tells where a large value is: {type(e).__name__}",
                hint="The scheduler has ended: start the runtime again with `herasys up`, "
                "and submit the run again.",
            ) from e
        return read_ref(value.place, found[0] if found else None)
