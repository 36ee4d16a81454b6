"""What benchmarks share: data lookup, statistics, output."""

from __future__ import annotations

import argparse
import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import _common

floats = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def test_the_percentile_lies_between_neighbours() -> None:
    assert _common.percentile([4, 1, 3, 2], 50) == 2.5
    assert _common.percentile([1, 2, 3], 0) == 1
    assert _common.percentile([1, 2, 3], 100) == 3
    assert _common.percentile([7], 99) == 7


@given(floats, st.floats(0, 100))
def test_the_percentile_stays_within_the_values(values: list[float], q: float) -> None:
    slack = 1e-9 * max(1.0, *(abs(v) for v in values))
    found = _common.percentile(values, q)
    assert min(values) - slack <= found <= max(values) + slack


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        _common.percentile([], 50)
    with pytest.raises(ValueError, match="between 0 and 100"):
        _common.percentile([1.0], 101)


def test_an_interval_holds_the_mean_and_repeats_itself() -> None:
    values = [float(v % 10) for v in range(100)]
    low, high = _common.interval(values)
    assert low < 4.5 < high
    assert _common.interval(values) == (low, high)


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
