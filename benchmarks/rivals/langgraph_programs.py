"""The four programs in LangGraph, as graphs of nodes over a typed state.

`connect` is what an application does once. Nodes get its parts from the run's context.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import httpx
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import RetryPolicy, Send

from benchmarks.rivals.rerankers import document_compressor
from benchmarks.rivals.settings import LateInteraction, Settings


@dataclass(frozen=True)
class Parts:
    """What the nodes use."""

    llm: ChatOpenAI
    store: InMemoryVectorStore
    reranker: BaseDocumentCompressor
    web: httpx.AsyncClient


def connect(settings: Settings) -> Parts:
    """The clients, the models and the passages, embedded and stored."""
    llm = ChatOpenAI(
        model=settings.llm_model,
        base_url=settings.llm_url,
        api_key="none",
        temperature=0,
        max_tokens=256,
    )
    embeddings = HuggingFaceEmbeddings(model_name=settings.embedder)
    store = InMemoryVectorStore(embeddings)
    passages = settings.read_passages()
    store.add_texts(
        [passage["text"] for passage in passages],
        ids=[passage["id"] for passage in passages],
    )
    reranker = document_compressor(LateInteraction(settings.embedder), top_n=4)
    web = httpx.AsyncClient(base_url=settings.search_url, timeout=10)
    return Parts(llm, store, reranker, web)


# Questions about stored passages

ANSWER = """\
Answer the question about Python's standard library in one or two sentences, using only \
the passages.

{context}

Question: {question}
Answer:"""


class RagState(TypedDict):
    """What the nodes of the first two programs read and write."""

    question: str
    passages: list[Document]
    answer: str


async def retrieve(state: RagState, runtime: Runtime[Parts]) -> dict[str, Any]:
    """The four nearest passages."""
    store = runtime.context.store
    return {"passages": await store.asimilarity_search(state["question"], k=4)}


async def generate(state: RagState, runtime: Runtime[Parts]) -> dict[str, Any]:
    """The answer from the passages."""
    context = "\n\n".join(passage.page_content for passage in state["passages"])
    prompt = ANSWER.format(context=context, question=state["question"])
    reply = await runtime.context.llm.ainvoke(prompt, max_tokens=64)
    return {"answer": reply.text}


rag = (
    StateGraph(RagState, context_schema=Parts)
    .add_sequence([retrieve, generate])
    .add_edge(START, "retrieve")
    .compile()
)


async def retrieve_more(state: RagState, runtime: Runtime[Parts]) -> dict[str, Any]:
    """The twelve nearest passages."""
    store = runtime.context.store
    return {"passages": await store.asimilarity_search(state["question"], k=12)}


async def rerank(state: RagState, runtime: Runtime[Parts]) -> dict[str, Any]:
    """The four best of them."""
    reranker, passages = runtime.context.reranker, state["passages"]
    best = await reranker.acompress_documents(passages, state["question"])
    return {"passages": list(best)}


rag_rerank = (
    StateGraph(RagState, context_schema=Parts)
    .add_sequence([retrieve_more, rerank, generate])
    .add_edge(START, "retrieve_more")
    .compile()
)


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


class ResearchState(TypedDict):
    """What the nodes of the web search program read and write."""

    question: str
    queries: list[str]
    pages: Annotated[list[dict[str, str]], operator.add]
    answer: str


class SearchTask(TypedDict):
    """What one of the parallel searches is given."""

    query: str


async def rewrite(state: ResearchState, runtime: Runtime[Parts]) -> dict[str, Any]:
    """Two queries: the model's first, and the question."""
    prompt = REWRITE.format(question=state["question"])
    reply = await runtime.context.llm.ainvoke(prompt, max_tokens=32)
    lines = [line.strip(" -*.0123456789") for line in reply.text.splitlines()]
    return {"queries": [*[line for line in lines if line][:1], state["question"]]}


def each_query(state: ResearchState) -> list[Send]:
    """One search per query, in parallel."""
    return [Send("search", {"query": query}) for query in state["queries"]]


async def search(task: SearchTask, runtime: Runtime[Parts]) -> dict[str, Any]:
    """At most two pages for a query."""
    wanted = {"q": task["query"], "format": "json"}
    reply = await runtime.context.web.get("/search", params=wanted)
    return {"pages": reply.raise_for_status().json()["results"][:2]}


async def synthesise(state: ResearchState, runtime: Runtime[Parts]) -> dict[str, Any]:
    """The answer from what was found, each page once."""
    pages = {page["url"]: page["content"] for page in state["pages"]}
    prompt = SYNTHESISE.format(
        passages="\n\n".join(pages.values()), question=state["question"]
    )
    reply = await runtime.context.llm.ainvoke(prompt, max_tokens=48)
    return {"answer": reply.text}


research = (
    StateGraph(ResearchState, context_schema=Parts)
    .add_node(rewrite)
    .add_node(search, retry_policy=RetryPolicy(retry_on=httpx.HTTPError))
    .add_node(synthesise)
    .add_edge(START, "rewrite")
    .add_conditional_edges("rewrite", each_query, ["search"])
    .add_edge("search", "synthesise")
    .compile()
)


# Tools

CAPITALS = {"france": "Paris", "italy": "Rome", "japan": "Tokyo", "kenya": "Nairobi"}


def capital_of(country: str) -> str:
    """The capital city of a country."""
    return CAPITALS.get(country.strip().lower(), "unknown")


def count_letters(text: str, letter: str) -> int:
    """How often a letter occurs in a text."""
    return text.lower().count(letter.lower())


@wrap_model_call
async def steer(request: Any, handler: Any) -> Any:
    """A tool first, an answer at the third step; calls that satisfy the tool's schema.

    What a small model needs: the server then decodes calls under their schema.
    """
    steps = sum(message.type == "ai" for message in request.messages)
    choice = {0: "any", 2: "none"}.get(steps, "auto")
    strict = {"strict": True, "parallel_tool_calls": False}
    return await handler(request.override(tool_choice=choice, model_settings=strict))


def assistant(parts: Parts) -> Any:
    """An agent that answers with the tools, in at most three steps."""
    return create_agent(parts.llm, [capital_of, count_letters], middleware=[steer])


# How the benchmark runs them


async def run(parts: Parts, program: str, question: str) -> dict[str, Any]:
    """``answer``, and ``sources``, ``queries`` or ``calls`` as the program has them."""
    if program == "assistant":
        asked = {"messages": [("user", question)]}
        messages = (await assistant(parts).ainvoke(asked))["messages"]
        calls = [call for m in messages for call in getattr(m, "tool_calls", ())]
        return {
            "answer": messages[-1].text,
            "calls": [{"tool": c["name"], "arguments": c["args"]} for c in calls],
            "results": [m.text for m in messages if m.type == "tool"],
        }
    graph = {"rag": rag, "rag_rerank": rag_rerank, "research": research}[program]
    ended = await graph.ainvoke({"question": question}, context=parts)
    if program == "research":
        pages = list({page["url"]: page for page in ended["pages"]})
        return {"answer": ended["answer"], "queries": ended["queries"], "sources": pages}
    return {"answer": ended["answer"], "sources": [p.id for p in ended["passages"]]}


PROGRAMS = ("rag", "rag_rerank", "research", "assistant")
