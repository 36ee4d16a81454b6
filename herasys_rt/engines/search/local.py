"""The offline provider: full-text search in a collection of the runtime's own database.

A page is a document of the collection, found by its chunks: its address is the
document's ``source`` (or ``metadata.url``), its title ``metadata.title`` or its first
line, its snippet the chunk that fits the query best.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from herasys_rt.engines.postgres import words
from herasys_rt.engines.postgres.store import CollectionStore
from herasys_rt.engines.search.options import LocalOptions
from herasys_rt.errors import HerasysError, InputError
from herasys_rt.ids import new_id

log = logging.getLogger(__name__)

_TITLE_CHARS = 120
_CHUNKS_PER_PAGE = 4
"""Chunks asked for per wanted page at first; a page may take several of the best."""
_MOST_CHUNKS = 10_000


class LocalIndex:
    """Full-text search over collections; belongs to one event loop.

    The database is connected to by `recognise`, or when it was not there then by the first
    search. ``fingerprint`` says what decides what a search finds beside the collection.
    """

    def __init__(self, dsn: str, options: LocalOptions) -> None:
        self._store = CollectionStore(dsn, options.pool_size)
        self._opening = asyncio.Lock()
        self._opened = False
        self.fingerprint = f"local {new_id('unknown')}"  # like no other, until it is known

    async def recognise(self) -> None:
        """Find out which database it is, if it can be reached."""
        try:
            await self._open()
        except HerasysError as e:
            log.warning("the database of local searches is not known yet: %s", e.message)
        else:
            store = self._store
            self.fingerprint = f"local {store.server}/{words.VERSION} in {store.identity}"

    async def search(
        self, query: str, most: int, collection: Any
    ) -> tuple[list[dict[str, Any]], int]:
        """Results, best first, each page once, and the collection's revision.

        Errors: as `CollectionStore.search_text`; an unknown collection's hint says how
        to fill one.
        """
        await self._open()
        asked = most * _CHUNKS_PER_PAGE
        while True:
            try:
                chunks, revision = await self._store.search_text(collection, query, asked)
            except InputError as e:
                raise _explained(e) from e
            results = _by_page(chunks)
            if len(results) >= most or len(chunks) < asked or asked >= _MOST_CHUNKS:
                return results[:most], revision
            asked *= _CHUNKS_PER_PAGE

    async def close(self) -> None:
        """Give the connections back."""
        if self._opened:
            await self._store.close()

    async def _open(self) -> None:
        async with self._opening:
            if not self._opened:
                await self._store.open()
                self._opened = True


def _by_page(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best chunk of each document, in the chunks' order, as a result."""
    found: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        metadata = chunk.get("metadata") or {}
        url = str(metadata.get("url") or chunk["source"])
        if url not in found:
            found[url] = {
                "title": _title(chunk, metadata, url),
                "url": url,
                "snippet": chunk["text"],
                "score": chunk["score"],
            }
    return list(found.values())


def _title(chunk: dict[str, Any], metadata: dict[str, Any], url: str) -> str:
    given = metadata.get("title")
    if isinstance(given, str) and given.strip():
        return given.strip()
    lines = [line.strip() for line in chunk["text"].splitlines() if line.strip()]
    return lines[0][:_TITLE_CHARS] if lines else url


def _explained(error: InputError) -> InputError:
    if error.code != "unknown_collection":
        return error
    return InputError(
        error.message,
        hint="The provider local searches a collection: fill one with `herasys ingest` or "
        "the operator ingest, and name it: web_search(..., collection=NAME).",
        code=error.code,
    )
