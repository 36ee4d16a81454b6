"""Search a tree of thoughts: expand, evaluate, select, bounded in width and depth.

What language agent tree search (LATS) does, small: every level proposes several next
steps at once, scores all of them at once and goes on with the best.

    herasys run examples/tree_search.py:search --input question='How do I tidy a desk?'
"""

from herasys_rt import agent
from operators import generate, generate_json

SCORE = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 10}},
    "required": ["score"],
    "additionalProperties": False,
}

MAX_DEPTH = 3
MAX_WIDTH = 4


@agent
async def search(run, question: str, depth: int = 2, width: int = 3):
    """The best chain of ``depth`` steps found, ``width`` candidates at each level."""
    depth, width = min(depth, MAX_DEPTH), min(width, MAX_WIDTH)
    chain: list[str] = []
    scores: list[int] = []
    for level in range(depth):
        candidates = await run.gather(
            *[
                generate(
                    "Question: {q}\nSteps so far: {done}\nNext step, idea {idea}:",
                    q=question,
                    done=list(chain),
                    idea=n + 1,
                    max_tokens=24,
                    label=f"expand_{level + 1}",
                )
                for n in range(width)
            ]
        )
        judged = await run.gather(
            *[
                generate_json(
                    "Rate from 0 to 10 how well this step helps.\n"
                    "Question: {q}\nStep: {step}",
                    q=question,
                    step=candidate,
                    schema=SCORE,
                    max_tokens=24,
                    label=f"evaluate_{level + 1}",
                )
                for candidate in candidates
            ]
        )
        best = max(range(width), key=lambda n: (judged[n]["score"], -n))
        chain.append(candidates[best])
        scores.append(judged[best]["score"])
    return {"steps": chain, "scores": scores, "depth": len(chain)}
