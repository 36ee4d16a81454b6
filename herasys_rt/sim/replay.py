"""A recorded journal in the simulator's loop: the same events, the same commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from herasys_rt.core.commands import Command
from herasys_rt.core.events import Event
from herasys_rt.core.journal import read_header, read_journal
from herasys_rt.core.kernel import handle, new_state
from herasys_rt.core.policy import Policies, PolicyNames
from herasys_rt.sim.agenda import Agenda


def replay(
    path: Path | str, build: Callable[[PolicyNames], Policies]
) -> list[list[Command]]:
    """The commands that the kernel gives for each event of a journal, as time passes.

    ``build`` makes policies of names (`herasys_rt.policies.build`). Errors:
    `JournalError`, and what ``build`` raises for a name it does not know.
    """
    header = read_header(path)
    state = new_state(header.config, *build(header.policies))
    agenda = Agenda()
    answers: list[list[Command]] = []

    def tell(event: Event) -> None:
        answers.append(handle(state, event, agenda.now))

    for now, event in read_journal(path):
        agenda.at(now, lambda e=event: tell(e))
    agenda.run()
    return answers
