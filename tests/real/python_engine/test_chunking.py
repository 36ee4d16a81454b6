"""Texts that the python engine cuts."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.engines.protocol import Item, Outcome
from herasys_rt.graph.types import PortType, value_fault
from tests.real.python_engine.bench import Bench, echo


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model directory whose tokens are words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("words")
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    return str(folder)


def chunk(bench: Bench, **args: Any) -> Outcome:
    bench.count += 1
    key = f"{bench.count}.1"
    bench.engine.submit([Item(key, "text.chunk", args)])
    return bench.sink.outcome(key)


def test_text_is_cut_by_tokens_with_an_overlap(start, tokenizer):
    text = " ".join(f"w{i}" for i in range(10))
    outcome = chunk(start(tokenizer=tokenizer), text=text, max_tokens=4, overlap=1)
    assert outcome.value == ["w0 w1 w2 w3", "w3 w4 w5 w6", "w6 w7 w8 w9"]
    assert outcome.usage == {"items": 1, "chunks": 3}
    assert value_fault(outcome.value, PortType.TEXTS) is None


@pytest.mark.parametrize("value", [None, "x", [1, {"a": 2.5}]])
def test_a_value_is_a_step_when_it_has_to_be(start, value):
    bench = start()
    bench.engine.submit([Item("value", "text.value", {"value": value})])
    assert bench.sink.outcome("value").value == value


@pytest.mark.parametrize("text", ["", " \n\t", "\0"])
def test_a_blank_text_gives_no_chunks(start, tokenizer, text):
    assert chunk(start(tokenizer=tokenizer), text=text).value == []


def test_broken_text_gives_chunks_of_clean_text(start, tokenizer):
    outcome = chunk(start(tokenizer=tokenizer), text="a\0 \ud83d 👩‍👩‍👧 b")
    assert outcome.value == ["a \ufffd 👩‍👩‍👧 b"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"text": 7}, "invalid_input"),
        ({"text": "a", "max_tokens": 0}, "invalid_chunking"),
        ({"text": "a", "max_tokens": 5, "overlap": 5}, "invalid_chunking"),
    ],
)
def test_what_cannot_be_chunked_is_refused(start, tokenizer, args, code):
    error = chunk(start(tokenizer=tokenizer), **args).error
    assert error is not None and error.code == code


def test_without_its_tokenizer_the_engine_still_calls_functions(start, tmp_path):
    bench = start(tokenizer=str(tmp_path))
    error = chunk(bench, text="a").error
    assert error is not None and error.code == "unknown_model"
    assert bench.value(echo, 1) == 1


def test_the_fingerprint_names_what_chunks_depend_on(start, tokenizer, tmp_path):
    prints = {
        start(tokenizer=name).engine.describe()["fingerprint"]
        for name in (tokenizer, str(tmp_path))
    }
    assert len(prints) == 2
