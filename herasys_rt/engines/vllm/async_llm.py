"""vLLM with its own engine process: the public `AsyncLLM` on an event loop of ours."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from herasys_rt.engines.protocol import Snapshot
from herasys_rt.engines.vllm.backend import (
    Progress,
    Receive,
    Request,
    failed,
    limits_of,
    progress_of,
    refused,
    sampling_params,
)
from herasys_rt.errors import ErrorInfo

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger(__name__)

_GUARD = "herasys_rt.engines.vllm.guard.Guarded"


class AsyncBackend:
    """`Backend` over `AsyncLLM`; see there for the promises.

    ``args`` are keyword arguments of `AsyncEngineArgs`. Every request is a task of the
    loop; its end, however it came about, is reported by the task's done callback.
    """

    def __init__(self, args: dict[str, Any]) -> None:
        self._args: dict[str, Any] = {**args, "worker_extension_cls": _GUARD}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, Progress] = {}
        self._llm: AsyncLLM | None = None
        self._stats: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._receive: Receive = lambda _: None
        self._thread: threading.Thread | None = None

    def start(self, receive: Receive) -> Any:
        """Load in the owning thread."""
        self._receive = receive
        ready: Future[Any] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(ready)), name="vllm-async", daemon=True
        )
        self._thread.start()
        return ready.result()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._call(self._begin, request)

    def abort(self, key: str) -> None:
        """Queue an abort."""
        self._call(self._cancel, key)

    def snapshot(self) -> Snapshot:
        """What vLLM's own scheduler counts."""
        stats, fault = self._stats, self._fault()
        if stats is None:
            return Snapshot(len(self._tasks), 0, fault=fault)
        return Snapshot(
            stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage, fault
        )

    def limits(self) -> dict[str, int]:
        """What vLLM settled on."""
        return limits_of(self._llm.vllm_config) if self._llm is not None else {}

    def close(self) -> None:
        """End the thread and free the model."""
        if self._thread is not None:
            if self._stop is not None:
                self._call(self._stop.set)
            self._thread.join()
            self._thread = None

    def _call(self, what: Any, *args: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *args)

    def _fault(self) -> ErrorInfo | None:
        if self._llm is not None and self._llm.errored:
            return failed("vLLM's engine process died")
        return None

    async def _run(self, ready: Future[Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            self._llm = self._load()
        except BaseException as e:
            ready.set_exception(e)
            return
        ready.set_result(self._llm.get_tokenizer())
        try:
            await self._stop.wait()
            for task in list(self._tasks.values()):
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        finally:
            self._llm.shutdown()

    def _load(self) -> AsyncLLM:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.metrics.loggers import StatLoggerBase

        backend = self

        class LastStats(StatLoggerBase):
            """Keeps the scheduler's latest counts for `snapshot`."""

            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
                if scheduler_stats is not None:
                    backend._stats = scheduler_stats

            def log_engine_initialized(self) -> None:
                pass

        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(**self._args), stat_loggers=[LastStats]
        )

    def _begin(self, request: Request) -> None:
        task = asyncio.get_running_loop().create_task(self._follow(request))
        self._tasks[request.key] = task
        task.add_done_callback(lambda done: self._end(request.key, done))

    def _cancel(self, key: str) -> None:
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    async def _follow(self, request: Request) -> None:
        from vllm.inputs.engine import tokens_input

        assert self._llm is not None
        prompt = tokens_input(request.token_ids, cache_salt=request.salt or None)
        async for out in self._llm.generate(prompt, sampling_params(request), request.key):
            news = progress_of(out, request)
            if news.reason:
                self._ended[request.key] = news
            else:
                self._receive([news])

    def _end(self, key: str, task: asyncio.Task[None]) -> None:
        """The one place that ends a request: with its last output, or with why not."""
        del self._tasks[key]
        last = self._ended.pop(key, None)
        if last is None and task.cancelled():
            last = Progress(key, reason="abort")
        error = None if task.cancelled() else task.exception()
        if last is None:
            last = Progress(key, reason="error", error=_info(error))
        self._receive([last])


def _info(error: BaseException | None) -> ErrorInfo:
    from vllm.exceptions import VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, VLLMClientError | ValueError | TypeError):
        return refused(error)
    if isinstance(error, EngineDeadError):
        return failed("vLLM's engine process died")
    cause = error.__cause__ if error is not None and error.__cause__ else error
    return failed(f"vLLM failed: {type(cause).__name__}: {cause}")
