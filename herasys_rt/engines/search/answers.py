"""What search providers say, read strictly: results, refusals, pages that are no JSON.

Pure functions over bytes; `engines.search.web` does the talking.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from herasys_rt.documents import clean_text
from herasys_rt.errors import ErrorInfo, NodeError

_TRANSIENT = frozenset({408, 425, 429})
_BUSY_REASONS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_SHOWN = 300
_SNIPPET_CHARS = 4000


class ProviderError(NodeError):
    """A provider's failure; ``retryable`` says that another attempt may succeed."""

    code = "provider_failed"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str = "",
        retryable: bool = False,
        **fields: Any,
    ) -> None:
        if retryable:
            fields["retryable"] = True
        super().__init__(message, hint=hint, code=code, **fields)

    def info(self) -> ErrorInfo:
        """The error as a value."""
        again = bool(self.fields.get("retryable"))
        return ErrorInfo(self.code, self.message, self.hint, again)


def read_json(data: bytes, kind: str, where: str) -> dict[str, Any]:
    """The JSON object of an answer of content type ``kind``.

    Errors: `ProviderError` (``provider_not_json``).
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise _not_json(data, kind, where) from e
    if not isinstance(found, dict):
        raise _not_json(data, kind, where)
    return cast("dict[str, Any]", found)


def refusal(status: int, data: bytes, where: str) -> ProviderError:
    """The error of an HTTP status other than 200."""
    said, reason = _server_message(data)
    text = f"{where} answered {status}: {said}"
    busy = status == 429 or (status == 403 and reason in _BUSY_REASONS)
    if busy or status in _TRANSIENT or status >= 500:
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


def _not_json(data: bytes, kind: str, where: str) -> ProviderError:
    start = " ".join(clean_text(data[:600].decode(errors="replace")).split())
    return ProviderError(
        f"{where} sent {kind or 'an answer without a type'} instead of JSON: "
        f"{start[:120] or 'nothing'}",
        code="provider_not_json",
        hint="Check base_url and any proxy or login page between; of SearXNG, that its "
        "settings list 'json' under search.formats.",
    )


def _said_error(answer: Mapping[str, Any], where: str) -> ProviderError:
    """Some servers report a failure under status 200."""
    said, reason = _server_message(json.dumps(answer).encode())
    busy = reason in _BUSY_REASONS
    code = "provider_busy" if busy else "provider_refused"
    return ProviderError(f"{where} failed: {said}", code=code, retryable=busy)


def _server_message(data: bytes) -> tuple[str, str]:
    """The server's own words and reason, shortened; of a page that is no JSON its start."""
    text = data.decode(errors="replace").strip()
    try:
        found: Any = json.loads(text)
        error: Any = found.get("error", found)
        if not isinstance(error, dict):
            return clean_text(str(error))[:_SHOWN], ""
        fields = cast("dict[str, Any]", error)
        words = clean_text(str(fields.get("message") or fields))
        reasons: Any = fields.get("errors") or [{}]
        return words[:_SHOWN], str(reasons[0].get("reason") or "")
    except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError):
        return " ".join(clean_text(text).split())[:_SHOWN] or "nothing", ""
