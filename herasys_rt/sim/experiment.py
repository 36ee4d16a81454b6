"""One simulation from names: a workload on a cluster under a policy, from one seed."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import msgspec

from herasys_rt import policies
from herasys_rt.core.kernel import KernelConfig, new_state
from herasys_rt.policies.presets import Preset
from herasys_rt.sim.arrivals import Arrivals, ClosedLoop, OpenLoop
from herasys_rt.sim.durations import Standalone
from herasys_rt.sim.fleet import Outage
from herasys_rt.sim.machines import Machines, faulty
from herasys_rt.sim.metrics import SLO, Summary, summary
from herasys_rt.sim.records import RunRecord
from herasys_rt.sim.simulation import Simulation, Trace
from herasys_rt.sim.splitting import split
from herasys_rt.sim.staging import staged
from herasys_rt.workloads.arrivals import Job, Workload
from herasys_rt.workloads.mixture import MIN_RATE

REUSE_TTL_S = {"llm.generate": 3600.0, "llm.decode": 3600.0, "http.search": 300.0}
"""How long results stay reusable: the runtime's own defaults."""


@dataclass(frozen=True, slots=True)
class Load:
    """How runs come: ``rate`` a second by Poisson, or ``concurrency`` clients with a
    think time. With neither, as the workload says itself."""

    runs: int | None = None
    rate: float | None = None
    concurrency: int | None = None
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is simulated. Deterministic: equal experiments leave equal records.

    ``slo`` is the factor of H_w within which a run counts towards the goodput.
    """

    workload: Workload
    machines: Machines
    preset: Preset
    seed: int = 0
    load: Load = field(default_factory=Load)
    outages: tuple[Outage, ...] = ()
    slo: float = SLO


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment came to."""

    experiment: Experiment
    summary: Summary
    trace: Trace


def jobs_of(experiment: Experiment) -> Sequence[Job]:
    """The jobs of an experiment, the same for every preset. Errors: `ConfigError` with
    every number that cannot be."""
    load, workload = experiment.load, experiment.workload
    faults: list[str] = []
    if load.runs is not None and load.runs < 1:
        faults.append(f"runs are {load.runs}; at least 1 must come")
    if load.rate is not None and not MIN_RATE <= load.rate < math.inf:
        faults.append(f"the rate is {load.rate:g} runs/s; it must be {MIN_RATE:g} or more")
    if load.concurrency is not None and load.concurrency < 1:
        faults.append(f"concurrency is {load.concurrency}; at least 1 client must submit")
    if load.rate is not None and load.concurrency is not None:
        faults.append(
            f"a rate of {load.rate:g} runs/s and {load.concurrency} clients of a closed "
            "loop exclude each other"
        )
    if experiment.seed < 0:
        faults.append(f"the seed is {experiment.seed}; it is 0 or more")
    if not 0 < experiment.slo < math.inf:
        faults.append(f"the SLO is {experiment.slo:g} times H; it is a number above 0")
    if faults:
        raise faulty("the load", faults)
    runs = load.runs or workload.default_runs
    rate = load.rate
    if rate is None and load.concurrency is None:
        rate = workload.default_rate
    return workload.jobs(experiment.seed, runs, rate)


def simulate(
    experiment: Experiment,
    *,
    spans: bool = False,
    checked: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Run an experiment. Errors: `ConfigError` for what does not fit together."""
    with _without_collector():
        return _simulate(experiment, spans, checked, progress)


def _simulate(
    experiment: Experiment,
    spans: bool,
    checked: bool,
    progress: Callable[[int], None] | None,
) -> Outcome:
    jobs = whole = jobs_of(experiment)
    preset = experiment.preset
    cuts = preset.split > 1 or preset.partial_prefill
    if cuts:
        jobs = [
            split(j, preset.split, partial_prefill=preset.partial_prefill) for j in jobs
        ]
    state = new_state(
        KernelConfig(
            fusion=preset.fusion,
            max_active_runs=len(jobs) + 1,
            reuse_ttl_s=REUSE_TTL_S,
        ),
        *policies.build(preset.policies),
    )
    simulation = Simulation(
        state,
        experiment.machines,
        jobs,
        _arrivals(experiment, jobs),
        outages=experiment.outages,
        eager=preset.eager,
        spans=spans,
        checked=checked,
        horizons=not cuts,
        progress=progress,
    )
    trace = simulation.run()
    if cuts:
        trace.records = _measured_whole(trace.records, whole, experiment.machines)
    told = summary(
        trace.records,
        trace.busy,
        events=trace.events,
        plan_s=trace.plan_s,
        wall_s=trace.wall_s,
        slo=experiment.slo,
    )
    return Outcome(experiment, told, trace)


def _measured_whole(
    records: Sequence[RunRecord], jobs: Sequence[Job], machines: Machines
) -> list[RunRecord]:
    """The records with the H_w of the jobs as they came: cutting makes a run faster
    alone too, and policies are held against one H."""
    alone = Standalone(machines)
    stages = machines.cluster.split
    alone_s = {job.id: alone.seconds(staged(job) if stages else job) for job in jobs}
    return [msgspec.structs.replace(r, alone_s=alone_s[r.run]) for r in records]


@contextlib.contextmanager
def _without_collector() -> Generator[None]:
    """Python's collector looks at everything alive again and again; a simulation keeps
    much alive, and neither it nor its kernel leaves cycles before its end."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _arrivals(experiment: Experiment, jobs: Sequence[Job]) -> Arrivals:
    load, workload = experiment.load, experiment.workload
    clients = load.concurrency
    if clients is None and load.rate is None:
        clients = workload.closed_loop_concurrency
    if clients is None:
        return OpenLoop(jobs)
    return ClosedLoop(jobs, clients, load.think_s)
