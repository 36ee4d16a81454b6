"""The workflow behind `herasys ingest`: cut documents, embed the pieces, store them.

It is written out as nodes instead of being traced from the operator library, because
this package never imports operators and must ingest where none is installed. Nothing is
lost: a spec carries no code, and these are the nodes that tracing would give.
"""

from __future__ import annotations

from herasys_rt.graph.spec import (
    Constraint,
    Expr,
    InputRef,
    InputSpec,
    Lit,
    NodeRef,
    NodeSpec,
    Port,
    WorkflowSpec,
)
from herasys_rt.graph.types import PortType


def ingest_spec() -> WorkflowSpec:
    """The workflow ``herasys.ingest``.

    Inputs: ``documents`` (DOCUMENTS), ``collection``, ``chunk_tokens`` and ``overlap`` in
    tokens, ``replace`` (drop the documents' older chunks first), and what a new collection
    is made with: ``distance``, ``storage``, ``language`` (None: the engine's default).
    Output: dict of collection, documents, chunks and revision.
    """
    return WorkflowSpec(
        name="herasys.ingest",
        inputs=(
            InputSpec("documents", PortType.DOCUMENTS),
            InputSpec("collection", PortType.TEXT),
            InputSpec("chunk_tokens", PortType.INT, False, 200),
            InputSpec("overlap", PortType.INT, False, 20),
            InputSpec("replace", PortType.BOOL, False, True),
            *(InputSpec(n, PortType.TEXT, False, None, True) for n in _ASKED),
        ),
        nodes=(_chunk_documents(), _embed_many(), _store()),
        outputs={"output": NodeRef("store")},
        doc="Cut documents into chunks, embed them and store them in a collection.",
    )


def _chunk_documents() -> NodeSpec:
    return NodeSpec(
        id="chunk_documents",
        operator="chunk_documents@1",
        verb="text.chunk",
        resource="embedding",
        args={
            "documents": InputRef("documents"),
            "max_tokens": InputRef("chunk_tokens"),
            "overlap": InputRef("overlap"),
        },
        ports=(
            Port("documents", PortType.DOCUMENTS),
            _whole_number("max_tokens", 1),
            _whole_number("overlap", 0),
        ),
        output=PortType.CHUNKS,
    )


def _embed_many() -> NodeSpec:
    kinds = Constraint(choices=("query", "document"))
    return NodeSpec(
        id="embed_many",
        operator="embed_many@1",
        verb="embed",
        resource="embedding",
        args={
            "text": Expr("texts_of", {"items": NodeRef("chunk_documents")}),
            "kind": Lit("document"),
        },
        ports=(
            Port("text", PortType.TEXTS),
            Port("kind", PortType.TEXT, is_param=True, constraint=kinds),
        ),
        output=PortType.VECTORS,
        list_port="text",
    )


def _store() -> NodeSpec:
    return NodeSpec(
        id="store",
        operator="store@1",
        verb="pg.write",
        resource="retrieval",
        args={
            "embedded": Expr(
                "record",
                {"chunks": NodeRef("chunk_documents"), "vectors": NodeRef("embed_many")},
            ),
            "collection": InputRef("collection"),
            "replace": InputRef("replace"),
            **{
                port.name: InputRef(port.name) if port.name in _ASKED else Lit(None)
                for port in _SETTINGS
            },
        },
        ports=(
            Port("embedded", PortType.EMBEDDED),
            Port(
                "collection",
                PortType.TEXT,
                is_param=True,
                constraint=Constraint(non_empty=True),
            ),
            Port("replace", PortType.BOOL, is_param=True),
            *_SETTINGS,
        ),
        output=PortType.JSON,
        purity="effect",
    )


def _setting(name: str, kind: PortType, constraint: Constraint) -> Port:
    """What a new collection may be made with; None leaves it to the engine."""
    return Port(
        name, kind, False, None, is_param=True, optional=True, constraint=constraint
    )


_SETTINGS = (
    _setting(
        "distance", PortType.TEXT, Constraint(choices=("cosine", "inner_product", "l2"))
    ),
    _setting("storage", PortType.TEXT, Constraint(choices=("vector", "halfvec"))),
    _setting("language", PortType.TEXT, Constraint(non_empty=True)),
    _setting("m", PortType.INT, Constraint(minimum=2, maximum=100)),
    _setting("ef_construction", PortType.INT, Constraint(minimum=4, maximum=1000)),
)


_ASKED = ("distance", "storage", "language")
"""Those that are inputs; HNSW's numbers are pgvector's own."""


def _whole_number(name: str, minimum: int) -> Port:
    constraint = Constraint(minimum=minimum)
    return Port(name, PortType.INT, is_param=True, constraint=constraint)
