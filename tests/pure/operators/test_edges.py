"""Values at the edge: empty lists at every operator that takes one, and steps of agents
that are none. What engines make of odd texts and vectors is tested with the engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.dsl import map_over, workflow
from herasys_rt.dsl.agent import Revealed, agent
from herasys_rt.dsl.tracked import track
from herasys_rt.engines.modelled import create
from herasys_rt.engines.prompting import render
from herasys_rt.engines.protocol import Item, Outcome
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.spec import WorkflowSpec
from operators import embed_documents, embed_many, generate, rerank, store
from tests.pure.dsl.small_runtime import run


class LastOutcome:
    """A sink of an engine that ends items inside `submit`."""

    outcome = Outcome()

    def started(self, key: str) -> None:
        pass

    def piece(self, key: str, text: str, tokens: int) -> None:
        pass

    def finished(self, key: str, outcome: Outcome) -> None:
        self.outcome = outcome

    def collection_changed(self, collection: str, revision: int) -> None:
        pass


def modelled(verb: str) -> Any:
    """The verb on the modelled engine, as a plain function of its arguments."""
    engine = create(PoolConfig(name="p", resource="llm", engine="modelled"))
    sink = LastOutcome()
    engine.start(sink)

    def call(args: dict[str, Any]) -> Any:
        engine.submit([Item("1", verb, args)])
        assert sink.outcome.error is None
        return sink.outcome.value

    return call


VERBS = {
    verb: modelled(verb)
    for verb in ("embed", "text.chunk", "rerank", "llm.generate", "pg.write", "pg.search")
}


@pytest.mark.parametrize("known", ["literal", "input"])
def test_an_empty_list_passes_through_every_operator_that_takes_one(known: str):
    def steps(texts: Any, chunks: Any, documents: Any) -> dict[str, Any]:
        embedded = embed_documents(documents)
        best = rerank("why?", chunks)
        return {
            "vectors": embed_many(texts),
            "best": best,
            "stored": store(embedded, collection="c"),
            "answer": generate("Notes: {best}.", best=best),
            "mapped": map_over(texts, lambda text: generate("{t}", t=text)),
        }

    @workflow
    def literal(question: str):
        return steps([], [], [])

    @workflow
    def given(texts: list[str], chunks: list[dict], documents: list[dict]):  # pyright: ignore
        return steps(texts, chunks, documents)

    if known == "literal":
        outputs = run(literal, VERBS, question="q").outputs
    else:
        outputs = run(given, VERBS, texts=[], chunks=[], documents=[]).outputs
    assert outputs["vectors"].shape == (0, 384)
    assert outputs["vectors"].dtype == np.float32
    assert outputs["best"] == [] == outputs["mapped"]
    assert outputs["stored"]["chunks"] == 0
    assert outputs["answer"]


class Recording:
    """Reveals an agent's steps: keeps what each is asked and from which nodes it came."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.parents: list[Any] = []

    async def reveal(
        self,
        spec: WorkflowSpec,
        inputs: dict[str, Any],
        parents: Any,
        streamed: str | None = None,
    ) -> Any:
        args = resolve(spec.nodes[-1].args, inputs, {})
        self.asked.append(render(args).messages[-1]["content"])
        self.parents.append(parents)
        origin = frozenset({(len(self.asked), spec.nodes[-1].id)})
        return Revealed(track("a\nb", origin), origin)


async def test_gathering_nothing_reveals_nothing_and_forgets_no_parents():
    @agent
    async def look(run: Any, question: str):
        await run.call(generate("{q}", q=question, label="first"))
        none = await run.gather(*[generate(line) for line in []])
        answer = await run.call(generate("Of <{none}>: {q}", none=none, q=question))
        return [none, answer]

    recording = Recording()
    result, _ = await look.execute(recording, {"question": "why?"})
    assert result == [[], "a\nb"]
    assert recording.asked == ["why?", "Of <>: why?"]
    assert recording.parents == [frozenset(), frozenset({(1, "first")})]
