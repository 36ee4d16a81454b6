"""The vLLM engine of a pool: items in, text out, over either back end.

Three threads at most touch an item, in this order: the caller of `submit`, the
preparing thread (rendering and tokenizing would stall the decoding of others), and the
back end's thread. An item ends where it leaves the table of live items, which happens
once; whoever takes it out reports its outcome.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from herasys_rt.clock import monotonic_s
from herasys_rt.config import PoolConfig
from herasys_rt.engines import prompting
from herasys_rt.engines.models import ResolvedModel, resolve_model
from herasys_rt.engines.options import read_options
from herasys_rt.engines.protocol import Engine, Item, Outcome, Sink, Snapshot
from herasys_rt.engines.slices import Slices
from herasys_rt.engines.structured import Part, form_of, is_cut, value_of
from herasys_rt.engines.vllm.async_llm import AsyncBackend
from herasys_rt.engines.vllm.backend import Backend, Progress, Request
from herasys_rt.engines.vllm.chat import Chat
from herasys_rt.engines.vllm.options import (
    VllmOptions,
    context_tokens,
    engine_args,
    forbid_compiling,
    quick_start,
    set_environment,
)
from herasys_rt.engines.vllm.stepping import Stepping
from herasys_rt.errors import (
    ConfigError,
    EnvironmentFaultError,
    ErrorInfo,
    HerasysError,
    ModelUnavailableError,
    NodeError,
    PromptTooLongError,
)

VERB = "llm.generate"


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """An engine for a pool with ``engine: vllm``; loads nothing yet. ``dsn`` is unused.

    Errors: `ConfigError`.
    """
    if pool.model is None:
        raise ConfigError(
            f"pool {pool.name!r} names no model",
            hint="Add 'model: smollm2-135m', a hub id or a path.",
            pool=pool.name,
        )
    if pool.role != "both":
        raise ConfigError(
            f"pool {pool.name!r} has the role {pool.role!r}: this version does prefill "
            "and decode in one place",
            hint="Leave 'role' out.",
            pool=pool.name,
        )
    return VllmEngine(pool, pool.model, read_options(pool, VllmOptions))


@dataclass(slots=True)
class _Live:
    """An item on its way: in preparation while it has no ``request``, then handed over."""

    item: Item
    request: Request | None = None
    began_s: float = 0.0
    completion_tokens: int = 0
    cached_tokens: int = 0
    texts: list[str] = field(default_factory=list[str])
    sources: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class VllmEngine:
    """`Engine` for ``llm.generate``: the value is the answer in the form asked for."""

    verbs = frozenset({VERB})

    def __init__(self, pool: PoolConfig, model: str, options: VllmOptions) -> None:
        self._pool = pool
        self._model_name = model
        self._options = options
        self._lock = threading.RLock()
        self._live: dict[str, _Live] = {}
        self._arrived: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._backend: Backend | None = None
        self._preparing: threading.Thread | None = None
        self._facts: dict[str, Any] = {}
        self._context = 0
        self._closed = False

    def start(self, sink: Sink) -> None:
        """Import vLLM and load the model: some 12 s on a CPU, mostly the import.

        Errors: `ModelUnavailableError`, `UnknownModelError`, `EnvironmentFaultError`.
        """
        self._sink = sink
        self._slices = Slices(sink.piece)
        model = resolve_model(self._model_name)
        try:
            with quick_start():
                self._backend, tokenizer = self._load(model)
        except Exception as e:
            self._slices.close()
            raise _start_fault(self._pool, model, e) from e
        self._chat = Chat(tokenizer)
        self._context = context_tokens(self._options, model)
        self._facts = self._describe(model)
        self._preparing = threading.Thread(
            target=self._prepare_all, name="vllm-preparing", daemon=True
        )
        self._preparing.start()

    def describe(self) -> dict[str, Any]:
        """``fingerprint``, ``context_tokens``, ``model``, ``names``, ``backend``, and the
        back end's limits."""
        return dict(self._facts)

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; returns at once."""
        with self._lock:
            for item in items:
                self._live[item.key] = _Live(item)
        for item in items:
            self._arrived.put(item)

    def abort(self, key: str) -> None:
        """Stop an item wherever it is; its outcome says ``aborted``."""
        with self._lock:
            live = self._live.get(key)
            if live is None:
                return
            if live.request is not None and self._backend is not None:
                self._backend.abort(key)
                return
        self._finish(key, Outcome(aborted=True))

    def snapshot(self) -> Snapshot:
        """Counts of this moment; ``fault`` is set once the engine is dead."""
        if self._backend is None:
            return Snapshot(0, 0)
        inside = self._backend.snapshot()
        return Snapshot(
            inside.running,
            max(inside.waiting, len(self._live) - inside.running),
            inside.kv_usage,
            inside.fault,
        )

    def close(self) -> None:
        """Stop everything, free the model and end all threads and processes."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._live.clear()
        if self._preparing is not None:
            self._arrived.put(None)
            self._preparing.join()
        if self._backend is not None:
            self._backend.close()
            self._slices.close()

    def _load(self, model: ResolvedModel) -> tuple[Backend, Any]:
        set_environment(self._options)
        from vllm.platforms import current_platform

        cpu = current_platform.is_cpu()
        args = engine_args(self._pool, model, self._options, cpu=cpu)
        if args["enforce_eager"]:
            forbid_compiling()
        choice = self._options.backend
        if choice == "async" or (choice == "auto" and not cpu):
            backend: Backend = AsyncBackend(args)
        else:
            backend = Stepping(args, self._options.threads)
        return backend, backend.start(self._receive)

    def _describe(self, model: ResolvedModel) -> dict[str, Any]:
        # A hub model was fetched just now: only now its revision is known.
        model = resolve_model(self._model_name)
        parts = (model.fingerprint, self._options.dtype, f"chat:{self._chat.digest}")
        return {
            "fingerprint": " ".join(parts),
            "context_tokens": self._context,
            "model": model.name,
            "names": list(model.aliases),
            "backend": type(self._backend).__name__,
            **(self._backend.limits() if self._backend is not None else {}),
        }

    def _prepare_all(self) -> None:
        while (item := self._arrived.get()) is not None:
            if item.key not in self._live:
                continue
            try:
                request, sources = self._prepare(item)
            except HerasysError as e:
                self._finish(item.key, Outcome(error=e.info()))
            except Exception as e:  # one bad item must not end the thread of all
                error = ErrorInfo("internal", f"preparing a prompt failed: {e!r}")
                self._finish(item.key, Outcome(error=error))
            else:
                self._hand_over(request, sources)

    def _prepare(self, item: Item) -> tuple[Request, list[dict[str, Any]]]:
        if item.verb not in self.verbs:
            raise NodeError(
                f"engine vllm cannot do {item.verb!r}",
                code="unknown_verb",
                hint=f"It does {', '.join(sorted(self.verbs))}.",
            )
        prompt = prompting.render(item.args)
        sampling = prompting.sampling(item.args)
        form = form_of(item.args)
        token_ids = self._chat.tokens(prompt.messages)
        if len(token_ids) + sampling.max_tokens > self._context:
            raise too_long(len(token_ids), sampling.max_tokens, self._context)
        return Request(
            item.key,
            token_ids,
            sampling,
            form,
            salt=item.trust_scope,
            stream=item.stream and form.is_text,
        ), prompt.sources

    def _hand_over(self, request: Request, sources: list[dict[str, Any]]) -> None:
        # Under the lock, so that an abort comes either before (and this does nothing)
        # or after (and reaches the back end behind the request).
        with self._lock:
            live = self._live.get(request.key)
            if live is None or self._backend is None:
                return
            live.request = request
            live.sources = sources
            live.began_s = monotonic_s()
            self._sink.started(request.key)
            self._backend.add(request)

    def _receive(self, batch: Sequence[Progress]) -> None:
        for news in batch:
            live = self._live.get(news.key)
            if live is None:
                continue
            live.texts.append(news.text)
            live.completion_tokens += news.tokens
            live.cached_tokens = news.cached_tokens or live.cached_tokens
            if news.reason:
                self._finish(news.key, _outcome(live, news), news)
            elif live.request is not None and live.request.stream:
                self._slices.push(news.key, news.text, news.tokens)

    def _finish(self, key: str, outcome: Outcome, last: Progress | None = None) -> None:
        with self._lock:
            live = self._live.pop(key, None)
            if live is None:
                return
        if last is not None and outcome.error is None and not outcome.aborted:
            self._slices.finish(key, last.text, last.tokens)
        else:
            self._slices.drop(key)
        self._sink.finished(key, outcome)


def too_long(prompt_tokens: int, max_tokens: int, context: int) -> PromptTooLongError:
    """The error of a prompt that leaves no room for its completion."""
    return PromptTooLongError(
        f"the prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}: together "
        f"{prompt_tokens + max_tokens}, the model's context is {context}",
        hint=f"Shorten the prompt to {max(context - max_tokens, 0)} tokens (fewer or "
        "shorter passages) or lower max_tokens.",
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        context_tokens=context,
    )


def _outcome(live: _Live, news: Progress) -> Outcome:
    run_s = monotonic_s() - live.began_s
    if news.reason == "abort":
        return Outcome(aborted=True, run_s=run_s)
    if news.error is not None or live.request is None:
        return Outcome(error=news.error, run_s=run_s)
    request = live.request
    parts = news.parts or (
        Part("".join(live.texts), live.completion_tokens, news.reason == "length"),
    )
    usage = {
        "prompt_tokens": len(request.token_ids),
        "completion_tokens": sum(part.tokens for part in parts),
        "cached_tokens": live.cached_tokens,
    }
    try:
        value = value_of(request.form, parts, request.sampling.max_tokens)
    except NodeError as e:
        return Outcome(error=e.info(), usage=usage, run_s=run_s)
    return Outcome(
        value=value,
        usage=usage,
        sources=live.sources,
        truncated=is_cut(request.form, parts),
        run_s=run_s,
    )


def _start_fault(pool: PoolConfig, model: ResolvedModel, error: Exception) -> HerasysError:
    if isinstance(error, HerasysError):
        return error
    where = f"pool {pool.name!r} cannot load model {model.name!r}"
    if isinstance(error, ImportError):
        return EnvironmentFaultError(
            f"{where}: vLLM cannot be imported: {error}",
            hint="Install the extra 'cpu' or 'gpu'; `herasys doctor` checks the rest.",
        )
    if isinstance(error, OSError) and "offline" in str(error).lower():
        return ModelUnavailableError(
            f"{where}: {error}", hint="Fetch it where a hub is reachable, or name a path."
        )
    return EnvironmentFaultError(
        f"{where}: {type(error).__name__}: {error}",
        code="engine_start",
        hint="Check the pool's options (max_model_len, kv_cache_memory_mb, dtype) against "
        "the model and the machine's free memory.",
    )
