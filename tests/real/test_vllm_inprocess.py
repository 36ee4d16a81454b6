"""The vLLM engine stepped in this process, with the real small model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.engines.protocol import Item, Snapshot
from herasys_rt.engines.vllm import VllmEngine, create
from herasys_rt.errors import EnvironmentFaultError
from tests.leftovers import no_new_threads
from tests.real.llm_sink import Recorder, ask

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

CONTEXT = 1024


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def engine(recorder: Recorder) -> Iterator[VllmEngine]:
    before = set(threading.enumerate())
    pool = PoolConfig(
        name="llm",
        resource="llm",
        engine="vllm",
        model="smollm2-135m",
        slots=8,
        options={"max_model_len": CONTEXT, "kv_cache_memory_mb": 128},
    )
    engine = create(pool)
    assert isinstance(engine, VllmEngine)
    engine.start(recorder)
    yield engine
    engine.close()
    engine.close()
    assert all(len(ends) == 1 for ends in recorder.outcomes.values())
    no_new_threads(before)


def is_idle(snapshot: Snapshot) -> bool:
    return (snapshot.running, snapshot.waiting) == (0, 0)


def test_a_question_is_answered_with_usage_and_sources(
    engine: VllmEngine, recorder: Recorder
) -> None:
    chunk = {"id": "c1", "text": "The sky is blue.", "source": "sky", "score": 0.5}
    args = {"var:context": [chunk], "var:q": "What is the capital of France?"}
    engine.submit([ask("fact", "{q}\n\nNotes: {context}", **args, max_tokens=24)])
    outcome = recorder.outcome("fact")
    assert outcome.error is None and "Paris" in outcome.value
    assert outcome.sources == [chunk]
    assert outcome.usage["prompt_tokens"] > 10
    assert 0 < outcome.usage["completion_tokens"] <= 24
    assert outcome.run_s > 0
    assert recorder.began.count("fact") == 1


def test_describe_tells_the_fingerprint_and_the_context(engine: VllmEngine) -> None:
    facts = engine.describe()
    assert facts["context_tokens"] == CONTEXT
    assert "chat:" in facts["fingerprint"]
    assert "smollm2-135m" in facts["names"]


def test_streamed_pieces_concatenate_to_the_value_also_with_multibyte_text(
    engine: VllmEngine, recorder: Recorder
) -> None:
    prompt = "Repeat exactly: 🙂🙃🚀 東京タワー ภาษาไทย café — 🙂🙃🚀 東京タワー"
    engine.submit(
        [
            ask("stream", prompt, stream=True, max_tokens=48),
            ask("whole", prompt, max_tokens=48),
        ]
    )
    value = recorder.outcome("stream").value
    pieces = recorder.pieces["stream"]
    assert "".join(text for text, _ in pieces) == value
    assert all(text for text, _ in pieces)
    assert "\ufffd" not in value
    assert (
        sum(n for _, n in pieces)
        <= recorder.outcomes["stream"][0].usage["completion_tokens"]
    )
    assert recorder.outcome("whole").value == value
    assert "whole" not in recorder.pieces


def test_a_text_cut_inside_a_character_ends_before_it(
    engine: VllmEngine, recorder: Recorder
) -> None:
    turn = [
        {"role": "user", "content": "Say it."},
        {"role": "assistant", "content": "🙂🙃🚀" * 6},
    ]
    messages = [*turn * 4, turn[0]]
    lengths = range(1, 9)  # an emoji is several tokens, so most of these cut one
    engine.submit(
        [
            Item(
                f"emoji-{n}",
                "llm.generate",
                {"messages": messages, "max_tokens": n},
                stream=True,
            )
            for n in lengths
        ]
    )
    outcomes = [recorder.outcome(f"emoji-{n}") for n in lengths]
    assert [o.usage["completion_tokens"] for o in outcomes] == list(lengths)
    assert all(o.truncated and set(o.value) <= set("🙂🙃🚀") for o in outcomes)
    assert len(outcomes[-1].value) >= 2 and len({o.value for o in outcomes}) < len(lengths)
    for n, outcome in zip(lengths, outcomes, strict=True):
        pieces = recorder.pieces.get(f"emoji-{n}", [])
        assert "".join(text for text, _ in pieces) == outcome.value


def test_a_text_cut_at_max_tokens_says_so(engine: VllmEngine, recorder: Recorder) -> None:
    engine.submit([ask("cut", "Write a long story about the sea.", max_tokens=4)])
    outcome = recorder.outcome("cut")
    assert outcome.truncated and outcome.usage["completion_tokens"] == 4


def test_stop_strings_end_the_text_and_are_no_part_of_it(
    engine: VllmEngine, recorder: Recorder
) -> None:
    engine.submit(
        [
            ask("stop", "Count: one two three four five", stream=True, stop=["e"]),
        ]
    )
    outcome = recorder.outcome("stop")
    assert not outcome.truncated
    assert "e" not in outcome.value
    assert "".join(t for t, _ in recorder.pieces.get("stop", [])) == outcome.value


def length_of(engine: VllmEngine, recorder: Recorder, key: str, prompt: str) -> int:
    engine.submit([ask(key, prompt, max_tokens=1)])
    return recorder.outcome(key).usage["prompt_tokens"]


def test_prompts_at_the_limit_work_and_one_token_more_is_refused_with_both_numbers(
    engine: VllmEngine, recorder: Recorder
) -> None:
    base = length_of(engine, recorder, "base", " a")
    words = 200
    tokens = length_of(engine, recorder, "words", " a" * words)
    assert tokens == base + words - 1, "the probe word is one token"
    room = CONTEXT - tokens
    engine.submit(
        [
            ask("below", " a" * words, max_tokens=room - 1, stop=["a", "e", "i", " "]),
            ask("at", " a" * words, max_tokens=room, stop=["a", "e", "i", " "]),
            ask("above", " a" * words, max_tokens=room + 1),
        ]
    )
    assert recorder.outcome("below").error is None
    assert recorder.outcome("at").error is None
    error = recorder.outcome("above").error
    assert error is not None and error.code == "prompt_too_long"
    assert not error.retryable
    assert str(tokens) in error.message and str(room + 1) in error.message


def test_a_bad_item_fails_alone(engine: VllmEngine, recorder: Recorder) -> None:
    engine.submit(
        [
            ask("bad-var", "{nothing}"),
            ask("bad-temperature", "Hello", temperature=-1.0),
            ask("bad-empty", "  "),
            Item("bad-verb", "embed", {}),
            ask("good", "Say hello."),
        ]
    )
    codes = {key: recorder.outcome(key).error for key in ("bad-var", "bad-temperature")}
    assert codes["bad-var"] is not None and codes["bad-var"].code == "invalid_prompt"
    assert codes["bad-temperature"] is not None
    assert codes["bad-temperature"].code == "invalid_sampling"
    assert recorder.outcome("bad-empty").error is not None
    assert recorder.outcome("bad-verb").error is not None
    assert recorder.outcome("good").error is None


def test_an_abort_takes_effect_at_every_moment(
    engine: VllmEngine, recorder: Recorder
) -> None:
    story = "Write a very long story about a ship."
    engine.submit([ask("early", story, stream=True, max_tokens=400)])
    engine.abort("early")
    assert recorder.outcome("early").aborted

    engine.submit([ask("running", story, stream=True, max_tokens=400)])
    recorder.first_piece("running")
    engine.abort("running")
    engine.abort("running")
    assert recorder.outcome("running").aborted
    assert recorder.outcomes["running"][0].value is None

    engine.submit([ask("ended", "Say hello.", max_tokens=2)])
    recorder.outcome("ended")
    engine.abort("ended")
    engine.abort("never-seen")

    for i in range(20):
        engine.submit([ask(f"race{i}", story, max_tokens=3)])
        if i % 2:
            engine.abort(f"race{i}")
    for i in range(20):
        outcome = recorder.outcome(f"race{i}")
        assert outcome.aborted or outcome.value is not None
    engine.submit([ask("after", "Say hello.", max_tokens=2)])
    assert recorder.outcome("after").error is None
    assert is_idle(engine.snapshot())


def test_the_prefix_cache_serves_one_trust_scope_and_no_other(
    engine: VllmEngine, recorder: Recorder
) -> None:
    prompt = "Remember this list of words: " + "tree stone river cloud " * 40
    for key, scope in (("t1", "a"), ("t2", "a"), ("t3", "b")):
        engine.submit([ask(key, prompt, scope=scope, max_tokens=2)])
        recorder.outcome(key)
    cached = [recorder.outcomes[k][0].usage["cached_tokens"] for k in ("t1", "t2", "t3")]
    assert cached[0] == 0 and cached[1] >= 128 and cached[2] == 0


def test_a_seeded_sample_repeats_and_items_run_together(
    engine: VllmEngine, recorder: Recorder
) -> None:
    sampled: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 12}
    engine.submit([ask(f"s{i}", "Tell me something.", **sampled) for i in range(4)])
    values = {recorder.outcome(f"s{i}").value for i in range(4)}
    assert len(values) == 1


def test_a_second_engine_in_the_process_is_refused(engine: VllmEngine) -> None:
    second = create(
        PoolConfig(name="b", resource="llm", engine="vllm", model="smollm2-135m")
    )
    with pytest.raises(EnvironmentFaultError, match="already"):
        second.start(Recorder())
    second.close()
