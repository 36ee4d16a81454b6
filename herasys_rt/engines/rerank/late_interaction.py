"""Reranking by late interaction: MaxSim over an embedder's token embeddings.

Khattab and Zaharia, ColBERT (2020): a text's score is the sum, over the query's tokens,
of the best cosine similarity to any token of the text; here the mean, so that scores of
queries of any length lie in [-1, 1]. Texts' token embeddings do not depend on the query,
so they are kept.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray

from herasys_rt.config import PoolConfig
from herasys_rt.engines.batching import Piece
from herasys_rt.engines.models import resolve_model
from herasys_rt.engines.options import EngineOptions, read_options
from herasys_rt.engines.protocol import Engine
from herasys_rt.engines.rerank.engine import Request, RerankEngine
from herasys_rt.engines.sentence_model import SentenceModel, fingerprint, prefixes
from herasys_rt.engines.tokens import TextTokens

TokenVectors = NDArray[np.float16]


class LateInteractionOptions(EngineOptions):
    """``options`` of a pool with this engine.

    ``cache_mb`` bounds the kept token embeddings; ``threads`` CPU threads of the model;
    ``device`` cpu, cuda ... (None: what there is).
    """

    threads: int = pydantic.Field(default=1, ge=1)
    cache_mb: int = pydantic.Field(default=128, ge=0)
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    trust_remote_code: bool = False


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """The engine of a pool; nothing is loaded before `start`. Errors: `ConfigError`."""
    del dsn  # all engines are made alike; this one needs no database
    assert pool.model is not None, "the configuration asks for it"
    options = read_options(pool, LateInteractionOptions)
    scorer = LateInteractionScorer(pool.model, options)
    return RerankEngine(scorer, name=pool.name, batch_limit=pool.batch_limit)


class VectorCache:
    """The token embeddings used last, at most ``max_bytes`` of them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, TokenVectors] = OrderedDict()
        self.bytes = 0
        """Bytes held now."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> TokenVectors | None:
        """The entry of a key, which becomes the one used last."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: bytes, vectors: TokenVectors) -> None:
        """Keep an entry, dropping those unused longest; one larger than all is not kept."""
        old = self._entries.pop(key, None)
        if old is not None:
            self.bytes -= old.nbytes
        if vectors.nbytes > self._max_bytes:
            return
        self._entries[key] = vectors
        self.bytes += vectors.nbytes
        while self.bytes > self._max_bytes:
            _, dropped = self._entries.popitem(last=False)
            self.bytes -= dropped.nbytes


@dataclass(frozen=True, slots=True)
class _Text:
    """A text to encode, for a trust scope."""

    scope: str
    text: str

    @property
    def key(self) -> bytes:
        return cache_key(self.scope, self.text)


class LateInteractionScorer:
    """A `Scorer` over one `SentenceTransformer`.

    ``cache`` (None: an empty one of ``cache_mb``) may hold what is known already: under
    `cache_key` of a scope and a text with the model's prefix for documents, `unit_rows` of
    its token embeddings.
    """

    def __init__(
        self,
        name: str,
        options: LateInteractionOptions,
        cache: VectorCache | None = None,
    ) -> None:
        self._name = name
        self._options = options
        if cache is None:
            cache = VectorCache(options.cache_mb * 1024 * 1024)
        self._cache = cache
        self.fingerprint = ""
        self.max_tokens = 0
        self._model: Any = None
        self._tokens: TextTokens | None = None
        self._prefixes = {"query": "", "document": ""}

    def load(self) -> None:
        """Load on the calling thread, which then owns the model."""
        resolved = resolve_model(self._name)
        options = self._options
        loaded = SentenceModel.load(
            resolved.path,
            threads=options.threads,
            device=options.device,
            dtype=options.dtype,
            trust_remote_code=options.trust_remote_code,
        )
        self._model, self._tokens = loaded.model, loaded.tokens
        self.max_tokens = loaded.max_tokens
        self._prefixes = prefixes(self._model.prompts, None, None)
        self.fingerprint = fingerprint(
            resolved.fingerprint,
            "maxsim",
            options.dtype,
            self._prefixes,
            self.max_tokens,
        )
        self._encode(["warm up"])  # the first forward pass is the slowest

    def pieces(self, request: Request) -> list[Piece]:
        """The query and each text that is not kept, the query first."""
        assert self._tokens is not None
        query = self._prefixes["query"] + request.query
        found = [Piece(_Text("", query), self._tokens.count(query), label="query")]
        for i, plain in enumerate(request.texts):
            text = self._prefixes["document"] + plain
            held = self._cache.get(cache_key(request.scope, text))
            if held is None:
                wanted, length = _Text(request.scope, text), self._tokens.count(text)
            else:  # rides along, since the cache may drop it before the item is scored
                wanted, length = held, 0
            found.append(Piece(wanted, length, label=f"chunks[{i}]"))
        return found

    def compute(self, pieces: list[Piece]) -> Sequence[TokenVectors]:
        """Unit token vectors, float16 (tokens, dim), of each piece; equal texts once."""
        found: dict[bytes, TokenVectors] = {}
        missing: dict[bytes, str] = {}
        for piece in pieces:
            if not isinstance(piece.payload, _Text):
                continue
            key = piece.payload.key
            held = self._cache.get(key)  # a batch-mate may have brought it meanwhile
            if held is None:
                missing[key] = piece.payload.text
            else:
                found[key] = held
        if missing:
            found.update(zip(missing, self._encode([*missing.values()]), strict=True))
        results: list[TokenVectors] = []
        for piece in pieces:
            if not isinstance(piece.payload, _Text):
                results.append(piece.payload)
                continue
            vectors = found[piece.payload.key]
            results.append(vectors)
            if piece.label != "query":
                self._cache.put(piece.payload.key, vectors)
        return results

    def scores(self, request: Request, results: list[TokenVectors]) -> list[float]:
        """MaxSim of the query with each text."""
        query = results[0].astype(np.float32)
        return [max_sim(query, text.astype(np.float32)) for text in results[1:]]

    def close(self) -> None:
        """Forget the model and the cache."""
        self._model = self._tokens = None
        self._cache = VectorCache(0)

    def _encode(self, texts: list[str]) -> list[TokenVectors]:
        rows = self._model.encode(
            texts,
            prompt="",  # prefixes are part of the texts already
            batch_size=len(texts),
            output_value="token_embeddings",
            show_progress_bar=False,
        )
        return [unit_rows(row.float().cpu().numpy()) for row in rows]


def cache_key(scope: str, text: str) -> bytes:
    """The name of a text within a trust scope: tenants do not see each other's entries."""
    digest = hashlib.sha256(len(scope).to_bytes(8, "big"))
    digest.update(scope.encode())
    digest.update(text.encode())
    return digest.digest()


def unit_rows(vectors: NDArray[np.floating[Any]]) -> TokenVectors:
    """Rows scaled to length 1 and rounded to float16, in which they are kept."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(norms, np.finfo(np.float32).tiny)).astype(np.float16)


def max_sim(query: NDArray[np.float32], text: NDArray[np.float32]) -> float:
    """Mean over the query's rows of the largest dot product with any of the text's rows."""
    return float((query @ text.T).max(axis=1).mean())
