"""Three of the programs in LangGraph's functional API: coroutines, no declared graph.

Shorter, and what is inside an entry point is its own affair: nothing of it can be drawn,
checked or retried by itself unless it is a task. The agent is a ready-made one either way.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from langgraph.func import entrypoint, task
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import RetryPolicy

from benchmarks.rivals.langgraph_programs import ANSWER, REWRITE, SYNTHESISE, Parts, connect

__all__ = ["PROGRAMS", "connect", "run"]


@entrypoint(context_schema=Parts)
async def rag(question: str, runtime: Runtime[Parts]) -> dict[str, Any]:
    """An answer from the four nearest passages."""
    parts = runtime.context
    passages = await parts.store.asimilarity_search(question, k=4)
    context = "\n\n".join(passage.page_content for passage in passages)
    prompt = ANSWER.format(context=context, question=question)
    reply = await parts.llm.ainvoke(prompt, max_tokens=64)
    return {"answer": reply.text, "passages": passages}


@entrypoint(context_schema=Parts)
async def rag_rerank(question: str, runtime: Runtime[Parts]) -> dict[str, Any]:
    """An answer from the four best of the twelve nearest passages."""
    parts = runtime.context
    passages = await parts.store.asimilarity_search(question, k=12)
    best = await parts.reranker.acompress_documents(passages, question)
    context = "\n\n".join(passage.page_content for passage in best)
    prompt = ANSWER.format(context=context, question=question)
    reply = await parts.llm.ainvoke(prompt, max_tokens=64)
    return {"answer": reply.text, "passages": best}


@task(retry_policy=RetryPolicy(retry_on=httpx.HTTPError))
async def search(query: str) -> list[dict[str, str]]:
    """At most two pages for a query."""
    web = get_runtime(Parts).context.web
    reply = await web.get("/search", params={"q": query, "format": "json"})
    return reply.raise_for_status().json()["results"][:2]


@entrypoint(context_schema=Parts)
async def research(question: str, runtime: Runtime[Parts]) -> dict[str, Any]:
    """An answer from at most four pages found by two queries."""
    llm = runtime.context.llm
    reply = await llm.ainvoke(REWRITE.format(question=question), max_tokens=32)
    lines = [line.strip(" -*.0123456789") for line in reply.text.splitlines()]
    queries = [*[line for line in lines if line][:1], question]
    found = await asyncio.gather(*[search(query) for query in queries])
    pages = {page["url"]: page["content"] for part in found for page in part}
    prompt = SYNTHESISE.format(passages="\n\n".join(pages.values()), question=question)
    reply = await llm.ainvoke(prompt, max_tokens=48)
    return {"answer": reply.text, "queries": queries, "pages": [*pages]}


async def run(parts: Parts, program: str, question: str) -> dict[str, Any]:
    """``answer``, ``sources`` and, of the web search, ``queries``."""
    flow = {"rag": rag, "rag_rerank": rag_rerank, "research": research}[program]
    ended = await flow.ainvoke(question, context=parts)
    if program == "research":
        pages, queries = ended["pages"], ended["queries"]
        return {"answer": ended["answer"], "queries": queries, "sources": pages}
    return {"answer": ended["answer"], "sources": [p.id for p in ended["passages"]]}


PROGRAMS = ("rag", "rag_rerank", "research")
