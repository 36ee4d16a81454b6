"""A source makes the content of one run after another; what all sources share."""

from __future__ import annotations

from typing import Protocol

import msgspec

from herasys_rt.workloads.arrivals import Step, Truth
from herasys_rt.workloads.draws import Streams
from herasys_rt.workloads.prefix import Context


class Content(msgspec.Struct, frozen=True):
    """What a run does, without when: the fields of `Job` of the same names."""

    kind: str
    steps: tuple[Step, ...]
    revealed: bool = False


class Source(Protocol):
    """Where the runs of one kind come from."""

    @property
    def kind(self) -> str:
        """The kind of the jobs; different in every part of a workload."""
        ...

    def content(self, origin: str, streams: Streams) -> Content:
        """The next run. ``origin`` names it and is unique; ``streams`` go on from run to
        run, so that the n-th run of a seed is the same however many are asked for."""
        ...


def generate(
    id: str,
    truth: Truth,
    label: str = "",
    parents: tuple[str, ...] = (),
    after_s: float = 0.0,
) -> Step:
    """An LLM call; its label is its id unless another is given."""
    return Step(
        id=id,
        verb="llm.generate",
        resource="llm",
        operator="generate@1",
        truth=truth,
        parents=parents,
        after_s=after_s,
        label=label or id,
    )


def embed(id: str, truth: Truth, label: str = "") -> Step:
    """A batch of texts to vectors."""
    return Step(id, "embed", "embedding", "embed@1", truth, label=label or id)


def retrieve(id: str, truth: Truth, parents: tuple[str, ...]) -> Step:
    """A search by vector."""
    return Step(id, "pg.search", "retrieval", "retrieve@1", truth, parents, label=id)


def call_truth(
    prompt: Context,
    key: str,
    output: int,
    *,
    alone: bool = False,
) -> Truth:
    """The truth of an LLM call, after which ``prompt`` goes on with the call's output.

    ``key`` names the call. One that is ``alone`` draws random numbers or is for other
    reasons equal to no other call.
    """
    tokens, prefix = prompt.tokens, prompt.blocks
    produced = prompt.add(f"{key}/output", output)
    return Truth(
        prompt_tokens=tokens,
        output_tokens=output,
        prefix=prefix,
        prompt_key="" if alone else key,
        produced=produced,
    )
