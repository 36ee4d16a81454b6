"""Modelled instances on a bench: times one can count on one's fingers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from herasys_rt import policies
from herasys_rt.core.commands import Command
from herasys_rt.core.events import Event
from herasys_rt.core.kernel import KernelConfig, new_state
from herasys_rt.core.policy import PolicyNames
from herasys_rt.costs.batch import LinearBatch
from herasys_rt.costs.service import ServiceModel
from herasys_rt.costs.steps import attended_pairs
from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.arrivals import Arrivals, OpenLoop
from herasys_rt.sim.clusters import Cluster, Group, PoolShape
from herasys_rt.sim.fleet import Outage
from herasys_rt.sim.instances import Work
from herasys_rt.sim.machines import Kind, Machines
from herasys_rt.sim.simulation import Simulation, Trace
from herasys_rt.workloads.arrivals import Job, Step, Truth


@dataclass(frozen=True)
class LinearSteps:
    """Iterations that are linear in everything: closed forms are exact."""

    kv_capacity_tokens: int = 10_000
    kv_bytes_per_token: int = 1_000
    base_s: float = 0.01
    prefill_token_s: float = 1e-4
    pair_s: float = 0.0
    sequence_s: float = 1e-3
    context_s: float = 1e-6

    def prefill_s(self, new: int, cached: int = 0) -> float:
        return self.mixed_s(new, attended_pairs(new, cached), 0, 0)

    def decode_s(self, batch: int, context: int) -> float:
        return self.mixed_s(0, 0, batch, context)

    def mixed_s(self, prefill: int, attended: int, batch: int, context: int) -> float:
        if not prefill and not batch:
            return 0.0
        prompts = self.prefill_token_s * prefill + self.pair_s * attended
        return self.base_s + prompts + self.sequence_s * batch + self.context_s * context


@dataclass
class Desk:
    """`Outcomes` that writes down what it is told, with the time."""

    agenda: Agenda
    ends: list[tuple[float, str, int]] = field(default_factory=list)

    def finished(self, instance: str, work: Work) -> None:
        self.ends.append((self.agenda.now, "finished", work.flight))

    def refused(self, instance: str, work: Work, problem: str) -> None:
        self.ends.append((self.agenda.now, "refused", work.flight))

    def aborted(self, instance: str, work: Work) -> None:
        self.ends.append((self.agenda.now, "aborted", work.flight))

    def times(self) -> dict[int, float]:
        return {flight: at for at, what, flight in self.ends if what == "finished"}


def call(flight: int, prompt: int, output: int, **more: object) -> Work:
    """A call of a language model as an instance gets it."""
    truth = Truth(prompt_tokens=prompt, output_tokens=output, **more)  # type: ignore[arg-type]
    return Work(flight, 1, "llm.generate", truth)


SERVICES: dict[str, ServiceModel] = {
    "llm": ServiceModel("llm", LinearSteps(), {}),
    "embedding": ServiceModel("embedding", None, {"embed": LinearBatch(0.01, 0.001, 1e-5)}),
    "rerank": ServiceModel("rerank", None, {"rerank": LinearBatch(0.02, 0.002)}),
    "retrieval": ServiceModel("retrieval", None, {"pg.search": LinearBatch(0.001)}),
    "search": ServiceModel("search", None, {"http.search": LinearBatch(0.4)}),
    "python": ServiceModel("python", None, {"python.call": LinearBatch(0.1)}),
}


class FakeMachines(Machines):
    """Machines whose times are those of `SERVICES`, or given by pool."""

    def __init__(self, cluster: Cluster, services: dict[str, ServiceModel] | None = None):
        self._given = services or {}
        super().__init__(cluster, "toy")

    def _kind(self, pool: PoolShape, group: Group) -> Kind:
        return Kind(self._given.get(pool.name, SERVICES[pool.resource]))


class UnequalMachines(Machines):
    """A prefill pool with one machine per GPU name, each with its own times, and a decode
    pool of the first kind."""

    def __init__(self, steps: dict[str, LinearSteps], slots: int = 256):
        self._steps = steps
        groups = tuple(Group(1, gpu) for gpu in steps)
        prefill = PoolShape("prefill", "llm", groups, "prefill")
        decode = PoolShape("decode", "llm", groups[:1], "decode", slots=slots)
        super().__init__(Cluster("unequal", (prefill, decode), "toy"), "toy")

    def _kind(self, pool: PoolShape, group: Group) -> Kind:
        return Kind(ServiceModel("llm", self._steps[group.gpu], {}))


def toy_cluster(
    *,
    llms: int = 1,
    slots: int = 4,
    budget: int = 256,
    embedders: int = 1,
    batch_limit: int = 4,
    searches: int = 2,
    split: bool = False,
) -> Cluster:
    """A small one of everything."""
    whole = PoolShape("llm", "llm", (Group(llms),), token_budget=budget, slots=slots)
    prefill = PoolShape("prefill", "llm", (Group(llms),), "prefill")
    language = (prefill, replace(whole, name="decode", role="decode"))
    return Cluster(
        "toy",
        (
            *(language if split else (whole,)),
            PoolShape(
                "embedding", "embedding", (Group(embedders),), batch_limit=batch_limit
            ),
            PoolShape("rerank", "rerank", batch_limit=batch_limit),
            PoolShape("retrieval", "retrieval", slots=2),
            PoolShape("search", "search", slots=searches),
            PoolShape("python", "python", slots=2),
        ),
        "toy",
    )


def step(id: str, kind: str, *parents: str, after_s: float = 0.0, **truth: object) -> Step:
    """``step("a", "llm", "s", prompt_tokens=9)``: kinds as the resources."""
    verb = {
        "llm": "llm.generate",
        "embedding": "embed",
        "rerank": "rerank",
        "retrieval": "pg.search",
        "search": "http.search",
        "python": "python.call",
    }[kind]
    told = Truth(**truth)  # type: ignore[arg-type]
    return Step(id, verb, kind, f"{kind}@1", told, parents, after_s, label=id)


def single_server(jobs: list[Job]) -> tuple[Cluster, list[Job]]:
    """A cluster of one tool slot, and the jobs as they are."""
    return Cluster("one", (PoolShape("python", "python", slots=1),), "toy"), jobs


def play(
    machines: Machines,
    jobs: Sequence[Job],
    arrivals: Arrivals | None = None,
    *,
    ordering: str = "workflow_fcfs",
    placement: str = "least_loaded",
    outages: Sequence[Outage] = (),
    eager: bool = False,
    checked: bool = True,
    config: KernelConfig | None = None,
    log: list[tuple[float, Event, list[Command]]] | None = None,
) -> tuple[Trace, Simulation]:
    """Simulate jobs, everything checked after every event."""
    names = PolicyNames(ordering, placement, policies.DEFAULTS.batching)
    simulation = Simulation(
        new_state(config or KernelConfig(), *policies.build(names)),
        machines,
        jobs,
        arrivals or OpenLoop(jobs),
        outages=outages,
        eager=eager,
        spans=True,
        checked=checked,
        listen=None if log is None else lambda now, e, out: log.append((now, e, out)),
    )
    return simulation.run(), simulation


def renamed(job: Job, id: str, arrival_s: float | None = None) -> Job:
    """The same job under another name."""
    return replace(job, id=id, arrival_s=arrival_s)
