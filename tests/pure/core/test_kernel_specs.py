"""Workflows: known while they are needed, remembered within a bound."""

from __future__ import annotations

from herasys_rt.core.commands import Command, ForgetSpec, StartBatch
from herasys_rt.core.events import NodesRevealed, RunSubmitted, SpecRegistered
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.graph.spec import WorkflowSpec
from tests.pure.core.kernel_lab import (
    Lab,
    ended,
    inline,
    item,
    items,
    only,
    piece,
    refused,
    spec_of,
)

FEW = KernelConfig(remembered_specs=2)


def answer(name: str) -> WorkflowSpec:
    """A workflow of its own that computes what its likes compute."""
    return spec_of("a llm", name=name)


def forgotten(commands: list[Command]) -> list[str]:
    return [command.spec_id for command in only(commands, ForgetSpec)]


def register(lab: Lab, *names: str) -> list[str]:
    """Register workflows; the ids of those forgotten for them."""
    return [
        spec_id
        for name in names
        for spec_id in forgotten(lab.send(SpecRegistered(answer(name))))
    ]


def submit(lab: Lab, run_id: str, spec: WorkflowSpec) -> list[Command]:
    """Submit without registering."""
    return lab.send(RunSubmitted(run_id, spec.id, "client", "tenant", inline(b"in")))


def test_thousands_of_workflows_leave_a_bounded_table_and_an_old_one_works_again() -> None:
    lab = Lab()
    lab.validating = False
    sizes: list[int] = []
    for i in range(5_000):
        out = lab.submit(f"r{i}", answer(f"w{i}"), f"salt-{i}")
        lab.finish(item(out))
        sizes.append(len(lab.state.plans))
        lab.log.clear()
    assert max(sizes) == KernelConfig().remembered_specs
    assert refused(submit(lab, "old", answer("w0"))).code == "unknown_spec"
    end = ended(lab.finish(item(lab.submit("old", answer("w0"), "another"))))
    assert end.status == "succeeded"


def test_the_one_used_longest_ago_is_forgotten_first() -> None:
    lab = Lab(FEW)
    register(lab, "one", "two")
    lab.finish(item(submit(lab, "r", answer("one"))))
    assert register(lab, "three") == [answer("two").id]
    assert register(lab, "one") == []
    assert register(lab, "four") == [answer("three").id]


def test_a_workflow_at_work_is_not_forgotten_and_then_it_may_be() -> None:
    lab = Lab(FEW)
    started = item(lab.submit("r", answer("mine")))
    assert register(lab, "a", "b", "c") == [answer("a").id, answer("b").id]
    assert answer("mine").id in lab.state.plans
    lab.finish(started)
    assert register(lab, "d") == [answer("mine").id]


def test_a_workflow_whose_work_others_joined_outlives_its_run() -> None:
    lab = Lab(FEW)
    lab.submit("first", answer("mine"))
    lab.submit("second", answer("twin"))
    lab.cancel("first")
    assert answer("mine").id not in register(lab, "a", "b", "c")
    lab.down("llm-1")
    (again,) = items(lab.up("llm-2", "llm"))
    assert again.spec_id == answer("mine").id, "it moves with what it was launched for"
    assert ended(lab.finish(again)).run_id == "second"


def test_when_everything_is_needed_nothing_is_forgotten_and_the_next_is_known() -> None:
    lab = Lab(KernelConfig(remembered_specs=8), slots=100)
    for i in range(30):
        out = lab.submit(f"r{i}", answer(f"w{i}"), f"salt-{i}")
        assert forgotten(lab.log) == [] and len(only(out, StartBatch)) == 1
    lab.finish_all()
    assert len(register(lab, "x", "y")) == 31 - 7, "they go when the next sweep comes"


def test_a_fragment_of_a_forgotten_workflow_may_be_revealed_again() -> None:
    lab = Lab(FEW)
    lab.submit_agent("g")
    spec = answer("step")
    unknown = piece(lab.send(NodesRevealed("g", 0, spec.id, inline(b"in"))))
    assert unknown.error is not None and unknown.error.code == "unknown_spec"
    started = item(lab.reveal("g", 0, spec))
    assert piece(lab.finish(started)).status == "succeeded"
    (record,) = ended(lab.close("g")).nodes
    assert (record.fragment, record.state) == (0, "succeeded")
