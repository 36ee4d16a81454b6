"""Declaring operators and finding them again."""

from __future__ import annotations

import importlib.metadata
import inspect

import pytest

from herasys_rt.dsl import Node, Operator, discover, edge, find_operator, operator, param
from herasys_rt.errors import UsageError
from herasys_rt.graph.spec import Port
from herasys_rt.graph.types import PortType


def declare(name: str, **more) -> Operator[...]:
    fields = {
        "version": "1",
        "verb": "do",
        "resource": "cpu",
        "ports": (Port("a", PortType.TEXT), Port("b", PortType.INT, is_param=True)),
        "output": PortType.TEXT,
    }
    return Operator(name=name, **(fields | more))


def test_an_operator_is_found_by_name_and_version():
    declared = declare("test.found")
    assert declared.id == "test.found@1"
    assert find_operator("test.found@1") is declared
    assert declared.positional == ("a",)


def test_an_unknown_operator_lists_the_known_ones():
    declare("test.known")
    with pytest.raises(UsageError) as caught:
        find_operator("test.unknown@1")
    assert "test.known@1" in caught.value.hint


def test_declaring_the_same_twice_is_fine_and_something_else_is_not():
    declare("test.twice")
    again = declare("test.twice")
    assert find_operator("test.twice@1") is again
    with pytest.raises(
        UsageError, match=r"two different operators are called test\.twice@1"
    ):
        declare("test.twice", verb="undo")
    assert declare("test.twice", version="2", verb="undo").verb == "undo"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"purity": "impure"}, "purity is 'impure'"),
        ({"collection": "a"}, "'a' is none of its parameters"),
        ({"collection": "c"}, "'c' is none of its parameters"),
        ({"list_port": "b"}, "'b' is none of its edges"),
        ({"list_port": "c"}, "'c' is none of its edges"),
        ({"list_port": "a", "purity": "effect"}, "depend on more than themselves"),
        ({"list_port": "a", "collection": "b"}, "depend on more than themselves"),
        ({"variadic": True}, "variadic needs a prepare"),
        ({"ports": (Port("model", PortType.TEXT),)}, "'model' is reserved"),
        ({"ports": (Port("a", PortType.TEXT),) * 2}, "given twice"),
    ],
)
def test_a_contradictory_declaration_is_refused(fields, problem):
    with pytest.raises(UsageError, match=problem):
        declare("test.wrong", **fields)


def test_the_decorator_takes_order_and_defaults_from_the_signature():
    @operator(
        version="3",
        verb="do",
        resource="cpu",
        output=PortType.TEXT,
        ports={"n": param(PortType.INT, minimum=1), "text": edge(PortType.TEXT)},
    )
    def shout(text: str, *, n: int = 2, label: str = ""):
        """Shouts."""

    assert shout.id == "shout@3"
    assert [(p.name, p.required, p.default, p.is_param) for p in shout.ports] == [
        ("text", True, None, False),
        ("n", False, 2, True),
    ]
    assert shout.__doc__ == "Shouts."
    assert list(inspect.signature(shout).parameters) == ["text", "n", "label"]
    assert inspect.signature(shout).return_annotation is Node


def test_parameters_and_ports_must_match():
    with pytest.raises(UsageError, match="differ in m, n"):

        @operator(
            version="1",
            verb="do",
            resource="cpu",
            output=PortType.TEXT,
            ports={"m": param(PortType.INT)},
        )
        def off(n: int):
            """Off."""


class FakeEntry:
    name = "theirs"
    value = "theirs:ops"

    def __init__(self, load):
        self.load = load


def test_operators_of_installed_packages_are_discovered(monkeypatch):
    entry = FakeEntry(lambda: declare("test.theirs"))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    assert "test.theirs@1" in discover()


def test_a_broken_package_is_named(monkeypatch):
    def load():
        raise ImportError("no module named x")

    entry = FakeEntry(load)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    with pytest.raises(UsageError, match=r"'theirs'.*no module named x"):
        discover()
