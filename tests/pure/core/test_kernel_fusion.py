"""Fusion and reuse: equal work is done once, and never at somebody's cost."""

from __future__ import annotations

from herasys_rt.core.commands import AcceptRun, FinishRun
from herasys_rt.core.events import CollectionChanged
from herasys_rt.core.kernel import KernelConfig, counters
from herasys_rt.graph.spec import NodeOptions
from tests.pure.core.kernel_lab import (
    BROKEN,
    BUSY,
    Lab,
    aborts,
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

CHAIN = spec_of("q embed", "s search q", "a llm s")
ANSWER = spec_of("a llm")
DOCS = (("docs",),)


def test_equal_runs_at_the_same_time_execute_each_node_once() -> None:
    lab = Lab()
    lab.submit("r1", CHAIN)
    assert lab.submit("r2", CHAIN) == [AcceptRun("r2", "client")]
    first, second = lab.finish_all()
    assert first.outputs == second.outputs
    assert [node.fused_into for node in second.nodes] == ["r1/q", "r1/s", "r1/a"]
    assert [(node.run_s, node.attempts) for node in second.nodes] == [(0.0, 0)] * 3
    assert lab.nodes() == {"submitted": 6, "executed": 3, "fused": 3}


def test_every_unfinished_stage_of_a_flight_can_be_joined() -> None:
    lab = Lab()
    lab.submit("r0", ANSWER, "slot holder")
    lab.submit("queued", ANSWER)
    lab.submit("joins queued", ANSWER)
    started = item(lab.finish(lab.running()[0]))
    lab.submit("joins starting", ANSWER)
    lab.begin(started)
    lab.submit("joins running", ANSWER)
    ends = only(lab.finish(started), FinishRun)
    assert [end.run_id for end in ends] == [
        "queued",
        "joins queued",
        "joins starting",
        "joins running",
    ]


def test_bills_divide_what_was_executed_among_those_it_was_finished_for() -> None:
    lab = Lab()
    lab.submit("r1", ANSWER, "asked")
    for name in ("r2", "r3", "r4"):
        lab.submit(name, ANSWER, "asked")
    lab.cancel("r2")  # Who leaves before the end pays nothing.
    ends = only(lab.finish(lab.running()[0], run_s=3.0), FinishRun)
    late = ended(lab.submit("r5", ANSWER, "asked"))
    assert [(n.share, n.billed_s) for end in ends for n in end.nodes] == [(1 / 3, 1.0)] * 3
    assert [(n.reused, n.share, n.billed_s) for n in late.nodes] == [(True, 0.0, 0.0)]


def test_a_failed_attempt_is_billed_like_any_other() -> None:
    lab = Lab()
    lab.submit("r1", ANSWER, "asked")
    lab.submit("r2", ANSWER, "asked")
    ends = only(lab.fail(lab.running()[0]), FinishRun)
    assert [n.share for end in ends for n in end.nodes] == [0.5, 0.5]


def test_tries_that_failed_are_billed_with_the_one_that_ended_the_flight() -> None:
    lab = Lab()
    for name in ("r1", "r2"):
        lab.submit(name, ANSWER, "asked")
    for run_s in (4.0, 2.0):
        lab.fail(lab.running()[0], BUSY, run_s=run_s)
    ends = only(lab.finish(lab.running()[0], run_s=1.0), FinishRun)
    nodes = [n for end in ends for n in end.nodes]
    assert [(n.share, n.billed_s) for n in nodes] == [(0.5, 3.5)] * 2
    assert [(n.run_s, n.attempts) for n in nodes if not n.fused_into] == [(1.0, 3)]
    lab.submit("r3", ANSWER, "other")
    for run_s in (4.0, 2.0, 1.0):
        out = lab.fail(lab.running()[0], BUSY, run_s=run_s)
    assert [n.billed_s for n in ended(out).nodes] == [7.0]


def test_an_attempt_that_took_too_long_is_billed_for_its_time() -> None:
    lab = Lab(slots=2)
    lab.submit("r1", spec_of("a llm", options={"a": NodeOptions(timeout_s=5.0)}))
    lab.pass_time(5.0)
    assert ended(lab.finish(lab.running()[-1], run_s=1.0)).nodes[0].billed_s == 6.0


def test_a_completed_result_is_reused_with_its_meta() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", ANSWER)), inline(b"text"), meta=b"usage")
    out = lab.submit("r2", ANSWER)
    assert [type(c) for c in out] == [AcceptRun, FinishRun]
    node = record(ended(out), "a")
    assert (node.reused, node.meta, node.instance) == (True, b"usage", "")
    assert ended(out).outputs == ((0, inline(b"text")),)


def test_a_reused_sink_makes_its_ancestors_unnecessary() -> None:
    lab = Lab(KernelConfig(reuse_max_entries=1))
    lab.submit("r1", CHAIN)
    lab.finish_all()
    assert len(lab.state.table.completed) == 1
    end = ended(lab.submit("r2", CHAIN))
    assert states(end) == {"q": "skipped", "s": "skipped", "a": "succeeded"}
    assert lab.nodes() == {"submitted": 6, "executed": 3, "reused": 1, "skipped": 2}


def test_unneeded_ancestors_that_are_there_are_reused_for_their_provenance() -> None:
    lab = Lab()
    lab.finish(item(lab.submit("r1", CHAIN)))
    lab.finish(lab.running()[0], meta=b"sources")
    lab.submit("r2", CHAIN)
    _, end = only(lab.finish(lab.running()[0]), FinishRun)
    assert record(end, "s").reused and record(end, "s").meta == b"sources"
    assert record(end, "a").fused_into == "r1/a"


def test_a_joined_node_with_unshared_ancestors_skips_them_once_it_needs_no_inputs() -> None:
    lab = Lab(KernelConfig(reuse_max_bytes=0))
    lab.submit("r1", CHAIN)
    lab.finish(lab.running()[0])
    lab.finish(lab.running()[0])
    assert lab.submit("r2", CHAIN) == [AcceptRun("r2", "client")]
    _, end = only(lab.finish(lab.running()[0]), FinishRun)
    assert states(end) == {"q": "skipped", "s": "skipped", "a": "succeeded"}


def test_an_effect_is_executed_by_every_run() -> None:
    lab = Lab()
    spec = spec_of("w write", "a llm", outputs="a")
    lab.submit("r1", spec)
    lab.submit("r2", spec)
    lab.finish_all()
    lab.submit("r3", spec)
    lab.finish_all()
    assert lab.nodes() == {"submitted": 6, "executed": 4, "fused": 1, "reused": 1}


def test_sampled_and_unsigned_nodes_never_fuse() -> None:
    lab = Lab(slots=4)
    for run_id in ("r1", "r2"):
        assert len(items(lab.submit(run_id, spec_of("a dice")))) == 1
    for run_id in ("r3", "r4"):
        assert len(items(lab.submit(run_id, ANSWER, signed=False))) == 1


def test_without_fusion_every_node_is_executed() -> None:
    lab = Lab(KernelConfig(fusion=False), slots=2)
    for run_id in ("r1", "r2"):
        assert len(items(lab.submit(run_id, ANSWER))) == 1
    lab.finish_all()
    assert len(items(lab.submit("r3", ANSWER))) == 1


def test_twins_within_one_run_are_one_flight_and_fail_once() -> None:
    lab = Lab(slots=2)
    spec = spec_of("x embed", "y embed", "a llm x y")
    started = item(lab.submit("r1", spec))
    answer = item(lab.finish(started, inline(b"v")))
    assert answer.upstream == ((0, inline(b"v")), (1, inline(b"v")))
    other = item(lab.submit("r2", spec, "other"))
    end = ended(lab.fail(other))
    assert (end.failed_node, states(end)["y"]) == ("x", "failed")


# ---- one member's end is not another's


def test_cancelling_the_leader_keeps_the_flight_for_its_members() -> None:
    """Known fault 3."""
    for steps in range(5):
        lab = Lab()
        lab.submit("r1", CHAIN)
        lab.submit("r2", CHAIN)
        for step in range(steps):
            running = lab.running()[0]
            lab.finish(running) if step % 2 else lab.begin(running)
        assert aborts(lab.cancel("r1")) == []
        (end,) = lab.finish_all()
        assert (end.run_id, end.status) == ("r2", "succeeded")
        last = record(end, "a")
        assert (last.fused_into, last.attempts, last.instance) == ("", 1, "llm-1")


def test_a_leader_that_leaves_says_what_it_had_executed() -> None:
    lab = Lab()
    lab.begin(item(lab.submit("r1", ANSWER)))
    lab.submit("r2", ANSWER)
    left = record(ended(lab.cancel("r1")), "a")
    assert (left.state, left.instance, left.attempts) == ("cancelled", "llm-1", 1)


def test_cancelling_one_member_keeps_the_flight() -> None:
    lab = Lab()
    started = item(lab.submit("r1", ANSWER))
    lab.submit("r2", ANSWER)
    assert aborts(lab.cancel("r2")) == []
    assert ended(lab.finish(started)).run_id == "r1"


def test_the_last_member_takes_a_queued_flight_with_it() -> None:
    lab = Lab()
    started = item(lab.submit("r0", ANSWER, "slot holder"))
    lab.submit("r1", ANSWER)
    lab.submit("r2", ANSWER)
    lab.cancel("r1")
    assert counters(lab.state)["pools"]["llm"]["queued"] == 1  # pyright: ignore
    lab.cancel("r2")
    assert items(lab.finish(started)) == [] and not lab.state.flights


def test_a_twin_of_aborted_work_starts_anew() -> None:
    lab = Lab(slots=2)
    first = item(lab.submit("r1", ANSWER))
    lab.cancel("r1")
    second = item(lab.submit("r2", ANSWER))
    assert second.flight != first.flight
    lab.aborted(first)
    assert ended(lab.finish(second)).run_id == "r2"


def test_a_result_that_outran_its_abort_is_reused() -> None:
    lab = Lab()
    first = item(lab.submit("r1", ANSWER))
    lab.cancel("r1")
    assert releases(lab.finish(first, placed("late"))) == []
    assert ended(lab.submit("r2", ANSWER)).status == "succeeded"


def test_a_waiting_flight_is_fed_by_whichever_member_has_its_inputs_first() -> None:
    lab = Lab(slots=2)
    fresh = {"x": NodeOptions(cache=False)}
    spec = spec_of("x embed", "y search", "a llm x y", options=fresh)
    lab.submit("r1", spec)
    x1, y1 = lab.running()
    lab.finish(x1, inline(b"first"))
    lab.submit("r2", spec)
    x2 = lab.running()[-1]
    assert x2.flight not in (x1.flight, y1.flight), "its result is not shared"
    lab.cancel("r1")
    lab.finish(y1, inline(b"y"))
    answer = item(lab.finish(x2, inline(b"second")))
    assert answer.upstream == ((0, inline(b"second")), (1, inline(b"y")))
    assert (answer.run_id, answer.inputs) == ("r2", inline(b"same"))


def test_ancestors_nobody_needs_any_more_are_stopped_when_another_member_feeds() -> None:
    lab = Lab(slots=2)
    fresh = {"x": NodeOptions(cache=False)}
    spec = spec_of("p embed", "x embed p", "y search", "a llm x y", options=fresh)
    lab.submit("r1", spec)
    p1, y1 = lab.running()
    x1 = item(lab.finish(p1))
    lab.finish(x1)
    lab.submit("r2", spec)
    x2 = lab.running()[-1]
    out = lab.finish(y1)
    assert aborts(out) == [("embed-1", x2.flight, 1)]
    lab.aborted(x2)
    end = lab.finish_all()[-1]
    assert (end.run_id, states(end)["x"], states(end)["a"]) == (
        "r2",
        "skipped",
        "succeeded",
    )


def test_failure_reaches_every_member_once_and_nobody_else() -> None:
    lab = Lab(slots=2)
    spec = spec_of("x embed", "a llm x")
    other = spec_of("x embed", "b dice x", name="other")
    lab.submit("r1", spec)
    lab.submit("r2", spec)
    lab.submit("r3", other)
    answer, _ = items(lab.finish(lab.running()[0]))
    out = lab.fail(answer)
    assert [(e.run_id, e.error, e.failed_node) for e in only(out, FinishRun)] == [
        ("r1", BROKEN, "a"),
        ("r2", BROKEN, "a"),
    ]
    assert [end.run_id for end in lab.finish_all()] == ["r3"]


# ---- what may be reused


def test_a_failed_cancelled_or_truncated_result_is_never_reused() -> None:
    """Known fault 24."""
    lab = Lab()
    lab.fail(item(lab.submit("r1", ANSWER)))
    second = item(lab.submit("r2", ANSWER))
    lab.cancel("r2")
    lab.aborted(second)
    lab.finish(item(lab.submit("r3", ANSWER)), truncated=True)
    assert len(items(lab.submit("r4", ANSWER))) == 1


def test_a_truncated_result_still_serves_the_runs_that_share_its_flight() -> None:
    lab = Lab()
    started = item(lab.submit("r1", ANSWER))
    lab.submit("r2", ANSWER)
    assert len(only(lab.finish(started, truncated=True), FinishRun)) == 2


def test_what_is_made_of_a_truncated_result_is_neither_kept_nor_joined_later() -> None:
    """Known fault 24, one node on."""
    lab = Lab(slots=4)
    spec = spec_of("a llm", "b embed a")
    below = item(lab.finish(item(lab.submit("r1", spec)), inline(b"cut"), truncated=True))
    whole = item(lab.submit("r2", spec))
    assert whole.node == 0, "what was made of the cut text is not this run's"
    lab.finish(below, inline(b"of a cut text"))
    assert items(lab.submit("r3", spec)) == [], "the whole text is under way"
    lab.finish(item(lab.finish(whole)), inline(b"of a whole text"))
    assert ended(lab.submit("r4", spec)).outputs == ((1, inline(b"of a whole text")),)


def test_after_a_collection_changed_earlier_results_are_not_reused() -> None:
    """Known fault 25."""
    lab = Lab(slots=2)
    search = spec_of("s search")
    lab.send(CollectionChanged("docs", 7))
    first = item(lab.submit("r1", search, collections=DOCS))
    lab.finish(first, revisions={"docs": 7})
    assert ended(lab.submit("r2", search, collections=DOCS)).nodes[0].reused
    lab.send(CollectionChanged("docs", 8))
    assert len(items(lab.submit("r3", search, collections=DOCS))) == 1
    lab.send(CollectionChanged("docs", 7))
    assert items(lab.submit("r4", search, collections=DOCS)) == []


def test_a_finished_write_makes_earlier_results_unusable_before_its_run_ends() -> None:
    """Known fault 25."""
    lab = Lab()
    search = spec_of("s search")
    lab.send(CollectionChanged("docs", 1))
    first = item(lab.submit("r1", search, collections=DOCS))
    lab.finish(first, revisions={"docs": 1})
    write = item(lab.submit("w", spec_of("w write")))
    lab.finish(write, revisions={"docs": 2})
    assert len(items(lab.submit("r2", search, collections=DOCS))) == 1


def test_a_result_of_another_revision_than_its_key_is_not_reused_nor_what_follows() -> None:
    lab = Lab()
    rag = spec_of("s search", "a llm s")
    reads = (("docs",), ("docs",))
    lab.send(CollectionChanged("docs", 5))
    search = item(lab.submit("r1", rag, collections=reads))
    answer = item(lab.finish(search, revisions={"docs": 4}))
    lab.finish(answer)
    assert not lab.state.table.completed
    again = item(lab.submit("r2", rag, collections=reads))
    lab.finish(item(lab.finish(again, revisions={"docs": 5})))
    assert len(lab.state.table.completed) == 2


def test_every_collection_that_was_read_has_to_have_the_revision_of_the_key() -> None:
    for seen, kept in (({"a": 1, "b": 2}, 0), ({"a": 1, "b": 1}, 1), ({"a": 1}, 1)):
        lab = Lab()
        for collection in ("a", "b"):
            lab.send(CollectionChanged(collection, 1))
        work = item(lab.submit("r1", spec_of("s search"), collections=(("a", "b"),)))
        lab.finish(work, revisions=seen)
        assert len(lab.state.table.completed) == kept


def test_what_was_made_of_another_revision_than_its_key_is_not_joined_later() -> None:
    lab = Lab(slots=4)
    rag = spec_of("s search", "a llm s")
    reads = (("docs",), ("docs",))
    lab.send(CollectionChanged("docs", 5))
    search = item(lab.submit("r1", rag, collections=reads))
    lab.finish(search, revisions={"docs": 4})
    assert item(lab.submit("r2", rag, collections=reads)).node == 0


def test_results_expire_by_verb_and_with_what_they_were_made_of() -> None:
    lab = Lab(KernelConfig(reuse_ttl_s={"pg.search": 10.0}))
    spec = spec_of("s search", "a llm s")
    lab.submit("r1", spec)
    lab.finish_all()
    lab.now += 4
    assert ended(lab.submit("r2", spec)).nodes[1].reused
    lab.now += 10
    assert item(lab.submit("r3", spec)).node == 0
    assert not lab.state.table.completed


def test_reuse_is_bounded_by_entries_the_least_recently_used_going_first() -> None:
    lab = Lab(KernelConfig(reuse_max_entries=2))
    for salt in ("1", "2"):
        lab.finish(item(lab.submit(f"r{salt}", ANSWER, salt)), placed(f"v{salt}"))
    lab.submit("again", ANSWER, "1")
    out = lab.finish(item(lab.submit("r3", ANSWER, "3")), placed("v3"))
    assert releases(out) == ["v2"]


def test_reuse_is_bounded_by_bytes() -> None:
    lab = Lab(KernelConfig(reuse_max_bytes=250))
    for salt in ("1", "2"):
        lab.finish(item(lab.submit(f"r{salt}", ANSWER, salt)), placed(f"v{salt}", 100))
    assert lab.state.table.bytes == 200
    out = lab.finish(item(lab.submit("r3", ANSWER, "3")), placed("v3", 60))
    assert (releases(out), lab.state.table.bytes) == (["v1"], 160)
    out = lab.finish(item(lab.submit("r4", ANSWER, "4")), placed("huge", 251))
    assert (releases(out), lab.state.table.bytes) == (["huge"], 160)


def test_what_an_active_run_holds_is_not_evicted() -> None:
    lab = Lab(KernelConfig(reuse_max_entries=0))
    embed = item(lab.submit("r1", CHAIN))
    search = item(lab.finish(embed, placed("vector")))
    assert lab.submit("r2", CHAIN, client="y") == [AcceptRun("r2", "y")]
    assert record(ended(lab.cancel("r2")), "q").reused
    assert "vector" in lab.state.ledger.counts
    lab.finish(search)
    assert "vector" in releases(lab.finish(lab.running()[0]))
    assert not lab.state.table.completed


def test_an_expired_value_stays_until_its_last_holder_ended() -> None:
    lab = Lab(KernelConfig(reuse_ttl_s={"embed": 1.0}))
    embed = item(lab.submit("r1", CHAIN))
    lab.finish(embed, placed("vector"))
    lab.now += 10
    twin = item(lab.submit("r2", spec_of("q embed")))
    assert twin.flight != embed.flight
    search = next(i for i in lab.running() if i.run_id == "r1")
    assert "vector" in lab.state.ledger.counts
    assert releases(lab.cancel("r1")) == [], "its search still works with it"
    assert releases(lab.aborted(search)) == ["vector"]
