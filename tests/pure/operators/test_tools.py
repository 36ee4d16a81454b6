"""`tool` and `python_operator`: what they declare and what a call lowers to."""

from __future__ import annotations

import enum
import json
import logging
import pickle
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal

import cloudpickle
import msgspec
import numpy as np
import pydantic
import pytest

from herasys_rt.dsl import find_operator, workflow
from herasys_rt.dsl.tool import kind_of
from herasys_rt.errors import GraphError, UsageError
from herasys_rt.graph.functions import Arguments
from herasys_rt.graph.signature import UNSIGNED, Signer
from herasys_rt.graph.spec import InputRef, Lit, NodeRef, NodeSpec
from herasys_rt.graph.types import PortType
from operators import embed, generate, python_operator, tool


class Query(pydantic.BaseModel):
    text: str
    limit: int = 3


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@tool(pure=True, version="1")
def weather(
    city: str,
    days: Annotated[int, pydantic.Field(ge=1, le=14)] = 3,
    unit: Literal["C", "F"] = "C",
) -> dict[str, float]:
    """The weather of a city.

    Looks it up in a table.

    Args:
        city: the city's name,
            as people write it
        days (int): how many days ahead

    Returns:
        Temperatures by day.
    """
    return {f"{city} {day}": 20.0 + len(unit) for day in range(days)}


@tool
async def send(to: str, text: str = "hi") -> str:
    """Send a mail."""
    return f"{to}: {text}"


def nodes_of(function: Any) -> tuple[NodeSpec, ...]:
    return workflow(name="flow")(function).spec.nodes


def literal(node: NodeSpec, port: str) -> Any:
    arg = node.args[port]
    assert isinstance(arg, Lit)
    return arg.value


def faults_of(function: Any) -> str:
    with pytest.raises(GraphError) as caught:
        workflow(name="flow")(function)
    return "\n".join(str(fault) for fault in caught.value.fields["faults"])


def signed(function: Callable[[], Any]) -> bytes:
    spec = workflow(name="flow")(function).spec
    return Signer(spec, lambda node: "m").signed({}, "t", "r").signatures[-1]


# --- the schema -------------------------------------------------------------------------


def test_the_schema_comes_from_type_hints_and_docstring():
    assert weather.schema == {
        "name": "weather",
        "description": "The weather of a city.\n\nLooks it up in a table.",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "required": ["city"],
            "properties": {
                "city": {
                    "type": "string",
                    "description": "the city's name, as people write it",
                },
                "days": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 14,
                    "default": 3,
                    "description": "how many days ahead",
                },
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            },
        },
    }
    json.dumps(weather.schema)


def test_docstrings_of_other_styles_are_read_too():
    def sphinx(a, b):
        """Do it.

        :param a: the first
        :param int b: the second
        :returns: nothing
        """

    def numpy(a, b):
        """Do it.

        Parameters
        ----------
        a : int
            the first
        b
            the second

        Returns
        -------
        int
            nothing
        """

    def google(a, b):
        """Do it.

        Args:
            a: the first
            b: the second
        """

    for function in (sphinx, numpy, google):
        made = Arguments(function)
        properties = made.schema()["properties"]
        told = {name: p.get("description") for name, p in properties.items()}
        assert (made.summary, told) == ("Do it.", {"a": "the first", "b": "the second"})


def test_parameters_may_have_any_name_and_any_type():
    @tool
    def odd(json: str, copy: int, model_config: list, _hidden: np.ndarray, schema=None): ...

    properties = odd.parameters["properties"]
    assert list(properties) == ["json", "copy", "model_config", "_hidden", "schema"]
    assert odd.parameters["required"] == ["json", "copy", "model_config", "_hidden"]


def test_a_schema_of_models_carries_their_definitions():
    @tool
    def find(query: Query, colour: Colour = Colour.RED): ...

    assert find.parameters["properties"]["query"] == {"$ref": "#/$defs/Query"}
    assert find.parameters["$defs"]["Query"]["required"] == ["text"]
    json.dumps(find.parameters)


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (str, (PortType.TEXT, False)),
        (bool, (PortType.BOOL, False)),
        (int, (PortType.INT, False)),
        (float, (PortType.FLOAT, False)),
        (list[str], (PortType.TEXTS, False)),
        (list[dict], (PortType.JSON, False)),
        (dict[str, int], (PortType.JSON, False)),
        (Query, (PortType.JSON, False)),
        (Any, (PortType.ANY, True)),
        (None, (PortType.JSON, True)),
        (str | None, (PortType.TEXT, True)),
        (int | float, (PortType.FLOAT, False)),
        (str | int, (PortType.ANY, True)),
        (np.ndarray, (PortType.ANY, True)),
        (Annotated[list[dict], PortType.CHUNKS], (PortType.CHUNKS, False)),
        (Literal["a", "b"], (PortType.TEXT, False)),
        (PortType.VECTOR, (PortType.VECTOR, False)),
    ],
)
def test_annotations_name_port_types(hint, kind):
    assert kind_of(hint)[:2] == kind


# --- calling ----------------------------------------------------------------------------


async def test_outside_of_workflows_a_tool_is_the_plain_function():
    assert weather("Rome", days=1) == {"Rome 0": 21.0}
    assert await send("Ada") == "Ada: hi"
    assert weather.function("Rome", 1) == {"Rome 0": 21.0}
    assert weather.__name__ == "weather"
    assert (weather.__doc__ or "").startswith("The weather")


def test_inside_a_workflow_a_call_is_a_node():
    def flow(city: str):
        return weather(city, unit="F", label="now")

    (node,) = nodes_of(flow)
    assert (node.id, node.operator) == ("now", "weather@1")
    assert (node.verb, node.resource) == ("python.call", "python")
    assert (node.purity, node.output) == ("pure", PortType.JSON)
    assert node.args["arg:city"] == InputRef("city")
    assert node.args["arg:days"] == Lit(3)
    assert node.args["arg:unit"] == Lit("F")
    function, hints = pickle.loads(literal(node, "function"))
    assert function("x", 1, "C") == {"x 0": 21.0}
    assert hints["return"] == dict[str, float]
    assert literal(node, "tool")["name"] == "weather"


def test_a_tool_is_an_effect_unless_it_says_otherwise():
    (node,) = nodes_of(lambda: send("Ada"))
    assert (node.purity, node.output) == ("effect", PortType.TEXT)
    spec = workflow(name="flow")(lambda: send("Ada")).spec
    assert Signer(spec, lambda node: "").signed({}, "t", "r").signatures == (UNSIGNED,)


def test_results_go_where_their_type_fits():
    def flow(city: str):
        mail = send(city, generate("{w}", w=weather(city)))
        return {"vector": embed(mail), "mail": mail}

    nodes = {node.id: node for node in nodes_of(flow)}
    assert nodes["embed"].args["text"] == NodeRef("send")
    assert nodes["send"].args["arg:text"] == NodeRef("generate")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: weather(), "weather.arg:city: missing; it takes text"),
        (lambda: weather("a", "b", "c", "d"), "4 positional arguments"),
        (lambda: weather("a", dayz=3), "has no argument 'dayz'"),
        (lambda: weather(7), "weather.arg:city: Input should be a valid string"),
        (lambda: weather("a", days=0), "greater than or equal to 1"),
        (lambda: weather("a", unit="K"), "Input should be 'C' or 'F'"),
        (lambda: weather(embed("a")), "takes text, got vector from node 'embed'"),
        (lambda: weather("a", days=weather("b")), "takes int, got json"),
        (lambda: send("a", object()), "Input should be a valid string"),
    ],
)
def test_a_wrong_call_is_a_fault_of_the_graph(call, told):
    assert told in faults_of(call)


def test_models_given_as_arguments_travel_as_plain_values():
    @tool
    def find(query: Query, colour: Colour = Colour.BLUE) -> list[str]: ...

    (node,) = nodes_of(lambda: find(Query(text="x"), Colour.RED))
    assert node.args["arg:query"] == Lit({"text": "x", "limit": 3})
    assert node.args["arg:colour"] == Lit("red")


def test_a_default_that_cannot_travel_stays_the_functions_own():
    marker = object()

    @tool
    def find(query: str, *, client: Any = marker) -> str: ...

    (node,) = nodes_of(lambda: find("x"))
    assert [port.name for port in node.ports] == ["code", "function", "tool", "arg:query"]


# --- equal work -------------------------------------------------------------------------


def multiply_by(n: int, version: str = "1"):
    @tool(pure=True, version=version)
    def multiply(x: int, y: int = 2) -> int:
        return x * y * n

    return multiply


def test_equal_calls_sign_equally_however_they_are_written():
    base = signed(lambda: multiply_by(3)(1))
    assert base != UNSIGNED
    assert signed(lambda: multiply_by(3)(x=1, y=2)) == base
    assert signed(lambda: multiply_by(3)(1, label="named")) == base
    same_code_again = multiply_by(3)
    assert signed(lambda: same_code_again(1)) == base


def test_everything_that_changes_a_result_changes_the_signature():
    def multiply(x: int, y: int = 2) -> int:
        return x * y * 3

    renamed = tool(name="product", pure=True, version="1")(multiply)
    others = [
        signed(lambda: multiply_by(3)(1)),
        signed(lambda: multiply_by(4)(1)),
        signed(lambda: multiply_by(3, "2")(1)),
        signed(lambda: multiply_by(3)(2)),
        signed(lambda: multiply_by(3)(1, 3)),
        signed(lambda: renamed(1)),
    ]
    assert len(set(others)) == len(others)


def test_the_bytes_of_the_function_are_no_part_of_the_signature():
    port = next(p for p in nodes_of(lambda: multiply_by(3)(1))[0].ports if p.name == "tool")
    assert port.excluded
    spec = workflow(name="flow")(lambda: multiply_by(3)(1)).spec
    node = spec.nodes[0]
    other = msgspec.structs.replace(node, args={**node.args, "function": Lit(b"other")})
    changed = msgspec.structs.replace(spec, nodes=(other,))
    first = Signer(spec, lambda node: "").signed({}, "t", "r").signatures
    assert Signer(changed, lambda node: "").signed({}, "t", "r").signatures == first


def test_a_pure_tool_that_captures_what_has_no_name_is_refused():
    lock = threading.Lock()

    @tool(pure=True, version="1")
    def locked(x: int) -> int:
        with lock:
            return x

    assert "lock is a _thread.lock" in faults_of(lambda: locked(1))


def test_a_tool_that_cannot_travel_says_why():
    lock = threading.Lock()

    @tool
    def locked(x: int) -> int:
        with lock:
            return x

    assert "cannot be sent to where it would run" in faults_of(lambda: locked(1))


def test_a_tool_that_takes_too_much_along_is_refused(monkeypatch):
    monkeypatch.setattr("herasys_rt.dsl.shipping.LARGEST_BYTES", 1000)
    data = "x" * 2000

    @tool
    def heavy() -> str:
        return data

    assert "1000 at most may travel" in faults_of(lambda: heavy())


# --- declaring --------------------------------------------------------------------------


def generator():
    yield 1


def variadic(*args): ...


def unreadable(x: Nowhere): ...  # noqa: F821  # pyright: ignore


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: tool(lambda x: x), "is no name for a tool"),
        (lambda: tool(name="two words")(print), "is no name for a tool"),
        (lambda: tool(pure=True)(variadic), "pure without a version"),
        (lambda: tool(generator), "is a generator"),
        (lambda: tool(variadic), r"\*args: nobody can say"),
        (lambda: tool(unreadable), "cannot be read: name 'Nowhere'"),
        (lambda: tool(timeout_s=0)(generator), "."),
        (lambda: tool(resources={"tpus": 1})(nodes_of), "asks for the resource 'tpus'"),
        (lambda: tool(resources={"cpus": -1})(nodes_of), "asks for the resource 'cpus'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_it_is_declared(declare, told):
    with pytest.raises(UsageError, match=told):
        declare()


def test_a_tool_survives_pickling_with_all_it_says():
    again = pickle.loads(cloudpickle.dumps(weather))
    assert again("Rome", 1) == {"Rome 0": 21.0}
    assert again.schema == weather.schema
    assert again.operator.id == weather.operator.id


def test_two_tools_of_one_name_may_live_side_by_side():
    first, second = multiply_by(1), tool(name="multiply")(lambda text: text)
    assert len(nodes_of(lambda: {"a": first(1), "b": second("x")})) == 2


def test_a_python_operator_is_pure_and_known_by_its_id():
    @python_operator(version="7")
    def shout(text: str) -> str:
        """Louder."""
        return text.upper()

    assert find_operator("shout@7") is shout.operator
    (node,) = nodes_of(lambda: shout("a"))
    assert (node.operator, node.purity, node.output) == ("shout@7", "pure", PortType.TEXT)
    assert shout("a") == "A"


def test_tools_may_use_each_other_and_themselves():
    (node,) = nodes_of(lambda: countdown(3))
    function, _ = pickle.loads(literal(node, "function"))
    assert function(3) == 3


_log = logging.getLogger(__name__)


@tool(pure=True, version="1")
def countdown(n: int) -> int:
    _log.debug("%d", n)
    return 0 if n == 0 else 1 + countdown(n - 1)
