"""The priority by eq. 3 that is kept with each flight that waits for its turn."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from herasys_rt.core import ranks
from herasys_rt.core.merged_priority import Member, MergedPriority, Weights
from herasys_rt.core.state import Flight, Node, Run
from herasys_rt.errors import InternalError
from herasys_rt.policies.ordering import Srtf, WorkflowFcfs
from tests.pure.core.kernel_lab import Lab, spec_of
from tests.pure.core.kernel_machine import KernelMachine
from tests.pure.core.test_kernel_machine import CALM

ANSWER = spec_of("a llm")
WEIGHTS = Weights()


class Joint(WorkflowFcfs):
    """Orders by arrival, and tells terms that differ from run to run."""

    weights = WEIGHTS

    def terms(self, node: Node, run: Run) -> Member:
        number = run.seq
        phi, heavy, short = number % 4 / 4, number % 3 == 0, number % 5 == 0
        return Member(1 / (1 + number % 7), phi, heavy, run.tenant, short)


class JointSrtf(Srtf):
    """Terms that change with the progress of runs, as keys do."""

    weights = WEIGHTS

    def terms(self, node: Node, run: Run) -> Member:
        return Member(1 / (1 + self.key(node, run)), 0.5, False, run.tenant, False)


def only_queued(lab: Lab) -> Flight:
    (flight,) = [f for f in lab.state.flights.values() if f.state == "queued"]
    return flight


def score(flight: Flight, contested: bool = False) -> float:
    assert flight.merged is not None
    return flight.merged.value(contested).score


def test_members_add_up_while_their_flight_waits_and_take_along_what_they_brought() -> None:
    lab = Lab(ordering=Joint())
    lab.submit("holds the slot", ANSWER, "other")
    for number in range(6):
        lab.submit(f"r{number}", ANSWER)
    flight = only_queued(lab)
    six, contested = score(flight), score(flight, contested=True)
    assert contested < six  # of one tenant four count while another one waits
    lab.cancel("r2")
    assert score(flight) < six
    lab.submit("again", ANSWER)
    lab.finish(lab.running()[0])
    assert flight.merged is None and flight.state == "starting"


def test_a_flight_that_is_tried_again_has_the_priority_of_who_is_left() -> None:
    lab = Lab(ordering=Joint())
    lab.submit("r1", ANSWER)
    lab.submit("r2", ANSWER)
    lab.down("llm-1")
    flight = only_queued(lab)
    assert flight.merged is not None and len(flight.merged) == 2
    lab.cancel("r1")
    assert len(flight.merged) == 1


def test_terms_follow_the_progress_of_runs() -> None:
    lab = Lab(ordering=JointSrtf())
    spec = spec_of("q embed", "a llm", "b llm q", outputs="a b")
    lab.submit("holds the slot", ANSWER, "other")
    lab.submit("r1", spec)
    flight = only_queued(lab)
    before = score(flight)
    embedding = [i for i in lab.running() if lab.where(i) == "embed-1"]
    lab.finish(embedding[0])  # `validate` holds what is kept against what is told now
    assert score(flight) >= before


def test_an_ordering_without_terms_keeps_none() -> None:
    lab = Lab()
    lab.submit("holds the slot", ANSWER, "other")
    lab.submit("r1", ANSWER)
    assert lab.state.joint is None and only_queued(lab).merged is None


class JointMachine(KernelMachine):
    """The kernel's machine, driven by an ordering with terms."""

    ordering = Joint


FEW = settings(CALM, max_examples=30)


def test_what_is_kept_is_that_of_the_members_under_any_sequence_of_events() -> None:
    run_state_machine_as_test(JointMachine, settings=FEW)


@pytest.mark.parametrize("forgotten", ["put", "remove"])
def test_the_machine_finds_a_member_that_is_forgotten(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forgotten == "put":
        monkeypatch.setattr(ranks, "_put", lambda *_: None)
    else:
        monkeypatch.setattr(MergedPriority, "remove", lambda *_: None)
    with pytest.raises((AssertionError, InternalError)):
        run_state_machine_as_test(JointMachine, settings=settings(FEW, max_examples=200))
