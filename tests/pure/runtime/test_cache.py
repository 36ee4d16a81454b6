"""The reuse cache as a client sees it: over a restart, purged, and what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.client.client import Client
from herasys_rt.config import default_config
from herasys_rt.dsl import workflow
from herasys_rt.engines.protocol import Item
from herasys_rt.errors import HerasysError, InputError
from herasys_rt.messages import StoreFacts
from herasys_rt.runtime import pending_purges
from herasys_rt.runtime.kernels import new_kernel
from operators import embed, generate, retrieve
from tests.pure.runtime.conftest import OPERATOR_KEY, HandEngine, LocalRuntime
from tests.pure.runtime.path_lab import await_fuser, under_both_hashes

CHUNK = {"id": "a#0", "source": "a", "text": "because", "score": 0.5}


@workflow
def answer(question: str):
    return generate("Say: {question}", question=question, max_tokens=8)


@workflow
def rag(question: str):
    found = retrieve(embed(question), collection="docs", top_k=1)
    return generate("{found} {question}", found=found, question=question)


class Answering(HandEngine):
    """An engine that ends every item at once, with its own word; ``revision`` is that of
    its collection."""

    def __init__(self, word: str = "said", revision: int = 0) -> None:
        super().__init__()
        self.word = word
        self.revision = revision
        self.fingerprint = "hand"

    def describe(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint}

    def start(self, sink: Any) -> None:
        super().start(sink)
        if self.revision:
            sink.collection_changed("docs", self.revision)

    def submit(self, items: Any) -> None:
        super().submit(items)
        for item in items:
            self.answer(item)

    def answer(self, item: Item) -> None:
        if item.verb == "embed":
            self.finish(item, [1.0, 2.0])
        elif item.verb == "pg.search":
            revisions = {"docs": self.revision}
            self.finish(item, [CHUNK], sources=[CHUNK], revisions=revisions)
        else:
            usage = {"prompt_tokens": 5, "completion_tokens": 3}
            self.finish(item, self.word, usage=usage, run_s=2.0)


def ready(runtime: LocalRuntime, tenant: str = "default") -> Client:
    client = runtime.connect(tenant)
    await_fuser(client)
    if runtime.store is not None:
        await_store(runtime, lambda facts: facts.state == "up")
    return client


def await_store(runtime: LocalRuntime, holds: Callable[[StoreFacts], bool]) -> None:
    """Until it holds of the store."""
    assert runtime.hinting is not None
    while not holds(runtime.hinting.facts()):
        pass


def await_stats(client: Client, holds: Callable[[Any], Any]) -> dict[str, Any]:
    """The first statistics for which it holds."""
    while not holds(stats := client.cache_stats()):
        pass
    return stats


def kept(runtime: LocalRuntime, count: int) -> None:
    """Until the store has so many results."""
    await_store(runtime, lambda facts: facts.entries >= count)


@under_both_hashes
def test_a_restarted_runtime_serves_the_results_of_the_one_before(
    start_runtime: Any, tmp_path: Path
) -> None:
    def start() -> tuple[LocalRuntime, list[Answering], Client]:
        engines = [Answering(), Answering(revision=7), Answering()]
        names = ("embedding", "search", "llm")
        runtime = start_runtime(store=tmp_path, **dict(zip(names, engines, strict=True)))
        return runtime, engines, ready(runtime)

    runtime, _, client = start()
    first = client.submit(rag, question="why?")
    assert first.result(10) == "said"
    kept(runtime, 3)
    runtime.close()

    runtime, engines, client = start()
    second = client.submit(rag, question="why?")
    assert second.result(10) == "said"
    assert [len(engine.seen) for engine in engines] == [0, 0, 0]
    report = second.report()
    assert [node["reused"] for node in report["nodes"]] == [True, True, True]
    assert report["sources"] == [CHUNK], "what it was made of is told as before"
    assert report["run_id"] == second.id != first.id
    stats = client.cache_stats()
    assert stats["hints"] == {"taken": 3, "ignored": 0}
    assert (stats["nodes"]["saved_s"], stats["nodes"]["saved_tokens"]) == (2.0, 8)


@under_both_hashes
def test_documents_that_changed_while_the_runtime_was_down_are_searched_again(
    start_runtime: Any, tmp_path: Path
) -> None:
    """Known fault 25."""
    for revision, word in ((7, "old"), (8, "new")):
        embedding, search, llm = Answering(), Answering(revision=revision), Answering(word)
        runtime = start_runtime(store=tmp_path, embedding=embedding, search=search, llm=llm)
        client = ready(runtime)
        assert client.submit(rag, question="why?").result(10) == word
        assert len(search.seen) == len(llm.seen) == 1
        kept(runtime, 3)
        runtime.close()
    assert len(embedding.seen) == 0, "what does not depend on them is reused"


def test_another_model_under_the_same_name_is_asked_anew(
    start_runtime: Any, tmp_path: Path
) -> None:
    for word in ("small", "large"):
        engine = Answering(word)
        engine.fingerprint = word
        runtime = start_runtime(store=tmp_path, llm=engine)
        client = ready(runtime)
        assert client.submit(answer, question="who?").result(10) == word
        kept(runtime, 1)
        runtime.close()


def test_what_was_signed_before_the_model_was_known_is_for_one_runtime_only(
    start_runtime: Any, tmp_path: Path
) -> None:
    for word in ("small", "large"):
        engine = Answering(word)
        engine.fingerprint = ""
        runtime = start_runtime(store=tmp_path, llm=engine)
        client = ready(runtime)
        assert client.submit(answer, question="who?").result(10) == word
        assert client.submit(answer, question="who?").report(10)["nodes"][0]["reused"]
        runtime.close()


@under_both_hashes
def test_a_restarted_fuser_has_the_store_again_and_without_it_all_works(
    start_runtime: Any, tmp_path: Path
) -> None:
    engine = Answering()
    runtime = start_runtime(store=tmp_path, llm=engine)
    client = ready(runtime)
    assert client.submit(answer, question="q").result(10) == "said"
    kept(runtime, 1)
    runtime.lose_fuser()
    await_stats(client, lambda s: s["store"] is None)
    assert client.submit(answer, question="q").result(10) == "said"
    assert len(engine.seen) == 2, "unsigned"
    runtime.start_fuser()
    await_fuser(client)
    kept(runtime, 1)
    assert client.submit(answer, question="q").report(10)["nodes"][0]["reused"]


def test_hits_cost_the_store_nothing(start_runtime: Any, tmp_path: Path) -> None:
    runtime = start_runtime(store=tmp_path, llm=Answering())
    client = ready(runtime)
    for _ in range(3):
        client.submit(answer, question="q").result(10)
    kept(runtime, 1)
    runtime.close()
    runtime = start_runtime(store=tmp_path, llm=Answering())
    client = ready(runtime)
    for _ in range(3):
        assert client.submit(answer, question="q").report(10)["nodes"][0]["reused"]
    stats = await_stats(client, lambda s: s["store"]["found"] == 1)
    assert stats["hints"]["taken"] == 1


def test_without_configuration_searches_and_answers_expire_and_nothing_else() -> None:
    kernel = new_kernel(default_config())
    assert kernel.config.reuse_ttl_s == {"http.search": 300.0, "llm.generate": 3600.0}
    assert not kernel.config.reuse_store


# ---- purges


@under_both_hashes
def test_a_purge_reaches_memory_and_disk(start_runtime: Any, tmp_path: Path) -> None:
    engine = Answering()
    runtime = start_runtime(store=tmp_path, llm=engine)
    client = ready(runtime)
    for question in "ab":
        client.submit(answer, question=question).result(10)
    kept(runtime, 2)
    done = client.purge_cache()
    assert (done["entries"], done["stored"]) == (2, 2) and done["bytes"] > 0
    assert not client.submit(answer, question="a").report(10)["nodes"][0]["reused"]
    kept(runtime, 1)
    assert client.cache_stats()["generation"] == 1
    runtime.close()
    client = ready(start_runtime(store=tmp_path, llm=Answering()))
    assert client.submit(answer, question="a").report(10)["nodes"][0]["reused"]
    assert not client.submit(answer, question="b").report(10)["nodes"][0]["reused"]


def test_a_purge_while_the_fuser_is_away_reaches_the_store_when_it_is_back(
    start_runtime: Any, tmp_path: Path
) -> None:
    engine = Answering()
    runtime = start_runtime(store=tmp_path, llm=engine)
    client = ready(runtime)
    client.submit(answer, question="q").result(10)
    kept(runtime, 1)
    runtime.lose_fuser()
    await_stats(client, lambda s: s["store"] is None)
    for _ in range(2):
        assert client.purge_cache()["stored"] is None
    runtime.start_fuser()
    await_fuser(client)
    await_store(runtime, lambda facts: facts.state == "up")
    assert not client.submit(answer, question="q").report(10)["nodes"][0]["reused"]


def records(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.purge")]


def test_a_purge_that_no_fuser_confirmed_holds_over_the_end_of_the_runtime(
    start_runtime: Any, tmp_path: Path
) -> None:
    runtime = start_runtime(store=tmp_path, llm=Answering())
    client = ready(runtime)
    for question in "ab":
        client.submit(answer, question=question).result(10)
    kept(runtime, 2)
    runtime.lose_fuser()
    await_stats(client, lambda s: s["store"] is None)
    for _ in range(2):
        assert client.purge_cache()["stored"] is None
    assert len(records(tmp_path)) == 1, "the later one does as much"
    runtime.fuser = None
    runtime.close()
    client = ready(start_runtime(store=tmp_path, llm=Answering()))
    assert not client.submit(answer, question="a").report(10)["nodes"][0]["reused"]
    assert records(tmp_path) == []


def test_a_purge_that_is_carried_out_is_no_longer_written_down(
    start_runtime: Any, tmp_path: Path
) -> None:
    runtime = start_runtime(store=tmp_path, llm=Answering())
    client = ready(runtime)
    assert client.purge_cache()["stored"] == 0
    assert records(tmp_path) == []
    runtime.lose_fuser()
    await_stats(client, lambda s: s["store"] is None)
    client.purge_cache(collection="docs")
    assert len(records(tmp_path)) == 1
    runtime.start_fuser()
    await_fuser(client)
    while records(tmp_path):
        pass


def test_where_nothing_can_be_written_a_purge_holds_in_memory(
    start_runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(pending_purges, "write", full)
    runtime = start_runtime(store=tmp_path, llm=Answering())
    client = ready(runtime)
    client.submit(answer, question="q").result(10)
    kept(runtime, 1)
    assert client.purge_cache()["stored"] == 1


def test_a_purge_holds_when_everything_is_killed_before_the_store_heard_of_it(
    start_runtime: Any, tmp_path: Path, short_folder: Path
) -> None:
    words = [sys.executable, "-c", "from tests.pure.runtime import doomed; doomed.main()"]
    store = tmp_path / "store"
    with subprocess.Popen(
        [*words, str(store), str(short_folder)], stdout=subprocess.PIPE, text=True
    ) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "2 results, purged\n"
        doomed.kill()
    assert len(records(store)) == 1
    client = ready(start_runtime(store=store, llm=Answering()))
    assert client.submit(answer, question="b").report(10)["nodes"][0]["reused"]
    assert not client.submit(answer, question="a").report(10)["nodes"][0]["reused"]


def test_without_a_store_a_purge_is_answered_at_once(start_runtime: Any) -> None:
    client = ready(start_runtime(llm=Answering()))
    client.submit(answer, question="q").result(10)
    assert client.purge_cache()["stored"] == 0
    assert client.cache_stats()["store"] is None


def test_a_tenant_purges_and_sees_its_own_and_the_operator_everything(
    start_runtime: Any,
) -> None:
    runtime = start_runtime(llm=Answering())
    ours, theirs = ready(runtime, "ours"), ready(runtime, "theirs")
    for client in (ours, theirs):
        client.submit(answer, question="q").result(10)
    assert [e["tenant"] for e in ours.cache_stats()["operators"]] == ["ours"]
    assert ours.purge_cache()["entries"] == 1
    assert theirs.submit(answer, question="q").report(10)["nodes"][0]["reused"]
    link = ours._link
    with pytest.raises(HerasysError, match="'ours' may purge") as raised:
        link.purge(tenant="theirs")
    assert raised.value.code == "not_permitted"
    with pytest.raises(HerasysError):
        link.purge(tenant="theirs", key="guessed")
    assert link.purge(tenant="theirs", key=OPERATOR_KEY).entries == 1
    seen = link.status(key=OPERATOR_KEY)["cache"]["operators"]
    assert [entry["tenant"] for entry in seen] == ["ours", "theirs"]


@under_both_hashes
def test_a_purge_by_collection_or_signature(start_runtime: Any) -> None:
    engines = {"embedding": Answering(), "search": Answering(revision=1)}
    client = ready(start_runtime(**engines, llm=Answering()))
    client.submit(rag, question="q").result(10)
    assert client.purge_cache(collection="others")["entries"] == 0
    assert client.purge_cache(signature="00" * 32)["entries"] == 0
    assert client.purge_cache(collection="docs")["entries"] == 2
    with pytest.raises(InputError, match="64 hexadecimal"):
        client.purge_cache(signature="zz")
