"""Explanations on their way: what the fuser keeps, and what a client is told."""

from __future__ import annotations

import numpy as np
import pytest

from herasys_rt.client.client import AsyncClient, Client
from herasys_rt.dsl import agent, workflow
from herasys_rt.errors import InputError, RuntimeStateError
from herasys_rt.graph import codec
from herasys_rt.graph.explain import Explanation, compare
from herasys_rt.graph.hashing import XXH3
from herasys_rt.graph.signature import Signer
from herasys_rt.runtime.objects import InlineValues
from herasys_rt.runtime.signed_runs import WHOLE, SignedRuns
from operators import embed, generate, retrieve

SAID = "Say: {question}"


@workflow
def answer(question: str):
    return generate(SAID, question=question, max_tokens=8)


@workflow
def read(question: str):
    return retrieve(embed(question), collection="docs", top_k=1)


@agent
async def helper(run, question: str):
    first = await run.call(generate("1: {q}", q=question))
    return await run.call(generate("2: {q}", q=first, label="second"))


def shown(found: Explanation) -> dict[str, str]:
    return {field.name: field.shown for field in found.fields}


def when_signed(client: Client, run_id: str, node: str) -> Explanation:
    """The explanation, once the fuser has seen the run."""
    while True:
        try:
            return client.explain(run_id, node)
        except InputError as e:
            assert e.code == "unknown_run"
        except RuntimeStateError as e:
            assert e.retryable or "fuser" in e.message


# What is kept


def kept(runs: SignedRuns, *run_ids: str, tenant: str = "t", revision: int = 0) -> None:
    signer = Signer(answer.spec, lambda _: "m")
    for run_id in run_ids:
        inputs = codec.encode({"question": run_id})
        runs.keep(run_id, WHOLE, signer, inputs, tenant, {"docs": revision})


def refusal(runs: SignedRuns, run_id: str, node: str = "generate", tenant: str = "t"):
    with pytest.raises(InputError) as caught:
        runs.explain(run_id, node, tenant)
    return caught.value


def test_a_run_is_explained_as_it_was_signed():
    runs = SignedRuns()
    kept(runs, "run-1")
    found = runs.explain("run-1", "generate", "t")
    signed = (
        Signer(answer.spec, lambda _: "m")
        .signed({"question": "run-1"}, "t", "run-1")
        .signatures
    )
    assert found.signature == signed[0].hex()
    assert (found.run_id, found.node) == ("run-1", "generate")


def test_the_oldest_are_forgotten_and_told_as_forgotten():
    runs = SignedRuns(max_runs=2)
    kept(runs, "run-1", "run-2", "run-3")
    assert refusal(runs, "run-1").code == "forgotten_run"
    assert refusal(runs, "run-1", tenant="u").code == "unknown_run"
    for run_id in ("run-2", "run-3"):
        assert runs.explain(run_id, "generate", "t").run_id == run_id


def test_bytes_of_inputs_are_bounded():
    one = len(codec.encode({"question": "run-1"}))
    runs = SignedRuns(max_bytes=3 * one)
    kept(runs, "run-1", "run-2", "run-2", "run-2", "run-3")
    assert runs.explain("run-1", "generate", "t").run_id == "run-1"
    kept(runs, "run-4")
    assert refusal(runs, "run-1").code == "forgotten_run"


def test_a_run_too_large_to_keep_is_forgotten_at_once():
    runs = SignedRuns(max_bytes=10)
    kept(runs, "run-1")
    assert refusal(runs, "run-1").code == "forgotten_run"


def test_another_tenants_run_is_unknown_and_not_even_near():
    runs = SignedRuns()
    kept(runs, "run-1")
    kept(runs, "run-9", tenant="u")
    error = refusal(runs, "run-1", tenant="u")
    assert error.code == "unknown_run"
    assert "run-9" in error.hint
    assert "run-1'" not in error.hint
    assert "report" in refusal(SignedRuns(), "run-1").hint


def test_an_unknown_node_is_told_with_what_is_near():
    runs = SignedRuns()
    kept(runs, "run-1")
    error = refusal(runs, "run-1", "generat")
    assert (error.code, "generate" in error.hint) == ("unknown_node", True)
    assert refusal(runs, "run-1", "0/generate").code == "unknown_node"


def test_a_run_keeps_the_revisions_of_its_time():
    runs = SignedRuns()
    signer = Signer(read.spec, lambda _: "m")
    for revision in (1, 2):
        inputs = codec.encode({"question": "q"})
        runs.keep(f"run-{revision}", WHOLE, signer, inputs, "t", {"docs": revision})
    one, two = (runs.explain(f"run-{i}", "retrieve", "t") for i in (1, 2))
    assert compare(one, two).field == "collection docs"


# What a client is told


def test_a_client_is_told_how_its_run_was_signed(start_runtime, hand_engine):
    runtime = start_runtime(llm=hand_engine())
    client = runtime.connect()
    one, two = (client.submit(answer, question=q) for q in ("why?", "how?"))
    found = when_signed(client, one.id, "generate")
    assert shown(found)["variable question"] == "'why?' (input question)"
    assert shown(found)["argument prompt"] == repr(SAID)
    assert shown(found)["scope"] == "tenant 'default'"
    other = when_signed(client, two.id, "generate")
    assert compare(found, other).field == "variable question"
    stranger = runtime.connect("theirs")
    with pytest.raises(InputError, match="no run"):
        stranger.explain(one.id, "generate")
    with pytest.raises(InputError, match="no node 'nope'"):
        client.explain(one.id, "nope")


async def test_the_asynchronous_twin_explains(start_runtime, hand_engine):
    client = AsyncClient(start_runtime(llm=hand_engine()).connect())
    run = await client.submit(answer, question="why?")
    when_signed(client._client, run.id, "generate")
    assert (await client.explain(run.id, "generate")).node == "generate"


def test_pieces_of_an_agents_run_are_explained(start_runtime, hand_engine):
    engine = hand_engine()
    client = start_runtime(llm=engine).connect()
    while client.status()["fuser"] != "up":
        pass
    run = client.submit(helper, question="why?")
    engine.finish(engine.wait_for(1)[0], "because")
    engine.finish(engine.wait_for(2)[1], "so")
    assert run.result(10) == "so"
    names = [node["id"] for node in run.report()["nodes"]]
    for name in names:
        assert client.explain(run.id, name).node == name
    with pytest.raises(InputError, match="is an agent's") as caught:
        client.explain(run.id, "second")
    assert names[1] in caught.value.hint


def test_revisions_reach_the_fuser(start_runtime, hand_engine):
    engines = {name: hand_engine() for name in ("embedding", "search", "llm")}
    client = start_runtime(**engines).connect()
    first = client.submit(read, question="q")
    assert when_signed(client, first.id, "retrieve").collections == {"docs": 0}
    assert engines["search"].sink is not None
    engines["search"].sink.collection_changed("docs", 7)
    await_revision(client, 7)
    assert client.explain(first.id, "retrieve").collections == {"docs": 0}


def test_a_revision_that_an_item_saw_reaches_the_fuser(start_runtime, hand_engine):
    engines = {name: hand_engine() for name in ("embedding", "search", "llm")}
    client = start_runtime(**engines).connect()
    client.submit(read, question="q")
    engines["embedding"].finish(engines["embedding"].wait_for(1)[0], np.ones(3, "f4"))
    engines["search"].finish(engines["search"].wait_for(1)[0], [], revisions={"docs": 5})
    await_revision(client, 5)


def await_revision(client: Client, revision: int) -> None:
    """Until runs are signed at a revision: the news passes the scheduler."""
    found = {"docs": 0}
    while found != {"docs": revision}:
        run = client.submit(read, question="q")
        found = when_signed(client, run.id, "retrieve").collections


def test_without_a_fuser_it_is_said_that_nobody_knows(start_runtime, hand_engine):
    client = start_runtime(fuser=False, llm=hand_engine()).connect()
    with pytest.raises(RuntimeStateError, match="fuser") as caught:
        client.explain("run-1", "generate")
    assert caught.value.hint


def test_a_closed_client_explains_nothing(start_runtime, hand_engine):
    client = start_runtime(llm=hand_engine()).connect()
    client.close()
    with pytest.raises(RuntimeStateError, match="closed"):
        client.explain("run-1", "generate")


def test_values_are_named_by_the_hash_of_their_store():
    data = codec.encode("text")
    assert InlineValues().pack(data).digest == codec.digest(data)
    assert InlineValues(XXH3).pack(data).digest == XXH3.digest(data)
    assert InlineValues(XXH3).pack(data, b"known").digest == b"known"
