"""Agents: runs whose graph is revealed in fragments while they run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from herasys_rt.core.commands import (
    AcceptRun,
    AddSubscriber,
    Command,
    FinishFragment,
    FinishRun,
    Subscriber,
)
from herasys_rt.core.events import ClientGone, NodesRevealed, PoolFailed
from herasys_rt.core.kernel import KernelConfig, counters
from herasys_rt.core.values import Fact
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.spec import NodeRef, WorkflowSpec
from tests.pure.core.kernel_lab import (
    AGENT,
    BROKEN,
    Lab,
    aborts,
    ended,
    inline,
    item,
    items,
    only,
    piece,
    placed,
    record,
    releases,
    spec_of,
    states,
)

ANSWER = spec_of("a llm")
CHAIN = spec_of("q embed", "a llm q")


def agent_lab(config: KernelConfig | None = None, slots: int = 4) -> Lab:
    lab = Lab(config, slots=slots)
    lab.submit_agent("g")
    return lab


def test_an_agents_run_is_accepted_and_waits_for_its_graph() -> None:
    lab = Lab()
    assert lab.submit_agent("g") == [AcceptRun("g", "client")]
    assert lab.submit_agent("g") == [AcceptRun("g", "client")]
    assert counters(lab.state)["runs"]["active"] == 1


def test_a_fragment_ends_with_its_outputs_and_the_run_goes_on() -> None:
    lab = agent_lab()
    embed = item(lab.reveal("g", 0, CHAIN))
    answer = item(lab.finish(embed, inline(b"q")))
    out = lab.finish(answer, inline(b"text"))
    end = piece(out)
    assert (end.fragment, end.status, end.outputs) == (
        0,
        "succeeded",
        ((1, inline(b"text")),),
    )
    assert states(end) == {"q": "succeeded", "a": "succeeded"}
    assert only(out, FinishRun) == [] and "g" in lab.state.runs


def test_closing_ends_the_run_with_the_records_of_all_fragments_in_order() -> None:
    lab = agent_lab()
    second = item(lab.reveal("g", 1, ANSWER, "1", parents=((0, "a"),)))
    first = item(lab.reveal("g", 0, CHAIN, "0"))
    lab.finish(second)
    lab.finish(item(lab.finish(first)))
    end = ended(lab.close("g"))
    assert (end.status, end.error, end.outputs) == ("succeeded", None, ())
    assert [(node.fragment, node.id, node.parents) for node in end.nodes] == [
        (0, "q", ()),
        (0, "a", ("0/q",)),
        (1, "a", ("0/a",)),
    ]
    assert not lab.state.runs and lab.close("g") == []
    assert lab.nodes() == {"submitted": 3, "executed": 3}


def test_an_agent_that_failed_fails_its_run_with_its_error() -> None:
    lab = agent_lab()
    end = ended(lab.close("g", BROKEN))
    assert (end.status, end.error, end.nodes) == ("failed", BROKEN, ())


def test_a_failed_node_fails_its_fragment_and_not_the_run() -> None:
    lab = agent_lab()
    spec = spec_of("x embed", "y search", "a llm x y")
    embed, search = items(lab.reveal("g", 0, spec))
    out = lab.fail(search)
    end = piece(out)
    assert (end.status, end.failed_node, end.error) == ("failed", "y", BROKEN)
    assert states(end) == {"x": "cancelled", "y": "failed", "a": "cancelled"}
    assert aborts(out) == [("embed-1", embed.flight, 1)]
    assert len(items(lab.reveal("g", 1, ANSWER))) == 1


def test_what_is_still_open_when_an_agent_ends_is_cancelled_first() -> None:
    lab = agent_lab()
    started = item(lab.reveal("g", 0, ANSWER))
    out = lab.close("g")
    assert [type(c) for c in out if not isinstance(c, AddSubscriber)][1:] == [
        FinishFragment,
        FinishRun,
    ]
    assert (piece(out).status, ended(out).status) == ("cancelled", "succeeded")
    assert aborts(out) == [("llm-1", started.flight, 1)]
    assert record(ended(out), "a").state == "cancelled"


@pytest.mark.parametrize("how", ["cancel", "client", "deadline"])
def test_whatever_ends_an_agents_run_ends_its_fragments_first(how: str) -> None:
    """Known fault 4."""
    lab = Lab(slots=4)
    lab.submit_agent("g", deadline_s=50.0)
    lab.reveal("g", 0, ANSWER, "0")
    lab.reveal("g", 1, CHAIN, "1")
    if how == "cancel":
        out = lab.cancel("g")
    elif how == "client":
        out = lab.send(ClientGone("client"))
    else:
        out = lab.pass_time(60.0)
    assert [(c.fragment, c.status) for c in only(out, FinishFragment)] == [
        (0, "cancelled"),
        (1, "cancelled"),
    ]
    end = ended(out)
    assert end.status == ("failed" if how == "deadline" else "cancelled")
    assert end.error is not None
    assert end.error.code == ("deadline_exceeded" if how == "deadline" else "cancelled")
    assert [node.state for node in end.nodes] == ["cancelled"] * 3
    assert len(aborts(out)) == 2 and not lab.state.runs


# ---- fragments cancelled


def test_a_cancelled_fragment_ends_at_once_and_leaves_its_flights() -> None:
    lab = agent_lab()
    started = item(lab.reveal("g", 0, ANSWER))
    out = lab.cancel_fragment("g", 0)
    assert piece(out).status == "cancelled" and aborts(out)[0][1] == started.flight
    assert lab.cancel_fragment("g", 0) == [] and "g" in lab.state.runs


def test_a_cancel_that_overtakes_its_fragment_is_not_lost() -> None:
    """Known fault 1."""
    lab = agent_lab()
    assert lab.cancel_fragment("g", 0) == [] and lab.cancel_fragment("g", 0) == []
    out = lab.reveal("g", 0, CHAIN, inputs=placed("in"))
    assert (piece(out).status, states(piece(out))) == (
        "cancelled",
        {"q": "cancelled", "a": "cancelled"},
    )
    assert items(out) == [] and releases(out) == ["in"]
    assert lab.reveal("g", 0, CHAIN) == []


def test_only_a_bounded_number_of_early_cancels_is_remembered() -> None:
    lab = agent_lab()
    for fragment in range(1_001):
        lab.cancel_fragment("g", fragment)
    assert len(lab.state.runs["g"].agent.early) == 1_000  # pyright: ignore
    assert len(items(lab.reveal("g", 0, ANSWER))) == 1


def test_a_fragment_fused_with_another_runs_work_leaves_it_to_that() -> None:
    lab = agent_lab()
    started = item(lab.reveal("g", 0, ANSWER))
    lab.submit("r1", ANSWER)
    assert aborts(lab.cancel_fragment("g", 0)) == []
    end = ended(lab.finish(started))
    assert (end.run_id, end.nodes[0].fused_into) == ("r1", "")


def test_joined_nodes_of_agents_name_run_fragment_and_node() -> None:
    lab = agent_lab()
    started = item(lab.reveal("g", 3, ANSWER))
    lab.submit("r1", ANSWER)
    assert ended(lab.finish(started)).nodes[0].fused_into == "g/3/a"


# ---- what is not taken


@pytest.mark.parametrize("run_id", ["nobody", "static", "over"])
def test_a_fragment_of_no_agent_is_ignored_and_its_inputs_released(run_id: str) -> None:
    lab = agent_lab()
    lab.submit("static", ANSWER)
    lab.submit_agent("over")
    lab.close("over")
    out = lab.reveal(run_id, 1, ANSWER, inputs=placed("in"))
    assert releases(out) == ["in"] and len(out) == 1
    assert lab.cancel_fragment(run_id, 0) == []
    assert lab.close("static") == [], "it ends by itself"


def test_a_fragment_is_taken_once() -> None:
    lab = agent_lab()
    started = item(lab.reveal("g", 0, ANSWER))
    assert releases(lab.reveal("g", 0, ANSWER, inputs=placed("again"))) == ["again"]
    lab.finish(started)
    assert releases(lab.reveal("g", 0, ANSWER, inputs=placed("late"))) == ["late"]


def test_a_fragment_that_cannot_be_executed_ends_at_once_with_the_reason() -> None:
    lab = agent_lab()
    gone = ErrorInfo("gone", "no instance")
    wrong = WorkflowSpec("wrong", (), CHAIN.nodes[::-1], {"output": NodeRef("a")})
    out = lab.send(NodesRevealed("g", 0, "spec-none", placed("in")))
    unknown = piece(out)
    assert unknown.error is not None and unknown.error.code == "unknown_spec"
    assert releases(out) == ["in"]
    assert error_code(lab.reveal("g", 1, wrong)) == "invalid_graph"
    assert error_code(lab.reveal("g", 2, spec_of("r rerank@no"))) == "unknown_model"
    assert error_code(lab.reveal("g", 3, spec_of("e embed if=$f"))) == "missing_facts"
    lab.down("llm-1")
    lab.send(PoolFailed("llm", gone))
    assert error_code(lab.reveal("g", 4, ANSWER)) == "gone"
    assert lab.nodes() == {} and counters(lab.state)["fragments"]["refused"] == 5
    assert ended(lab.close("g")).nodes == ()


def error_code(commands: list[Command]) -> str:
    end = piece(commands)
    assert end.error is not None and (end.status, end.nodes) == ("failed", ())
    return end.error.code


def test_a_run_that_grows_without_bound_is_told_so() -> None:
    lab = agent_lab(KernelConfig(max_run_nodes=3))
    lab.reveal("g", 0, CHAIN)
    lab.finish_all()
    assert error_code(lab.reveal("g", 1, CHAIN)) == "too_many_nodes"
    assert len(items(lab.reveal("g", 2, ANSWER, "2"))) == 1


def test_a_fragment_without_anything_to_execute_ends_at_once() -> None:
    lab = agent_lab()
    end = piece(lab.reveal("g", 0, spec_of(outputs="none")))
    assert (end.status, end.nodes) == ("succeeded", ())


# ---- fragments are like runs


def test_fragments_have_regions_and_branches() -> None:
    lab = agent_lab()
    spec = spec_of(
        "l embed % in=r", "s search l if=$f", outputs="l s", regions={"r": "$xs"}
    )
    facts = {"xs": Fact(True, 2), "f": Fact(False)}
    zero, one = items(lab.reveal("g", 0, spec, facts=facts, parents=((7, "p"),)))
    lab.finish(one, inline(b"1"))
    end = piece(lab.finish(zero, inline(b"0")))
    assert (end.gathered, end.skipped) == (((0, (inline(b"0"), inline(b"1"))),), (1,))
    assert [(n.id, n.state, n.parents) for n in end.nodes] == [
        ("l[0]", "succeeded", ("7/p",)),
        ("l[1]", "succeeded", ("7/p",)),
        ("s", "skipped", ("0/l[0]", "0/l[1]")),
    ]


def test_work_of_an_agent_is_ordered_by_the_arrival_of_its_run() -> None:
    lab = agent_lab(slots=1)
    lab.submit("r1", ANSWER, "1")
    lab.submit("r2", ANSWER, "2")
    lab.reveal("g", 0, ANSWER, "g")
    assert item(lab.finish(lab.running()[0])).run_id == "g"


def test_equal_fragments_of_one_run_are_one_piece_of_work() -> None:
    lab = agent_lab()
    started = item(lab.reveal("g", 0, ANSWER))
    assert items(lab.reveal("g", 1, ANSWER)) == []
    ends = only(lab.finish(started), FinishFragment)
    assert [end.fragment for end in ends] == [0, 1]
    assert piece(lab.reveal("g", 2, ANSWER)).nodes[0].reused


def test_a_fragments_text_goes_to_its_own_subscription() -> None:
    lab = agent_lab()
    started = item(lab.reveal("g", 5, ANSWER, stream=True))
    assert started.subscribers == (Subscriber("client", "g", 0, 5),)
    late = lab.reveal("g", 6, ANSWER, stream=True)
    assert only(late, AddSubscriber)[0].subscriber == Subscriber("client", "g", 0, 6)


def test_values_of_an_ended_fragment_are_let_go() -> None:
    lab = Lab(KernelConfig(reuse_max_entries=0), slots=4)
    lab.submit_agent("g", inputs=placed("task"))
    embed = item(lab.reveal("g", 0, CHAIN, inputs=placed("in")))
    answer = item(lab.finish(embed, placed("vector")))
    out = lab.finish(answer, placed("text"))
    assert isinstance(out[0], FinishFragment)
    assert sorted(releases(out)) == ["in", "text", "vector"]
    assert releases(lab.close("g")) == ["task"]


def test_an_early_cancel_of_an_agents_run_holds() -> None:
    lab = Lab()
    lab.cancel("g")
    out = lab.submit_agent("g", inputs=placed("task"))
    assert [type(c) for c in out[:2]] == [AcceptRun, FinishRun]
    assert (ended(out).status, releases(out)) == ("cancelled", ["task"])
    assert AGENT.id in lab.state.plans and not lab.state.runs


def test_fragments_are_counted() -> None:
    lab = agent_lab()
    lab.finish(item(lab.reveal("g", 0, ANSWER, "0")))
    lab.fail(item(lab.reveal("g", 1, ANSWER, "1")))
    lab.reveal("g", 2, ANSWER, "2")
    lab.cancel_fragment("g", 2)
    lab.reveal("g", 3, ANSWER, "3")
    assert counters(lab.state)["fragments"] == {
        "refused": 0,
        "succeeded": 1,
        "failed": 1,
        "cancelled": 1,
        "open": 1,
    }


def test_a_thousand_fragments_leave_nothing_but_their_records() -> None:
    lab = agent_lab()
    lab.validating = False
    for number in range(1_000):
        lab.log.clear()
        lab.finish(item(lab.reveal("g", number, ANSWER, f"{number}")))
    run = lab.state.runs["g"]
    assert not run.fragments and not lab.state.flights
    assert len(ended(lab.close("g")).nodes) == 1_000


# ---- frontends


def test_a_frontend_hears_of_the_fragments_and_the_client_of_the_run() -> None:
    lab = Lab(slots=4)
    lab.submit_agent("g", client="client", frontend="front")
    started = item(lab.reveal("g", 0, ANSWER, stream=True))
    assert started.subscribers == (Subscriber("client", "g", 0, 0),)
    assert piece(lab.finish(started)).client == "front"
    unknown = lab.send(NodesRevealed("g", 1, "spec-none", inline(b"x")))
    assert piece(unknown).client == "front"
    assert ended(lab.close("g")).client == "client"


def test_a_lost_frontend_fails_its_runs_and_only_those() -> None:
    lab = Lab(slots=4)
    lab.submit_agent("g", client="client", frontend="front")
    lab.submit_agent("h", client="client", frontend="other")
    lab.submit_agent("i", client="client")
    started = item(lab.reveal("g", 0, ANSWER))
    out = lab.send(ClientGone("front"))
    end = ended(out)
    assert (end.run_id, end.status, end.client) == ("g", "failed", "client")
    assert end.error is not None and end.error.code == "frontend_lost"
    assert end.error.retryable
    assert piece(out).status == "cancelled"
    assert aborts(out) == [("llm-1", started.flight, 1)]
    assert list(lab.state.runs) == ["h", "i"]


def test_a_client_that_takes_its_frontend_along_has_its_runs_cancelled() -> None:
    lab = Lab()
    lab.submit_agent("g", client="client", frontend="front")
    assert ended(lab.send(ClientGone("client"))).status == "cancelled"
    assert lab.send(ClientGone("front")) == []


# ---- labels


def test_labels_are_in_the_record_of_every_end_of_a_run() -> None:
    labels = {"team": "search"}
    lab = Lab(slots=4)
    lab.submit_agent("g", labels=labels)
    assert ended(lab.close("g")).labels == labels
    assert ended(lab.finish(item(lab.submit("r", ANSWER, labels=labels)))).labels == labels
    lab.submit("s", ANSWER, "other", labels=labels)
    assert ended(lab.cancel("s")).labels == labels
    lab.cancel("t")
    assert ended(lab.submit("t", ANSWER, labels=labels)).labels == labels


def test_labels_decide_nothing() -> None:
    """The same events with and without labels give the same commands."""

    def told(labels: dict[str, str]) -> list[Command]:
        lab = Lab(slots=4)
        lab.submit("r1", CHAIN, "x", labels=labels)
        lab.submit("r2", CHAIN, "x", labels={})
        lab.submit_agent("g", labels=labels)
        lab.reveal("g", 0, CHAIN, "x")
        for _ in range(2):
            lab.finish(lab.running()[0])
        lab.close("g")
        return [replace(c, labels={}) if isinstance(c, FinishRun) else c for c in lab.log]

    assert told({}) == told({"priority": "9", "tenant": "somebody"})
