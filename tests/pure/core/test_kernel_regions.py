"""Regions: nodes that are executed once per item of a list known only in the run."""

from __future__ import annotations

import pytest

from herasys_rt.core.commands import AcceptRun, FinishRun, StartBatch
from herasys_rt.core.events import CollectionChanged, ItemFinished
from herasys_rt.core.invariants import validate
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.values import Fact, Value
from tests.pure.core.kernel_lab import (
    BUSY,
    Lab,
    aborts,
    ended,
    inline,
    item,
    items,
    listed,
    only,
    placed,
    record,
    refused,
    releases,
    spec_of,
    states,
)

OVER_NODE = spec_of("l llm", "e embed % in=r", "a llm e", regions={"r": "l"})
OVER_INPUT = spec_of("e embed % in=r", "a llm e", regions={"r": "$xs"})


def three(name: str = "") -> Value:
    return listed(3, name)


def test_a_produced_list_makes_one_element_per_item_and_gathers_them_in_order() -> None:
    lab = Lab(slots=4)
    xs = three()
    elements = items(lab.finish(item(lab.submit("r1", OVER_NODE)), xs))
    assert [(i.node, i.element, i.items) for i in elements] == [
        (1, 0, xs),
        (1, 1, xs),
        (1, 2, xs),
    ]
    values = [inline(b"0"), inline(b"1"), inline(b"2")]
    for at in (2, 0):
        assert items(lab.finish(elements[at], values[at])) == []
    last = item(lab.finish(elements[1], values[1]))
    assert (last.node, last.upstream, last.element) == (2, (), -1)
    assert last.gathered == ((1, tuple(values)),)
    end = ended(lab.finish(last))
    assert [node.id for node in end.nodes] == ["l", "e[0]", "e[1]", "e[2]", "a"]
    assert lab.nodes() == {"submitted": 5, "executed": 5}


def test_the_length_of_an_input_and_of_a_literal_is_known_at_submission() -> None:
    lab = Lab(slots=4)
    out = lab.submit("r1", OVER_INPUT, facts={"xs": Fact(True, 2)})
    assert [(i.element, i.items) for i in items(out)] == [(0, None), (1, None)]
    literal = spec_of("e embed % in=r", "a llm e", regions={"r": 3})
    assert len(items(lab.submit("r2", literal, "2"))) == 3


def test_elements_of_one_region_share_batches_like_other_nodes() -> None:
    lab = Lab()
    out = lab.submit("r1", OVER_INPUT, facts={"xs": Fact(True, 6)})
    (batch,) = only(out, StartBatch)
    assert [i.element for i in batch.items] == [0, 1, 2, 3]


def test_inside_a_region_a_reference_means_the_same_element() -> None:
    lab = Lab(slots=4)
    spec = spec_of("e embed % in=r", "f search e in=r", regions={"r": 2}, outputs="f")
    zero, one = items(lab.submit("r1", spec))
    second = item(lab.finish(one, inline(b"one")))
    assert (second.node, second.element, second.upstream) == (1, 1, ((0, inline(b"one")),))
    first = item(lab.finish(zero, inline(b"zero")))
    assert (first.element, first.upstream) == (0, ((0, inline(b"zero")),))
    lab.finish(second, inline(b"g1"))
    end = ended(lab.finish(first, inline(b"g0")))
    assert (end.outputs, end.gathered) == ((), ((1, (inline(b"g0"), inline(b"g1"))),))
    assert [node.id for node in end.nodes] == ["e[0]", "e[1]", "f[0]", "f[1]"]


def test_elements_wait_for_what_they_share_from_outside() -> None:
    lab = Lab(slots=4)
    spec = spec_of("q embed", "f search q % in=r", "a llm f", regions={"r": "$xs"})
    embed = item(lab.submit("r1", spec, facts={"xs": Fact(True, 2)}))
    out = lab.finish(embed, inline(b"q"))
    assert [(i.element, i.upstream) for i in items(out)] == [
        (0, ((0, inline(b"q")),)),
        (1, ((0, inline(b"q")),)),
    ]


def test_a_list_that_is_also_an_argument_is_counted_once() -> None:
    lab = Lab(slots=4)
    spec = spec_of("l llm", "f search l % in=r", "a llm f l", regions={"r": "l"})
    xs = listed(1)
    element = item(lab.finish(item(lab.submit("r1", spec)), xs))
    assert (element.upstream, element.items) == (((0, xs),), xs)
    last = item(lab.finish(element, inline(b"f")))
    assert (last.upstream, last.gathered) == (((0, xs),), ((1, (inline(b"f"),)),))


@pytest.mark.parametrize("spec", [OVER_NODE, OVER_INPUT])
def test_an_empty_list_is_an_empty_tuple_and_the_consumer_proceeds_at_once(
    spec: object,
) -> None:
    lab = Lab()
    if spec is OVER_INPUT:
        out = lab.submit("r1", OVER_INPUT, facts={"xs": Fact(False, 0)})
        position = 0
    else:
        out = lab.finish(item(lab.submit("r1", OVER_NODE)), listed(0))
        position = 1
    last = item(out)
    assert last.gathered == ((position, ()),)
    end = ended(lab.finish(last))
    assert "e[0]" not in states(end) and end.status == "succeeded"


def test_a_run_whose_only_output_is_an_empty_region_ends_at_once() -> None:
    lab = Lab()
    spec = spec_of("e embed % in=r", regions={"r": 0})
    out = lab.submit("r1", spec)
    assert [type(c) for c in out] == [AcceptRun, FinishRun]
    assert (ended(out).gathered, ended(out).nodes) == (((0, ()),), ())


def test_a_region_goes_over_the_gathered_outputs_of_another_item_by_item() -> None:
    lab = Lab(slots=4)
    spec = spec_of(
        "e embed % in=r", "f search % in=s", "a llm f", regions={"r": 2, "s": "e"}
    )
    zero, one = items(lab.submit("r1", spec))
    lab.finish(one, inline(b"1"))
    out = lab.finish(zero, inline(b"0"))
    assert [(i.element, i.item, i.items) for i in items(out)] == [
        (0, inline(b"0"), None),
        (1, inline(b"1"), None),
    ]


def test_an_effect_in_a_region_is_executed_once_per_item_before_the_run_ends() -> None:
    lab = Lab(slots=4)
    spec = spec_of("w write % in=r", "a llm", outputs="a", regions={"r": 2})
    zero, one, answer = items(lab.submit("r1", spec))
    assert only(lab.finish(answer), FinishRun) == []
    assert only(lab.finish(one), FinishRun) == []
    assert ended(lab.finish(zero)).status == "succeeded"


@pytest.mark.parametrize(
    ("length", "code", "words"),
    [(-1, "not_a_list", "is no list"), (5, "too_many_items", "5 items; at most 4")],
)
def test_a_list_that_cannot_be_gone_over_fails_the_run(
    length: int, code: str, words: str
) -> None:
    lab = Lab()
    over_node = spec_of("l llm", "e embed % in=r", regions={"r": "l"}, max_items=4)
    started = item(lab.submit("r1", over_node))
    end = ended(lab.finish(started, listed(length)))
    assert end.error is not None and (end.status, end.failed_node) == ("failed", "l")
    assert end.error.code == code and words in end.error.message and end.error.hint
    over_input = spec_of("e embed % in=r", regions={"r": "$xs"}, max_items=4)
    end = ended(lab.submit("r2", over_input, facts={"xs": Fact(True, length)}))
    assert end.error is not None and end.error.code == code
    assert "input 'xs'" in end.error.message and end.failed_node == ""


def test_a_region_may_not_grow_a_run_beyond_its_bound() -> None:
    lab = Lab(KernelConfig(max_run_nodes=4))
    end = ended(lab.finish(item(lab.submit("r1", OVER_NODE)), listed(3)))
    assert end.error is not None and end.error.code == "too_many_nodes"
    lab.finish(item(lab.submit("r2", OVER_NODE, "2")), listed(2))
    assert len(lab.finish_all()) == 1


def test_what_decides_and_was_not_told_is_asked_for_by_name() -> None:
    error = refused(Lab().submit("r1", OVER_INPUT))
    assert error.code == "missing_facts" and "xs" in error.message and error.hint


def test_one_failing_element_fails_the_run_and_stops_the_others() -> None:
    lab = Lab(slots=4)
    elements = items(lab.finish(item(lab.submit("r1", OVER_NODE)), three()))
    lab.finish(elements[0])
    out = lab.fail(elements[1])
    end = ended(out)
    assert end.failed_node == "e[1]"
    assert states(end) == {
        "l": "succeeded",
        "e[0]": "succeeded",
        "e[1]": "failed",
        "e[2]": "cancelled",
        "a": "cancelled",
    }
    assert [flight for _, flight, _ in aborts(out)] == [elements[2].flight]


def test_an_element_is_retried_alone() -> None:
    lab = Lab(slots=4)
    elements = items(lab.finish(item(lab.submit("r1", OVER_NODE)), three()))
    again = item(lab.fail(elements[1], BUSY))
    assert (again.element, again.attempt, again.items) == (1, 2, three())


def test_cancelling_while_the_list_is_unknown_leaves_no_record_of_elements() -> None:
    lab = Lab()
    lab.submit("r1", OVER_NODE)
    assert states(ended(lab.cancel("r1"))) == {"l": "cancelled", "a": "cancelled"}
    assert lab.nodes() == {"submitted": 2, "cancelled": 2}


def test_elements_never_fuse_and_their_consumer_does() -> None:
    lab = Lab(slots=4)
    lab.submit("r1", OVER_NODE)
    lab.submit("r2", OVER_NODE)
    out = lab.finish(lab.running()[0], listed(2))
    assert [(i.run_id, i.element) for i in items(out)] == [
        ("r1", 0),
        ("r1", 1),
        ("r2", 0),
        ("r2", 1),
    ]
    first, second = lab.finish_all()
    assert record(second, "a").fused_into == "r1/a"
    assert not any(n.fused_into or n.reused for n in second.nodes if n.id.startswith("e"))
    assert first.outputs == second.outputs


def test_elements_nobody_needs_are_let_go_when_another_run_feeds_the_consumer() -> None:
    lab = Lab(slots=4)
    lab.submit("r1", OVER_NODE)
    lab.submit("r2", OVER_NODE)
    out = lab.finish(lab.running()[0], listed(2))
    mine = [i for i in items(out) if i.run_id == "r1"]
    theirs = [i for i in items(out) if i.run_id == "r2"]
    lab.finish(mine[0])
    out = lab.finish(mine[1])
    assert sorted(flight for _, flight, _ in aborts(out)) == [i.flight for i in theirs]
    for running in theirs:
        lab.aborted(running)
    second = lab.finish_all()[-1]
    assert [record(second, f"e[{i}]").state for i in range(2)] == ["skipped"] * 2


def test_a_consumer_that_is_reused_needs_no_elements() -> None:
    lab = Lab(slots=4)
    lab.submit("r1", OVER_INPUT, facts={"xs": Fact(True, 2)})
    lab.finish_all()
    end = ended(lab.submit("r2", OVER_INPUT, facts={"xs": Fact(True, 2)}))
    assert states(end) == {"a": "succeeded"} and record(end, "a").reused
    assert lab.nodes() == {"submitted": 4, "executed": 3, "reused": 1}


def test_what_an_element_read_at_another_revision_makes_its_consumer_unshared() -> None:
    """Known fault 25."""
    lab = Lab(slots=4)
    spec = spec_of("s search % in=r", "a llm s", regions={"r": 1})
    reads = (("docs",), ("docs",))
    lab.send(CollectionChanged("docs", 5))
    search = item(lab.submit("r1", spec, collections=reads))
    lab.finish(item(lab.finish(search, revisions={"docs": 4})))
    assert not lab.state.table.completed
    again = item(lab.submit("r2", spec, collections=reads))
    lab.finish(item(lab.finish(again, revisions={"docs": 5})))
    assert len(lab.state.table.completed) == 1


def test_values_of_elements_are_released_once_after_the_end() -> None:
    lab = Lab(KernelConfig(reuse_max_entries=0), slots=4)
    xs = Value(b"xs", 100_000, place="xs", length=2)
    zero, one = items(lab.finish(item(lab.submit("r1", OVER_NODE)), xs))
    assert releases(lab.finish(zero, placed("zero"))) == []
    last = item(lab.finish(one, placed("one")))
    out = lab.finish(last, placed("text"))
    assert isinstance(out[0], FinishRun)
    assert sorted(releases(out)) == ["one", "text", "xs", "zero"]


def test_ten_thousand_elements_are_gathered_in_order() -> None:
    lab = Lab(slots=4)
    lab.validating = False  # once in so large a state is enough
    out = lab.submit("r1", OVER_INPUT, facts={"xs": Fact(True, 10_000)})
    gathered: tuple[Value, ...] = ()
    waiting = [out]
    for out in waiting:
        for batch in only(out, StartBatch):
            for one in batch.items:
                gathered = one.gathered[0][1] if one.gathered else ()
                value = inline(str(one.element).encode())
                done = ItemFinished(one.flight, one.attempt, batch.instance, value, 0.1)
                waiting.append(lab.send(done))
    assert [v.inline for v in gathered] == [b"%d" % i for i in range(10_000)]
    validate(lab.state)
    assert not lab.state.flights and not lab.state.runs
