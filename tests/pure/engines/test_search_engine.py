"""The search engine against small providers on real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.engines.search.engine import SearchEngine, create
from herasys_rt.engines.search.options import SearchOptions
from herasys_rt.errors import ConfigError, EnvironmentFaultError, ErrorInfo
from tests.outcome_sink import OutcomeSink

KEY, CX = "AIza-very/secret+key", "0123:cx secret"
SECRETS = (KEY, CX, "AIza-very%2Fsecret%2Bkey", "0123%3Acx+secret", "0123%3Acx%20secret")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        self.server.asked.append((parts.path, self.query))
        self.server.answer(self)

    def log_message(self, *_: Any) -> None:
        pass

    def reply(
        self, body: Any, kind: str = "application/json", status: int = 200, **headers: str
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def until_gone(self) -> None:
        """Wait for the client to hang up."""
        self.close_connection = True
        try:
            self.rfile.read(1)
        except ConnectionError:
            pass
        self.server.gone.set()


class Provider(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.gone = threading.Event()
        self.answer: Callable[[Handler], None] = lambda h: h.reply(searxng("a", "b"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


def searxng(*names: str) -> dict[str, Any]:
    urls = [f"https://{name}" for name in names]
    return {"results": [{"url": u, "title": f"T {u}", "content": f"S {u}"} for u in urls]}


def google(*names: str) -> dict[str, Any]:
    urls = [f"https://{name}" for name in names]
    return {"items": [{"link": u, "title": f"T {u}", "snippet": f"S {u}"} for u in urls]}


def pool(**options: Any) -> PoolConfig:
    return PoolConfig(
        name="search", resource="search", engine="web_search", options=options
    )


@pytest.fixture
def provider() -> Iterator[Provider]:
    server = Provider()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class Bench:
    """An engine with its sink."""

    def __init__(self, engine: Engine, sink: OutcomeSink) -> None:
        self.engine = engine
        self.sink = sink
        self.count = 0

    def submit(self, query: Any = "what is zip", **args: Any) -> str:
        self.count += 1
        key = f"{self.count}.1"
        item = Item(key, args.pop("verb", "http.search"), {"query": query, **args})
        self.engine.submit([item])
        return key

    def search(self, query: Any = "what is zip", **args: Any) -> Outcome:
        return self.sink.outcome(self.submit(query, **args))

    def error(self, query: Any = "what is zip", **args: Any) -> ErrorInfo:
        error = self.search(query, **args).error
        assert error is not None and error.hint
        return error


Start = Callable[..., Bench]


@pytest.fixture
def start(provider: Provider) -> Iterator[Start]:
    """Starts an engine over the server: SearXNG unless options say otherwise."""
    benches: list[Bench] = []

    def begin(**options: Any) -> Bench:
        if "google" not in options:
            options = {
                "searxng": {"base_url": provider.url},
                "provider": "searxng",
            } | options
        engine, sink = create(pool(**options)), OutcomeSink()
        bench = Bench(engine, sink)
        benches.append(bench)
        engine.start(sink)
        return bench

    yield begin
    for bench in benches:
        bench.engine.close()
        assert bench.sink.each_ended_once()


@pytest.fixture
def google_bench(
    provider: Provider, start: Start, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("MY_CX", CX)
    own = {"key_env": "MY_KEY", "cx_env": "MY_CX", "base_url": provider.url + "/v1"}
    return start(google=own, provider="google", requests_per_s=1000, burst=1000)


def test_searxng_is_asked_for_json_and_gives_pages(start, provider):
    outcome = start().search("what is  zip?\n", top_k=2)
    assert [page["url"] for page in outcome.value] == ["https://a", "https://b"]
    assert outcome.value[0]["snippet"] == outcome.value[0]["text"] == "S https://a"
    assert outcome.usage == {"items": 1, "results": 2, "requests": 1}
    assert outcome.sources == [
        {"id": u, "source": u, "score": s, "text": f"S {u}"}
        for u, s in (("https://a", 1.0), ("https://b", 0.5))
    ]
    assert provider.asked == [("/search", {"q": "what is zip?", "format": "json"})]


def test_searxng_turns_pages_until_there_is_enough_or_nothing_new(start, provider):
    def answer(handler: Handler) -> None:
        page = int(handler.query.get("pageno", "1"))
        names = {1: ("a", "b"), 2: ("b", "c"), 3: ("a", "c")}[page]
        handler.reply(searxng(*names))

    provider.answer = answer
    bench = start()
    outcome = bench.search(top_k=10)
    assert [page["url"] for page in outcome.value] == [f"https://{n}" for n in "abc"]
    assert outcome.usage["requests"] == 3
    assert bench.search(top_k=3).usage["requests"] == 2


def test_no_results_are_an_empty_list(start, provider):
    provider.answer = lambda h: h.reply({"results": []})
    assert start().search().value == []


def test_a_query_in_any_script_arrives_as_it_is(start, provider):
    query = "Köln 東京 🚀 & q=2#x"
    assert start().search(query + "\0").error is None
    assert provider.asked[0][1]["q"] == query


def test_google_is_asked_by_tens(google_bench, provider):
    def answer(handler: Handler) -> None:
        first, count = int(handler.query["start"]), int(handler.query["num"])
        handler.reply(google(*[f"g{i}" for i in range(first, first + count)]))

    provider.answer = answer
    outcome = google_bench.search(top_k=23)
    assert len(outcome.value) == 23
    pages = [(query["start"], query["num"]) for _, query in provider.asked]
    assert pages == [("1", "10"), ("11", "10"), ("21", "3")]
    path, query = provider.asked[0]
    assert (path, query["key"], query["cx"]) == ("/v1", KEY, CX)


def test_google_ends_with_the_last_page_it_has(google_bench, provider):
    provider.answer = lambda h: h.reply(google("a", "b", "c"))
    assert len(google_bench.search(top_k=30).value) == 3
    assert len(provider.asked) == 1


def test_secrets_are_in_no_error_and_in_no_log(google_bench, provider, caplog):
    caplog.set_level(logging.DEBUG)
    provider.answer = lambda h: h.reply(
        {"error": {"code": 400, "message": f"bad {KEY} and {h.path}"}}, status=400
    )
    error = google_bench.error()
    assert error.code == "provider_refused"
    provider.answer = lambda h: h.reply(f"<p>{KEY} {CX}".encode(), "text/html")
    page = google_bench.error()
    assert page.code == "provider_not_json"
    assert any(record.name == "httpx" for record in caplog.records)
    told = f"{error} {page} {google_bench.engine.describe()} {caplog.text}"
    assert [secret for secret in SECRETS if secret in told] == []


def test_a_key_that_is_not_set_is_told_at_start(monkeypatch):
    monkeypatch.delenv("NO_KEY", raising=False)
    engine = create(pool(google={"key_env": "NO_KEY"}, provider="google"))
    with pytest.raises(EnvironmentFaultError, match="NO_KEY"):
        engine.start(OutcomeSink())
    engine.close()


@pytest.mark.parametrize("query", ["", "  \n ", "\0", None, 7, ["a"], "x" * 2049])
def test_a_query_that_cannot_be_asked_is_refused_before_anything_is_sent(
    start, provider, query
):
    assert start().error(query).code == "invalid_input"
    assert provider.asked == []


@pytest.mark.parametrize("top_k", [0, -1, 101, 2.5, True, "5"])
def test_a_wrong_number_of_results_is_refused(start, provider, top_k):
    assert start().error(top_k=top_k).code == "invalid_input"
    assert provider.asked == []


def test_html_instead_of_json_is_a_typed_error(start, provider):
    provider.answer = lambda h: h.reply(b"<html>Sign in</html>", "text/html")
    error = start().error()
    assert (error.code, error.retryable) == ("provider_not_json", False)
    assert "Sign in" in error.message
    assert "search.formats" in error.hint


def test_a_busy_provider_is_retryable_and_asked_no_sooner_than_it_says(
    start, provider, monkeypatch
):
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)
        clock.now_s += wait_s
        await real_sleep(0)

    class Clock:
        now_s = 50.0

        def __call__(self) -> float:
            return self.now_s

    clock = Clock()
    monkeypatch.setattr("herasys_rt.engines.search.pace.asyncio.sleep", sleep)
    options = SearchOptions.model_validate(
        {"searxng": {"base_url": provider.url}, "provider": "searxng"}
    )
    engine, sink = SearchEngine(options, "", clock), OutcomeSink()
    engine.start(sink)
    bench = Bench(engine, sink)
    provider.answer = lambda h: h.reply({"error": "slow down"}, status=429, retry_after="9")
    error = bench.error()
    assert (error.code, error.retryable) == ("provider_busy", True)
    assert waits == []
    provider.answer = lambda h: h.reply(searxng("a"))
    assert bench.search(top_k=1).error is None
    assert waits == pytest.approx([9.0])
    engine.close()


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (500, "provider_failed", True),
        (503, "provider_failed", True),
        (403, "provider_refused", False),
        (302, "provider_refused", False),
    ],
)
def test_a_refused_search_says_whether_to_try_again(
    start, provider, status, code, retryable
):
    provider.answer = lambda h: h.reply(b"oops", "text/plain", status=status)
    error = start().error()
    assert (error.code, error.retryable) == (code, retryable)


def test_a_provider_that_is_not_there_is_retryable(start):
    bench = start(searxng={"base_url": "http://127.0.0.1:1"})
    error = bench.error()
    assert (error.code, error.retryable) == ("provider_unreachable", True)


def test_a_silent_provider_ends_in_a_timeout(start, provider):
    provider.answer = lambda h: h.until_gone()
    error = start(timeout_s=0.05).error()
    assert (error.code, error.retryable) == ("provider_timeout", True)
    assert provider.gone.wait(10)


def test_a_provider_that_drips_ends_in_a_timeout_too(start, provider):
    def drip(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                handler.wfile.write(b" ")
                handler.wfile.flush()
        except OSError:
            handler.server.gone.set()

    provider.answer = drip
    code = start(timeout_s=0.2).error().code
    # Whichever comes first on this machine: the time, or the most bytes of an answer.
    assert code in ("provider_timeout", "provider_malformed")
    assert provider.gone.wait(10)


def test_an_answer_without_end_is_cut_off(start, provider, monkeypatch):
    monkeypatch.setattr("herasys_rt.engines.search.web._MOST_BYTES", 1000)
    provider.answer = lambda h: h.reply(b" " * 2000)
    assert start().error().code == "provider_malformed"


def test_aborting_a_search_closes_its_request(start, provider):
    arrived = threading.Event()

    def answer(handler: Handler) -> None:
        arrived.set()
        handler.until_gone()

    provider.answer = answer
    bench = start()
    key = bench.submit()
    assert arrived.wait(10)
    bench.engine.abort(key)
    bench.engine.abort("unknown")
    assert bench.sink.outcome(key).aborted
    assert provider.gone.wait(10)
    assert bench.engine.snapshot().running == 0


def test_closing_ends_what_is_under_way(start, provider):
    arrived = threading.Event()

    def answer(handler: Handler) -> None:
        arrived.set()
        handler.until_gone()

    provider.answer = answer
    bench = start()
    key = bench.submit()
    assert arrived.wait(10)
    bench.engine.close()
    assert bench.sink.outcome(key).aborted


def test_one_bad_item_leaves_the_others_of_its_batch_alone(start, provider):
    bench = start()
    items = [
        Item("bad", "http.search", {"query": ""}),
        Item("odd", "embed", {"text": "x"}),
        Item("good", "http.search", {"query": "zip", "top_k": 1}),
    ]
    bench.engine.submit(items)
    error = bench.sink.outcome("odd").error
    assert error is not None and error.code == "unknown_verb"
    assert bench.sink.outcome("bad").error is not None
    assert bench.sink.outcome("good").value[0]["url"] == "https://a"


def test_a_provider_that_is_not_configured_is_refused_with_those_that_are(start):
    error = start().error(provider="google")
    assert error.code == "unknown_provider"
    assert "it has searxng" in error.message


def test_the_fingerprint_says_who_answers(start, google_bench):
    searx, other = start(), start(provider="searxng", searxng={"base_url": "http://x"})
    prints = {b.engine.describe()["fingerprint"] for b in (searx, other, google_bench)}
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"provider": "google"}, "needs a section google"),
        ({"provider": "bing"}, "provider"),
        ({"providor": "local"}, "did you mean 'provider'?"),
        ({"searxng": {"base_url": "ftp://x"}}, "searxng.base_url"),
        ({"requests_per_s": 0}, "requests_per_s"),
        ({}, "there is no database"),
    ],
)
def test_wrong_options_are_refused(options, told):
    with pytest.raises(ConfigError) as caught:
        create(pool(**options), "")
    assert told in caught.value.message
