"""Ready agents: a loop of reasoning and acting with tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from herasys_rt.dsl import Tool
from herasys_rt.dsl.agent import AgentRun, SubAgent, agent
from herasys_rt.errors import GraphError, NodeError, UsageError
from operators.structured import choose_tool

_SYSTEM = (
    "Answer the question. Use a tool when it helps, one at a time; "
    "when you know the answer, give it."
)


def react(
    question: str,
    *,
    tools: Sequence[Tool[..., Any]],
    max_steps: int = 6,
    act_first: bool = False,
    system: str = _SYSTEM,
    max_tokens: int = 96,
    model: str | None = None,
) -> SubAgent:
    """A step that answers a question by calling tools in a loop of bounded length.

    In every round the model either calls one of the ``tools`` with arguments that fit
    its schema, or answers; after ``max_steps`` calls it must answer. Gives the answer's
    text. ``act_first`` makes the first round use a tool: small models tend to guess.
    Every call is kept in ``run.state["steps"]`` as tool, arguments and result. A tool
    that fails, or that does not take its arguments after all, is told to the model as its
    result; what else fails ends the agent. Use it inside an agent:
    ``await run.call(react(question, tools=[...]))``.
    Errors: `UsageError` without tools, for what is none, or with a ``max_steps`` below 1.
    """
    if not tools or max_steps < 1:
        raise UsageError(
            f"react needs tools and at least one step, got {len(tools)} tools and "
            f"max_steps={max_steps}",
            hint="Pass functions decorated with @tool.",
        )
    for given in tools:
        if not isinstance(given, Tool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"react takes tools, not a {type(given).__name__}",
                hint="Pass functions decorated with @tool.",
            )
    by_name = {tool.name: tool for tool in tools}

    @agent(name="react", max_calls=2 * max_steps + 1)
    async def reason_and_act(run: AgentRun, question: str) -> str:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]
        for step in range(max_steps + 1):
            chosen = await run.call(
                choose_tool(
                    messages,
                    tools=list(tools) if step < max_steps else [],
                    may_answer=step > 0 or not act_first,
                    max_tokens=max_tokens,
                    model=model,
                    label="reason",
                )
            )
            if "answer" in chosen:
                return chosen["answer"]
            result = await _acted(run, by_name[chosen["tool"]], chosen["arguments"])
            steps = run.state.setdefault("steps", [])
            steps.append({**chosen, "result": result})
            messages = [
                *messages,
                {"role": "assistant", "content": json.dumps(chosen)},
                {"role": "user", "content": f"Result of {chosen['tool']}: {result}"},
            ]
        raise AssertionError("the last round has no tools, so it answers")

    return reason_and_act(question=question)


async def _acted(run: AgentRun, tool: Tool[..., Any], arguments: dict[str, Any]) -> str:
    """The tool's result, or what went wrong in it, as text for the model."""
    try:
        return str(await run.call(tool(**arguments)))
    except (NodeError, GraphError) as e:  # a schema does not say all that a tool checks
        return f"error: {e.message}"
