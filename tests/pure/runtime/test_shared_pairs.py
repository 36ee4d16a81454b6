"""Candidates of one query that overlap, through the loops: each pair is scored once, and
nobody can tell from the result."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from herasys_rt.client.client import Client
from herasys_rt.config import PoolConfig
from herasys_rt.dsl import map_over, workflow
from herasys_rt.engines.modelled import create
from herasys_rt.engines.protocol import Item, Outcome
from herasys_rt.errors import ErrorInfo, RunError
from herasys_rt.graph import codec
from herasys_rt.graph.reductions import ranked, sources_of
from operators import generate, hybrid, rerank, search_text
from tests.pure.runtime.test_control_path import (
    await_accepted,
    await_fuser,
    under_both_hashes,
)
from tests.pure.runtime.test_shared_items import RecordingEngine, shared_items

pytestmark = under_both_hashes


@workflow
def ordered(question: str, passages: list[dict[str, Any]], top_k: int = 9):
    return rerank(question, passages, top_k=top_k)


@workflow
def fused(question: str, passages: list[dict[str, Any]], top_k: int = 9):
    return rerank(question, passages, top_k=top_k, fuse_first_stage=True)


@workflow
def each(question: str, searches: list[str]):
    def best(names: Any) -> Any:
        return rerank(question, search_text(names, collection="docs"), top_k=2)

    return map_over(searches, best)


@workflow
def each_question(questions: list[str], names: str):
    return map_over(
        questions, lambda q: rerank(q, search_text(names, collection="docs"), top_k=2)
    )


@workflow
def rewritten(question: str, names: str):
    asked = generate("Rewrite: {q}", q=question)
    return rerank(asked, search_text(names, collection="docs"), top_k=2)


@workflow
def found(question: str, names: str):
    return rerank(question, search_text(names, collection="docs"), top_k=2)


@workflow
def found_both(question: str, names: str, vector: Any):
    return rerank(question, hybrid(vector, names, collection="docs"), top_k=2)


@workflow
def answered(question: str, passages: list[dict[str, Any]]):
    best = rerank(question, passages, top_k=2)
    return generate("{best} {q}", best=best, q=question)


@workflow
def noted(question: str, passages: list[dict[str, Any]]):
    best = rerank(question, passages, top_k=2)
    return map_over(best, lambda passage: generate("{t}", t=passage["text"]))


class PairEngine(RecordingEngine):
    """A reranker that notes every pair it scores."""

    verbs = frozenset({"rerank"})

    def submit(self, items: Any) -> None:
        for item in items:
            with self.heard:
                self.texts.append([chunk["text"] for chunk in item.args["chunks"]])
                self.heard.notify_all()
                if self.held is not None:
                    self.running.add(item.key)
                    self.held.append(item)
                    continue
            self.finish(item)

    def finish(self, item: Item) -> None:
        self.running.discard(item.key)
        assert set(item.args) == {"query", "chunks"}
        if self.error is not None:
            self.sink.finished(item.key, Outcome(error=self.error))
            return
        scores = scores_of(item.args["query"], item.args["chunks"])
        usage = {"items": len(scores), "tokens": 5 * len(scores)}
        self.sink.finished(item.key, Outcome(value=scores, usage=usage))

    @property
    def scored(self) -> str:
        """The letters of all texts that were scored, in order."""
        return "".join(text[-1] for texts in self.texts for text in texts)


class SearchEngine(RecordingEngine):
    """A search that finds a chunk per letter of its query, each time under new ids."""

    verbs = frozenset({"pg.text", "pg.hybrid"})

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def submit(self, items: Any) -> None:
        for item in items:
            names = item.args["query"]
            self.sink.finished(item.key, Outcome(value=chunks(names, next(self.numbers))))


def text(name: str) -> str:
    return f"passage {name}"


def chunks(names: str, of: int = 0) -> list[dict[str, Any]]:
    """A chunk per letter, of its text nothing but its own."""
    return [
        {"id": f"{of}/{at}", "text": text(name), "source": f"s{of}", "score": of - at / 9}
        for at, name in enumerate(names)
    ]


def texts(given: list[dict[str, Any]]) -> list[str]:
    return [chunk["text"] for chunk in given]


def scores_of(query: str, given: list[dict[str, Any]]) -> list[float]:
    """What the engine gives; pairs of texts have equal scores."""
    return [float((ord(c["text"][-1]) // 2 * 37 + len(query)) % 11) for c in given]


def expected(
    query: str, given: list[dict[str, Any]], top_k: int = 9, *, fuse: bool = False
) -> list[dict[str, Any]]:
    args = {"chunks": given, "top_k": top_k, "fuse_first_stage": fuse}
    return ranked(args, scores_of(query, given))


@pytest.fixture
def engine() -> PairEngine:
    return PairEngine()


@pytest.fixture
def client(start_runtime: Any, engine: PairEngine) -> Client:
    llm = create(PoolConfig(name="llm", resource="llm", engine="modelled"))
    client = start_runtime(rerank=engine, search=SearchEngine(), llm=llm).connect()
    await_fuser(client)
    return client


def test_candidates_that_overlap_are_scored_once(client, engine):
    first, second = chunks("abcd"), chunks("xcbd", of=1)
    run = client.submit(ordered, question="why", passages=first)
    assert codec.encode(run.result(10)) == codec.encode(expected("why", first))
    assert run.report()["usage"] == {"items": 4, "tokens": 20}
    run = client.submit(ordered, question="why", passages=second)
    assert codec.encode(run.result(10)) == codec.encode(expected("why", second))
    assert engine.texts == [[*map(text, "abcd")], [text("x")]]
    assert run.report()["usage"] == {"items": 1, "tokens": 5}
    assert shared_items(run) == 3
    assert run.report()["sources"] == sources_of(expected("why", second))


def test_another_top_k_or_way_to_order_asks_no_engine(client, engine):
    given = chunks("abcdef")
    for flow, top_k in ((ordered, 2), (ordered, 4), (fused, 3), (ordered, 99)):
        run = client.submit(flow, question="why", passages=given, top_k=top_k)
        assert run.result(10) == expected("why", given, top_k, fuse=flow is fused)
        assert [s["id"] for s in run.sources] == [c["id"] for c in run.result(10)]
    assert engine.texts == [[*map(text, "abcdef")]]


def test_another_query_is_other_work(client, engine):
    for question in ("why", "when", "why "):
        run = client.submit(ordered, question=question, passages=chunks("ab"))
        assert run.result(10) == expected(question, chunks("ab"))
    assert engine.scored == "ababab"


def test_a_text_that_stands_twice_is_scored_once_and_both_keep_their_place(client, engine):
    given = chunks("abab")
    run = client.submit(ordered, question="why", passages=given)
    assert run.result(10) == expected("why", given)
    assert engine.scored == "ab" and shared_items(run) == 2


def test_no_candidates_give_none(client, engine):
    assert client.submit(ordered, question="why", passages=[]).result(10) == []


def test_candidates_at_once_are_scored_as_their_union(client, engine):
    engine.held = []
    lists = [chunks(names, of) for of, names in enumerate(["abc", "bcd", "cde", "ba"])]
    runs = [client.submit(ordered, question="why", passages=given) for given in lists]
    await_accepted(client, len(runs))
    finish_all(engine, "abcde")
    for run, given in zip(runs, lists, strict=True):
        assert run.result(10) == expected("why", given)
    assert sorted(engine.scored) == list("abcde")


def test_a_region_scores_the_union_of_its_candidates(client, engine):
    for searches in (["abc", "bcd", "ab"], ["dcba", "bad"]):
        run = client.submit(each, question="why", searches=searches)
        for best, names in zip(run.result(10), searches, strict=True):
            assert texts(best) == texts(expected("why", chunks(names), 2))
    assert sorted(engine.scored) == list("abcd")


def test_many_candidates_share_too(client, engine):
    """More scores than travel inside a message."""
    given = [{"id": f"{n}", "text": f"text {n}", "source": "s"} for n in range(8000)]
    for one in (given, given[::-1]):
        run = client.submit(ordered, question="why", passages=one)
        assert run.result(30) == expected("why", one)
    assert len(engine.texts) == 1


def test_what_searches_find_is_scored_once_whatever_else_they_tell(client, engine):
    """A collection that has grown, and another kind of search over it."""
    runs = [
        client.submit(found, question="why", names="abc"),
        client.submit(found, question="why", names="abcd"),
        client.submit(
            found_both, question="why", names="dxa", vector=np.ones(1, np.float32)
        ),
    ]
    for run, names in zip(runs, ("abc", "abcd", "dxa"), strict=True):
        assert texts(run.result(10)) == texts(expected("why", chunks(names), 2))
    assert sorted(engine.scored) == list("abcdx")


def test_questions_of_a_region_score_their_own_pairs(client, engine):
    for questions, names in ((["why", "when"], "abc"), (["when", "who", "why"], "bcd")):
        run = client.submit(each_question, questions=questions, names=names)
        for best, question in zip(run.result(10), questions, strict=True):
            assert texts(best) == texts(expected(question, chunks(names), 2))
    assert sorted(engine.scored) == sorted("abcd" * 2 + "bcd")


def test_a_question_that_a_node_gives_counts_by_its_words(client, engine):
    """However it came about."""
    for question, names in (("why", "abc"), ("why", "xb"), ("when", "ab")):
        client.submit(rewritten, question=question, names=names).result(10)
    assert engine.scored == "abcx" + "ab"


def test_a_literal_list_shares_with_one_that_is_an_input(client, engine):
    client.submit(ordered, question="why", passages=chunks("ab")).result(10)
    given = chunks("bc", of=7)

    @workflow
    def written(question: str):
        return rerank(question, given, top_k=9)

    assert client.submit(written, question="why").result(10) == expected("why", given)
    assert engine.scored == "abc"


def test_what_is_made_of_the_best_is_reused_where_they_are_equal(client, engine):
    """Whatever was found besides and is worse."""
    first = client.submit(answered, question="why", passages=chunks("abc")).result(10)
    run = client.submit(answered, question="why", passages=chunks("abcx"))
    assert run.result(10) == first and engine.scored == "abcx"
    told = {node["operator"]: node["reused"] for node in run.report()["nodes"]}
    assert told == {"rerank@1": False, "generate@1": True}


def test_a_region_goes_over_the_best_themselves(client, engine):
    run = client.submit(noted, question="why", passages=chunks("abc"))
    assert len(run.result(10)) == 2
    assert {n["operator"] for n in run.report()["nodes"]} == {"rerank@1", "generate@1"}


def test_a_run_whose_lender_fails_scores_for_itself(client, engine):
    engine.held = []
    first = client.submit(ordered, question="why", passages=chunks("ab"))
    second = client.submit(ordered, question="why", passages=chunks("bc", of=1))
    await_accepted(client, 2)
    engine.error = ErrorInfo("not_finite", "a score is not finite", "Look at it.")
    engine.finish(engine.wait_for(1)[0])
    with pytest.raises(RunError, match="not finite"):
        first.result(10)
    engine.error = None
    for item in engine.wait_for(2)[1:]:
        engine.finish(item)
    assert second.result(10) == expected("why", chunks("bc", of=1))
    assert engine.scored == "abbc"


def test_an_engine_that_gives_no_score_for_each_fails_the_node(client, engine):
    engine.held = []
    run = client.submit(ordered, question="why", passages=chunks("ab"))
    (item,) = engine.wait_for(1)
    engine.running.discard(item.key)
    engine.sink.finished(item.key, Outcome(value=[1.0]))
    with pytest.raises(RunError, match="1 items for 2"):
        run.result(10)


@pytest.mark.parametrize(
    "given", [[{"id": "a"}, {"id": "b"}], ["1", "2"], [[1.0], [2.0]], [float("nan"), 1.0]]
)
@pytest.mark.parametrize("names", ["ab", "aba"])
def test_what_is_no_score_fails_the_node(client, engine, given, names):
    engine.held = []
    run = client.submit(ordered, question="why", passages=chunks(names))
    (item,) = engine.wait_for(1)
    engine.running.discard(item.key)
    engine.sink.finished(item.key, Outcome(value=given))
    with pytest.raises(RunError, match="score"):
        run.result(10)


def test_scores_in_an_array_are_numbers(client, engine):
    engine.held = []
    for at, names in enumerate(("abc", "xbc")):
        given = chunks(names)
        run = client.submit(ordered, question="why", passages=given)
        item = engine.wait_for(at + 1)[at]
        engine.running.discard(item.key)
        scores = np.array(scores_of("why", item.args["chunks"]), np.float32)
        engine.sink.finished(item.key, Outcome(value=scores))
        assert run.result(10) == expected("why", given)


def test_tenants_share_no_pairs(start_runtime, engine):
    runtime = start_runtime(rerank=engine)
    for tenant in ("ours", "theirs"):
        client = runtime.connect(tenant)
        await_fuser(client)
        client.submit(ordered, question="why", passages=chunks("ab")).result(10)
    assert engine.scored == "abab"


def finish_all(engine: PairEngine, names: str) -> None:
    """End what is held, one after the other, until each passage was scored."""
    done: set[str] = set()
    for count in itertools.count(1):
        item: Item = engine.wait_for(count)[count - 1]
        engine.finish(item)
        done.update(chunk["text"] for chunk in item.args["chunks"])
        if done == set(map(text, names)):
            return
