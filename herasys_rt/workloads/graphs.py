"""Runs of one fixed graph whose lengths are drawn: RAG, web search, one's own."""

from __future__ import annotations

import msgspec

from herasys_rt.workloads.arrivals import Step, Truth
from herasys_rt.workloads.draws import Spread, Streams, fixed
from herasys_rt.workloads.prefix import Context
from herasys_rt.workloads.sources import Content, call_truth

LLM_VERBS = frozenset({"llm.generate", "llm.prefill"})
"""Verbs whose truth is a prompt and an output; the others work on items."""


class StepShape(msgspec.Struct, frozen=True):
    """A step of a graph, with distributions where a `Step` has numbers.

    An LLM call's prompt is ``head`` tokens that are the same in every run, then
    ``prompt`` tokens of the run's own, and it gives ``output`` tokens. Another verb works
    on ``items`` of ``item_tokens`` tokens each. ``seconds`` makes a step of a fixed time
    instead, drawn per run.
    """

    id: str
    verb: str
    resource: str
    operator: str
    parents: tuple[str, ...] = ()
    head: int = 0
    prompt: Spread = fixed(0)
    output: Spread = fixed(0)
    items: Spread = fixed(1)
    item_tokens: Spread = fixed(0)
    seconds: Spread | None = None
    after_s: Spread = fixed(0)
    model: str | None = None


class Graph(msgspec.Struct, frozen=True):
    """Runs of one graph. With ``revealed`` a step becomes known only when its parents are
    complete; only then may steps have ``after_s``."""

    kind: str
    steps: tuple[StepShape, ...]
    revealed: bool = False

    def content(self, origin: str, streams: Streams) -> Content:
        """See `Source.content`."""
        steps = [_step(shape, self.kind, origin, streams) for shape in self.steps]
        return Content(self.kind, tuple(steps), self.revealed)


def _step(shape: StepShape, kind: str, origin: str, streams: Streams) -> Step:
    # A stream per step and quantity: one step more leaves the others' lengths alone.
    after = streams.of(f"{shape.id}/after")
    return Step(
        shape.id,
        shape.verb,
        shape.resource,
        shape.operator,
        _truth(shape, kind, f"{origin}/{shape.id}", streams),
        shape.parents,
        shape.after_s.draw(after),
        shape.model,
        shape.id,
    )


def _truth(shape: StepShape, kind: str, key: str, streams: Streams) -> Truth:
    if shape.seconds is not None:
        stream = streams.of(f"{shape.id}/seconds")
        return Truth(seconds=shape.seconds.draw(stream), prompt_key=key)
    if shape.verb not in LLM_VERBS:
        items = shape.items.count(streams.of(f"{shape.id}/items"))
        each = shape.item_tokens.whole(streams.of(f"{shape.id}/item_tokens"), least=0)
        return Truth(items=items, tokens=items * each, prompt_key=key)
    prompt = Context()
    prompt.add(f"{kind}/{shape.id}", shape.head)
    own = shape.prompt.whole(streams.of(f"{shape.id}/prompt"), least=0 if shape.head else 1)
    prompt.add(key, own)
    output = shape.output.whole(streams.of(f"{shape.id}/output"))
    return call_truth(prompt, key, output)
