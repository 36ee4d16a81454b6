"""The verbs ``pg.*`` over a store: arguments in, an `Outcome` out.

Arguments come from a graph whose literals were checked, and from runs and nodes that
were not; so everything is looked at here once more. What is left out or None is default.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from herasys_rt.engines.postgres import rows
from herasys_rt.engines.postgres.searching import ByText, ByVector, Chunk, Fusing
from herasys_rt.engines.postgres.settings import NAMES as SETTINGS
from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.engines.protocol import Outcome
from herasys_rt.errors import InputError

Args = Mapping[str, Any]
Verb = Callable[[CollectionStore, Args], Awaitable[Outcome]]

_TOP_K = 12
_SOURCE_KEYS = ("id", "source", "score", "text")
_VECTOR = ("distance", "index", "ef_search")
_TEXT = ("language", "k1", "b")
_FUSING = ("candidates", "rrf_k", "vector_weight", "text_weight")


async def search(store: CollectionStore, args: Args) -> Outcome:
    """``pg.search``: the chunks nearest to a vector."""
    name, ask = _collection(args), _by_vector(args)
    chunks, revision = await store.search(
        name,
        ask.vector,
        ask.top_k,
        ask.distance,
        ask.filter,
        index=ask.index,
        ef_search=ask.ef_search,
    )
    return _found(name, chunks, revision)


async def text(store: CollectionStore, args: Args) -> Outcome:
    """``pg.text``: the chunks that have a query's words, by BM25."""
    name, ask = _collection(args), _by_text(args)
    chunks, revision = await store.search_text(
        name,
        ask.query,
        ask.top_k,
        ask.filter,
        language=ask.language,
        k1=ask.k1,
        b=ask.b,
    )
    return _found(name, chunks, revision)


async def hybrid(store: CollectionStore, args: Args) -> Outcome:
    """``pg.hybrid``: both at one revision, fused by reciprocal ranks."""
    name = _collection(args)
    how = Fusing(args.get("top_k", _TOP_K), **_given(args, _FUSING))
    chunks, revision = await store.hybrid(name, _by_vector(args), _by_text(args), how)
    return _found(name, chunks, revision)


async def write(store: CollectionStore, args: Args) -> Outcome:
    """``pg.write``: chunks with their vectors into a collection, made when it is new."""
    name = _collection(args)
    chunks, vectors = rows.embedded_parts(args.get("embedded"))
    change = await store.add(
        name,
        chunks,
        vectors,
        replace=bool(args.get("replace", False)),
        make=True,
        **_given(args, SETTINGS),
    )
    return _changed(name, change.documents, change.chunks, change.revision)


async def delete(store: CollectionStore, args: Args) -> Outcome:
    """``pg.delete``: chunks out of a collection, by their ids or their document."""
    name = _collection(args)
    ids, source = args.get("ids"), args.get("source")
    if ids is not None and not _is_texts(ids):
        raise InputError("ids must be a list of texts", hint="Pass ids=[ID, ...].")
    if source is not None and not isinstance(source, str):
        raise InputError(
            f"source must be a text, not {type(source).__name__}",
            hint="Pass the document's id.",
        )
    change = await store.delete(name, ids=ids, source=source)
    return _changed(name, change.documents, change.chunks, change.revision)


VERBS: dict[str, Verb] = {
    "pg.search": search,
    "pg.text": text,
    "pg.hybrid": hybrid,
    "pg.write": write,
    "pg.delete": delete,
}


def _collection(args: Args) -> str:
    return rows.collection_name(args.get("collection"))


def _by_vector(args: Args) -> ByVector:
    return ByVector(
        args.get("vector"),
        args.get("top_k", _TOP_K),
        filter=_filter(args),
        **_given(args, _VECTOR),
    )


def _by_text(args: Args) -> ByText:
    return ByText(
        cast(str, args.get("query")),  # checked there
        args.get("top_k", _TOP_K),
        _filter(args),
        **_given(args, _TEXT),
    )


def _given(args: Args, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: args[name] for name in names if args.get(name) is not None}


def _filter(args: Args) -> dict[str, Any] | None:
    filter = args.get("filter")
    if filter is not None and not isinstance(filter, dict):
        raise InputError(
            f"filter must be a dict, not {type(filter).__name__}",
            hint="Pass filter={'KEY': VALUE, ...} over the chunks' metadata.",
        )
    return filter


def _is_texts(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(isinstance(item, str) for item in cast("list[Any]", value))


def _found(name: str, chunks: list[Chunk], revision: int) -> Outcome:
    return Outcome(
        value=chunks,
        usage={"items": 1, "chunks": len(chunks)},
        sources=[{key: chunk[key] for key in _SOURCE_KEYS} for chunk in chunks],
        revisions={name: revision},
    )


def _changed(name: str, documents: int, chunks: int, revision: int) -> Outcome:
    value = {
        "collection": name,
        "documents": documents,
        "chunks": chunks,
        "revision": revision,
    }
    usage = {"items": 1, "chunks": chunks}
    return Outcome(value=value, usage=usage, revisions={name: revision})
