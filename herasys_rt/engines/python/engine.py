"""User functions behind the engine protocol: verb ``python.call``, and the cheap work on
values that is a step of its own: ``text.chunk``, ``text.value``.

One thread runs an event loop that only waits: a task per item. User code runs in threads
or processes of its own, and asynchronous user code on a loop of its own, so that nothing
of it can keep the engine from answering.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.config import PoolConfig
from herasys_rt.engines.options import read_options
from herasys_rt.engines.protocol import Engine, Item, Outcome, Sink, Snapshot
from herasys_rt.engines.python import output
from herasys_rt.engines.python.calls import (
    Call,
    Functions,
    Loaded,
    attempt,
    bound,
    failure,
    result_of,
)
from herasys_rt.engines.python.options import PythonOptions
from herasys_rt.engines.python.processes import Workers
from herasys_rt.engines.python.shares import Shares
from herasys_rt.engines.python.threads import Threads, UserLoop
from herasys_rt.engines.serving import ItemTasks
from herasys_rt.engines.tokens import TextTokens
from herasys_rt.errors import (
    EnvironmentFaultError,
    ErrorInfo,
    HerasysError,
    InputError,
    NodeError,
)

_log = logging.getLogger(__name__)

_CLOSE_S = 10.0
_LEAST_CPUS = 1.0
_ABANDONED = 64
"""Threads given up after which the process is replaced, once nothing else runs in it."""


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """The engine of one instance of ``pool``; ``dsn`` is unused.

    Errors: `ConfigError` for options it does not know.
    """
    return PythonEngine(pool, read_options(pool, PythonOptions))


class PythonEngine:
    """See `herasys_rt.engines.protocol.Engine` for the contract.

    ``python.call`` takes what `dsl.tool.Tool` lowers a call to; its value is the
    function's result. ``text.chunk`` takes ``text``, ``max_tokens`` and ``overlap``; its
    value is a list of texts, ``[]`` of a blank one. ``text.value`` gives its ``value``: a
    step for what is otherwise computed where it is consumed.
    """

    verbs: frozenset[str] = frozenset({"python.call", "text.chunk", "text.value"})

    def __init__(
        self, pool: PoolConfig, options: PythonOptions, clock: Clock = monotonic_s
    ) -> None:
        self._options = options
        self._clock = clock
        self._most_bytes = int(options.max_result_mb * 1024 * 1024)
        self._functions = Functions()
        # A share below one CPU is a way to place many instances, not to halve a call.
        self._shares = Shares(max(pool.cpus, _LEAST_CPUS), pool.gpus)
        self._places = asyncio.Semaphore(options.workers)
        self._threads = Threads()
        self._workers = Workers(options.workers)
        self._users = UserLoop()
        self._listening = False
        self._items = ItemTasks("python", self._serve, clock)

    # -- the protocol -----------------------------------------------------------------

    def start(self, sink: Sink) -> None:
        """Ready at once; functions and the tokenizer are loaded when they are needed."""
        self._items.start(sink)
        self._listening = True
        output.listen()

    def describe(self) -> dict[str, Any]:
        """``fingerprint``: the version of Python and the tokenizer that chunks."""
        python = ".".join(map(str, sys.version_info[:2]))
        return {
            "fingerprint": f"python {python}, tokenizer {self._tokenizer_name()}",
            "python": python,
            "isolate": self._options.isolate,
            "workers": self._options.workers,
        }

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; returns at once. Errors: `RuntimeStateError` when not started."""
        self._items.submit(items)

    def abort(self, key: str) -> None:
        """Let go of an item at once; its process is killed, its thread left behind."""
        self._items.abort(key)

    def snapshot(self) -> Snapshot:
        """Items at work and items waiting; at fault when too many threads were left."""
        fault = None
        left = self._threads.abandoned + self._users.stuck
        if left >= _ABANDONED and not (self._items.running or self._items.waiting):
            fault = ErrorInfo(
                "tools_stuck",
                f"{left} calls of user functions never ended",
                "Bound what they wait for, or run them in processes (isolate: process).",
                retryable=True,
            )
        return Snapshot(self._items.running, self._items.waiting, fault=fault)

    def close(self) -> None:
        """Abort what is under way, report it, end every process."""
        self._items.close(self._shut)
        if self._listening:
            self._listening = False
            output.leave()

    # -- items (in the loop's thread) -------------------------------------------------

    async def _shut(self) -> None:
        await self._workers.close()
        await self._users.close()

    async def _serve(self, item: Item) -> Outcome:
        if item.verb == "text.chunk":
            return await self._chunk(item)
        if item.verb == "python.call":
            return await self._call(item)
        if item.verb == "text.value":
            self._items.begun(item.key)
            return Outcome(value=item.args.get("value"), usage={"items": 1})
        raise NodeError(
            f"engine python cannot do {item.verb!r}; it does "
            f"{', '.join(sorted(self.verbs))}",
            hint="Give the operator the verb of an engine that does it.",
            code="unknown_verb",
        )

    async def _call(self, item: Item) -> Outcome:
        call = Call.of(item.args)
        async with self._shares.held(call.name, call.cpus, call.gpus):
            if self._options.isolate == "process":
                value = await self._in_process(call, item.key)
            else:
                value = await self._in_thread(call, item.key)
        return Outcome(value=value, usage={"items": 1})

    async def _in_process(self, call: Call, key: str) -> Any:
        async with self._workers.lent() as worker:
            self._items.begun(key)
            async with self._bounded(call):
                return await worker.call(call, self._most_bytes)

    async def _in_thread(self, call: Call, key: str) -> Any:
        name = f"tool {call.name}"
        loaded = self._functions.known(call)
        if loaded is None:
            async with self._places, self._bounded(call):
                loaded = await self._threads.run(lambda: self._functions.load(call), name)
        if not loaded.asynchronous:
            async with self._places:
                self._items.begun(key)
                async with self._bounded(call):
                    return await self._threads.run(lambda: self._attempted(call), name)
        self._items.begun(key)
        async with self._bounded(call):
            arguments = await self._threads.run(lambda: bound(loaded, call), name)
            value = await self._users.run(lambda: _awaited(loaded, call, *arguments))
            return await self._threads.run(
                lambda: result_of(value, loaded, call, self._most_bytes), name
            )

    @asynccontextmanager
    async def _bounded(self, call: Call) -> AsyncGenerator[None]:
        """No longer than the pool allows. Errors: `NodeError` (``tool_timeout``)."""
        try:
            async with asyncio.timeout(self._options.timeout_s):
                yield
        except TimeoutError:
            raise _TooLongError(
                f"tool {call.name!r} did not end within {self._options.timeout_s:g} s",
                hint="Bound what it waits for, or raise the python pool's option "
                "timeout_s.",
            ) from None

    def _attempted(self, call: Call) -> Any:
        with output.spoken_by(call.name):
            return attempt(call, self._functions, self._most_bytes)

    # -- chunking ---------------------------------------------------------------------

    async def _chunk(self, item: Item) -> Outcome:
        async with self._places:
            self._items.begun(item.key)
            chunks = await self._threads.run(lambda: self._chunked(item.args), "chunk")
        return Outcome(value=chunks, usage={"items": 1, "chunks": len(chunks)})

    def _chunked(self, args: dict[str, Any]) -> list[str]:
        from herasys_rt.engines.chunking import chunk_document

        text = args.get("text")
        if not isinstance(text, str):
            raise InputError(
                f"text must be a text, not {type(text).__name__}",
                hint="Chunk a text; of a list, each with map_over.",
            )
        chunks = chunk_document(
            {"id": "text", "text": text},
            max_tokens=args.get("max_tokens", 200),
            overlap=args.get("overlap", 20),
            offsets=self._tokens.offsets,
        )
        return [chunk["text"] for chunk in chunks]

    @functools.cached_property
    def _tokens(self) -> TextTokens:
        from herasys_rt.engines.models import resolve_model

        return TextTokens.load(resolve_model(self._options.tokenizer).path)

    def _tokenizer_name(self) -> str:
        """What the chunks depend on; a pool without that model still calls functions."""
        from herasys_rt.engines.models import resolve_model

        try:
            return resolve_model(self._options.tokenizer).fingerprint
        except (HerasysError, EnvironmentFaultError):
            return "none"


async def _awaited(
    loaded: Loaded, call: Call, positional: list[Any], named: dict[str, Any]
) -> Any:
    """The function's own result, on the users' loop."""
    with output.spoken_by(call.name):
        try:
            return await loaded.function(*positional, **named)
        except asyncio.CancelledError as e:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise failure(call.name, e) from e  # its own, not ours
        except BaseException as e:
            raise failure(call.name, e) from e


class _TooLongError(NodeError):
    """A call took longer than the pool allows."""

    code = "tool_timeout"
    retryable = True
