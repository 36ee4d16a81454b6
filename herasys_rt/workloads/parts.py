"""The parts of a workload file: each source with its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import pydantic

from herasys_rt import config_source
from herasys_rt.workloads import catalogue
from herasys_rt.workloads.agents import Chains, Chat, Reuse, ToolChain, TreeSearch
from herasys_rt.workloads.documents import LongDocument, OwnDocuments
from herasys_rt.workloads.fields import (
    Count,
    Draw,
    Few,
    File,
    Form,
    Name,
    Scale,
    SomeTokens,
    Tokens,
    Weight,
    given_of,
    not_empty,
)
from herasys_rt.workloads.graphs import LLM_VERBS, Graph, StepShape

SOURCES: Mapping[str, type] = {
    "graph": Graph,
    "long_documents": LongDocument,
    "own_documents": OwnDocuments,
    "chat": Chat,
    "tool_chain": ToolChain,
    "tree_search": TreeSearch,
    "chains": Chains,
}
"""The sources that a part spells out, by the name it does so under."""

VERBS: Mapping[str, tuple[str, str]] = {
    "llm.generate": ("llm", "generate@1"),
    "llm.prefill": ("llm", "prefill@1"),
    "embed": ("embedding", "embed@1"),
    "rerank": ("rerank", "rerank@1"),
    "pg.search": ("retrieval", "retrieve@1"),
    "pg.text": ("retrieval", "search_text@1"),
    "pg.hybrid": ("retrieval", "hybrid@1"),
    "pg.write": ("retrieval", "store@1"),
    "pg.delete": ("retrieval", "delete@1"),
    "http.search": ("search", "web_search@1"),
    "python.call": ("python", "tool@1"),
}
"""Verb -> the resource that serves it, and the operator that a step is taken for."""


class SourceForm(Form):
    """A part of the mix; ``build`` gives the source."""

    weight: Weight = 1.0

    def given(self) -> dict[str, Any]:
        """What the file says, as the source's own fields."""
        return given_of(self, self.model_fields_set - {"source", "weight"})


class _Named(SourceForm):
    source: Literal["rag", "rag_rerank", "web"]
    length_scale: Scale = 1.0

    def build(self) -> Graph:
        return getattr(catalogue, self.source)(self.length_scale)


class StepForm(Form):
    """A step of a graph of one's own."""

    id: str = pydantic.Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,49}$")
    verb: str
    resource: Name | None = None
    operator: Name | None = None
    parents: tuple[str, ...] = ()
    model: Name | None = None
    head: Tokens | None = None
    prompt: Draw | None = None
    output: Draw | None = None
    items: Count | None = None
    item_tokens: Draw | None = None
    seconds: Draw | None = None
    after_s: Draw | None = None

    @pydantic.field_validator("verb")
    @classmethod
    def _known(cls, verb: str) -> str:
        if verb not in VERBS:
            raise ValueError(f"no verb {verb!r}; {config_source.nearest(verb, VERBS)}")
        return verb

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        given = self.model_fields_set
        llm, batch = {"head", "prompt", "output"}, {"items", "item_tokens"}
        faults: list[str] = []
        if self.verb in LLM_VERBS:
            wrong = (given & batch) | (given & {"seconds"})
            if not given & {"head", "prompt"}:
                faults.append("an LLM call needs a prompt, a head or both")
            if "output" not in given:
                faults.append("an LLM call needs an output")
        else:
            wrong = given & (llm | batch if "seconds" in given else llm)
        if wrong:
            names = ", ".join(sorted(wrong))
            why = " with seconds" if "seconds" in given - wrong else ""
            faults.append(f"{self.verb}{why} takes no {names}")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def build(self) -> StepShape:
        """See `Form`."""
        resource, operator = VERBS[self.verb]
        given = given_of(self, self.model_fields_set)
        return StepShape(**{"resource": resource, "operator": operator, **given})


class _Graph(SourceForm):
    source: Literal["graph"]
    kind: Name
    steps: Annotated[tuple[StepForm, ...], pydantic.BeforeValidator(not_empty)]
    revealed: bool = False

    @pydantic.model_validator(mode="after")
    def _is_graph(self) -> Self:
        faults: list[str] = []
        earlier: list[str] = []
        for step in self.steps:
            if step.id in earlier:
                faults.append(f"two steps have the id {step.id!r}")
            for parent in step.parents:
                if parent not in earlier:
                    near = config_source.nearest(parent, earlier)
                    faults.append(
                        f"step {step.id!r} has the parent {parent!r}, which is no step "
                        f"before it; {near}"
                    )
            if step.after_s is not None and not self.revealed:
                faults.append(f"step {step.id!r} has after_s, which needs revealed: true")
            earlier.append(step.id)
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def build(self) -> Graph:
        return Graph(**self.given())


class _LongDocuments(SourceForm):
    source: Literal["long_documents"]
    kind: Name | None = None
    question: Tokens | None = None
    instructions: Tokens | None = None
    chunks: Count | None = None
    chunk_tokens: SomeTokens | None = None
    chunks_per_call: Few | None = None
    map_output: Draw | None = None
    answer: Draw | None = None

    def build(self) -> LongDocument:
        return LongDocument(**self.given())


class _OwnDocuments(SourceForm):
    source: Literal["own_documents"]
    kind: Name | None = None
    question: Tokens | None = None
    instructions: Tokens | None = None
    documents: Few | None = None
    chunks: Count | None = None
    chunk_tokens: SomeTokens | None = None
    hot_share: float | None = pydantic.Field(default=None, ge=0, le=1)
    hot_documents: int | None = pydantic.Field(default=None, ge=1, le=100_000)
    exponent: float | None = pydantic.Field(default=None, ge=0, le=10)
    top_k: Few | None = None
    answer: Draw | None = None

    def build(self) -> OwnDocuments:
        return OwnDocuments(**self.given())


class _Chat(SourceForm):
    source: Literal["chat"]
    kind: Name | None = None
    turns: Count | None = None
    user: Draw | None = None
    output: Draw | None = None
    think_s: Draw | None = None
    pairs: File | None = None
    conversations: File | None = None
    scale: Scale | None = None
    prompt_scale: Scale | None = None
    reuse: Reuse | None = None

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.pairs is not None and self.conversations is not None:
            raise ValueError("takes one of pairs and conversations")
        return self

    def build(self) -> Chat:
        return Chat(**self.given())


class _ToolChain(SourceForm):
    source: Literal["tool_chain"]
    kind: Name | None = None
    calls: Count | None = None
    increment: Draw | None = None
    output: Draw | None = None
    tool_s: Draw | None = None
    tool_sets: Few | None = None
    tool_docs: tuple[Tokens, Tokens] | None = None
    tasks: File | None = None
    scale: Scale | None = None
    prompt_scale: Scale | None = None
    reuse: Reuse | None = None

    @pydantic.field_validator("tool_docs")
    @classmethod
    def _ordered(cls, docs: tuple[int, int] | None) -> tuple[int, int] | None:
        if docs is not None and docs[0] > docs[1]:
            raise ValueError(f"goes from {docs[0]} down to {docs[1]}")
        return docs

    def build(self) -> ToolChain:
        return ToolChain(**self.given())


class _TreeSearch(SourceForm):
    source: Literal["tree_search"]
    kind: Name | None = None
    expansions: Count | None = None
    width: Annotated[int, pydantic.Field(ge=1, le=100)] | None = None
    prompt: Draw | None = None
    output: Draw | None = None
    instructions: Tokens | None = None
    question: Draw | None = None
    questions: File | None = None
    tool_s: Draw | None = None
    scale: Scale | None = None
    prompt_scale: Scale | None = None
    reuse: Reuse | None = None

    def build(self) -> TreeSearch:
        return TreeSearch(**self.given())


class _Chains(SourceForm):
    source: Literal["chains"]
    path: File
    kind: Name | None = None
    scale: Scale | None = None
    reuse: Reuse | None = None

    def build(self) -> Chains:
        return Chains(**self.given())


PartForm = Annotated[
    _Named
    | _Graph
    | _LongDocuments
    | _OwnDocuments
    | _Chat
    | _ToolChain
    | _TreeSearch
    | _Chains,
    pydantic.Field(discriminator="source"),
]

BY_TAG: dict[str, type[SourceForm]] = {
    "rag": _Named,
    "rag_rerank": _Named,
    "web": _Named,
    "graph": _Graph,
    "long_documents": _LongDocuments,
    "own_documents": _OwnDocuments,
    "chat": _Chat,
    "tool_chain": _ToolChain,
    "tree_search": _TreeSearch,
    "chains": _Chains,
}

TAGS = tuple(BY_TAG)
"""Every source that a part may name."""
