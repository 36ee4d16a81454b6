"""Agents: conversations, chains of tool calls, tree searches. Revealed step by step.

The distributions are synthetic (HexAGenT's traces are not public); what is drawn is one
scale away from them, so that a trace is fitted with one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from herasys_rt.workloads.arrivals import Step, Truth
from herasys_rt.workloads.draws import Spread, Streams, fixed
from herasys_rt.workloads.lengths import (
    Exchange,
    Task,
    read_chains,
    read_conversations,
    read_pairs,
    read_questions,
    read_tasks,
)
from herasys_rt.workloads.prefix import Context
from herasys_rt.workloads.sources import Content, call_truth, generate

T = TypeVar("T")

Reuse = Literal["blocks", "given", "none"]
"""What of a prompt's earlier part (history, tool documents, instructions) is cached.

``blocks``: the instances' caches decide, by its block ids; ``given``: all of it, wherever
the call goes and whether or not the instances have caches; ``none``: nothing, every call
computes its whole prompt.
"""


class Chat(msgspec.Struct, frozen=True):
    """A conversation: per turn a user's text, then the model's; the history accumulates.

    ``think_s`` passes between the turns. With ``pairs`` (a file of `lengths.read_pairs`)
    the lengths of each turn are one of its pairs; with ``conversations`` (a file of
    `lengths.read_conversations`) number and lengths of the user's turns are one of its
    conversations'. Lengths in tokens, times ``scale``, the user's also times
    ``prompt_scale``.
    """

    kind: str = "sharegpt"
    turns: Spread = Spread(5.5, law="exponential", offset=1, high=40)
    user: Spread = Spread(256, 0.9)
    output: Spread = Spread(277, 0.75)
    think_s: Spread = fixed(0)
    pairs: str = ""
    conversations: str = ""
    scale: float = 1.0
    prompt_scale: float = 1.0
    reuse: Reuse = "blocks"

    def content(self, origin: str, streams: Streams) -> Content:
        """See `Source.content`."""
        turns = [
            Exchange(user, output, self.think_s.draw(streams.of("think")) if i else 0.0)
            for i, (user, output) in enumerate(self._turns(streams))
        ]
        return Content(self.kind, chain(origin, turns, self.reuse), revealed=True)

    def _turns(self, streams: Streams) -> list[tuple[int, int]]:
        outputs = streams.of("output")
        given = self.scale * self.prompt_scale
        if self.conversations:
            spoken = _one_of(read_conversations(Path(self.conversations)), streams)
            users = [_times(tokens, given) for tokens in spoken]
            return [(user, self.output.whole(outputs, self.scale)) for user in users]
        count = self.turns.count(streams.of("turns"))
        if self.pairs:
            pairs = read_pairs(Path(self.pairs))
            drawn = [_one_of(pairs, streams) for _ in range(count)]
            return [(_times(u, given), _times(o, self.scale)) for u, o in drawn]
        return [
            (
                self.user.whole(streams.of("user"), given),
                self.output.whole(outputs, self.scale),
            )
            for _ in range(count)
        ]


class Chains(msgspec.Struct, frozen=True):
    """Recorded chains of calls, one of those in ``path`` per run (`lengths.read_chains`).

    Lengths in tokens, times ``scale``.
    """

    path: str
    kind: str = "taubench"
    scale: float = 1.0
    reuse: Reuse = "blocks"

    def content(self, origin: str, streams: Streams) -> Content:
        """See `Source.content`."""
        calls = [
            Exchange(_times(call.new, self.scale), _times(call.output, self.scale))
            for call in _one_of(read_chains(Path(self.path)), streams)
        ]
        return Content(self.kind, chain(origin, calls, self.reuse), revealed=True)


class ToolChain(msgspec.Struct, frozen=True):
    """A chain of function calls: every call's prompt is the tools' documents, all before
    it and an increment (what the user said, what the tool gave).

    ``tool_sets`` sets of documents, with lengths evenly from ``tool_docs[0]`` to
    ``tool_docs[1]``, are shared by all runs. A tool works for ``tool_s`` after each call.
    With ``tasks`` (a file of `lengths.read_tasks`) the structure and all lengths are one
    of its tasks', save the tools' results, which stay ``increment``. Lengths in tokens,
    times ``scale``, those of documents and increments also times ``prompt_scale``.
    """

    kind: str = "bfcl"
    calls: Spread = Spread(11, 4, law="normal", low=1, high=40)
    increment: Spread = Spread(735, 0.65)
    output: Spread = Spread(34, 0.55)
    tool_s: Spread = fixed(0)
    tool_sets: int = 20
    tool_docs: tuple[int, int] = (3082, 6892)
    tasks: str = ""
    scale: float = 1.0
    prompt_scale: float = 1.0
    reuse: Reuse = "given"

    def content(self, origin: str, streams: Streams) -> Content:
        """See `Source.content`."""
        if self.tasks:
            task = _one_of(read_tasks(Path(self.tasks)), streams)
            docs, calls = task.tool_docs, self._replayed(task, streams)
        else:
            docs, calls = self._docs(streams), self._drawn(streams)
        head = (f"{self.kind}/tools-{docs}", _times(docs, self._given))
        steps = chain(origin, calls, self.reuse, head)
        return Content(self.kind, steps, revealed=True)

    def _docs(self, streams: Streams) -> int:
        low, high = self.tool_docs
        number = int(streams.of("tools").integers(self.tool_sets))
        return low + round((high - low) * number / max(self.tool_sets - 1, 1))

    def _drawn(self, streams: Streams) -> list[Exchange]:
        count = self.calls.count(streams.of("calls"))
        output = streams.of("output")
        return [
            Exchange(
                self._increment(streams),
                self.output.whole(output, self.scale),
                self._pause_s(number, streams),
            )
            for number in range(count)
        ]

    def _replayed(self, task: Task, streams: Streams) -> list[Exchange]:
        calls: list[Exchange] = []
        new = 0
        for user, outputs in task.turns:
            new += round(user * self._given)
            for tokens in outputs:
                output = _times(tokens, self.scale)
                calls.append(
                    Exchange(max(new, 1), output, self._pause_s(len(calls), streams))
                )
                new = self._increment(streams)
        return calls

    def _increment(self, streams: Streams) -> int:
        return self.increment.whole(streams.of("increment"), self._given)

    @property
    def _given(self) -> float:
        return self.scale * self.prompt_scale

    def _pause_s(self, number: int, streams: Streams) -> float:
        return self.tool_s.draw(streams.of("tool_s")) if number else 0.0


class _Head(NamedTuple):
    """What every prompt of a tree search begins with: the question under its name."""

    instructions: int
    question: str
    question_tokens: int


class TreeSearch(msgspec.Struct, frozen=True):
    """A tree search: per expansion ``width`` answers to one prompt, drawn at once, each
    then valued by a call of its own; when all are valued comes the next expansion.

    ``prompt`` is a whole prompt's length; it begins with ``instructions`` tokens that are
    the same in every run, then the run's ``question`` (with ``questions``, a file of
    `lengths.read_questions`, one of those). ``tool_s`` passes between an answer and its
    valuation (the environment's turn). Answers are sampled: no two calls are equal.
    Lengths in tokens, times ``scale``, those of prompts and their parts also times
    ``prompt_scale``.
    """

    kind: str = "lats"
    expansions: Spread = Spread(16, 5, law="normal", low=1, high=40)
    width: int = 5
    prompt: Spread = Spread(467, 0.4)
    output: Spread = Spread(73, 0.4)
    instructions: int = 200
    question: Spread = Spread(23, 0.35)
    questions: str = ""
    tool_s: Spread = fixed(0)
    scale: float = 1.0
    prompt_scale: float = 1.0
    reuse: Reuse = "blocks"

    def content(self, origin: str, streams: Streams) -> Content:
        """See `Source.content`."""
        instructions = _times(self.instructions, self._given)
        head = _Head(instructions, f"{origin}/question", self._question(streams))
        steps: list[Step] = []
        front: tuple[str, ...] = ()
        for number in range(self.expansions.count(streams.of("expansions"))):
            node = self._prompt("expand", f"{origin}/{number}", head, streams)
            values: list[Step] = []
            for i in range(self.width):
                id, valued = f"expand-{number}-{i}", f"evaluate-{number}-{i}"
                truth = self._truth(node.copy(), f"{origin}/{id}", head, streams)
                steps.append(generate(id, truth, "expand", front))
                prompt = self._prompt("evaluate", f"{origin}/{valued}", head, streams)
                truth = self._truth(prompt, f"{origin}/{valued}", head, streams)
                pause_s = self.tool_s.draw(streams.of("tool_s"))
                values.append(generate(valued, truth, "evaluate", (id,), pause_s))
            steps += values
            front = tuple(step.id for step in values)
        return Content(self.kind, tuple(steps), revealed=True)

    def _question(self, streams: Streams) -> int:
        if self.questions:
            found = _one_of(read_questions(Path(self.questions)), streams)
            return _times(found, self._given)
        return self.question.whole(streams.of("question"), self._given)

    def _prompt(self, label: str, own: str, head: _Head, streams: Streams) -> Context:
        left = self.prompt.whole(streams.of("prompt"), self._given)
        prompt = Context()
        instructions = min(head.instructions, left)
        prompt.add(f"{self.kind}/{label}", instructions)
        question = min(head.question_tokens, left - instructions)
        prompt.add(head.question, question)
        prompt.add(own, left - instructions - question)
        return prompt

    def _truth(self, prompt: Context, key: str, head: _Head, streams: Streams) -> Truth:
        output = self.output.whole(streams.of("output"), self.scale)
        truth = call_truth(prompt, key, output, alone=True)
        return reusing(truth, self.reuse, head.instructions + head.question_tokens)

    @property
    def _given(self) -> float:
        return self.scale * self.prompt_scale


def chain(
    origin: str,
    exchanges: Iterable[Exchange],
    reuse: Reuse,
    head: tuple[str, int] = ("", 0),
    label: str = "call",
) -> tuple[Step, ...]:
    """Calls one after the other, each of whose prompts holds all that was before it.

    ``head`` is a name and a length of a text that other chains begin with too.
    """
    context = Context()
    name, earlier = head
    if earlier:
        context.add(name, earlier)
    steps: list[Step] = []
    for number, exchange in enumerate(exchanges):
        id = f"{label}-{number}"
        context.add(f"{origin}/{id}", exchange.new)
        truth = call_truth(context, f"{origin}/{id}", exchange.output)
        parents = (steps[-1].id,) if steps else ()
        truth = reusing(truth, reuse, earlier)
        steps.append(generate(id, truth, label, parents, exchange.after_s))
        earlier = context.tokens
    return tuple(steps)


def reusing(truth: Truth, reuse: Reuse, earlier: int) -> Truth:
    """The truth of a call of whose prompt ``earlier`` tokens were there before it."""
    match reuse:
        case "blocks":
            return truth
        case "given":
            # The last token is always computed: without it there is no next one.
            cached = min(earlier, truth.prompt_tokens - 1)
            return msgspec.structs.replace(truth, cached_tokens=cached)
        case "none":
            return msgspec.structs.replace(truth, prefix=(), produced=())


def _one_of(things: Sequence[T], streams: Streams) -> T:
    """One of what a file holds; takes one number."""
    return things[int(streams.of("file").integers(len(things)))]


def _times(tokens: int, scale: float) -> int:
    return max(round(tokens * scale), 1)
