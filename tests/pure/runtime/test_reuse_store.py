"""The store of results: what was kept is found whole, or not at all."""

from __future__ import annotations

import hashlib
import math
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.core.commands import DropKept, KeepResult
from herasys_rt.core.values import Value
from herasys_rt.errors import EnvironmentFaultError
from herasys_rt.runtime import pending_purges, results_file, reuse_store
from herasys_rt.runtime.lifetimes import Moment
from herasys_rt.runtime.reuse_store import ReuseStore

BEGUN = Moment("boot", 0.0, 0.0)


class Machine:
    """A machine's clocks, and the store in one of its folders, opened again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = BEGUN
        self.open_: list[ReuseStore] = []

    def open(self, max_bytes: int = 1_000_000, generation: int = 0) -> ReuseStore:
        store = ReuseStore(self.folder, max_bytes, lambda: self.now)
        store.begin(generation)
        self.open_.append(store)
        # A purge is answered once the file is open; this one takes nothing.
        purge(store, signature=b"nothing", generation=generation)
        return store

    def pass_time(self, seconds: float, *, skew_s: float = 0.0, boot: str = "") -> None:
        now = self.now
        self.now = Moment(
            boot or now.boot, now.boot_s + seconds, now.wall_s + seconds + skew_s
        )

    def database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "results.sqlite", isolation_level=None)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(reuse_store, "_PATIENCE_S", 0.05)  # and nobody waits a second
    made = Machine(tmp_path / "reuse")
    yield made
    for store in made.open_:
        store.close()


def key(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def keep(
    store: ReuseStore,
    name: str,
    data: bytes = b"data",
    *,
    ttl_s: float = math.inf,
    revisions: tuple[tuple[str, int], ...] = (),
    tenant: str = "ours",
    generation: int = 0,
    meta: bytes = b"meta",
    read: Callable[[], bytes] | None = None,
    age_s: float = 0.0,
) -> None:
    value = Value(hashlib.sha256(data).digest(), len(data), data, truth=False, length=3)
    result = KeepResult(
        signature=key(name),
        revisions=revisions,
        generation=generation,
        value=value,
        meta=meta,
        ttl_s=ttl_s,
        tenant=tenant,
        operator="llm@1",
        run_s=2.0,
        tokens=5,
        age_s=age_s,
        eldest_age_s=2 * age_s,
    )
    store.keep(result, read or (lambda: data))


def purge(store: ReuseStore, *, generation: int = 1, **filters: Any) -> int:
    """Purge, and wait until the file has heard of it; gives how many went."""
    gone: queue.SimpleQueue[int] = queue.SimpleQueue()
    store.purge(DropKept(generation, **filters), gone.put)
    return gone.get(timeout=10)


def names(store: ReuseStore, *candidates: str) -> list[str]:
    return [name for name in candidates if store.find(key(name)) is not None]


def test_what_was_kept_is_found_with_all_that_was_told_of_it(machine: Machine) -> None:
    store = machine.open()
    keep(store, "a", b"text", revisions=(("docs", 7),), meta=b"sources")
    store.settle()
    found = store.find(key("a"))
    assert found is not None
    assert (found.data, found.meta, found.kept.revisions) == (
        b"text",
        b"sources",
        (("docs", 7),),
    )
    value = found.kept.value
    assert (value.inline, value.truth, value.length) == (None, False, 3)
    assert (found.kept.tenant, found.kept.run_s, found.kept.tokens) == ("ours", 2.0, 5)
    assert store.find(key("b")) is None
    facts = store.facts()
    assert (facts.state, facts.entries, facts.kept, facts.found) == ("up", 1, 1, 1)


def test_a_restart_finds_it_again_and_the_folder_is_private(machine: Machine) -> None:
    first = machine.open()
    keep(first, "a", b"text")
    first.close()
    assert machine.folder.stat().st_mode & 0o77 == 0
    assert (machine.folder / "results.sqlite").stat().st_mode & 0o77 == 0
    found = machine.open().find(key("a"))
    assert found is not None and found.data == b"text"


def test_the_one_kept_last_under_a_signature_counts(machine: Machine) -> None:
    store = machine.open()
    keep(store, "a", b"old", revisions=(("docs", 1),))
    keep(store, "a", b"new", revisions=(("docs", 2),))
    store.settle()
    found = store.find(key("a"))
    assert found is not None and found.data == b"new"
    assert store.facts().entries == 1


def test_time_that_is_over_is_over_after_a_restart_too(machine: Machine) -> None:
    store = machine.open()
    keep(store, "short", ttl_s=300.0)
    keep(store, "long", ttl_s=3_600.0)
    store.settle()
    machine.pass_time(100.0)
    found = store.find(key("short"))
    assert found is not None and found.left_s == 200.0
    store.close()
    machine.pass_time(250.0, skew_s=-3_600.0)
    later = machine.open()
    assert names(later, "short", "long") == ["long"]
    found = later.find(key("long"))
    assert found is not None and found.left_s == 3_250.0
    machine.pass_time(3_250.0)
    assert names(later, "long") == []
    later.settle()
    assert machine.database().execute("SELECT count(*) FROM results").fetchone() == (0,)


@pytest.mark.parametrize(("boot", "later_s"), [("", 0.0), ("next", 3_600.0)])
def test_what_was_kept_grows_older_over_restarts_and_reboots(
    machine: Machine, boot: str, later_s: float
) -> None:
    """A node that says how old a result may be is told so at most too early."""
    store = machine.open()
    keep(store, "a", age_s=5.0)
    store.close()
    machine.pass_time(40.0, boot=boot)
    found = machine.open().find(key("a"))
    assert found is not None
    assert (found.kept.age_s, found.kept.eldest_age_s) == (5.0, 10.0)
    assert found.passed_s == 40.0 + later_s


def test_an_hour_of_skew_over_a_reboot_ends_use_early_and_never_late(
    machine: Machine,
) -> None:
    """Known fault 40."""
    store = machine.open()
    keep(store, "hour", ttl_s=3_600.0)
    keep(store, "day", ttl_s=86_400.0)
    keep(store, "ever")
    store.close()
    machine.pass_time(7_200.0, skew_s=-3_600.0, boot="next")
    later = machine.open()
    assert names(later, "hour", "day", "ever") == ["day", "ever"]
    found = later.find(key("day"))
    assert found is not None and found.left_s <= 86_400.0 - 7_200.0


def test_bytes_are_bounded_and_the_least_recently_used_goes_first(
    machine: Machine,
) -> None:
    store = machine.open(max_bytes=2_600)
    for name in ("a", "b"):
        keep(store, name, name.encode() * 1_000)
        store.settle()
    assert names(store, "a") == ["a"]
    keep(store, "c", b"c" * 1_000)
    store.settle()
    assert names(store, "a", "b", "c") == ["a", "c"]
    assert store.facts().bytes <= 2_600
    keep(store, "huge", b"h" * 3_000)
    store.settle()
    assert names(store, "a", "c", "huge") == ["a", "c"]
    store.close()
    assert names(machine.open(max_bytes=1_400), "a", "c") == ["c"]


def test_what_would_take_long_to_read_is_not_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse_store, "LARGEST_BYTES", 100)
    store = machine.open()
    keep(store, "a", b"a" * 200)
    store.settle()
    assert names(store, "a") == [] and store.facts().left_out == 1


@pytest.mark.parametrize("column", ["data", "meta", "head", "digest"])
def test_what_was_damaged_is_not_found_and_goes(machine: Machine, column: str) -> None:
    store = machine.open()
    keep(store, "a", b"a text of some length", tenant="somebody")
    keep(store, "b")
    store.settle()
    machine.database().execute(
        f"UPDATE results SET {column} = CAST({column} || x'00' AS BLOB) "
        "WHERE signature = ?",
        (key("a"),),
    )
    assert names(store, "a", "b") == ["b"]
    store.settle()
    assert store.facts().damaged == 1
    assert machine.database().execute("SELECT count(*) FROM results").fetchone() == (1,)


def test_bytes_that_are_others_than_told_are_not_kept(machine: Machine) -> None:
    store = machine.open()
    keep(store, "a", read=lambda: b"other bytes")
    store.settle()
    assert names(store, "a") == []


def test_a_value_that_is_lost_before_it_is_written_is_left_out(machine: Machine) -> None:
    def lost() -> bytes:
        raise EnvironmentFaultError("it was lost", hint="Nothing.")

    store = machine.open()
    keep(store, "a", read=lost)
    keep(store, "b")
    store.settle()
    assert names(store, "a", "b") == ["b"]


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""])
def test_a_file_that_is_no_database_is_begun_anew(machine: Machine, content: bytes) -> None:
    machine.folder.mkdir()
    (machine.folder / "results.sqlite").write_bytes(content)
    store = machine.open()
    keep(store, "a")
    store.settle()
    assert names(store, "a") == ["a"]


def test_a_file_that_breaks_while_in_use_is_begun_anew(machine: Machine) -> None:
    store = machine.open()
    for i in range(20):
        keep(store, f"old {i}", b"x" * 4_000)
    store.close()
    path = machine.folder / "results.sqlite"
    whole = path.read_bytes()
    path.write_bytes(whole[:4_096] + b"\xff" * (len(whole) - 4_096))
    later = machine.open()
    keep(later, "new")
    later.settle()
    purge(later, signature=b"nothing", generation=0)
    keep(later, "newer")
    later.settle()
    assert names(later, "newer") == ["newer"]
    for i in range(20):
        found = later.find(key(f"old {i}"))
        assert found is None or found.data == b"x" * 4_000


def test_results_of_another_version_are_not_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine.open()
    keep(store, "a")
    store.close()
    monkeypatch.setattr(results_file, "__version__", "0.0.0")
    assert names(machine.open(), "a") == []


def test_one_process_at_a_time_uses_a_folder_and_the_next_one_takes_over(
    machine: Machine,
) -> None:
    first = machine.open()
    keep(first, "a")
    first.settle()
    second = ReuseStore(machine.folder, 1_000_000, lambda: machine.now)
    machine.open_.append(second)
    second.begin(0)
    keep(second, "b")
    assert second.find(key("a")) is None and second.facts().state == "waiting"
    gone: queue.SimpleQueue[int] = queue.SimpleQueue()
    second.purge(DropKept(1, signature=key("a")), gone.put)
    assert names(first, "a") == ["a"], "not its folder"
    first.close()
    assert gone.get(timeout=10) == 1
    assert names(second, "a", "b") == [], "b was told before the purge"


# ---- purges


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({}, []),
        ({"tenant": "theirs"}, ["ours", "docs"]),
        ({"collection": "docs"}, ["ours", "theirs"]),
        ({"collection": "docs", "tenant": "theirs"}, ["ours", "docs", "theirs"]),
        ({"signature": key("ours")}, ["docs", "theirs"]),
    ],
)
def test_a_purge_takes_what_all_its_filters_name_and_for_good(
    machine: Machine, filters: dict[str, Any], left: list[str]
) -> None:
    store = machine.open()
    keep(store, "ours")
    keep(store, "docs", revisions=(("docs", 1), ("more", 1)))
    keep(store, "theirs", tenant="theirs")
    store.settle()
    assert purge(store, **filters) == 3 - len(left)
    assert names(store, "ours", "docs", "theirs") == left
    store.close()
    assert names(machine.open(), "ours", "docs", "theirs") == left


def test_what_was_purged_is_not_found_while_it_is_still_on_disk(machine: Machine) -> None:
    store = machine.open()
    keep(store, "a")
    store.settle()
    reading, go_on = threading.Event(), threading.Event()

    def slow() -> bytes:
        reading.set()
        assert go_on.wait(10)
        return b"data"

    keep(store, "b", read=slow)
    assert reading.wait(10)
    done = threading.Event()
    store.purge(DropKept(1), lambda _: done.set())
    assert names(store, "a") == [] and not done.is_set()
    go_on.set()
    assert done.wait(10)
    assert names(store, "a", "b") == [], "b was being written when the purge came"
    keep(store, "c", generation=1)
    keep(store, "late", generation=0)
    store.settle()
    assert names(store, "c", "late") == ["c"]
    store.close()
    assert names(machine.open(generation=1), "a", "b", "c", "late") == ["c"]


def test_purged_bytes_are_not_left_in_the_files(machine: Machine) -> None:
    store = machine.open()
    secret = b"the otter is called Quibbleton" * 50
    keep(store, "a", secret, meta=b"")
    store.settle()
    purge(store)
    store.close()
    left = b"".join(p.read_bytes() for p in machine.folder.iterdir())
    assert b"Quibbleton" not in left


def test_writing_that_cannot_keep_up_leaves_results_out(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse_store, "_QUEUED_BYTES", 100)
    store = machine.open()
    reading, go_on = threading.Event(), threading.Event()

    def slow() -> bytes:
        reading.set()
        assert go_on.wait(10)
        return b"data"

    keep(store, "slow", read=slow)
    assert reading.wait(10)
    for i in range(20):
        keep(store, str(i))
    go_on.set()
    store.settle()
    facts = store.facts()
    assert (facts.kept, facts.left_out) == (13, 8)


def test_a_result_that_another_one_replaces_is_not_offered_with_its_times_or_for_its_owner(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine.open()
    keep(store, "a", b"former", ttl_s=3600.0)
    store.settle()
    seen: list[list[str]] = []
    enlist = store._enlist  # pyright: ignore[reportPrivateUsage]

    def look_first(written: Any) -> Any:
        monkeypatch.undo()
        seen.append(names(store, "a"))  # It is on the disk, and not in the index.
        return enlist(written)

    monkeypatch.setattr(store, "_enlist", look_first)
    keep(store, "a", b"latter", ttl_s=60.0, tenant="theirs")
    store.settle()
    assert seen == [[]]
    found = store.find(key("a"))
    assert found is not None and (found.data, found.left_s) == (b"latter", 60.0)


# ---- purges that were written down


def test_what_was_written_down_is_purged_before_anything_is_offered(
    machine: Machine,
) -> None:
    store = machine.open()
    secret = b"the otter is called Quibbleton" * 50
    keep(store, "a", secret, meta=b"")
    keep(store, "b", revisions=(("docs", 1),))
    keep(store, "c")
    store.close()
    pending_purges.write(machine.folder, DropKept(0, signature=key("a")))
    pending_purges.write(machine.folder, DropKept(3, collection="docs"))
    later = machine.open()
    assert names(later, "a", "b", "c") == ["c"]
    later.close()
    left = {path.name: path.read_bytes() for path in machine.folder.iterdir()}
    assert sorted(left) == ["lock", "results.sqlite"]
    assert b"Quibbleton" not in b"".join(left.values())
    assert names(machine.open(), "c") == ["c"], "once"


def test_what_is_written_down_waits_for_the_folder(machine: Machine) -> None:
    first = machine.open()
    keep(first, "a")
    first.settle()
    path = pending_purges.write(machine.folder, DropKept(0))
    assert path.stat().st_mode & 0o77 == 0
    second = ReuseStore(machine.folder, 1_000_000, lambda: machine.now)
    machine.open_.append(second)
    assert path.exists() and names(first, "a") == ["a"]
    first.close()
    assert purge(second, signature=b"nothing") == 0
    assert not path.exists() and second.facts().entries == 0


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"no record"])
def test_a_record_that_cannot_be_read_purges_everything(
    machine: Machine, content: bytes
) -> None:
    store = machine.open()
    keep(store, "a")
    store.close()
    pending_purges.write(machine.folder, DropKept(0, "nobody")).write_bytes(content)
    assert names(machine.open(), "a") == []
    assert pending_purges.read(machine.folder) == []


def test_a_purge_is_written_down_also_where_nothing_was_ever_kept(
    machine: Machine,
) -> None:
    pending_purges.write(machine.folder, DropKept(0, "theirs"))
    ((_, drop),) = pending_purges.read(machine.folder)
    assert drop.tenant == "theirs"
    store = machine.open()
    keep(store, "a")
    store.settle()
    assert names(store, "a") == ["a"]
