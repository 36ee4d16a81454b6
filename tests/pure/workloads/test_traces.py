"""Recorded traces: what is replayed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.errors import ConfigError
from herasys_rt.workloads.traces import Trace, TraceFormat
from tests.pure.workloads.jobs_check import calls, check_jobs, shared

BenchData = Callable[..., Path]

FILES: dict[TraceFormat, tuple[str, ...]] = {
    "azure": ("azure-llm-2023", "AzureLLMInferenceTrace_code.csv"),
    "mooncake": ("mooncake-fast25", "conversation_trace.jsonl"),
    "lmcache": ("lmcache-agent-trace", "magagent_blksz_256chars.jsonl"),
    "claude_code": ("claude-code", "uniq_le128k_sessions.delta.jsonl"),
}
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def trace(tmp_path: Path, format: TraceFormat, text: str) -> Trace:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    return Trace("test", format, str(path))


def mooncake(at_ms: float, prompt: int = 600, ids: tuple[int, ...] = (1, 2), **more: Any):
    row = {"timestamp": at_ms, "input_length": prompt, "output_length": 5}
    return {**row, "hash_ids": list(ids), **more}


def request(at_s: float, prompt: int, tail: list[list[int]], **more: Any) -> dict[str, Any]:
    row = {"a": 0, "t": at_s, "ty": "n", "m": "m", "in": prompt, "out": 3, "p": -1, "k": 0}
    return {**row, "tail": tail, "api_time": 1.0, "think_time": 0.0, **more}


def session(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "s", "block": 64, "tool": 64, "sys": 64, "rows": list(rows), **more}


# The real ones


@pytest.mark.parametrize("format", FILES)
def test_real_traces_give_sound_jobs(bench_data: BenchData, format):
    found = Trace("real", format, str(bench_data("traces", *FILES[format])))
    jobs = found.jobs(1, 20, None)
    assert len(jobs) == 20
    check_jobs(jobs)
    timed = format in ("azure", "mooncake")
    assert all((job.arrival_s is not None) == timed for job in jobs)


def test_the_azure_trace_is_as_published(bench_data: BenchData):
    path = bench_data("traces", *FILES["azure"])
    jobs = Trace("azure", "azure", str(path)).jobs(1, 8819, None)
    first = jobs[0].steps[0].truth
    assert (first.prompt_tokens, first.output_tokens) == (4808, 10)
    assert (jobs[0].arrival_s, jobs[1].arrival_s) == (0.0, pytest.approx(0.052))
    assert jobs[-1].arrival_s == pytest.approx(3435.948056)


def test_conversations_of_the_mooncake_trace_share_their_history(bench_data: BenchData):
    path = bench_data("traces", *FILES["mooncake"])
    jobs = Trace("mooncake", "mooncake", str(path)).jobs(1, 3, None)
    one, other, _ = (job.steps[0].truth.prefix for job in jobs)
    assert shared(one, other) == 512 // 16


def test_a_coding_agent_waits_for_its_sub_agents(bench_data: BenchData):
    path = bench_data("traces", *FILES["claude_code"])
    jobs = Trace("claude", "claude_code", str(path)).jobs(1, 241, None)
    assert sum(len(job.steps) for job in jobs) == 9052
    joins = [step for step in calls(jobs) if len(step.parents) > 1]
    assert joins
    assert all(step.after_s >= 0 for step in joins)


def test_sessions_with_equal_heads_share_them(tmp_path):
    text = lines(
        session(request(0, 200, [[1, 3]]), id="a"),
        session(request(0, 200, [[1, 3]]), id="b"),
        session(request(0, 200, [[1, 3]]), id="c", tool=0),
    )
    jobs = trace(tmp_path, "claude_code", text).jobs(1, 3, None)
    one, other, third = (job.steps[0].truth.prefix for job in jobs)
    assert shared(one, other) == 128 // 16
    assert shared(one, third) == 0


# What is replayed


def test_a_recorded_request_keeps_its_time_and_lengths(tmp_path):
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    one, other = trace(tmp_path, "azure", HEADER + rows).jobs(1, 2, None)
    assert (one.arrival_s, other.arrival_s) == (0.0, pytest.approx(0.052))
    assert other.steps[0].truth.prompt_tokens == 3180
    assert other.steps[0].truth.prefix == ()


def test_requests_are_taken_in_order_of_arrival(tmp_path):
    text = lines(mooncake(3000, 700), mooncake(1000, 600), mooncake(2000, 800))
    jobs = trace(tmp_path, "mooncake", text).jobs(1, 2, None)
    assert [job.arrival_s for job in jobs] == [0.0, 1.0]
    assert [job.steps[0].truth.prompt_tokens for job in jobs] == [600, 800]


def test_a_rate_stretches_the_trace_and_keeps_its_bursts(tmp_path):
    text = lines(*[mooncake(at) for at in (0, 10, 20, 4000)])
    found = trace(tmp_path, "mooncake", text)
    own = [job.arrival_s or 0 for job in found.jobs(1, 4, None)]
    faster = [job.arrival_s or 0 for job in found.jobs(1, 4, 10.0)]
    assert faster[-1] == pytest.approx(3 / 10)
    assert faster == pytest.approx([at * faster[-1] / own[-1] for at in own])


def test_a_trace_that_comes_all_at_once_has_no_rate_to_stretch(tmp_path):
    text = lines(mooncake(5), mooncake(5))
    jobs = trace(tmp_path, "mooncake", text).jobs(1, 2, 10.0)
    assert [job.arrival_s for job in jobs] == [0.0, 0.0]


def test_a_trace_without_times_gets_poisson_arrivals(tmp_path):
    text = lines(*[session(request(0, 64, [[0, 1]])) for _ in range(50)])
    found = trace(tmp_path, "claude_code", text)
    assert {job.arrival_s for job in found.jobs(1, 50, None)} == {None}
    arrivals = [job.arrival_s for job in found.jobs(1, 50, 5.0)]
    assert arrivals != [job.arrival_s for job in found.jobs(2, 50, 5.0)]
    assert arrivals[-1] == pytest.approx(10, rel=0.5)


def test_only_whole_blocks_of_a_prompt_are_named(tmp_path):
    (job,) = trace(tmp_path, "mooncake", lines(mooncake(0, 600))).jobs(1, 1, None)
    assert len(job.steps[0].truth.prefix) == 600 // 16


def test_a_chat_is_a_chain_of_its_turns(tmp_path):
    row = {
        "chat_id": "ä",
        "t": 0.0,
        "input_length": 70,
        "output_length": 5,
        "hash_ids": [4],
    }
    text = lines({**row, "turn": 2}, {**row, "turn": 1, "chat_id": "b"}, {**row, "turn": 1})
    first, second = trace(tmp_path, "lmcache", text).jobs(1, 2, None)
    assert [step.parents for step in first.steps] == [(), ("turn-0",)]
    assert len(second.steps) == 1
    assert first.revealed


def test_a_session_waits_as_long_as_it_waited(tmp_path):
    rows = [
        request(0, 200, [[1, 3]]),
        request(5, 300, [[9, 1]], p=0, k=3),
        {"a": 0, "sub": "x", "t": 7.0, "kind": "Explore", "tool": 0, "sys": 0},
        request(0, 64, [[30, 1]], a="x"),
        request(2, 64, [[30, 1]], a="x"),
        {"a": 0, "sub": "y", "t": 12.0, "kind": "Explore", "tool": 0, "sys": 0},
        request(0, 64, [[40, 1]], a="y"),
        request(15, 64, [[9, 1]]),
    ]
    (job,) = trace(tmp_path, "claude_code", lines(session(*rows))).jobs(1, 1, None)
    check_jobs([job])
    assert [(step.parents, step.after_s) for step in job.steps] == [
        ((), 0.0),
        (("request-0",), 4.0),
        (("request-1",), 1.0),  # x starts at 7, request 1 had ended at 6
        (("request-2",), 1.0),
        (("request-3",), 2.0),  # y starts at 12, x had ended at 10
        (("request-1", "request-3", "request-4"), 2.0),  # y ended last, at 13
    ]
    one, two = job.steps[0].truth.prefix, job.steps[1].truth.prefix
    assert two[: len(one)] == one


def test_the_recorded_pause_counts_where_no_service_time_was(tmp_path):
    first = request(0, 64, [[1, 1]])
    del first["api_time"]
    second = request(9, 64, [[1, 1]], think_time=2.5)
    (job,) = trace(tmp_path, "claude_code", lines(session(first, second))).jobs(1, 1, None)
    assert job.steps[1].after_s == 2.5


# What is refused


@pytest.mark.parametrize("format", FILES)
def test_an_empty_trace_is_refused(tmp_path, format):
    text = HEADER if format == "azure" else "\n"
    with pytest.raises(ConfigError, match=r"holds no (requests|chats|sessions)"):
        trace(tmp_path, format, text).jobs(1, 1, None)


@pytest.mark.parametrize("format", FILES)
def test_a_missing_trace_is_refused(tmp_path, format):
    with pytest.raises(ConfigError, match=r"nowhere\.csv does not exist") as caught:
        Trace("test", format, str(tmp_path / "nowhere.csv")).jobs(1, 1, None)
    assert "docs/workloads.md" in caught.value.hint


def test_more_runs_than_there_are_are_refused_with_both_numbers(tmp_path):
    with pytest.raises(ConfigError, match="holds 1 runs, and 2 were asked for"):
        trace(tmp_path, "mooncake", lines(mooncake(0))).jobs(1, 2, None)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_that_cannot_be_is_refused_before_anything_is_read(rate):
    with pytest.raises(ConfigError, match="rate of"):
        Trace("test", "azure", "nowhere").jobs(1, 1, rate)


def test_every_broken_line_is_told_with_its_number(tmp_path):
    text = lines(mooncake(0), mooncake(1, prompt=0), mooncake(2, prompt="x")) + "{\n"  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="has 3 faults") as caught:
        trace(tmp_path, "mooncake", text).jobs(1, 1, None)
    for line in ("line 2: a prompt of 0 tokens", "line 3: ", "line 4: "):
        assert line in caught.value.message


def test_of_many_broken_lines_the_first_are_told(tmp_path):
    with pytest.raises(ConfigError, match=r"has 30 faults[^$]*and 20 more"):
        trace(tmp_path, "mooncake", "x\n" * 30).jobs(1, 1, None)


def test_broken_rows_of_a_table_are_refused(tmp_path):
    rows = "2023-11-16 18:17:03.9,12,3\nyesterday,3,4\n2023-11-16 18:17:03.9,-5,3\n2023\n"
    with pytest.raises(ConfigError, match="has 3 faults") as caught:
        trace(tmp_path, "azure", HEADER + rows).jobs(1, 1, None)
    assert "line 4: a prompt of -5 tokens" in caught.value.message


def test_a_table_of_something_else_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no column TIMESTAMP, GeneratedTokens"):
        trace(tmp_path, "azure", "ContextTokens\n5\n").jobs(1, 1, None)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "no requests"),
        ([request(0, 64, [[1, 1]], a="ghost")], "agent 'ghost', which never started"),
        ([request(0, 64, [[1, 1]], p=3)], "goes on from 3:0"),
        ([request(0, 64, [[-4, 1]])], "blocks below 0"),
        ([request(0, 0, [[1, 1]])], "a prompt of 0 tokens"),
        ([{"a": 0, "t": 0.0}], "no prompt"),
    ],
)
def test_a_session_that_contradicts_itself_is_refused(tmp_path, rows, problem):
    with pytest.raises(ConfigError, match=problem):
        trace(tmp_path, "claude_code", lines(session(*rows))).jobs(1, 1, None)


def test_a_session_of_other_blocks_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="blocks of 10 tokens"):
        trace(tmp_path, "claude_code", lines(session(block=10))).jobs(1, 1, None)
