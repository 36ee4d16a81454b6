"""A simulation as a timeline that Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from herasys_rt.sim.records import RunRecord
from herasys_rt.sim.simulation import Span


def timeline(spans: Sequence[Span], records: Sequence[RunRecord]) -> bytes:
    """Trace events as JSON: a process per instance with its items on as few tracks as
    they overlap, and one more with the runs. Times in microseconds."""
    events: list[dict[str, Any]] = []
    names = sorted({span.instance for span in spans})
    for number, name in enumerate(names, 1):
        events.append(_named("process_name", number, 0, name))
        mine = [span for span in spans if span.instance == name]
        for span, track in _tracks(mine):
            events.append(
                _slice(f"{span.run}/{span.step}", number, track, span.begun_s, span.ended_s)
            )
    events.append(_named("process_name", 0, 0, "runs"))
    runs = [Span("", r.run, r.status, r.arrival_s, r.finish_s) for r in records]
    for span, track in _tracks(runs):
        events.append(_slice(span.run, 0, track, span.begun_s, span.ended_s))
    told = {"traceEvents": events, "displayTimeUnit": "ms"}
    return msgspec.json.encode(told)


def _tracks(spans: Sequence[Span]) -> list[tuple[Span, int]]:
    """Each span with the lowest track that is free when it begins."""
    ends: list[float] = []
    placed: list[tuple[Span, int]] = []
    for span in sorted(spans, key=lambda s: (s.begun_s, s.ended_s, s.run, s.step)):
        track = next((i for i, end in enumerate(ends) if end <= span.begun_s), len(ends))
        if track == len(ends):
            ends.append(0.0)
        ends[track] = span.ended_s
        placed.append((span, track))
    return placed


def _slice(name: str, process: int, track: int, begun: float, ended: float) -> Any:
    return {
        "name": name,
        "ph": "X",
        "pid": process,
        "tid": track,
        "ts": round(begun * 1e6, 3),
        "dur": round((ended - begun) * 1e6, 3),
    }


def _named(kind: str, process: int, track: int, name: str) -> Any:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
