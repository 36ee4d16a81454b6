"""The exception tree: picklable with cause, unique codes, values that travel."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import traceback

import pytest

import herasys_rt.errors
from herasys_rt.errors import (
    ErrorInfo,
    Fault,
    GraphError,
    HerasysError,
    InputError,
    NodeError,
    error_from_info,
)

for _module in ("herasys_rt.graph", "herasys_rt.dsl", "herasys_rt.core"):
    for _found in pkgutil.iter_modules(importlib.import_module(_module).__path__):
        importlib.import_module(f"{_module}.{_found.name}")


def tree(root: type[HerasysError]) -> list[type[HerasysError]]:
    children = [c for c in root.__subclasses__() if c.__module__.startswith("herasys_rt.")]
    return [root] + [kind for child in children for kind in tree(child)]


KINDS = sorted(set(tree(HerasysError)), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_every_error_survives_pickling_with_its_cause(kind):
    error = kind("it broke", hint="mend it", node="embed", numbers=(1, 2))
    error.__cause__ = ValueError("the reason")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (back.message, back.hint, back.code) == ("it broke", "mend it", kind.code)
    assert back.fields == {"node": "embed", "numbers": (1, 2)}
    assert isinstance(back.__cause__, ValueError)
    assert str(back) == "it broke"


def test_codes_are_unique():
    codes = [kind.code for kind in KINDS]
    assert sorted(codes) == sorted(set(codes))


def test_every_error_has_a_docstring():
    assert [kind.__name__ for kind in KINDS if not kind.__doc__] == []


def test_an_own_code_survives_and_stays_on_that_error():
    error = NodeError("no such collection", code="unknown_collection")
    assert pickle.loads(pickle.dumps(error)).code == "unknown_collection"
    assert NodeError.code == "node_failed"


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_an_error_crosses_processes_as_a_value(kind):
    info = kind("it broke", hint="mend it").info()
    back = error_from_info(info)
    assert type(back) is kind
    assert back.info() == info


def test_an_unknown_code_becomes_a_node_error_that_keeps_it():
    back = error_from_info(ErrorInfo("my_tool", "broke", "call"))
    assert type(back) is NodeError
    assert back.code == "my_tool"


def test_faults_of_a_graph_survive_pickling():
    error = GraphError.of("rag", [Fault("a", "is wrong", "b fits"), Fault("c", "too")])
    back = pickle.loads(pickle.dumps(error))
    assert back.fields["faults"] == (Fault("a", "is wrong", "b fits"), Fault("c", "too"))
    assert "2 faults" in back.message
    assert "a: is wrong (b fits)" in back.message


def test_the_json_of_an_error_has_three_keys():
    assert herasys_rt.errors.UsageError("m", hint="h").info().to_json() == {
        "code": "usage",
        "message": "m",
        "hint": "h",
    }


def test_a_traceback_shows_the_hint_once_also_after_pickling() -> None:
    error = pickle.loads(pickle.dumps(InputError("it is empty", hint="Fill it.")))
    shown = "".join(traceback.format_exception_only(error))
    assert shown.endswith("InputError: it is empty\nhint: Fill it.\n")
