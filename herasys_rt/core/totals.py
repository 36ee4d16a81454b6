"""What happened since the start, counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Totals:
    """Counts since the start. Nodes are counted under one heading when their run ends:
    submitted = executed + fused + reused + skipped + cancelled. ``failed`` nodes are among
    executed and fused. Fragments are an agent's. ``stale`` counts outcomes that were
    ignored."""

    submitted: int = 0
    executed: int = 0
    fused: int = 0
    reused: int = 0
    skipped: int = 0
    cancelled: int = 0
    failed: int = 0
    runs_accepted: int = 0
    runs_refused: int = 0
    runs_succeeded: int = 0
    runs_failed: int = 0
    runs_cancelled: int = 0
    fragments_refused: int = 0
    fragments_succeeded: int = 0
    fragments_failed: int = 0
    fragments_cancelled: int = 0
    stale: int = 0
