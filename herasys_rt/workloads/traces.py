"""Recorded traces as workloads: requests, conversations and agents as they were.

Four formats (docs/workloads.md says where to get them):

- ``azure``: CSV of single requests, lengths and arrival times only.
- ``mooncake``: JSON lines of single requests with the ids of their 512-token blocks.
- ``lmcache``: JSON lines of agents' calls, chat by chat; each chat is a chain.
- ``claude_code``: sessions of a coding agent with its sub-agents, delta-encoded.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import msgspec

from herasys_rt.errors import ConfigError
from herasys_rt.workloads.arrivals import BLOCK_TOKENS, Job, Step, Truth
from herasys_rt.workloads.draws import Streams
from herasys_rt.workloads.mixture import (
    MAX_RUNS,
    arrival_times,
    check_rate,
    check_runs,
    job_of,
)
from herasys_rt.workloads.prefix import named_blocks
from herasys_rt.workloads.records import Faults, json_lines, length_fault, text_of
from herasys_rt.workloads.sessions import Session, session_steps
from herasys_rt.workloads.sources import Content, generate

TraceFormat = Literal["azure", "mooncake", "lmcache", "claude_code"]

TIMED: tuple[TraceFormat, ...] = ("azure", "mooncake")
"""Formats that say when each run arrived."""

_MOONCAKE_BLOCK = 512
_LMCACHE_BLOCK = 64
"""256 characters at 4 characters a token, which is also how its lengths were counted."""


class Recorded(msgspec.Struct, frozen=True):
    """A run as recorded; ``arrival_s`` from the trace's first, None where none is."""

    content: Content
    arrival_s: float | None = None


class Trace(msgspec.Struct, frozen=True):
    """A workload that replays the first runs of a file; see `arrivals.Workload`.

    A seed changes nothing but the arrivals of a trace that has none of its own (and is
    given a rate). Nothing is read before `jobs` is called.
    """

    name: str
    format: TraceFormat
    path: str
    default_runs: int = 300
    default_rate: float | None = None
    closed_loop_concurrency: int | None = None

    def jobs(self, seed: int, runs: int, rate: float | None) -> Sequence[Job]:
        """See `Workload.jobs`. Errors: `ConfigError` also for a file that is missing,
        empty or broken, and for more runs than it holds."""
        check_runs(self.name, runs)
        check_rate(self.name, rate)
        streams = Streams(seed)
        recorded = read_trace(self.format, Path(self.path), runs)
        if runs > len(recorded):
            raise ConfigError(
                f"{self.path} holds {len(recorded)} runs, and {runs} were asked for",
                hint=f"Ask for at most {len(recorded)} runs.",
            )
        taken = recorded[:runs]
        times = _times(taken, rate, streams)
        return [
            job_of(f"{self.name}-{i}", run.content, arrival_s)
            for i, (run, arrival_s) in enumerate(zip(taken, times, strict=True))
        ]


def read_trace(format: TraceFormat, path: Path, most: int = MAX_RUNS) -> list[Recorded]:
    """The first ``most`` runs of a file, by arrival where it has arrivals.

    Errors: `ConfigError` with the faults of the lines that were read.
    """
    return _READERS[format](path, most)


def _times(
    recorded: Sequence[Recorded], rate: float | None, streams: Streams
) -> Sequence[float | None]:
    """The trace's own times, stretched so that ``rate`` runs come in a second."""
    own = [run.arrival_s for run in recorded]
    if any(at is None for at in own):
        return arrival_times(len(own), rate, streams)
    first, last = own[0] or 0.0, own[-1] or 0.0
    if rate is None or last == first:
        return [(at or 0.0) - first for at in own]
    stretch = (len(own) - 1) / rate / (last - first)
    return [((at or 0.0) - first) * stretch for at in own]


def _single(kind: str, truth: Truth) -> Content:
    return Content(kind, (generate("call", truth),))


# azure


def _azure(path: Path, most: int) -> list[Recorded]:
    faults = Faults(path)
    rows = csv.DictReader(io.StringIO(text_of(path)))
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    missing = [name for name in columns if name not in (rows.fieldnames or ())]
    if missing:
        faults.add("line 1", f"no column {', '.join(missing)}")
        faults.settle(0, "requests")
    read: list[tuple[float, int, int]] = []
    for row in rows:
        try:
            stamp, prompt, output = (row[name] for name in columns)
            # Seven decimals, of which Python reads six.
            at_s = datetime.fromisoformat(stamp[:26] + "+00:00").timestamp()
            problem = length_fault(int(prompt), int(output))
            read.append((at_s, int(prompt), int(output)))
        except (ValueError, TypeError) as e:
            problem = str(e)
        if problem:
            faults.add(f"line {rows.line_num}", problem)
    faults.settle(len(read), "requests")
    read.sort(key=lambda one: one[0])
    first = read[0][0]
    return [
        Recorded(
            _single("azure", Truth(prompt_tokens=prompt, output_tokens=output)),
            # Differences of the recorded times hold to 1 us; what is behind is noise.
            round(at_s - first, 6),
        )
        for at_s, prompt, output in read[:most]
    ]


# mooncake


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def _mooncake(path: Path, most: int) -> list[Recorded]:
    faults = Faults(path)
    rows: list[_MooncakeRow] = []
    for where, row in json_lines(path, _MooncakeRow, faults):
        problem = length_fault(row.input_length, row.output_length)
        if problem:
            faults.add(where, problem)
        else:
            rows.append(row)
    faults.settle(len(rows), "requests")
    rows.sort(key=lambda row: row.timestamp)
    widened = _Widened("mooncake", _MOONCAKE_BLOCK)
    return [
        Recorded(
            _single(
                "mooncake",
                Truth(
                    prompt_tokens=row.input_length,
                    output_tokens=row.output_length,
                    prefix=widened.prefix(row.hash_ids, row.input_length),
                ),
            ),
            (row.timestamp - rows[0].timestamp) / 1000,
        )
        for row in rows[:most]
    ]


# lmcache


class _LmcacheRow(msgspec.Struct):
    chat_id: str
    turn: int
    t: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def _lmcache(path: Path, most: int) -> list[Recorded]:
    """A chat is a chain of its turns. How long an answer took is not recorded, so nothing
    is known of the time between them, and none passes."""
    faults = Faults(path)
    chats: dict[str, list[_LmcacheRow]] = {}
    for where, row in json_lines(path, _LmcacheRow, faults):
        problem = length_fault(row.input_length, row.output_length)
        if problem:
            faults.add(where, problem)
        else:
            chats.setdefault(row.chat_id, []).append(row)
    faults.settle(len(chats), "chats")
    widened = _Widened("lmcache", _LMCACHE_BLOCK)
    return [Recorded(_chat(rows, widened)) for rows in islice(chats.values(), most)]


def _chat(rows: list[_LmcacheRow], widened: _Widened) -> Content:
    steps: list[Step] = []
    for row in sorted(rows, key=lambda row: row.turn):
        truth = Truth(
            prompt_tokens=row.input_length,
            output_tokens=row.output_length,
            prefix=widened.prefix(row.hash_ids, row.input_length),
        )
        parents = (steps[-1].id,) if steps else ()
        steps.append(generate(f"turn-{len(steps)}", truth, "turn", parents))
    return Content("lmcache", tuple(steps), revealed=True)


# claude_code


def _claude_code(path: Path, most: int) -> list[Recorded]:
    faults = Faults(path)
    read: list[Recorded] = []
    for where, session in json_lines(path, Session, faults):
        try:
            steps = session_steps(session)
        except ValueError as e:
            faults.add(where, str(e))
        else:
            read.append(Recorded(Content("claude_code", steps, revealed=True)))
        if len(read) == most:
            break  # A session's prompts are long: none is held that is not wanted.
    faults.settle(len(read), "sessions")
    return read


class _Widened:
    """A trace's block ids as ids of our smaller blocks. Equal ones are made once: the
    prompts of a trace repeat each other and are long."""

    def __init__(self, name: str, block_tokens: int) -> None:
        self._name = name
        self._each = block_tokens // BLOCK_TOKENS
        self._made: dict[int, tuple[int, ...]] = {}

    def prefix(self, ids: Sequence[int], prompt: int) -> tuple[int, ...]:
        """The ids as far as ``prompt`` tokens fill whole blocks of ours."""
        blocks = tuple(chain.from_iterable(map(self._blocks, ids)))
        return blocks[: prompt // BLOCK_TOKENS]

    def _blocks(self, id: int) -> tuple[int, ...]:
        found = self._made.get(id)
        if found is None:
            each = self._each
            found = self._made[id] = tuple(named_blocks(self._name, id * each, each))
        return found


_READERS: dict[TraceFormat, Callable[[Path, int], list[Recorded]]] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "lmcache": _lmcache,
    "claude_code": _claude_code,
}
