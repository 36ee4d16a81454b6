"""What became of each run, and the files that say so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from herasys_rt.core.commands import NodeRecord
from herasys_rt.errors import EnvironmentFaultError

_DIGITS = 6
"""Seconds are written to the microsecond: machines agree that far."""


class RunRecord(msgspec.Struct, frozen=True):
    """One run. Times in seconds from the start of the simulation.

    ``alone_s`` is H_w, what the run takes on the idle cluster; ``queued_s`` and ``run_s``
    are sums over the nodes that it executed itself.
    """

    run: str
    kind: str
    status: str
    arrival_s: float
    finish_s: float
    latency_s: float
    alone_s: float
    nodes: int
    executed: int
    fused: int
    reused: int
    attempts: int
    queued_s: float
    run_s: float

    @property
    def stretch(self) -> float:
        """C_w / H_w: how many times as long as alone."""
        return self.latency_s / self.alone_s if self.alone_s > 0 else 1.0


def run_record(
    run: str,
    kind: str,
    status: str,
    arrival_s: float,
    finish_s: float,
    alone_s: float,
    nodes: Sequence[NodeRecord],
) -> RunRecord:
    """The record of a run that ended, from its nodes'."""
    executed = fused = reused = attempts = 0
    queued_s = run_s = 0.0
    for node in nodes:
        if node.reused:
            reused += 1
        elif node.fused_into:
            fused += 1
        elif node.attempts:
            executed += 1
            attempts += node.attempts
            queued_s += node.queued_s
            run_s += node.run_s
    return RunRecord(
        run,
        kind,
        status,
        arrival_s,
        finish_s,
        finish_s - arrival_s,
        alone_s,
        len(nodes),
        executed,
        fused,
        reused,
        attempts,
        queued_s,
        run_s,
    )


def records_text(records: Iterable[RunRecord]) -> bytes:
    """JSON, one run a line, in the order given."""
    encoder = msgspec.json.Encoder()
    lines: list[bytes] = []
    for record in records:
        fields = msgspec.structs.asdict(record)
        for name, value in fields.items():
            if isinstance(value, float):
                fields[name] = round(value, _DIGITS)
        lines.append(encoder.encode(fields))
    return b"".join([line + b"\n" for line in lines])


def write_file(path: Path, data: bytes) -> None:
    """Write a result. Errors: `EnvironmentFaultError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as e:
        raise EnvironmentFaultError(
            f"{path} cannot be written: {e.strerror}",
            hint="Give a folder that can be written.",
            path=str(path),
        ) from e
