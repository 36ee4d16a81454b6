"""Graphs cut ahead of time, as optimisers of static graphs do (Ayo, Teola)."""

from __future__ import annotations

import msgspec

from herasys_rt.workloads.arrivals import BLOCK_TOKENS, Job, Step, Truth

HEAD_TOKENS = 48
"""Of a prompt that waits for others: what is known beforehand and computed ahead. Three
whole blocks of the 60 tokens of instructions that HeraSys's workloads begin with."""

_SPLIT_VERBS = ("embed", "rerank")


def split(job: Job, ways: int, *, partial_prefill: bool = False) -> Job:
    """The job with every list cut in ``ways`` parts and, where asked for, the heads of
    prompts as steps of their own.

    Parts of a step that follows a step that was cut follow its parts one by one (a
    pipeline); everything else waits for all parts. Nobody waits for a head. A revealed
    job has no graph to cut and stays as it is.
    """
    if job.revealed or (ways < 2 and not partial_prefill):
        return job
    parts: dict[str, tuple[str, ...]] = {}
    steps: list[Step] = []
    for step in job.steps:
        cut = min(ways, step.truth.items) if step.verb in _SPLIT_VERBS else 1
        if cut > 1:
            made = [_part(step, i, cut, parts) for i in range(cut)]
            parts[step.id] = tuple(part.id for part in made)
            steps += made
            continue
        if partial_prefill and step.verb == "llm.generate" and step.parents:
            steps += _head(step)
        parts[step.id] = (step.id,)
        parents = [part for parent in step.parents for part in parts[parent]]
        steps.append(msgspec.structs.replace(step, parents=tuple(parents)))
    return msgspec.structs.replace(job, steps=tuple(steps))


def _part(step: Step, i: int, ways: int, parts: dict[str, tuple[str, ...]]) -> Step:
    truth = step.truth
    share = truth.items // ways + (i < truth.items % ways)
    parents: list[str] = []
    for parent in step.parents:
        above = parts[parent]
        parents += (above[i],) if len(above) == ways else above
    return msgspec.structs.replace(
        step,
        id=f"{step.id}.{i}",
        parents=tuple(parents),
        label=f"{step.label or step.id}.{i}",
        truth=msgspec.structs.replace(
            truth,
            items=share,
            tokens=truth.tokens * share // truth.items,
            prompt_key=f"{truth.prompt_key}/{i}of{ways}" if truth.prompt_key else "",
        ),
    )


def _head(step: Step) -> list[Step]:
    truth = step.truth
    if truth.prompt_tokens <= HEAD_TOKENS:
        return []
    head = Truth(
        prompt_tokens=HEAD_TOKENS,
        prefix=truth.prefix[: HEAD_TOKENS // BLOCK_TOKENS],
        prompt_key=f"{truth.prompt_key}/head" if truth.prompt_key else "",
    )
    return [
        Step(
            f"{step.id}.head",
            "llm.prefill",
            step.resource,
            "prefill@1",
            head,
            model=step.model,
            label=f"{step.label or step.id}.head",
        )
    ]
