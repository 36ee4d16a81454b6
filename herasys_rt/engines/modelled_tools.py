"""What the modelled engine gives for the verbs of search and python pools, and for chunks.

Deterministic values of the right type that depend on the arguments alone; nothing is
asked and no user code runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from herasys_rt.engines.protocol import Outcome
from herasys_rt.graph import codec

_EMPTY: dict[str, Callable[[str], Any]] = {
    "text": lambda digest: f"modelled:{digest[:8]}",
    "texts": lambda digest: [f"modelled:{digest[:8]}"],
    "int": lambda digest: int(digest[:6], 16),
    "float": lambda digest: int(digest[:6], 16) / 2**24,
    "bool": lambda digest: int(digest[0], 16) % 2 == 0,
    "vector": lambda digest: np.ones(1, dtype=np.float32),
    "vectors": lambda digest: np.ones((1, 1), dtype=np.float32),
    "chunks": lambda digest: [_page(digest, 1)],
    "documents": lambda digest: [{"id": digest[:8], "text": f"modelled:{digest[:8]}"}],
    "records": lambda digest: [{"modelled": digest[:8]}],
    "embedded": lambda digest: {
        "chunks": [_page(digest, 1)],
        "vectors": np.ones((1, 1), dtype=np.float32),
    },
}
"""Declared type of a function's result -> a value of it; others are JSON."""


def _search(args: Mapping[str, Any]) -> Outcome:
    digest = _digest([args["query"], args.get("provider"), args.get("collection")])
    pages = [_page(digest, i) for i in range(1, (args.get("top_k") or 5) + 1)]
    keys = ("id", "source", "score", "text")
    sources = [{key: page[key] for key in keys} for page in pages]
    return Outcome(value=pages, usage={"items": 1, "results": len(pages)}, sources=sources)


def _call(args: Mapping[str, Any]) -> Outcome:
    given = {name: value for name, value in args.items() if name.startswith("arg:")}
    digest = _digest([args["tool"]["name"], given])
    make = _EMPTY.get(args["tool"]["output"], lambda digest: {"modelled": digest[:8]})
    return Outcome(value=make(digest), usage={"items": 1})


def _chunk(args: Mapping[str, Any]) -> Outcome:
    documents = args.get("documents")
    if documents is None:
        texts = _pieces(args["text"], args)
        return Outcome(value=texts, usage={"items": 1, "chunks": len(texts)})
    chunks = [
        {
            "id": f"{document['id']}#{index}",
            "text": text,
            "source": document.get("source") or document["id"],
            "index": index,
            "metadata": dict(document.get("metadata") or {}),
        }
        for document in documents
        for index, text in enumerate(_pieces(document["text"], args))
    ]
    usage = {"items": len(documents), "chunks": len(chunks)}
    return Outcome(value=chunks, usage=usage)


def _pieces(text: str, args: Mapping[str, Any]) -> list[str]:
    """A text in pieces; each word is a token."""
    words, size = text.split(), args.get("max_tokens") or 200
    step = max(1, size - (args.get("overlap") or 0))
    return [" ".join(words[at : at + size]) for at in range(0, len(words), step)]


def _value(args: Mapping[str, Any]) -> Outcome:
    return Outcome(value=args.get("value"), usage={"items": 1})


def _page(digest: str, rank: int) -> dict[str, Any]:
    url = f"https://modelled.example/{digest[:8]}/{rank}"
    return {
        "id": url,
        "source": url,
        "text": f"modelled page {rank} of {digest[:8]}",
        "score": 1.0 / rank,
        "title": f"modelled {rank}",
        "url": url,
        "snippet": f"modelled page {rank} of {digest[:8]}",
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(codec.encode(value)).hexdigest()


MAKERS: dict[str, Callable[[dict[str, Any]], Outcome]] = {
    "http.search": _search,
    "python.call": _call,
    "text.chunk": _chunk,
    "text.value": _value,
}
"""Verb -> what it gives for a node's arguments."""
