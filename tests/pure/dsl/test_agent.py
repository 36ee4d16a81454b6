"""Steps of agents: what a fragment holds, what it comes from, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from herasys_rt.dsl import agent, is_empty, length, map_over, tool, when, workflow
from herasys_rt.dsl.agent import Revealed
from herasys_rt.dsl.tracked import Origin
from herasys_rt.errors import GraphError, HerasysError, NodeError, UsageError
from herasys_rt.graph.spec import WorkflowSpec, decode_spec, node_refs
from herasys_rt.graph.validation import check_inputs
from operators import generate, parse_json, prompt
from tests.pure.dsl.small_runtime import run_spec


@tool
def book(city: str) -> str:
    """Book a room."""
    return f"a room in {city}"


def said(args: dict[str, Any]) -> str:
    """A model that says the prompt it was given."""
    text = args["prompt"]
    for name, value in args.items():
        text = text.replace("{" + name.removeprefix("var:") + "}", str(value))
    return text


class Small:
    """Executes fragments node by node; keeps them and the nodes each came from."""

    def __init__(self) -> None:
        self.specs: list[WorkflowSpec] = []
        self.parents: list[Origin] = []
        self.booked = 0

    async def reveal(
        self,
        spec: WorkflowSpec,
        inputs: dict[str, Any],
        parents: Origin,
        streamed: str | None = None,
    ) -> Revealed:
        sent = decode_spec(spec.encoded)
        self.specs.append(sent)
        self.parents.append(parents)
        verbs = {"llm.generate": said, "python.call": self._book}
        outputs = run_spec(sent, verbs, check_inputs(sent, inputs)).outputs
        refs = node_refs(spec.outputs)
        origin = frozenset((len(self.specs), ref.node) for ref in refs)
        return Revealed(outputs["output"], origin)

    def _book(self, args: dict[str, Any]) -> str:
        self.booked += 1
        return book.function(args["arg:city"])


async def taken(steps: Any) -> tuple[Any, Small]:
    """The result of an agent with this body, and what it revealed."""

    async def body(run: Any) -> Any:
        return await steps(run)

    small = Small()
    result, _ = await agent(body).execute(small, {})
    return result, small


async def test_an_effect_that_was_taken_comes_by_its_value_and_happens_once():
    async def steps(run: Any) -> Any:
        booked = book("Rome")
        told = await run.call(booked)
        return [told, await run.call(generate("{b}!", b=booked))]

    result, small = await taken(steps)
    assert result == ["a room in Rome", "a room in Rome!"]
    assert small.booked == 1
    assert small.parents[1] == {(1, "book")}


async def test_an_effect_inside_of_two_steps_is_refused_before_it_happens_again():
    async def steps(run: Any) -> Any:
        booked = book("Rome")
        await run.call(generate("1 {b}", b=booked))
        with pytest.raises(UsageError, match="'book' is an effect"):
            await run.call(generate("2 {b}", b=booked))
        with pytest.raises(UsageError, match="'book' is an effect"):
            await run.call(booked)
        return await run.call(book("Rome"))  # another call is another effect

    result, small = await taken(steps)
    assert result == "a room in Rome"
    assert small.booked == 2


async def test_a_sampled_text_that_was_taken_is_not_drawn_again():
    async def steps(run: Any) -> Any:
        drawn = generate("once", temperature=1.0)
        await run.call(drawn)
        return await run.call(generate("{d}", d=drawn))

    result, small = await taken(steps)
    assert result == "once"
    assert [len(spec.nodes) for spec in small.specs] == [1, 1]


@pytest.mark.parametrize("text", ["", "x"])
async def test_a_value_that_is_there_may_decide_and_be_empty(text: str):
    async def steps(run: Any) -> Any:
        first = generate("{t}", t=text)
        await run.call(first)
        return await run.call(
            when(
                is_empty(first),
                lambda: generate("nothing <{f}>", f=first),
                lambda: generate("something <{f}>", f=first),
            )
        )

    result, _ = await taken(steps)
    assert result == ("something <x>" if text else "nothing <>")


async def test_an_edge_is_known_through_expressions_and_lists():
    async def steps(run: Any) -> Any:
        first = await run.call(generate("a\nb", label="first"))
        await run.call(generate("other", label="other"))
        await run.call(generate(prompt("of {f}", f=first)))
        await run.call(generate("other", label="other"))
        return await run.call(map_over(first.lines(), lambda t: generate("{t}", t=t)))

    result, small = await taken(steps)
    assert result == ["a", "b"]
    assert small.parents[2] == {(1, "first")} == small.parents[4]


async def test_an_expression_of_what_is_there_is_computed_at_once():
    async def steps(run: Any) -> Any:
        text = await run.call(generate("[[1, 2]]"))
        return await run.call(length(parse_json(text)[0]))

    result, small = await taken(steps)
    assert result == 2
    assert len(small.specs) == 1


async def test_an_expression_that_has_no_value_fails_where_it_is_taken():
    async def steps(run: Any) -> Any:
        return await run.call(parse_json("no JSON"))

    with pytest.raises(NodeError) as caught:
        await taken(steps)
    assert caught.value.code == "expression_failed"


async def test_a_workflow_of_several_outputs_is_one_step():
    @workflow
    def both(city: str):
        booked = book(city)
        return {"a": generate("a {b}", b=booked), "b": generate("b {b}", b=booked)}

    async def steps(run: Any) -> Any:
        told = await run.call(both("Rome"))
        return [told, await run.call(generate("{t}", t=told["a"]))]

    result, small = await taken(steps)
    assert result[0] == {"a": "a a room in Rome", "b": "b a room in Rome"}
    assert small.booked == 1
    assert small.parents[1] == {(1, "generate"), (1, "generate_2")}


async def test_a_race_of_equals_goes_to_the_first_given():
    async def now(value: str) -> str:
        return value

    async def steps(run: Any) -> Any:
        return await run.race(*[now(str(n)) for n in range(20)])

    assert (await taken(steps))[0] == "0"


async def test_asking_an_untaken_step_for_its_value_harms_no_later_step():
    async def steps(run: Any) -> Any:
        step = generate("{{x}}")
        with pytest.raises(GraphError, match=r"await run\.call\(step\)"):
            bool(step)
        return await run.call(generate("fine"))

    assert (await taken(steps))[0] == "fine"


async def test_a_step_that_was_never_taken_is_no_result():
    async def steps(run: Any) -> Any:
        return [generate("x")]

    with pytest.raises(HerasysError, match="never taken") as caught:
        await taken(steps)
    assert "await run.call" in caught.value.hint


async def test_a_step_is_no_input_of_an_agent():
    @agent
    async def inner(run: Any, text: str) -> Any:
        return text

    async def steps(run: Any) -> Any:
        step: Any = generate("x")
        return await run.call(inner(step))

    with pytest.raises(UsageError, match="'text' is a step"):
        await taken(steps)
