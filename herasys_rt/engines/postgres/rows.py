"""Chunks made fit for storing: everything that is checked before anything is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from herasys_rt.engines.postgres.words import words_of
from herasys_rt.errors import InputError

KEY_LIMIT_BYTES = 1024
"""Names and ids enter B-tree indexes, whose entries are bounded."""
MAX_DIMENSIONS = 16_000
"""What pgvector's ``vector`` type holds."""
HALF_LIMIT = 65_504.0
"""The largest number that pgvector's ``halfvec`` type holds."""
SQUARE_LIMIT = float(np.finfo(np.float32).max) / 4
"""The largest squared length: the distance of two such vectors still is a number."""
_OWN_KEYS = frozenset({"id", "source", "text", "score", "metadata"})


class Row:
    """One chunk as it is stored. ``fields`` are the chunk's further keys, kept as JSON;
    ``words`` what text search finds it by."""

    __slots__ = ("fields", "id", "metadata", "source", "text", "vector", "words")

    def __init__(
        self,
        id: str,
        source: str,
        text: str,
        metadata: dict[str, Any] | None,
        fields: dict[str, Any],
        vector: np.ndarray,
    ) -> None:
        self.id = id
        self.source = source
        self.text = text
        self.metadata = metadata
        self.fields = fields
        self.vector = vector
        self.words = words_of(text)


def clean_text(text: str) -> str:
    """``text`` as PostgreSQL can hold it: NUL characters dropped, halves of surrogate
    pairs replaced by U+FFFD."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_json(value: Any, where: str) -> Any:
    """``value`` as JSONB can hold it: texts cleaned, NaN and infinities as null.

    Errors: `InputError` naming ``where`` for what JSON cannot say.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return clean_json(value.item(), where)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        for key, _ in items:
            if not isinstance(key, str):
                raise _unfit(where, f"has the key {key!r}; keys must be strings")
        return {clean_text(k): clean_json(v, f"{where}.{k}") for k, v in items}
    if isinstance(value, list | tuple):
        parts = cast("Sequence[Any]", value)
        return [clean_json(part, f"{where}[{i}]") for i, part in enumerate(parts)]
    raise _unfit(where, f"is a {type(value).__name__}, which JSON cannot hold")


def collection_name(name: Any) -> str:
    """``name`` when it can name a collection: any Unicode text of 1 to 1,024 bytes.

    Errors: `InputError`.
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError(
            f"a collection's name must be a text that is not empty, not {name!r}",
            hint="Name the collection.",
        )
    if clean_text(name) != name or len(name.encode()) > KEY_LIMIT_BYTES:
        raise InputError(
            f"{name[:40]!r} cannot name a collection: it holds a NUL or half a surrogate "
            f"pair, or is longer than {KEY_LIMIT_BYTES} bytes",
            hint="Choose another name.",
        )
    return name


def dimension_count(dimensions: Any) -> int:
    """``dimensions`` when a collection can have so many. Errors: `InputError`."""
    whole = isinstance(dimensions, int) and not isinstance(dimensions, bool)
    if not whole or not 1 <= dimensions <= MAX_DIMENSIONS:
        raise InputError(
            f"a collection has 1 to {MAX_DIMENSIONS} dimensions, not {dimensions!r}",
            hint="Pass the embedding model's number of dimensions.",
        )
    return dimensions


def query_vector(
    vector: Any, collection: str, dimensions: int, distance: str, storage: str = "vector"
) -> Any:
    """The vector of a search as float32 (dimensions,). Errors: `InputError`."""
    array = _float32(vector, "the query vector")
    if array.ndim != 1:
        raise _invalid_vector(f"the query vector has shape {array.shape}, not one axis")
    if array.shape[0] != dimensions:
        raise dimension_mismatch(collection, dimensions, array.shape[0])
    problem = _problem(array, distance, storage)
    if problem:
        raise _invalid_vector(f"the query vector {problem}")
    return array


def rows_of(
    chunks: Any,
    vectors: Any,
    collection: str,
    dimensions: int,
    distance: str,
    storage: str = "vector",
) -> list[Row]:
    """The rows to store; of chunks with one id the last counts.

    ``vectors`` is (n, dimensions) for n chunks. Errors: `InputError` for the first fault,
    naming the chunk; then nothing at all is to be written.
    """
    if not isinstance(chunks, Sequence) or isinstance(chunks, str | bytes):
        raise InputError(
            f"chunks must be a list, not {type(chunks).__name__}",
            hint="Pass a list of dicts with id, source and text.",
        )
    items = cast("Sequence[Any]", chunks)
    array = _float32(vectors, "vectors")
    if len(items) == 0:
        return []
    if array.ndim != 2 or array.shape[0] != len(items):
        raise _invalid_vector(
            f"{len(items)} chunks came with vectors of shape {array.shape}; "
            f"({len(items)}, {dimensions}) is wanted"
        )
    if array.shape[1] != dimensions:
        raise dimension_mismatch(collection, dimensions, array.shape[1])
    rows: dict[str, Row] = {}
    for at, chunk in enumerate(items):
        row = _row(chunk, array[at], at)
        problem = _problem(row.vector, distance, storage)
        if problem:
            raise _invalid_vector(f"the vector of chunk {at} ({row.id!r}) {problem}")
        rows[row.id] = row
    return list(rows.values())


def embedded_parts(embedded: Any) -> tuple[Sequence[Any], Any]:
    """Chunks and vectors of an EMBEDDED value. Errors: `InputError`."""
    if isinstance(embedded, Mapping):
        record = cast("Mapping[str, Any]", embedded)
        chunks = record.get("chunks")
        if isinstance(chunks, list | tuple) and "vectors" in record:
            return cast("Sequence[Any]", chunks), record["vectors"]
    raise InputError(
        "what is written must be a dict of 'chunks' (a list) and 'vectors' (n, dimensions)",
        hint="Write the output of an embedding step.",
        code="invalid_chunk",
    )


def dimensions_of(vectors: Any) -> int:
    """The second axis of (n, dimensions) vectors. Errors: `InputError`."""
    array = _float32(vectors, "vectors")
    if array.ndim != 2:
        raise _invalid_vector(f"vectors have shape {array.shape}, not (n, dimensions)")
    return dimension_count(array.shape[1])


def dimension_mismatch(collection: str, expected: int, given: int) -> InputError:
    """The error for a vector that does not belong to a collection; carries both numbers."""
    return InputError(
        f"collection {collection!r} has {expected} dimensions, the vectors have {given}",
        hint="Use the embedding model the collection was made with, or another "
        "collection (herasys collections show NAME).",
        code="dimension_mismatch",
        expected=expected,
        given=given,
    )


def _row(chunk: Any, vector: np.ndarray, at: int) -> Row:
    where = f"chunk {at}"
    if not isinstance(chunk, Mapping):
        raise _unfit(where, f"is a {type(chunk).__name__}; a dict is wanted")
    record = cast("Mapping[str, Any]", chunk)
    texts: dict[str, str] = {}
    for key in ("id", "source", "text"):
        value = record.get(key)
        if not isinstance(value, str):
            raise _unfit(where, f"has no text under {key!r}")
        texts[key] = clean_text(value)
    if not texts["id"] or len(texts["id"].encode()) > KEY_LIMIT_BYTES:
        raise _unfit(where, f"needs an id of 1 to {KEY_LIMIT_BYTES} bytes")
    where = f"chunk {at} ({texts['id']!r})"
    metadata = record.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise _unfit(where, "has metadata that is no dict")
    fields = {key: value for key, value in record.items() if key not in _OWN_KEYS}
    return Row(
        texts["id"],
        texts["source"],
        texts["text"],
        None if metadata is None else clean_json(metadata, f"{where}: metadata"),
        clean_json(fields, where),
        vector,
    )


def _float32(vectors: Any, what: str) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # beyond float32 is infinite and refused so
            return np.asarray(vectors, dtype=np.float32, order="C")
    except (TypeError, ValueError) as e:
        raise _invalid_vector(f"{what} cannot be read as numbers: {e}") from e


def _problem(vector: np.ndarray, distance: str, storage: str) -> str:
    """Why a vector cannot be stored or searched for; empty when it can."""
    if not np.isfinite(vector).all():
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        return f"holds {vector[at]} at position {at}"
    if storage == "halfvec":
        if (np.abs(vector) > HALF_LIMIT).any():
            at = int(np.argmax(np.abs(vector)))
            return f"holds {vector[at]} at position {at}; halfvec ends at {HALF_LIMIT:g}"
        vector = vector.astype(np.float16)
    # As pgvector adds up squares: in float32, whose sums end too.
    wide = vector.astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        square = float(wide @ wide)
    if square > SQUARE_LIMIT:
        return f"has the length {np.linalg.norm(wide.astype(float)):g}, too long to compare"
    if distance == "cosine" and square == 0:
        tiny = "all zeros" if not vector.any() else "too short"
        return f"is {tiny}, which has no direction to compare by cosine"
    return ""


def _invalid_vector(message: str) -> InputError:
    return InputError(
        message,
        hint="Check the embedding step that made it; nothing was written.",
        code="invalid_vector",
    )


def _unfit(where: str, problem: str) -> InputError:
    return InputError(
        f"{where} {problem}", hint="Mend it; nothing was written.", code="invalid_chunk"
    )
