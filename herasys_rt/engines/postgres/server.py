"""The embedded PostgreSQL: our own supervisor around the packaged server.

One thread owns the server process from its start to its end: it makes the cluster, starts
the server, watches it, starts it again when it dies, and shuts it down. It must be one
long-lived thread, because Linux sends the parent death signal when the thread that forked
ends. The data directory is our area; inside it lie

    lock             held while a supervisor is up
    pg18/            the cluster, owned by the server's account
    install-VERSION/ the programs, where the account cannot reach the package
    server.log       the server's messages
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from types import TracebackType

from herasys_rt.clock import monotonic_s
from herasys_rt.engines.postgres import binaries, cluster
from herasys_rt.engines.postgres.account import (
    Account,
    admit,
    give,
    named_account,
    server_account,
)
from herasys_rt.engines.postgres.launch import spawn
from herasys_rt.engines.postgres.lock import DataLock
from herasys_rt.errors import EnvironmentFaultError, HerasysError, RuntimeStateError

SOCKET_PATH_LIMIT = 107
"""Bytes a Unix socket's path may have."""
_PORT = 5432  # names the socket file only; nothing listens on a port
_LOG_LIMIT_BYTES = 8 * 1024 * 1024
_WATCH_S = 0.1
_READY_S = 300.0  # a server that lives may replay a long log before it is ready
_RETRY_S = 10.0  # leftovers of a killed server hold its shared memory for some seconds
_LOCK_WAIT_S = 3.0
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "jit": "off",
    "log_min_error_statement": "panic",  # statements carry users' texts
}


def default_data_dir() -> Path:
    """Where the embedded server keeps its data unless told otherwise.

    As root below ``/var/lib``: root's home is closed to the server's account.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/herasys/postgres")
    import platformdirs

    return Path(platformdirs.user_data_dir("herasys")) / "postgres"


class EmbeddedPostgres:
    """A PostgreSQL server with pgvector of our own, on a Unix socket below ``run_dir``.

    It dies with this process, however that ends, and is started again (the DSN stays)
    when it dies on its own; committed rows survive both. ``data_dir`` None means
    `default_data_dir`. Usable as a context manager; may be started again after `stop`.
    """

    def __init__(
        self, data_dir: Path | None, run_dir: Path, *, lock_wait_s: float = _LOCK_WAIT_S
    ) -> None:
        self.data_dir = (data_dir or default_data_dir()).absolute()
        self.run_dir = run_dir.absolute()
        self._cluster = self.data_dir / f"pg{binaries.MAJOR}"
        self._socket_dir = self.run_dir / "pg"
        self._log = self.data_dir / "server.log"
        self._lock = DataLock(self.data_dir / "lock")
        self._lock_wait_s = lock_wait_s
        self._thread: threading.Thread | None = None
        self._process: Popen[bytes] | None = None
        self._settled = threading.Event()
        self._stopping = threading.Event()
        self._up = threading.Event()
        self._fault: HerasysError | None = None

    @property
    def dsn(self) -> str:
        """How to connect; the same before, during and after restarts."""
        from psycopg.conninfo import make_conninfo

        return make_conninfo(
            "",
            host=str(self._socket_dir),
            port=_PORT,
            user=cluster.SUPERUSER,
            dbname="postgres",
        )

    @property
    def pid(self) -> int | None:
        """The server's process id while it is up."""
        process = self._process
        return process.pid if process is not None and self.alive() else None

    def start(self) -> str:
        """Bring the server up and return its DSN; a server already up stays.

        Makes the cluster the first time (1-2 s). Errors: `RuntimeStateError` when another
        process owns the data directory (its id is in ``fields['pid']``) or the socket's
        path is too long; `EnvironmentFaultError` when the server cannot run here.
        """
        if self._thread is not None:
            if self._thread.is_alive() and self._fault is None:
                return self.dsn
            self.stop()
        self._check_socket_path()
        self._settled.clear()
        self._stopping.clear()
        self._fault = None
        self._thread = threading.Thread(
            target=self._supervise, name="postgres-supervisor", daemon=True
        )
        try:
            self._thread.start()
            self._settled.wait()
        except BaseException:  # Ctrl-C while we wait leaves nothing behind
            self.stop()
            raise
        if self._fault is not None or self._stopping.is_set():
            fault = self._fault or _stopped()
            self.stop()  # joins: the lock is free before the caller hears of it
            raise fault
        return self.dsn

    def stop(self) -> None:
        """Shut the server down in order; idempotent. No process, socket or lock stays."""
        thread = self._thread
        if thread is None:
            return
        self._stopping.set()
        if thread.ident is not None:
            thread.join()
        self._thread = None  # only now: an interrupted stop can be repeated

    def alive(self) -> bool:
        """Whether the server is up now; False also while it is being started again."""
        process = self._process
        return self._up.is_set() and process is not None and process.poll() is None

    def fault(self) -> HerasysError | None:
        """Why the supervisor gave up restarting the server; None while it did not."""
        return self._fault

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- the supervisor's thread ------------------------------------------------------

    def _supervise(self) -> None:
        try:
            self._make_area()
            self._lock.acquire(self._lock_wait_s)
        except BaseException as e:
            self._fault = _as_fault(e)
            self._settled.set()
            return
        try:
            install, account = self._prepare()
            self._launch(install, account, again=False)
            self._settled.set()
            while not self._stopping.wait(_WATCH_S):
                if self._process is not None and self._process.poll() is not None:
                    self._up.clear()
                    self._launch(install, account, again=True)
        except BaseException as e:
            if not self._stopping.is_set():
                self._fault = _as_fault(e)
        finally:
            self._up.clear()
            self._shut_down()
            self._remove_socket()
            self._lock.release()
            self._settled.set()

    def _make_area(self) -> None:
        mode = 0o755 if os.geteuid() == 0 else 0o700
        for directory in (*reversed(self.data_dir.parents), self.data_dir):
            if not directory.exists():
                directory.mkdir(exist_ok=True)
                directory.chmod(mode)  # mkdir's mode is cut by the umask

    def _prepare(self) -> tuple[binaries.Install, Account | None]:
        account = server_account(self._cluster)
        if account is not None:
            admit(self.data_dir, account, named_account())
        install = binaries.reachable(binaries.packaged(), account, self.data_dir)
        if self._log.exists() and self._log.stat().st_size > _LOG_LIMIT_BYTES:
            self._log.unlink()
        cluster.make_cluster(install, self._cluster, account, self._stopping.is_set)
        cluster.clear_stale_server(self._cluster)
        self._make_socket_dir(account)
        return install, account

    def _make_socket_dir(self, account: Account | None) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        if self._socket_dir.exists():
            shutil.rmtree(self._socket_dir)
        self._socket_dir.mkdir(mode=0o700)
        if account is not None:
            admit(self.run_dir, account)
            give(self._socket_dir, account)

    def _check_socket_path(self) -> None:
        path = self._socket_dir / f".s.PGSQL.{_PORT}"
        length = len(os.fsencode(path))
        if length > SOCKET_PATH_LIMIT:
            raise RuntimeStateError(
                f"the socket path {path} has {length} bytes; Unix allows "
                f"{SOCKET_PATH_LIMIT}",
                hint="Choose a shorter run directory, such as one below /tmp.",
            )

    def _launch(
        self, install: binaries.Install, account: Account | None, *, again: bool
    ) -> None:
        """Start the server and wait until it is ready.

        A server killed a moment ago keeps its shared memory until its last worker has
        noticed; so long a start is tried anew.
        """
        deadline = monotonic_s() + _RETRY_S
        while not self._stopping.is_set():
            said = self._try_launch(install, account)
            if said is None:
                self._up.set()
                return
            lingering = "pre-existing shared memory block" in said
            if monotonic_s() >= deadline or not (lingering or again):
                raise EnvironmentFaultError(
                    f"PostgreSQL does not start: {said}",
                    hint=f"See {self._log}; a damaged data directory can be moved away.",
                )
            self._stopping.wait(_WATCH_S * 2)
        raise _stopped()

    def _try_launch(self, install: binaries.Install, account: Account | None) -> str | None:
        """Start once; None when ready, else what the server said before it left."""
        settings = [part for item in _SETTINGS.items() for part in ("-c", "=".join(item))]
        with self._log.open("ab") as log:
            said_from = log.tell()
            self._process = process = spawn(
                [
                    install.program("postgres"),
                    *("-D", self._cluster, "-k", self._socket_dir, "-p", str(_PORT)),
                    *settings,
                ],
                account,
                log,
                # Orderly and quick: sessions end, the next start needs no recovery.
                death_signal=signal.SIGINT,
            )
        deadline = monotonic_s() + _READY_S
        while not cluster.is_ready(self._cluster, process.pid):
            if process.poll() is not None:
                return cluster.tail(self._log, said_from) or (
                    f"it left with exit status {process.returncode}"
                )
            if monotonic_s() >= deadline:
                return f"not ready after {_READY_S:.0f} s"
            if self._stopping.wait(0.02):
                return "stopped"
        return None

    def _shut_down(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for number, patience_s in ((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0)):
            if process.poll() is not None:
                return
            process.send_signal(number)
            try:
                process.wait(patience_s)
            except TimeoutExpired:
                continue
        if process.poll() is None:
            process.kill()
            process.wait()

    def _remove_socket(self) -> None:
        if self._socket_dir.exists():
            shutil.rmtree(self._socket_dir)


def _stopped() -> RuntimeStateError:
    return RuntimeStateError(
        "PostgreSQL was stopped while it was starting", hint="Start it again."
    )


def _as_fault(error: BaseException) -> HerasysError:
    if isinstance(error, HerasysError):
        return error
    fault = EnvironmentFaultError(
        f"the embedded PostgreSQL cannot run: {error}",
        hint="See the cause, or give a server of your own as database.dsn.",
    )
    fault.__cause__ = error
    return fault
