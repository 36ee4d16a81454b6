"""What profiling runs: workflows of one operator each, and texts for them.

A workflow also holds what its operator needs before it. All ask for no reuse. Operators
are those installed (`dsl.discover`).
"""

from __future__ import annotations

import random
from typing import Any

from herasys_rt.dsl import find_operator, workflow
from herasys_rt.dsl.workflow import Workflow
from herasys_rt.ingestion import ingest_spec

AnyWorkflow = Workflow[...]

TOP_K = 12
"""Passages of a search: HeraSys's standard RAG."""

_WORDS = """
time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work
government number night point home water room mother area money story fact month lot
right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city name
"""


class Texts:
    """Texts of a wanted length, told apart from one another by their first words."""

    def __init__(self, salt: str) -> None:
        self._random = random.Random(salt)
        self._words = _WORDS.split()

    def of(self, words: int) -> str:
        """A text of so many words, which are one token each for most tokenizers."""
        return " ".join(self._random.choices(self._words, k=max(words, 1)))


def generate(model: str | None) -> AnyWorkflow:
    """An answer of exactly ``tokens`` tokens to ``prompt``."""
    operator = find_operator("generate@1")

    @workflow(name="herasys.profile.generate")
    def declared(prompt: str, tokens: int) -> Any:
        return operator(
            prompt, max_tokens=tokens, min_tokens=tokens, model=model, cache=False
        )

    return declared


def embed(model: str | None) -> AnyWorkflow:
    """The embeddings of ``texts``."""
    operator = find_operator("embed_many@1")

    @workflow(name="herasys.profile.embed")
    def declared(texts: list[str]) -> Any:
        return operator(texts, kind="document", model=model, cache=False)

    return declared


def search(name: str, collection: str) -> AnyWorkflow:
    """The passages for ``query``; ``name`` is retrieve, search_text or hybrid."""
    embedding, operator = find_operator("embed@1"), find_operator(f"{name}@1")
    place: dict[str, Any] = {"collection": collection, "top_k": TOP_K, "cache": False}

    @workflow(name=f"herasys.profile.{name}")
    def declared(query: str) -> Any:
        if name == "search_text":
            return operator(query, **place)
        vector = embedding(query, cache=False)
        if name == "retrieve":
            return operator(vector, **place)
        return operator(vector, query, **place)

    return declared


def rerank(model: str | None, collection: str, count: int) -> AnyWorkflow:
    """The best of the ``count`` passages that full-text search finds for ``query``."""
    found, operator = find_operator("search_text@1"), find_operator("rerank@1")

    @workflow(name="herasys.profile.rerank")
    def declared(query: str) -> Any:
        passages = found(query, collection=collection, top_k=count, cache=False)
        return operator(query, passages, top_k=1, model=model, cache=False)

    return declared


def web_search(collection: str) -> AnyWorkflow:
    """Pages for ``query``, from whatever provider the pool has."""
    operator = find_operator("web_search@1")

    @workflow(name="herasys.profile.search")
    def declared(query: str) -> Any:
        return operator(query, top_k=3, collection=collection, cache=False)

    return declared


def chunk() -> AnyWorkflow:
    """The pieces of ``text``."""
    operator = find_operator("chunk@1")

    @workflow(name="herasys.profile.chunk")
    def declared(text: str) -> Any:
        return operator(text, cache=False)

    return declared


def chunk_documents(model: str | None) -> AnyWorkflow:
    """The chunks of ``documents``, by the tokens of an embedding model."""
    operator = find_operator("chunk_documents@1")

    @workflow(name="herasys.profile.chunk_documents")
    def declared(documents: list[dict]) -> Any:
        return operator(documents, model=model, cache=False)

    return declared


def delete(collection: str) -> AnyWorkflow:
    """The document ``source`` out of ``collection``."""
    operator = find_operator("delete@1")

    @workflow(name="herasys.profile.delete")
    def declared(source: str) -> Any:
        return operator(source=source, collection=collection)

    return declared


def ingest() -> AnyWorkflow:
    """``documents`` into ``collection``."""
    return Workflow[...](ingest_spec(), __name__, "ingest")
