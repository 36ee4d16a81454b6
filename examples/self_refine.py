"""Draft, criticise, revise: an agent that improves its own text within bounds.

herasys run examples/self_refine.py:refine --input topic='glaciers'
"""

from herasys_rt import agent
from operators import generate

MAX_ROUNDS = 2


@agent
async def refine(run, topic: str, rounds: int = MAX_ROUNDS):
    """A short text on a topic, revised ``rounds`` times by its own criticism.

    ``run.state["drafts"]`` keeps every version, the first one first.
    """
    draft = await run.call(
        generate("Write two sentences about {topic}.", topic=topic, max_tokens=48)
    )
    drafts = run.state.setdefault("drafts", [draft])
    for _ in range(min(rounds, MAX_ROUNDS)):
        critique = await run.call(
            generate(
                "Name one weakness of this text in one sentence.\n{draft}",
                draft=draft,
                max_tokens=32,
                label="critique",
            )
        )
        draft = await run.call(
            generate(
                "Rewrite the text so that the criticism no longer applies.\n"
                "Text: {draft}\nCriticism: {critique}\nNew text:",
                draft=draft,
                critique=critique,
                max_tokens=48,
                label="revise",
            )
        )
        drafts.append(draft)
    return {"text": draft, "drafts": len(drafts)}
