"""A remote OpenAI-compatible endpoint as an LLM pool: verb ``llm.generate``.

Every item is one chat completion, a task on an event loop of the engine's own. Retries
are the kernel's: what may work later ends as a retryable error. A ``Retry-After`` holds
back what this engine sends next; a connection reset before any answer is tried again
once, since a server closes idle connections whenever it likes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pydantic

from herasys_rt.clock import monotonic_s
from herasys_rt.config import PoolConfig
from herasys_rt.engines import prompting
from herasys_rt.engines.http_answers import origin_of, retry_after_s
from herasys_rt.engines.options import EngineOptions, read_options
from herasys_rt.engines.protocol import Engine, Item, Outcome, Sink, Snapshot
from herasys_rt.engines.remote import (
    Completion,
    EndpointError,
    answer_of,
    asking,
    parts_of,
    refusal,
    sse_events,
)
from herasys_rt.engines.slices import Slices
from herasys_rt.engines.structured import form_of, is_cut, value_of
from herasys_rt.errors import (
    ConfigError,
    EnvironmentFaultError,
    ErrorInfo,
    HerasysError,
    InternalError,
)

if TYPE_CHECKING:
    import httpx

VERB = "llm.generate"
_EXTRAS = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
"""Fields that only some servers know, with the value that needs no saying."""


class OpenAIOptions(EngineOptions):
    """Options of a pool with ``engine: openai``; the pool's model is the remote name.

    ``api_key_env`` names the environment variable that holds the key. ``timeout_s``
    bounds the silence between two parts of an answer. ``verify`` False accepts any
    certificate; a path names the authorities to trust.
    """

    base_url: str = pydantic.Field(pattern=r"^https?://")
    api_key_env: str | None = None
    timeout_s: float = pydantic.Field(default=120.0, gt=0)
    verify: bool | str = True
    context_tokens: int | None = pydantic.Field(default=None, ge=1)


def create(pool: PoolConfig, dsn: str = "") -> Engine:
    """An engine for a pool with ``engine: openai``; connects to nothing yet.

    Errors: `ConfigError`. ``dsn`` is unused.
    """
    options = read_options(pool, OpenAIOptions)
    if pool.model is None:
        raise ConfigError(
            f"pool {pool.name!r} names no model",
            hint="Add 'model:' with the name that the endpoint knows it by.",
            pool=pool.name,
        )
    return OpenAIEngine(pool.model, options)


@dataclass(slots=True)
class _Live:
    item: Item
    began_s: float
    task: asyncio.Task[Outcome] | None = None
    sources: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class OpenAIEngine:
    """`Engine` over HTTP. The key is read at start and never shown."""

    verbs = frozenset({VERB})

    def __init__(self, model: str, options: OpenAIOptions) -> None:
        self._model = model
        self._options = options
        self._where = origin_of(options.base_url)
        self._key = ""
        self._live: dict[str, _Live] = {}
        self._not_before_s = 0.0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, sink: Sink) -> None:
        """Open the client. Errors: `EnvironmentFaultError` when the key is not set."""
        self._sink = sink
        if self._options.api_key_env is not None:
            self._key = os.environ.get(self._options.api_key_env, "")
            if not self._key:
                raise EnvironmentFaultError(
                    f"the environment variable {self._options.api_key_env} is not set: "
                    f"it should hold the key for {self._where}",
                    hint=f"export {self._options.api_key_env}=...",
                )
        self._slices = Slices(sink.piece)
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(ready)), name="openai", daemon=True
        )
        self._thread.start()
        try:
            ready.result()
        except (OSError, ValueError) as e:
            self.close()
            raise EnvironmentFaultError(
                f"no HTTP client for {self._where}: {e}",
                hint="Check the option 'verify' and the proxy settings.",
            ) from e

    def describe(self) -> dict[str, Any]:
        """``fingerprint`` names endpoint and model; ``context_tokens`` if configured."""
        facts: dict[str, Any] = {
            "fingerprint": f"openai:{self._where}{urlsplit(self._options.base_url).path}"
            f":{self._model}",
            "model": self._model,
        }
        if self._options.context_tokens is not None:
            facts["context_tokens"] = self._options.context_tokens
        return facts

    def submit(self, items: Sequence[Item]) -> None:
        """Take items; returns at once."""
        if self._loop is not None and not self._closed:
            self._loop.call_soon_threadsafe(self._begin, tuple(items))

    def abort(self, key: str) -> None:
        """Stop an item and close its connection."""
        if self._loop is not None and not self._closed:
            self._loop.call_soon_threadsafe(self._cancel, key)

    def snapshot(self) -> Snapshot:
        """How many requests are open."""
        return Snapshot(len(self._live), 0)

    def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._thread is None:
            return
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None
        self._slices.close()

    async def _run(self, ready: Future[None]) -> None:
        import httpx

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            client = httpx.AsyncClient(
                base_url=self._options.base_url.rstrip("/") + "/",
                headers=headers,
                timeout=httpx.Timeout(self._options.timeout_s),
                verify=self._options.verify,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            )
        except Exception as e:
            ready.set_exception(e)
            return
        async with client:
            self._client = client
            ready.set_result(None)
            await self._stop.wait()
            tasks = [live.task for live in self._live.values() if live.task is not None]
            self._live.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, items: Sequence[Item]) -> None:
        assert self._loop is not None
        for item in items:
            live = self._live[item.key] = _Live(item, monotonic_s())
            live.task = self._loop.create_task(self._complete(live))
            live.task.add_done_callback(lambda task, key=item.key: self._end(key, task))

    def _cancel(self, key: str) -> None:
        live = self._live.get(key)
        if live is not None and live.task is not None:
            live.task.cancel()

    def _end(self, key: str, task: asyncio.Task[Outcome]) -> None:
        """The one place that ends an item, however its task came to its end."""
        live = self._live.pop(key, None)
        if live is None:
            return
        run_s = monotonic_s() - live.began_s
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            outcome = Outcome(aborted=True, run_s=run_s)
        elif isinstance(error, HerasysError):
            outcome = Outcome(error=self._scrubbed(error), run_s=run_s)
        elif error is not None:
            failed = InternalError(
                f"the client of {self._where} failed: {error!r}",
                hint="Report it with the runtime's log; other requests go on.",
            )
            outcome = Outcome(error=self._scrubbed(failed), run_s=run_s)
        else:
            outcome = task.result()
        if outcome.value is not None:
            self._slices.finish(key)
        else:
            self._slices.drop(key)
        self._sink.finished(key, outcome)

    def _scrubbed(self, error: HerasysError) -> ErrorInfo:
        info = error.info()
        if self._key and self._key in info.message:
            message = info.message.replace(self._key, "***")
            return ErrorInfo(info.code, message, info.hint, info.retryable)
        return info

    async def _complete(self, live: _Live) -> Outcome:
        item = live.item
        if item.verb != VERB:
            raise EndpointError(
                f"engine openai cannot do {item.verb!r}",
                code="unknown_verb",
                hint="Give the node a pool of an engine that can.",
            )
        prompt = prompting.render(item.args)
        sampling = prompting.sampling(item.args)
        form = form_of(item.args)
        stream = item.stream and form.is_text
        body = self._body(prompt.messages, sampling, stream) | asking(form, sampling)
        self._sink.started(item.key)
        got = Completion(stream)
        try:
            await self._request(item.key, body, got)
        except _Reset:
            if got.texts:
                raise
            await self._request(item.key, body, got)
        parts = parts_of(got, form, self._where)
        made = got.usage.get("completion_tokens", 0)
        cut = is_cut(form, parts)
        return Outcome(
            value=value_of(form, parts, sampling.max_tokens),
            usage=got.usage,
            sources=prompt.sources,
            truncated=cut,
            partial=cut and made < sampling.max_tokens * len(parts),
            run_s=monotonic_s() - live.began_s,
        )

    def _body(
        self,
        messages: list[dict[str, str]],
        sampling: prompting.Sampling,
        stream: bool,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": prompting.defused(messages),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        for name, silent in _EXTRAS.items():
            if getattr(sampling, name) != silent:
                body[name] = getattr(sampling, name)
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def _request(self, key: str, body: dict[str, Any], got: Completion) -> None:
        import httpx

        await self._wait_turn()
        try:
            async with self._client.stream("POST", "chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    self._hold_back(reply)
                    raise refusal(reply.status_code, await reply.aread(), self._where)
                kind = reply.headers.get("content-type", "")
                if kind.startswith("text/event-stream"):
                    await self._follow(key, reply, got)
                else:
                    answer_of(await reply.aread(), kind, self._where, got)
                    if got.streams:
                        self._slices.push(key, "".join(got.texts), got.tokens)
        except httpx.TimeoutException as e:
            raise EndpointError(
                f"{self._where} was silent for {self._options.timeout_s:g} s",
                code="endpoint_timeout",
                hint="Raise the pool's option timeout_s if the model needs longer.",
                retryable=True,
            ) from e
        except httpx.TransportError as e:
            raise _Reset(
                f"{self._where} cannot be reached: {e or type(e).__name__}",
                code="endpoint_unreachable",
                hint="Check the pool's base_url and that the server is up.",
                retryable=True,
            ) from e

    async def _follow(self, key: str, reply: httpx.Response, got: Completion) -> None:
        """Take a server-sent stream to its end, handing text on as it comes."""
        async for data in sse_events(reply.aiter_bytes()):
            if data == b"[DONE]":
                return
            text = got.take(data, self._where)
            if text:
                self._slices.push(key, text, 1)
        if not got.reason:
            raise EndpointError(
                f"{self._where} ended its stream in the middle of the answer",
                code="endpoint_broken",
                hint="The runtime tries again; look at the server, or the proxy before it, "
                "if this goes on.",
                retryable=True,
            )

    def _hold_back(self, reply: httpx.Response) -> None:
        wait_s = retry_after_s(reply.headers.get("retry-after"))
        self._not_before_s = max(self._not_before_s, monotonic_s() + wait_s)

    async def _wait_turn(self) -> None:
        while (wait_s := self._not_before_s - monotonic_s()) > 0:
            await asyncio.sleep(wait_s)


class _Reset(EndpointError):
    """The connection failed, perhaps only because it was an old one."""

    code = "endpoint_reset"
