"""The inside of a batch engine: one thread owns the model, every item ends exactly once.

`BatchLoop` takes batches and reports; `spread` runs the pieces of many items through a
model in sub-batches, so that items share forward passes while each keeps its own outcome.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from herasys_rt.engines.protocol import Item, Outcome, Sink, Snapshot
from herasys_rt.errors import HerasysError, InternalError, NodeError, RuntimeStateError


class Job:
    """One item inside a loop. It ends by the first of `succeed`, `fail`, an abort."""

    def __init__(self, item: Item, loop: BatchLoop) -> None:
        self.item = item
        self._loop = loop
        self._begun_s = time.monotonic()
        self.aborted = False
        """Somebody asked to stop; the loop reports it once the engine lets go."""

    @property
    def live(self) -> bool:
        """Whether work on it still makes sense: not ended, not aborted."""
        return not self.aborted and self._loop.holds(self)

    def begin(self) -> None:
        """Work on the item starts now."""
        self._begun_s = time.monotonic()

    def succeed(
        self,
        value: Any,
        *,
        usage: dict[str, int],
        sources: list[dict[str, Any]] | None = None,
    ) -> None:
        """End with a value; ``run_s`` is the time since the item's batch began."""
        run_s = time.monotonic() - self._begun_s
        outcome = Outcome(value=value, usage=usage, sources=sources or [], run_s=run_s)
        self._loop.end(self, outcome)

    def fail(self, error: HerasysError) -> None:
        """End with an error of this item alone."""
        run_s = time.monotonic() - self._begun_s
        self._loop.end(self, Outcome(error=error.info(), run_s=run_s))

    def stop(self) -> None:
        """End without value or error: it was aborted."""
        self._loop.end(self, Outcome(aborted=True))


class BatchLoop:
    """A thread that does one submitted batch after the other with ``work``.

    ``work(jobs)`` runs on that thread and should end every job; whatever it leaves open or
    raises becomes the outcome of the jobs concerned. It looks at `Job.live` between steps.
    `Sink` methods are called outside of all locks and must not call `close`.
    """

    def __init__(self, name: str, work: Callable[[Sequence[Job]], None]) -> None:
        self._name = name
        self._work = work
        self._lock = threading.Condition()
        self._batches: deque[list[Job]] = deque()
        self._jobs: dict[str, Job] = {}
        self._begun: set[str] = set()
        self._reporting = 0
        self._closed = False
        self._sink: Sink | None = None
        self._thread: threading.Thread | None = None

    def start(self, sink: Sink, load: Callable[[], None]) -> None:
        """Start the thread and ``load`` the model on it; blocks, raises what it raised."""
        ready = threading.Event()
        failure: list[BaseException] = []
        self._sink = sink

        def run() -> None:
            try:
                load()
            except BaseException as e:  # handed to the caller below, whatever it is
                failure.append(e)
                return
            finally:
                ready.set()
            self._serve()

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()
        ready.wait()
        if failure:
            self._thread.join()
            raise failure[0]

    def submit(self, items: Sequence[Item]) -> None:
        """Queue one batch. Errors: `RuntimeStateError` when the loop is not running."""
        batch = [Job(item, self) for item in items]
        with self._lock:
            if self._closed or self._thread is None:
                raise RuntimeStateError(
                    f"{self._name} is not running", hint="Start it before use."
                )
            twice = [job.item.key for job in batch if job.item.key in self._jobs]
            if twice:
                raise InternalError(f"{self._name}: keys already taken: {twice}")
            self._jobs.update((job.item.key, job) for job in batch)
            self._batches.append(batch)
            self._lock.notify_all()

    def abort(self, key: str) -> None:
        """Stop an item: at once when it has not begun, else at the next step of work."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                return
            job.aborted = True
            begun = key in self._begun
        if not begun:
            job.stop()

    def snapshot(self) -> Snapshot:
        """Items begun and items queued."""
        with self._lock:
            begun = len(self._begun)
            return Snapshot(running=begun, waiting=len(self._jobs) - begun)

    def close(self) -> None:
        """Stop after the current step, drop the rest; nothing is reported afterwards."""
        with self._lock:
            self._closed = True
            for job in self._jobs.values():
                job.aborted = True
            self._jobs.clear()
            self._begun.clear()
            self._batches.clear()
            self._lock.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            self._lock.wait_for(lambda: self._reporting == 0)

    def holds(self, job: Job) -> bool:
        """Whether the job has not ended yet."""
        return self._jobs.get(job.item.key) is job

    def end(self, job: Job, outcome: Outcome) -> None:
        """Report a job's outcome unless it has ended already."""
        with self._lock:
            if not self.holds(job):
                return
            del self._jobs[job.item.key]
            self._begun.discard(job.item.key)
        self._report(lambda sink: sink.finished(job.item.key, outcome))

    def _report(self, tell: Callable[[Sink], None]) -> None:
        with self._lock:
            if self._closed or self._sink is None:
                return
            self._reporting += 1
        try:
            tell(self._sink)
        finally:
            with self._lock:
                self._reporting -= 1
                self._lock.notify_all()

    def _serve(self) -> None:
        while (batch := self._next_batch()) is not None:
            for job in batch:
                job.begin()
                self._report(lambda sink, key=job.item.key: sink.started(key))
            try:
                self._work(batch)
                problem = InternalError(f"{self._name} left an item without an outcome")
            except Exception as e:
                problem = as_item_error(e, self._name)
            for job in batch:
                if job.aborted:
                    job.stop()
                else:
                    job.fail(problem)

    def _next_batch(self) -> list[Job] | None:
        """The jobs of the next batch that are still wanted; None when closed."""
        with self._lock:
            while True:
                self._lock.wait_for(lambda: self._batches or self._closed)
                if self._closed:
                    return None
                batch = [j for j in self._batches.popleft() if j.live]
                if batch:
                    self._begun.update(job.item.key for job in batch)
                    return batch


@dataclass(slots=True)
class Piece:
    """One text (or pair) of an item. ``group``: pieces that may share a forward pass."""

    payload: Any
    length: int
    group: str = ""
    label: str = "text"
    """How messages name the piece, e.g. ``text[3]``."""


@dataclass(slots=True)
class Plan:
    """An item's pieces and what to do with their results, given in the pieces' order."""

    job: Job
    pieces: list[Piece]
    assemble: Callable[[list[Any]], None]
    results: dict[int, Any] = field(default_factory=dict[int, Any])

    def deliver(self, at: int, result: Any) -> None:
        """Take the result of piece ``at``; the last one assembles the outcome."""
        self.results[at] = result
        if len(self.results) == len(self.pieces):
            self.finish()

    def finish(self) -> None:
        """Assemble the outcome; an error in doing so is the item's own."""
        try:
            self.assemble([self.results[i] for i in range(len(self.pieces))])
        except Exception as e:
            self.job.fail(as_item_error(e, "the engine"))


def spread(
    plans: Sequence[Plan],
    limit: int,
    compute: Callable[[list[Piece]], Sequence[Any]],
) -> None:
    """Run all pieces through ``compute`` in sub-batches of at most ``limit``.

    Pieces are sorted by length, so that little is padded, shortest first, so that a query
    does not wait for a long document of its batch. When a sub-batch raises, its pieces are
    tried one by one: only the culprit's item fails. Pieces of items that have ended or
    were aborted are skipped.
    """
    for plan in plans:
        if not plan.pieces:
            plan.finish()
    for sub in _sub_batches(plans, limit):
        wanted = [(plan, at) for plan, at in sub if plan.job.live]
        if wanted:
            _run(wanted, compute)


def _sub_batches(plans: Sequence[Plan], limit: int) -> Iterator[list[tuple[Plan, int]]]:
    places = [(plan, at) for plan in plans for at in range(len(plan.pieces))]
    places.sort(key=lambda p: (p[0].pieces[p[1]].length, p[0].pieces[p[1]].group))
    open_subs: dict[str, list[tuple[Plan, int]]] = {}
    for plan, at in places:
        group = plan.pieces[at].group
        sub = open_subs.setdefault(group, [])
        sub.append((plan, at))
        if len(sub) == limit:
            yield open_subs.pop(group)
    yield from open_subs.values()


def _run(
    wanted: list[tuple[Plan, int]], compute: Callable[[list[Piece]], Sequence[Any]]
) -> None:
    try:
        results = compute([plan.pieces[at] for plan, at in wanted])
        if len(results) != len(wanted):
            raise InternalError(f"{len(results)} results for {len(wanted)} pieces")
    except Exception as e:
        if len(wanted) > 1:
            for one in wanted:
                if one[0].job.live:
                    _run([one], compute)
            return
        plan, at = wanted[0]
        plan.job.fail(as_item_error(e, plan.pieces[at].label))
        return
    for (plan, at), result in zip(wanted, results, strict=True):
        if plan.job.live:
            plan.deliver(at, result)


def as_item_error(error: Exception, where: str) -> HerasysError:
    """The error an item reports for an exception met while working on it."""
    if isinstance(error, HerasysError):
        return error
    failed = NodeError(
        f"{where}: the model failed with {type(error).__name__}: {error}",
        hint="The other items of the batch went on; look at this input.",
        code="engine_failed",
    )
    failed.__cause__ = error
    return failed
