"""The scheduler's side of the store and of purges: who may ask, and who waits for what."""

from __future__ import annotations

import contextlib
import hmac
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from herasys_rt.core.commands import DropKept, KeepResult
from herasys_rt.core.events import CachePurged
from herasys_rt.core.reuse import report
from herasys_rt.core.state import State
from herasys_rt.errors import ErrorInfo
from herasys_rt.links import Endpoint, Outbox
from herasys_rt.messages import (
    Generation,
    KeptDropped,
    PurgeNoted,
    PurgeReply,
    PurgeRequest,
)
from herasys_rt.runtime import pending_purges

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
"""How long who asked for a purge waits for the store."""


class _Asked(NamedTuple):
    """Somebody who waits to hear that a purge has taken effect in the store."""

    client: str
    question: int
    entries: int
    bytes: int
    since_s: float


class Noting:
    """Writes purges down in the store's ``folder``, in a thread of its own, and tells the
    loop when that is done."""

    def __init__(self, folder: Path, tell: Callable[[PurgeNoted], Any]) -> None:
        self._folder = folder
        self._tell = tell
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="purges")

    def note(self, number: int, drop: DropKept) -> Future[Path | None]:
        """Write a purge down; None when that does not work."""
        record = self._thread.submit(self._write, drop)
        record.add_done_callback(lambda _: self._tell(PurgeNoted(number)))
        return record

    def close(self) -> None:
        """Write what was asked for."""
        self._thread.shutdown()

    def _write(self, drop: DropKept) -> Path | None:
        try:
            return pending_purges.write(self._folder, drop)
        except OSError as e:
            log.error("a purge cannot be written down in %s: %s", self._folder, e)
            return None


class _Noted(NamedTuple):
    """A purge that is being written down, and who asked for it."""

    request: PurgeRequest
    tenant: str | None
    record: Future[Path | None]


class CacheDesk:
    """Takes purges and passes on what the store is to hear.

    Where there is a store a purge is written down first (``noting``), until the store has
    confirmed it; it is told again to the next fuser, before that one may offer anything.
    ``clients`` and ``tenants`` are the scheduler's own tables, ``apply`` lets the kernel
    handle an event. ``operator_key`` is what the operator shows; empty: nobody is one.
    """

    def __init__(
        self,
        state: State,
        outbox: Outbox,
        clients: dict[str, Endpoint],
        tenants: dict[str, str],
        apply: Callable[[CachePurged], None],
        operator_key: str = "",
        clock: Callable[[], float] = time.monotonic,
        noting: Noting | None = None,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._clients = clients
        self._tenants = tenants
        self._apply = apply
        self._operator_key = operator_key
        self._clock = clock
        self._noting = noting
        self._noted: dict[int, _Noted] = {}
        self._records: dict[int, Path] = {}
        self._next_number = 0
        self._fuser: Endpoint | None = None
        self._unconfirmed: dict[int, DropKept] = {}
        self._asked: dict[int, _Asked] = {}

    # --- clients --------------------------------------------------------------------
    def purge(self, request: PurgeRequest) -> None:
        """Carry a purge out and answer it, at once, or when it is written down and the
        store has carried it out."""
        tenant, own = request.tenant, self._tenants.get(request.client)
        if own is None:
            return  # It said goodbye.
        if not self._is_operator(request.key):
            if tenant not in (None, own):
                self._answer(
                    request.client, PurgeReply(request.question, error=_not_theirs(own))
                )
                return
            tenant = own
        if self._noting is None:
            self._carry_out(request, tenant, None)
            return
        number = self._next_number
        self._next_number += 1
        drop = DropKept(0, tenant, request.collection, request.signature)
        record = self._noting.note(number, drop)
        self._noted[number] = _Noted(request, tenant, record)

    def noted(self, message: PurgeNoted) -> None:
        """A purge is written down: now it may take effect."""
        noted = self._noted.get(message.number)
        if noted is not None and noted.record.done():
            del self._noted[message.number]
            self._carry_out(noted.request, noted.tenant, noted.record.result())

    def _carry_out(
        self, request: PurgeRequest, tenant: str | None, record: Path | None
    ) -> None:
        table = self._state.table
        entries, size = table.entries, table.bytes
        self._apply(CachePurged(tenant, request.collection, request.signature))
        if record is not None:
            self._records[table.generation] = record
        asked = _Asked(
            request.client,
            request.question,
            entries - table.entries,
            size - table.bytes,
            self._clock(),
        )
        if table.generation not in self._unconfirmed:
            self._tell(asked, 0)
        elif self._fuser is None:
            self._tell(asked, None)
        else:
            self._asked[table.generation] = asked

    def report(self, client: str, key: str) -> dict[str, Any]:
        """The cache as this client may see it: per tenant only what is its own."""
        tenant = None if self._is_operator(key) else self._tenants.get(client, "")
        return report(self._state, tenant)

    def look_after(self) -> None:
        """Let nobody wait too long for the store."""
        late_s = self._clock() - _PATIENCE_S
        for generation in [g for g, a in self._asked.items() if a.since_s <= late_s]:
            self._tell(self._asked.pop(generation), None)

    # --- the kernel's commands ------------------------------------------------------
    def keep(self, command: KeepResult) -> None:
        """Pass a result on; without a fuser nobody keeps it."""
        if self._fuser is not None:
            self._outbox.post(self._fuser, command)

    def drop(self, command: DropKept) -> None:
        """Pass a purge on, and again until it is confirmed."""
        if self._fuser is not None:
            self._outbox.post(self._fuser, command)
        else:
            filters = (command.tenant, command.collection, command.signature)
            for generation, other in list(self._unconfirmed.items()):
                if (other.tenant, other.collection, other.signature) == filters:
                    del self._unconfirmed[generation]  # The later one does as much.
                    self._tear_up(generation)
        self._unconfirmed[command.generation] = command

    # --- the fuser ------------------------------------------------------------------
    def fuser_up(self, fuser: Endpoint) -> None:
        """Another fuser serves."""
        self._fuser = fuser
        for command in self._unconfirmed.values():
            self._outbox.post(fuser, command)
        self._outbox.post(fuser, Generation(self._state.table.generation))

    def fuser_down(self) -> None:
        """No fuser serves: who waits for its store is told so."""
        self._fuser = None
        for asked in self._asked.values():
            self._tell(asked, None)
        self._asked.clear()

    def dropped(self, message: KeptDropped) -> None:
        """The store has carried a purge out."""
        self._unconfirmed.pop(message.generation, None)
        self._tear_up(message.generation)
        asked = self._asked.pop(message.generation, None)
        if asked is not None:
            self._tell(asked, message.entries)

    def close(self) -> None:
        """What is not confirmed stays written down."""
        if self._noting is not None:
            self._noting.close()

    def _tear_up(self, generation: int) -> None:
        record = self._records.pop(generation, None)
        if record is not None:
            with contextlib.suppress(OSError):  # It is carried out once more then.
                record.unlink(missing_ok=True)

    def _tell(self, asked: _Asked, stored: int | None) -> None:
        reply = PurgeReply(asked.question, asked.entries, asked.bytes, stored)
        self._answer(asked.client, reply)

    def _answer(self, client: str, reply: PurgeReply) -> None:
        endpoint = self._clients.get(client)
        if endpoint is not None:
            self._outbox.post(endpoint, reply)

    def _is_operator(self, key: str) -> bool:
        known = self._operator_key
        return bool(known) and hmac.compare_digest(known.encode(), key.encode())


def _not_theirs(own: str) -> ErrorInfo:
    return ErrorInfo(
        "not_permitted",
        f"a client of tenant {own!r} may purge the results of that tenant only",
        "Leave the tenant out, or purge with `herasys cache purge --tenant` on the "
        "runtime's machine.",
    )
