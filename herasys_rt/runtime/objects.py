"""Large values: kept in Ray's object store, owned by the scheduler.

The scheduler's process keeps one reference per *place*; the producer puts the bytes with
the scheduler as their owner, so that they outlive the engine that made them. Consumers
ask the scheduler for the reference by a Ray call: that costs a millisecond or two, which
only values beyond `INLINE_LIMIT_BYTES` pay.
"""

from __future__ import annotations

from typing import Any, Protocol

from herasys_rt.core.values import INLINE_LIMIT_BYTES, Value
from herasys_rt.errors import EnvironmentFaultError
from herasys_rt.graph import codec
from herasys_rt.ids import new_id


class ObjectHold:
    """The scheduler's side: place -> reference. Safe from any thread (dict operations)."""

    def __init__(self) -> None:
        self._refs: dict[str, Any] = {}

    def hold(self, place: str, ref: Any) -> None:
        """Keep the object of ``place`` alive."""
        self._refs[place] = ref

    def handle(self, place: str) -> Any:
        """The reference of a place; None when it is not (any longer) held."""
        return self._refs.get(place)

    def release(self, place: str) -> None:
        """Let the object go. Unknown places are ignored."""
        self._refs.pop(place, None)

    def read(self, handle: Any) -> bytes:
        """The bytes behind a reference. Errors: `EnvironmentFaultError` when lost."""
        return read_ref(handle)

    def __len__(self) -> int:
        return len(self._refs)


def read_ref(ref: Any) -> bytes:
    """The bytes of an object reference. Errors: `EnvironmentFaultError` when lost."""
    import ray

    if ref is None:
        raise EnvironmentFaultError(
            "a large value is no longer held", hint="Submit the run again."
        )
    try:
        return ray.get(ref, timeout=60)  # pyright: ignore
    except ray.exceptions.RayError as e:
        raise EnvironmentFaultError(
            f"a large value was lost: {type(e).__name__}", hint="Submit the run again."
        ) from e


class ValueStore(Protocol):
    """Where a host or fuser puts and gets values."""

    def pack(self, data: bytes) -> Value:
        """The `Value` of encoded bytes, stored away when they are large."""
        ...

    def unpack(self, value: Value) -> bytes:
        """The encoded bytes of a value."""
        ...


class InlineValues:
    """Keeps every value inline; for processes without Ray and for tests."""

    def pack(self, data: bytes) -> Value:
        """See `ValueStore`."""
        return Value(codec.digest(data), len(data), inline=data)

    def unpack(self, value: Value) -> bytes:
        """See `ValueStore`. Errors: `EnvironmentFaultError` for a placed value."""
        if value.inline is None:
            raise EnvironmentFaultError("a stored value reached a process without Ray")
        return value.inline


class RayValues:
    """Puts large values into Ray's store with the scheduler actor as their owner."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def pack(self, data: bytes) -> Value:
        """See `ValueStore`. Blocks a few milliseconds for a large value."""
        if len(data) <= INLINE_LIMIT_BYTES:
            return Value(codec.digest(data), len(data), inline=data)
        import ray

        place = new_id("value")
        ref = ray.put(data, _owner=self._scheduler)
        # In a list, so that the reference itself travels and not its content.
        ray.get(self._scheduler.hold.remote(place, [ref]))
        return Value(codec.digest(data), len(data), place=place)

    def unpack(self, value: Value) -> bytes:
        """See `ValueStore`. Errors: `EnvironmentFaultError` when it was lost."""
        if value.inline is not None:
            return value.inline
        import ray

        found = ray.get(self._scheduler.reference.remote(value.place))
        return read_ref(found[0] if found else None)
