"""An engine that executes nothing and takes the time that its options say.

For benchmarks of the control path, capacity planning and tests; never a default, and
its description says ``modelled``. Values are of the right type and depend on nothing
but the item's arguments, so two runs agree.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic

from herasys_rt.clock import monotonic_s
from herasys_rt.config import PoolConfig
from herasys_rt.engines import modelled_tools
from herasys_rt.engines.options import EngineOptions, read_options
from herasys_rt.engines.protocol import Engine, Item, Outcome, Sink, Snapshot
from herasys_rt.engines.slices import SLICE_S
from herasys_rt.engines.structured import form_of, modelled_value
from herasys_rt.errors import ErrorInfo, NodeError
from herasys_rt.graph import codec


class ModelledOptions(EngineOptions):
    """Times in seconds. A batch takes ``base_s`` and ``per_item_s`` per item and ends as
    one; each generated text takes ``base_s``, ``per_item_s`` and ``per_token_s`` per
    token of its own.

    ``tokens`` is the length of a generated text, ``dimension`` that of a vector. Items
    whose arguments contain the text ``fail`` fail.
    """

    base_s: float = pydantic.Field(default=0.0, ge=0)
    per_item_s: float = pydantic.Field(default=0.0, ge=0)
    per_token_s: float = pydantic.Field(default=0.0, ge=0)
    tokens: int = pydantic.Field(default=1, ge=1)
    dimension: int = pydantic.Field(default=384, ge=1)
    fail: str | None = None


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """An engine for a pool with ``engine: modelled``. ``dsn`` is unused.

    Errors: `ConfigError` for unknown or impossible options.
    """
    return ModelledEngine(pool, read_options(pool, ModelledOptions))


@dataclass(frozen=True, slots=True)
class _Step:
    """Something due: a piece of a text, or with ``outcome`` the end of an item."""

    key: str
    text: str = ""
    tokens: int = 0
    outcome: Outcome | None = None


class ModelledEngine:
    """`Engine` for every verb. With all times zero an item ends inside `submit`."""

    verbs = frozenset(
        {
            *("llm.generate", "embed", "rerank"),
            *("pg.search", "pg.text", "pg.hybrid", "pg.write", "pg.delete"),
            *modelled_tools.MAKERS,
        }
    )

    def __init__(self, pool: PoolConfig, options: ModelledOptions) -> None:
        self._options = options
        self._name = pool.model or pool.name
        self._instant = not (options.base_s or options.per_item_s or options.per_token_s)
        self._revisions: dict[str, int] = {}
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._due: list[tuple[float, int, _Step]] = []
        self._steps = 0
        self._closed = False
        self._timer: threading.Thread | None = None
        self._makers: dict[str, Callable[[dict[str, Any]], Outcome]] = {
            "llm.generate": self._generate,
            "embed": self._embed,
            "rerank": _rerank,
            "pg.search": self._search,
            "pg.text": self._search,
            "pg.hybrid": self._search,
            "pg.write": self._write,
            "pg.delete": self._delete,
            **modelled_tools.MAKERS,
        }

    def start(self, sink: Sink) -> None:
        """Ready at once."""
        self._sink = sink
        if not self._instant:
            self._timer = threading.Thread(target=self._run, name="modelled", daemon=True)
            self._timer.start()

    def describe(self) -> dict[str, Any]:
        """``modelled`` is True; ``fingerprint`` names what the values depend on."""
        size = f"{self._options.tokens}t{self._options.dimension}d"
        return {
            "modelled": True,
            "fingerprint": f"modelled:{self._name}:{size}",
            "context_tokens": 1_000_000,
            "dimensions": self._options.dimension,
        }

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; with all times zero they have ended when this returns."""
        if self._closed:
            return
        if self._instant:
            for item in items:
                outcome = self._outcome(item)
                if _is_read(item, outcome):
                    self._sink.piece(item.key, outcome.value, self._options.tokens)
                self._sink.finished(item.key, outcome)
            return
        with self._changed:
            batch_s = self._options.base_s + self._options.per_item_s * len(items)
            for item in items:
                self._running.add(item.key)
                self._sink.started(item.key)
                self._plan(item, batch_s)
            self._changed.notify()

    def abort(self, key: str) -> None:
        """Stop an item; its outcome says ``aborted``."""
        with self._changed:
            if key in self._running:
                self._running.discard(key)
                self._sink.finished(key, Outcome(aborted=True))

    def snapshot(self) -> Snapshot:
        """How many items are taking their time."""
        return Snapshot(len(self._running), 0)

    def close(self) -> None:
        """End without reporting what still runs. Idempotent."""
        with self._changed:
            self._closed = True
            self._running.clear()
            self._due.clear()
            self._changed.notify()
        if self._timer is not None:
            self._timer.join()
            self._timer = None

    def _plan(self, item: Item, batch_s: float) -> None:
        """Put an item's pieces and its end into the heap."""
        now = monotonic_s()
        outcome = self._outcome(item)
        took_s = batch_s
        if outcome.error is None and item.verb == "llm.generate":
            first_s = self._options.base_s + self._options.per_item_s
            count = outcome.usage["completion_tokens"] // form_of(item.args).n
            took_s = first_s + self._options.per_token_s * count
            if _is_read(item, outcome):
                self._plan_pieces(item.key, outcome.value, now + took_s, count)
        ended = Outcome(
            value=outcome.value,
            error=outcome.error,
            usage=outcome.usage,
            sources=outcome.sources,
            revisions=outcome.revisions,
            truncated=outcome.truncated,
            run_s=took_s,
        )
        self._push(now + took_s, _Step(item.key, outcome=ended))

    def _plan_pieces(self, key: str, text: str, end_s: float, count: int) -> None:
        per_token_s = self._options.per_token_s
        step = max(1, math.ceil(SLICE_S / per_token_s)) if per_token_s else count
        words = text.split(" ")
        for at in range(0, count, step):
            part = words[at : at + step]
            lead = " " if at else ""
            # Counted back from the end, so that rounding puts no piece behind it.
            due_s = end_s - per_token_s * max(count - at - len(part), 0)
            self._push(due_s, _Step(key, lead + " ".join(part), len(part)))

    def _push(self, due_s: float, step: _Step) -> None:
        self._steps += 1
        heapq.heappush(self._due, (due_s, self._steps, step))

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                while self._due and self._due[0][0] <= monotonic_s():
                    self._take(heapq.heappop(self._due)[2])
                wait_s = self._due[0][0] - monotonic_s() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)

    def _take(self, step: _Step) -> None:
        if step.key not in self._running:
            return
        if step.outcome is None:
            self._sink.piece(step.key, step.text, step.tokens)
        else:
            self._running.discard(step.key)
            self._sink.finished(step.key, step.outcome)

    def _outcome(self, item: Item) -> Outcome:
        make = self._makers.get(item.verb)
        if make is None:
            return _failed(f"the modelled engine has no verb {item.verb!r}", "unknown_verb")
        fail = self._options.fail
        if fail is not None and fail in repr(item.args):
            return _failed(f"modelled failure: the arguments contain {fail!r}")
        try:
            return make(item.args)
        except NodeError as e:
            return Outcome(error=e.info())
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            return _failed(f"arguments of {item.verb} are wrong: {e!r}", "invalid_argument")

    def _generate(self, args: dict[str, Any]) -> Outcome:
        form = form_of(args)
        most = args.get("max_tokens") or self._options.tokens
        count = min(self._options.tokens, most)
        text = f"modelled:{_digest(args)[:8]}" + " word" * (count - 1)
        try:
            value = modelled_value(form, text, _picker(args))
        except ValueError as e:
            raise NodeError(
                f"the modelled engine knows no value of the schema: {e}",
                code="no_example",
                hint="Give that place of the schema 'examples', or use an engine with a "
                "model.",
            ) from e
        sources = [
            {key: chunk.get(key) for key in ("id", "source", "score", "text")}
            for value in args.values()
            if isinstance(value, list)
            for chunk in value  # pyright: ignore[reportUnknownVariableType]
            if isinstance(chunk, dict) and "text" in chunk and "id" in chunk
        ]
        return Outcome(
            value=value,
            usage={
                "prompt_tokens": 1,
                "completion_tokens": count * form.n,
                "cached_tokens": 0,
            },
            sources=sources,
            truncated=form.is_free and count < self._options.tokens,
        )

    def _embed(self, args: dict[str, Any]) -> Outcome:
        text = args["text"]
        if isinstance(text, str):
            return Outcome(value=self._vectors([text])[0], usage={"items": 1})
        return Outcome(value=self._vectors(list(text)), usage={"items": len(text)})

    def _vectors(self, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        rows = np.empty((len(texts), self._options.dimension), dtype=np.float32)
        for i, text in enumerate(texts):
            noise = hashlib.shake_256(text.encode()).digest(self._options.dimension)
            row = np.frombuffer(noise, dtype=np.uint8) - np.float32(127.5)
            rows[i] = row / np.sqrt(row.dot(row))
        return rows

    def _search(self, args: dict[str, Any]) -> Outcome:
        name, most = args["collection"], args.get("top_k") or 4
        chunks = [
            {
                "id": f"{name}-{i}",
                "text": f"modelled chunk {i} of {name}",
                "source": name,
                "score": 1.0 / (i + 1),
            }
            for i in range(most)
        ]
        revision = self._revisions.get(name, 0)
        return Outcome(
            value=chunks,
            usage={"items": 1},
            sources=chunks,
            revisions={name: revision},
        )

    def _write(self, args: dict[str, Any]) -> Outcome:
        chunks = args["embedded"]["chunks"]
        documents = len({chunk.get("source") for chunk in chunks})
        return self._changed_collection(args["collection"], documents, len(chunks))

    def _delete(self, args: dict[str, Any]) -> Outcome:
        ids = args.get("ids")
        gone = 1 if ids is None else len(ids)
        return self._changed_collection(args["collection"], int(ids is None), gone)

    def _changed_collection(self, name: str, documents: int, chunks: int) -> Outcome:
        revision = self._revisions[name] = self._revisions.get(name, 0) + 1
        value = {
            "collection": name,
            "documents": documents,
            "chunks": chunks,
            "revision": revision,
        }
        self._sink.collection_changed(name, revision)
        return Outcome(value=value, usage={"items": 1}, revisions={name: revision})


def _is_read(item: Item, outcome: Outcome) -> bool:
    """Whether the item's value is a text that somebody reads while it is made."""
    if not item.stream or outcome.error is not None or item.verb != "llm.generate":
        return False
    return form_of(item.args).is_text


def _rerank(args: dict[str, Any]) -> Outcome:
    query, chunks = args["query"], args["chunks"]
    scores = [int(_digest([query, chunk["text"]])[:8], 16) / 2**32 for chunk in chunks]
    return Outcome(value=scores, usage={"items": len(scores)})


def _picker(args: dict[str, Any]) -> Callable[[int], int]:
    """Choices that depend on the arguments alone."""
    seed, asked = _digest(args), itertools.count()

    def pick(below: int) -> int:
        drawn = hashlib.sha256(f"{seed}.{next(asked)}".encode()).digest()
        return int.from_bytes(drawn[:8], "big") % below

    return pick


def _digest(value: Any) -> str:
    return hashlib.sha256(codec.encode(value)).hexdigest()


def _failed(problem: str, code: str = "modelled_failure") -> Outcome:
    return Outcome(
        error=ErrorInfo(code, problem, "Correct the item or the pool's options.")
    )
