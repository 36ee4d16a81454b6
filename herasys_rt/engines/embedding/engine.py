"""The verbs ``embed`` and ``text.chunk`` over any `Encoder`: what all embedding engines
share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from herasys_rt.documents import clean_text
from herasys_rt.engines.batch_engine import BatchEngine, Model, bad_argument
from herasys_rt.engines.batching import Job, Piece, Plan
from herasys_rt.engines.chunking import check_sizes, chunk_document
from herasys_rt.errors import NodeError

Kind = Literal["query", "document"]
Vectors = NDArray[np.float32]

CHUNK_TOKENS = 200
OVERLAP_TOKENS = 20


class Encoder(Model, Protocol):
    """A loaded model that turns texts into vectors. ``max_tokens`` counts special ones."""

    dimensions: int

    def encode(self, texts: list[str], kind: Kind) -> Vectors:
        """float32 (len(texts), dimensions); a prefix for ``kind`` is added here."""
        ...

    def count(self, text: str, kind: Kind) -> int:
        """Tokens of a text, special ones and the prefix included, before any cut."""
        ...

    def offsets(self, text: str) -> Sequence[tuple[int, int]]:
        """(start, end) of each token in characters, without special ones or prefix."""
        ...


class EmbeddingEngine(BatchEngine[Encoder]):
    """An `Engine` with the verbs ``embed`` and ``text.chunk``.

    ``embed`` takes ``text``, a str (gives float32 (dim,)) or a list of str (gives
    (n, dim)), with ``kind`` "query" (default) or "document". Vectors have length 1.
    ``usage`` counts ``items`` (texts), ``tokens`` and, when texts were longer than the
    model takes, ``truncated_items``. ``text.chunk`` takes ``documents``, a list of
    ``{id, text, ...}``, with ``max_tokens`` and ``overlap`` in tokens of this model, and
    gives their chunks; ``usage`` counts the documents as ``items``, and ``chunks``.
    Errors of an item, none of which touches its batch-mates: ``invalid_argument``,
    ``empty_text``, ``invalid_chunking``, ``not_finite``, ``engine_failed``.
    """

    verbs = frozenset({"embed", "text.chunk"})

    def __init__(self, encoder: Encoder, *, name: str, batch_limit: int) -> None:
        super().__init__(encoder, name=f"embedding-{name}", batch_limit=batch_limit)

    def describe(self) -> dict[str, Any]:
        """As the shell's, with ``dimensions``."""
        return {**super().describe(), "dimensions": self._model.dimensions}

    def _compute(self, pieces: list[Piece]) -> list[Vectors]:
        kind = cast(Kind, pieces[0].group)
        return list(self._model.encode([piece.payload for piece in pieces], kind))

    def _plan(self, job: Job) -> Plan:
        args = job.item.args
        if job.item.verb == "text.chunk":
            return self._documents(job, args)
        if "text" not in args:
            raise bad_argument("embed takes 'text'")
        return self._texts(job, args)

    def _texts(self, job: Job, args: Mapping[str, Any]) -> Plan:
        text = args["text"]
        kind = args.get("kind", "query")
        if kind not in ("query", "document"):
            raise bad_argument(f"'kind' is query or document, not {kind!r}")
        single = isinstance(text, str)
        if not single and not isinstance(text, list | tuple):
            raise bad_argument(f"'text' is a str or a list of str, not {_named(text)}")
        texts = cast(list[Any], [text] if single else text)
        pieces = [
            self._piece(value, kind, "text" if single else f"text[{i}]")
            for i, value in enumerate(texts)
        ]

        def assemble(rows: list[Vectors]) -> None:
            vectors = self._unit(pieces, rows)
            job.succeed(vectors[0] if single else vectors, usage=self._usage(pieces))

        return Plan(job, pieces, assemble)

    def _documents(self, job: Job, args: Mapping[str, Any]) -> Plan:
        documents = args.get("documents")
        if not isinstance(documents, list | tuple):
            raise bad_argument(f"'documents' is a list, not {_named(documents)}")
        tokens, overlap = self._sizes(args)
        chunks: list[dict[str, Any]] = []
        for i, document in enumerate(cast(list[Any], documents)):
            if not job.live:
                break
            _check_document(document, i)
            chunks += chunk_document(
                document,
                max_tokens=tokens,
                overlap=overlap,
                offsets=self._model.offsets,
            )
        usage = {"items": len(cast(list[Any], documents)), "chunks": len(chunks)}
        return Plan(job, [], lambda _: job.succeed(chunks, usage=usage))

    def _sizes(self, args: Mapping[str, Any]) -> tuple[int, int]:
        """Chunk size and overlap in tokens; unasked, no more than the model takes."""
        room = self._model.max_tokens - self._model.count("", "document")
        wish, overlap = args.get("max_tokens"), args.get("overlap")
        tokens = min(CHUNK_TOKENS, room) if wish is None else wish
        if overlap is None:
            overlap = min(OVERLAP_TOKENS, tokens // 2) if isinstance(tokens, int) else 0
        if type(tokens) is not int or type(overlap) is not int:
            raise bad_argument("'max_tokens' and 'overlap' are whole numbers")
        if tokens > room:
            raise NodeError(
                f"chunks of {tokens} tokens exceed the model, which takes {room}",
                hint=f"Ask for at most {room}.",
                code="invalid_chunking",
            )
        check_sizes(tokens, overlap)
        return tokens, overlap

    def _piece(self, text: Any, kind: str, label: str) -> Piece:
        if not isinstance(text, str):
            raise bad_argument(f"{label} is not a str but {_named(text)}")
        cleaned = clean_text(text)
        if not cleaned.strip():
            raise NodeError(
                f"{label} is empty: it has nothing to embed",
                hint="Pass text that is not blank, or leave it out.",
                code="empty_text",
            )
        length = self._model.count(cleaned, cast(Kind, kind))
        return Piece(cleaned, length, group=kind, label=label)

    def _unit(self, pieces: list[Piece], rows: list[Vectors]) -> Vectors:
        """Rows scaled to length 1, (n, dim). Errors: `NodeError` (``not_finite``)."""
        if not rows:
            return np.zeros((0, self._model.dimensions), dtype=np.float32)
        vectors = np.stack(rows)
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        wrong = np.flatnonzero(~np.isfinite(norms) | (norms == 0.0))
        if wrong.size:
            named = ", ".join(pieces[i].label for i in wrong[:5])
            raise NodeError(
                f"{named}: the model gave a vector that is zero or not finite",
                hint="Look at this text; if every text does this, the model is damaged.",
                code="not_finite",
            )
        return (vectors / norms[:, None]).astype(np.float32)

    def _usage(self, pieces: list[Piece]) -> dict[str, int]:
        limit = self._model.max_tokens
        usage = {
            "items": len(pieces),
            "tokens": sum(min(piece.length, limit) for piece in pieces),
        }
        cut = sum(piece.length > limit for piece in pieces)
        return {**usage, "truncated_items": cut} if cut else usage


def _check_document(document: Any, at: int) -> None:
    if not isinstance(document, Mapping):
        raise bad_argument(f"documents[{at}] is not a record but {_named(document)}")
    for field in ("id", "text"):
        if not isinstance(cast(Mapping[str, Any], document).get(field), str):
            raise bad_argument(f"documents[{at}] has no text field {field!r}")


def _named(value: Any) -> str:
    return type(value).__name__
