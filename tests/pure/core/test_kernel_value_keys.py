"""Sharing by value: equal inputs are one piece of work, whatever structure led to them."""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from herasys_rt.core.commands import (
    AcceptRun,
    AddSubscriber,
    Command,
    FinishRun,
    WorkItem,
)
from herasys_rt.core.events import (
    CollectionChanged,
    PoolFailed,
    RunSubmitted,
    SpecRegistered,
)
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.values import Fact, Value
from herasys_rt.errors import ErrorInfo
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
    listed,
    only,
    piece,
    placed,
    record,
    releases,
    said,
    spec_of,
    states,
)

REWRITE = spec_of("q llm", "s search q", "a llm s")
"""A question is rewritten; what it is rewritten to is searched for."""
OTHER = spec_of("e embed", "q llm e", "s search q", "b rerank s", name="other")
"""Another structure that leads to a search."""
WORDS = inline(b"the same words")
READS = ((), ("docs",), ("docs",))


def lab_of(config: KernelConfig | None = None, slots: int = 4) -> Lab:
    return Lab(config, "embed rank pg llm", slots, seeded=True)


def begun(lab: Lab, *run_ids: str, reads: tuple[tuple[str, ...], ...] = ()) -> None:
    """Submit runs that ask different questions, each of which is being rewritten."""
    for run_id in run_ids:
        item(lab.submit(run_id, REWRITE, f"{run_id}?", collections=reads))


def rewritten(lab: Lab, run_id: str, words: Value = WORDS) -> list[Command]:
    """A run's question is rewritten to these words; gives what follows."""
    (rewriting,) = [i for i in lab.running() if i.run_id == run_id]
    return lab.finish(rewriting, words)


def search_of(lab: Lab) -> WorkItem:
    """The only search that runs."""
    (found,) = [i for i in lab.running() if i.node == 1]
    return found


# ---- joining what lives


def test_questions_rewritten_to_equal_words_share_the_search_and_what_follows() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    assert rewritten(lab, "r2") == []
    first, second = lab.finish_all()
    assert first.outputs == second.outputs
    assert [node.fused_into for node in second.nodes] == ["", "r1/s", "r1/a"]
    assert lab.nodes() == {"submitted": 6, "executed": 4, "fused": 2}


def test_a_key_by_value_is_made_of_the_seed_and_what_the_parents_gave() -> None:
    lab = lab_of()
    spec = spec_of("q llm", "e embed", "s search q e q")
    item_q, item_e = items(lab.submit("r1", spec, collections=((), (), ("docs",))))
    lab.send(CollectionChanged("docs", 4))
    other = inline(b"other words")
    lab.finish(item_q, WORDS)
    lab.finish(item_e, other)
    (flight,) = lab.state.flights.values()
    seed = lab.state.runs["r1"].fragments[0].seeds[2]
    made_of = [b"value", seed, b"n", WORDS.digest, b"n", other.digest]
    digest = hashlib.sha256(b"".join(made_of)).digest()
    assert flight.value_key == (digest, (("docs", 4),))


def test_questions_rewritten_to_other_words_share_nothing() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    rewritten(lab, "r2", inline(b"other words"))
    lab.finish_all()
    assert lab.nodes() == {"submitted": 6, "executed": 6}


def test_workflows_of_different_structure_share_what_they_compute_equally() -> None:
    lab = lab_of()
    begun(lab, "r1")
    rewritten(lab, "r1")
    embedding = item(lab.submit("r2", OTHER, "another?"))
    asking = item(lab.finish(embedding))
    assert lab.finish(asking, WORDS) == []
    _, second = lab.finish_all()
    assert record(second, "s").fused_into == "r1/s"
    assert record(second, "b").fused_into == ""


def test_only_equal_operators_arguments_and_tenants_share() -> None:
    searches = [
        ("operator", spec_of("q llm", "s embed q"), "tenant"),
        ("argument", spec_of("q llm", "s search q -"), "tenant"),
        ("input", spec_of("q llm", "s search q $k"), "tenant"),
        ("tenant", spec_of("q llm", "s search q"), "another"),
        ("same", spec_of("q llm", "s search q"), "tenant"),
    ]
    lab = lab_of(slots=8)
    begun(lab, "r1")
    rewritten(lab, "r1")
    started: list[str] = []
    for name, spec, tenant in searches:
        asking = item(lab.submit(name, spec, name, tenant=tenant))
        started += [i.run_id for i in items(lab.finish(asking, WORDS))]
    assert started == ["operator", "argument", "input", "tenant"]


def test_the_order_of_equal_inputs_counts() -> None:
    lab = lab_of()
    spec = spec_of("x embed $x", "y search $y", "a llm x y")
    for run_id, values in (("r1", (b"1", b"2")), ("r2", (b"2", b"1"))):
        left, right = items(lab.submit(run_id, spec, run_id))
        lab.finish(left, inline(values[0]))
        lab.finish(right, inline(values[1]))
    assert len([i for i in lab.running() if i.node == 2]) == 2


def test_every_stage_of_a_flight_can_be_joined_by_value() -> None:
    lab = lab_of(slots=1)
    blocker = item(lab.submit("r0", spec_of("s search"), "slot holder"))
    for run_id in ("r1", "r2", "r3", "r4"):
        lab.submit(run_id, REWRITE, run_id)
    rewritten(lab, "r1")  # queued
    rewritten(lab, "r2")
    search = item(lab.finish(blocker))  # starting
    rewritten(lab, "r3")
    lab.begin(search)  # running
    rewritten(lab, "r4")
    answer = item(lab.finish(search))
    ends = only(lab.finish(answer), FinishRun)
    assert [end.run_id for end in ends] == ["r1", "r2", "r3", "r4"]
    assert [record(end, "s").fused_into for end in ends] == ["", *["r1/s"] * 3]


def test_all_members_of_a_flight_come_along() -> None:
    lab = lab_of()
    begun(lab, "r1")
    lab.submit("r2", REWRITE, "r2?")
    lab.submit("r3", REWRITE, "r2?")
    rewritten(lab, "r1")
    rewritten(lab, "r2")
    ends = lab.finish_all()
    assert [(e.run_id, record(e, "s").fused_into) for e in ends] == [
        ("r1", ""),
        ("r2", "r1/s"),
        ("r3", "r1/s"),
    ]


def test_twins_by_structure_of_a_merged_flight_find_the_one_that_lives() -> None:
    lab = lab_of(KernelConfig(reuse_max_entries=0))
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    rewritten(lab, "r2")
    assert lab.submit("r3", REWRITE, "r2?") == [AcceptRun("r3", "client")]
    ends = lab.finish_all()
    assert [end.run_id for end in ends] == ["r1", "r2", "r3"]
    assert record(ends[2], "s").fused_into == "r1/s"


def test_equal_work_within_one_run_is_one_flight_and_fails_once() -> None:
    lab = lab_of()
    spec = spec_of("x llm $x", "y llm $x -", "s search x", "t search y", "a rerank s t")
    left, right = items(lab.submit("r1", spec))
    search = item(lab.finish(left, WORDS))
    assert lab.finish(right, WORDS) == []
    end = ended(lab.fail(search))
    assert (states(end)["s"], states(end)["t"]) == ("failed", "failed")


def test_a_joiner_by_value_hears_the_text_from_the_beginning() -> None:
    lab = lab_of()
    spec = spec_of("q embed", "a llm q")
    one = item(lab.submit("r1", spec, "1"))
    two = item(lab.submit("r2", spec, "2", stream=True, client="listener"))
    answer = item(lab.finish(one, WORDS))
    (added,) = lab.finish(two, WORDS)
    assert isinstance(added, AddSubscriber) and added.flight == answer.flight
    assert (added.subscriber.client, added.subscriber.run_id) == ("listener", "r2")


def test_a_more_urgent_joiner_by_value_moves_the_flight_ahead() -> None:
    lab = lab_of(slots=1)
    blocker = item(lab.submit("r0", spec_of("s search"), "slot holder"))
    lab.submit("r1", REWRITE, "r1?")
    rewritten(lab, "r1", inline(b"first"))
    lab.submit("r2", REWRITE, "r2?")
    rewritten(lab, "r2")
    lab.submit("r3", REWRITE, "r3?", priority=1)
    rewritten(lab, "r3")
    assert item(lab.finish(blocker)).run_id == "r2"


# ---- leaving and failing


def test_cancelling_one_merged_member_keeps_the_flight() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    rewritten(lab, "r2")
    assert aborts(lab.cancel("r2")) == []
    assert [end.run_id for end in lab.finish_all()] == ["r1"]


def test_a_merged_member_leads_when_those_before_it_leave() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    rewritten(lab, "r2")
    assert aborts(lab.cancel("r1")) == []
    (end,) = lab.finish_all()
    assert (end.run_id, record(end, "s").fused_into) == ("r2", "")
    assert record(end, "s").attempts == 1


def test_the_last_merged_member_takes_the_flight_with_it() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    rewritten(lab, "r2")
    search = search_of(lab)
    lab.cancel("r1")
    assert aborts(lab.cancel("r2")) == [("pg-1", search.flight, 1)]
    assert not lab.state.table.live
    begun(lab, "r3")
    assert items(rewritten(lab, "r3")), "a twin of aborted work starts anew"


def test_a_failed_flight_tells_every_merged_member_once() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2", "r3")
    for run_id in ("r1", "r2", "r3"):
        rewritten(lab, run_id)
    search = search_of(lab)
    ends = only(lab.fail(search), FinishRun)
    assert [(e.run_id, e.error, e.failed_node) for e in ends] == [
        ("r1", BROKEN, "s"),
        ("r2", BROKEN, "s"),
        ("r3", BROKEN, "s"),
    ]
    assert not lab.state.table.live


def test_a_retried_and_a_lost_flight_keep_all_their_keys() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2", "r3")
    rewritten(lab, "r1")
    rewritten(lab, "r2")
    search = search_of(lab)
    again = item(lab.fail(search, BUSY))
    lab.down("pg-1")
    rewritten(lab, "r3")
    assert item(lab.up("pg-2", "pg")).attempt == again.attempt + 1
    assert [end.run_id for end in lab.finish_all()] == ["r1", "r2", "r3"]


def test_a_flight_that_ran_too_long_is_found_by_value_at_its_next_attempt() -> None:
    lab = lab_of()
    slow = spec_of(
        "q llm", "s search q", "a llm s", options={"s": NodeOptions(timeout_s=5.0)}
    )
    for run_id in ("r1", "r2"):
        lab.submit(run_id, slow, f"{run_id}?")
    rewritten(lab, "r1")
    search = search_of(lab)
    out = lab.pass_time(10.0)
    assert aborts(out) == [("pg-1", search.flight, 1)]
    assert items(rewritten(lab, "r2")) == []
    assert [end.run_id for end in lab.finish_all()] == ["r1", "r2"]


def test_merged_members_stay_what_they_came_as_when_their_flight_ran_too_long() -> None:
    lab = lab_of()
    options = {"s": NodeOptions(timeout_s=5.0)}
    slow = spec_of("q llm", "s search q", "a llm s", options=options)
    for run_id in ("r1", "r2"):
        lab.submit(run_id, slow, f"{run_id}?")
    rewritten(lab, "r1")
    rewritten(lab, "r2")
    lab.pass_time(10.0)
    assert lab.submit("r3", slow, "r2?")[1:] == []
    assert len(lab.finish_all()) == 3
    (again,) = only(lab.submit("r4", slow, "r2?"), FinishRun)
    assert record(again, "s").reused


# ---- taking what is there


def test_a_completed_result_is_taken_by_value_and_counts_as_reused() -> None:
    lab = lab_of()
    begun(lab, "r1")
    rewritten(lab, "r1")
    search = search_of(lab)
    lab.finish(search, inline(b"found"), meta=b"sources")
    lab.finish_all()
    begun(lab, "r2")
    end = ended(rewritten(lab, "r2"))
    assert end.status == "succeeded"
    found = record(end, "s")
    assert (found.reused, found.meta, found.instance) == (True, b"sources", "")
    assert record(end, "a").reused, "what follows is equal by value as well"
    assert lab.nodes() == {"submitted": 6, "executed": 4, "reused": 2}


def test_members_of_a_flight_that_takes_a_result_have_joined_nobody() -> None:
    lab = lab_of()
    begun(lab, "r1")
    rewritten(lab, "r1")
    lab.finish_all()
    begun(lab, "r2")
    assert items(lab.submit("r3", REWRITE, "r2?")) == []
    ends = only(rewritten(lab, "r2"), FinishRun)
    for end in ends:
        search = record(end, "s")
        assert (search.fused_into, search.reused) == ("", True)
    assert [record(end, "q").fused_into for end in ends] == ["", "r2/q"]


def test_what_was_taken_by_value_is_found_by_structure_afterwards() -> None:
    lab = lab_of()
    for run_id in ("r1", "r2"):
        begun(lab, run_id)
        rewritten(lab, run_id)
        lab.finish_all()
    out = lab.submit("r3", REWRITE, "r2?")
    assert [type(c) for c in out] == [AcceptRun, FinishRun]
    assert all(node.reused for node in ended(out).nodes)


def test_a_result_counts_its_bytes_once_and_leaves_with_all_its_keys() -> None:
    lab = lab_of(KernelConfig(reuse_max_bytes=250))
    spec = spec_of("q llm", "s search q")
    for run_id in ("r1", "r2"):
        lab.submit(run_id, spec, f"{run_id}?")
        rewritten(lab, run_id)
    words = lab.state.table.bytes
    search = search_of(lab)
    lab.finish(search, placed("found", 100))
    assert lab.state.table.bytes == words + 100
    other = item(lab.submit("r3", spec_of("s search"), "more"))
    assert releases(lab.finish(other, placed("more", 240))) == ["found"]
    assert all(entry.value.place == "more" for entry in lab.state.table.listed())


def test_a_hit_by_value_expires_with_its_own_time_only() -> None:
    lab = lab_of(KernelConfig(reuse_ttl_s={"llm.generate": 10.0}))
    spec = spec_of("q llm", "s search q")
    lab.submit("r1", spec, "r1?")
    rewritten(lab, "r1")
    lab.finish_all()
    lab.now += 60
    lab.submit("r2", spec, "r1?")
    assert record(ended(rewritten(lab, "r2")), "s").reused


def test_a_hit_by_value_does_not_outlive_its_own_time() -> None:
    lab = lab_of(KernelConfig(reuse_ttl_s={"pg.search": 10.0}))
    begun(lab, "r1")
    rewritten(lab, "r1")
    lab.finish_all()
    lab.now += 60
    begun(lab, "r2")
    assert len(items(rewritten(lab, "r2"))) == 1


def test_what_was_taken_by_value_does_not_live_on_under_another_key() -> None:
    lab = lab_of(KernelConfig(reuse_ttl_s={"pg.search": 10.0}))
    spec = spec_of("q llm", "s search q")
    for run_id in ("r1", "r2"):
        lab.submit(run_id, spec, f"{run_id}?")
        rewritten(lab, run_id)
        lab.finish_all()
    assert lab.nodes()["reused"] == 1
    lab.now += 60
    (again,) = items(lab.submit("r3", spec, "r2?"))
    assert again.node == 1


def test_a_result_is_over_when_its_time_is() -> None:
    for early_s, started in ((0.5, 0), (0.0, 1)):
        lab = lab_of(KernelConfig(reuse_ttl_s={"llm.generate": 10.0}))
        spec = spec_of("q llm")
        lab.finish(item(lab.submit("r1", spec)))
        lab.now += 10 - 2 - early_s  # a second for the workflow, one for the run
        assert len(items(lab.submit("r2", spec))) == started


def test_what_its_signature_names_by_content_has_no_second_key() -> None:
    lab = lab_of()
    lab.submit("r1", REWRITE)
    assert next(iter(lab.state.flights.values())).value_key is None


def test_what_follows_a_hit_by_value_expires_with_its_own_ancestors() -> None:
    lab = lab_of(KernelConfig(reuse_ttl_s={"embed": 10.0}))
    chain = spec_of("e embed", "s search e")
    lab.finish(item(lab.submit("r1", chain, "1")), WORDS)
    lab.finish_all()
    lab.finish(item(lab.submit("r2", chain, "2")), WORDS)
    assert [node.reused for node in ended(lab.submit("r3", chain, "2")).nodes] == [True] * 2
    lab.now += 60
    again = item(lab.submit("r4", chain, "2"))
    assert again.node == 0, "by structure it is gone with what it was made of"
    assert record(ended(lab.finish(again, WORDS)), "s").reused


def test_who_joins_a_merged_member_by_structure_expires_with_that_ones_ancestors() -> None:
    lab = lab_of(KernelConfig(reuse_ttl_s={"embed": 10.0}))
    begun(lab, "r1")
    rewritten(lab, "r1")
    lab.finish(item(lab.submit("r2", spec_of("e embed", "s search e"), "2")), WORDS)
    longer = spec_of("e embed", "s search e", "x rerank s")
    assert items(lab.submit("r3", longer, "2")) == []
    assert len(lab.finish_all()) == 3
    lab.now += 60
    assert item(lab.submit("r4", longer, "2")).node == 0


def test_a_truncated_result_is_not_found_by_value() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    search = search_of(lab)
    lab.finish(search, truncated=True)
    assert len(items(rewritten(lab, "r2"))) == 1


def test_a_node_kept_out_of_the_cache_takes_and_leaves_nothing_and_joins() -> None:
    lab = lab_of()
    fresh = spec_of("q llm", "s search q", options={"s": NodeOptions(cache=False)})
    for run_id in ("r1", "r2", "r3"):
        lab.submit(run_id, fresh, f"{run_id}?")
    rewritten(lab, "r1")
    assert rewritten(lab, "r2") == []
    search = search_of(lab)
    assert len(only(lab.finish(search), FinishRun)) == 2
    assert len(items(rewritten(lab, "r3"))) == 1


def test_a_flight_with_a_member_that_wants_it_anew_takes_nothing() -> None:
    lab = lab_of(KernelConfig(reuse_max_entries=50))
    fresh = spec_of("q llm", "s search q", options={"s": NodeOptions(cache=False)})
    kept = spec_of("q llm", "s search q")
    lab.submit("r1", kept, "r1?")
    rewritten(lab, "r1")
    lab.finish_all()
    lab.submit("r2", kept, "r2?")
    lab.submit("r3", fresh, "r2?")
    assert len(items(rewritten(lab, "r2"))) == 1


def test_results_that_outran_their_abort_are_found_by_value() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    search = search_of(lab)
    lab.cancel("r1")
    lab.finish(search)
    answer = item(rewritten(lab, "r2"))
    assert record(ended(lab.finish(answer)), "s").reused


def test_keys_that_lead_to_one_result_are_bounded() -> None:
    lab = lab_of()
    spec = spec_of("q dice", "s search q")
    for number in range(30):
        lab.submit(f"r{number}", spec, "same")
        rewritten(lab, f"r{number}")
        lab.finish_all()
    assert lab.nodes() == {"submitted": 60, "executed": 31, "reused": 29}
    assert len(lab.state.table.completed) <= 8
    lab = lab_of(slots=32)
    names = [f"r{number}" for number in range(30)]
    for name in names:
        lab.submit(name, spec, "same")
    for name in names:
        rewritten(lab, name)
    assert len(lab.finish_all()) == 30
    assert lab.nodes() == {"submitted": 60, "executed": 31, "fused": 29}
    assert len(lab.state.table.completed) <= 8


# ---- revisions


def test_what_was_read_before_a_collection_changed_is_not_found_by_value() -> None:
    """Known fault 25."""
    lab = lab_of()
    lab.send(CollectionChanged("docs", 7))
    begun(lab, "r1", "r2", "r3", reads=READS)
    rewritten(lab, "r1")
    search = search_of(lab)
    lab.finish(search, revisions={"docs": 7})
    assert rewritten(lab, "r2") == [], "the search is there, the answer under way"
    lab.send(CollectionChanged("docs", 8))
    assert len(items(rewritten(lab, "r3"))) == 1


def test_a_search_that_began_before_a_change_is_not_joined_after_it() -> None:
    """Known fault 25."""
    lab = lab_of()
    lab.send(CollectionChanged("docs", 7))
    begun(lab, "r1", "r2", reads=READS)
    rewritten(lab, "r1")
    lab.send(CollectionChanged("docs", 8))
    assert len(items(rewritten(lab, "r2"))) == 1


def test_what_was_read_at_another_revision_than_its_key_is_not_found_by_value() -> None:
    lab = lab_of()
    lab.send(CollectionChanged("docs", 5))
    begun(lab, "r1", "r2", reads=READS)
    rewritten(lab, "r1")
    search = search_of(lab)
    lab.finish(search, revisions={"docs": 4})
    assert len(items(rewritten(lab, "r2"))) == 1


def test_an_answer_is_found_by_value_whatever_revision_its_context_came_from() -> None:
    lab = lab_of()
    lab.send(CollectionChanged("docs", 5))
    for run_id, words in (("r1", b"one"), ("r2", b"two")):
        lab.submit(run_id, REWRITE, f"{run_id}?", collections=READS)
        rewritten(lab, run_id, inline(words))
    first, second = [i for i in lab.running() if i.node == 1]
    lab.finish(item(lab.finish(first, inline(b"chunks"), revisions={"docs": 4})))
    end = ended(lab.finish(second, inline(b"chunks"), revisions={"docs": 5}))
    assert record(end, "a").reused


def test_a_search_taken_at_a_newer_revision_is_not_kept_under_the_older_one() -> None:
    lab = lab_of()
    lab.send(CollectionChanged("docs", 5))
    lab.submit("r1", REWRITE, "r1?", collections=READS)
    lab.send(CollectionChanged("docs", 6))
    lab.submit("r2", REWRITE, "r2?", collections=READS)
    rewritten(lab, "r2")
    search = search_of(lab)
    lab.finish(search, revisions={"docs": 6})
    rewritten(lab, "r1")
    lab.finish_all()
    named = [dict(revisions) for _, revisions in lab.state.table.completed]
    assert {"docs": 5} not in named


def test_who_gathers_from_a_search_joined_at_another_revision_is_unshared() -> None:
    lab = lab_of(slots=8)
    spec = spec_of("s search % in=r", "a llm s", regions={"r": "$xs"})
    facts = {"xs": Fact(True, 1, (inline(b"x").digest,))}
    reads = (("docs",), ("docs",))
    lab.send(CollectionChanged("docs", 5))
    search = item(lab.submit("r1", spec, "r1", facts=facts, collections=reads))
    assert lab.submit("r2", spec, "r2", facts=facts, collections=reads)[1:] == []
    lab.finish(search, revisions={"docs": 4})
    assert len(lab.finish_all()) == 2
    named = [dict(revisions) for _, revisions in lab.state.table.completed]
    assert {"docs": 5} not in named


def test_a_result_that_is_there_is_taken_though_it_is_being_computed_anew() -> None:
    lab = lab_of()
    fresh = spec_of("q llm", "s search q", options={"s": NodeOptions(cache=False)})
    begun(lab, "r1")
    rewritten(lab, "r1")
    lab.finish_all()
    lab.submit("r2", fresh, "r2?")
    assert len(items(rewritten(lab, "r2"))) == 1
    begun(lab, "r3")
    assert record(ended(rewritten(lab, "r3")), "s").reused


# ---- where structure says nothing


def test_below_a_sampled_node_equal_values_share() -> None:
    """Spec section 2, rule 7."""
    lab = lab_of()
    spec = spec_of("q dice", "s search q")
    for run_id in ("r1", "r2"):
        lab.submit(run_id, spec, "same")
    rewritten(lab, "r1")
    assert rewritten(lab, "r2") == []
    first, second = lab.finish_all()
    assert (record(first, "q").fused_into, record(second, "q").fused_into) == ("", "")
    assert record(second, "s").fused_into == "r1/s"


def test_effects_and_sampled_nodes_are_never_shared_by_value() -> None:
    lab = lab_of()
    for kind in ("write", "dice"):
        spec = spec_of("q embed", f"w {kind} q", outputs="w")
        for run_id in ("1", "2"):
            lab.submit(kind + run_id, spec, kind + run_id)
            assert len(items(rewritten(lab, kind + run_id))) == 1


def test_names_that_effects_should_not_have_are_not_believed() -> None:
    lab = lab_of()
    spec = spec_of("q embed", "w write q", outputs="w")
    lab.send(SpecRegistered(spec))
    names = (inline(b"q").digest, inline(b"w").digest)
    base = RunSubmitted("r1", spec.id, "c", "t", inline(b""), signatures=names, seeds=names)
    (embedding,) = items(lab.send(base)) + items(lab.send(replace(base, run_id="r2")))
    assert len(items(lab.finish(embedding, WORDS))) == 2


def test_unsigned_runs_and_a_kernel_without_fusion_share_nothing_by_value() -> None:
    for lab, signed in ((lab_of(), False), (lab_of(KernelConfig(fusion=False)), True)):
        for run_id in ("r1", "r2"):
            lab.submit(run_id, REWRITE, f"{run_id}?", signed=signed)
            assert len(items(rewritten(lab, run_id))) == 1
        lab.finish_all()
        assert lab.nodes() == {"submitted": 6, "executed": 6}


def test_nodes_that_an_agent_reveals_share_by_value() -> None:
    lab = lab_of()
    begun(lab, "r1")
    rewritten(lab, "r1")
    lab.submit_agent("g")
    asking = item(lab.reveal("g", 0, spec_of("e embed", "q llm e", "s search q"), "own"))
    words = item(lab.finish(asking))
    assert lab.finish(words, WORDS) == []
    search = search_of(lab)
    out = lab.finish(search)
    assert record(piece(out), "s").fused_into == "r1/s"
    lab.close("g")


def test_elements_with_equal_items_are_computed_once() -> None:
    lab = lab_of()
    spec = spec_of("l llm", "e embed % in=r", "a rerank e", regions={"r": "l"})
    started = item(lab.submit("r1", spec))
    digests = tuple(inline(word).digest for word in (b"x", b"y", b"x"))
    given = replace(listed(3), items=digests)
    first, second = items(lab.finish(started, given))
    assert (first.element, second.element) == (0, 1)
    lab.finish(first, inline(b"X"))
    rank = item(lab.finish(second, inline(b"Y")))
    assert rank.gathered == ((1, (inline(b"X"), inline(b"Y"), inline(b"X"))),)
    end = ended(lab.finish(rank))
    assert record(end, "e[2]").fused_into == "r1/e[0]"


def test_overlapping_lists_of_different_runs_share_their_equal_items() -> None:
    lab = lab_of(slots=8)
    spec = spec_of("e embed % in=r", "a rerank e", regions={"r": "$xs"})
    words = {b: inline(b).digest for b in (b"x", b"y", b"z")}
    facts = {"xs": Fact(True, 2, (words[b"x"], words[b"y"]))}
    assert len(items(lab.submit("r1", spec, "1", facts=facts))) == 2
    facts = {"xs": Fact(True, 2, (words[b"y"], words[b"z"]))}
    (third,) = items(lab.submit("r2", spec, "2", facts=facts))
    assert third.element == 1
    lab.finish_all()
    assert lab.nodes() == {"submitted": 6, "executed": 5, "fused": 1}


def test_elements_of_lists_that_were_written_down_share_their_equal_items() -> None:
    lab = lab_of()
    spec = spec_of("e embed % in=r", regions={"r": 3})
    other = spec_of("e embed % in=r", regions={"r": 2}, name="other")
    started = item(lab.submit("r1", spec))  # its items are all 0
    assert items(lab.submit("r2", other, "another input")) == []
    first, second = only(lab.finish(started), FinishRun)
    assert [node.fused_into for node in first.nodes] == ["", "r1/e[0]", "r1/e[0]"]
    assert [node.fused_into for node in second.nodes] == ["r1/e[0]"] * 2


def test_elements_whose_items_nobody_knows_share_nothing() -> None:
    lab = lab_of(slots=8)
    spec = spec_of("e embed % in=r", "a rerank e", regions={"r": "$xs"})
    for run_id in ("r1", "r2"):
        facts = {"xs": Fact(True, 2)}
        assert len(items(lab.submit(run_id, spec, run_id, facts=facts))) == 2


def test_whoever_gathers_equal_outputs_of_regions_shares() -> None:
    lab = lab_of(slots=8)
    spec = spec_of("e embed % in=r", "a rerank e", regions={"r": "$xs"})
    for run_id in ("r1", "r2"):
        facts = {"xs": Fact(True, 2)}
        for at, one in enumerate(items(lab.submit(run_id, spec, run_id, facts=facts))):
            lab.finish(one, inline(b"XY"[at : at + 1]))
    assert len([i for i in lab.running() if i.node == 1]) == 1
    lab.finish_all()
    facts = {"xs": Fact(True, 1)}
    (one,) = items(lab.submit("r3", spec, "r3", facts=facts))
    assert len(items(lab.finish(one, inline(b"X")))) == 1, "a shorter list"


def test_a_choice_shares_by_the_side_that_was_taken() -> None:
    lab = lab_of(slots=8)
    spec = spec_of("c llm", "t embed if=c", "e search unless=c", "j rerank c?t:e")
    joins: list[int] = []
    for run_id, truth in (("r1", True), ("r2", True), ("r3", False)):
        side = item(lab.finish(item(lab.submit(run_id, spec, run_id)), said(truth)))
        joins.append(len(items(lab.finish(side, WORDS))))
    assert joins == [1, 0, 1]


def test_a_key_by_value_tells_a_list_and_a_side_that_was_not_taken() -> None:
    lab = lab_of(slots=8)
    lines = ("c llm", "t embed if=c", "x embed unless=c", "e embed % in=r")
    spec = spec_of(*lines, "j rerank c?t:x e", regions={"r": "$xs"})
    asked, *elements = items(lab.submit("r1", spec, facts={"xs": Fact(True, 2)}))
    taken = item(lab.finish(asked, said(True)))
    given = [inline(b"first"), inline(b"second"), WORDS]
    for work, value in zip((*elements, taken), given, strict=True):
        lab.finish(work, value)
    (flight,) = lab.state.flights.values()
    first, second, side = (value.digest for value in given)
    seed = lab.state.runs["r1"].fragments[0].seeds[4]
    made_of = [b"value", seed, b"n", said(True).digest, b"n", side, b"s"]
    made_of += [b"g", (2).to_bytes(8, "big"), first, second]
    assert flight.value_key == (hashlib.sha256(b"".join(made_of)).digest(), ())


def test_a_key_by_value_of_an_element_tells_its_item() -> None:
    lab = lab_of(slots=8)
    spec = spec_of("e embed % in=r", regions={"r": "$xs"})
    told = (inline(b"a").digest, inline(b"b").digest)
    items(lab.submit("r1", spec, facts={"xs": Fact(True, 2, told)}))
    seed = lab.state.runs["r1"].fragments[0].seeds[0]
    for flight, digest in zip(lab.state.flights.values(), told, strict=True):
        made_of = b"".join([b"value", seed, b"i", digest])
        assert flight.value_key == (hashlib.sha256(made_of).digest(), ())


def test_what_only_a_guard_asks_decides_nothing_of_the_value() -> None:
    lab = lab_of(slots=8)
    spec = spec_of("c llm", "q embed", "s search q if=c")
    for run_id in ("r1", "r2"):
        asked, words = items(lab.submit(run_id, spec, run_id))
        yes = replace(inline(run_id.encode()), truth=True)
        lab.finish(asked, yes)
        lab.finish(words, WORDS)
    _, second = lab.finish_all()
    assert record(second, "s").fused_into == "r1/s"


def test_a_node_that_waits_in_a_flight_with_its_payload_is_not_looked_up() -> None:
    lab = lab_of(KernelConfig(reuse_max_entries=0))
    lab.submit("r1", REWRITE, "one")
    rewritten(lab, "r1")
    assert lab.submit("r2", REWRITE, "one") == [AcceptRun("r2", "client")]
    assert search_of(lab).run_id == "r1"
    _, end = lab.finish_all()
    assert record(end, "q").reused and record(end, "s").fused_into == "r1/s"


def test_a_hit_by_value_lets_the_end_of_a_run_come_in_the_same_event() -> None:
    lab = lab_of()
    spec = spec_of("q llm", "s search q")
    for run_id in ("r1", "r2", "r3"):
        lab.submit(run_id, spec, f"{run_id}?")
    rewritten(lab, "r1")
    lab.finish_all()
    assert not lab.running() and not lab.state.runs
    assert lab.nodes()["submitted"] == 6


def test_a_pool_that_is_gone_fails_merged_members_too() -> None:
    lab = lab_of()
    begun(lab, "r1", "r2")
    rewritten(lab, "r1")
    rewritten(lab, "r2")
    lab.down("pg-1")
    out = lab.send(PoolFailed("pg", ErrorInfo("gone", "pg is gone")))
    assert [end.run_id for end in only(out, FinishRun)] == ["r1", "r2"]
