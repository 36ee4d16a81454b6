"""Values that the object store has lost: forgotten, and computed again by who comes."""

from __future__ import annotations

import pytest

from herasys_rt.core.commands import FinishFragment, FinishRun, WorkItem
from herasys_rt.core.events import ValuesLost
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.values import Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.facts import Fact
from herasys_rt.graph.spec import NodeOptions, Retry
from tests.pure.core.kernel_lab import (
    Lab,
    ended,
    inline,
    item,
    items,
    only,
    placed,
    record,
    releases,
    spec_of,
    states,
)

CHAIN = spec_of("q embed", "a llm q")
LOST = ErrorInfo("value_lost", "it was lost", "again", retryable=True)


def lose(lab: Lab, *places: str) -> list[object]:
    return [*lab.send(ValuesLost(places))]


def cannot_fetch(lab: Lab, work: WorkItem, *places: str) -> list[FinishRun]:
    """What a host tells that cannot get an item's inputs."""
    lab.send(ValuesLost(places))
    return only(lab.fail(work, LOST), FinishRun)


def test_a_completed_result_that_is_lost_is_computed_again() -> None:
    lab = Lab()
    spec = spec_of("q embed")
    lab.finish(item(lab.submit("r1", spec)), placed("vector"))
    assert ended(lab.submit("r2", spec)).nodes[0].reused
    assert "vector" in releases(lab.send(ValuesLost(("vector",))))
    assert lab.state.table.bytes == lab.state.table.entries == 0
    lab.finish(item(lab.submit("r3", spec)), placed("again"))
    assert ended(lab.submit("r4", spec)).nodes[0].reused


def test_by_value_it_is_not_found_either() -> None:
    lab = Lab(seeded=True)
    spec = spec_of("d dice", "a llm d")
    for run_id, word in (("r1", "lost"), ("r2", "found")):
        lab.submit(run_id, spec)
        lab.finish(item(lab.finish(lab.running()[0], inline(b"words"))), placed(word))
        if word == "lost":
            lose(lab, "lost")
    lab.submit("r3", spec)
    assert record(ended(lab.finish(lab.running()[0], inline(b"words"))), "a").reused


def test_a_result_whose_items_are_lost_lends_none_and_is_computed_again() -> None:
    lab, spec = Lab(), spec_of("m best $texts")
    fact = Fact(True, 1, (b"1" * 32,), (b"2" * 32,))
    work = item(lab.submit("r1", spec, "one", facts={"texts": fact}))
    lab.finish(work, inline(b"best"), parts=placed("scores"))
    assert "scores" in releases(lab.send(ValuesLost(("scores",))))
    again = item(lab.submit("r2", spec, "one", facts={"texts": fact}))
    assert again.shared is not None and not again.shared.borrowed


def test_other_results_stay() -> None:
    lab = Lab(slots=2)
    one, other = spec_of("q embed"), spec_of("a llm")
    lab.finish(item(lab.submit("r1", one)), placed("one"))
    lab.finish(item(lab.submit("r2", other)), placed("other"))
    assert lose(lab, "one", "never heard of") == lab.log[-1:]
    assert ended(lab.submit("r3", other)).nodes[0].reused


def test_an_item_whose_input_is_lost_fails_for_good_and_the_next_run_begins_anew() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", CHAIN)), placed("vector"))
    started = lab.running()[0]
    lab.submit("r2", CHAIN)
    ends = cannot_fetch(lab, started, "vector")
    assert [(end.run_id, end.error) for end in ends] == [("r1", LOST), ("r2", LOST)]
    assert record(ends[0], "a").attempts == 1, "another try would lack it too"
    assert item(lab.submit("r3", CHAIN)).node == 0
    lab.finish(lab.running()[0], placed("again"))
    assert ended(lab.finish(lab.running()[0])).status == "succeeded"


@pytest.mark.parametrize("retry", [None, Retry(5, 2.0)])
def test_what_waits_for_its_turn_with_a_lost_input_fails_at_once(
    retry: Retry | None,
) -> None:
    options = {"a": NodeOptions(retry=retry, timeout_s=1_000.0)}
    spec = spec_of("q embed", "a llm q", options=options)
    lab = Lab()
    if retry is None:
        item(lab.submit("other", spec_of("a llm", "b rerank a"), "other"))
    lab.submit("r1", spec)
    (embed,) = [work for work in lab.running() if work.run_id == "r1"]
    lab.finish(embed, placed("vector"))
    if retry is not None:
        lab.fail(lab.running()[0], ErrorInfo("busy", "it was", retryable=True))
    out = lab.send(ValuesLost(("vector",)))
    end = ended(out)
    assert end.run_id == "r1" and end.error is not None and end.error.retryable
    assert end.error.code == "value_lost" and states(end)["a"] == "failed"
    assert "vector" in releases(out)


def test_nobody_joins_what_was_given_a_lost_value_and_whoever_waits_for_it_gets_it() -> (
    None
):
    """It may have fetched it before."""
    lab = Lab(slots=2)
    lab.finish(item(lab.submit("r1", CHAIN)), placed("vector"))
    started = lab.running()[0]
    lose(lab, "vector")
    again = item(lab.submit("r2", CHAIN))
    assert again.node == 0
    assert ended(lab.finish(started, inline(b"text"))).run_id == "r1"
    lab.finish(item(lab.finish(again, placed("new"))), inline(b"text"))
    assert ended(lab.submit("r3", CHAIN)).nodes[1].reused


def test_who_comes_does_not_join_what_is_to_be_made_of_a_lost_value() -> None:
    lab = Lab(slots=2)
    spec = spec_of("q embed", "p search", "a llm q p")
    first = items(lab.submit("r1", spec))
    lab.finish(first[0], placed("vector"))
    lose(lab, "vector")
    second = item(lab.submit("r2", spec))
    assert second.node == 0
    theirs = item(lab.finish(first[1]))
    (end,) = cannot_fetch(lab, theirs, "vector")
    assert end.run_id == "r1"
    lab.finish(item(lab.finish(second, placed("new"))), inline(b"text"))
    assert only(lab.log, FinishRun)[-1].status == "succeeded"


def test_an_agents_step_that_fails_so_leaves_the_agent_at_work() -> None:
    lab = Lab()
    lab.submit_agent("r1")
    lab.finish(item(lab.reveal("r1", 0, CHAIN)), placed("vector"))
    lab.send(ValuesLost(("vector",)))
    (end,) = only(lab.fail(lab.running()[0], LOST), FinishFragment)
    assert end.error == LOST
    assert item(lab.reveal("r1", 1, CHAIN)).node == 0


def test_an_effect_that_could_not_begin_is_not_begun_again() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", spec_of("q embed", "w write q"))), placed("vector"))
    (end,) = cannot_fetch(lab, lab.running()[0], "vector")
    assert end.error == LOST


def test_a_lost_instance_brings_no_lost_value_back() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", CHAIN)), placed("vector"))
    lose(lab, "vector")
    lab.down("llm-1")
    again = item(lab.up("llm-2", "llm"))
    (end,) = cannot_fetch(lab, again, "vector")
    assert end.run_id == "r1"


def test_inputs_that_are_lost_fail_their_run_alone() -> None:
    lab = Lab(slots=2)
    spec = spec_of("a llm $x")
    first = item(lab.submit("r1", spec, inputs=placed("inputs")))
    second = item(lab.submit("r2", spec, "other"))
    (end,) = cannot_fetch(lab, first, "inputs")
    assert end.run_id == "r1"
    assert ended(lab.finish(second)).status == "succeeded"


# ---- items of lists


def many(lab: Lab, run_id: str, *names: str) -> list[WorkItem]:
    digests = tuple(inline(name.encode()).digest for name in names)
    facts = {"x": Fact(True, len(names), digests)}
    return items(lab.submit(run_id, spec_of("v many $x"), " ".join(names), facts=facts))


def test_items_of_a_lost_value_are_computed_again() -> None:
    lab = Lab()
    lab.finish(many(lab, "r1", "a", "b")[0], placed("vectors"))
    lose(lab, "vectors")
    (work,) = many(lab, "r2", "b", "c")
    assert work.shared is not None and work.shared.borrowed == ()


def test_who_borrowed_of_a_lost_value_goes_on() -> None:
    """Its host computes what is not there."""
    lab = Lab()
    lab.finish(many(lab, "r1", "a", "b")[0], placed("vectors"))
    many(lab, "hold", "z")
    many(lab, "r2", "b", "c")
    running, *_ = lab.running()
    lose(lab, "vectors")
    lab.finish(running)
    (work,) = lab.running()
    assert work.shared is not None and len(work.shared.borrowed) == 1
    assert ended(lab.finish(work)).status == "succeeded"


def test_whoever_waits_for_items_of_one_that_fails_so_computes_them() -> None:
    lab = Lab(KernelConfig(), slots=2)
    spec = spec_of("q embed", "v many q")
    listed = Value(inline(b"l").digest, 100_000, place="list", length=2, items=(b"a", b"b"))
    lab.finish(item(lab.submit("r1", spec)), listed)
    (lender,) = lab.running()
    other = Fact(True, 2, (b"b", b"c"))
    assert items(lab.submit("r2", spec_of("v many $x"), "o", facts={"x": other})) == []
    lab.send(ValuesLost(("list",)))
    (work,) = items(lab.fail(lender, LOST))
    assert work.run_id == "r2" and work.shared is not None
    assert work.shared.borrowed == ()
