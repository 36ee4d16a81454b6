"""The parts around the server that need no server."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from herasys_rt.clock import ManualClock
from herasys_rt.engines.postgres import account, cluster, faults, statements
from herasys_rt.engines.postgres.dsn import version_numbers
from herasys_rt.engines.postgres.lock import DataLock
from herasys_rt.engines.postgres.server import EmbeddedPostgres
from herasys_rt.errors import EnvironmentFaultError, InputError, RuntimeStateError


def test_importing_the_engine_loads_no_driver() -> None:
    code = (
        "import sys, herasys_rt.engines.postgres.engine, herasys_rt.engines.postgres.sync,"
        " herasys_rt.engines.postgres.server, herasys_rt.engines.postgres.dsn\n"
        "sys.exit(any(name.split('.')[0] in ('psycopg', 'psycopg_pool', 'pgvector')"
        " for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://me:s3cret@db.example:6543/rag", "me@db.example:6543/rag"),
        ("host=db user=me password=s3cret dbname=rag", "me@db:5432/rag"),
        ("postgresql://me:s3/cret@db/rag", "the configured DSN"),
        ("postgresql://me:12/s3cret@db/rag", "the configured DSN"),
        ("postgresql://me:s3@cret@db/rag", "the configured DSN"),
        ("s3cret", "the configured DSN"),
    ],
)
def test_a_shown_dsn_has_no_password(dsn: str, shown: str) -> None:
    assert faults.shown(dsn) == shown


def test_secrets_are_scrubbed_in_both_spellings() -> None:
    dsn = "postgresql://me:s3%2Fcret@db/rag"
    assert faults.scrubbed("s3/cret s3%2Fcret", dsn) == "*** ***"
    assert "s3cret" not in faults.scrubbed("s3cret", "s3cret")


def test_versions_compare_by_number() -> None:
    assert version_numbers("0.10.1") > version_numbers("0.8.5") > version_numbers("0.8")
    assert version_numbers("0.8beta") == (0, 0)


def test_the_first_free_number_runs_the_server() -> None:
    taken = set(account.FREE_IDS[:2])
    assert account.free_id(taken.__contains__) == account.FREE_IDS[2]
    with pytest.raises(EnvironmentFaultError, match=r"database\.dsn|free"):
        account.free_id(lambda _: True)


def test_permission_bits_decide_who_may_enter(tmp_path: Path) -> None:
    mine = tmp_path.stat()
    owner = account.Account(mine.st_uid, 1)
    group = account.Account(99_999, mine.st_gid)
    stranger = account.Account(99_999, 99_999)
    for mode, allowed in ((0o700, [True, False, False]), (0o711, [True, True, True])):
        tmp_path.chmod(mode)
        who = (owner, group, stranger)
        assert [account.may_enter(tmp_path, one) for one in who] == allowed
    tmp_path.chmod(0o701)
    assert not account.may_enter(tmp_path, group)  # the group's bits count, not others'
    tmp_path.chmod(0o700)


def test_the_pid_file_tells_when_the_server_is_ready(tmp_path: Path) -> None:
    assert cluster.recorded_pid(tmp_path) is None
    file = tmp_path / "postmaster.pid"
    lines = ["41", str(tmp_path), "1700000000", "5432", "/run", "", "123 456", "starting"]
    file.write_text("\n".join(lines) + "\n")
    assert cluster.recorded_pid(tmp_path) == 41
    assert not cluster.is_ready(tmp_path, 41)
    file.write_text("\n".join([*lines[:7], "ready   "]) + "\n")
    assert cluster.is_ready(tmp_path, 41)
    assert not cluster.is_ready(tmp_path, 42)
    file.write_text("")
    assert cluster.recorded_pid(tmp_path) is None


def test_a_held_lock_names_its_owner(tmp_path: Path) -> None:
    held, other = DataLock(tmp_path / "lock"), DataLock(tmp_path / "lock", ManualClock())
    held.acquire(0)
    with pytest.raises(RuntimeStateError) as error:
        other.acquire(0)
    assert error.value.fields["pid"] == str(os.getpid())
    held.release()
    held.release()
    assert list(tmp_path.iterdir()) == []
    other.acquire(0)
    other.release()


def test_the_lock_is_exclusive_among_many(tmp_path: Path) -> None:
    inside: list[int] = []
    most = 0

    def work() -> None:
        nonlocal most
        for _ in range(20):
            lock = DataLock(tmp_path / "lock")
            try:
                lock.acquire(0)
            except RuntimeStateError:
                continue
            inside.append(1)
            most = max(most, len(inside))
            inside.pop()
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_long_socket_path_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "data", tmp_path / ("r" * 107))
    with pytest.raises(RuntimeStateError, match="107"):
        server.start()
    assert list(tmp_path.iterdir()) == []
    server.stop()


def test_a_filter_becomes_parameters_never_text() -> None:
    condition, params = statements.where({"source": "a'b", "k\x00": ["v"], "n": 1})
    text = condition.as_string(None)
    assert text == "WHERE source = ANY(%(sources)s) AND metadata @> %(metadata)s"
    assert params["sources"] == ["a'b"]
    assert params["metadata"].obj == {"k": ["v"], "n": 1}
    assert statements.where({})[1] == statements.where(None)[1] == {}
    with pytest.raises(InputError):
        statements.where({"source": [1]})
