"""What a simulation comes to: latencies, throughput, stretches, shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from herasys_rt.figures import percentile
from herasys_rt.sim.records import RunRecord

SLO = 5.0
"""Factor of H_w within which a run is good, unless another one is asked for."""


class Summary(msgspec.Struct, frozen=True):
    """One simulation in numbers. Latencies in seconds, over the runs that succeeded.

    ``req95`` and ``req99`` are the factors of H_w within which 95 and 99 % of all runs
    are served (HexAGenT section 4); a run that did not succeed counts as infinitely
    late. ``goodput_rps`` counts the runs served within ``slo`` times H_w.
    ``utilisation`` is the busy share of the busiest pool over the time from the
    first arrival to the last end, ``utilisations`` that of each. ``fused_share`` is the
    share of nodes that joined or reused other work. ``plan_ms_mean`` is the wall-clock
    time of one call of the kernel, the only figure that repeats do not repeat, with
    ``wall_s``.
    """

    runs: int
    succeeded: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    throughput_rps: float
    req95: float
    req99: float
    goodput_rps: float
    utilisation: float
    utilisations: dict[str, float]
    fused_share: float
    plan_ms_mean: float
    events: int
    makespan_s: float
    wall_s: float


def summary(
    records: Sequence[RunRecord],
    busy: Mapping[str, float],
    *,
    events: int,
    plan_s: float,
    wall_s: float,
    slo: float = SLO,
) -> Summary:
    """The summary of records; ``busy`` holds seconds per pool and instance of it."""
    done = [record for record in records if record.status == "succeeded"]
    latencies = [record.latency_s for record in done]
    first = min([record.arrival_s for record in records], default=0.0)
    last = max([record.finish_s for record in records], default=0.0)
    makespan_s = last - first
    shares = {
        pool: seconds / makespan_s if makespan_s > 0 else 0.0
        for pool, seconds in busy.items()
    }
    nodes = sum([record.nodes for record in records])
    shared = sum([record.fused + record.reused for record in records])
    return Summary(
        runs=len(records),
        succeeded=len(done),
        mean_s=math.fsum(latencies) / len(latencies) if latencies else math.nan,
        p50_s=percentile(latencies, 50),
        p95_s=percentile(latencies, 95),
        p99_s=percentile(latencies, 99),
        throughput_rps=len(done) / makespan_s if makespan_s > 0 else math.nan,
        req95=required(records, 0.95),
        req99=required(records, 0.99),
        goodput_rps=goodput_rps(records, slo),
        utilisation=max(shares.values(), default=0.0),
        utilisations=shares,
        fused_share=shared / nodes if nodes else 0.0,
        plan_ms_mean=1e3 * plan_s / events if events else 0.0,
        events=events,
        makespan_s=makespan_s,
        wall_s=wall_s,
    )


def required(records: Sequence[RunRecord], share: float) -> float:
    """Req: the ceil(share * N)-th smallest C_w / H_w; NaN of none, infinite where too
    many runs did not succeed."""
    if not records:
        return math.nan
    ranked = sorted([_stretch(record) for record in records])
    return ranked[max(1, math.ceil(share * len(ranked) - 1e-9)) - 1]


def attainment(records: Sequence[RunRecord], alphas: Sequence[float]) -> list[float]:
    """The share of all runs that are served within each factor of H_w; a run exactly at
    the boundary is."""
    ranked = [_stretch(record) for record in records]
    return [sum([s <= alpha for s in ranked]) / len(ranked) for alpha in alphas]


def goodput_rps(records: Sequence[RunRecord], alpha: float) -> float:
    """Runs a second that are served within ``alpha`` times H_w."""
    first = min([record.arrival_s for record in records], default=0.0)
    last = max([record.finish_s for record in records], default=0.0)
    if last <= first:
        return math.nan
    (share,) = attainment(records, [alpha])
    return share * len(records) / (last - first)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, lower, upper) of one figure over seeds: the interval is the central one of
    the values themselves, from their 2.5th to their 97.5th percentile."""
    return percentile(values, 50), percentile(values, 2.5), percentile(values, 97.5)


def _stretch(record: RunRecord) -> float:
    return record.stretch if record.status == "succeeded" else math.inf
