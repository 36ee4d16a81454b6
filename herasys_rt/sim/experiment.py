"""One simulation from names: a workload on a cluster under a policy, from one seed."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from herasys_rt import policies
from herasys_rt.core.kernel import KernelConfig, new_state
from herasys_rt.policies.presets import Preset
from herasys_rt.sim.arrivals import Arrivals, ClosedLoop, OpenLoop
from herasys_rt.sim.fleet import Outage
from herasys_rt.sim.machines import Machines, faulty
from herasys_rt.sim.metrics import Summary, summary
from herasys_rt.sim.simulation import Simulation, Trace
from herasys_rt.sim.splitting import split
from herasys_rt.workloads.arrivals import Job, Workload

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
    """What is simulated. Deterministic: equal experiments leave equal records."""

    workload: Workload
    machines: Machines
    preset: Preset
    seed: int = 0
    load: Load = field(default_factory=Load)
    outages: tuple[Outage, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment came to."""

    experiment: Experiment
    summary: Summary
    trace: Trace


def jobs_of(experiment: Experiment) -> Sequence[Job]:
    """The jobs of an experiment, cut as its preset says. Errors: `ConfigError` with every
    number that cannot be."""
    load, workload = experiment.load, experiment.workload
    faults: list[str] = []
    if load.runs is not None and load.runs < 1:
        faults.append(f"runs are {load.runs}; at least 1 must come")
    if load.rate is not None and not 0 < load.rate < float("inf"):
        faults.append(f"the rate is {load.rate:g} runs/s; it must be above 0")
    if load.concurrency is not None and load.concurrency < 1:
        faults.append(f"concurrency is {load.concurrency}; at least 1 client must submit")
    if load.rate is not None and load.concurrency is not None:
        faults.append(
            f"a rate of {load.rate:g} runs/s and {load.concurrency} clients of a closed "
            "loop exclude each other"
        )
    if experiment.seed < 0:
        faults.append(f"the seed is {experiment.seed}; it is 0 or more")
    if faults:
        raise faulty("the load", faults)
    runs = load.runs or workload.default_runs
    rate = load.rate
    if rate is None and load.concurrency is None:
        rate = workload.default_rate
    jobs = workload.jobs(experiment.seed, runs, rate)
    preset = experiment.preset
    if preset.split > 1 or preset.partial_prefill:
        cut = [split(j, preset.split, partial_prefill=preset.partial_prefill) for j in jobs]
        return cut
    return jobs


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
    jobs = jobs_of(experiment)
    preset = experiment.preset
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
        progress=progress,
    )
    trace = simulation.run()
    told = summary(
        trace.records,
        trace.busy,
        events=trace.events,
        plan_s=trace.plan_s,
        wall_s=trace.wall_s,
    )
    return Outcome(experiment, told, trace)


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
