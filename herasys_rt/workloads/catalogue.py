"""The workloads that have names, with the constants of their papers.

HeraSys's (`rag`, `rag_rerank`, `web`, `mixed`, `mixed_long`, `docs`) are closed loops
with 10 % duplicates; HexAGenT's (`sharegpt`, `bfcl`, `lats`, `agents_mixed`) arrive by
Poisson at the paper's rates. Constants that the papers leave open are said to be ours in
docs/workloads.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from herasys_rt.errors import ConfigError
from herasys_rt.workloads.agents import Chat, ToolChain, TreeSearch
from herasys_rt.workloads.arrivals import Workload
from herasys_rt.workloads.documents import LongDocument, OwnDocuments
from herasys_rt.workloads.draws import Spread, fixed
from herasys_rt.workloads.graphs import Graph, StepShape
from herasys_rt.workloads.mixture import Duplicates, Mixture, Part
from herasys_rt.workloads.sources import Source

QUESTION_TOKENS = 12
INSTRUCTION_TOKENS = 60
CHUNK_TOKENS = 200
RETRIEVED_CHUNKS = 12
KEPT_CHUNKS = 8
"""Of the retrieved ones, after reranking."""
ANSWER = Spread(150, 0.6, high=512)
REWRITE_TOKENS = 20
SNIPPETS = 5
SNIPPET_TOKENS = 60
SEARCH_S = Spread.of_median(0.4, 0.5)
LEAST_TOKENS = 8
"""No length is scaled below this."""
DUPLICATE_SHARE = 0.10
CONCURRENCY = 30

LENGTH_SCALE = {"sharegpt": 14.0, "bfcl": 0.81, "lats": 0.61, "agents_mixed": 6.4}
"""What the prompts of HexAGenT's synthetic traces are multiplied with: the one number that
each trace is fitted with (`benchmarks/length_scales.py`), against per-call FCFS alone.
Not the outputs: with them it would stretch time, and leave the ratios that Req is."""


def rag(length_scale: float = 1.0) -> Graph:
    """Embed the question, take 12 chunks, answer.

    Every length but the question's is multiplied with ``length_scale`` (as on small
    machines), down to `LEAST_TOKENS`.
    """
    context = RETRIEVED_CHUNKS * _short(CHUNK_TOKENS, length_scale)
    return Graph("rag", (*_retrieval(), _answer("search", context, length_scale)))


def rag_rerank(length_scale: float = 1.0) -> Graph:
    """As `rag`, with the 12 chunks reranked and 8 of them kept."""
    chunk = _short(CHUNK_TOKENS, length_scale)
    rerank = StepShape(
        "rerank",
        "rerank",
        "rerank",
        "rerank@1",
        ("search",),
        items=fixed(RETRIEVED_CHUNKS),
        item_tokens=fixed(QUESTION_TOKENS + chunk),
    )
    answer = _answer("rerank", KEPT_CHUNKS * chunk, length_scale)
    return Graph("rag_rerank", (*_retrieval(), rerank, answer))


def web(length_scale: float = 1.0) -> Graph:
    """Rewrite the question, search the web, answer from five snippets."""
    rewrite = StepShape(
        "rewrite",
        "llm.generate",
        "llm",
        "generate@1",
        head=_short(INSTRUCTION_TOKENS, length_scale),
        prompt=fixed(QUESTION_TOKENS),
        output=fixed(_short(REWRITE_TOKENS, length_scale)),
    )
    search = StepShape(
        "search", "http.search", "search", "web_search@1", ("rewrite",), seconds=SEARCH_S
    )
    context = SNIPPETS * _short(SNIPPET_TOKENS, length_scale)
    return Graph("web", (rewrite, search, _answer("search", context, length_scale)))


def long_documents(length_scale: float = 1.0) -> LongDocument:
    """A question to a document of 24 chunks in the mean: embed, map, reduce."""
    return LongDocument(
        instructions=_short(INSTRUCTION_TOKENS, length_scale),
        chunk_tokens=_short(512, length_scale),
        map_output=fixed(_short(100, length_scale)),
        answer=_spread(ANSWER, length_scale),
    )


def own_documents(length_scale: float = 1.0) -> OwnDocuments:
    """A question to four documents that the run embeds, hot ones among them."""
    return OwnDocuments(
        instructions=_short(INSTRUCTION_TOKENS, length_scale),
        chunk_tokens=_short(CHUNK_TOKENS, length_scale),
        answer=_spread(ANSWER, length_scale),
    )


def mixed(length_scale: float = 1.0) -> tuple[Part, ...]:
    """75 % RAG, half of it with reranking, and 25 % web."""
    return (
        Part(rag(length_scale), 37.5),
        Part(rag_rerank(length_scale), 37.5),
        Part(web(length_scale), 25.0),
    )


def mixed_long(length_scale: float = 1.0) -> tuple[Part, ...]:
    """5 % runs over long documents, the rest as `mixed`."""
    most = [Part(p.source, 0.95 * p.weight) for p in mixed(length_scale)]
    return (*most, Part(long_documents(length_scale), 5.0))


def _retrieval() -> tuple[StepShape, StepShape]:
    return (
        StepShape(
            "embed", "embed", "embedding", "embed@1", item_tokens=fixed(QUESTION_TOKENS)
        ),
        StepShape("search", "pg.search", "retrieval", "retrieve@1", ("embed",)),
    )


def _answer(parent: str, context: int, length_scale: float) -> StepShape:
    return StepShape(
        "answer",
        "llm.generate",
        "llm",
        "generate@1",
        (parent,),
        head=_short(INSTRUCTION_TOKENS, length_scale),
        prompt=fixed(context + QUESTION_TOKENS),
        output=_spread(ANSWER, length_scale),
    )


def _short(tokens: int, length_scale: float) -> int:
    return max(round(tokens * length_scale), min(tokens, LEAST_TOKENS))


def _spread(lengths: Spread, length_scale: float) -> Spread:
    return lengths if length_scale == 1 else lengths.scaled(length_scale, LEAST_TOKENS)


def workload(name: str, length_scale: float = 1.0) -> Workload:
    """The workload of this name, its lengths multiplied with ``length_scale``.

    Errors: `ConfigError` that lists the known names, or for a scale of 0 or less.
    """
    if not (math.isfinite(length_scale) and length_scale > 0):
        raise ConfigError(
            f"length_scale is {length_scale:g} and must be a number above 0",
            hint="1 leaves the lengths of the workload as they are.",
        )
    if name in _HERASYS:
        return Mixture(
            name,
            _HERASYS[name](length_scale),
            Duplicates(DUPLICATE_SHARE),
            closed_loop_concurrency=CONCURRENCY,
        )
    if name in _HEXAGENT:
        runs, rate, make = _HEXAGENT[name]
        sources = make(length_scale, LENGTH_SCALE[name])
        parts = tuple(Part(source) for source in sources)
        return Mixture(name, parts, default_runs=runs, default_rate=rate)
    raise ConfigError(
        f"unknown workload {name!r}; known: {', '.join(NAMES)}",
        hint="Use one of the known names, or give the path of a workload file.",
        name=name,
        known=NAMES,
    )


def _chat(scale: float, prompts: float) -> tuple[Source, ...]:
    return (Chat(scale=scale, prompt_scale=prompts),)


def _tool_chain(scale: float, prompts: float) -> tuple[Source, ...]:
    return (ToolChain(scale=scale, prompt_scale=prompts),)


def _tree_search(scale: float, prompts: float) -> tuple[Source, ...]:
    return (TreeSearch(scale=scale, prompt_scale=prompts),)


def _agents(scale: float, prompts: float) -> tuple[Source, ...]:
    """Equal thirds, with one scale of their own."""
    return (
        *_chat(scale, prompts),
        *_tool_chain(scale, prompts),
        *_tree_search(scale, prompts),
    )


_HERASYS: dict[str, Callable[[float], tuple[Part, ...]]] = {
    "rag": lambda scale: (Part(rag(scale)),),
    "rag_rerank": lambda scale: (Part(rag_rerank(scale)),),
    "web": lambda scale: (Part(web(scale)),),
    "mixed": mixed,
    "mixed_long": mixed_long,
    "docs": lambda scale: (Part(own_documents(scale)),),
}
_HEXAGENT: dict[str, tuple[int, float, Callable[[float, float], tuple[Source, ...]]]] = {
    "sharegpt": (100, 10.0, _chat),
    "bfcl": (400, 40.0, _tool_chain),
    "lats": (100, 40.0, _tree_search),
    "agents_mixed": (100, 10.0, _agents),
}
"""Name -> the paper's number of runs, its rate in runs a second, the sources."""

NAMES = (*_HERASYS, *_HEXAGENT)
"""Every name that `workload` knows."""
