"""What every job of every workload keeps to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from herasys_rt.workloads import Job, Step
from herasys_rt.workloads.arrivals import BLOCK_TOKENS


def check_jobs(jobs: Sequence[Job]) -> None:
    ids = [job.id for job in jobs]
    assert len(set(ids)) == len(ids)
    times = [job.arrival_s for job in jobs if job.arrival_s is not None]
    assert len(times) in (0, len(jobs))
    assert times == sorted(times)
    for number, job in enumerate(jobs):
        assert job.duplicate_of in ("", *ids[:number])
        check_steps(job)


def check_steps(job: Job) -> None:
    assert job.steps
    earlier: set[str] = set()
    for step in job.steps:
        assert step.id not in earlier
        assert earlier.issuperset(step.parents)
        assert len(set(step.parents)) == len(step.parents)
        assert step.after_s >= 0
        assert job.revealed or step.after_s == 0
        earlier.add(step.id)
        check_truth(step)


def check_truth(step: Step) -> None:
    truth = step.truth
    assert truth.items >= 1
    assert truth.tokens >= 0
    if step.verb != "llm.generate":
        assert truth.prompt_tokens == truth.output_tokens == 0
        return
    assert truth.prompt_tokens >= 1
    assert truth.output_tokens >= 0
    assert 0 <= truth.cached_tokens < truth.prompt_tokens
    assert len(truth.prefix) <= truth.prompt_tokens // BLOCK_TOKENS
    both = truth.prompt_tokens + truth.output_tokens
    if truth.produced:
        assert len(truth.prefix) + len(truth.produced) == both // BLOCK_TOKENS
    blocks = truth.prefix + truth.produced
    assert len(set(blocks)) == len(blocks)


def calls(jobs: Iterable[Job]) -> list[Step]:
    """The LLM calls of jobs."""
    return [step for job in jobs for step in job.steps if step.verb == "llm.generate"]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many blocks two prompts have in common, from the first on."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
