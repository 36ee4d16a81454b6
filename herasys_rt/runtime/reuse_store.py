"""Completed results on disk: which there are, what is kept next, and what goes.

A thread of its own writes the file (`results_file`); whoever asks looks into an index in
memory and reads the one row that fits. Writing may be left out whenever there is too much
of it: a result that is missing is computed again. What is read is checked against its
digest first.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from herasys_rt.core.commands import DropKept, KeepResult
from herasys_rt.core.reuse import chosen_by
from herasys_rt.errors import HerasysError
from herasys_rt.messages import StoreFacts
from herasys_rt.runtime.lifetimes import Moment, left_s, moment_now, passed_s
from herasys_rt.runtime.results_file import Kept, ResultsFile, ResultsReader, Row

log = logging.getLogger(__name__)

LARGEST_BYTES = 4 * 1024 * 1024
"""A larger result is not kept: reading it would hold up the runs behind it."""

_QUEUED_BYTES = 64 * 1024 * 1024
"""What waits to be written; beyond it results are left out."""
_QUEUED_TOUCHES = 10_000
_PATIENCE_S = 1.0
"""How long to wait before what did not work is tried again."""


class Found(NamedTuple):
    """A kept result: its encoded value and meta, what is left of its time, and the time
    that has passed since it was kept."""

    kept: Kept
    data: bytes
    meta: bytes
    left_s: float
    passed_s: float


class _Keep(NamedTuple):
    """A result to be written; ``read`` gives the bytes of its value."""

    signature: bytes
    kept: Kept
    meta: bytes
    generation: int
    read: Callable[[], bytes]
    size: int


class _Purge(NamedTuple):
    """Results to be deleted; ``done`` hears how many they were."""

    drop: DropKept
    signatures: set[bytes]
    done: Callable[[int], None]


class _Forget(NamedTuple):
    """A result that has expired or is damaged."""

    signature: bytes


class _Touch(NamedTuple):
    """A result was used."""

    signature: bytes


_Job = _Keep | _Purge | _Forget | _Touch


class ReuseStore:
    """Keeps results in ``folder`` within ``max_bytes``, the least recently used going
    first. `find`, `keep` and `purge` are for one thread and never wait for the disk but to
    read what was found; `close` waits for what is being written.

    While another process uses the folder, nothing is found and nothing is kept.
    """

    def __init__(
        self, folder: Path, max_bytes: int, now: Callable[[], Moment] = moment_now
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._now = now
        self._rows: OrderedDict[bytes, Row] = OrderedDict()
        self._bytes = 0
        self._listed = False
        """Whether the index tells what the file has."""
        self._generation = -1
        self._facts = {"kept": 0, "left_out": 0, "found": 0, "damaged": 0}
        self._jobs: deque[_Job] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        """Its lock is that of the index and the queue."""
        self._busy = False
        self._closing = False
        self._file = ResultsFile(folder)
        self._reader = ResultsReader(self._file.path)
        self._opened = 0
        """How often the file was opened."""
        self._writer = threading.Thread(target=self._serve, name="store", daemon=True)
        self._writer.start()

    # --- the asking thread ----------------------------------------------------------
    def begin(self, generation: int) -> None:
        """Results of this generation are kept from now on, and no others."""
        with self._changed:
            self._generation = generation

    def find(self, signature: bytes) -> Found | None:
        """The result kept last under a signature, unless it is over or damaged."""
        row = self._rows.get(signature)
        if row is None:
            return None
        now = self._now()
        rest_s = left_s(row.kept.ttl_s, row.kept.since, now)
        found = None
        if rest_s > 0:
            found = self._read(signature, rest_s, passed_s(row.kept.since, now))
        if found is None:
            self._unlist(signature)
            self._post(_Forget(signature))
            return None
        if found.kept != row.kept:
            return (
                None  # Another one is taking its place: neither its times nor purges hold.
            )
        with self._changed:
            if signature in self._rows:
                self._rows.move_to_end(signature)
        self._facts["found"] += 1
        self._post(_Touch(signature))
        return found

    def keep(self, result: KeepResult, read: Callable[[], bytes]) -> None:
        """Write a result when there is time; ``read`` gives the bytes of its value, in
        another thread."""
        size = result.value.size + len(result.meta)
        too_much = self._queued_bytes + size > _QUEUED_BYTES
        if too_much or size > min(LARGEST_BYTES, self._max_bytes):
            self._facts["left_out"] += 1
            return
        kept = Kept(
            value=msgspec.structs.replace(result.value, inline=None, place=""),
            revisions=result.revisions,
            tenant=result.tenant,
            operator=result.operator,
            ttl_s=result.ttl_s,
            since=self._now(),
            run_s=result.run_s,
            tokens=result.tokens,
            age_s=result.age_s,
            eldest_age_s=result.eldest_age_s,
        )
        self._post(
            _Keep(result.signature, kept, result.meta, result.generation, read, size)
        )

    def purge(self, drop: DropKept, done: Callable[[int], None]) -> None:
        """Find none of these results any more, at once; ``done`` hears, from another
        thread, when they are gone from the disk too, and how many they were."""
        with self._changed:
            self._generation = drop.generation
            self._post(_Purge(drop, self._taken_out(drop), done))

    def facts(self) -> StoreFacts:
        """How it is; from any thread."""
        state = "up" if self._listed else "waiting"
        return StoreFacts(state, len(self._rows), self._bytes, **self._facts)

    def settle(self) -> None:
        """Wait until everything posted so far is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or not (self._jobs or self._busy))

    def close(self) -> None:
        """Write what is queued, let go of the folder. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join()
        self._reader.close()

    def _taken_out(self, drop: DropKept) -> set[bytes]:
        """Take what a purge means out of the index; gives what it was."""
        chosen = chosen_by(drop)
        taken = {
            signature
            for signature, row in self._rows.items()
            if chosen((signature, row.kept.revisions), row.kept.tenant)
        }
        for signature in taken:
            self._bytes -= self._rows.pop(signature).size
        return taken

    def _read(self, signature: bytes, rest_s: float, since_s: float) -> Found | None:
        """What the file has, when it is whole."""
        try:
            found = self._reader.read(signature, self._opened)
        except sqlite3.Error as e:
            log.error(
                "result %s cannot be read from %s: %s",
                signature.hex()[:16],
                self._file.path,
                e,
            )
            self._facts["damaged"] += 1
            return None
        return None if found is None else Found(*found, rest_s, since_s)

    def _unlist(self, signature: bytes) -> None:
        with self._changed:
            row = self._rows.pop(signature, None)
            if row is not None:
                self._bytes -= row.size

    def _post(self, job: _Job) -> None:
        with self._changed:
            if isinstance(job, _Touch) and len(self._jobs) > _QUEUED_TOUCHES:
                return
            self._jobs.append(job)
            if isinstance(job, _Keep):
                self._queued_bytes += job.size
            self._changed.notify_all()

    # --- the writing thread ---------------------------------------------------------
    def _serve(self) -> None:
        try:
            while self._work():
                pass
        except Exception:
            log.exception("the store of results in %s has ended", self._folder)
        finally:
            self._shut()

    def _work(self) -> bool:
        """One round: open the file or write what is queued; False when it is to end."""
        if not self._file.is_open:
            if self._open():
                return True
            with self._changed:
                self._changed.wait_for(lambda: self._closing, _PATIENCE_S)
                return not self._closing
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closing)
            jobs = list(self._jobs)
            self._jobs.clear()
            self._queued_bytes = 0
            self._busy = True
        try:
            if not jobs:
                return False
            self._write(jobs)
        except sqlite3.OperationalError as e:  # A full disk; what is there is whole.
            log.error("results cannot be written to %s: %s", self._file.path, e)
            self._again(jobs)
        except sqlite3.DatabaseError as e:
            log.error("%s is damaged: %s", self._file.path, e)
            self._file.discard()
            self._clear()
            self._again(jobs)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
        return True

    def _again(self, jobs: list[_Job]) -> None:
        """Of jobs that did not work only purges must not be lost."""
        self._file.rollback()
        with self._changed:
            self._facts["left_out"] += sum(isinstance(job, _Keep) for job in jobs)
            purges = [job for job in jobs if isinstance(job, _Purge)]
            self._jobs.extendleft(reversed(purges))
            if self._changed.wait_for(lambda: self._closing, _PATIENCE_S if purges else 0):
                self._jobs.clear()

    def _open(self) -> bool:
        """Open the file and list what it has; False when that does not work now."""
        rows = self._file.open(self._now(), self._max_bytes)
        if rows is None:
            return False
        with self._changed:
            self._rows, self._bytes = rows, sum(row.size for row in rows.values())
            for job in self._jobs:  # Asked before there was anything to look through.
                if isinstance(job, _Purge):
                    job.signatures.update(self._taken_out(job.drop))
            self._opened += 1
            self._listed = True
        return True

    def _write(self, jobs: list[_Job]) -> None:
        """Do the jobs in order, in one transaction; a purge ends one."""
        while jobs:
            cut = next((i for i, j in enumerate(jobs) if isinstance(j, _Purge)), len(jobs))
            self._write_some(jobs[:cut])
            del jobs[:cut]
            if jobs:
                purge = jobs[0]
                assert isinstance(purge, _Purge)
                self._write_purge(purge)
                del jobs[0]

    def _write_some(self, jobs: list[_Job]) -> None:
        file = self._file
        written: dict[bytes, tuple[Row, int]] = {}
        with file.transaction():
            for job in jobs:
                match job:
                    case _Keep():
                        row = self._insert(job)
                        if row is not None:
                            written[job.signature] = (row, job.generation)
                    case _Forget():
                        if job.signature not in self._rows:
                            file.delete([job.signature])
                            written.pop(job.signature, None)
                    case _Touch():
                        file.touch(job.signature)
                    case _Purge():
                        pass
        surplus = self._enlist(written)
        if surplus:
            with file.transaction():
                file.delete(surplus)

    def _insert(self, job: _Keep) -> Row | None:
        """Write one result, unless it cannot be had or a purge came after it."""
        if job.generation != self._generation:
            self._facts["left_out"] += 1
            return None
        try:
            data = job.read()
        except HerasysError as e:
            log.info("a result was not kept: %s", e)
            self._facts["left_out"] += 1
            return None
        if len(data) != job.kept.value.size:
            log.error("a result of another size than was told was not kept")
            self._facts["damaged"] += 1
            return None
        return self._file.insert(job.signature, job.kept, job.meta, data)

    def _enlist(self, written: dict[bytes, tuple[Row, int]]) -> list[bytes]:
        """Let what was written be found; gives what has to be deleted for it, and what a
        purge has overtaken."""
        surplus: list[bytes] = []
        with self._changed:
            for signature, (row, generation) in written.items():
                former = self._rows.pop(signature, None)
                if former is not None:
                    self._bytes -= former.size
                if generation != self._generation:
                    surplus.append(signature)
                    continue
                self._rows[signature] = row
                self._bytes += row.size
                self._facts["kept"] += 1
            while self._bytes > self._max_bytes:
                signature, row = self._rows.popitem(last=False)
                self._bytes -= row.size
                surplus.append(signature)
        return surplus

    def _write_purge(self, job: _Purge) -> None:
        with self._file.transaction():
            self._file.delete(job.signatures)
        self._file.truncate_log()
        job.done(len(job.signatures))

    def _clear(self) -> None:
        with self._changed:
            self._rows.clear()
            self._bytes = 0
            self._listed = False

    def _shut(self) -> None:
        self._file.close()
        self._clear()
        with self._changed:
            self._closing = True
            self._jobs.clear()
            self._changed.notify_all()
