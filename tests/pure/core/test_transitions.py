import pytest

from herasys_rt.core.plan import plan_of
from herasys_rt.core.state import Fragment, Node, Run
from herasys_rt.core.transitions import ALLOWED, FINISHED, move, story
from herasys_rt.errors import InternalError
from tests.pure.core.kernel_lab import inline, spec_of


def fresh() -> Node:
    plan, inputs = plan_of(spec_of("a llm")), inline(b"")
    run = Run("r1", "client", "tenant", inputs, 0, 0.5, 0)
    return Node(run, Fragment(run, 0, plan, inputs, False, {}), 0, ())


def test_nothing_follows_an_end_and_every_end_can_be_reached() -> None:
    assert {state for state, after in ALLOWED.items() if not after} == FINISHED
    for state in ALLOWED.keys() - FINISHED:
        assert ALLOWED[state] >= {"cancelled", "skipped", "failed"}


def test_an_illegal_transition_raises_with_the_nodes_story() -> None:
    node = fresh()
    move(node, "ready", 1.0)
    move(node, "starting", 2.0)
    move(node, "succeeded", 3.0)
    assert story(node).split(" -> ") == [
        "waiting@0.500000",
        "ready@1.000000",
        "starting@2.000000",
        "succeeded@3.000000",
    ]
    with pytest.raises(InternalError, match=r"r1/a cannot go .*succeeded@3") as caught:
        move(node, "running", 4.0)
    assert node.state == "succeeded" and caught.value.hint


def test_a_waiting_node_cannot_start_without_being_ready() -> None:
    with pytest.raises(InternalError):
        move(fresh(), "starting", 1.0)
