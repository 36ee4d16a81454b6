"""Journals: a recorded one in the simulator's loop, and the simulator's own."""

from __future__ import annotations

from pathlib import Path

from herasys_rt.core.commands import Command
from herasys_rt.core.events import Event
from herasys_rt.core.journal import JournalWriter
from herasys_rt.core.journal import replay as told_again
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.policy import PolicyNames
from herasys_rt.policies import DEFAULTS, build
from herasys_rt.sim.replay import replay
from tests.pure.core.test_kernel_journal import play as record
from tests.pure.sim.sim_lab import FakeMachines, play, toy_cluster
from tests.pure.sim.test_simulation import agent, rag


def test_a_journal_gives_identical_commands_in_the_simulators_loop(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    answers = record(path)
    assert sum(map(len, answers)) > 500
    assert replay(path, build) == answers


def test_a_simulation_is_a_journal_that_replays(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    log: list[tuple[float, Event, list[Command]]] = []
    jobs = [*(rag(f"r{i}", i / 10, f"k{i % 3}") for i in range(9)), agent("g", 0.2)]
    play(FakeMachines(toy_cluster(llms=2)), jobs, ordering="llf", log=log)
    names = PolicyNames("llf", *DEFAULTS[1:])
    with JournalWriter(path, KernelConfig(), names) as journal:
        for now, event, _ in log:
            journal.append(now, event)
    commands = [out for _, _, out in log]
    assert told_again(path, build) == commands
    assert replay(path, build) == commands
