"""The machines of a simulation while it runs: who is up, what is on its way to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from herasys_rt.core.events import Event, InstanceDown, InstanceUp, PoolFailed
from herasys_rt.errors import ErrorInfo, InternalError
from herasys_rt.sim.agenda import Agenda
from herasys_rt.sim.instances import Instance, Outcomes, Work
from herasys_rt.sim.machines import LLM, Machine, Machines, faulty

EAGER_SLOTS = 1_000_000
"""What the kernel is told of a language model where calls need not wait for a free one."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A machine is lost at ``at_s`` and comes back, empty, at ``back_s`` (None: never)."""

    machine: str
    at_s: float
    back_s: float | None = None


class Fleet:
    """Brings machines up, loses them, and hands them work.

    ``tell`` takes what the kernel is told of it; outcomes of work go to ``outcomes``. Work
    reaches its instance after what the control path takes (`Machine.lead_s`). ``eager``
    is as in `Preset`.

    Errors: `ConfigError` with every outage that cannot be.
    """

    def __init__(
        self,
        machines: Machines,
        outages: Sequence[Outage],
        agenda: Agenda,
        outcomes: Outcomes,
        tell: Callable[[Event], None],
        *,
        eager: bool = False,
    ) -> None:
        _check(machines, outages)
        self._eager = eager
        self.instances: dict[str, Instance] = {}
        self._machines = machines
        self._outages = outages
        self._agenda = agenda
        self._outcomes = outcomes
        self._tell = tell
        self._incarnations: dict[str, int] = {}
        self._machine: dict[str, Machine] = {}
        self._spent_s: dict[str, float] = {}
        self._lead_s: dict[tuple[str, str], float] = {}
        self._coming: dict[tuple[str, int, int], Work] = {}

    def begin(self) -> None:
        """Bring everything up, and plan what will be lost."""
        for machine in self._machines.machines:
            self._up(machine)
        for outage in self._outages:
            self._plan(outage)

    def start(self, name: str, works: list[Work]) -> None:
        """Send work to an instance that is up."""
        lead_s = self._lead_s[(name, works[0].verb)]
        if lead_s <= 0:
            self.instances[name].start(works)
            return
        for work in works:
            self._coming[(name, work.flight, work.attempt)] = work
        self._agenda.at(self._agenda.now + lead_s, lambda: self._arrive(name, works))

    def abort(self, name: str, flight: int, attempt: int) -> None:
        """Stop an item, also one that is still on its way."""
        work = self._coming.pop((name, flight, attempt), None)
        instance = self.instances.get(name)
        if work is not None:
            now = self._agenda.now
            self._agenda.at(now, lambda: self._outcomes.aborted(name, work))
        elif instance is not None:
            instance.abort(flight, attempt)

    def busy(self) -> dict[str, float]:
        """Busy seconds so far per pool and instance of it."""
        spent = dict(self._spent_s)
        for name, instance in self.instances.items():
            machine = self._machine[name].name
            spent[machine] = spent.get(machine, 0.0) + instance.busy_s
        return {
            pool.name: sum([spent.get(m.name, 0.0) for m in self._machines.of(pool.name)])
            / pool.instances
            for pool in self._machines.cluster.pools
        }

    def validate(self) -> None:
        """Errors: `InternalError` when an instance has broken a promise of its own."""
        for instance in self.instances.values():
            fault = instance.fault()
            if fault is not None:
                raise InternalError(fault, hint="This is a fault of the simulator.")

    def _arrive(self, name: str, works: list[Work]) -> None:
        here: list[Work] = []
        for work in works:
            if self._coming.pop((name, work.flight, work.attempt), None) is not None:
                here.append(work)
        instance = self.instances.get(name)
        if here and instance is not None:
            instance.start(here)

    def _up(self, machine: Machine) -> None:
        number = self._incarnations.get(machine.name, 0) + 1
        self._incarnations[machine.name] = number
        name = machine.name if number == 1 else f"{machine.name}#{number}"
        self._machine[name] = machine
        for verb in machine.pool.verbs:
            self._lead_s[(name, verb)] = machine.lead_s(verb)
        self.instances[name] = self._machines.instance(
            machine, name, self._agenda, self._outcomes
        )
        pool = machine.pool
        slots = EAGER_SLOTS if self._eager and pool.resource == LLM else pool.slots
        self._tell(InstanceUp(name, pool.name, slots))

    def _plan(self, outage: Outage) -> None:
        machine = next(m for m in self._machines.machines if m.name == outage.machine)
        self._agenda.at(outage.at_s, lambda: self._down(machine))
        if outage.back_s is not None:
            self._agenda.at(outage.back_s, lambda: self._up(machine))

    def _down(self, machine: Machine) -> None:
        name = next(n for n in self.instances if self._machine[n] is machine)
        instance = self.instances.pop(name)
        instance.lose()
        spent_s = self._spent_s.get(machine.name, 0.0)
        self._spent_s[machine.name] = spent_s + instance.busy_s
        pool = machine.pool.name
        if self._hopeless(pool):
            error = ErrorInfo(
                "no_instance",
                f"every instance of pool {pool} is lost for good",
                "Let one of them come back.",
            )
            self._tell(PoolFailed(pool, error))
        self._tell(InstanceDown(name, "an outage was simulated"))

    def _hopeless(self, pool: str) -> bool:
        """Whether no instance of a pool is up and none will be."""
        if any(self._machine[name].pool.name == pool for name in self.instances):
            return False
        names = {machine.name for machine in self._machines.of(pool)}
        now = self._agenda.now
        return not any(
            outage.machine in names and outage.back_s is not None and outage.back_s >= now
            for outage in self._outages
        )


def _check(machines: Machines, outages: Sequence[Outage]) -> None:
    known = [machine.name for machine in machines.machines]
    faults: list[str] = []
    back: dict[str, float | None] = {}
    for outage in sorted(outages, key=lambda o: (o.machine, o.at_s)):
        name, at_s, back_s = outage.machine, outage.at_s, outage.back_s
        if name not in known:
            faults.append(f"there is no machine {name!r}; there are {', '.join(known)}")
        if not at_s >= 0:
            faults.append(f"{name} is lost at {at_s:g} s")
        if back_s is not None and not back_s > at_s:
            faults.append(f"{name} is lost at {at_s:g} s and back at {back_s:g} s")
        if name in back:
            before = back[name]
            if before is None or before >= at_s:
                faults.append(f"{name} is lost at {at_s:g} s while it is away already")
        back[name] = back_s
    if faults:
        raise faulty("the list of outages", faults)
