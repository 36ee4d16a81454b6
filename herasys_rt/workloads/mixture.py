"""The workload that is made of sources: shares, duplicates, arrivals."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from herasys_rt.errors import ConfigError
from herasys_rt.workloads.arrivals import Job
from herasys_rt.workloads.draws import Streams, Zipf, poisson_times
from herasys_rt.workloads.sources import Content, Source

MAX_RUNS = 200_000
"""Runs of one call of `Workload.jobs`: all are held in memory."""
MIN_RATE = 1e-6
"""Runs a second: with fewer, times of arrival are too long to add what a step takes."""


class Part(msgspec.Struct, frozen=True):
    """A source and its share of the runs, relative to the other parts' weights."""

    source: Source
    weight: float = 1.0


class Duplicates(msgspec.Struct, frozen=True):
    """With probability ``share`` a run repeats an earlier one of its part.

    Which: rank k of the part's distinct runs in the order they first came, by Zipf's law
    with ``exponent``. So early content is the hot content.
    """

    share: float = 0.0
    exponent: float = 1.0


class Mixture(msgspec.Struct, frozen=True):
    """A workload of one or several parts; see `arrivals.Workload`.

    Which part, which content, whether a duplicate and when are drawn from streams of
    their own. Parts have different kinds.
    """

    name: str
    parts: tuple[Part, ...]
    duplicates: Duplicates = Duplicates()
    default_runs: int = 300
    default_rate: float | None = None
    closed_loop_concurrency: int | None = None

    def jobs(self, seed: int, runs: int, rate: float | None) -> Sequence[Job]:
        """See `Workload.jobs`."""
        check_runs(self.name, runs)
        check_rate(self.name, rate)
        streams = Streams(seed)
        arrivals = arrival_times(runs, rate, streams)
        edges = _edges(self.parts)
        deals = [_Deal(part.source, self.duplicates, streams) for part in self.parts]
        kinds = streams.of("parts")
        jobs: list[Job] = []
        for number, arrival_s in enumerate(arrivals):
            spot = bisect_right(edges, float(kinds.random()) * edges[-1])
            id = f"{self.name}-{number}"
            content, first = deals[min(spot, len(deals) - 1)].next(id)
            jobs.append(job_of(id, content, arrival_s, first))
        return jobs


class _Deal:
    """The runs of one part, own ones and repeated ones."""

    def __init__(self, source: Source, duplicates: Duplicates, streams: Streams) -> None:
        self._source = source
        self._share = duplicates.share
        self._zipf = Zipf(duplicates.exponent)
        self._streams = streams.below(source.kind)
        self._drawn = 0
        self._distinct: list[tuple[str, Content]] = []

    def next(self, id: str) -> tuple[Content, str]:
        """The content of run ``id``, and the id of the run whose content it repeats."""
        # Drawn also where it is not used: the n-th run of a part is the same at any share.
        fresh = self._source.content(f"{self._source.kind}/{self._drawn}", self._streams)
        self._drawn += 1
        chance = self._streams.of("duplicates")
        repeats = float(chance.random()) < self._share
        rank = self._zipf.rank(max(len(self._distinct), 1), chance)
        if repeats and self._distinct:
            first, content = self._distinct[rank]
            return content, first
        self._distinct.append((id, fresh))
        return fresh, ""


def job_of(id: str, content: Content, arrival_s: float | None, first: str = "") -> Job:
    """A run of this content; ``first`` is the run it repeats."""
    return Job(
        id=id,
        kind=content.kind,
        steps=content.steps,
        arrival_s=arrival_s,
        revealed=content.revealed,
        duplicate_of=first,
    )


def arrival_times(
    runs: int, rate: float | None, streams: Streams
) -> Sequence[float | None]:
    """Poisson arrivals in seconds, or None for each run where there is no rate."""
    if rate is None:
        return [None] * runs
    return poisson_times(runs, rate, streams.of("arrivals"))


def check_runs(name: str, runs: int) -> None:
    """Errors: `ConfigError` for a number of runs that cannot be."""
    if not 1 <= runs <= MAX_RUNS:
        raise ConfigError(
            f"workload {name!r} was asked for {runs} runs, and it gives 1 to {MAX_RUNS:,}",
            hint="Ask for a number of runs in that range.",
        )


def check_rate(name: str, rate: float | None) -> None:
    """Errors: `ConfigError` for a rate that cannot be."""
    if rate is not None and not MIN_RATE <= rate < math.inf:
        raise ConfigError(
            f"workload {name!r} was given a rate of {rate:g} runs/s, which must be "
            f"{MIN_RATE:g} or more",
            hint="Give such a rate, or none for a closed loop.",
        )


def _edges(parts: Sequence[Part]) -> list[float]:
    """Where each part's share of [0, total) ends."""
    edges: list[float] = []
    for part in parts:
        edges.append((edges[-1] if edges else 0.0) + part.weight)
    return edges
