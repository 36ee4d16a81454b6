"""Jobs on prefill/decode clusters, where a call of a language model is two steps."""

from __future__ import annotations

import msgspec

from herasys_rt.workloads.arrivals import Job, Step

PREFILL = ".prefill"
"""What the id of a call's first step ends with."""


def staged(job: Job) -> Job:
    """The job with every ``llm.generate`` as ``llm.prefill`` and then ``llm.decode``.

    The second keeps the call's id, so that whoever waited for the call waits for it.
    """
    steps: list[Step] = []
    for step in job.steps:
        steps += stages(step) if step.verb == "llm.generate" else (step,)
    return msgspec.structs.replace(job, steps=tuple(steps))


def stages(step: Step) -> tuple[Step, Step]:
    """The two steps of a call."""
    truth = step.truth
    first = msgspec.structs.replace(
        step,
        id=step.id + PREFILL,
        verb="llm.prefill",
        operator="prefill@1",
        truth=msgspec.structs.replace(truth, output_tokens=0, produced=()),
        label=(step.label or step.id) + PREFILL,
    )
    second = msgspec.structs.replace(
        step, verb="llm.decode", operator="decode@1", parents=(first.id,), after_s=0.0
    )
    return first, second
