"""What a profile predicts of nodes before they run."""

from __future__ import annotations

import pytest

from herasys_rt.costs.batch import LinearBatch
from herasys_rt.costs.forecast import UNKNOWN_S, ProfileForecast
from herasys_rt.costs.layered import StepParts
from herasys_rt.costs.lengths import UNSEEN_TOKENS
from herasys_rt.costs.profile import PoolProfile, Profile, VerbProfile
from herasys_rt.dsl import workflow
from operators import chunk, embed, embed_documents, embed_many, generate, retrieve

PROFILE = Profile(
    (
        PoolProfile(
            "llm",
            "llm",
            "vllm",
            "cpu",
            16,
            (VerbProfile("llm.generate", steps=StepParts(((0, 0.0), (1000, 1000.0)))),),
            model="smollm2-135m",
        ),
        PoolProfile(
            "embedding",
            "embedding",
            "sentence_transformers",
            "cpu",
            1,
            (VerbProfile("embed", times=LinearBatch(0.01, token_s=0.001)),),
            model="all-minilm-l6-v2",
        ),
    )
)


@workflow
def rag(question: str, tokens: int):
    found = retrieve(embed(question), collection="c", top_k=4)
    return generate("{found}", found=found, max_tokens=tokens)


@workflow
def unserved(question: str):
    return generate("{question}", question=question, model="another")


def test_nodes_take_what_their_inputs_ask_of_the_profile():
    forecast = ProfileForecast(PROFILE)
    short = dict(zip(("embed", "retrieve", "generate"), _of(forecast, 8), strict=True))
    long = dict(zip(("embed", "retrieve", "generate"), _of(forecast, 108), strict=True))
    assert short["embed"] == long["embed"] > 0.01
    # A decode step of one sequence takes a millisecond.
    assert long["generate"] - short["generate"] == pytest.approx(0.1)


def test_an_answer_counts_as_those_before_it_and_within_its_limit():
    forecast = ProfileForecast(PROFILE)
    (node,) = [node for node in rag.spec.nodes if node.verb == "llm.generate"]
    unseen_s = _of(forecast, 1000)[2]
    for _ in range(50):
        forecast.observe(node.model, node.operator, 28)
        forecast.observe("another", node.operator, 900)
        forecast.observe(node.model, "judge@1", 900)
    assert unseen_s - _of(forecast, 1000)[2] == pytest.approx((UNSEEN_TOKENS - 28) / 1000)
    assert _of(forecast, 1000)[2] - _of(forecast, 8)[2] == pytest.approx(0.02)


def test_embedding_counts_the_chunks_that_texts_will_be_cut_into():
    @workflow
    def one(texts: list[str]):
        return embed_many(texts)

    @workflow
    def cut(document: str):
        return embed_many(chunk(document, max_tokens=100, overlap=0))

    @workflow
    def documents(documents: list[dict]):  # pyright: ignore[reportMissingTypeArgument]
        return embed_documents(documents, chunk_tokens=100, overlap=0)

    text, forecast = "x" * 4000, ProfileForecast(PROFILE)
    (known,) = forecast.seconds(one.spec, {"texts": [text[:400]] * 10})
    given = {"documents": [{"id": "d", "text": text}]}
    assert forecast.seconds(cut.spec, {"document": text}) == (UNKNOWN_S, known)
    assert forecast.seconds(documents.spec, given) == (UNKNOWN_S, known)


def test_what_was_not_measured_is_not_known():
    forecast = ProfileForecast(PROFILE)
    assert _of(forecast, 8)[1] == UNKNOWN_S
    assert forecast.seconds(unserved.spec, {"question": "why"}) == (UNKNOWN_S,)


def _of(forecast: ProfileForecast, tokens: int) -> tuple[float, ...]:
    return forecast.seconds(rag.spec, {"question": "why is that so", "tokens": tokens})
