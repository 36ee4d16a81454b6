"""What search providers say, read strictly: results, refusals, pages that are no JSON.

Pure functions over bytes; `engines.search.web` does the talking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from herasys_rt.documents import clean_text
from herasys_rt.engines.http_answers import (
    RemoteError,
    Told,
    is_transient,
    json_object,
    start_of,
    told,
    told_in,
)

_BUSY_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_PAGE_CHARS = 120
_SNIPPET_CHARS = 4000


class ProviderError(RemoteError):
    """A provider's failure."""

    code = "provider_failed"


def read_json(data: bytes, kind: str, where: str) -> dict[str, Any]:
    """The JSON object of an answer of content type ``kind``.

    Errors: `ProviderError` (``provider_not_json``).
    """
    found = json_object(data)
    if found is not None:
        return found
    raise ProviderError(
        f"{where} sent {kind or 'an answer without a type'} instead of JSON: "
        f"{start_of(data, _PAGE_CHARS)}",
        code="provider_not_json",
        hint="Check base_url and any proxy or login page between; of SearXNG, that its "
        "settings list 'json' under search.formats.",
    )


def refusal(status: int, data: bytes, where: str) -> ProviderError:
    """The error of an HTTP status other than 200."""
    said = told(data)
    text = f"{where} answered {status}: {said.words}"
    busy = status == 429 or (status == 403 and _reason(said) in _BUSY_REASONS)
    if busy or is_transient(status):
        code = "provider_busy" if busy else "provider_failed"
        hint = "The runtime tries again; lower the pool's requests_per_s if this goes on."
        return ProviderError(text, code=code, hint=hint, retryable=True, status=status)
    hints = {
        401: "Check the key in the variable that the option key_env names.",
        403: "Check the key and its quota; of SearXNG, that its settings list 'json' "
        "under search.formats.",
        404: "Check the provider's base_url.",
    }
    hint = hints.get(status, "Correct the request; the provider will not take it as it is.")
    return ProviderError(text, code="provider_refused", hint=hint, status=status)


def google_results(answer: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Results of a Custom Search answer. Errors: `ProviderError`."""
    if answer.get("error"):
        raise _said_error(answer, where)
    items = _listed(answer.get("items", []), "items", where)
    return _results(items, url="link", snippet="snippet")


def searxng_results(answer: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Results of a SearXNG answer. Errors: `ProviderError`."""
    items = _listed(answer.get("results"), "results", where)
    return _results(items, url="url", snippet="content")


def pages(found: Iterable[Mapping[str, Any]], most: int) -> list[dict[str, Any]]:
    """The first ``most`` results as chunks, each address once, best first.

    ``score`` falls with the rank unless a result brings its own.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for result in found:
        url = result["url"]
        if url in chosen:
            continue
        if len(chosen) == most:
            break
        score = result.get("score")
        chosen[url] = {
            "id": url,
            "source": url,
            "text": result["snippet"] or result["title"],
            "score": 1.0 / (1 + len(chosen)) if score is None else float(score),
            "title": result["title"],
            "url": url,
            "snippet": result["snippet"],
        }
    return list(chosen.values())


def _results(items: list[Any], *, url: str, snippet: str) -> list[dict[str, Any]]:
    """Title, url and snippet of every item that has an address."""
    found: list[dict[str, Any]] = []
    for item in items:
        if not isinstance(item, dict):
            continue
        record = cast("dict[str, Any]", item)
        address = record.get(url)
        if not isinstance(address, str) or not address.strip():
            continue
        address = clean_text(address.strip())
        found.append(
            {
                "title": _text(record.get("title")) or address,
                "url": address,
                "snippet": _text(record.get(snippet))[:_SNIPPET_CHARS],
            }
        )
    return found


def _text(value: Any) -> str:
    """A field of a result in one line."""
    return " ".join(clean_text(value).split()) if isinstance(value, str) else ""


def _listed(items: Any, name: str, where: str) -> list[Any]:
    if isinstance(items, list):
        return cast("list[Any]", items)
    raise ProviderError(
        f"{where} sent JSON without a list of {name}",
        code="provider_malformed",
        hint="Check that base_url belongs to a provider of this kind.",
    )


def _said_error(answer: Mapping[str, Any], where: str) -> ProviderError:
    """Some servers report a failure under status 200."""
    said = told_in(answer)
    busy = _reason(said) in _BUSY_REASONS
    return ProviderError(
        f"{where} failed: {said.words}",
        code="provider_busy" if busy else "provider_refused",
        hint="Lower the pool's requests_per_s, or raise the quota."
        if busy
        else "Correct the request; the provider will not take it as it is.",
        retryable=busy,
    )


def _reason(said: Told) -> str:
    """Google's word for the first of the errors; empty without one."""
    errors = said.fields.get("errors")
    first: Any = cast("list[Any]", errors)[0] if isinstance(errors, list) and errors else {}
    return str(first.get("reason") or "") if isinstance(first, Mapping) else ""
