"""Where the runtime keeps things: damaged state, other people's folders, clock steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from herasys_rt.errors import ConfigError, EnvironmentFaultError
from herasys_rt.links import Endpoint, Inbox
from herasys_rt.messages import ToClient
from herasys_rt.runtime import places

STATE: dict[str, Any] = {
    "pid": os.getpid(),
    "started": 0.0,
    "run_dir": "/nowhere/hs-x",
    **dict.fromkeys(("endpoint", "dsn", "job_address", "ray_address", "token_path"), ""),
}


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERASYS_STATE_DIR", str(tmp_path / "state"))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "5", '{"pid": 1}', json.dumps({**STATE, "pid": "one"})],
)
def test_a_damaged_state_file_means_that_nothing_is_up(content: str) -> None:
    places.state_file().write_text(content)
    assert places.read_state() is None
    assert not places.state_file().exists()


def test_a_dead_runtimes_state_goes_with_its_run_directory_and_nothing_else(
    tmp_path: Path,
) -> None:
    ours, theirs = tmp_path / "hs-12345678", tmp_path / "precious"
    for folder in (ours, theirs):
        folder.mkdir()
        places.write_state({**STATE, "run_dir": str(folder)})
        assert places.read_state() is None
    assert not ours.exists()
    assert theirs.exists()


def test_a_process_is_known_by_its_start_whatever_the_time_of_day_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = places.process_started(os.getpid())
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: 4e9)
    assert places.is_process(os.getpid(), started)
    assert not places.is_process(os.getpid(), started + 100)
    places.write_state({**STATE, "started": started})
    assert places.read_state() == {**STATE, "started": started}


def test_without_its_directory_a_socket_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFaultError, match="no socket can be made"):
        Inbox(tmp_path / "gone", "client", ToClient)


def test_only_sockets_of_the_own_run_directory_are_removed(tmp_path: Path) -> None:
    mine, other = tmp_path / "r", tmp_path / "other"
    mine.mkdir()
    for file in (mine / "client-1", other):
        file.touch()
    inbox: Inbox[Any] = Inbox(mine, "s", ToClient)
    for path in (mine / "client-1", other, mine / "never"):
        inbox.remove_neighbour(Endpoint("host", f"ipc://{path}"))
    inbox.remove_neighbour(inbox.endpoint)
    assert other.exists() and not (mine / "client-1").exists()
    assert len(list(mine.iterdir())) == 1
    inbox.close()


def test_an_unknown_policy_is_told_before_anything_starts(tmp_path: Path) -> None:
    from herasys_rt.config import Config, SchedulerConfig
    from herasys_rt.runtime.stack import Stack

    config = Config(scheduler=SchedulerConfig(ordering="bogus"))
    with pytest.raises(ConfigError, match="unknown ordering 'bogus'"):
        Stack(config, tmp_path).start(lambda _: None)


@pytest.mark.parametrize(
    ("variable", "make"),
    [("HERASYS_RUN_DIR", places.new_run_dir), ("HERASYS_STATE_DIR", places.state_dir)],
)
def test_a_directory_that_cannot_be_made_is_told_with_its_variable(
    monkeypatch, short_folder, variable, make
):
    file = short_folder / "f"
    file.write_text("in the way")
    monkeypatch.setenv(variable, str(file / "b"))
    with pytest.raises(EnvironmentFaultError, match=f"made at {file / 'b'}") as caught:
        make()
    assert variable in caught.value.hint
