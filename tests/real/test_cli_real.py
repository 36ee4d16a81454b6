"""Commands that need a real database or a real look at the machine."""

from __future__ import annotations

import json

import pytest

from herasys_rt.cli import execute

pytestmark = pytest.mark.real


def test_the_doctor_finds_no_fault_where_the_suite_runs(capfd) -> None:
    assert execute(["doctor", "--json"]) == 0
    checks = json.loads(capfd.readouterr().out)["checks"]
    names = {check["name"] for check in checks}
    assert {"python", "packages", "ray", "database", "models", "memory"} <= names


def test_an_unreachable_database_is_the_doctors_fault_without_its_password(
    capfd, monkeypatch
) -> None:
    dsn = "postgresql://user:s3cret@127.0.0.1:1/none"
    monkeypatch.setenv("HERASYS_DATABASE__DSN", dsn)
    assert execute(["doctor", "--json"]) == 1
    shown = capfd.readouterr()
    checks = json.loads(shown.out)["checks"]
    (database,) = [check for check in checks if check["name"] == "database"]
    assert database["state"] == "fault"
    assert database["hint"]
    assert "s3cret" not in shown.out + shown.err


def test_collections_work_without_a_runtime(capfd, monkeypatch) -> None:
    import os

    from herasys_rt.cli import runtime
    from herasys_rt.config import load_config
    from herasys_rt.engines.postgres.sync import open_store

    # A database of its own: what other modules of the suite stored is not seen.
    own = os.environ["HERASYS_DATABASE__DATA_DIR"] + "-cli"
    monkeypatch.setenv("HERASYS_DATABASE__DATA_DIR", own)
    assert execute(["collections", "list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"collections": [], "error": None}
    with runtime.database(load_config()) as dsn, open_store(dsn) as store:
        store.create("cli docs", 3)
    assert execute(["collections", "show", "cli docs", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["name"], shown["dimensions"], shown["chunks"]) == ("cli docs", 3, 0)
    assert execute(["collections", "show", "absent", "--json"]) == 2
    told = json.loads(capfd.readouterr().out)["error"]
    assert told["code"] == "unknown_collection"
    assert execute(["collections", "drop", "cli docs", "--yes"]) == 0
    capfd.readouterr()
    assert execute(["collections", "list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["collections"] == []
