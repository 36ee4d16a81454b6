"""The reranking model as each rival has its rerankers.

Where a library ships one (a cross-encoder from a hub), users import it and write none of
this: it is not counted.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.rivals.settings import LateInteraction


def best(scores: Sequence[float], top_n: int) -> list[int]:
    """Positions of the ``top_n`` best scores, best first, equals in their order."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]


def document_compressor(model: LateInteraction, top_n: int) -> Any:
    """A LangChain document compressor that keeps the ``top_n`` best documents."""
    from langchain_core.documents import BaseDocumentCompressor, Document

    class Reranker(BaseDocumentCompressor):
        def compress_documents(
            self, documents: Sequence[Document], query: str, callbacks: Any = None
        ) -> Sequence[Document]:
            del callbacks
            scores = model.scores(query, [d.page_content for d in documents])
            return [documents[i] for i in best(scores, top_n)]

    return Reranker()


def node_postprocessor(model: LateInteraction, top_n: int) -> Any:
    """A LlamaIndex postprocessor that keeps the ``top_n`` best nodes."""
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import NodeWithScore, QueryBundle

    class Reranker(BaseNodePostprocessor):
        def _postprocess_nodes(
            self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
        ) -> list[NodeWithScore]:
            assert query_bundle is not None
            texts = [node.node.get_content() for node in nodes]
            scores = model.scores(query_bundle.query_str, texts)
            return [
                NodeWithScore(node=nodes[i].node, score=scores[i])
                for i in best(scores, top_n)
            ]

    return Reranker()
