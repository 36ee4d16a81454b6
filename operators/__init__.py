"""The operator library: what workflows are made of.

    from operators import embed, retrieve, rerank, generate, ingest

Declarations only: nothing here computes. An operator lowers to one verb that an engine
carries out.
"""

from operators.embedding import embed, embed_documents, embed_many
from operators.ingestion import ingest, store
from operators.llm import generate
from operators.rerank import rerank
from operators.retrieval import retrieve

__all__ = [
    "embed",
    "embed_documents",
    "embed_many",
    "generate",
    "ingest",
    "rerank",
    "retrieve",
    "store",
]
