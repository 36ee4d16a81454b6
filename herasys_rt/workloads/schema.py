"""What a workload file may hold: the pydantic side of `workloads.files`.

A key that is left out has the default of the source it belongs to, which is where the
defaults are; so every key of a source is None here until a file says something.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import pydantic

from herasys_rt import config_source
from herasys_rt.workloads import catalogue
from herasys_rt.workloads.agents import Chains, Chat, Reuse, ToolChain, TreeSearch
from herasys_rt.workloads.arrivals import Workload
from herasys_rt.workloads.documents import LongDocument, OwnDocuments
from herasys_rt.workloads.draws import MAX_COUNT, MAX_TOKENS, Law, Spread
from herasys_rt.workloads.graphs import LLM_VERBS, Graph, StepShape
from herasys_rt.workloads.mixture import MAX_RUNS, Duplicates, Mixture, Part
from herasys_rt.workloads.traces import TIMED, Trace, TraceFormat

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

_MAX_WEIGHT = 1e6
_MAX_CLIENTS = 100_000
_MAX_RATE = 1e6


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _text_fault(text: str) -> str:
    """Names go into ids, tables and file names."""
    if not text.strip():
        raise ValueError("is blank")
    if not text.isprintable():
        raise ValueError(f"has characters that cannot be shown: {text!r}")
    return text


Name = Annotated[str, pydantic.Field(max_length=100), pydantic.AfterValidator(_text_fault)]


def _not_empty(value: Any) -> Any:
    if isinstance(value, list) and not 1 <= len(value) <= MAX_COUNT:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"has {len(value)} entries, and 1 to {MAX_COUNT:,} are taken")  # pyright: ignore[reportUnknownArgumentType]
    if value is not None and not isinstance(value, list | tuple):
        raise ValueError(f"is no list: {value!r}")
    return value  # pyright: ignore[reportUnknownVariableType]


_Tokens = Annotated[int, pydantic.Field(ge=0, le=MAX_TOKENS)]
_Some = Annotated[int, pydantic.Field(ge=1, le=MAX_TOKENS)]
_Few = Annotated[int, pydantic.Field(ge=1, le=MAX_COUNT)]
_Weight = Annotated[float, pydantic.Field(gt=0, le=_MAX_WEIGHT)]
_Scale = Annotated[float, pydantic.Field(gt=0, le=1000)]


def _found(path: str, info: pydantic.ValidationInfo) -> str:
    folder: Path = (info.context or {}).get("folder", Path())
    found = folder / path
    if not found.is_file():
        raise ValueError(f"there is no file {found}")
    return str(found)


_File = Annotated[str, pydantic.AfterValidator(_found)]


class _Spread(_Section):
    """A distribution. ``median`` instead of ``mean`` only for a lognormal."""

    mean: float | None = pydantic.Field(default=None, ge=0, le=MAX_TOKENS)
    median: float | None = pydantic.Field(default=None, gt=0, le=MAX_TOKENS)
    sigma: float = pydantic.Field(default=0.0, ge=0, le=MAX_TOKENS)
    law: Law = "lognormal"
    min: float = pydantic.Field(default=0.0, ge=0, le=MAX_TOKENS)
    max: float | None = pydantic.Field(default=None, ge=0, le=MAX_TOKENS)
    offset: float = pydantic.Field(default=0.0, ge=0, le=MAX_TOKENS)

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        faults: list[str] = []
        if (self.mean is None) == (self.median is None):
            faults.append("takes one of mean and median")
        if self.median is not None and self.law != "lognormal":
            faults.append(f"median is for a lognormal; a {self.law} takes mean")
        if self.law == "lognormal" and self.sigma > 5:
            faults.append(f"sigma of a lognormal is at most 5, got {self.sigma:g}")
        if self.law == "exponential" and self.sigma:
            faults.append("an exponential has no sigma")
        if self.max is not None and self.max < self.min:
            faults.append(f"max {self.max:g} is below min {self.min:g}")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def build(self) -> Spread:
        high = float("inf") if self.max is None else self.max
        if self.median is not None:
            spread = Spread.of_median(self.median, self.sigma)
            return Spread(spread.mean, self.sigma, "lognormal", self.min, high, self.offset)
        mean = self.mean or 0.0
        return Spread(mean, self.sigma, self.law, self.min, high, self.offset)


def _from_number(value: Any) -> Any:
    return {"mean": value} if isinstance(value, int | float | str) else value


_Draw = Annotated[_Spread, pydantic.BeforeValidator(_from_number)]
"""A distribution, or a number that is always drawn."""


def _is_count(spread: _Spread) -> _Spread:
    if (spread.mean or spread.median or 0) > MAX_COUNT:
        raise ValueError(f"the mean is at most {MAX_COUNT:,}")
    return spread


_Count = Annotated[_Draw, pydantic.AfterValidator(_is_count)]
"""Of calls and chunks, which all are held: no draw goes beyond `MAX_COUNT`."""


def _given(section: pydantic.BaseModel, names: AbstractSet[str]) -> dict[str, Any]:
    """What a file says under these names, in the terms of the sources."""
    values = {name: getattr(section, name) for name in sorted(names)}
    return {name: _built(value) for name, value in values.items() if value is not None}


def _built(value: Any) -> Any:
    match value:
        case _Spread() | _Step():
            return value.build()
        case tuple():
            return tuple(_built(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


class _Source(_Section):
    """A part of the mix; ``build`` gives the source."""

    weight: _Weight = 1.0

    def build(self) -> Any:
        raise NotImplementedError

    def given(self) -> dict[str, Any]:
        """What the file says, as the source's own fields."""
        return _given(self, self.model_fields_set - {"source", "weight"})


class _Named(_Source):
    source: Literal["rag", "rag_rerank", "web"]
    length_scale: _Scale = 1.0

    def build(self) -> Graph:
        return getattr(catalogue, self.source)(self.length_scale)


class _Step(_Section):
    id: str = pydantic.Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,49}$")
    verb: str
    resource: Name | None = None
    operator: Name | None = None
    parents: tuple[str, ...] = ()
    model: Name | None = None
    head: _Tokens | None = None
    prompt: _Draw | None = None
    output: _Draw | None = None
    items: _Count | None = None
    item_tokens: _Draw | None = None
    seconds: _Draw | None = None
    after_s: _Draw | None = None

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
        resource, operator = VERBS[self.verb]
        given = _given(self, self.model_fields_set)
        return StepShape(**{"resource": resource, "operator": operator, **given})


class _Graph(_Source):
    source: Literal["graph"]
    kind: Name
    steps: Annotated[tuple[_Step, ...], pydantic.BeforeValidator(_not_empty)]
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


class _LongDocuments(_Source):
    source: Literal["long_documents"]
    kind: Name | None = None
    question: _Tokens | None = None
    instructions: _Tokens | None = None
    chunks: _Count | None = None
    chunk_tokens: _Some | None = None
    chunks_per_call: _Few | None = None
    map_output: _Draw | None = None
    answer: _Draw | None = None

    def build(self) -> LongDocument:
        return LongDocument(**self.given())


class _OwnDocuments(_Source):
    source: Literal["own_documents"]
    kind: Name | None = None
    question: _Tokens | None = None
    instructions: _Tokens | None = None
    documents: _Few | None = None
    chunks: _Count | None = None
    chunk_tokens: _Some | None = None
    hot_share: float | None = pydantic.Field(default=None, ge=0, le=1)
    hot_documents: int | None = pydantic.Field(default=None, ge=1, le=100_000)
    exponent: float | None = pydantic.Field(default=None, ge=0, le=10)
    top_k: _Few | None = None
    answer: _Draw | None = None

    def build(self) -> OwnDocuments:
        return OwnDocuments(**self.given())


class _Chat(_Source):
    source: Literal["chat"]
    kind: Name | None = None
    turns: _Count | None = None
    user: _Draw | None = None
    output: _Draw | None = None
    think_s: _Draw | None = None
    pairs: _File | None = None
    conversations: _File | None = None
    scale: _Scale | None = None
    prompt_scale: _Scale | None = None
    reuse: Reuse | None = None

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.pairs is not None and self.conversations is not None:
            raise ValueError("takes one of pairs and conversations")
        return self

    def build(self) -> Chat:
        return Chat(**self.given())


class _ToolChain(_Source):
    source: Literal["tool_chain"]
    kind: Name | None = None
    calls: _Count | None = None
    increment: _Draw | None = None
    output: _Draw | None = None
    tool_s: _Draw | None = None
    tool_sets: _Few | None = None
    tool_docs: tuple[_Tokens, _Tokens] | None = None
    tasks: _File | None = None
    scale: _Scale | None = None
    prompt_scale: _Scale | None = None
    reuse: Reuse | None = None

    @pydantic.field_validator("tool_docs")
    @classmethod
    def _ordered(cls, docs: tuple[int, int] | None) -> tuple[int, int] | None:
        if docs is not None and docs[0] > docs[1]:
            raise ValueError(f"goes from {docs[0]} down to {docs[1]}")
        return docs

    def build(self) -> ToolChain:
        return ToolChain(**self.given())


class _TreeSearch(_Source):
    source: Literal["tree_search"]
    kind: Name | None = None
    expansions: _Count | None = None
    width: Annotated[int, pydantic.Field(ge=1, le=100)] | None = None
    prompt: _Draw | None = None
    output: _Draw | None = None
    instructions: _Tokens | None = None
    question: _Draw | None = None
    questions: _File | None = None
    tool_s: _Draw | None = None
    scale: _Scale | None = None
    prompt_scale: _Scale | None = None
    reuse: Reuse | None = None

    def build(self) -> TreeSearch:
        return TreeSearch(**self.given())


class _Chains(_Source):
    source: Literal["chains"]
    path: _File
    kind: Name | None = None
    scale: _Scale | None = None
    reuse: Reuse | None = None

    def build(self) -> Chains:
        return Chains(**self.given())


_Part = Annotated[
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


class _Duplicates(_Section):
    share: float = pydantic.Field(default=0.0, ge=0, lt=1)
    exponent: float = pydantic.Field(default=1.0, ge=0, le=10)


def _from_share(value: Any) -> Any:
    return {"share": value} if isinstance(value, int | float | str) else value


class _Trace(_Section):
    format: TraceFormat
    path: _File


class WorkloadFile(_Section):
    """A workload: one of ``base`` (a named one), ``parts`` (a mix) and ``trace``."""

    name: Name | None = None
    runs: int | None = pydantic.Field(default=None, ge=1, le=MAX_RUNS)
    rate: float | None = pydantic.Field(default=None, gt=0, le=_MAX_RATE)
    concurrency: int | None = pydantic.Field(default=None, ge=1, le=_MAX_CLIENTS)
    base: str | None = None
    length_scale: _Scale | None = None
    duplicates: Annotated[_Duplicates, pydantic.BeforeValidator(_from_share)] | None = None
    parts: Annotated[tuple[_Part, ...] | None, pydantic.BeforeValidator(_not_empty)] = None
    trace: _Trace | None = None

    @pydantic.field_validator("base")
    @classmethod
    def _known(cls, base: str | None) -> str | None:
        if base is not None and base not in catalogue.NAMES:
            near = config_source.nearest(base, catalogue.NAMES)
            raise ValueError(f"no workload {base!r}; {near}")
        return base

    def build(self, name: str) -> Workload:
        """The workload; ``name`` is for one that has none and is no named one's."""
        if self.base is not None:
            like = catalogue.workload(self.base, self.length_scale or 1.0)
        elif self.trace is not None:
            format, path = self.trace.format, self.trace.path
            clients = None if format in TIMED else catalogue.CONCURRENCY
            like = Trace(name, format, path, closed_loop_concurrency=clients)
        else:
            parts = tuple(Part(p.build(), p.weight) for p in self.parts or ())
            clients = catalogue.CONCURRENCY
            like = Mixture(name, parts, closed_loop_concurrency=clients)
        return msgspec.structs.replace(like, **self._changes())  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    def _changes(self) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if self.name is not None:
            changes["name"] = self.name
        if self.runs is not None:
            changes["default_runs"] = self.runs
        if self.rate is not None or self.concurrency is not None:
            changes["default_rate"] = self.rate
            changes["closed_loop_concurrency"] = self.concurrency
        if self.duplicates is not None:
            changes["duplicates"] = Duplicates(**self.duplicates.model_dump())
        return changes


def contradictions(data: Mapping[str, Any]) -> list[str]:
    """What of a file's sections does not go together, however right each of them is."""
    given = [key for key, value in data.items() if value is not None]
    made_of = [key for key in ("base", "parts", "trace") if key in given]
    faults: list[str] = []
    if len(made_of) != 1:
        got = " and ".join(made_of) or "none"
        faults.append(f"takes one of base, parts and trace, got {got}")
    if "rate" in given and "concurrency" in given:
        faults.append("takes a rate (open loop) or a concurrency (closed loop), not both")
    if "length_scale" in given and "base" not in given:
        faults.append("length_scale goes with base; parts have scales of their own")
    if "duplicates" in given and "trace" in given:
        faults.append("a trace is replayed as it was and takes no duplicates")
    kinds = [_kind_of(part) for part in _list(data.get("parts"))]
    for kind in sorted({kind for kind in kinds if kind and kinds.count(kind) > 1}):
        count = kinds.count(kind)
        faults.append(f"{count} parts are of the kind {kind!r}; kinds must differ")
    return faults


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind_of(part: Any) -> str:
    """The kind that a part's jobs will have; ``""`` where its source says nothing."""
    if not isinstance(part, Mapping):
        return ""
    section: Mapping[str, Any] = part
    tag = str(section.get("source"))
    if tag in SOURCES:
        fields = msgspec.structs.fields(SOURCES[tag])
        own = next(str(f.default) for f in fields if f.name == "kind")
        return str(section.get("kind") or ("" if tag == "graph" else own))
    return tag if tag in _BY_TAG else ""


def part_keys(tag: str) -> list[str]:
    """The keys of a part with this source."""
    return list(_BY_TAG[tag].model_fields)


def fields_at(path: tuple[str | int, ...], data: Any) -> list[str]:
    """The keys known at a place of a file."""
    spot, section = data, WorkloadFile.model_fields.keys()
    for number, part in enumerate(path):
        spot = spot[part]
        if part in ("duplicates", "trace"):
            section = (_Duplicates if part == "duplicates" else _Trace).model_fields.keys()
        elif isinstance(spot, Mapping) and "source" in spot:
            section = part_keys(str(spot["source"]))
        elif isinstance(spot, Mapping):
            is_step = number > 0 and path[number - 1] == "steps"
            section = (_Step if is_step else _Spread).model_fields.keys()
    return list(section)


_BY_TAG: dict[str, type[_Source]] = {
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

TAGS = tuple(_BY_TAG)
"""Every source that a part may name."""
