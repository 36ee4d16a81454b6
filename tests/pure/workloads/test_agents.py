"""What can be said of agents beyond the named workloads: reuse, pauses, real lengths."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from herasys_rt.errors import ConfigError
from herasys_rt.workloads import Job
from herasys_rt.workloads.agents import Chains, Chat, ToolChain, TreeSearch
from herasys_rt.workloads.draws import Spread, fixed
from herasys_rt.workloads.lengths import read_chains, read_pairs, read_tasks
from herasys_rt.workloads.mixture import Mixture, Part
from herasys_rt.workloads.sources import Source
from tests.pure.workloads.jobs_check import calls, check_jobs

BenchData = Callable[..., Path]


def jobs_of(source: Source, runs: int = 15, seed: int = 1) -> Sequence[Job]:
    jobs = Mixture("test", (Part(source),)).jobs(seed, runs, None)
    check_jobs(jobs)
    return jobs


SOURCES = [Chat, ToolChain, TreeSearch]


@pytest.mark.parametrize("make", SOURCES)
def test_without_reuse_no_prompt_shares_anything(make):
    jobs = jobs_of(make(reuse="none"))
    assert all(step.truth.prefix == step.truth.produced == () for step in calls(jobs))
    assert all(step.truth.cached_tokens == 0 for step in calls(jobs))


@pytest.mark.parametrize("make", SOURCES)
def test_how_heads_are_reused_changes_no_length(make):
    lengths = [
        [(s.truth.prompt_tokens, s.truth.output_tokens) for s in calls(jobs_of(source))]
        for source in (make(reuse="blocks"), make(reuse="given"), make(reuse="none"))
    ]
    assert lengths[0] == lengths[1] == lengths[2]


def test_given_reuse_takes_all_that_was_before_as_cached():
    job = jobs_of(ToolChain(reuse="given", tool_sets=1), 1)[0]
    assert job.steps[0].truth.cached_tokens == 3082
    for before, after in zip(job.steps, job.steps[1:], strict=False):
        held = before.truth.prompt_tokens + before.truth.output_tokens
        assert after.truth.cached_tokens == held


def test_a_prompt_is_never_cached_to_its_last_token():
    source = TreeSearch(reuse="given", prompt=fixed(30), instructions=200)
    assert {step.truth.cached_tokens for step in calls(jobs_of(source))} == {29}


def test_tools_and_users_take_their_time_between_calls():
    for source in (ToolChain(tool_s=fixed(0.5)), Chat(think_s=fixed(0.5))):
        for job in jobs_of(source, 10):
            assert [s.after_s for s in job.steps] == [0.0] + [0.5] * (len(job.steps) - 1)


def test_an_environment_takes_its_time_before_an_answer_is_valued():
    job = jobs_of(TreeSearch(tool_s=fixed(0.2)), 1)[0]
    assert {step.after_s for step in job.steps if step.label == "evaluate"} == {0.2}
    assert {step.after_s for step in job.steps if step.label == "expand"} == {0.0}


def test_expansions_have_the_papers_spread():
    source = TreeSearch(width=1, prompt=fixed(1), instructions=1)
    expansions = [len(job.steps) / 2 for job in jobs_of(source, 600)]
    assert statistics.fmean(expansions) == pytest.approx(16, rel=0.03)
    assert statistics.stdev(expansions) == pytest.approx(5, rel=0.06)


def test_impossible_numbers_of_turns_are_held_within_bounds():
    job = jobs_of(Chat(turns=Spread(1e9, 3.0), user=fixed(1), output=fixed(1)), 1)[0]
    assert len(job.steps) == 1_000


# Real lengths


def test_real_conversation_lengths(bench_data: BenchData):
    path = bench_data("workloads", "sharegpt", "helix_sharegpt_len_pairs_5000.json")
    pairs = set(read_pairs(path))
    jobs = jobs_of(Chat(pairs=str(path)), 300)
    assert {
        (s.truth.prompt_tokens, s.truth.output_tokens) for s in first_steps(jobs)
    } <= pairs
    outputs = [step.truth.output_tokens for step in calls(jobs)]
    assert statistics.fmean(outputs) == pytest.approx(229, rel=0.06)


def test_real_function_calling_tasks(bench_data: BenchData):
    path = bench_data("workloads", "bfcl", "derived_lengths.json")
    tasks = read_tasks(path)
    jobs = jobs_of(ToolChain(tasks=str(path)), 300)
    counts = {sum(len(calls) for _, calls in task.turns) for task in tasks}
    assert {len(job.steps) for job in jobs} <= counts
    assert statistics.fmean(len(job.steps) for job in jobs) == pytest.approx(5.8, rel=0.1)
    starts = {
        task.tool_docs + max(sum(users), 1)
        for task in tasks
        for users in [until_first_call(task.turns)]
    }
    assert {step.truth.prompt_tokens for step in first_steps(jobs)} <= starts


def test_real_chains(bench_data: BenchData):
    path = bench_data("workloads", "taubench", "derived_chain_lengths.json")
    jobs = jobs_of(Chains(str(path)), 100)
    recorded = {
        tuple((call.new, call.output) for call in chain) for chain in read_chains(path)
    }
    for job in jobs:
        before, replayed = 0, []
        for step in job.steps:
            truth = step.truth
            replayed.append((truth.prompt_tokens - before, truth.output_tokens))
            before = truth.prompt_tokens + truth.output_tokens
        assert tuple(replayed) in recorded


def test_real_questions(bench_data: BenchData):
    path = bench_data("workloads", "hotpotqa", "hotpot_dev_v1_simplified.json.gz")
    jobs = jobs_of(TreeSearch(questions=str(path), expansions=fixed(2)), 50)
    assert all(len(job.steps) == 20 for job in jobs)


def test_real_conversations(bench_data: BenchData):
    path = bench_data(
        "workloads", "mtbench", "fastchat_llm_judge_data_mt_bench_question.jsonl"
    )
    jobs = jobs_of(Chat(conversations=str(path)), 60)
    assert {len(job.steps) for job in jobs} == {2}


def first_steps(jobs: Sequence[Job]):
    return [job.steps[0] for job in jobs]


def until_first_call(turns: Sequence[tuple[int, tuple[int, ...]]]) -> list[int]:
    users: list[int] = []
    for user, outputs in turns:
        users.append(user)
        if outputs:
            break
    return users


# Files that are not as they should be


@pytest.mark.parametrize(
    ("source", "text", "problem"),
    [
        (lambda p: Chat(pairs=p), "[]", "holds no pairs"),
        (lambda p: Chat(pairs=p), "[[1]]", "is not as it should be"),
        (lambda p: Chat(pairs=p), "[[0, 5], [3, -1]]", "has 2 faults"),
        (lambda p: Chat(pairs=p), "{", "is not as it should be"),
        (lambda p: ToolChain(tasks=p), "[]", "holds no tasks"),
        (
            lambda p: ToolChain(tasks=p),
            '[{"id": "é", "tool_doc_tokens": 1, "turns": [{"user": 1, "calls": []}]}]',
            "task é: no calls",
        ),
        (lambda p: Chains(p), "[[]]", "chain 0: no calls"),
        (lambda p: Chains(p), "[[[99999999999, 1]]]", "99999999999 tokens"),
        (lambda p: TreeSearch(questions=p), '[{"question": " "}]', "question 0: blank"),
        (lambda p: Chat(conversations=p), '{"turns": []}', "line 1: no turns"),
        (lambda p: Chat(conversations=p), "", "holds no conversations"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, source, text, problem):
    path = tmp_path / "lengths"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        jobs_of(source(str(path)), 1)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.json does not exist"):
        jobs_of(Chat(pairs=str(tmp_path / "absent.json")), 1)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "lengths"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no UTF-8 text: byte 0 is 0xff"):
        jobs_of(Chat(pairs=str(path)), 1)
    packed = tmp_path / "lengths.gz"
    packed.write_bytes(b"no gzip")
    with pytest.raises(ConfigError, match="cannot be read"):
        jobs_of(Chat(pairs=str(packed)), 1)
