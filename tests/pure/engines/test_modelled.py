"""The engine that executes nothing: values, time, pieces, aborts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.modelled import create
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.errors import ConfigError


class Recorder:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.events: list[tuple[Any, ...]] = []
        self.outcomes: dict[str, Outcome] = {}

    def started(self, key: str) -> None:
        self.events.append(("started", key))

    def piece(self, key: str, text: str, tokens: int) -> None:
        assert key not in self.outcomes
        self.events.append(("piece", key, text, tokens))

    def finished(self, key: str, outcome: Outcome) -> None:
        with self.changed:
            assert key not in self.outcomes, "ended twice"
            self.outcomes[key] = outcome
            self.changed.notify_all()

    def collection_changed(self, collection: str, revision: int) -> None:
        self.events.append(("changed", collection, revision))

    def wait(self, *keys: str) -> list[Outcome]:
        with self.changed:
            assert self.changed.wait_for(lambda: set(keys) <= set(self.outcomes), 10)
        return [self.outcomes[key] for key in keys]

    def text(self, key: str) -> str:
        return "".join(e[2] for e in self.events if e[:2] == ("piece", key))


@pytest.fixture
def sink() -> Recorder:
    return Recorder()


@pytest.fixture
def opened() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.close()
        engine.close()
    assert not [t for t in threading.enumerate() if t.name == "modelled"]


def start(sink: Recorder, opened: list[Engine], **options: Any) -> Engine:
    pool = PoolConfig(name="p", resource="llm", engine="modelled", options=options)
    engine = create(pool)
    opened.append(engine)
    engine.start(sink)
    return engine


def test_with_zero_times_items_end_inside_submit(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened)
    engine.submit([Item("a", "llm.generate", {"prompt": "x"}, stream=True)])
    assert sink.outcomes["a"].value.startswith("modelled:")
    assert sink.text("a") == sink.outcomes["a"].value
    assert engine.snapshot().running == 0
    assert engine.describe()["modelled"] is True


def test_values_depend_on_the_arguments_alone(sink: Recorder, opened: list[Engine]) -> None:
    engine = start(sink, opened)
    for key, prompt in (("a", "x"), ("b", "x"), ("c", "y")):
        engine.submit([Item(key, "llm.generate", {"prompt": prompt})])
    values = [outcome.value for outcome in sink.wait("a", "b", "c")]
    assert values[0] == values[1] != values[2]


def test_a_generated_text_has_the_asked_tokens_and_says_when_it_was_cut(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened, tokens=5)
    chunks = [{"id": "1", "text": "t", "source": "s", "score": 1.0}]
    engine.submit([Item("whole", "llm.generate", {"max_tokens": 9, "var:c": chunks})])
    engine.submit([Item("cut", "llm.generate", {"max_tokens": 3})])
    whole, cut = sink.wait("whole", "cut")
    assert (len(whole.value.split()), whole.truncated) == (5, False)
    assert (len(cut.value.split()), cut.truncated) == (3, True)
    assert whole.usage["completion_tokens"] == 5
    assert whole.sources == chunks


def test_vectors_are_unit_length_float32_of_the_asked_dimension(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened, dimension=16)
    engine.submit(
        [
            Item("one", "embed", {"text": "x"}),
            Item("many", "embed", {"text": ["x", "y"]}),
            Item("none", "embed", {"text": []}),
        ]
    )
    one, many, none = (o.value for o in sink.wait("one", "many", "none"))
    assert one.shape == (16,) and one.dtype == np.float32
    assert np.isclose(np.linalg.norm(one), 1.0)
    assert many.shape == (2, 16) and none.shape == (0, 16)
    assert np.array_equal(many[0], one)


def test_documents_are_cut_by_words(sink: Recorder, opened: list[Engine]) -> None:
    documents = [{"id": "d", "text": "a b c"}, {"id": "e", "text": "d", "source": "s"}]
    args = {"documents": documents, "max_tokens": 2, "overlap": 0}
    start(sink, opened).submit([Item("cut", "text.chunk", args)])
    (cut,) = sink.wait("cut")
    assert [(c["id"], c["text"], c["source"], c["index"]) for c in cut.value] == [
        ("d#0", "a b", "d", 0),
        ("d#1", "c", "d", 1),
        ("e#0", "d", "s", 0),
    ]


def test_searches_give_chunks_and_writes_move_the_revision(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened)
    embedded = {"chunks": [{"id": "1", "source": "s", "text": "t"}], "vectors": None}
    engine.submit(
        [
            Item("before", "pg.search", {"collection": "c", "top_k": 3}),
            Item("write", "pg.write", {"collection": "c", "embedded": embedded}),
            Item("after", "pg.search", {"collection": "c", "top_k": 3}),
        ]
    )
    before, write, after = sink.wait("before", "write", "after")
    assert len(before.value) == 3 and set(before.value[0]) >= {"id", "text", "source"}
    assert [before.revisions["c"], after.revisions["c"]] == [0, 1]
    assert write.value == {"collection": "c", "documents": 1, "chunks": 1, "revision": 1}
    assert ("changed", "c", 1) in sink.events


def test_reranking_gives_each_chunk_a_score_of_its_text(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened)
    chunks = [{"id": str(i), "text": f"t{i // 2}", "source": "s"} for i in range(6)]
    engine.submit([Item("r", "rerank", {"query": "q", "chunks": chunks})])
    scores = sink.outcomes["r"].value
    assert scores[::2] == scores[1::2] and len(set(scores)) == 3


def test_a_named_text_makes_an_item_fail_and_its_mates_succeed(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened, fail="boom")
    engine.submit(
        [
            Item("bad", "llm.generate", {"prompt": "go boom"}),
            Item("good", "llm.generate", {"prompt": "go"}),
            Item("odd", "embed", {"text": 3}),
            Item("unknown", "llm.prefill", {}),
        ]
    )
    bad, good, odd, unknown = sink.wait("bad", "good", "odd", "unknown")
    assert bad.error is not None and bad.error.code == "modelled_failure"
    assert good.error is None
    assert odd.error is not None and odd.error.code == "invalid_argument"
    assert unknown.error is not None and unknown.error.code == "unknown_verb"


def test_timed_items_stream_their_text_and_end_in_the_order_they_are_due(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened, base_s=0.001, per_token_s=0.001, tokens=60)
    engine.submit(
        [
            Item("long", "llm.generate", {"max_tokens": 60}, stream=True),
            Item("short", "llm.generate", {"max_tokens": 2}),
        ]
    )
    sink.wait("long", "short")
    assert list(sink.outcomes) == ["short", "long"]
    assert sink.text("long") == sink.outcomes["long"].value
    assert len([e for e in sink.events if e[:2] == ("piece", "long")]) == 3
    assert next(e for e in sink.events if e[0] == "started") == ("started", "long")
    assert sink.outcomes["long"].run_s == pytest.approx(0.061)


def test_an_aborted_item_ends_at_once_and_once(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened, base_s=3600.0)
    engine.submit([Item("a", "embed", {"text": "x"}), Item("b", "embed", {"text": "x"})])
    engine.abort("a")
    engine.abort("a")
    engine.abort("unknown")
    assert sink.outcomes["a"].aborted
    assert engine.snapshot().running == 1
    engine.close()
    assert "b" not in sink.outcomes


def test_unknown_options_are_refused_with_the_nearest_known_one() -> None:
    pool = PoolConfig(name="p", resource="llm", engine="modelled", options={"base": 1})
    with pytest.raises(ConfigError, match="base_s"):
        create(pool)


def test_answers_have_the_form_that_was_asked_for(
    sink: Recorder, opened: list[Engine]
) -> None:
    engine = start(sink, opened, tokens=4)
    schema = '{"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2}'
    choice = {"choices": ["yes", "no"], "values": [True, False]}
    engine.submit(
        [
            Item("many", "llm.generate", {"n": 3, "max_tokens": 9}, stream=True),
            Item("told", "llm.generate", {"logprobs": 1}),
            Item("json", "llm.generate", {"schema": schema, "max_tokens": 2}),
            Item("choice", "llm.generate", choice, stream=True),
            Item("bad", "llm.generate", {"n": 99}),
            Item("unknown", "llm.generate", {"schema": '{"type":"string","pattern":"a"}'}),
        ]
    )
    assert len(sink.outcomes["many"].value) == 3 == len(set(sink.outcomes["many"].value))
    assert sink.outcomes["many"].usage["completion_tokens"] == 12
    assert set(sink.outcomes["told"].value) == {"text", "logprobs"}
    assert set(sink.outcomes["json"].value) <= {"a", "b"}
    assert not sink.outcomes["json"].truncated
    assert sink.outcomes["choice"].value in (True, False)
    assert not [event for event in sink.events if event[0] == "piece"]
    codes = {key: sink.outcomes[key].error for key in ("bad", "unknown")}
    assert codes["bad"] is not None and codes["bad"].code == "invalid_form"
    assert codes["unknown"] is not None and codes["unknown"].code == "no_example"
