"""Reason and act: a model that answers with the help of tools.

herasys run examples/react_agent.py:assistant \\
        --input question='What is the capital of Japan?'
"""

from herasys_rt import agent
from operators import react, tool

CAPITALS = {"france": "Paris", "italy": "Rome", "japan": "Tokyo", "kenya": "Nairobi"}


@tool(pure=True, version="1")
def capital_of(country: str) -> str:
    """The capital city of a country."""
    return CAPITALS.get(country.strip().lower(), "unknown")


@tool(pure=True, version="1")
def count_letters(text: str, letter: str) -> int:
    """How often a letter occurs in a text."""
    return text.lower().count(letter.lower())


TOOLS = [capital_of, count_letters]


@agent
async def assistant(run, question: str):
    """An answer found with the tools, in at most three steps, and the steps taken."""
    answer = await run.call(react(question, tools=TOOLS, max_steps=3, act_first=True))
    return {"answer": answer, "steps": run.state["steps"]}
