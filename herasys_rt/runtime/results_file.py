"""The file that completed results are kept in, and the hold on its folder.

One SQLite file per folder, and one process at a time that uses it. `ResultsFile` is the
writing side, `ResultsReader` looks up single results beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import math
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from herasys_rt import __version__
from herasys_rt.core.commands import DropKept
from herasys_rt.core.fusion import Revisions
from herasys_rt.core.reuse import chosen_by
from herasys_rt.core.values import Value
from herasys_rt.graph import codec
from herasys_rt.runtime import pending_purges
from herasys_rt.runtime.lifetimes import Moment, left_s

log = logging.getLogger(__name__)

_NAME = "results.sqlite"
_FORMAT = 2
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS results (
        signature BLOB PRIMARY KEY, size INTEGER NOT NULL, used INTEGER NOT NULL,
        head BLOB NOT NULL, digest BLOB NOT NULL, meta BLOB NOT NULL, data BLOB NOT NULL
    )
"""


class Kept(msgspec.Struct, frozen=True):
    """What is known of a kept result without reading it. ``value`` is without its bytes;
    ``since`` is when the ``ttl_s`` began and the ages were these; the rest is as in
    `commands.KeepResult`."""

    value: Value
    revisions: Revisions
    tenant: str
    operator: str
    ttl_s: float
    since: Moment
    run_s: float = 0.0
    tokens: int = 0
    age_s: float = math.inf
    eldest_age_s: float = math.inf


class Row(NamedTuple):
    """An entry of the index: a result that is in the file."""

    kept: Kept
    size: int


_heads = codec.typed_decoder(Kept)


class ResultsFile:
    """Takes ``folder`` and writes the file in it. For one thread.

    Only an `open` file is written; `sqlite3.Error` says what did not work, and is a
    `sqlite3.DatabaseError` that is no `sqlite3.OperationalError` when the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        self.purged = 0
        """How many results went by what was written down."""
        self._folder = folder
        self._used = 0
        self._damaged = False
        self._holder: IO[str] | None = None
        self._db: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can be written."""
        return self._db is not None

    def open(self, now: Moment, max_bytes: int) -> OrderedDict[bytes, Row] | None:
        """Take the folder and read the index, the least recently used result first.

        What has expired at ``now``, exceeds ``max_bytes`` or is to be purged by what is
        written down (`pending_purges`) is deleted. None when another
        process has the folder, or when it does not work now. A damaged file is begun anew,
        with the next try.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._take_folder():
                return None
            if self._damaged:
                for path in self._folder.glob(f"{_NAME}*"):
                    path.unlink()
            purges = pending_purges.read(self._folder)
            rows = self._load(now, max_bytes, [purge.drop for purge in purges])
            self._damaged = False
            if purges:
                self.truncate_log()
            for purge in purges:
                purge.path.unlink(missing_ok=True)
        except (OSError, sqlite3.OperationalError) as e:
            self._disconnect()
            log.error("no results are kept in %s: %s", self._folder, e)
            return None
        except (sqlite3.DatabaseError, msgspec.MsgspecError, TypeError) as e:
            self._disconnect()
            log.error("%s is damaged and begun anew: %s", self.path, e)
            self._damaged = True
            return None
        return rows

    def discard(self) -> None:
        """It is damaged: close it, and begin it anew when it is opened."""
        self._damaged = True
        self._disconnect()

    def close(self) -> None:
        """Close the file and let go of the folder. Idempotent."""
        self._disconnect()
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written within takes effect at its end, or not at all."""
        with self._open_db() as db:
            db.execute("BEGIN")
            yield

    def rollback(self) -> None:
        """Leave a transaction whose end did not work."""
        if self._db is not None and self._db.in_transaction:
            self._db.rollback()

    def insert(self, signature: bytes, kept: Kept, meta: bytes, data: bytes) -> Row:
        """Write a result, as the one used last; in a `transaction`."""
        head = codec.encode(kept)
        self._used += 1
        size = len(data) + len(meta) + len(head)
        digest = _digest(signature, head, meta, data)
        self._open_db().execute(
            "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?)",
            (signature, size, self._used, head, digest, meta, data),
        )
        return Row(kept, size)

    def touch(self, signature: bytes) -> None:
        """A result was used; in a `transaction`."""
        self._used += 1
        self._open_db().execute(
            "UPDATE results SET used = ? WHERE signature = ?", (self._used, signature)
        )

    def delete(self, signatures: Iterable[bytes]) -> None:
        """Delete results; in a `transaction`."""
        _delete(self._open_db(), signatures)

    def truncate_log(self) -> None:
        """Bring what was deleted out of the log too; no power cut brings it back."""
        self._open_db().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _open_db(self) -> sqlite3.Connection:
        assert self._db is not None
        return self._db

    def _take_folder(self) -> bool:
        if self._holder is None:
            holder = (self._folder / "lock").open("w")
            try:
                fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder.close()
                return False
            self._holder = holder
        return True

    def _load(
        self, now: Moment, max_bytes: int, purges: list[DropKept]
    ) -> OrderedDict[bytes, Row]:
        chosen = [chosen_by(purge) for purge in purges]
        db = _connect(self.path)
        try:
            self.path.chmod(0o600)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA secure_delete = ON")
            db.execute("CREATE TABLE IF NOT EXISTS about (words TEXT)")
            # Another version may compute other results of the same declaration.
            words = f"results {_FORMAT} of herasys_rt {__version__}"
            if db.execute("SELECT words FROM about").fetchone() != (words,):
                db.execute("DROP TABLE IF EXISTS results")
                db.execute("DELETE FROM about")
                db.execute("INSERT INTO about VALUES (?)", (words,))
            db.execute(_SCHEMA)
            rows: OrderedDict[bytes, Row] = OrderedDict()
            over: list[bytes] = []
            room = max_bytes
            for signature, size, head, used in db.execute(
                "SELECT signature, size, head, used FROM results ORDER BY used DESC"
            ):
                kept = _heads.decode(head)
                self._used = max(self._used, used)
                key = signature, kept.revisions
                if any(purged(key, kept.tenant) for purged in chosen):
                    self.purged += 1
                    over.append(signature)
                elif size <= room and left_s(kept.ttl_s, kept.since, now) > 0:
                    rows[signature] = Row(kept, size)
                    rows.move_to_end(signature, last=False)
                    room -= size
                else:
                    over.append(signature)
            _delete(db, over)
        except BaseException:
            db.close()
            raise
        self._db = db
        return rows

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


class ResultsReader:
    """Reads single results from the file at ``path``. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._read_from = 0

    def read(self, signature: bytes, opened: int) -> tuple[Kept, bytes, bytes] | None:
        """A result with its encoded value and meta; None when it was just deleted.

        ``opened`` says how often the file was opened: it may be another one than the last
        time. Errors: `sqlite3.Error`, also for a result that
        is not what was written.
        """
        try:
            if self._db is None or self._read_from != opened:
                self.close()
                self._db, self._read_from = _connect(self._path), opened
            found = self._db.execute(
                "SELECT head, digest, meta, data FROM results WHERE signature = ?",
                (signature,),
            ).fetchone()
        except sqlite3.Error:
            self.close()
            raise
        if found is None:
            return None
        head, digest, meta, data = found
        if {type(part) for part in found} != {bytes} or digest != _digest(
            signature, head, meta, data
        ):
            raise sqlite3.DatabaseError("it is damaged")
        return _heads.decode(head), data, meta

    def close(self) -> None:
        """Idempotent."""
        if self._db is not None:
            self._db.close()
            self._db = None


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)


def _delete(db: sqlite3.Connection, signatures: Iterable[bytes]) -> None:
    each = [(signature,) for signature in signatures]
    db.executemany("DELETE FROM results WHERE signature = ?", each)


def _digest(*parts: bytes) -> bytes:
    """SHA-256 over what belongs together, whatever hash names the values."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.digest()
