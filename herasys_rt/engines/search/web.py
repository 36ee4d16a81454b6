"""Search providers over HTTP: Google's Custom Search JSON API and SearXNG.

Retries are the kernel's: what may work later ends as a retryable error, and a
``Retry-After`` holds back what this instance asks that provider next.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, quote_plus

from herasys_rt.clock import Clock, monotonic_s
from herasys_rt.engines.http_answers import origin_of, retry_after_s
from herasys_rt.engines.search.answers import (
    ProviderError,
    google_results,
    read_json,
    refusal,
    searxng_results,
)
from herasys_rt.engines.search.options import GoogleOptions, SearchOptions, SearxngOptions
from herasys_rt.engines.search.pace import Pace
from herasys_rt.errors import EnvironmentFaultError

if TYPE_CHECKING:
    import httpx

_MOST_BYTES = 8 * 1024 * 1024
_GOOGLE_PAGE = 10
_GOOGLE_MOST = 100
_SEARXNG_PAGES = 5


class Found:
    """Results in order, and how many requests they took."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.requests = 0


class WebProvider(Protocol):
    """A provider on the web. ``fingerprint`` names all that decides its answers, without
    a secret."""

    where: str
    fingerprint: str

    async def search(self, client: httpx.AsyncClient, query: str, most: int) -> Found:
        """At least ``most`` results where there are so many. Errors: `ProviderError`."""
        ...


class Link:
    """Requests to one provider, paced; secrets never appear in what it raises."""

    def __init__(
        self,
        base_url: str,
        options: SearchOptions,
        secrets: Mapping[str, str],
        clock: Clock = monotonic_s,
    ) -> None:
        self.where = origin_of(base_url)
        self._url = base_url
        self._timeout_s = options.timeout_s
        self._secrets = dict(secrets)
        self._pace = Pace(options.requests_per_s, options.burst, clock)

    async def get(
        self, client: httpx.AsyncClient, params: Mapping[str, str]
    ) -> dict[str, Any]:
        """The JSON object that the provider answers. Errors: `ProviderError`."""
        await self._pace.turn()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._asked(client, {**params, **self._secrets})
        except TimeoutError:
            raise self._silent() from None
        except ProviderError as e:
            message = self._scrubbed(e.message)
            if message == e.message:
                raise
            raise ProviderError(
                message, hint=e.hint, code=e.code, retryable=e.retryable, **e.fields
            ) from None

    async def _asked(
        self, client: httpx.AsyncClient, params: dict[str, str]
    ) -> dict[str, Any]:
        import httpx

        try:
            async with client.stream("GET", self._url, params=params) as reply:
                data = await self._body(reply)
        except httpx.TimeoutException:
            raise self._silent() from None
        except (httpx.TransportError, httpx.DecodingError) as e:
            raise ProviderError(
                f"{self.where} cannot be reached: {e or type(e).__name__}",
                code="provider_unreachable",
                hint="Check the provider's base_url and that this machine may reach it.",
                retryable=True,
            ) from None
        if reply.status_code != 200:
            wait_s = retry_after_s(reply.headers.get("retry-after"))
            self._pace.hold_back(wait_s)
            raise refusal(reply.status_code, data, self.where)
        return read_json(data, reply.headers.get("content-type", ""), self.where)

    async def _body(self, reply: httpx.Response) -> bytes:
        data = bytearray()
        async for part in reply.aiter_bytes():
            data += part
            if len(data) > _MOST_BYTES:
                raise ProviderError(
                    f"{self.where} answered more than {_MOST_BYTES} bytes",
                    code="provider_malformed",
                    hint="Check that base_url belongs to a provider of this kind.",
                )
        return bytes(data)

    def _silent(self) -> ProviderError:
        return ProviderError(
            f"{self.where} did not answer within {self._timeout_s:g} s",
            code="provider_timeout",
            hint="Raise the pool's option timeout_s if the provider needs longer.",
            retryable=True,
        )

    def _scrubbed(self, text: str) -> str:
        return scrubbed(text, self._secrets.values())


class Google:
    """Custom Search JSON API. Errors of the constructor: `EnvironmentFaultError`."""

    def __init__(
        self, own: GoogleOptions, options: SearchOptions, clock: Clock = monotonic_s
    ) -> None:
        secrets = {"key": _secret(own.key_env), "cx": _secret(own.cx_env)}
        self.secrets = tuple(secrets.values())
        self._language = own.language
        self._link = Link(own.base_url, options, secrets, clock)
        self.where = self._link.where
        engine = hashlib.sha256(secrets["cx"].encode()).hexdigest()[:16]
        self.fingerprint = f"google {own.base_url} {own.language} engine {engine}"

    async def search(self, client: httpx.AsyncClient, query: str, most: int) -> Found:
        """See `WebProvider`; the API gives ten results a request and 100 in all."""
        found = Found()
        while len(found.results) < min(most, _GOOGLE_MOST):
            start = len(found.results)
            count = min(_GOOGLE_PAGE, most - start)
            params = {"q": query, "num": str(count), "start": str(start + 1)}
            if self._language is not None:
                params["lr"] = self._language
            answer = await self._link.get(client, params)
            found.requests += 1
            results = google_results(answer, self.where)
            found.results += results
            if len(results) < count:
                break
        return found


class Searxng:
    """An instance of SearXNG."""

    def __init__(
        self, own: SearxngOptions, options: SearchOptions, clock: Clock = monotonic_s
    ) -> None:
        url = own.base_url.rstrip("/") + "/search"
        self._more = {"format": "json"}
        if own.language is not None:
            self._more["language"] = own.language
        if own.categories is not None:
            self._more["categories"] = own.categories
        self._link = Link(url, options, {}, clock)
        self.where = self._link.where
        self.fingerprint = f"searxng {own.base_url} {own.language} {own.categories}"

    async def search(self, client: httpx.AsyncClient, query: str, most: int) -> Found:
        """See `WebProvider`; a page has as many results as its engines gave."""
        found = Found()
        seen: set[str] = set()
        for page in range(1, _SEARXNG_PAGES + 1):
            params = {"q": query, **self._more}
            if page > 1:
                params["pageno"] = str(page)
            answer = await self._link.get(client, params)
            found.requests += 1
            results = searxng_results(answer, self.where)
            fresh = [r for r in results if r["url"] not in seen]
            found.results += fresh
            seen.update(result["url"] for result in fresh)
            if not fresh or len(seen) >= most:
                break
        return found


class NoSecrets(logging.Filter):
    """Keeps secrets out of a logger's records: the HTTP client logs whole addresses."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        """The record with every secret masked; none is dropped."""
        text = record.getMessage()
        clean = scrubbed(text, self._secrets)
        if clean != text:
            record.msg, record.args = clean, ()
        return True


def scrubbed(text: str, secrets: Any) -> str:
    """A text with every secret masked, also as it is written in addresses."""
    for secret in secrets:
        for form in {secret, quote(secret), quote_plus(secret), quote(secret, safe="")}:
            text = text.replace(form, "***")
    return text


def _secret(variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise EnvironmentFaultError(
            f"the environment variable {variable} is not set; the search provider google "
            "needs it",
            hint=f"export {variable}=..., or name another variable in the pool's options.",
        )
    return value
