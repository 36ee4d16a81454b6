"""Runs over documents: one long document in pieces, and documents that runs embed."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from herasys_rt.workloads.arrivals import Step, Truth
from herasys_rt.workloads.draws import Spread, Streams, fixed
from herasys_rt.workloads.prefix import Context
from herasys_rt.workloads.sources import Content, call_truth, embed, generate, retrieve


class LongDocument(msgspec.Struct, frozen=True):
    """A question to one long document: embed its chunks, map, reduce.

    A map call reads ``chunks_per_call`` chunks and gives ``map_output`` tokens; the
    reduce call reads what the map calls gave. Lengths in tokens.
    """

    kind: str = "long"
    question: int = 12
    instructions: int = 60
    chunks: Spread = Spread(24, 0.6, low=1, high=256)
    chunk_tokens: int = 512
    chunks_per_call: int = 4
    map_output: Spread = fixed(100)
    answer: Spread = Spread(150, 0.6, high=512)

    def content(self, origin: str, streams: Streams) -> Content:
        """See `Source.content`."""
        chunks = self.chunks.count(streams.of("chunks"))
        document = Truth(
            items=chunks,
            tokens=chunks * self.chunk_tokens,
            prompt_key=f"{origin}/document",
        )
        steps = [embed("document", document)]
        given = 0
        for call in range(math.ceil(chunks / self.chunks_per_call)):
            first = call * self.chunks_per_call
            read = min(self.chunks_per_call, chunks - first) * self.chunk_tokens
            output = self.map_output.whole(streams.of("map"))
            given += output
            steps.append(self._call(origin, f"map-{call}", read, output, ("document",)))
        maps = tuple(step.id for step in steps[1:])
        answer = self.answer.whole(streams.of("answer"))
        steps.append(self._call(origin, "reduce", given, answer, maps))
        return Content(self.kind, tuple(steps))

    def _call(
        self, origin: str, id: str, read: int, output: int, parents: tuple[str, ...]
    ) -> Step:
        label, key = id.partition("-")[0], f"{origin}/{id}"
        prompt = Context()
        prompt.add(f"{self.kind}/{label}", self.instructions)
        prompt.add(key, read + self.question)
        return generate(id, call_truth(prompt, key, output), label, parents=parents)


class OwnDocuments(msgspec.Struct, frozen=True):
    """A question to documents that the run brings along and embeds itself.

    Of its ``documents`` each is with probability ``hot_share`` a hot one, by Zipf's law
    with ``exponent`` out of ``hot_documents`` that all runs share (none twice in a run),
    and else one that no other run has. Every document is an embedding step of its own, so
    that equal documents are equal steps. The search over the run's own chunks writes
    nothing, and gives ``top_k`` of them. Lengths in tokens.
    """

    kind: str = "docs"
    question: int = 12
    instructions: int = 60
    documents: int = 4
    chunks: Spread = Spread(64, 0.6, low=1, high=512)
    chunk_tokens: int = 200
    hot_share: float = 0.5
    hot_documents: int = 100
    exponent: float = 1.0
    top_k: int = 12
    answer: Spread = Spread(150, 0.6, high=512)

    def content(self, origin: str, streams: Streams) -> Content:
        """See `Source.content`."""
        names = self._names(origin, streams)
        steps = [self._document(i, name, streams) for i, name in enumerate(names)]
        question = Truth(tokens=self.question, prompt_key=f"{origin}/question")
        steps.append(embed("question", question))
        parents = tuple(step.id for step in steps)
        search = Truth(prompt_key=f"{origin}/search")
        steps.append(retrieve("search", search, parents))
        prompt, key = Context(), f"{origin}/answer"
        prompt.add(f"{self.kind}/answer", self.instructions)
        prompt.add(key, self.top_k * self.chunk_tokens + self.question)
        answer = self.answer.whole(streams.of("answer"))
        truth = call_truth(prompt, key, answer)
        steps.append(generate("answer", truth, parents=("search",)))
        return Content(self.kind, tuple(steps))

    def _names(self, origin: str, streams: Streams) -> list[str]:
        hot = streams.of("hot").random(self.documents) < self.hot_share
        ranks = self._hot_ranks(
            streams.of("ranks"), min(int(hot.sum()), self.hot_documents)
        )
        own = [f"{origin}/document-{i}" for i in range(self.documents - len(ranks))]
        return [f"{self.kind}/hot-{rank}" for rank in ranks] + own

    def _hot_ranks(self, stream: np.random.Generator, count: int) -> list[int]:
        """Distinct ranks. Those with the largest u**(1/weight), u uniform, are a weighted
        draw without replacement (Efraimidis and Spirakis 2006); here by logarithms. Takes
        one number per hot document, however many are drawn."""
        weights = np.arange(1.0, self.hot_documents + 1) ** -self.exponent
        keys = np.log(stream.random(self.hot_documents)) / weights
        return np.argsort(-keys, kind="stable")[:count].tolist()

    def _document(self, number: int, name: str, streams: Streams) -> Step:
        # Of a stream of its own, so that a document is as long in every run.
        chunks = self.chunks.count(streams.below("document").of(name))
        tokens = chunks * self.chunk_tokens
        truth = Truth(items=chunks, tokens=tokens, prompt_key=name)
        return embed(f"document-{number}", truth, "document")
