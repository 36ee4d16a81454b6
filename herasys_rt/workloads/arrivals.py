"""What a workload is: runs that arrive, and what the hardware will find out about them.

A `Job` is one run with everything that a simulation must know and a scheduler must not:
the lengths that no prediction sees. Nothing here draws, reads or decides anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

BLOCK_TOKENS = 16
"""Tokens of one KV block: what prefix caches hold and `Truth.prefix` counts in."""


class Truth(msgspec.Struct, frozen=True):
    """What the modelled hardware will find out when it executes one step.

    An LLM call has ``prompt_tokens`` and ``output_tokens``; a batch verb (embedding,
    rerank) works on ``items`` with ``tokens`` in all; a step with ``seconds`` takes
    exactly that long, whatever else is set (search, tools).

    ``prefix`` names the whole `BLOCK_TOKENS`-token blocks of the prompt in order, and
    ``produced`` those that the output goes on to fill: equal ids are equal tokens with
    equal tokens before them, so two prompts share what their ids have in common from the
    first on. A prompt may have more blocks than are named (a trace that counts in larger
    ones, a workload that says nothing about content): those are shared with nothing.
    ``cached_tokens`` at the head of the prompt are taken as cached on whatever instance
    serves it, before any cache is asked. ``prompt_key`` names the content of the step:
    steps of one operator with equal keys do equal work and may fuse;
    ``""`` is equal to nothing.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    items: int = 1
    tokens: int = 0
    seconds: float | None = None
    prefix: tuple[int, ...] = ()
    prompt_key: str = ""
    produced: tuple[int, ...] = ()
    cached_tokens: int = 0


class Step(msgspec.Struct, frozen=True):
    """One node of a run.

    ``parents`` are ids of steps that stand before this one in the job. ``after_s`` is
    the time between the end of the last parent (of a first step: the run's arrival) and
    the moment the step is known: a tool that runs outside the cluster; 0 in a job whose
    graph is known on arrival. ``model`` None asks for the resource's default pool. Steps
    of one kind of job with equal labels have lengths of one distribution.
    """

    id: str
    verb: str
    resource: str
    operator: str
    truth: Truth = Truth()
    parents: tuple[str, ...] = ()
    after_s: float = 0.0
    model: str | None = None
    label: str = ""


class Job(msgspec.Struct, frozen=True):
    """One run: its steps in topological order.

    ``arrival_s`` counts from the start; None leaves it to a closed loop, which starts the
    jobs in order, each when a client is free. With ``revealed`` a step becomes known only
    when its parents are complete (an agent); without, the whole graph is known on arrival.
    ``duplicate_of`` is the id of the earlier job whose content this one repeats.
    """

    id: str
    kind: str
    steps: tuple[Step, ...]
    arrival_s: float | None = None
    revealed: bool = False
    tenant: str = "default"
    duplicate_of: str = ""


class Workload(Protocol):
    """A named source of jobs."""

    @property
    def name(self) -> str:
        """What the workload is called in reports; jobs' ids begin with it."""
        ...

    @property
    def default_runs(self) -> int:
        """How many runs are asked for when nobody says."""
        ...

    @property
    def default_rate(self) -> float | None:
        """Runs in a second; None where there is a closed loop or a trace's own times."""
        ...

    @property
    def closed_loop_concurrency(self) -> int | None:
        """Clients of a closed loop; None where runs arrive at times of their own."""
        ...

    def jobs(self, seed: int, runs: int, rate: float | None) -> Sequence[Job]:
        """``runs`` jobs in order of arrival; the same arguments give equal jobs.

        ``rate`` in runs a second gives Poisson arrivals, or a trace's own brought to that
        mean rate, and changes nothing but ``arrival_s``; without one a trace keeps its
        times and every other ``arrival_s`` is None. Errors: `ConfigError` for a number
        of runs, a rate or a seed that cannot be.
        """
        ...
