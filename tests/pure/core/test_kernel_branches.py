"""Guards and choices: branches decided by a value, and joins that know it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.core.commands import AcceptRun, FinishRun
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.values import Fact
from herasys_rt.graph.spec import ChoiceRef, Guard, ItemRef, Lit, NodeRef
from tests.pure.core.kernel_lab import (
    BROKEN,
    Lab,
    aborts,
    ended,
    inline,
    item,
    items,
    listed,
    only,
    record,
    refused,
    said,
    spec_of,
    states,
)

BRANCH = spec_of("c llm", "t embed if=c", "e search unless=c", "j rerank c?t:e")
BY_INPUT = spec_of("t embed if=$f", "e search unless=$f", "j rerank $f?t:e")
YES, NO = {"f": Fact(True)}, {"f": Fact(False)}


def ready_lab(slots: int = 4) -> Lab:
    lab = Lab(slots=slots)
    lab.up("rank-1", "rank", slots)
    return lab


@pytest.mark.parametrize(("truth", "taken", "left"), [(True, 1, 2), (False, 2, 1)])
def test_only_the_taken_branch_runs_and_the_join_knows_it(
    truth: bool, taken: int, left: int
) -> None:
    lab = ready_lab()
    condition = item(lab.submit("r1", BRANCH))
    branch = item(lab.finish(condition, said(truth)))
    assert (branch.node, branch.upstream) == (taken, ((0, said(truth)),))
    join = item(lab.finish(branch, inline(b"branch")))
    assert join.upstream == ((0, said(truth)), (taken, inline(b"branch")))
    assert join.skipped == (left,)
    end = ended(lab.finish(join))
    assert [node.state for node in end.nodes].count("skipped") == 1
    assert end.nodes[left].state == "skipped"
    assert lab.nodes() == {"submitted": 4, "executed": 3, "skipped": 1}


@pytest.mark.parametrize(("facts", "taken"), [(YES, 0), (NO, 1)])
def test_a_branch_decided_by_an_input_is_decided_at_submission(
    facts: dict[str, Fact], taken: int
) -> None:
    lab = ready_lab()
    out = lab.submit("r1", BY_INPUT, facts=facts)
    assert [i.node for i in items(out)] == [taken]
    end = lab.finish_all()[0]
    assert end.nodes[1 - taken].state == "skipped" and end.status == "succeeded"


def test_a_branch_not_taken_takes_what_only_it_needed_with_it() -> None:
    lab = ready_lab(slots=1)
    spec = spec_of("c llm", "p embed", "q embed p", "t search q if=c", "j rerank c?t:-")
    condition, first = items(lab.submit("r1", spec))
    assert (condition.node, first.node) == (0, 1)
    out = lab.finish(condition, said(False))
    assert aborts(out) == [("embed-1", first.flight, 1)]
    assert item(out).node == 4
    lab.aborted(first)
    end = lab.finish_all()[0]
    assert states(end) == {
        "c": "succeeded",
        "p": "skipped",
        "q": "skipped",
        "t": "skipped",
        "j": "succeeded",
    }


def test_what_others_need_too_goes_on() -> None:
    lab = ready_lab()
    spec = spec_of("c llm", "p embed", "t search p if=c", "j rerank p c?t:-")
    condition, shared = items(lab.submit("r1", spec))
    assert aborts(lab.finish(condition, said(False))) == []
    join = item(lab.finish(shared, inline(b"p")))
    assert (join.upstream, join.skipped) == (((1, inline(b"p")), (0, said(False))), (2,))


def test_a_node_that_takes_a_skipped_one_outside_of_a_choice_is_skipped_too() -> None:
    lab = ready_lab()
    spec = spec_of("c llm", "t embed if=c", "u search t", "v rerank u", outputs="v c")
    condition = item(lab.submit("r1", spec))
    end = ended(lab.finish(condition, said(False)))
    assert states(end) == {"c": "succeeded", **dict.fromkeys("tuv", "skipped")}
    assert (end.status, end.skipped) == ("succeeded", (3,))
    assert end.outputs == ((0, said(False)),)


def test_a_run_of_which_every_output_is_skipped_succeeds_without_any() -> None:
    lab = ready_lab()
    out = lab.submit("r1", spec_of("t embed if=$f"), facts=NO)
    assert [type(c) for c in out] == [AcceptRun, FinishRun]
    assert (ended(out).outputs, ended(out).skipped) == ((), (0,))


def test_an_output_that_is_a_choice_has_only_the_taken_side() -> None:
    lab = ready_lab()
    spec = spec_of("c llm", "t embed if=c", "e search unless=c", outputs="c?t:e")
    lab.finish(item(lab.submit("r1", spec)), said(False))
    end = ended(lab.finish(lab.running()[0], inline(b"else")))
    assert end.outputs == ((0, said(False)), (2, inline(b"else")))
    assert end.skipped == (1,)


def test_a_choice_of_what_runs_anyway_waits_for_the_condition_and_the_taken_side() -> None:
    lab = ready_lab()
    spec = spec_of("c llm", "t embed", "e search", "j rerank c?t:e")
    condition, then, otherwise = items(lab.submit("r1", spec))
    assert items(lab.finish(otherwise, inline(b"e"))) == []
    out = lab.finish(condition, said(False))
    join = item(out)
    assert join.upstream == ((0, said(False)), (2, inline(b"e")))
    assert aborts(out) == [("embed-1", then.flight, 1)], "nobody needs it now"


def test_nested_conditions_skip_what_is_inside_a_branch_not_taken() -> None:
    lab = ready_lab()
    spec = spec_of(
        "c llm",
        "d llm if=c",
        "t embed if=c if=d",
        "e search if=c unless=d",
        "j rerank c?d?t:e:-",
    )
    lab.submit("r1", spec)
    join = item(lab.finish(lab.running()[0], said(False)))
    assert (join.upstream, join.skipped) == (((0, said(False)),), (1, 2, 3))
    lab.submit("r2", spec, "2")
    inner = item(lab.finish(lab.running()[-1], said(True)))
    branch = item(lab.finish(inner, said(False)))
    join = item(lab.finish(branch, inline(b"e")))
    assert [position for position, _ in join.upstream] == [0, 1, 3]


def test_a_guarded_effect_happens_only_when_its_condition_holds() -> None:
    lab = ready_lab()
    spec = spec_of("c llm", "w write if=c", outputs="c")
    end = ended(lab.finish(item(lab.submit("r1", spec)), said(False)))
    assert states(end)["w"] == "skipped"
    write = item(lab.finish(item(lab.submit("r2", spec, "2")), said(True)))
    assert ended(lab.finish(write)).status == "succeeded"


def test_a_long_chain_in_a_branch_not_taken_is_skipped_at_once() -> None:
    lab = ready_lab()
    chain = [f"n{i} embed n{i - 1}" for i in range(1, 3_000)]
    spec = spec_of("c llm", "n0 embed if=c", *chain, "j rerank c?n2999:-")
    lab.validating = False
    lab.finish(item(lab.submit("r1", spec)), said(False))
    assert lab.finish_all()[0].status == "succeeded"
    assert lab.nodes() == {"submitted": 3_002, "executed": 2, "skipped": 3_000}


def test_a_failing_condition_fails_the_run() -> None:
    lab = ready_lab()
    end = ended(lab.fail(item(lab.submit("r1", BRANCH))))
    assert (end.error, end.failed_node) == (BROKEN, "c")
    assert states(end) == {"c": "failed", **dict.fromkeys("tej", "cancelled")}


def test_cancelling_while_conditions_are_open_ends_what_they_hold_back() -> None:
    lab = ready_lab()
    lab.submit("r1", BRANCH)
    assert set(states(ended(lab.cancel("r1"))).values()) == {"cancelled"}


# ---- conditions and fusion


def test_equal_runs_fuse_in_the_branch_they_take() -> None:
    lab = ready_lab()
    lab.submit("r1", BRANCH)
    assert items(lab.submit("r2", BRANCH)) == []
    assert len(items(lab.finish(lab.running()[0], said(True)))) == 1
    first, second = lab.finish_all()
    assert [n.fused_into for n in second.nodes] == ["r1/c", "r1/t", "", "r1/j"]
    assert first.outputs == second.outputs


def test_a_run_whose_condition_and_branch_are_there_already_ends_at_once() -> None:
    lab = ready_lab()
    lab.submit("r1", BRANCH)
    lab.finish(lab.running()[0], said(True))
    lab.finish_all()
    out = lab.submit("r2", BRANCH)
    assert [type(c) for c in out] == [AcceptRun, FinishRun]
    end = ended(out)
    assert [n.reused for n in end.nodes] == [True, True, False, True]
    assert end.nodes[2].state == "skipped"


def test_a_result_of_a_branch_is_not_reused_where_the_branch_is_not_taken() -> None:
    lab = ready_lab()
    same = spec_of("t embed if=$f", outputs="t")
    lab.finish(item(lab.submit("r1", same, facts=YES)))
    end = ended(lab.submit("r2", same, facts=NO))
    assert (end.outputs, record(end, "t").state) == ((), "skipped")
    assert ended(lab.submit("r3", same, facts=YES)).nodes[0].reused


def test_a_node_held_back_does_not_join_before_its_condition_holds() -> None:
    lab = ready_lab()
    twin = spec_of("t embed", outputs="t")
    guarded = spec_of("c llm", "t embed if=c", outputs="t c")
    started = item(lab.submit("r1", twin, "2"))
    condition = item(lab.submit("r2", guarded, "2"))
    assert len(lab.state.flights[started.flight].members) == 1
    end = ended(lab.finish(condition, said(False)))
    assert (states(end)["t"], aborts(lab.log)) == ("skipped", [])


# ---- conditions and regions


def test_a_region_in_a_branch_not_taken_has_no_elements() -> None:
    lab = ready_lab()
    spec = spec_of("c llm", "e embed % in=r if=c", "j rerank c?e:-", regions={"r": "$xs"})
    for length in (-1, 3):
        run_id = f"r{length}"
        started = item(lab.submit(run_id, spec, run_id, facts={"xs": Fact(True, length)}))
        join = item(lab.finish(started, said(False)))
        assert (join.upstream, join.gathered, join.skipped) == (
            ((0, said(False)),),
            (),
            (1,),
        )
        assert states(ended(lab.finish(join))) == {"c": "succeeded", "j": "succeeded"}


def test_a_region_in_a_taken_branch_is_gathered() -> None:
    lab = ready_lab()
    spec = spec_of("c llm", "e embed % in=r if=c", "j rerank c?e:-", regions={"r": 2})
    out = lab.finish(item(lab.submit("r1", spec)), said(True))
    lab.finish(items(out)[1], inline(b"1"))
    join = item(lab.finish(items(out)[0], inline(b"0")))
    assert join.gathered == ((1, (inline(b"0"), inline(b"1"))),)


def test_a_list_on_a_side_not_taken_is_gone_over_and_not_passed_on() -> None:
    lab = ready_lab()
    spec = spec_of(
        "l llm", "e embed % $f?l:- in=r", "a rerank e", regions={"r": "l"}, outputs="a"
    )
    for facts, given in ((YES, ((0, listed(1)),)), (NO, ())):
        run_id = f"r{len(given)}"
        started = item(lab.submit(run_id, spec, run_id, facts=facts))
        element = item(lab.finish(started, listed(1)))
        assert (element.upstream, element.items) == (given, listed(1))
        assert element.skipped == (() if given else (0,))


def test_a_region_whose_list_is_skipped_is_skipped() -> None:
    lab = ready_lab()
    spec = spec_of(
        "c llm", "l llm if=c", "e embed % in=r", "j rerank c?e:-", regions={"r": "l"}
    )
    join = item(lab.finish(item(lab.submit("r1", spec)), said(False)))
    assert join.skipped == (2,)


def test_every_element_takes_its_own_branch() -> None:
    lab = ready_lab()
    spec = spec_of(
        "c llm % in=r",
        "t embed % in=r if=c",
        "e search % in=r unless=c",
        "j rerank c?t:e in=r",
        regions={"r": 2},
        outputs="j",
    )
    zero, one = items(lab.submit("r1", spec))
    otherwise = item(lab.finish(one, said(False)))
    then = item(lab.finish(zero, said(True)))
    assert (otherwise.node, otherwise.element) == (2, 1)
    assert (then.node, then.element) == (1, 0)
    join = item(lab.finish(then, inline(b"then")))
    assert (join.element, join.skipped) == (0, (2,))
    join_one = item(lab.finish(otherwise, inline(b"else")))
    lab.finish(join_one, inline(b"j1"))
    end = ended(lab.finish(join, inline(b"j0")))
    assert end.gathered == ((3, (inline(b"j0"), inline(b"j1"))),)
    skipped = {"t[1]", "e[0]"}
    assert {n for n, state in states(end).items() if state == "skipped"} == skipped


def test_a_region_with_a_skipped_element_has_no_list_of_outputs() -> None:
    lab = ready_lab()
    spec = spec_of("c llm % in=r", "t embed % in=r if=c", "j rerank t", regions={"r": 2})
    zero, one = items(lab.submit("r1", spec))
    lab.finish(one, said(False))
    branch = item(lab.finish(zero, said(True)))
    end = ended(lab.finish(branch))
    assert (end.status, end.skipped) == ("succeeded", (2,))


def test_elements_that_were_skipped_do_not_skip_the_rest_of_their_region() -> None:
    lab = ready_lab()
    spec = spec_of(
        "c llm % in=r",
        "t embed % in=r if=c",
        "x search",
        "y search x",
        "j rerank t y in=r",
        regions={"r": 2},
        outputs="j c",
    )
    x, zero, one = items(lab.submit("r1", spec))
    lab.finish(one, said(False))
    lab.finish(item(lab.finish(zero, said(True))))
    joined = item(lab.finish(item(lab.finish(x))))
    assert (joined.node, joined.element) == (4, 0)
    end = ended(lab.finish(joined))
    assert (states(end)["j[0]"], states(end)["j[1]"]) == ("succeeded", "skipped")
    assert end.skipped == (4,)


def test_the_list_of_a_region_is_a_condition_that_holds_when_it_is_not_empty() -> None:
    lab = ready_lab()
    spec = spec_of(
        "l llm", "e embed % in=r", "t search if=e", "j rerank e?t:-", regions={"r": "l"}
    )
    join = item(lab.finish(item(lab.submit("r1", spec)), listed(0)))
    assert (join.node, join.skipped) == (3, (2,))
    element = item(lab.finish(item(lab.submit("r2", spec, "2")), listed(1)))
    assert item(lab.finish(element)).node == 2


# ---- specs that cannot be


@pytest.mark.parametrize(
    ("node", "swap", "problem"),
    [
        (0, {"region": "s"}, "in region 's', which is none"),
        (0, {"guards": (Guard(ItemRef("r"), True),)}, "condition on an item is not"),
        (
            0,
            {"args": {"p": ChoiceRef(ItemRef("r"), Lit(1), Lit(2))}},
            "condition on an item",
        ),
        (0, {"guards": (Guard(NodeRef("a"), True),)}, "comes before 'a'"),
        (1, {"args": {"p": ItemRef("r")}}, "takes an item of region 'r'"),
        (1, {"args": {"p": ChoiceRef(NodeRef("z"), Lit(1), Lit(2))}}, "before 'z'"),
    ],
)
def test_a_spec_with_a_wrong_region_or_condition_is_refused(
    node: int, swap: dict[str, Any], problem: str
) -> None:
    spec = spec_of("e embed % in=r", "a llm e", regions={"r": 1})
    nodes = list(spec.nodes)
    nodes[node] = replace(nodes[node], **swap)
    error = refused(Lab().submit("r1", replace(spec, nodes=tuple(nodes)), signed=False))
    assert error.code == "invalid_graph" and problem in error.message


def test_a_region_over_itself_or_over_what_comes_later_is_refused() -> None:
    for over, problem in (("e", "its own node"), ("a", "which gives its list")):
        spec = spec_of("e embed % in=r", "a llm e", regions={"r": over})
        error = refused(Lab().submit("r1", spec, signed=False))
        assert error.code == "invalid_graph" and problem in error.message


def test_branches_work_without_fusion() -> None:
    lab = Lab(KernelConfig(fusion=False), slots=4)
    lab.up("rank-1", "rank")
    for run_id in ("r1", "r2"):
        lab.finish(item(lab.submit(run_id, BRANCH)), said(True))
    assert len(lab.finish_all()) == 2 and only(lab.log, FinishRun)
