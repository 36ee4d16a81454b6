"""Rewrite the question into queries, search, and answer from what was found.

    herasys run examples/web_search_agent.py:research --input question='Who was Ada?'

The search provider is the runtime's own full-text index unless the configuration names
another (Google, SearXNG).
"""

from herasys_rt import agent
from operators import generate, web_search

QUERIES = 2


@agent
async def research(run, question: str):
    """An answer from at most four passages found by two queries."""
    plan = await run.call(
        generate(
            "Write two web search queries for the question, one per line.\n"
            "Question: {q}\nQueries:",
            q=question,
            max_tokens=32,
            label="rewrite",
        )
    )
    queries = [*plan.lines()[: QUERIES - 1], question]
    found = await run.gather(*[web_search(query, top_k=2) for query in queries])
    passages = list({hit["url"]: hit for hits in found for hit in hits}.values())
    return await run.call(
        generate(
            "Answer from the passages only.\n{passages}\nQuestion: {q}\nAnswer:",
            passages=passages,
            q=question,
            max_tokens=48,
            label="synthesise",
        )
    )
