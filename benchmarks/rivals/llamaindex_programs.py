"""The four programs in LlamaIndex, as workflows of steps over typed events.

`connect` is what an application does once. Steps get its parts from their workflow.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss
import httpx
from llama_index.core import PromptTemplate, StorageContext, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.openai_like import OpenAILike
from llama_index.vector_stores.faiss import FaissVectorStore
from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent
from workflows.retry_policy import retry_policy, wait_exponential_jitter

from benchmarks.rivals.rerankers import node_postprocessor
from benchmarks.rivals.settings import LateInteraction, Settings


@dataclass(frozen=True)
class Parts:
    """What the steps use."""

    llm: OpenAILike
    index: VectorStoreIndex
    reranker: BaseNodePostprocessor
    web: httpx.AsyncClient


def connect(settings: Settings) -> Parts:
    """The clients, the models and the passages, embedded and stored."""
    llm = OpenAILike(
        model=settings.llm_model,
        api_base=settings.llm_url,
        api_key="none",
        temperature=0,
        max_tokens=256,
        context_window=2048,
        is_chat_model=True,
        is_function_calling_model=True,
        strict=True,
    )
    embeddings = HuggingFaceEmbedding(model_name=settings.embedder)
    vectors = FaissVectorStore(faiss_index=faiss.IndexFlatIP(384))
    nodes = [TextNode(id_=p["id"], text=p["text"]) for p in settings.read_passages()]
    storage = StorageContext.from_defaults(vector_store=vectors)
    index = VectorStoreIndex(nodes, storage_context=storage, embed_model=embeddings)
    reranker = node_postprocessor(LateInteraction(settings.embedder), top_n=4)
    web = httpx.AsyncClient(base_url=settings.search_url, timeout=10)
    return Parts(llm, index, reranker, web)


class Program(Workflow):
    """A workflow that has the parts."""

    def __init__(self, parts: Parts, timeout: float = 300) -> None:
        super().__init__(timeout=timeout)
        self.parts = parts


# Questions about stored passages

ANSWER = """\
Answer the question about Python's standard library in one or two sentences, using only \
the passages.

{context}

Question: {question}
Answer:"""


async def answered(parts: Parts, question: str, passages: list[NodeWithScore]) -> StopEvent:
    """The answer from the passages."""
    context = "\n\n".join(passage.text for passage in passages)
    prompt = ANSWER.format(context=context, question=question)
    reply = await parts.llm.acomplete(prompt, max_tokens=64)
    return StopEvent({"answer": reply.text, "passages": passages})


class Retrieved(Event):
    """The question with the nearest passages."""

    question: str
    passages: list[NodeWithScore]


class Rag(Program):
    """An answer from the four nearest passages."""

    @step
    async def retrieve(self, event: StartEvent) -> Retrieved:
        """The nearest passages."""
        retriever = self.parts.index.as_retriever(similarity_top_k=4)
        passages = await retriever.aretrieve(event.question)
        return Retrieved(question=event.question, passages=passages)

    @step
    async def generate(self, event: Retrieved) -> StopEvent:
        """The answer."""
        return await answered(self.parts, event.question, event.passages)


class Ranked(Event):
    """The question with the best passages."""

    question: str
    passages: list[NodeWithScore]


class RagRerank(Program):
    """An answer from the four best of the twelve nearest passages."""

    @step
    async def retrieve(self, event: StartEvent) -> Retrieved:
        """The nearest passages."""
        retriever = self.parts.index.as_retriever(similarity_top_k=12)
        passages = await retriever.aretrieve(event.question)
        return Retrieved(question=event.question, passages=passages)

    @step
    async def rerank(self, event: Retrieved) -> Ranked:
        """The best of them."""
        best = await self.parts.reranker.apostprocess_nodes(
            event.passages, query_str=event.question
        )
        return Ranked(question=event.question, passages=best)

    @step
    async def generate(self, event: Ranked) -> StopEvent:
        """The answer."""
        return await answered(self.parts, event.question, event.passages)


# Web search

REWRITE = """\
Write two web search queries for the question, one per line.
Question: {question}
Queries:"""

SYNTHESISE = """\
Answer from the passages only.
{passages}
Question: {question}
Answer:"""


class Query(Event):
    """One search to do."""

    question: str
    text: str


class Pages(Event):
    """What one search found."""

    query: Query
    pages: list[dict[str, Any]]


class Research(Program):
    """An answer from at most four pages found by two queries."""

    @step
    async def rewrite(self, event: StartEvent) -> list[Query]:
        """Two queries: the model's first, and the question."""
        prompt = REWRITE.format(question=event.question)
        reply = await self.parts.llm.acomplete(prompt, max_tokens=32)
        lines = [line.strip(" -*.0123456789") for line in reply.text.splitlines()]
        queries = [*[line for line in lines if line][:1], event.question]
        return [Query(question=event.question, text=query) for query in queries]

    @step(retry_policy=retry_policy(wait=wait_exponential_jitter()))
    async def search(self, event: Query) -> Pages:
        """At most two pages for a query."""
        wanted = {"q": event.text, "format": "json"}
        reply = await self.parts.web.get("/search", params=wanted)
        pages = reply.raise_for_status().json()["results"][:2]
        return Pages(query=event, pages=pages)

    @step
    async def synthesise(self, found: list[Pages]) -> StopEvent:
        """The answer from what was found, each page once."""
        pages = {page["url"]: page["content"] for one in found for page in one.pages}
        prompt = SYNTHESISE.format(
            passages="\n\n".join(pages.values()), question=found[0].query.question
        )
        reply = await self.parts.llm.acomplete(prompt, max_tokens=48)
        queries = [one.query.text for one in found]
        return StopEvent({"answer": reply.text, "pages": [*pages], "queries": queries})


# Tools

CAPITALS = {"france": "Paris", "italy": "Rome", "japan": "Tokyo", "kenya": "Nairobi"}


def capital_of(country: str) -> str:
    """The capital city of a country."""
    return CAPITALS.get(country.strip().lower(), "unknown")


def count_letters(text: str, letter: str) -> int:
    """How often a letter occurs in a text."""
    return text.lower().count(letter.lower())


def assistant(parts: Parts) -> FunctionAgent:
    """An agent that answers with the tools: a tool first, two steps and the answer."""
    return FunctionAgent(
        tools=[capital_of, count_letters],
        llm=parts.llm,
        initial_tool_choice="required",
        allow_parallel_tool_calls=False,
        early_stopping_method="generate",
        streaming=False,
    )


# The first two as ready-made query engines, without steps of their own


def rag_engine(parts: Parts) -> BaseQueryEngine:
    """An answer from the four nearest passages."""
    return parts.index.as_query_engine(
        llm=parts.llm.model_copy(update={"max_tokens": 64}),
        similarity_top_k=4,
        text_qa_template=QA_TEMPLATE,
    )


def rag_rerank_engine(parts: Parts) -> BaseQueryEngine:
    """An answer from the four best of the twelve nearest passages."""
    return parts.index.as_query_engine(
        llm=parts.llm.model_copy(update={"max_tokens": 64}),
        similarity_top_k=12,
        node_postprocessors=[parts.reranker],
        text_qa_template=QA_TEMPLATE,
    )


QA_TEMPLATE = PromptTemplate(
    ANSWER, template_var_mappings={"context_str": "context", "query_str": "question"}
)


# How the benchmark runs them


async def run(parts: Parts, program: str, question: str) -> dict[str, Any]:
    """``answer``, and ``sources``, ``queries`` or ``calls`` as the program has them."""
    if program == "assistant":
        ended = await assistant(parts).run(question, max_iterations=2)
        return {
            "answer": ended.response.content,
            "calls": [
                {"tool": call.tool_name, "arguments": call.tool_kwargs}
                for call in ended.tool_calls
            ],
            "results": [call.tool_output.content for call in ended.tool_calls],
        }
    if program == "research":
        ended = await Research(parts).run(question=question)
        pages, queries = ended["pages"], ended["queries"]
        return {"answer": ended["answer"], "queries": queries, "sources": pages}
    if program in ENGINES:
        reply = await ENGINES[program](parts).aquery(question)
        return {"answer": str(reply), "sources": [n.id_ for n in reply.source_nodes]}
    ended = await {"rag": Rag, "rag_rerank": RagRerank}[program](parts).run(
        question=question
    )
    return {"answer": ended["answer"], "sources": [p.id_ for p in ended["passages"]]}


ENGINES = {"rag_engine": rag_engine, "rag_rerank_engine": rag_rerank_engine}
PROGRAMS = ("rag", "rag_rerank", "research", "assistant", *ENGINES)
