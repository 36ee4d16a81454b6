"""The protocol between an engine host and an engine: the only thing all engines share.

An engine does verbs on items. It is started once (slow: loads models), then takes items
without blocking and reports to a `Sink` from any thread. Every submitted item ends with
exactly one `Sink.finished`, also when it was aborted or its batch-mates failed; after
`Engine.close` nothing is reported any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from herasys_rt.errors import ErrorInfo


class Item(msgspec.Struct, frozen=True):
    """One piece of work: ``args`` are the node's resolved arguments by port name.

    ``key`` is unique per host. ``stream`` says that somebody listens to the text as it
    is produced. ``trust_scope`` separates tenants inside shared caches.
    """

    key: str
    verb: str
    args: dict[str, Any]
    stream: bool = False
    trust_scope: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """How an item ended: a value, an error, or neither when it was aborted.

    ``usage`` counts what was consumed (prompt_tokens, completion_tokens, cached_tokens,
    items ...); ``sources`` lists the chunks a value was made from, each a dict with
    ``id``, ``source``, ``score`` and ``text``; ``revisions`` the collection revisions
    read or written in the same transaction. ``truncated`` says that a text was cut at
    max_tokens: that is what was asked for, and an equal item may reuse it. ``partial``
    says that it was cut before (by a limit of the server's): it is never reused.
    ``run_s`` is the engine's own time for the item in seconds, waiting excluded.
    """

    value: Any = None
    error: ErrorInfo | None = None
    aborted: bool = False
    usage: dict[str, int] = {}
    sources: list[dict[str, Any]] = []
    revisions: dict[str, int] = {}
    truncated: bool = False
    partial: bool = False
    run_s: float = 0.0


class Sink(Protocol):
    """Where an engine reports. All methods may be called from any thread."""

    def started(self, key: str) -> None:
        """The engine began with the item."""
        ...

    def piece(self, key: str, text: str, tokens: int) -> None:
        """More text of a streaming item: ``text`` is new, ``tokens`` how many made it."""
        ...

    def finished(self, key: str, outcome: Outcome) -> None:
        """The item ended; called exactly once per item."""
        ...

    def collection_changed(self, collection: str, revision: int) -> None:
        """The database told that a collection's content moved."""
        ...


class Snapshot(msgspec.Struct, frozen=True):
    """A cheap look at an engine: items running and waiting, share of KV cache in use.

    ``fault`` says that the engine as a whole is dead and why: its items have ended with
    a retryable error, and so does whatever is submitted to it from then on.
    """

    running: int
    waiting: int
    kv_usage: float = 0.0
    fault: ErrorInfo | None = None


class Engine(Protocol):
    """One model (or database, or endpoint) behind verbs."""

    verbs: frozenset[str]

    def start(self, sink: Sink) -> None:
        """Load and get ready; blocks. Errors: `EnvironmentFaultError` and its kinds."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts after start: ``fingerprint`` (str, what signatures use for the model and
        its revision, tokenizer and template), ``context_tokens``, ``dimensions`` ..."""
        ...

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; returns at once. A bad item is that item's outcome."""
        ...

    def abort(self, key: str) -> None:
        """Stop an item; unknown or finished keys are ignored. Returns at once."""
        ...

    def snapshot(self) -> Snapshot:
        """Microseconds, from any thread."""
        ...

    def close(self) -> None:
        """Stop everything and free it. Idempotent."""
        ...
