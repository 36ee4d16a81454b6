"""What a pool with ``engine: web_search`` may be told."""

from __future__ import annotations

from typing import Literal

import pydantic

from herasys_rt.engines.options import EngineOptions

ProviderName = Literal["local", "google", "searxng"]

GOOGLE_URL = "https://customsearch.googleapis.com/customsearch/v1"


class GoogleOptions(EngineOptions):
    """Google's Custom Search JSON API; the key and the engine's id (``cx``) are read from
    the environment variables named here."""

    key_env: str = "GOOGLE_API_KEY"
    cx_env: str = "GOOGLE_CSE_ID"
    base_url: str = pydantic.Field(default=GOOGLE_URL, pattern=r"^https?://")
    language: str | None = None
    """The ``lr`` parameter, such as ``lang_en``; None searches all languages."""


class SearxngOptions(EngineOptions):
    """An instance of SearXNG whose settings allow the format ``json``."""

    base_url: str = pydantic.Field(pattern=r"^https?://")
    language: str | None = None
    categories: str | None = None
    """Comma-separated; None searches the instance's defaults."""


class LocalOptions(EngineOptions):
    """Full-text search in a collection of the runtime's own database.

    ``pool_size`` bounds the connections of one instance.
    """

    pool_size: int = pydantic.Field(default=4, ge=1, le=100)


class SearchOptions(EngineOptions):
    """``options`` of a search pool.

    ``provider`` answers searches that name none. Of one instance at most
    ``requests_per_s`` go out per second and provider, ``burst`` of them at once;
    ``timeout_s`` bounds one request. ``verify`` False accepts any certificate; a path
    names the authorities to trust.
    """

    provider: ProviderName = "local"
    google: GoogleOptions | None = None
    searxng: SearxngOptions | None = None
    local: LocalOptions = LocalOptions()
    timeout_s: float = pydantic.Field(default=15.0, gt=0)
    requests_per_s: float = pydantic.Field(default=5.0, gt=0)
    burst: int = pydantic.Field(default=5, ge=1)
    verify: bool | str = True

    @pydantic.model_validator(mode="after")
    def _configured(self) -> SearchOptions:
        if self.provider != "local" and getattr(self, self.provider) is None:
            raise ValueError(f"provider {self.provider} needs a section {self.provider}")
        return self
