"""What HTTP servers say alike: failures in any form, and when to come back."""

from __future__ import annotations

import json
import pickle

import pytest

from herasys_rt.engines.http_answers import (
    LONGEST_WAIT_S,
    SHOWN_CHARS,
    json_object,
    origin_of,
    retry_after_s,
    told,
)
from herasys_rt.engines.remote import EndpointError
from herasys_rt.engines.search.answers import ProviderError


def test_retry_after_is_read_in_both_forms_and_bounded() -> None:
    assert retry_after_s("2.5") == 2.5
    assert retry_after_s(None) == retry_after_s("soon") == retry_after_s("-3") == 0.0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after_s("Fri, 21 Oct 2511 07:28:00 GMT") == LONGEST_WAIT_S
    assert retry_after_s("Fri, 21 Oct 2511 07:28:00 -0000") == LONGEST_WAIT_S
    assert retry_after_s("100000") == retry_after_s("inf") == LONGEST_WAIT_S
    assert retry_after_s("nan") == 0.0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": {"message": "no", "code": "x"}}, "no"),
        ({"detail": "not here"}, "not here"),
        ({"error": "text"}, "text"),
        ({"error": None, "message": "no"}, "no"),
        ({"message": "half \ud83d"}, "half \ufffd"),
        ({"message": "x" * 1000}, "x" * SHOWN_CHARS),
    ],
)
def test_a_failure_in_json_is_told_in_the_servers_words(answer, words) -> None:
    assert told(json.dumps(answer).encode()).words == words


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (b"", "nothing"),
        (b"<h1>Bad\n  gateway</h1>", "<h1>Bad gateway</h1>"),
        (b"[1, 2]", "[1, 2]"),
        (b"\xff", "\ufffd"),
        (b"[" * 100_000, "[" * SHOWN_CHARS),
    ],
)
def test_a_failure_in_another_form_is_told_by_its_start(page, words) -> None:
    assert told(page).words == words
    assert told(page).fields == {}
    assert json_object(page) is None


def test_a_server_is_named_without_path_and_password() -> None:
    assert origin_of("https://me:secret@API.example:8443/v1?key=x") == (
        "https://api.example:8443"
    )
    assert origin_of("http://[::1]:80/v1") == "http://[::1]:80"


@pytest.mark.parametrize("kind", [EndpointError, ProviderError])
def test_whether_another_attempt_may_succeed_survives_pickling(kind) -> None:
    for again in (True, False):
        error = kind("it failed", hint="Wait.", retryable=again, status=500)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert copy.info() == error.info()
        assert copy.info().retryable is again
        assert copy.fields == {"status": 500}
