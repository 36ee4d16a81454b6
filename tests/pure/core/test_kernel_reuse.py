"""Purges, what a store keeps and offers, and what sharing has saved."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.core import savings
from herasys_rt.core.commands import DropKept, FinishRun, KeepResult
from herasys_rt.core.events import (
    CachePurged,
    CollectionChanged,
    Hint,
    ItemFinished,
    RunSubmitted,
    SpecRegistered,
)
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.reuse import report
from herasys_rt.core.values import Fact, Value
from herasys_rt.graph.spec import NodeOptions, WorkflowSpec
from tests.pure.core.kernel_lab import (
    BROKEN,
    Lab,
    ended,
    inline,
    item,
    items,
    only,
    placed,
    record,
    releases,
    said,
    signatures_of,
    spec_of,
    states,
)

ANSWER = spec_of("a llm")
RAG = spec_of("q embed", "s search q", "a llm s")
READS = ((), ("docs",), ("docs",))
STORED = KernelConfig(reuse_store=True)


def offer(lab: Lab, run_id: str, spec: WorkflowSpec, hint: Hint, **more: Any) -> Any:
    """Submit a run with a hint."""
    lab.send(SpecRegistered(spec))
    return lab.send(
        RunSubmitted(
            run_id,
            spec.id,
            "client",
            more.pop("tenant", "tenant"),
            inline(b"same"),
            signatures_of(spec, "same", run_id),
            more.pop("collections", ()),
            hints=(hint,),
        )
    )


def hint_of(lab: Lab, value: Value, node: int = 0, **more: Any) -> Hint:
    """A hint that is good now."""
    return Hint(node, lab.state.table.generation, value, "tenant", b"meta", **more)


# ---- purges


def test_what_was_purged_is_computed_again() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", ANSWER)))
    assert ended(lab.submit("r2", ANSWER)).nodes[0].reused
    lab.send(CachePurged())
    assert lab.state.table.bytes == 0 and not lab.state.table.held_bytes
    assert len(items(lab.submit("r3", ANSWER))) == 1


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({}, []),
        ({"tenant": "theirs"}, ["ours", "ours docs"]),
        ({"collection": "docs"}, ["ours", "theirs"]),
        ({"collection": "docs", "tenant": "theirs"}, ["ours", "ours docs", "theirs"]),
        ({"signature": signatures_of(ANSWER, "ours", "")[0]}, ["ours docs", "theirs"]),
        ({"collection": "others"}, ["ours", "ours docs", "theirs"]),
    ],
)
def test_a_purge_takes_what_all_its_filters_name(
    filters: dict[str, Any], left: list[str]
) -> None:
    lab = Lab(slots=3)
    lab.send(CollectionChanged("docs", 1))
    search = spec_of("s search")
    lab.submit("r1", ANSWER, "ours", tenant="ours")
    lab.submit("r2", search, "ours docs", tenant="ours", collections=(("docs",),))
    lab.submit("r3", ANSWER, "theirs", tenant="theirs")
    for running in lab.running():
        lab.finish(running, inline(running.run_id.encode()))
    lab.send(CachePurged(**filters))
    runs = {inline(b"r1"): "ours", inline(b"r2"): "ours docs", inline(b"r3"): "theirs"}
    kept = sorted(runs[entry.value] for entry in lab.state.table.listed())
    assert kept == left


def test_work_under_way_is_delivered_and_neither_kept_nor_joined_after_a_purge() -> None:
    lab = Lab(slots=2)
    before = item(lab.submit("r1", ANSWER))
    lab.send(CachePurged())
    after = item(lab.submit("r2", ANSWER))
    assert after.flight != before.flight, "it may have begun with what was purged"
    assert ended(lab.finish(before, inline(b"old"))).outputs == ((0, inline(b"old")),)
    lab.finish(after, inline(b"new"))
    assert ended(lab.submit("r3", ANSWER)).outputs == ((0, inline(b"new")),)


def test_a_result_that_outruns_its_abort_is_not_kept_after_a_purge() -> None:
    lab = Lab()
    started = item(lab.submit("r1", ANSWER))
    lab.cancel("r1")
    lab.send(CachePurged())
    assert releases(lab.finish(started, placed("late"))) == ["late"]


def test_nothing_that_is_made_of_purged_results_is_kept() -> None:
    lab = Lab()
    lab.send(CollectionChanged("docs", 1))
    lab.submit("r1", RAG, collections=READS)
    lab.finish(lab.running()[0])
    lab.finish(lab.running()[0], revisions={"docs": 1})
    search = signatures_of(RAG, "same", "")[1]
    lab.send(CachePurged(signature=search))
    assert ended(lab.finish(lab.running()[0])).status == "succeeded"
    assert [key[0] for key in lab.state.table.completed] == [
        signatures_of(RAG, "same", "")[0]
    ]


GUARDED = spec_of("c embed", "a llm if=c", "b search a", outputs="b")
ELEMENTS = spec_of("q embed", "e search % q in=r", "a llm e", regions={"r": 2})


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("spec", [RAG, GUARDED, ELEMENTS], ids=["flat", "guard", "list"])
@pytest.mark.parametrize(
    "purge", [CachePurged(), CachePurged("tenant")], ids=["all", "own"]
)
def test_what_runs_at_work_make_after_a_purge_of_everything_is_found_by_no_key(
    purge: CachePurged, spec: WorkflowSpec, steps: int
) -> None:
    lab = Lab(STORED, seeded=True, slots=4)
    lab.submit("r1", spec)
    for _ in range(steps):
        if running := lab.running():
            lab.finish(running[0], said(True))
    ended_before = not lab.state.runs
    out = lab.send(purge)
    while running := lab.running():
        out += lab.finish(running[0], said(True))
    assert ended_before or only(out, FinishRun)
    assert not lab.state.table.completed and not only(out, KeepResult)


def test_what_runs_make_of_a_purged_collection_is_found_by_no_key() -> None:
    for steps, kept in ((0, "embed@1"), (1, "embed@1"), (2, "embed@1")):
        lab = Lab(seeded=True)
        lab.send(CollectionChanged("docs", 1))
        lab.submit("r1", RAG, collections=READS)
        for _ in range(steps):
            lab.finish(lab.running()[0])
        lab.send(CachePurged(collection="docs"))
        lab.finish_all()
        assert [e.owner.operator for e in lab.state.table.listed()] == [kept]


def test_who_gathers_purged_outputs_leaves_nothing() -> None:
    lab = Lab(seeded=True, slots=4)
    facts = {"xs": Fact(True, 1, (inline(b"x").digest,))}
    spec = spec_of("e embed % in=r", "a llm e", regions={"r": "$xs"})
    element = item(lab.submit("r1", spec, facts=facts))
    gathering = item(lab.finish(element))
    ((signature, _),) = lab.state.table.completed
    lab.send(CachePurged(signature=signature))
    lab.finish(gathering)
    assert not lab.state.table.completed


def test_elements_over_a_purged_list_leave_nothing() -> None:
    lab = Lab(seeded=True, slots=4)
    lab.submit("r1", spec_of("q embed", "e search % in=r", regions={"r": "q"}))
    told = replace(inline(b"list"), length=1, items=(inline(b"x").digest,))
    element = item(lab.finish(lab.running()[0], told))
    ((signature, _),) = lab.state.table.completed
    lab.send(CachePurged(signature=signature))
    lab.finish(element)
    assert not lab.state.table.completed


def test_what_is_offered_is_whose_it_was_and_counts_with_its_meta() -> None:
    lab = Lab()
    hint = replace(hint_of(lab, inline(b"v")), tenant="maker")
    assert ended(offer(lab, "r1", ANSWER, hint)).nodes[0].reused
    (entry,) = lab.state.table.listed()
    assert (entry.owner.tenant, entry.size) == ("maker", len(b"v") + len(b"meta"))


def test_merged_flights_are_found_by_none_of_their_keys_after_a_purge() -> None:
    lab = Lab(seeded=True, slots=4)
    chain, words = spec_of("e embed", "s search e"), inline(b"the same words")
    for run_id in ("r1", "r2"):
        lab.finish(item(lab.submit(run_id, chain, run_id)), words)
    lab.send(CachePurged())
    assert len(lab.finish_all()) == 2
    assert not lab.state.table.completed


@pytest.mark.parametrize("stage", ["waits", "is at work", "is open"])
def test_who_comes_after_a_purge_does_not_join_what_is_made_of_its_results(
    stage: str,
) -> None:
    """Of the purged result itself, or of what its flight gives: by signature."""
    lab = Lab(slots=4)
    spec = {
        "waits": spec_of("s search", "p embed", "a llm s p"),
        "is at work": spec_of("s search", "a llm s"),
        "is open": spec_of("s search", "p embed", "a llm s if=p"),
    }[stage]
    search = signatures_of(spec, "same", "")[0]
    first, *beside = items(lab.submit("r1", spec))
    lab.finish(first, inline(b"old"))
    lab.send(CachePurged(signature=search))
    again = item(lab.submit("r2", spec))
    assert again.node == 0
    for work in beside:
        lab.finish(work)
    (answer,) = [work for work in lab.running() if work.run_id == "r1"]
    lab.finish(answer, inline(b"of old"))
    lab.finish(item(lab.finish(again, inline(b"new"))), inline(b"of new"))
    first_end, second_end = only(lab.log, FinishRun)
    assert first_end.outputs[0][1] == inline(b"of old")
    assert second_end.outputs[0][1] == inline(b"of new")
    assert ended(lab.submit("r3", spec)).outputs == second_end.outputs


def test_who_holds_a_purged_result_keeps_it_to_the_end() -> None:
    lab = Lab()
    lab.submit("r1", RAG)
    lab.finish(lab.running()[0], placed("vector"))
    assert releases(lab.send(CachePurged())) == []
    lab.finish(lab.running()[0])
    assert "vector" in releases(lab.finish(lab.running()[0]))


def test_the_store_hears_of_every_purge_and_its_generation() -> None:
    lab = Lab(STORED)
    assert lab.send(CachePurged(tenant="t")) == [DropKept(1, "t")]
    assert lab.send(CachePurged(collection="c")) == [DropKept(2, None, "c")]
    assert Lab().send(CachePurged()) == []


# ---- what the store keeps


def test_the_store_hears_of_whole_exact_results_with_what_is_left_of_their_time() -> None:
    lab = Lab(replace(STORED, reuse_ttl_s={"embed": 10.0, "llm.generate": 60.0}))
    lab.send(CollectionChanged("docs", 7))
    lab.submit("r1", RAG, collections=READS)
    (embedded,) = only(lab.finish(lab.running()[0]), KeepResult)
    (found,) = only(lab.finish(lab.running()[0], revisions={"docs": 7}), KeepResult)
    (said,) = only(lab.finish(lab.running()[0], meta=b"usage"), KeepResult)
    signatures = signatures_of(RAG, "same", "")
    assert [k.signature for k in (embedded, found, said)] == list(signatures)
    assert (embedded.ttl_s, found.ttl_s, said.ttl_s) == (10.0, 9.0, 8.0)
    assert (found.revisions, said.revisions) == ((("docs", 7),),) * 2
    assert (said.meta, said.operator, said.tenant) == (b"usage", "llm@1", "tenant")
    assert (said.run_s, said.generation) == (0.5, 0)


def test_the_store_hears_of_what_was_taken_by_value_under_its_own_name() -> None:
    lab = Lab(STORED, seeded=True)
    chain, words = spec_of("e embed", "s search e"), inline(b"the same words")
    lab.finish(item(lab.submit("r1", chain, "1")), words)
    lab.finish(lab.running()[0], inline(b"found"), meta=b"usage")
    out = lab.finish(item(lab.submit("r2", chain, "2")), words)
    _, kept = only(out, KeepResult)
    assert kept.signature == signatures_of(chain, "2", "")[1]
    assert (kept.value, kept.meta, kept.tenant) == (inline(b"found"), b"usage", "tenant")


def test_the_store_does_not_hear_of_what_an_input_has_outlasted() -> None:
    config = replace(STORED, reuse_ttl_s={"embed": 10.0})
    lab = Lab(config, seeded=True, slots=4)
    spec, words = spec_of("e embed", "l llm", "s search e l"), inline(b"the same words")
    for run_id in ("r1", "r2"):
        embedding, asking = items(lab.submit(run_id, spec, run_id))
        lab.finish(embedding, words)
        lab.now += 60
        out = lab.finish(asking, words)
        lab.finish_all()
    told = [kept.signature for kept in only(out, KeepResult)]
    assert told == [signatures_of(spec, "r2", "")[1]], "what its input was made of is over"


def test_without_a_bound_a_kept_result_has_none() -> None:
    lab = Lab(STORED)
    (kept,) = only(lab.finish(item(lab.submit("r1", spec_of("q embed")))), KeepResult)
    assert math.isinf(kept.ttl_s)


def test_the_store_does_not_hear_of_what_must_not_be_reused() -> None:
    lab = Lab(STORED)
    out = lab.finish(item(lab.submit("cut", ANSWER)), truncated=True)
    out += lab.fail(item(lab.submit("failed", ANSWER)))
    cancelled = item(lab.submit("cancelled", ANSWER))
    out += lab.cancel("cancelled") + lab.aborted(cancelled)
    private = spec_of("a llm", options={"a": NodeOptions(cache=False)})
    out += lab.finish(item(lab.submit("private", private)))
    out += lab.finish(item(lab.submit("sampled", spec_of("a dice"))))
    out += lab.finish(item(lab.submit("unsigned", ANSWER, signed=False)))
    lab.send(CollectionChanged("docs", 5))
    search, docs = spec_of("s search"), (("docs",),)
    stale = item(lab.submit("stale", search, collections=docs))
    out += lab.finish(stale, revisions={"docs": 4})
    assert only(out, KeepResult) == []


def test_what_depends_on_a_collection_that_nobody_told_of_is_not_stored() -> None:
    lab = Lab(STORED)
    search, docs = spec_of("s search"), (("docs",),)
    assert not only(
        lab.finish(item(lab.submit("r1", search, collections=docs))), KeepResult
    )
    assert ended(lab.submit("r2", search, collections=docs)).nodes[0].reused


def test_a_result_that_came_from_the_store_is_not_told_to_it_again() -> None:
    lab = Lab(STORED)
    out = offer(lab, "r1", ANSWER, hint_of(lab, inline(b"kept")))
    assert only(out, KeepResult) == []


# ---- what the store offers


def test_a_hint_is_a_completed_result() -> None:
    lab = Lab()
    end = ended(offer(lab, "r1", ANSWER, hint_of(lab, inline(b"kept"), run_s=2.0)))
    assert end.outputs == ((0, inline(b"kept")),)
    node = record(end, "a")
    assert (node.reused, node.meta, node.instance, node.run_s) == (True, b"meta", "", 0.0)
    assert ended(lab.submit("r2", ANSWER)).nodes[0].reused, "it stays in the table"
    assert report(lab.state)["hints"] == {"taken": 1, "ignored": 0}


def test_a_hint_for_the_last_node_makes_the_others_unnecessary() -> None:
    lab = Lab()
    end = ended(offer(lab, "r1", RAG, hint_of(lab, inline(b"kept"), 2)))
    assert states(end) == {"q": "skipped", "s": "skipped", "a": "succeeded"}


def test_a_hint_from_before_a_purge_is_ignored() -> None:
    lab = Lab()
    hint = hint_of(lab, placed("kept"))
    lab.send(CachePurged(tenant="somebody else"))
    out = offer(lab, "r1", ANSWER, hint)
    assert len(items(out)) == 1 and releases(out) == ["kept"]
    assert report(lab.state)["hints"] == {"taken": 0, "ignored": 1}


@pytest.mark.parametrize("known", [0, 6, 8])
def test_a_hint_of_another_revision_is_ignored(known: int) -> None:
    """Known fault 25."""
    lab = Lab()
    if known:
        lab.send(CollectionChanged("docs", known))
    hint = hint_of(lab, inline(b"kept"), revisions=(("docs", 7),))
    search = spec_of("s search")
    assert len(items(offer(lab, "r1", search, hint, collections=(("docs",),)))) == 1


def test_a_hint_of_the_revision_there_is_holds_until_it_moves() -> None:
    lab = Lab()
    lab.send(CollectionChanged("docs", 7))
    search, docs = spec_of("s search"), (("docs",),)
    hint = hint_of(lab, inline(b"kept"), revisions=(("docs", 7),))
    assert ended(offer(lab, "r1", search, hint, collections=docs)).nodes[0].reused
    lab.send(CollectionChanged("docs", 8))
    assert len(items(lab.submit("r2", search, collections=docs))) == 1


def test_a_hint_expires_and_so_does_what_is_made_of_it() -> None:
    lab = Lab()
    hint = hint_of(lab, inline(b"kept"), ttl_s=10.0)
    offer(lab, "r1", RAG, hint)
    lab.finish(lab.running()[0])
    lab.finish(lab.running()[0])
    lab.now += 4
    assert all(node.reused for node in ended(lab.submit("r2", RAG)).nodes)
    lab.now += 10
    assert item(lab.submit("r3", RAG)).node == 0
    over = hint_of(lab, inline(b"old"), ttl_s=0.0)
    assert len(items(offer(lab, "r4", ANSWER, over))) == 1


def test_a_hint_whose_time_is_over_is_ignored() -> None:
    lab = Lab()
    hint = hint_of(lab, inline(b"v"), ttl_s=0.0)
    assert len(items(offer(lab, "r1", ANSWER, hint))) == 1
    assert (lab.state.table.hints_taken, lab.state.table.hints_ignored) == (0, 1)


def test_a_hint_that_is_not_used_lets_its_value_go() -> None:
    unfit = Lab(KernelConfig(reuse_max_bytes=10))
    out = offer(unfit, "r1", ANSWER, hint_of(unfit, placed("big")))
    assert releases(out) == ["big"] and len(items(out)) == 1
    off = Lab(KernelConfig(fusion=False))
    assert releases(offer(off, "r1", ANSWER, hint_of(off, placed("kept")))) == ["kept"]
    lab = Lab()
    lab.finish(item(lab.submit("r0", ANSWER)), placed("mine"))
    assert releases(offer(lab, "r1", ANSWER, hint_of(lab, placed("kept")))) == ["kept"]
    again = offer(lab, "r1", ANSWER, hint_of(lab, placed("once more")))
    assert "once more" in releases(again), "a run that is refused"
    small = Lab(KernelConfig(reuse_max_entries=0))
    out = offer(small, "r1", ANSWER, hint_of(small, placed("kept")))
    assert ended(out).nodes[0].reused and releases(out) == ["kept"]


def test_a_node_that_keeps_out_of_the_cache_takes_no_hint() -> None:
    lab = Lab()
    private = spec_of("a llm", options={"a": NodeOptions(cache=False)})
    assert len(items(offer(lab, "r1", private, hint_of(lab, inline(b"kept"))))) == 1


# ---- what sharing saves


def finish_with(lab: Lab, tokens: int, run_s: float) -> None:
    running = lab.running()[0]
    event = ItemFinished(
        running.flight,
        running.attempt,
        lab.where(running),
        inline(b"text"),
        run_s,
        tokens=tokens,
    )
    lab.send(event)


def test_joined_and_reused_nodes_save_what_their_flight_took() -> None:
    lab = Lab()
    lab.submit("r1", ANSWER, tenant="ours")
    lab.submit("r2", ANSWER, tenant="theirs")
    finish_with(lab, tokens=30, run_s=2.0)
    lab.submit("r3", ANSWER, tenant="theirs")
    told = report(lab.state)
    assert told["operators"] == [
        {
            "operator": "llm@1",
            "tenant": "ours",
            "seen": 1,
            "executed": 1,
            "joined": 0,
            "reused": 0,
            "shared_items": 0,
            "saved_s": 0.0,
            "saved_tokens": 0,
            "hit_ratio": 0.0,
        },
        {
            "operator": "llm@1",
            "tenant": "theirs",
            "seen": 2,
            "executed": 0,
            "joined": 1,
            "reused": 1,
            "shared_items": 0,
            "saved_s": 4.0,
            "saved_tokens": 60,
            "hit_ratio": 1.0,
        },
    ]
    nodes: Any = told["nodes"]
    assert (nodes["saved_s"], nodes["saved_tokens"]) == (4.0, 60)
    assert nodes["hit_ratio"] == pytest.approx(2 / 3)
    assert told["held_bytes"] == {"llm@1": 4}
    mine: Any = report(lab.state, "ours")["operators"]
    assert [entry["tenant"] for entry in mine] == ["ours"]


def test_what_comes_from_the_store_saves_what_it_took_when_it_was_made() -> None:
    lab = Lab()
    offer(lab, "r1", ANSWER, hint_of(lab, inline(b"kept"), run_s=3.0, tokens=7))
    nodes: Any = report(lab.state)["nodes"]
    assert (nodes["reused"], nodes["saved_s"], nodes["saved_tokens"]) == (1, 3.0, 7)


def test_a_failed_member_has_saved_nothing() -> None:
    lab = Lab()
    started = item(lab.submit("r1", ANSWER))
    lab.submit("r2", ANSWER)
    assert len(only(lab.fail(started, BROKEN), FinishRun)) == 2
    nodes: Any = report(lab.state)["nodes"]
    assert (nodes["joined"], nodes["saved_s"]) == (1, 0.0)


def test_pairs_are_bounded_and_the_rest_is_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(savings, "MOST_PAIRS", 2)
    lab = Lab(slots=5)
    for tenant in "abcd":
        lab.submit(f"r{tenant}", ANSWER, tenant, tenant=tenant)
    lab.finish_all()
    told: Any = report(lab.state)["operators"]
    assert [(entry["tenant"], entry["seen"]) for entry in told] == [
        ("a", 1),
        ("b", 1),
        ("other", 2),
    ]
