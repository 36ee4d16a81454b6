"""Equal items of different lists are computed once."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from herasys_rt.core.borrowing import LONGEST_CHAIN, MOST_LENDERS
from herasys_rt.core.commands import Command, FinishRun, ReleaseValue, WorkItem
from herasys_rt.core.events import CachePurged, ItemFinished, PoolFailed
from herasys_rt.core.items import ENTRY_BYTES, item_keys
from herasys_rt.core.kernel import KernelConfig
from herasys_rt.core.values import Fact, Value
from herasys_rt.errors import ErrorInfo
from herasys_rt.graph.facts import items_of
from herasys_rt.graph.spec import ListRef, Lit, NodeOptions, NodeRef, Retry, WorkflowSpec
from tests.pure.core.kernel_lab import (
    BROKEN,
    BUSY,
    POOLS,
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
    signatures_of,
    spec_of,
    states,
)

LIST = spec_of("m many $texts")


def digests(texts: str) -> tuple[bytes, ...]:
    """What is told of a list with an item per letter."""
    return tuple(hashlib.sha256(letter.encode()).digest() for letter in texts)


def listed(texts: str) -> Fact:
    return Fact(bool(texts), len(texts), digests(texts))


def submit(
    lab: Lab, run_id: str, texts: str, spec: WorkflowSpec = LIST, **more: Any
) -> list[Command]:
    """A run over a list with an item per letter."""
    return lab.submit(run_id, spec, texts, facts={"texts": listed(texts)}, **more)


def priorities(lab: Lab) -> dict[str, int]:
    """The priority of each flight that waits for its turn, or for items, by its leader."""
    return {
        flight.leader.run.id: -flight.rank[0]
        for flight in lab.state.flights.values()
        if flight.is_ranked and flight.leader is not None
    }


def computed(work: WorkItem, texts: str) -> str:
    """The letters that an engine is asked for."""
    assert work.shared is not None and work.shared.count == len(texts)
    there = {position for position, _, _ in work.shared.borrowed}
    return "".join(letter for i, letter in enumerate(texts) if i not in there)


def output(texts: str, place: str = "") -> Value:
    """What a list over these letters gives."""
    value = placed(place) if place else inline(f"vectors of {texts}".encode())
    return replace(value, length=len(texts))


def read(work: WorkItem, texts: str, *lenders: str) -> str:
    """The letters an output has in the end, following every borrowed item to its lender."""
    assert work.shared is not None
    assert [v.digest for v in work.shared.lenders] == [output(t).digest for t in lenders]
    found = dict(enumerate(texts))
    for position, lender, index in work.shared.borrowed:
        found[position] = found[index] if lender < 0 else lenders[lender][index]
    return "".join(found[i] for i in range(len(texts)))


def test_two_documents_that_share_chapters_compute_the_shared_ones_once():
    lab = Lab()
    first = item(submit(lab, "r1", "abcd"))
    assert computed(first, "abcd") == "abcd"
    lab.finish(first, output("abcd"))
    second = item(submit(lab, "r2", "xbcy"))
    assert computed(second, "xbcy") == "xy"
    assert read(second, "xbcy", "abcd") == "xbcy"


def test_a_key_of_an_item_is_made_of_the_seed_and_the_item():
    first, second = item_keys(b"seed", digests("ab"))
    assert first == hashlib.sha256(b"itemseed" + digests("a")[0]).digest()
    others = {second, *item_keys(b"sead", digests("a")), *item_keys(b"", digests("a"))}
    assert len({first, *others}) == 4


def test_items_of_a_flight_under_way_are_waited_for():
    lab = Lab(slots=4)
    first = item(submit(lab, "r1", "abc"))
    assert not items(submit(lab, "r2", "cbx"))
    second = item(lab.finish(first, output("abc")))
    assert computed(second, "cbx") == "x" and read(second, "cbx", "abc") == "cbx"
    assert ended(lab.finish(second, output("cbx"))).status == "succeeded"


def test_a_flight_whose_items_are_all_there_computes_none():
    lab = Lab()
    lab.finish(item(submit(lab, "r1", "abc")), output("abc"))
    second = item(submit(lab, "r2", "ba"))
    assert computed(second, "ba") == "" and read(second, "ba", "abc") == "ba"


def test_an_item_that_stands_in_a_list_twice_is_computed_once():
    work = item(submit(Lab(), "r1", "abab"))
    assert computed(work, "abab") == "ab" and read(work, "abab") == "abab"


def test_a_borrowed_item_that_stands_twice_is_borrowed_once():
    lab = Lab()
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    work = item(submit(lab, "r2", "bxb"))
    assert computed(work, "bxb") == "x" and read(work, "bxb", "ab") == "bxb"


def test_an_empty_list_shares_nothing():
    lab = Lab()
    assert item(submit(lab, "r1", "")).shared is None
    assert not lab.state.table.items.live


def test_without_digests_or_seeds_or_fusion_nothing_is_shared():
    lab = Lab()
    assert item(lab.submit("r1", LIST, facts={"texts": Fact(True, 2)})).shared is None
    lab = Lab()
    assert item(submit(lab, "r1", "ab", signed=False)).shared is None
    lab = Lab(KernelConfig(fusion=False))
    assert item(submit(lab, "r1", "ab")).shared is None


def test_tenants_share_no_items():
    lab = Lab()
    lab.finish(item(submit(lab, "r1", "ab", tenant="a")), output("ab"))
    work = item(submit(lab, "r2", "ba", tenant="b"))
    assert computed(work, "ba") == "ba"


def test_items_are_borrowed_from_several_lenders():
    lab = Lab(slots=4)
    one, two = item(submit(lab, "r1", "ab")), item(submit(lab, "r2", "cd"))
    assert not items(submit(lab, "r3", "dxa"))
    assert not items(lab.finish(two, output("cd")))
    work = item(lab.finish(one, output("ab")))
    assert computed(work, "dxa") == "x" and read(work, "dxa", "cd", "ab") == "dxa"


def test_three_borrowers_in_a_chain_are_served_one_after_the_other():
    lab = Lab(slots=4)
    work = item(submit(lab, "r1", "ab"))
    lists = ["ab", "bc", "cd", "de"]
    for run_id, texts in zip(("r2", "r3", "r4"), lists[1:], strict=True):
        assert not items(submit(lab, run_id, texts))
    for texts, following in itertools.pairwise(lists):
        work = item(lab.finish(work, output(texts)))
        assert computed(work, following) == following[1]
        assert read(work, following, texts) == following
    assert ended(lab.finish(work, output("de"))).run_id == "r4"
    assert not lab.state.table.items.live


def test_a_chain_of_waits_is_not_longer_than_its_bound():
    lab = Lab(slots=8)
    letters = "abcdefghij"
    started = [
        run
        for run in range(LONGEST_CHAIN + 2)
        if items(submit(lab, f"r{run}", letters[run : run + 2]))
    ]
    assert started == [0, LONGEST_CHAIN + 1]


def test_items_are_borrowed_from_so_many_values_and_the_others_are_computed():
    lab = Lab()
    letters = "".join(chr(0x4E00 + at) for at in range(MOST_LENDERS + 2))
    for at, letter in enumerate(letters[:-1]):
        lab.finish(item(submit(lab, f"r{at}", letter)), output(letter))
    work = item(submit(lab, "last", letters))
    assert computed(work, letters) == letters[-2:]
    assert work.shared is not None and len(work.shared.lenders) == MOST_LENDERS
    lab.finish(work, output(letters))
    assert computed(item(submit(lab, "again", letters[::-1])), letters[::-1]) == ""


@pytest.mark.parametrize("kind", ["fails", "is cancelled", "is truncated"])
def test_when_a_lender_gives_nothing_its_borrowers_look_again(kind):
    lab = Lab(slots=4)
    lender = item(submit(lab, "r1", "ab"))
    submit(lab, "r2", "bc")
    submit(lab, "r3", "bd")
    if kind == "fails":
        out = lab.fail(lender, BROKEN)
    elif kind == "is cancelled":
        out = lab.cancel("r1")
        assert len(aborts(out)) == 1
    else:
        out = lab.finish(lender, output("ab"), truncated=True)
    work = item(out)  # the first of them; the other one waits for it now
    assert computed(work, "bc") == "bc"
    last = item(lab.finish(work, output("bc")))
    assert computed(last, "bd") == "d" and read(last, "bd", "bc") == "bd"
    assert ended(lab.finish(last, output("bd"))).status == "succeeded"


def test_a_lender_that_loses_its_instance_is_waited_for():
    lab = Lab(slots=4)
    submit(lab, "r1", "ab")
    submit(lab, "r2", "bc")
    assert not items(lab.down("embed-1"))
    again = item(lab.up("embed-2", "embed", 4))
    assert computed(again, "ab") == "ab" and again.attempt == 2
    work = item(lab.finish(again, output("ab")))
    assert computed(work, "bc") == "c"


def test_a_lender_that_is_tried_again_is_waited_for():
    lab = Lab(slots=4)
    lender = item(submit(lab, "r1", "ab"))
    submit(lab, "r2", "bc")
    again = item(lab.fail(lender, BUSY))
    assert again.attempt == 2
    assert computed(item(lab.finish(again, output("ab"))), "bc") == "c"


def test_a_lender_that_runs_out_of_time_lends_from_its_next_attempt():
    options = {"m": NodeOptions(timeout_s=5.0, retry=Retry(2, 0.0))}
    spec = spec_of("m many $texts", options=options)
    lab = Lab(slots=4)
    submit(lab, "r1", "ab", spec=spec)
    submit(lab, "r2", "bc")
    again = item(lab.pass_time(6.0))
    assert computed(again, "ab") == "ab"
    assert computed(item(lab.finish(again, output("ab"))), "bc") == "c"


def test_a_borrower_that_is_tried_again_keeps_what_it_borrowed():
    lab = Lab()
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    work = item(submit(lab, "r2", "bc"))
    again = item(lab.fail(work, BUSY))
    assert again.shared == work.shared


def test_cancelling_a_borrower_leaves_its_lender_alone():
    lab = Lab(slots=4)
    lender = item(submit(lab, "r1", "ab"))
    submit(lab, "r2", "bc")
    assert not aborts(lab.cancel("r2"))
    out = lab.finish(lender, output("ab"))
    assert not items(out) and ended(out).run_id == "r1"
    assert not lab.state.flights


def test_cancelling_one_member_keeps_the_borrower():
    lab = Lab(slots=4)
    lender = item(submit(lab, "r1", "ab"))
    submit(lab, "r2", "bc")
    submit(lab, "r3", "bc")
    lab.cancel("r2")
    work = item(lab.finish(lender, output("ab")))
    (end,) = [ended(lab.finish(work, output("bc")))]
    assert end.run_id == "r3" and states(end) == {"m": "succeeded"}


def test_a_middle_borrower_that_is_cancelled_lets_the_next_one_go_on():
    lab = Lab(slots=4)
    lender = item(submit(lab, "r1", "ab"))
    submit(lab, "r2", "bc")
    submit(lab, "r3", "cd")
    work = item(lab.cancel("r2"))
    assert computed(work, "cd") == "cd"
    assert not items(lab.finish(lender, output("ab")))


def test_a_borrower_leads_a_flight_that_others_join():
    lab = Lab(slots=4)
    lender = item(submit(lab, "r1", "ab"))
    submit(lab, "r2", "bc")
    submit(lab, "r3", "bc")
    work = item(lab.finish(lender, output("ab")))
    ends = only(lab.finish(work, output("bc")), FinishRun)
    assert [end.run_id for end in ends] == ["r2", "r3"]


def test_a_value_that_items_are_borrowed_from_outlives_its_eviction():
    config = KernelConfig(reuse_max_entries=1)
    lab = Lab(config)
    lab.finish(item(submit(lab, "r1", "ab")), output("ab", "place-1"))
    work = item(submit(lab, "r2", "bc"))
    assert work.shared is not None
    assert [value.place for value in work.shared.lenders] == ["place-1"]
    lab.up("embed-2", "embed")
    other = item(submit(lab, "r3", "xy"))
    assert releases(lab.finish(other, output("xy"))) == []
    assert len(lab.state.table.items.held) == 2  # of the other one
    assert releases(lab.finish(work, output("bc"))) == ["place-1"]


def test_items_vanish_with_the_result_that_holds_them():
    lab = Lab(KernelConfig(reuse_max_entries=1))
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    lab.finish(item(submit(lab, "r2", "xy")), output("xy"))
    assert len(lab.state.table.items.held) == 2
    assert computed(item(submit(lab, "r3", "ay")), "ay") == "a"


def test_items_that_a_later_result_has_too_stay_with_that_one():
    lab = Lab(KernelConfig(reuse_max_entries=2))
    for run_id, texts in (("r1", "ab"), ("r2", "bc"), ("r3", "xy")):  # evicts the first
        lab.finish(item(submit(lab, run_id, texts)), output(texts))
    assert computed(item(submit(lab, "r4", "baz")), "baz") == "az"


def test_items_are_over_when_their_time_is():
    for early_s, left in ((0.5, "z"), (0.0, "az")):
        lab = Lab(KernelConfig(reuse_ttl_s={"embed": 10.0}))
        lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
        lab.now += 10 - 2 - early_s  # a second for the workflow, one for the run
        assert computed(item(submit(lab, "r2", "az")), "az") == left


def test_borrowing_from_a_result_keeps_it_from_being_evicted_first():
    lab = Lab(KernelConfig(reuse_max_entries=2))
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    lab.finish(item(submit(lab, "r2", "xy")), output("xy"))
    lab.finish(item(submit(lab, "r3", "az")), output("az"), truncated=True)
    lab.finish(item(submit(lab, "r4", "pq")), output("pq"))
    assert computed(item(submit(lab, "r5", "bx")), "bx") == "x"


def test_after_a_purge_no_item_from_before_is_found():
    lab = Lab(slots=4)
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    under_way = item(submit(lab, "r2", "cd"))
    submit(lab, "r3", "cx")  # asked before, and gets it
    lab.send(CachePurged())
    assert computed(item(submit(lab, "r4", "bd")), "bd") == "bd"
    last = item(lab.finish(under_way, output("cd")))
    assert computed(last, "cx") == "x"
    lab.finish(last, output("cx"))
    assert computed(item(submit(lab, "r5", "xc")), "xc") == "xc"
    assert not lab.state.table.items.held


def test_who_looks_again_waits_for_nobody_that_came_later():
    lab = Lab(slots=4)
    first = item(submit(lab, "r1", "ax"))
    assert not items(submit(lab, "r2", "ab"))
    lab.send(CachePurged())
    assert computed(item(submit(lab, "r3", "ac")), "ac") == "ac"
    assert computed(item(lab.fail(first)), "ab") == "ab"


def test_purging_one_result_leaves_the_items_of_others():
    lab = Lab(slots=4)
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    lab.finish(item(submit(lab, "r2", "cd")), output("cd"))
    borrower = item(submit(lab, "r3", "bx"))
    signature = signatures_of(LIST, "ab", "r1")[0]
    lab.send(CachePurged(signature=signature))
    lab.finish(borrower, output("bx"))  # it has an item of the purged one: it is not kept
    assert computed(item(submit(lab, "r4", "acx")), "acx") == "ax"


def test_shared_items_are_counted_by_operator_and_tenant():
    lab = Lab()
    lab.finish(item(submit(lab, "r1", "aba")), output("aba"))
    lab.finish(item(submit(lab, "r2", "bc")), output("bc"))
    (told,) = lab.state.savings.told()
    assert (told["operator"], told["shared_items"]) == ("many@1", 2)


def test_the_keys_of_items_count_as_bytes_of_their_result():
    lab = Lab()
    value = output("ab")
    lab.finish(item(submit(lab, "r1", "ab")), value)
    assert lab.state.table.bytes == value.size + 2 * ENTRY_BYTES


def test_borrowed_items_last_no_longer_than_where_they_come_from():
    lab = Lab(KernelConfig(reuse_ttl_s={"embed": 20.0}))
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    lab.pass_time(15.0)
    lab.finish(item(submit(lab, "r2", "bc")), output("bc"))
    lab.pass_time(10.0)
    work = item(submit(lab, "r3", "bcd"))
    assert computed(work, "bcd") == "bcd"


def test_a_node_whose_result_is_not_cached_borrows_only_what_is_under_way():
    uncached = spec_of("m many $texts", options={"m": NodeOptions(cache=False)})
    lab = Lab(slots=4)
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    lender = item(submit(lab, "r2", "xb", spec=uncached))
    assert computed(lender, "xb") == "xb"
    assert not items(submit(lab, "r3", "yx", spec=uncached))
    work = item(lab.finish(lender, output("xb")))
    assert computed(work, "yx") == "y"
    lab.finish(work, output("yx"))
    assert computed(item(submit(lab, "r4", "xa")), "xa") == "x"


def test_a_lender_that_is_queued_is_as_urgent_as_who_waits_for_it():
    lab = Lab(slots=1)
    busy = item(submit(lab, "r0", "z"))
    submit(lab, "r1", "ab", priority=-5)
    submit(lab, "r2", "pq")
    submit(lab, "r3", "bc", priority=3)
    lab.send(replace(POOLS["embed"], batch_limit=1))
    order = [item(lab.finish(busy, output("z")))]
    while lab.state.flights and (started := items(lab.finish(order[-1]))):
        order += started
    assert [work.run_id for work in order] == ["r1", "r3", "r2"]


def test_a_lender_is_not_urgent_any_more_when_the_urgent_borrower_leaves():
    lab = Lab(slots=1)
    submit(lab, "r0", "z")
    submit(lab, "r1", "ab", priority=-5)
    submit(lab, "r2", "pq")
    submit(lab, "r3", "bc", priority=3)
    assert priorities(lab)["r1"] == 3
    lab.cancel("r3")
    assert priorities(lab)["r1"] == -5


def test_urgency_goes_up_a_chain():
    lab = Lab(slots=1)
    submit(lab, "r0", "z")
    for run_id, texts in (("r1", "ab"), ("r2", "bc")):
        submit(lab, run_id, texts, priority=-5)
    submit(lab, "r3", "cd", priority=3)
    assert priorities(lab) == {"r1": 3, "r2": 3, "r3": 3}
    submit(lab, "r4", "cd", priority=4)  # joins r3's
    assert priorities(lab) == {"r1": 4, "r2": 4, "r3": 4}


def test_a_value_that_is_fetched_anyway_lends_all_its_items():
    lab = Lab()
    lab.finish(item(submit(lab, "two", "xy")), output("xy"))
    letters = "".join(chr(0x4E00 + at) for at in range(MOST_LENDERS))
    for at, letter in enumerate(letters):
        lab.finish(item(submit(lab, f"r{at}", letter)), output(letter))
    texts = f"x{letters}y"
    assert computed(item(submit(lab, "last", texts)), texts) == letters[-1]


def test_so_many_lenders_are_waited_for_and_the_other_items_are_computed():
    lab = Lab(slots=64)
    texts = "".join(chr(ord("a") + i) for i in range(MOST_LENDERS + 3))
    lending = [item(submit(lab, f"r{i}", text)) for i, text in enumerate(texts)]
    assert not items(submit(lab, "all", texts))
    for work, text in zip(lending, texts, strict=True):
        lab.finish(work, output(text))
    (whole,) = [i for i in lab.running() if i.run_id == "all"]
    assert computed(whole, texts) == texts[MOST_LENDERS:]


def test_whoever_is_waited_for_after_a_lender_left_is_as_urgent_as_that():
    lab = Lab(slots=1)
    item(submit(lab, "busy", "z"))
    submit(lab, "r0", "p")
    submit(lab, "r1", "a")
    submit(lab, "r2", "ap", priority=-5)
    submit(lab, "r3", "aq", priority=7)
    assert priorities(lab) == {"r0": 0, "r1": 7, "r2": -5, "r3": 7}
    lab.cancel("r1")
    assert priorities(lab) == {"r0": 7, "r2": 7, "r3": 7}


def test_a_pool_that_fails_fails_lenders_and_borrowers_once():
    lab = Lab(slots=1)
    submit(lab, "r1", "ab")
    submit(lab, "r2", "bc")
    lab.send(PoolFailed("embed", ErrorInfo("gone", "embed is gone")))
    out = lab.down("embed-1")
    assert {end.run_id: end.status for end in only(out, FinishRun)} == {
        "r1": "failed",
        "r2": "failed",
    }
    assert not lab.state.flights and not lab.state.table.items.live


def test_lists_that_nodes_give_share_by_what_is_told_of_their_outputs():
    spec = spec_of("a llm", "m many a")
    lab = Lab(slots=4)
    told = replace(inline(b"list"), length=2, items=digests("ab"))
    first = item(lab.finish(item(lab.submit("r1", spec, "one")), told))
    lab.finish(first, output("ab"))
    told = replace(inline(b"other list"), length=2, items=digests("bc"))
    work = item(lab.finish(item(lab.submit("r2", spec, "two")), told))
    assert computed(work, "bc") == "c"


def test_gathered_outputs_are_items_by_their_digests():
    spec = spec_of("e llm % in=r", "m many e", regions={"r": 2})
    lab = Lab(slots=4)
    answers = {"r1": "ab", "r2": "bc"}
    for run_id, texts in answers.items():
        for letter, work in zip(
            texts, items(lab.submit(run_id, spec, run_id)), strict=True
        ):
            out = lab.finish(work, Value(digests(letter)[0], 1, letter.encode()))
        work = item(out)  # pyright: ignore[reportPossiblyUnbound]
        if run_id == "r2":
            assert computed(work, "bc") == "c"
        lab.finish(work, output(texts))


def test_a_list_of_literals_and_outputs_shares_with_a_list_that_is_an_input():
    spec = spec_of("a llm", "m many a")
    args = {"p0": ListRef((Lit("x"), NodeRef("a")))}
    spec = replace(spec, nodes=(spec.nodes[0], replace(spec.nodes[1], args=args)))
    lab = Lab()
    fact = Fact(True, 2, items_of(["y", "x"]))
    lab.finish(item(lab.submit("r1", LIST, facts={"texts": fact})), output("yx"))
    work = item(lab.finish(item(lab.submit("r2", spec, "s")), inline(b"new")))
    assert work.shared is not None and work.shared.borrowed == ((0, 0, 1),)


def test_elements_of_a_region_share_items():
    spec = spec_of("e llm % in=r", "m many e in=r", regions={"r": 2}, outputs="m")
    lab = Lab(slots=4)
    first, second = items(lab.submit("r1", spec))
    told = [replace(inline(t.encode()), length=2, items=digests(t)) for t in ("ab", "bc")]
    lender = item(lab.finish(first, told[0]))
    assert not items(lab.finish(second, told[1]))
    assert computed(item(lab.finish(lender, output("ab"))), "bc") == "c"


def test_an_effect_and_a_sampled_node_share_no_items():
    spec = spec_of("m many $texts")
    sampled = replace(spec, nodes=(replace(spec.nodes[0], purity="sampled"),))
    assert item(submit(Lab(), "r1", "ab", spec=sampled)).shared is None


def test_the_record_of_a_joined_member_shows_what_its_flight_tells():
    lab = Lab(slots=4)
    lender = item(submit(lab, "r1", "ab"))
    submit(lab, "r2", "bc")
    work = item(lab.finish(lender, output("ab")))
    end = ended(lab.finish(work, output("bc"), meta=b"usage and shared items"))
    assert record(end, "m").meta == b"usage and shared items"
    assert only(lab.log, ReleaseValue) == []


def test_the_texts_of_records_share_with_a_list_of_texts():
    spec = spec_of("a llm", "m many ~a")
    lab = Lab()
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    records = replace(
        inline(b"records"), length=2, items=digests("xy"), texts=digests("bc")
    )
    work = item(lab.finish(item(lab.submit("r2", spec, "one")), records))
    assert computed(work, "bc") == "c" and read(work, "bc", "ab") == "bc"


def test_records_with_equal_texts_are_told_apart_where_they_count_whole():
    spec = spec_of("a llm", "m many a")
    lab = Lab()
    lab.finish(item(submit(lab, "r1", "ab")), output("ab"))
    records = replace(
        inline(b"records"), length=2, items=digests("xy"), texts=digests("ab")
    )
    work = item(lab.finish(item(lab.submit("r2", spec, "one")), records))
    assert computed(work, "xy") == "xy"


def test_records_whose_texts_nobody_told_share_nothing():
    spec = spec_of("a llm", "m many ~a")
    lab = Lab()
    records = replace(inline(b"records"), length=2, items=digests("ab"))
    assert item(lab.finish(item(lab.submit("r1", spec, "one")), records)).shared is None


# Outputs that are made of what is lent


BEST = spec_of("m best $texts")


def submit_best(lab: Lab, run_id: str, texts: str) -> WorkItem:
    """A run over records whose texts are letters, and which are all different."""
    fact = Fact(bool(texts), len(texts), digests(f"{run_id}{texts}"), digests(texts))
    return item(lab.submit(run_id, BEST, run_id + texts, facts={"texts": fact}))


def test_items_lie_in_what_a_value_was_made_of():
    lab = Lab()
    first = submit_best(lab, "r1", "abc")
    assert computed(first, "abc") == "abc"
    lab.finish(first, inline(b"c before a"), parts=output("abc"))
    second = submit_best(lab, "r2", "xcb")
    assert computed(second, "xcb") == "x" and read(second, "xcb", "abc") == "xcb"


def test_who_waits_borrows_from_what_the_value_was_made_of():
    lab = Lab(slots=4)
    first = submit_best(lab, "r1", "ab")
    fact = Fact(True, 2, digests("34"), digests("bc"))
    assert not items(lab.submit("r2", BEST, "other", facts={"texts": fact}))
    work = item(lab.finish(first, inline(b"best"), parts=output("ab")))
    assert computed(work, "bc") == "c" and read(work, "bc", "ab") == "bc"


def test_records_of_equal_texts_are_one_item_and_other_results():
    lab = Lab()
    lab.finish(submit_best(lab, "r1", "ab"), inline(b"best"), parts=output("ab"))
    assert computed(submit_best(lab, "r2", "ab"), "ab") == ""


def test_what_is_lent_counts_as_bytes_and_goes_with_its_result():
    lab = Lab(KernelConfig(reuse_max_entries=1))
    value, parts = placed("place-1"), output("ab", "place-2")
    lab.finish(submit_best(lab, "r1", "ab"), value, parts=parts)
    assert lab.state.table.bytes == value.size + parts.size + 2 * ENTRY_BYTES
    work = submit_best(lab, "r2", "bc")
    out = lab.finish(work, inline(b"best"), parts=output("bc", "place-3"))
    assert releases(out) == ["place-1", "place-2"]


def test_what_nobody_borrows_or_keeps_is_let_go_at_once():
    lab = Lab()
    parts = output("ab", "place-1")
    work = submit_best(lab, "r1", "ab")
    assert releases(lab.finish(work, inline(b"cut"), parts=parts, truncated=True)) == [
        "place-1"
    ]
    late = output("ab", "place-2")
    event = ItemFinished(work.flight, 7, "embed-1", inline(b"x"), 1.0, parts=late)
    assert releases(lab.send(event)) == ["place-2"]


def test_what_was_borrowed_from_beside_a_purged_result_is_not_kept():
    lab = Lab()
    lab.finish(submit_best(lab, "r1", "ab"), inline(b"best"), parts=output("ab"))
    borrower = submit_best(lab, "r2", "bx")
    assert computed(borrower, "bx") == "x"
    (entry,) = lab.state.table.listed()
    (signature, _), *_ = entry.results
    lab.send(CachePurged(signature=signature))
    lab.finish(borrower, inline(b"other best"), parts=output("bx"))
    assert computed(submit_best(lab, "r3", "bx"), "bx") == "bx"


def test_what_was_made_of_items_that_nobody_stored_lends_none():
    lab = Lab(slots=4)
    first = submit_best(lab, "r1", "ab")
    fact = Fact(True, 2, digests("34"), digests("bc"))
    assert not items(lab.submit("r2", BEST, "other", facts={"texts": fact}))
    work = item(lab.finish(first, output("ab")))
    assert computed(work, "bc") == "bc"
    lab.finish(work, output("bc"))
    assert computed(submit_best(lab, "r3", "ab"), "ab") == "ab"


def test_items_of_a_value_that_is_fetched_anyway_are_borrowed_beyond_the_bound():
    lab = Lab()
    lab.finish(submit_best(lab, "two", "xy"), inline(b"best xy"), parts=output("xy"))
    letters = "".join(chr(0x4E00 + at) for at in range(MOST_LENDERS))
    for at, letter in enumerate(letters):
        value = inline(f"best {letter}".encode())
        lab.finish(submit_best(lab, f"r{at}", letter), value, parts=output(letter))
    texts = f"x{letters}y"
    assert computed(submit_best(lab, "last", texts), texts) == letters[-1]


# What decides an item beside the item of the list


def test_items_below_a_node_are_equal_where_it_gives_the_same():
    lab, spec = Lab(slots=4), spec_of("q llm $x", "m best $texts q")

    def submit(run_id: str, texts: str, question: bytes) -> WorkItem:
        fact = Fact(True, len(texts), digests(f"{run_id}{texts}"), digests(texts))
        asked = item(lab.submit(run_id, spec, run_id, facts={"texts": fact}))
        return item(lab.finish(asked, inline(question)))

    lab.finish(submit("1", "ab", b"why"), inline(b"best"), parts=output("ab"))
    assert computed(submit("2", "abc", b"when"), "abc") == "abc"
    work = submit("3", "xb", b"why")
    assert computed(work, "xb") == "x" and read(work, "xb", "ab") == "xb"


def test_elements_share_items_where_their_own_item_is_equal():
    spec = spec_of("m many $texts % in=r", regions={"r": "$xs"})
    lab = Lab(slots=4, seeded=True)
    facts = {"texts": listed("ab"), "xs": Fact(True, 2, digests("pq"))}
    for at, work in enumerate(items(lab.submit("r1", spec, "one", facts=facts))):
        assert computed(work, "ab") == "ab"
        lab.finish(work, inline(f"{at}".encode()))
    facts = {"texts": listed("bc"), "xs": Fact(True, 2, digests("qz"))}
    asked = items(lab.submit("r2", spec, "two", facts=facts))
    assert [computed(work, "bc") for work in asked] == ["c", "bc"]


def test_elements_whose_own_item_nobody_told_share_nothing():
    spec = spec_of("m many $texts % in=r", regions={"r": "$xs"})
    facts = {"texts": listed("ab"), "xs": Fact(True, 1)}
    assert item(Lab().submit("r1", spec, "one", facts=facts)).shared is None
