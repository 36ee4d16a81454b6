"""The embedded server's life: start, crash, stop, and who owns the data."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from herasys_rt.engines.postgres import binaries, cluster
from herasys_rt.engines.postgres.account import server_account
from herasys_rt.engines.postgres.dsn import check_dsn
from herasys_rt.engines.postgres.launch import spawn
from herasys_rt.engines.postgres.server import EmbeddedPostgres
from herasys_rt.errors import (
    DatabaseUnreachableError,
    EnvironmentFaultError,
    HerasysError,
    RuntimeStateError,
)

pytestmark = pytest.mark.real

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops privileges")


@pytest.fixture(scope="module")
def seed(area: Path) -> Path:
    """A data directory with a cluster in it, to be copied instead of made anew."""
    with EmbeddedPostgres(area / "seed", area / "run0"):
        pass
    return area / "seed"


@pytest.fixture
def own(area: Path, seed: Path) -> Iterator[Path]:
    """A directory of this test's own with ``data`` ready to start."""
    place = area / "own"
    place.mkdir()
    subprocess.run(["cp", "-a", seed, place / "data"], check=True)
    yield place
    left = processes_over(place)
    shutil.rmtree(place)
    assert left == []


def processes_over(place: Path) -> list[str]:
    """Living processes with ``place`` on their command line."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(place) in command:
            found.append(f"{entry.name}: {command}")
    return found


def until(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do; the suite's time limit ends a vain wait."""
    while not condition():
        os.sched_yield()


def query(dsn: str, text: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def answers(dsn: str) -> bool:
    try:
        return query(dsn, "SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_serves_on_a_unix_socket_alone(server: EmbeddedPostgres) -> None:
    assert query(server.dsn, "SHOW listen_addresses") == [("",)]
    assert server.alive()
    assert server.start() == server.dsn  # already up: stays


@as_root
def test_never_runs_as_root(server: EmbeddedPostgres) -> None:
    status = Path(f"/proc/{server.pid}/status").read_text()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:"))
    assert "0" not in uids.split()[1:]


def test_text_functions_know_unicode(server: EmbeddedPostgres) -> None:
    assert query(server.dsn, "SELECT lower('ÄÉЖ')") == [("äéж",)]


def test_a_second_owner_is_told_who_holds_the_data(
    server: EmbeddedPostgres, area: Path
) -> None:
    second = EmbeddedPostgres(server.data_dir, area / "run2", lock_wait_s=0.2)
    with pytest.raises(RuntimeStateError) as refused:
        second.start()
    assert refused.value.fields["pid"] == str(os.getpid())
    assert str(os.getpid()) in refused.value.message
    assert answers(server.dsn)


def test_of_two_starts_at_once_one_waits_for_the_other(own: Path) -> None:
    first = EmbeddedPostgres(own / "data", own / "a")
    second = EmbeddedPostgres(own / "data", own / "b", lock_wait_s=30)
    first.start()
    waiting = threading.Thread(target=second.start)
    waiting.start()
    first.stop()
    waiting.join()
    assert answers(second.dsn)
    second.stop()


def test_two_processes_starting_at_once_have_one_winner(own: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from herasys_rt.engines.postgres.server import EmbeddedPostgres\n"
        "from herasys_rt.errors import RuntimeStateError\n"
        "s = EmbeddedPostgres(Path(sys.argv[1]), Path(sys.argv[2]), lock_wait_s=0.3)\n"
        "try: s.start()\n"
        "except RuntimeStateError: print('refused', flush=True); sys.exit()\n"
        "print('up', flush=True); sys.stdin.read(); s.stop()\n"
    )
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(own / "data"), str(own / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    said = sorted(start.stdout.readline().strip() for start in starts if start.stdout)
    for start in starts:
        start.communicate()
    assert said == ["refused", "up"]


def test_committed_rows_survive_kill_9_of_the_server(own: Path) -> None:
    with EmbeddedPostgres(own / "data", own / "run") as server:
        query(server.dsn, "CREATE TABLE kept (n int)")
        for round in range(3):
            query(server.dsn, f"INSERT INTO kept VALUES ({round})")
            killed = server.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            until(lambda: answers(server.dsn))
            until(server.alive)
            assert server.pid != killed
        assert query(server.dsn, "SELECT n FROM kept ORDER BY n") == [(0,), (1,), (2,)]


def test_stop_leaves_nothing_and_may_be_repeated(own: Path) -> None:
    server = EmbeddedPostgres(own / "data", own / "run")
    server.start()
    pid = server.pid
    assert pid is not None
    server.stop()
    server.stop()
    assert not is_running(pid)
    assert not server.alive()
    assert list((own / "run").iterdir()) == []
    assert not (own / "data" / "lock").exists()
    assert not (own / "data" / "pg18" / "postmaster.pid").exists()
    server.start()
    assert answers(server.dsn)
    server.stop()


def test_stop_right_after_a_crash_leaves_nothing(own: Path) -> None:
    server = EmbeddedPostgres(own / "data", own / "run")
    server.start()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    server.stop()
    assert not (own / "run" / "pg").exists()


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_dies_with_its_parent_and_the_next_owner_finds_the_rows(
    own: Path, end: str
) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "import psycopg\n"
        "from herasys_rt.engines.postgres.server import EmbeddedPostgres\n"
        "s = EmbeddedPostgres(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "with psycopg.connect(s.start(), autocommit=True) as c:\n"
        "    c.execute('CREATE TABLE kept (n int)')\n"
        "    c.execute('INSERT INTO kept VALUES (7)')\n"
        "print(s.pid, flush=True)\n"
        "sys.stdin.readline()\n"
        "os._exit(1)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(own / "data"), str(own / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if end == "kill":
        parent.kill()
    parent.communicate("\n" if end == "exit" else None)
    until(lambda: not is_running(pid))
    with EmbeddedPostgres(own / "data", own / "run") as server:
        assert query(server.dsn, "SELECT n FROM kept") == [(7,)]


def test_outlives_the_thread_that_started_it(own: Path) -> None:
    server = EmbeddedPostgres(own / "data", own / "run")
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    pid = server.pid
    assert answers(server.dsn)
    assert server.pid == pid
    server.stop()


def test_an_interrupted_initdb_is_begun_anew(own: Path) -> None:
    place = own / "fresh"
    (place / "pg18.partial").mkdir(parents=True)
    (place / "pg18.partial" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(place, own / "run") as server:
        assert answers(server.dsn)
    assert sorted(path.name for path in place.iterdir()) == ["pg18", "server.log"]


def test_stopping_during_initdb_leaves_no_half_cluster(own: Path) -> None:
    place = own / "fresh"
    server = EmbeddedPostgres(place, own / "run")
    failed: list[HerasysError] = []

    def begin() -> None:
        try:
            server.start()
        except HerasysError as e:
            failed.append(e)

    starter = threading.Thread(target=begin)
    starter.start()
    until((place / "pg18.partial").exists)
    server.stop()
    starter.join()
    assert [type(error) for error in failed] == [RuntimeStateError]
    assert not (place / "pg18").exists()
    assert not (place / "lock").exists()
    with server:
        assert answers(server.dsn)


def test_a_server_left_by_a_crashed_owner_is_replaced(own: Path) -> None:
    data, old = own / "data", own / "old"
    account = server_account(data / "pg18")
    old.mkdir()
    old.chmod(0o777)
    install = binaries.reachable(binaries.packaged(), account, data)
    left = spawn(
        [install.program("postgres"), "-D", data / "pg18", "-k", old, "-h", ""],
        account,
        subprocess.DEVNULL,
        death_signal=signal.SIGKILL,
    )
    until(lambda: cluster.is_ready(data / "pg18", left.pid))
    reaper = threading.Thread(target=left.wait)
    reaper.start()
    with EmbeddedPostgres(data, own / "run") as server:
        assert answers(server.dsn)
        assert server.pid != left.pid
    reaper.join()


def test_a_pid_file_that_names_a_stranger_is_no_obstacle(own: Path) -> None:
    pid_file = own / "data" / "pg18" / "postmaster.pid"
    account = server_account(own / "data" / "pg18")
    stranger = spawn(
        [shutil.which("sleep") or "sleep", "600"],
        account,
        subprocess.DEVNULL,
        death_signal=signal.SIGKILL,
    )
    pid_file.write_text(f"{stranger.pid}\n{own / 'data' / 'pg18'}\n1\n5432\n\n\n")
    with EmbeddedPostgres(own / "data", own / "run") as server:
        assert answers(server.dsn)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_a_socket_path_too_long_is_refused_with_its_length(own: Path) -> None:
    with pytest.raises(RuntimeStateError, match="107"):
        EmbeddedPostgres(own / "data", own / ("r" * 100)).start()


def test_a_server_that_cannot_start_says_why(own: Path) -> None:
    (own / "data" / "pg18" / "global" / "pg_control").unlink()
    with pytest.raises(EnvironmentFaultError, match="pg_control"):
        EmbeddedPostgres(own / "data", own / "run").start()
    assert not (own / "data" / "lock").exists()
    assert not (own / "run" / "pg").exists()


@as_root
def test_a_directory_closed_to_the_account_is_named(own: Path) -> None:
    closed = own / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EnvironmentFaultError, match=str(closed)):
        EmbeddedPostgres(closed / "data", own / "run").start()


@as_root
def test_a_closed_run_directory_of_ours_is_opened_to_the_account_alone(own: Path) -> None:
    run = own / "run"
    run.mkdir(mode=0o700)
    with EmbeddedPostgres(own / "data", run) as server:
        assert answers(server.dsn)
        assert run.stat().st_mode & 0o777 == 0o710


@as_root
def test_programs_in_a_closed_home_are_copied_once(own: Path) -> None:
    account = server_account(own / "data" / "pg18")
    packaged = binaries.packaged()
    home = own / "home"
    home.mkdir(mode=0o700)
    shutil.copytree(packaged.root, home / "pg", symlinks=True)
    closed = binaries.Install(home / "pg", packaged.version)
    assert not binaries.usable(closed, account)
    copy = binaries.reachable(closed, account, own / "data")
    assert copy.root.parent == own / "data"
    made = copy.root.stat().st_ino
    assert binaries.reachable(closed, account, own / "data").root.stat().st_ino == made


def test_check_dsn_tells_versions(dsn: str) -> None:
    facts = check_dsn(dsn)
    assert facts.server.startswith("18")
    assert facts.pgvector.startswith("0.8")
    assert facts.warning == ""


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:s3cr%2Ft@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 password=s3cr/t",
        "postgresql://me:s3cr/t@127.0.0.1:1:2/db",
        "s3cr/t",
    ],
)
def test_check_dsn_never_shows_the_password(dsn: str) -> None:
    with pytest.raises(DatabaseUnreachableError) as error:
        check_dsn(dsn, connect_timeout_s=2)
    shown = f"{error.value.info()} {error.value!r} {error.value.fields}"
    assert "s3cr" not in shown
    assert error.value.__cause__ is None


def test_check_dsn_refuses_a_role_that_may_create_nothing(dsn: str) -> None:
    query(dsn, "CREATE DATABASE bare")
    query(dsn, "CREATE ROLE weak LOGIN")
    weak = make_conninfo(dsn, user="weak", dbname="bare")
    with pytest.raises(DatabaseUnreachableError, match="no pgvector"):
        check_dsn(weak)
    check_dsn(make_conninfo(dsn, dbname="bare"))
    with pytest.raises(DatabaseUnreachableError, match="schema"):
        check_dsn(weak)
