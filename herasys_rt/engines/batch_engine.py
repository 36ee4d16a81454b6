"""The shell of an engine that puts batches of items through one loaded model.

What such an engine adds of its own: which verbs it has, what an item's pieces are, and
how the model computes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from herasys_rt.engines.batching import BatchLoop, Job, Piece, Plan, spread
from herasys_rt.engines.protocol import Item, Sink, Snapshot
from herasys_rt.errors import HerasysError, NodeError


class Model(Protocol):
    """A model as far as its engine's shell knows it. Used from one thread only."""

    fingerprint: str
    """Changes when equal inputs may get other results."""
    max_tokens: int
    """Longest input in tokens; the model cuts what is longer."""

    def load(self) -> None:
        """Load the model. Errors: `EnvironmentFaultError` and its kinds."""
        ...

    def close(self) -> None:
        """Free the model; called after the last use."""
        ...


M = TypeVar("M", bound=Model)


class BatchEngine(ABC, Generic[M]):
    """An `Engine` around one model, which its own thread loads and uses.

    ``batch_limit`` bounds the pieces of one forward pass. An item that cannot be planned
    fails alone; ``invalid_argument`` is its error for a verb that the engine has not.
    """

    verbs: frozenset[str]

    def __init__(self, model: M, *, name: str, batch_limit: int) -> None:
        self._model = model
        self._limit = batch_limit
        self._loop = BatchLoop(name, self._work)

    def start(self, sink: Sink) -> None:
        """Load the model on the engine's thread; blocks."""
        self._loop.start(sink, self._model.load)

    def describe(self) -> dict[str, Any]:
        """``fingerprint`` and ``max_tokens`` (also as ``context_tokens``)."""
        return {
            "fingerprint": self._model.fingerprint,
            "max_tokens": self._model.max_tokens,
            "context_tokens": self._model.max_tokens,
        }

    def submit(self, items: Sequence[Item]) -> None:
        """Take one batch; its texts share forward passes."""
        self._loop.submit(items)

    def abort(self, key: str) -> None:
        """Stop an item: at once when not begun, else after the current sub-batch."""
        self._loop.abort(key)

    def snapshot(self) -> Snapshot:
        """Items begun and items waiting."""
        return self._loop.snapshot()

    def close(self) -> None:
        """Stop the thread and free the model."""
        self._loop.close()
        self._model.close()

    @abstractmethod
    def _plan(self, job: Job) -> Plan:
        """What must be computed for an item. Errors: `HerasysError`, the item's own."""

    @abstractmethod
    def _compute(self, pieces: list[Piece]) -> Sequence[Any]:
        """One result per piece, in one forward pass; the pieces are of one group."""

    def _work(self, jobs: Sequence[Job]) -> None:
        plans: list[Plan] = []
        for job in jobs:
            if not job.live:
                continue
            try:
                if job.item.verb not in self.verbs:
                    raise bad_argument(f"this engine has no verb {job.item.verb!r}")
                plans.append(self._plan(job))
            except HerasysError as e:
                job.fail(e)
        spread(plans, self._limit, self._compute)


def bad_argument(problem: str) -> NodeError:
    """An argument of a verb that cannot be worked on."""
    return NodeError(problem, hint="See the operator's ports.", code="invalid_argument")
