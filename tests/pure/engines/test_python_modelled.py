"""The modelled engine in place of search and python pools."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from herasys_rt.config import default_config, with_modelled_engines
from herasys_rt.dsl import workflow
from herasys_rt.engines import modelled
from herasys_rt.engines.protocol import Item, Outcome
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.types import PortType, value_fault
from operators import chunk, tool, web_search
from tests.outcome_sink import OutcomeSink


def outcome_of(function: Any) -> Outcome:
    """What a workflow of one node gives on the modelled twin of its pool."""
    (node,) = workflow(name="flow")(function).spec.nodes
    pools = {p.resource: p for p in with_modelled_engines(default_config()).pools}
    engine, sink = modelled.create(pools[node.resource]), OutcomeSink()
    engine.start(sink)
    engine.submit([Item("1.1", node.verb, resolve(node.args, {}, {}))])
    engine.close()
    return sink.outcome("1.1")


def given(hint: Any):
    def give(x: int):
        raise AssertionError("no user code runs here")

    give.__annotations__["return"] = hint
    return tool(give)


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        *((str, PortType.TEXT), (bool, PortType.BOOL), (int, PortType.INT)),
        *((float, PortType.FLOAT), (list[str], PortType.TEXTS), (dict, PortType.JSON)),
        *((Annotated[Any, kind], kind) for kind in PortType),
    ],
)
def test_a_modelled_call_gives_a_value_of_the_declared_type(hint, kind):
    outcome = outcome_of(lambda: given(hint)(1))
    assert outcome.error is None
    assert value_fault(outcome.value, kind) is None


def test_modelled_pages_are_as_many_as_asked_for_and_say_what_they_are():
    outcome = outcome_of(lambda: web_search("zip", top_k=3))
    assert len(outcome.value) == 3
    assert value_fault(outcome.value, PortType.CHUNKS) is None
    assert all("modelled" in page["url"] for page in outcome.value)
    assert outcome_of(lambda: web_search("zip", top_k=3)).value == outcome.value
    assert outcome_of(lambda: web_search("map", top_k=3)).value != outcome.value


def test_modelled_chunks_hold_the_text():
    outcome = outcome_of(lambda: {"output": chunk("a b c d e", max_tokens=2, overlap=0)})
    assert outcome.value == ["a b", "c d", "e"]
