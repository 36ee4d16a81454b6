"""`herasys cache purge` while no runtime is up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.cli import execute
from herasys_rt.runtime import pending_purges
from herasys_rt.runtime.reuse_store import ReuseStore
from tests.pure.runtime.test_reuse_store import keep, key, names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of results of a runtime that is down."""
    monkeypatch.setenv("HERASYS_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("HERASYS_CONFIG", raising=False)
    folder = tmp_path / "reuse"
    store = opened(folder)
    keep(store, "a")
    keep(store, "b", tenant="theirs")
    store.close()
    return folder


def opened(folder: Path) -> ReuseStore:
    store = ReuseStore(folder, 1_000_000)
    store.begin(0)
    done: list[int] = []
    store.purge(pending_purges.DropKept(0, signature=b"nothing"), done.append)
    store.settle()
    while not done:
        pass
    return store


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert execute(["cache", "purge", "--yes", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_a_runtime_left_on_disk_is_purged_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(capsys, "--tenant", "theirs")["stored"] == 1
    store = opened(folder)
    assert names(store, "a", "b") == ["a"]
    store.close()
    assert execute(["cache", "purge", "--signature", key("a").hex(), "--yes"]) == 0
    assert "1 on disk" in capsys.readouterr().out
    assert asked(capsys)["stored"] == 0


def test_a_folder_that_another_process_uses_is_purged_when_it_is_opened_next(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = opened(folder)
    assert execute(["cache", "purge", "--yes"]) == 0
    assert "those on disk follow" in capsys.readouterr().out
    assert names(store, "a", "b") == ["a", "b"]
    store.close()
    store = opened(folder)
    assert names(store, "a", "b") == []
    store.close()


def test_where_nothing_was_kept_it_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERASYS_STATE_DIR", str(tmp_path))
    assert execute(["cache", "purge", "--yes", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "runtime_state" and str(tmp_path / "reuse") in error["message"]
    assert "--config" in error["hint"]
    assert not (tmp_path / "reuse").exists()


def test_the_folder_is_the_one_that_the_configuration_names(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = folder.rename(tmp_path / "elsewhere")
    path = tmp_path / "config.yaml"
    path.write_text(f"scheduler: {{reuse: {{store_dir: {other}}}}}")
    assert asked(capsys, "--config", str(path))["stored"] == 2
