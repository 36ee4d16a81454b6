"""How old what a node takes may be, whoever made it and however it is found."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from herasys_rt.core.commands import KeepResult
from herasys_rt.core.events import Hint, RunSubmitted, SpecRegistered
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.values import Value
from herasys_rt.graph.facts import Fact
from herasys_rt.graph.spec import NodeOptions, WorkflowSpec
from tests.pure.core.kernel_lab import (
    Lab,
    ended,
    inline,
    item,
    items,
    listed,
    only,
    record,
    signatures_of,
    spec_of,
)

LASTING = spec_of("a llm")
MINUTE = NodeOptions(cache_ttl_s=60.0)
BRIEF = spec_of("a llm", options={"a": MINUTE})
STORED = KernelConfig(reuse_store=True)


def pair(*lines: str, **brief: NodeOptions) -> tuple[WorkflowSpec, WorkflowSpec]:
    """A workflow, and its twin with nodes that say for how long."""
    return spec_of(*lines), spec_of(*lines, options=brief)


def served(lab: Lab, words: str = "") -> None:
    """Finish everything, in the order of starts; outputs say which pass it was."""
    while running := lab.running():
        lab.finish(running[0], inline(f"{words}{running[0].node}".encode()))


def offered(lab: Lab, spec: WorkflowSpec, age_s: float, eldest_age_s: float) -> bool:
    """Whether the first node of a run takes what a store offers for it."""
    kept = Hint(0, 0, inline(b"kept"), "tenant")
    hint = replace(kept, age_s=age_s, eldest_age_s=eldest_age_s)
    lab.send(SpecRegistered(spec))
    signatures = signatures_of(spec, "same", "r")
    run = RunSubmitted("r", spec.id, "client", "tenant", inline(b"same"), signatures)
    return not items(lab.send(replace(run, hints=(hint,))))


def test_a_node_takes_no_result_of_a_longer_kept_twin_that_is_older_than_it_says() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", LASTING)))
    lab.now += 50
    assert ended(lab.submit("r2", BRIEF)).nodes[0].reused
    lab.now += 10
    again = item(lab.submit("r3", BRIEF))
    assert ended(lab.submit("r4", LASTING)).nodes[0].reused, "it said nothing"
    lab.finish(again, inline(b"new"))
    lab.now += 50
    end = ended(lab.submit("r5", BRIEF))
    assert end.nodes[0].reused and end.outputs == ((0, inline(b"new")),)


def test_work_under_way_is_young_enough_for_anybody() -> None:
    lab = Lab()
    started = item(lab.submit("r1", LASTING))
    lab.now += 1_000
    assert items(lab.submit("r2", BRIEF)) == []
    assert len(lab.finish(started)) >= 2


def test_by_value_nothing_older_is_taken_either() -> None:
    lab = Lab(seeded=True)
    first, second = (
        spec_of("d dice", "a llm d"),
        spec_of("d dice", "a llm d", options={"a": MINUTE}),
    )
    lab.submit("r1", first)
    served(lab)
    lab.now += 30
    lab.submit("r2", second)
    end = ended(lab.finish(lab.running()[0], inline(b"0")))
    assert record(end, "a").reused
    lab.now += 40
    lab.submit("r3", second)
    assert item(lab.finish(lab.running()[0], inline(b"0"))).node == 1


@pytest.mark.parametrize(("age_s", "taken"), [(59.0, True), (60.0, False)])
def test_what_a_store_offers_counts_from_its_birth(age_s: float, taken: bool) -> None:
    assert offered(Lab(), BRIEF, age_s, 1e6) == taken
    assert offered(Lab(), LASTING, age_s, 1e6)


def test_of_unknown_age_is_too_old_for_who_says_how_old() -> None:
    assert not offered(Lab(), BRIEF, math.inf, math.inf)
    assert offered(Lab(), LASTING, math.inf, math.inf)


def test_the_store_is_told_how_old_a_result_is_and_the_eldest_that_it_was_made_of() -> None:
    lab = Lab(STORED)
    spec = spec_of("q embed", "a llm q")
    lab.submit("r1", spec)
    (told,) = only(lab.finish(lab.running()[0]), KeepResult)
    assert (told.age_s, told.eldest_age_s) == (0.0, 0.0)
    lab.now += 9
    (told,) = only(lab.finish(lab.running()[0]), KeepResult)
    assert (told.age_s, told.eldest_age_s) == (0.0, 10.0)


# ---- what it was made of


def test_nothing_is_taken_that_was_made_of_what_a_node_above_would_not_take() -> None:
    lasting, brief = pair("a embed", "b llm a", a=MINUTE)
    lab = Lab()
    lab.submit("r1", lasting)
    served(lab)
    lab.now += 30
    assert record(ended(lab.submit("r2", brief)), "b").reused
    lab.now += 40
    assert item(lab.submit("r3", brief)).node == 0, "not even what was made of it"
    served(lab, "new ")
    assert record(ended(lab.submit("r4", brief)), "b").reused


def test_an_old_ancestor_that_says_nothing_ends_nobodys_reuse() -> None:
    lasting, brief = pair("a embed", "b llm a", b=MINUTE)
    lab = Lab()
    lab.submit("r1", lasting)
    lab.finish(lab.running()[0])
    lab.now += 1_000
    served(lab)
    assert record(ended(lab.submit("r2", brief)), "b").reused


def test_work_at_that_was_made_of_something_older_is_not_joined() -> None:
    lasting, brief = pair("a embed", "b llm a", a=MINUTE)
    lab = Lab(slots=2)
    lab.submit("r1", lasting)
    old = item(lab.finish(lab.running()[0], inline(b"old")))
    lab.now += 100
    first = item(lab.submit("r2", brief))
    assert first.node == 0
    second = item(lab.finish(first, inline(b"new")))
    assert second.node == 1 and second.upstream != old.upstream
    lab.finish(old, inline(b"of old"))
    assert ended(lab.finish(second, inline(b"of new"))).outputs == ((1, inline(b"of new")),)


def test_a_member_that_brings_older_inputs_than_others_may_have_goes_its_own_way() -> None:
    lasting, brief = pair("a embed", "p search", "b llm a p", a=MINUTE)
    lab = Lab(slots=2)
    only_a = spec_of("a embed")
    lab.finish(item(lab.submit("r0", only_a)), inline(b"old"))
    lab.now += 100
    fresh, search = items(lab.submit("r1", brief))
    assert (fresh.node, search.node) == (0, 1)
    assert items(lab.submit("r2", lasting)) == [], "it has the old one, and joins"
    theirs = item(lab.finish(search, inline(b"found")))
    assert (theirs.run_id, theirs.upstream[0][1]) == ("r2", inline(b"old"))
    ours = item(lab.finish(fresh, inline(b"new")))
    assert (ours.run_id, ours.upstream[0][1]) == ("r1", inline(b"new"))
    assert ended(lab.finish(theirs, inline(b"of old"))).run_id == "r2"
    assert ended(lab.finish(ours, inline(b"of new"))).run_id == "r1"


def test_a_leader_with_older_inputs_than_others_may_have_leaves_them_its_place() -> None:
    lasting, brief = pair("a embed", "p search", "b llm a p", a=MINUTE)
    lab = Lab(slots=2)
    lab.finish(item(lab.submit("r0", spec_of("a embed"))), inline(b"old"))
    search = item(lab.submit("r1", lasting))
    lab.now += 100
    fresh = item(lab.submit("r2", brief))
    theirs = item(lab.finish(search, inline(b"found")))
    assert theirs.upstream[0][1] == inline(b"old")
    ours = item(lab.finish(fresh, inline(b"new")))
    end = ended(lab.finish(ours, inline(b"of new")))
    assert end.run_id == "r2" and record(end, "b").fused_into == ""
    assert ended(lab.finish(theirs, inline(b"of old"))).run_id == "r1"


def test_a_conditional_node_joins_nothing_that_was_made_of_something_older() -> None:
    lines = ("g embed", "a embed", "b llm a if=g")
    lasting, brief = pair(*lines, a=MINUTE)
    lab = Lab(slots=3)
    lab.submit("r1", lasting)
    served_first = lab.running()
    for work in served_first:
        lab.finish(work, inline(b"old"))
    (old,) = lab.running()
    lab.now += 100
    lab.submit("r2", brief)
    for work in [w for w in lab.running() if w.run_id == "r2"]:
        lab.finish(work, inline(b"new"))
    ours = [w for w in lab.running() if w.run_id == "r2"]
    assert [w.upstream[0][1] for w in ours if w.node == 2] == [inline(b"new")]
    assert old in lab.running()


# ---- items of lists


def lists(lab: Lab, run_id: str, *names: str, brief: bool = False) -> None:
    """Submit a list of items."""
    spec = spec_of("v many $x", options={"v": MINUTE} if brief else {})
    digests = tuple(inline(name.encode()).digest for name in names)
    facts = {"x": Fact(True, len(names), digests)}
    lab.submit(run_id, spec, " ".join(names), facts=facts)


def vectors(*names: str) -> Value:
    return inline(" ".join(names).encode())


def borrowed(lab: Lab) -> int:
    """How many items the last one started need not compute."""
    shared = lab.running()[-1].shared
    assert shared is not None
    return len(shared.borrowed)


def test_items_that_are_too_old_are_computed_again() -> None:
    lab = Lab(slots=3)
    lists(lab, "r1", "a", "b")
    lab.finish(lab.running()[0])
    lab.now += 30
    lists(lab, "r2", "b", "c", brief=True)
    assert borrowed(lab) == 1
    lab.finish(lab.running()[0])
    lab.now += 40
    lists(lab, "r3", "a", "d", brief=True)
    assert borrowed(lab) == 0
    lists(lab, "r4", "b", "e", brief=True)
    assert borrowed(lab) == 0, "it was borrowed itself, from what is too old now"
    lists(lab, "r5", "b", "f")
    assert borrowed(lab) == 1, "it says nothing"


def test_a_list_of_older_items_is_no_younger_than_these() -> None:
    lab = Lab(slots=3)
    lists(lab, "r1", "a")
    lab.finish(lab.running()[0])
    lab.now += 70
    lists(lab, "r2", "a", "b")
    assert borrowed(lab) == 1
    before = lab.running()[0]
    lists(lab, "r3", "a", "b", brief=True)
    assert borrowed(lab) == 0, "not joined"
    lab.finish(before)
    lab.finish(lab.running()[0])
    lists(lab, "r4", "a", "b", brief=True)
    assert borrowed(lab) == 0, "nor taken when it is complete"


def test_who_says_how_old_waits_for_nobody_who_borrows() -> None:
    lab = Lab(slots=4)
    lists(lab, "r1", "a", "b")
    lists(lab, "r2", "b", "c")
    assert len(lab.running()) == 1, "it waits for b"
    lists(lab, "r3", "c", "d", brief=True)
    assert borrowed(lab) == 0
    lists(lab, "r4", "a", "e", brief=True)
    assert len(lab.running()) == 2, "it waits for a, which is being computed"


# ---- below what was drawn


def test_what_lies_below_a_drawn_answer_is_not_written_for_later() -> None:
    """Its key names the run: nobody will ask for it again."""
    lab = Lab(STORED, seeded=True)
    spec = spec_of("d dice", "a llm d", "b llm a", "q embed", "c llm q b", outputs="c q")
    lab.submit("r1", spec)
    before = len(lab.log)
    served(lab)
    told = only(lab.log[before:], KeepResult)
    assert [kept.signature for kept in told] == [signatures_of(spec, "same", "r1")[3]]
    lab.submit("r2", spec)
    end = ended(lab.finish(lab.running()[0], inline(b"0")))
    assert all(record(end, n).reused for n in "abc"), "by value it is there"


def test_below_a_drawn_answer_a_merged_twin_is_written_under_its_own_key() -> None:
    lab = Lab(STORED, seeded=True, slots=3)
    drawn, plain = spec_of("d dice", "a llm d"), spec_of("d llm", "a llm d")
    lab.submit("r1", drawn)
    lab.finish(lab.running()[0], inline(b"words"))
    lab.submit("r2", plain)
    lab.finish(lab.running()[-1], inline(b"words"))
    told = only(lab.finish(lab.running()[0]), KeepResult)
    assert [kept.signature for kept in told] == [signatures_of(plain, "same", "r2")[1]]


def test_below_a_list_that_was_drawn_nothing_is_written() -> None:
    lab = Lab(STORED)
    spec = spec_of("d dice", "e embed % in=m", "a llm e", regions={"m": "d"})
    lab.submit("r1", spec)
    lab.finish(lab.running()[0], listed(2))
    before = len(lab.log)
    lab.finish_all()
    assert only(lab.log[before:], KeepResult) == []
