"""The pgvector engine on the real server: outcomes, aborts, changes, restarts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from herasys_rt.config import PoolConfig
from herasys_rt.engines.postgres import engine as pgvector
from herasys_rt.engines.postgres.server import EmbeddedPostgres
from herasys_rt.engines.postgres.sync import open_store
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.errors import ConfigError, DatabaseUnreachableError, RuntimeStateError
from herasys_rt.graph.codec import decode, encode

pytestmark = pytest.mark.real

DIM = 16
LIMIT_S = 30.0


class Recorder:
    """A sink that remembers, and on which other threads can wait."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self.begun: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        self.changes: list[tuple[str, int]] = []
        self.faults: list[str] = []

    def started(self, key: str) -> None:
        with self._told:
            self.begun.append(key)
            self._told.notify_all()

    def piece(self, key: str, text: str, tokens: int) -> None:
        self.faults.append(f"a piece of {key}")

    def finished(self, key: str, outcome: Outcome) -> None:
        with self._told:
            if key in self.outcomes:
                self.faults.append(f"{key} finished twice")
            self.outcomes[key] = outcome
            self._told.notify_all()

    def collection_changed(self, collection: str, revision: int) -> None:
        with self._told:
            self.changes.append((collection, revision))
            self._told.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._told:
            assert self._told.wait_for(condition, LIMIT_S), "it did not come about"

    def outcome(self, key: str) -> Outcome:
        self.wait(lambda: key in self.outcomes)
        return self.outcomes[key]


def pool(**options: Any) -> PoolConfig:
    return PoolConfig(name="db", resource="retrieval", engine="pgvector", options=options)


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


@pytest.fixture
def engine(dsn: str, sink: Recorder) -> Iterator[Engine]:
    threads = threading.active_count()
    with open_store(dsn) as store:
        for facts in store.list():
            store.drop(facts.name)
    running = pgvector.create(pool(pool_size=4), dsn)
    running.start(sink)
    yield running
    running.close()
    running.close()
    assert sink.faults == []
    assert threading.active_count() == threads
    assert running.snapshot().running == running.snapshot().waiting == 0
    while connections(dsn):  # the server notices a moment later; a hang fails the test
        pass


def connections(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    return row[0]


def vectors_of(count: int, dimensions: int = DIM, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, dimensions)).astype(np.float32)


def embedded(count: int, source: str = "doc") -> dict[str, Any]:
    chunks = [
        {"id": f"{source}-{i}", "source": source, "text": f"text {i}"} for i in range(count)
    ]
    return {"chunks": chunks, "vectors": vectors_of(count)}


def search(key: str, vector: Any, collection: str = "docs", **more: Any) -> Item:
    args = {"vector": vector, "collection": collection, "top_k": 3, **more}
    return Item(key=key, verb="pg.search", args=args)


def write(key: str, what: Any, collection: str = "docs", **more: Any) -> Item:
    args = {"embedded": what, "collection": collection, **more}
    return Item(key=key, verb="pg.write", args=args)


@pytest.fixture
def filled(engine: Engine, sink: Recorder) -> Engine:
    engine.submit([write("fill", embedded(50))])
    assert sink.outcome("fill").error is None
    return engine


def test_a_write_and_a_search_through_the_verbs(engine: Engine, sink: Recorder) -> None:
    engine.submit([write("w", decode(encode(embedded(5))))])
    written = sink.outcome("w")
    assert written.error is None
    revision = written.value["revision"]
    assert written.value == {
        "collection": "docs",
        "documents": 1,
        "chunks": 5,
        "revision": revision,
    }
    assert written.revisions == {"docs": revision}
    engine.submit([search("s", vectors_of(5)[2])])
    found = sink.outcome("s")
    assert found.value[0]["id"] == "doc-2"
    assert found.revisions == {"docs": revision}
    assert found.sources == [
        {k: c[k] for k in ("id", "source", "score", "text")} for c in found.value
    ]
    assert found.run_s > 0
    assert decode(encode(found.value)) == found.value
    assert sink.begun == ["w", "s"]


def test_replace_deletes_the_documents_older_chunks(
    filled: Engine, sink: Recorder, dsn: str
) -> None:
    filled.submit([write("again", embedded(2), replace=True)])
    assert sink.outcome("again").value["chunks"] == 2
    with open_store(dsn) as store:
        assert store.show("docs").chunks == 2


def test_nothing_written_is_an_answer_too(filled: Engine, sink: Recorder) -> None:
    nothing = {"chunks": [], "vectors": np.zeros((0, DIM), np.float32)}
    filled.submit([write("nothing", nothing)])
    assert sink.outcome("nothing").value["chunks"] == 0
    filled.submit([write("nowhere", nothing, collection="other")])
    error = sink.outcome("nowhere").error
    assert error is not None
    assert error.code == "unknown_collection"


def test_each_bad_item_is_its_own_outcome(filled: Engine, sink: Recorder) -> None:
    good = vectors_of(1)[0]
    nan = vectors_of(2)
    nan[1, 0] = np.nan
    wrong = {
        "unknown_collection": search("1", good, "nowhere"),
        "dimension_mismatch": search("2", vectors_of(1, 3)[0]),
        "invalid_vector": write("3", {**embedded(2), "vectors": nan}),
        "invalid_chunk": write("4", {"chunks": [{"id": 1}], "vectors": vectors_of(1)}),
        "invalid_input": search("5", good, top_k=0),
        "unknown_verb": Item(key="6", verb="pg.dance", args={}),
    }
    more = [
        ("invalid_input", search("7", good, filter=["x"])),
        ("invalid_input", search("8", good, "")),
        ("invalid_chunk", write("9", None)),
        ("dimension_mismatch", write("10", {**embedded(1), "vectors": vectors_of(1, 4)})),
    ]
    items = [*wrong.items(), *more]
    filled.submit([search("good", good), *[item for _, item in items]])
    assert sink.outcome("good").error is None
    for code, item in items:
        error = sink.outcome(item.key).error
        assert error is not None
        assert (error.code, error.message != "", error.hint != "") == (code, True, True)


def test_nul_bytes_and_surrogates_pass_through(engine: Engine, sink: Recorder) -> None:
    chunk = {"id": "a", "source": "s", "text": "x\x00y\ud800"}
    engine.submit([write("w", {"chunks": [chunk], "vectors": vectors_of(1)})])
    assert sink.outcome("w").error is None
    engine.submit([search("s", vectors_of(1)[0])])
    assert sink.outcome("s").value[0]["text"] == "xy\ufffd"


def test_fifty_searches_at_once(filled: Engine, sink: Recorder) -> None:
    vectors = vectors_of(50)
    filled.submit([search(f"s{i}", vectors[i]) for i in range(50)])
    for i in range(50):
        assert sink.outcome(f"s{i}").value[0]["id"] == f"doc-{i}"


def test_an_empty_collection_gives_an_empty_list(
    engine: Engine, sink: Recorder, dsn: str
) -> None:
    with open_store(dsn) as store:
        store.create("empty", DIM)
    engine.submit([search("s", vectors_of(1)[0], "empty")])
    assert sink.outcome("s").value == []


def test_aborts_race_completion_and_end_every_item_once(
    filled: Engine, sink: Recorder
) -> None:
    vectors = vectors_of(50)
    keys = [f"s{i}" for i in range(200)]
    for i, key in enumerate(keys):
        filled.submit([search(key, vectors[i % 50])])
        if i % 2:
            filled.abort(key)
        if i % 5 == 0:
            filled.abort(keys[i // 2])
    sink.wait(lambda: all(key in sink.outcomes for key in keys))
    for i, key in enumerate(keys):
        outcome = sink.outcomes[key]
        assert outcome.error is None
        assert outcome.aborted or outcome.value[0]["id"] == f"doc-{i % 50}"
    assert any(sink.outcomes[key].aborted for key in keys)
    filled.abort("never-submitted")
    filled.abort(keys[0])
    filled.submit([search("after", vectors[0])])
    assert sink.outcome("after").error is None


def test_an_abort_ends_the_statement_on_the_server(
    filled: Engine, sink: Recorder, dsn: str
) -> None:
    with psycopg.connect(dsn) as blocker:
        blocker.execute("SELECT * FROM herasys.collections FOR UPDATE")
        filled.submit([write("stuck", embedded(3, "late"))])
        sink.wait(lambda: "stuck" in sink.begun)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with psycopg.connect(dsn, autocommit=True) as watcher:
            while watcher.execute(waiting).fetchone() != (1,):
                pass
            filled.abort("stuck")
            assert sink.outcome("stuck").aborted
            while watcher.execute(waiting).fetchone() != (0,):
                pass
    with open_store(dsn) as store:
        assert store.show("docs").chunks == 50


def test_closing_ends_what_is_under_way_and_reports_no_more(
    dsn: str, sink: Recorder
) -> None:
    running = pgvector.create(pool(pool_size=2), dsn)
    running.start(sink)
    running.submit([write("w", embedded(50), "closing")])
    sink.outcome("w")
    running.submit([search(f"s{i}", vectors_of(1)[0], "closing") for i in range(100)])
    running.close()
    assert len(sink.outcomes) == 101
    with pytest.raises(RuntimeStateError):
        running.submit([search("late", vectors_of(1)[0])])
    with open_store(dsn) as store:
        store.drop("closing")
    assert len(sink.outcomes) == 101


def test_changes_made_by_others_are_told(filled: Engine, sink: Recorder, dsn: str) -> None:
    with open_store(dsn) as store:
        change = store.delete("docs", source="doc")
        sink.wait(lambda: ("docs", change.revision) in sink.changes)
        gone = store.drop("docs")
        sink.wait(lambda: ("docs", gone) in sink.changes)


def test_a_starting_engine_tells_the_revisions_there_are(filled: Engine, dsn: str) -> None:
    with open_store(dsn) as store:
        there = store.show("docs").revision
    late = Recorder()
    second = pgvector.create(pool(), dsn)
    second.start(late)
    try:
        assert ("docs", there) in late.changes
    finally:
        second.close()


def test_searches_and_writes_outlast_kill_9_of_the_server(
    filled: Engine, sink: Recorder, server: EmbeddedPostgres, dsn: str
) -> None:
    vectors = vectors_of(50)
    for round in range(2):
        pid = server.pid
        assert pid is not None
        filled.submit([search(f"before{round}-{i}", vectors[i]) for i in range(20)])
        os.kill(pid, signal.SIGKILL)
        filled.submit([search(f"during{round}-{i}", vectors[i]) for i in range(20)])
        filled.submit([write(f"write{round}", embedded(5, f"new{round}"))])
        for i in range(20):
            for moment in ("before", "during"):
                outcome = sink.outcome(f"{moment}{round}-{i}")
                assert outcome.error is None
                assert outcome.value[0]["text"] == f"text {i}"
        written = sink.outcome(f"write{round}")
        assert written.error is None
        # Told by the listener's new connection, or caught up with when it came back.
        sink.wait(lambda seen=written: ("docs", seen.value["revision"]) in sink.changes)
    with open_store(dsn) as store:
        assert store.show("docs").chunks == 60
        # Somebody else's change is heard again after the restarts.
        change = store.delete("docs", source="new1")
        sink.wait(lambda: ("docs", change.revision) in sink.changes)


def test_a_server_that_stays_away_is_a_typed_outcome(area: Any, sink: Recorder) -> None:
    own = EmbeddedPostgres(area / "away", area / "run-away")
    dsn = own.start()
    running = pgvector.create(pool(), dsn)
    running.start(sink)
    own.stop()
    running.submit([search("s", vectors_of(1)[0])])
    error = sink.outcome("s").error
    running.close()
    assert error is not None
    assert error.code == "database_unreachable"


def test_an_unreachable_server_fails_the_start(sink: Recorder) -> None:
    running = pgvector.create(pool(), "postgresql://me:s3cret@127.0.0.1:1/db")
    with pytest.raises(DatabaseUnreachableError) as error:
        running.start(sink)
    assert "s3cret" not in str(error.value)
    running.close()


def test_unknown_options_are_refused_with_the_known_ones(dsn: str) -> None:
    with pytest.raises(ConfigError) as error:
        pgvector.create(pool(pool_sice=3), dsn)
    assert "pool_sice" in error.value.message
    assert "pool_size" in error.value.hint


def test_describe_names_what_answers_depend_on(engine: Engine) -> None:
    facts = engine.describe()
    assert "pgvector 0.8" in facts["fingerprint"]
    assert engine.verbs == {"pg.search", "pg.text", "pg.hybrid", "pg.write", "pg.delete"}


def test_two_databases_are_told_apart_by_the_fingerprint(
    engine: Engine, dsn: str, sink: Recorder
) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE DATABASE another")
    parts = conninfo_to_dict(dsn)
    there = make_conninfo(**{**parts, "dbname": "another"})
    told: list[str] = []
    for where in (dsn, there, there):
        running = pgvector.create(pool(), where)
        running.start(sink)
        told.append(running.describe()["fingerprint"])
        running.close()
    assert told[0] == engine.describe()["fingerprint"], "the same when asked again"
    assert told[1] == told[2] != told[0]
