"""What benchmarks share: data lookup, output."""

from __future__ import annotations

import argparse
import json
import socket
from pathlib import Path

import pytest

from benchmarks import _common


def test_data_is_looked_up_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traces").mkdir()
    monkeypatch.setenv("BENCH_DATA_DIR", str(tmp_path))
    assert _common.find_data("traces") == tmp_path / "traces"
    assert _common.find_data("traces", "absent") is None
    assert "traces/absent" in _common.no_data("traces", "absent")


def test_without_the_variable_data_lies_beside_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BENCH_DATA_DIR", raising=False)
    assert _common.data_dir() == (_common.ROOT.parent / "shared/data").resolve()


def test_figures_name_the_machine_but_not_its_host() -> None:
    told = json.dumps(_common.facts())
    assert '"cores"' in told
    assert socket.gethostname() not in told


def test_figures_are_written_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    _common.standard_arguments(parser)
    path = tmp_path / "new/figures.json"
    _common.emit({"a": 1}, parser.parse_args(["--json", str(path)]).json)
    assert json.loads(path.read_text()) == {"a": 1}
    _common.emit({"a": 1}, parser.parse_args(["--json"]).json)
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    _common.emit({"a": 1}, parser.parse_args([]).json)
    assert capsys.readouterr().out == "a: 1\n"
