"""Every option of every engine: whether its fingerprint tells of it, or it changes nothing.

The fingerprint is part of what names work: results made with another option that changes
them are not taken. An option that is added has no line here, and a test says so.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

from herasys_rt import engines
from herasys_rt.config import PoolConfig
from herasys_rt.engines import modelled, openai
from herasys_rt.engines.options import EngineOptions
from herasys_rt.engines.search import engine as search
from herasys_rt.engines.sentence_model import fingerprint
from tests.outcome_sink import OutcomeSink

SPEED = {"threads", "device", "pool_size", "timeout_s", "statement_timeout_s", "burst"}
SPEED |= {"requests_per_s", "workers", "isolate", "cache_mb", "kv_cache_memory_mb"}
SPEED |= {"backend", "block_size", "enforce_eager", "gpu_memory_utilization", "base_s"}
SPEED |= {"tensor_parallel_size", "max_num_batched_tokens", "enable_prefix_caching"}
SPEED |= {"per_item_s", "per_token_s"}
ACCESS = {"key_env", "api_key_env", "verify", "trust_remote_code"}
REFUSES = {"context_tokens", "max_result_mb", "fail"}

TOLD: dict[str, set[str]] = {
    "SentenceTransformersOptions": {"dtype", "query_prefix", "document_prefix"},
    "VllmPoolingOptions": {"dtype", "max_model_len", "query_prefix", "document_prefix"},
    "ModelledOptions": {"tokens", "dimension"},
    "OpenAIOptions": {"base_url"},
    "PgvectorOptions": set(),
    "PythonOptions": {"tokenizer"},
    "CrossEncoderOptions": {"dtype", "max_length"},
    "LateInteractionOptions": {"dtype"},
    "GoogleOptions": {"base_url", "language", "cx_env"},
    "SearxngOptions": {"base_url", "language", "categories"},
    "LocalOptions": set(),
    "SearchOptions": {"provider", "google", "searxng"},
    "VllmOptions": {"dtype"},
}
OTHERWISE = {
    ("SearchOptions", "local"),  # by its own options
    ("VllmOptions", "max_model_len"),  # it cuts nothing: what is longer is refused
}


def options_of(kind: type[EngineOptions] = EngineOptions) -> Iterator[type[EngineOptions]]:
    for found in kind.__subclasses__():
        yield found
        yield from options_of(found)


def test_every_option_of_every_engine_has_its_line():
    for module in pkgutil.walk_packages(engines.__path__, f"{engines.__name__}."):
        importlib.import_module(module.name)
    found = {
        (kind.__name__, name)
        for kind in options_of()
        if kind.__module__.startswith(engines.__name__)
        for name in kind.model_fields
    }
    changes_nothing = SPEED | ACCESS | REFUSES
    told = {(kind, name) for kind, names in TOLD.items() for name in names}
    assert not {name for _, name in told} & changes_nothing
    assert {one for one in found if one[1] not in changes_nothing} == told | OTHERWISE


def told_by(create: Any, engine: str, *, model: Any = None, **options: Any) -> str:
    resource = "search" if engine == "web_search" else "llm"
    pool = PoolConfig.model_validate(
        {
            "name": "p",
            "resource": resource,
            "engine": engine,
            "model": model,
            "options": options,
        }
    )
    running = create(pool, "")
    running.start(OutcomeSink())
    try:
        return running.describe()["fingerprint"]
    finally:
        running.close()


def test_a_search_pool_tells_who_answers_and_how_it_is_asked(monkeypatch):
    for name, value in (("KEY", "k"), ("KEY2", "k2"), ("CX", "one"), ("CX2", "two")):
        monkeypatch.setenv(name, value)
    google = {"key_env": "KEY", "cx_env": "CX", "base_url": "http://g"}
    searxng = {"base_url": "http://s"}

    def told(provider: str = "google", **sections: Any) -> str:
        given = {"google": google, "searxng": searxng} | sections
        return told_by(search.create, "web_search", provider=provider, **given)

    base = told()
    others = [
        told("searxng"),
        told(google={**google, "base_url": "http://h"}),
        told(google={**google, "language": "lang_en"}),
        told(google={**google, "cx_env": "CX2"}),
        told(searxng={**searxng, "base_url": "http://t"}),
        told(searxng={**searxng, "language": "de"}),
        told(searxng={**searxng, "categories": "it"}),
        told(searxng=None),
    ]
    assert len({base, *others}) == len(others) + 1
    assert told(google={**google, "key_env": "KEY2"}) == base
    monkeypatch.setenv("CX", "two")  # the engine counts, not where its name stands
    assert told() == others[3]


def test_a_database_that_nobody_could_ask_is_like_no_other():
    def told() -> str:
        running = search.create(
            PoolConfig(name="p", resource="search", engine="web_search"),
            "host=/nowhere dbname=none",
        )
        running.start(OutcomeSink())
        try:
            return running.describe()["fingerprint"]
        finally:
            running.close()

    assert told() != told()


@pytest.mark.parametrize("engine", ["openai", "modelled"])
def test_a_pool_without_a_model_of_its_own_tells_what_values_depend_on(engine: str):
    create = {"openai": openai.create, "modelled": modelled.create}[engine]
    variants: list[dict[str, Any]] = {
        "openai": [
            {"base_url": "http://a/v1"},
            {"base_url": "http://a/v2"},
            {"base_url": "http://b/v1"},
            {"base_url": "http://a:81/v1"},
        ],
        "modelled": [{}, {"tokens": 9}, {"dimension": 9}],
    }[engine]
    told = [told_by(create, engine, model="m", **options) for options in variants]
    told.append(told_by(create, engine, model="n", **variants[0]))
    assert len(set(told)) == len(told)


def test_an_embedder_or_reranker_tells_files_type_prefixes_and_where_it_cuts():
    base: tuple[Any, ...] = (
        "files:1",
        "st",
        "float32",
        {"query": "q", "document": "d"},
        512,
    )
    others: list[tuple[Any, ...]] = [
        ("files:2", *base[1:]),
        ("files:1", "vllm", *base[2:]),
        ("files:1", "st", "bfloat16", *base[3:]),
        (*base[:3], {"query": "qd", "document": ""}, 512),
        (*base[:3], {"query": "d", "document": "q"}, 512),
        (*base[:4], 256),
    ]
    assert len({fingerprint(*each) for each in (base, *others)}) == len(others) + 1
