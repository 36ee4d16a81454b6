"""What the python engine gives to functions, and what comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
from typing import NamedTuple

import numpy as np
import pydantic
import pytest

from herasys_rt.engines.protocol import Item
from operators import tool
from tests.real.python_engine.bench import Hit, echo, shout

FACTOR = 3


def scaled(x: int) -> int:
    return x * FACTOR


@tool
def hits(title: str, n: int = 2) -> list[Hit]:
    return [Hit(title=title, rank=scaled(i)) for i in range(n)]


def test_a_function_is_called_with_what_it_captured(either):
    assert either.value(hits, "Köln") == [
        {"title": "Köln", "rank": 0},
        {"title": "Köln", "rank": 3},
    ]


def test_an_asynchronous_function_is_awaited(either):
    assert either.value(shout, "straße 🚀") == "STRASSE 🚀"


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, -0.5, "", "e\u0301 東京 👩‍👩‍👧", b"\x00\xff", [], {}),
        *([1, [2, {"a": None}]], {"k": "v"}),
    ],
)
def test_plain_values_come_back_as_they_are(either, value):
    assert either.value(echo, value) == value


def test_arrays_come_back_as_arrays(either):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(either.value(echo, array), array)


def test_arguments_arrive_as_the_types_that_are_declared(start):
    @tool
    def kinds(hit: Hit, numbers: set[int], n: int = 0) -> list[str]:
        return [type(hit).__name__, type(numbers).__name__, type(n).__name__]

    bench = start()
    assert bench.value(kinds, {"title": "x"}, [1, 2], n=3) == ["Hit", "set", "int"]


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    level: Level = Level.LOW
    tags: list[str] = dataclasses.field(default_factory=list)


class Pair(NamedTuple):
    first: int
    second: str = "b"


class Whole(pydantic.BaseModel):
    parts: list[Part]
    at: datetime.date | None = None

    @pydantic.field_validator("parts")
    @classmethod
    def _some(cls, parts: list[Part]) -> list[Part]:
        if not parts:
            raise ValueError("no parts")
        return parts


@tool
def assemble(whole: Whole, pair: Pair, options: dict[str, bool], level: Level) -> Whole:
    name = whole.parts[0].name
    made = Part(name.upper() if options.get("loud") else name, level, [pair.second])
    return Whole(parts=[dataclasses.replace(made), Part("rest")], at=whole.at)


def test_classes_of_the_users_travel_by_value(either):
    whole = Whole(parts=[Part("a")], at=datetime.date(2026, 1, 2))
    assert either.value(assemble, whole, (1, "x"), {"loud": True}, 2) == {
        "parts": [
            {"name": "A", "level": 2, "tags": ["x"]},
            {"name": "rest", "level": 1, "tags": []},
        ],
        "at": "2026-01-02",
    }


def test_a_validator_of_the_users_refuses_arguments(either):
    item = either.item(assemble, Whole(parts=[Part("a")]), (1, "x"), {}, 2)
    args = item.args | {"arg:whole": {"parts": []}}
    either.engine.submit([Item("bad", item.verb, args)])
    error = either.sink.outcome("bad").error
    assert error.code == "tool_arguments"
    assert "whole.parts: Value error, no parts" in error.message


def test_a_function_keeps_its_defaults_and_its_positional_only_parameters(start):
    @tool
    def odd(a: int, /, b: int = 2, *, c: int = 3) -> list[int]:
        return [a, b, c]

    bench = start()
    assert bench.value(odd, 1) == [1, 2, 3]
    assert bench.value(odd, 1, c=9) == [1, 2, 9]


def test_a_loaded_function_keeps_what_it_gathers_in_its_module(start):
    @tool
    def count() -> int:
        seen.append(1)
        return len(seen)

    seen: list[int] = []
    bench = start()
    assert [bench.value(count), bench.value(count)] == [1, 2]
    assert seen == []  # the engine's copy, not this one


def test_later_changes_of_a_result_are_not_seen(start):
    @tool
    def shared() -> list[int]:
        kept.append(len(kept))
        return kept

    kept: list[int] = []
    bench = start()
    first = bench.value(shared)
    assert (first, bench.value(shared), first) == ([0], [0, 1], [0])


def test_a_whole_number_is_a_float_where_one_is_declared(start):
    @tool
    def half(n: int) -> float:
        return n

    value = start().value(half, 2)
    assert (value, type(value)) == (2.0, float)


def test_asynchronous_calls_overlap_beyond_the_workers(start):
    @tool
    async def meet(n: int) -> int:
        there.add(n)
        while len(there) < 10:
            await asyncio.sleep(0)
        return n

    there: set[int] = set()
    bench = start(workers=1)
    first = bench.item(meet, 0)
    items = [Item(f"m{n}", first.verb, first.args | {"arg:n": n}) for n in range(10)]
    bench.engine.submit(items)
    assert [bench.sink.outcome(f"m{n}").value for n in range(10)] == list(range(10))


def test_time_and_work_are_counted(start):
    outcome = start().call(echo, 1)
    assert outcome.usage == {"items": 1}
    assert outcome.run_s > 0
