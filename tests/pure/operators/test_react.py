"""`react`: which tools are called with what, and what the model is told of them."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
import pytest

from herasys_rt.dsl import agent
from herasys_rt.dsl.agent import Revealed
from herasys_rt.errors import NodeError, UsageError
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.spec import WorkflowSpec
from operators import react, tool


def even(number: int) -> int:
    if number % 2:
        raise ValueError("is odd")
    return number


@tool(pure=True, version="1")
def halve(number: Annotated[int, pydantic.AfterValidator(even)]) -> int:
    """Half of an even number."""
    return number // 2


@tool
def fail(reason: str) -> str:
    """Fails."""
    raise ValueError(reason)


class Scripted:
    """A model that chooses what it is told to; keeps what it was asked."""

    def __init__(self, *choices: dict[str, Any]) -> None:
        self.choices = list(choices)
        self.asked: list[str] = []

    async def reveal(
        self,
        spec: WorkflowSpec,
        inputs: dict[str, Any],
        parents: Any,
        streamed: str | None = None,
    ) -> Revealed:
        (node,) = spec.nodes
        args = resolve(node.args, inputs, {})
        origin = frozenset({(len(self.asked), node.id)})
        if node.verb == "llm.generate":
            self.asked.append(args["messages"][-1]["content"])
            return Revealed(self.choices.pop(0), origin)
        if node.id == "fail":
            raise NodeError("it raised", code="tool_failed")
        return Revealed(halve.function(args["arg:number"]), origin)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": name, "arguments": arguments}


async def answered(model: Scripted, **options: Any) -> tuple[Any, list[Any]]:
    """The answer, and the results of the tools."""

    @agent
    async def ask(run: Any):
        answer = await run.call(react("how?", tools=[halve, fail], **options))
        return [answer, [step["result"] for step in run.state.get("steps", [])]]

    result, _ = await ask.execute(model, {})
    return result[0], result[1]


async def test_tools_are_called_until_the_model_answers():
    model = Scripted(call("halve", number=8), call("halve", number=4), {"answer": "2"})
    assert await answered(model) == ("2", ["4", "2"])
    assert model.asked == ["how?", "Result of halve: 4", "Result of halve: 2"]


async def test_after_the_last_step_the_model_must_answer():
    model = Scripted(call("halve", number=8), {"answer": "4"})
    assert await answered(model, max_steps=1) == ("4", ["4"])


async def test_a_tool_that_fails_is_told_to_the_model():
    model = Scripted(call("fail", reason="why not"), {"answer": "never mind"})
    answer, results = await answered(model)
    assert answer == "never mind"
    assert results == ["error: it raised"]


async def test_arguments_that_a_tool_does_not_take_are_told_to_the_model():
    model = Scripted(call("halve", number=3), call("halve", number=8), {"answer": "four"})
    answer, results = await answered(model)
    assert answer == "four"
    assert "is odd" in results[0]
    assert results[1] == "4"


@pytest.mark.parametrize(
    ("tools", "steps"), [([], 3), ([halve], 0), ([even], 3), (["halve"], 3)]
)
async def test_what_is_no_tool_is_refused(tools: Any, steps: int):
    @agent
    async def ask(run: Any):
        return await run.call(react("how?", tools=tools, max_steps=steps))

    with pytest.raises(UsageError, match="react"):
        await ask.execute(Scripted(), {})
