"""What search providers say, read strictly; and how fast they may be asked."""

from __future__ import annotations

import json

import pytest

from herasys_rt.engines.search.answers import (
    ProviderError,
    google_results,
    pages,
    read_json,
    refusal,
    searxng_results,
)
from herasys_rt.engines.search.pace import Pace
from herasys_rt.graph import codec
from herasys_rt.graph.types import PortType, value_fault

WHERE = "https://search.example"


def result(url: str, **more: object) -> dict:
    return {"url": url, "title": f"T {url}", "snippet": f"S {url}", **more}


def test_pages_are_chunks_with_title_url_and_snippet():
    (page,) = pages([result("https://a")], 5)
    assert page == {
        "id": "https://a",
        "source": "https://a",
        "text": "S https://a",
        "score": 1.0,
        "title": "T https://a",
        "url": "https://a",
        "snippet": "S https://a",
    }
    assert value_fault([page], PortType.CHUNKS) is None


def test_pages_come_once_in_order_and_no_more_than_asked():
    found = pages([result(u) for u in ("a", "b", "a", "c", "d")], 3)
    assert [page["url"] for page in found] == ["a", "b", "c"]
    assert [page["score"] for page in found] == [1.0, 1 / 2, 1 / 3]


def test_a_page_without_a_snippet_has_its_title_as_text():
    assert pages([result("a", snippet="")], 1)[0]["text"] == "T a"


def test_google_and_searxng_results_mean_the_same():
    google = {"items": [{"title": "T", "link": "https://a", "snippet": "S\n x"}]}
    searxng = {"results": [{"title": "T", "url": "https://a", "content": "S\n x"}]}
    wanted = [{"title": "T", "url": "https://a", "snippet": "S x"}]
    assert google_results(google, WHERE) == wanted == searxng_results(searxng, WHERE)


def test_google_without_results_has_no_items():
    assert google_results({"searchInformation": {"totalResults": "0"}}, WHERE) == []


def test_broken_text_in_results_is_mended_and_odd_items_are_passed_over():
    answer = json.loads(
        '{"results": [{"url": "https://a", "title": "half \\ud83d", "content": "n\\u0000"},'
        ' {"title": "no address"}, 7, {"url": 3}, {"url": "https://b", "title": null}]}'
    )
    found = searxng_results(answer, WHERE)
    assert found == [
        {"url": "https://a", "title": "half \ufffd", "snippet": "n"},
        {"url": "https://b", "title": "https://b", "snippet": ""},
    ]
    assert codec.fault_of(pages(found, 5)) is None


@pytest.mark.parametrize("answer", [{}, {"results": None}, {"results": {"a": 1}}])
def test_json_of_another_service_is_malformed(answer):
    with pytest.raises(ProviderError) as caught:
        searxng_results(answer, WHERE)
    assert caught.value.code == "provider_malformed"
    assert not caught.value.info().retryable


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"<html><body>Please log in</body>", "Please log in"),
        (b"", "nothing"),
        (b"[1, 2]", "[1, 2]"),
        (b'"text"', "text"),
        (b'{"cut":', "cut"),
        (b"\xff\xfe\x00", "instead of JSON"),
        (b"[" * 100_000, "instead of JSON"),
    ],
)
def test_anything_but_a_json_object_is_told_as_what_it_is(data, shown):
    with pytest.raises(ProviderError) as caught:
        read_json(data, "text/html", WHERE)
    assert caught.value.code == "provider_not_json"
    assert shown in caught.value.message
    assert "text/html" in caught.value.message
    assert len(caught.value.message) < 300


def test_google_says_errors_under_any_status():
    answer = {"error": {"code": 400, "message": "Request contains an invalid argument."}}
    with pytest.raises(ProviderError, match="invalid argument"):
        google_results(answer, WHERE)


@pytest.mark.parametrize(
    ("status", "reason", "code", "retryable"),
    [
        (429, "", "provider_busy", True),
        (403, "rateLimitExceeded", "provider_busy", True),
        (403, "dailyLimitExceeded", "provider_refused", False),
        (503, "", "provider_failed", True),
        (408, "", "provider_failed", True),
        (401, "", "provider_refused", False),
        (404, "", "provider_refused", False),
        (302, "", "provider_refused", False),
    ],
)
def test_a_status_says_whether_trying_again_helps(status, reason, code, retryable):
    data = json.dumps({"error": {"message": "no", "errors": [{"reason": reason}]}}).encode()
    info = refusal(status, data, WHERE).info()
    assert (info.code, info.retryable) == (code, retryable)
    assert info.message == f"{WHERE} answered {status}: no"
    assert info.hint


@pytest.mark.parametrize("data", [b"", b"<b>x</b>", b"[1]", b'{"error": "text"}', b"\xff"])
def test_a_refusal_in_any_form_is_told(data):
    assert refusal(500, data, WHERE).message.startswith(f"{WHERE} answered 500: ")


# --- pace -------------------------------------------------------------------------------


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_goes_at_once_and_the_rest_at_the_rate():
    clock = Clock()
    pace = Pace(2.0, 3, clock)
    assert [pace.reserve() - clock.now_s for _ in range(6)] == pytest.approx(
        [0, 0, 0, 0.5, 1.0, 1.5]
    )


def test_an_idle_pace_fills_up_to_one_burst_and_no_further():
    clock = Clock()
    pace = Pace(1.0, 2, clock)
    for _ in range(3):
        pace.reserve()
    clock.now_s += 1000
    assert [pace.reserve() - clock.now_s for _ in range(3)] == pytest.approx([0, 0, 1.0])


async def test_a_pause_asked_for_holds_every_turn_back(monkeypatch):
    clock = Clock()
    slept: list[float] = []

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)
        clock.now_s += wait_s

    monkeypatch.setattr("herasys_rt.engines.search.pace.asyncio.sleep", sleep)
    pace = Pace(10.0, 10, clock)
    await pace.turn()
    pace.hold_back(7.0)
    pace.hold_back(2.0)
    await pace.turn()
    assert slept == pytest.approx([7.0])
