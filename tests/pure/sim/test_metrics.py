"""Figures of simulations, their records, timelines and tables."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from herasys_rt.core.commands import NodeRecord
from herasys_rt.errors import EnvironmentFaultError
from herasys_rt.sim.compare import Row, table
from herasys_rt.sim.metrics import (
    Summary,
    attainment,
    goodput_rps,
    required,
    summary,
)
from herasys_rt.sim.records import (
    RunRecord,
    records_text,
    run_record,
    write_file,
)
from herasys_rt.sim.simulation import Span
from herasys_rt.sim.timeline import timeline


def ended(i: int, stretch: float, status: str = "succeeded") -> RunRecord:
    """A run that takes a second alone and arrived at second ``i``."""
    nodes = [NodeRecord("a", "x@1", "succeeded", "llm-0", 0.1, 0.2, attempts=1)]
    return run_record(f"r{i}", "rag", status, float(i), i + stretch, 1.0, nodes)


def test_required_is_the_rank_that_the_share_asks_for() -> None:
    records = [ended(i, 1.0 + i) for i in range(20)]
    assert required(records, 0.95) == 19.0  # ceil(0.95 * 20) = the 19th of 1..20
    assert required(records, 0.99) == 20.0
    assert required(records[:1], 0.95) == 1.0
    assert math.isnan(required([], 0.95))


def test_runs_that_did_not_succeed_are_infinitely_late() -> None:
    records = [ended(i, 2.0) for i in range(18)] + [ended(18, 0.1, "failed")] * 2
    assert required(records, 0.9) == 2.0
    assert required(records, 0.95) == math.inf
    assert attainment(records, [1.9, 2.0, 99.0]) == [0.0, 0.9, 0.9]
    assert goodput_rps(records, 2.0) == pytest.approx(18 / 19.0)


def test_a_run_exactly_at_the_boundary_is_served() -> None:
    assert attainment([ended(0, 3.0)], [3.0]) == [1.0]


def told(records: list[RunRecord]) -> Summary:
    return summary(records, {"llm": 5.0, "pg": 1.0}, events=10, plan_s=0.02, wall_s=0.5)


def test_a_summary_counts_what_the_records_say() -> None:
    records = [ended(0, 1.0), ended(1, 3.0), ended(5, 5.0)]
    found = told(records)
    assert (found.runs, found.succeeded, found.makespan_s) == (3, 3, 10.0)
    assert (found.mean_s, found.p50_s) == (3.0, 3.0)
    assert found.throughput_rps == 0.3
    assert found.utilisation == 0.5
    assert found.utilisations == {"llm": 0.5, "pg": 0.1}
    assert found.plan_ms_mean == 2.0
    assert found.fused_share == 0.0


def test_a_summary_of_nothing_has_no_figures_and_no_faults() -> None:
    found = told([])
    assert found.runs == 0
    assert math.isnan(found.mean_s) and math.isnan(found.throughput_rps)


def test_a_record_counts_nodes_by_what_became_of_them() -> None:
    nodes = [
        NodeRecord("a", "x@1", "succeeded", "i", 0.5, 1.0, attempts=2),
        NodeRecord("b", "x@1", "succeeded", fused_into="r0/b"),
        NodeRecord("c", "x@1", "succeeded", reused=True),
        NodeRecord("d", "x@1", "skipped"),
    ]
    record = run_record("r", "rag", "succeeded", 1.0, 4.0, 2.0, nodes)
    assert (record.executed, record.fused, record.reused, record.nodes) == (1, 1, 1, 4)
    assert (record.attempts, record.queued_s, record.run_s) == (2, 0.5, 1.0)
    assert (record.latency_s, record.stretch) == (3.0, 1.5)


def test_records_are_written_to_the_microsecond_and_read_back(tmp_path: Path) -> None:
    record = replace(ended(0, 1.0), latency_s=1.23456789)
    path = tmp_path / "new" / "records.jsonl"
    write_file(path, records_text([record, ended(1, 2.0)]))
    first, second = [
        msgspec.json.decode(line, type=RunRecord) for line in path.read_bytes().splitlines()
    ]
    assert (first.run, second.run) == ("r0", "r1")
    assert first.latency_s == 1.234568


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFaultError, match="cannot be written"):
        write_file(tmp_path / "file" / "below", b"")


def test_a_timeline_puts_what_overlaps_on_tracks_of_its_own() -> None:
    spans = [
        Span("llm-0", "a", "x", 0.0, 2.0),
        Span("llm-0", "b", "x", 1.0, 3.0),
        Span("llm-0", "c", "x", 2.0, 4.0),
        Span("pg-0", "a", "s", 4.0, 4.5),
    ]
    events = json.loads(timeline(spans, [ended(0, 1.0)]))["traceEvents"]
    slices = [(e["name"], e["pid"], e["tid"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        ("a/x", 1, 0, 2e6),
        ("b/x", 1, 1, 2e6),
        ("c/x", 1, 0, 2e6),
        ("a/s", 2, 0, 5e5),
        ("r0", 0, 0, 1e6),
    ]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["llm-0", "pg-0", "runs"]


def test_a_table_gives_medians_with_intervals_and_marks_the_best() -> None:
    slow = [told([ended(i, 4.0 + s) for i in range(9)]) for s in (0.0, 1.0)]
    fast = [told([ended(i, 2.0) for i in range(9)])] * 2
    lines = table([Row("slow", tuple(slow)), Row("fast", tuple(fast))]).splitlines()
    assert lines[0].startswith("| policy | mean (s) |")
    assert "4.5 [4.03, 4.97]" in lines[2]
    assert lines[3].startswith("| fast | **2** | **2** |")


def test_charts_are_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    from herasys_rt.sim.charts import attainment_chart, latency_chart

    series = {"a": [ended(i, 1.0 + i) for i in range(9)], "b": [ended(0, 2.0, "failed")]}
    attainment_chart(series, tmp_path / "attainment.svg", "title")
    latency_chart(series, tmp_path / "new" / "latency.png")
    svg = (tmp_path / "attainment.svg").read_text()
    assert "share of runs served" in svg and "title" in svg
    assert (tmp_path / "new" / "latency.png").read_bytes()[:4] == b"\x89PNG"
    attainment_chart(series, tmp_path / "again.svg", "title")
    assert (tmp_path / "again.svg").read_text() == svg
    with pytest.raises(EnvironmentFaultError, match="cannot be written"):
        latency_chart(series, tmp_path / "latency.doc")


def test_without_matplotlib_a_chart_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from herasys_rt.sim.charts import attainment_chart

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(EnvironmentFaultError, match="charts need matplotlib"):
        attainment_chart({}, tmp_path / "x.svg")
