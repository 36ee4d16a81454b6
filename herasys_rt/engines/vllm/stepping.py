"""vLLM inside this process: one thread owns the engine and steps it.

Commands arrive by a queue and are applied between steps, in order. With nothing to do
the thread blocks on the queue. An exception out of a step ends every request and the
engine: the state of its KV cache is unknown from there on.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
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
from herasys_rt.errors import EnvironmentFaultError, ErrorInfo

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

log = logging.getLogger(__name__)

_occupied = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Abort:
    key: str


@dataclass(frozen=True, slots=True)
class _Close:
    pass


_Command = Request | _Abort | _Close


class Stepping:
    """`Backend` over `LLMEngine`; see there for the promises.

    ``args`` are keyword arguments of `EngineArgs`; ``threads`` bounds torch when it was
    imported before the environment could. A process hosts one at a time: vLLM's
    parallel state is the process's, and closing one engine takes it from all.
    """

    def __init__(self, args: dict[str, Any], threads: int) -> None:
        self._args = args
        self._threads = threads
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._running: dict[str, Request] = {}
        self._engine: LLMEngine | None = None
        self._scheduler: Any = None
        self._fault: ErrorInfo | None = None
        self._receive: Receive = lambda _: None
        self._thread: threading.Thread | None = None

    def start(self, receive: Receive) -> Any:
        """Load in the owning thread."""
        if not _occupied.acquire(blocking=False):
            raise EnvironmentFaultError(
                "this process hosts an in-process vLLM engine already",
                hint="Give every vLLM engine a process of its own.",
            )
        self._receive = receive
        ready: Future[Any] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="vllm-stepping", daemon=True
        )
        self._thread.start()
        return ready.result()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._commands.put(request)

    def abort(self, key: str) -> None:
        """Queue an abort."""
        self._commands.put(_Abort(key))

    def snapshot(self) -> Snapshot:
        """What vLLM's own scheduler counts."""
        scheduler = self._scheduler
        if scheduler is None:
            return Snapshot(0, 0, fault=self._fault)
        return Snapshot(
            len(scheduler.running),
            len(scheduler.waiting) + self._commands.qsize(),
            scheduler.kv_cache_manager.usage,
            self._fault,
        )

    def limits(self) -> dict[str, int]:
        """What vLLM settled on."""
        return limits_of(self._engine.vllm_config) if self._engine is not None else {}

    def close(self) -> None:
        """End the thread and free the model."""
        if self._thread is not None:
            self._commands.put(_Close())
            self._thread.join()
            self._thread = None

    def _run(self, ready: Future[Any]) -> None:
        try:
            try:
                self._engine = self._load()
            except BaseException as e:
                ready.set_exception(e)
                return
            ready.set_result(self._engine.get_tokenizer())
            try:
                self._serve(self._engine)
            finally:
                self._unload(self._engine)
        finally:
            _occupied.release()

    def _load(self) -> LLMEngine:
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        engine = LLMEngine.from_engine_args(
            EngineArgs(**self._args), enable_multiprocessing=False
        )
        self._scheduler = engine.engine_core.engine_core.scheduler  # pyright: ignore[reportAttributeAccessIssue]
        return engine

    def _unload(self, engine: LLMEngine) -> None:
        self._scheduler = None
        self._engine = None
        engine.renderer.shutdown()
        core: Any = engine.engine_core.engine_core  # pyright: ignore[reportAttributeAccessIssue]
        engine.engine_core.shutdown()
        core.structured_output_manager.executor.shutdown()  # vLLM leaves its threads

    def _serve(self, engine: LLMEngine) -> None:
        """Apply commands and step until told to close."""
        while self._apply_waiting(engine):
            if self._fault is not None or not self._running:
                continue
            try:
                outputs = engine.step()
            except Exception as e:
                log.exception("a step of vLLM failed")
                self._die(f"a step of vLLM failed: {type(e).__name__}: {e}")
                continue
            news = [
                progress_of(out, self._running[out.request_id])  # pyright: ignore[reportArgumentType]
                for out in outputs
                if out.request_id in self._running
            ]
            for ended in news:
                if ended.reason:
                    del self._running[ended.key]
            if news:
                self._receive(news)

    def _apply_waiting(self, engine: LLMEngine) -> bool:
        """Apply every command that has arrived, waiting for one when there is nothing
        to step. False: close."""
        idle = not self._running or self._fault is not None
        while True:
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            idle = False
            match command:
                case Request():
                    self._admit(engine, command)
                case _Abort(key):
                    self._end(engine, key)
                case _Close():
                    return False

    def _admit(self, engine: LLMEngine, request: Request) -> None:
        from vllm.inputs.engine import tokens_input

        if self._fault is not None:
            self._receive([Progress(request.key, reason="error", error=self._fault)])
            return
        try:
            engine.add_request(
                request.key,
                tokens_input(request.token_ids, cache_salt=request.salt or None),
                sampling_params(request),
            )
        except Exception as e:
            self._receive([Progress(request.key, reason="error", error=refused(e))])
            return
        self._running[request.key] = request

    def _end(self, engine: LLMEngine, key: str) -> None:
        if key not in self._running:
            return
        del self._running[key]
        try:
            engine.abort_request([key])
        except Exception as e:
            log.exception("vLLM could not abort a request")
            self._die(f"aborting a request failed: {type(e).__name__}: {e}")
        self._receive([Progress(key, reason="abort")])

    def _die(self, problem: str) -> None:
        self._fault = failed(problem)
        lost = sorted(self._running)
        self._running.clear()
        self._receive([Progress(key, reason="error", error=self._fault) for key in lost])
