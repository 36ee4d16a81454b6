"""What a function may do wrong, and what is told of it."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import pytest

from herasys_rt.engines.protocol import Item
from herasys_rt.engines.python.engine import create
from herasys_rt.errors import ConfigError, NodeError
from herasys_rt.graph import codec
from herasys_rt.graph.types import PortType
from operators import tool
from tests.real.python_engine.bench import Bench, Hit, echo, pool, shout


@tool
def fail(words: str) -> str:
    def deeper() -> None:
        raise ValueError(words)

    try:
        deeper()
    except ValueError as e:
        raise LookupError("not found") from e
    return ""


@tool
async def fail_later(words: str) -> str:
    await asyncio.sleep(0)
    raise ValueError(words)


def test_an_exception_is_told_with_its_type_words_and_place(either):
    error = either.error(fail, "words")
    assert (error.code, error.retryable) == ("tool_failed", False)
    assert error.message.startswith(
        "tool 'fail' raised LookupError: not found (from ValueError: words)\n"
    )
    assert "test_failures.py" in error.message
    assert "in fail" in error.message
    assert "engines/python" not in error.message


def test_an_exception_of_an_asynchronous_function_is_told_too(either):
    error = either.error(fail_later, "🚀")
    assert error.code == "tool_failed"
    assert "raised ValueError: 🚀" in error.message


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def leave(how: str) -> Any:
    errors: dict[str, BaseException] = {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "stop": StopIteration(1),
        "unspeakable": Unspeakable(),
        "surrogate": ValueError("half \ud83d"),
        "long": ValueError("x" * 100_000),
        "cancelled": asyncio.CancelledError(),
        "timeout": TimeoutError(),
        "group": ExceptionGroup("several", [ValueError("a")]),
        "generator": GeneratorExit(),
    }
    raise errors[how]


async def leave_later(how: str) -> Any:
    leave(how)


KINDS = ["exit", "interrupt", "stop", "unspeakable", "surrogate", "long", "timeout"]


@pytest.mark.parametrize("how", [*KINDS, "cancelled", "group", "generator"])
def test_whatever_a_function_raises_ends_its_call_and_nothing_else(start, how):
    bench = start()
    error = bench.error(tool(leave), how)
    assert error.code == "tool_failed"
    assert len(error.message) < 5000
    codec.encode(error)
    assert bench.value(echo, 1) == 1


@pytest.mark.parametrize("how", ["exit", "interrupt", "cancelled", "stop", "timeout"])
def test_whatever_a_coroutine_raises_ends_its_call_and_nothing_else(start, how):
    bench = start()
    assert bench.error(tool(leave_later), how).code == "tool_failed"
    assert bench.value(shout, "a") == "A"


def test_an_error_with_a_code_of_its_own_keeps_it(either):
    @tool
    def refuse() -> str:
        raise NodeError("no such city", hint="Name another.", code="unknown_city")

    error = either.error(refuse)
    assert (error.code, error.hint) == ("unknown_city", "Name another.")


def test_wrong_arguments_are_told_all_at_once(either):
    @tool
    def book(city: str, nights: Annotated[int, pydantic.Field(ge=1)], kind: Literal["a"]):
        return "booked"

    item = either.item(book, "x", 1, "a")
    args = item.args | {"arg:city": 7, "arg:nights": 0, "arg:kind": "b", "arg:more": 1}
    either.engine.submit([Item("wrong", item.verb, args)])
    error = either.sink.outcome("wrong").error
    assert error.code == "tool_arguments"
    for told in ("city: Input should be a valid string", "nights: ", "kind: ", "more: "):
        assert told in error.message


@tool
def make(what: str) -> Any:
    """A value that could not be an argument."""
    return eval(what, {"np": np})


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("float('nan')", "the result is nan"),
        ("[{'a': [1.0, float('inf')]}]", "the result[0].a[1] is inf"),
        ("np.array([1.0, np.nan])", "holds NaN or infinite"),
        ("object()", "the result is of type object"),
        ("2**70", "beyond 64 bits"),
        ("'half \\ud83d'", "lone surrogate"),
        ("lambda: 1", "of type function"),
        ("[object()]", "the result[0] is of type object"),
        ("np.array(['a'])", "of dtype <U1"),
        ("(lambda a: (a.append(a), a)[1])([])", "holds itself"),
    ],
)
def test_a_result_that_cannot_travel_is_refused_by_its_place(either, what, told):
    error = either.error(make, what)
    assert (error.code, error.retryable) == ("tool_result", False)
    assert told in error.message


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("(1, (2,))", [1, [2]]),
        ("{3}", [3]),
        ("{1: 'a'}", {"1": "a"}),
        ("(i for i in range(2))", [0, 1]),
        ("np.float32(0.5)", 0.5),
        ("__import__('datetime').date(2026, 1, 2)", "2026-01-02"),
        ("__import__('pathlib').Path('a/b')", "a/b"),
        ("__import__('http').HTTPStatus.OK", 200),
    ],
)
def test_other_results_travel_as_json_says_them(either, what, value):
    assert either.value(make, what) == value


@pytest.mark.parametrize(
    ("hint", "value", "told"),
    [
        (str, 7, "expected text, got int 7"),
        (str, None, "expected text"),
        (int, "7", "expected int"),
        (bool, 1, "expected bool"),
        (list[str], ["a", 1], "expected texts"),
        (dict[str, int], {"a": "x"}, "a: Input should be a valid integer"),
        (list[Hit], [{"rank": 1}], "0.title: Field required"),
        (Annotated[list[dict], PortType.CHUNKS], [{"id": "x"}], "expected chunks"),
        (None, 1, "Input should be None"),
    ],
)
def test_a_result_of_another_type_than_declared_is_refused(start, hint, value, told):
    def give():
        return value

    give.__annotations__["return"] = hint
    error = start().error(tool(give))
    assert error.code == "tool_result"
    assert told in error.message


def test_a_huge_result_is_refused_with_its_size(either):
    @tool
    def huge() -> bytes:
        return bytes(2_000_000)

    small = Bench(create(pool(max_result_mb=1)))
    try:
        error = small.error(huge)
        assert error.code == "tool_result"
        assert "1048576 at most" in error.message
    finally:
        small.engine.close()
    assert len(either.value(huge)) == 2_000_000


def test_a_function_that_cannot_be_loaded_here_says_what_is_missing(start):
    bench = start()
    item = bench.item(echo, 1)
    for key, data in (("cut", b"\x80\x05"), ("gone", b"cno_such_module_x\nf\n.")):
        bench.engine.submit([Item(key, item.verb, item.args | {"function": data})])
        assert bench.sink.outcome(key).error.code == "tool_not_loadable"
    assert "no_such_module_x" in bench.sink.outcome("gone").error.message
    bench.engine.submit([Item("none", item.verb, {})])
    assert bench.sink.outcome("none").error.code == "invalid_argument"
    bench.engine.submit([Item("verb", "embed", {})])
    assert bench.sink.outcome("verb").error.code == "unknown_verb"


def test_one_bad_call_leaves_the_others_alone(either):
    items = [either.item(fail, "x"), *(either.item(echo, n) for n in range(8))]
    either.engine.submit(items)
    assert either.sink.outcome(items[0].key).error.code == "tool_failed"
    assert [either.sink.outcome(item.key).value for item in items[1:]] == list(range(8))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"worker": 3}, "did you mean 'workers'?"),
        ({"workers": 0}, "workers"),
        ({"isolate": "container"}, "isolate"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_wrong_options_are_refused(options, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        create(pool(**options))
