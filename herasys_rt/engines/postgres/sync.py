"""The collection store for callers without an event loop, such as the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from herasys_rt.engines.postgres.loop import LoopThread
from herasys_rt.engines.postgres.store import CollectionFacts, CollectionStore
from herasys_rt.engines.postgres.writing import Change


class OpenStore:
    """Blocking twin of `CollectionStore`: same methods, same errors. See `open_store`."""

    def __init__(self, store: CollectionStore, loop: LoopThread) -> None:
        self._store = store
        self._loop = loop

    def create(
        self, name: str, dimensions: int, distance: str | None = None, **settings: Any
    ) -> CollectionFacts:
        """Make a collection, or find it made already."""
        work = self._store.create(name, dimensions, distance, **settings)
        return self._loop.run(work)

    def drop(self, name: str) -> int:
        """Delete a collection; the revision of that change."""
        return self._loop.run(self._store.drop(name))

    def list(self) -> list[CollectionFacts]:
        """All collections, by name."""
        return self._loop.run(self._store.list())

    def show(self, name: str) -> CollectionFacts:
        """One collection in numbers."""
        return self._loop.run(self._store.show(name))

    def add(
        self,
        name: str,
        chunks: Sequence[Mapping[str, Any]],
        vectors: Any,
        *,
        replace: bool = False,
        **more: Any,
    ) -> Change:
        """Write chunks with their vectors."""
        work = self._store.add(name, chunks, vectors, replace=replace, **more)
        return self._loop.run(work)

    def delete(
        self,
        name: str,
        *,
        ids: Sequence[str] | None = None,
        source: str | None = None,
    ) -> Change:
        """Delete chunks by id, or those of one document."""
        return self._loop.run(self._store.delete(name, ids=ids, source=source))

    def search(
        self,
        name: str,
        vector: Any,
        top_k: int,
        distance: str | None = None,
        filter: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> tuple[list[dict[str, Any]], int]:
        """The nearest chunks and their revision."""
        work = self._store.search(name, vector, top_k, distance, filter, **how)
        return self._loop.run(work)

    def search_text(
        self,
        name: str,
        query: str,
        top_k: int,
        filter: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> tuple[list[dict[str, Any]], int]:
        """The best chunks by BM25 and their revision."""
        work = self._store.search_text(name, query, top_k, filter, **how)
        return self._loop.run(work)


@contextmanager
def open_store(dsn: str, pool_size: int = 2) -> Iterator[OpenStore]:
    """An open store for the length of a ``with`` block; also inside a running loop.

    Leaving it waits for an index that is being built.
    """
    loop = LoopThread("collections")
    store = CollectionStore(dsn, pool_size)
    try:
        loop.run(store.open())
        try:
            yield OpenStore(store, loop)
            loop.run(store.settled())
        finally:
            loop.run(store.close())
    finally:
        loop.close()
