"""The operator library: what workflows are made of.

    from operators import embed, retrieve, rerank, generate, ingest

Declarations only: nothing here computes. An operator lowers to one verb that an engine
carries out.
"""

from operators.agents import react
from operators.embedding import embed, embed_documents, embed_many
from operators.ingestion import delete, ingest, store
from operators.llm import generate, generate_json
from operators.rerank import rerank
from operators.retrieval import hybrid, retrieve, search_text
from operators.search import web_search
from operators.structured import choose_tool, classify, judge
from operators.text import chunk, chunk_documents, parse_json, prompt
from operators.tools import Tool, python_operator, tool

__all__ = [
    "Tool",
    "choose_tool",
    "chunk",
    "chunk_documents",
    "classify",
    "delete",
    "embed",
    "embed_documents",
    "embed_many",
    "generate",
    "generate_json",
    "hybrid",
    "ingest",
    "judge",
    "parse_json",
    "prompt",
    "python_operator",
    "react",
    "rerank",
    "retrieve",
    "search_text",
    "store",
    "tool",
    "web_search",
]
