"""What names a function: everything that changes what it does, and nothing else."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest

from herasys_rt.errors import UsageError
from herasys_rt.graph.code_digest import code_digest

ROOT = Path(__file__).parents[3]


def loaded(body: str, name: str = "f") -> Callable[..., Any]:
    """The function ``name`` of a module with this text."""
    scope: dict[str, Any] = {"__name__": "some_module"}
    exec(compile(body, "some_module.py", "exec"), scope)
    return scope[name]


def adder(n: Any) -> Callable[..., Any]:
    return lambda x: x + n


BASE = """
import math
LIMIT = 3
def g(x): return x
def f(x, k=1): return g(x) + LIMIT + k
"""


@pytest.mark.parametrize(
    "body",
    [
        BASE.replace("return g(x) +", "return g(x) -"),
        BASE.replace("LIMIT = 3", "LIMIT = 4"),
        BASE.replace("LIMIT = 3", "LIMIT = 3.0"),
        BASE.replace("LIMIT = 3", "LIMIT = True"),
        BASE.replace("def g(x): return x", "def g(x): return x + 1"),
        BASE.replace("k=1", "k=2"),
        BASE.replace("(x, k=1)", "(x, *, k=1)"),
        BASE.replace("x", "y"),
        BASE.replace("LIMIT + k", "LIMIT + k + 0.0"),
        BASE.replace("LIMIT + k", "LIMIT + k + -0.0"),
        BASE.replace("LIMIT + k", "LIMIT + math.pi"),
        BASE.replace("LIMIT + k", "LIMIT + math.tau"),
        BASE.replace("def f(", "async def f("),
        BASE.replace("return g(x)", "return (lambda: g(x))()"),
        BASE.replace("return g(x)", "return (lambda: g(x + 1))()"),
        BASE.replace("return g(x)", "return 'a' in {'a', 'b'}"),
        BASE.replace("return g(x)", "return 'a' in {'a', 'c'}"),
        BASE.replace("return g(x)", "return 'a' in ('a', 'c')"),
    ],
)
def test_whatever_changes_what_a_function_does_changes_its_name(body):
    digests = {code_digest(loaded(BASE)), code_digest(loaded(body))}
    assert len(digests) == 2


@pytest.mark.parametrize(
    "body",
    [
        BASE,
        "# a comment\n" + BASE,
        BASE.replace("return g(x) + LIMIT + k", "\n    return (g(x)\n      + LIMIT + k)"),
        BASE + "UNUSED = 7\ndef unused(): return 1\n",
        BASE.replace("def g(x): return x\n", "") + "def g(x): return x\n",
    ],
)
def test_what_changes_nothing_leaves_the_name(body):
    assert code_digest(loaded(body)) == code_digest(loaded(BASE))


def test_the_version_is_part_of_the_name():
    assert code_digest(loaded(BASE), "1") != code_digest(loaded(BASE), "2")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Point:
    x: int


class Model(pydantic.BaseModel):
    x: int


def one() -> int:
    return 1


def two() -> int:
    return 2


VALUES: list[Any] = [
    *(0, 1, 1.0, True, None, "1", b"1", 1j, -0.0, 0.0, float("nan"), 2**80, ...),
    *([], [1], (1,), [[1]], {}, {"a": 1}, {"a": 2}, {1: "a"}, {"b": 1, "a": 1}),
    *(set(), {1}, frozenset({1}), range(3), range(4), "\ud800", "", b""),
    *(Colour.RED, Colour.BLUE, Point(1), Point(2), Model(x=1), Model(x=2)),
    *(one, two, len, max, int, Point, re.compile("a"), re.compile("a", re.I)),
    *(functools.partial(one), functools.partial(two), functools.lru_cache(one)),
    *(Path("a"), Path("b"), "x".upper, adder(1), adder(2)),
]


def test_same_body_and_different_captured_values_differ():
    named = [code_digest(adder(value)) for value in VALUES]
    twice = sorted({n for n in named if named.count(n) > 1})
    assert [[v for v, d in zip(VALUES, named, strict=True) if d == n] for n in twice] == []
    again = [code_digest(adder(value)) for value in VALUES]
    assert again == named


def test_equal_values_name_equally_whatever_made_them():
    assert code_digest(adder([1, "a"])) == code_digest(adder([1, *"a"]))
    assert code_digest(adder({"b", "a"})) == code_digest(adder({"a", "b"}))
    assert code_digest(adder(Point(3))) == code_digest(adder(Point(3)))
    shared, other = (1, 2), tuple(range(1, 3))
    assert code_digest(adder([shared, shared])) == code_digest(adder([shared, other]))


def test_a_captured_value_without_a_name_is_refused_by_its_variable():
    lock = threading.Lock()

    def locked(x: int) -> int:
        with lock:
            return x

    with pytest.raises(UsageError, match=r"lock is a _thread\.lock") as caught:
        code_digest(locked)
    assert caught.value.code == "not_nameable"
    assert "make it inside the function" in caught.value.hint


_log = logging.getLogger(__name__)


def test_module_level_values_without_a_name_count_by_their_type():
    def logged(x: int) -> int:
        _log.info("%s", x)
        return x

    assert code_digest(logged) == code_digest(logged)


def test_functions_that_use_each_other_or_themselves_have_a_name():
    even = loaded(
        "def even(n): return n == 0 or odd(n - 1)\n"
        "def odd(n): return n != 0 and even(n - 1)\n",
        "even",
    )
    assert len(code_digest(even)) == 32
    loop: list[Any] = [1]
    loop.append(loop)
    assert code_digest(adder(loop)) == code_digest(adder(loop))


def test_methods_are_named_by_their_object():
    class Scale:
        def __init__(self, by: int) -> None:
            self.by = by

        def times(self, x: int) -> int:
            return self.by * x

    with pytest.raises(UsageError, match="Scale"):
        code_digest(Scale(2).times)


def test_a_class_in_use_counts_with_its_methods():
    body = "class C:\n    def m(self): return 1\ndef f(): return C().m()\n"
    changed = body.replace("return 1", "return 2")
    assert code_digest(loaded(body)) != code_digest(loaded(changed))


MODULE = """
import enum, re
WORDS = frozenset({"alpha", "beta", "gamma", "delta", "epsilon"})
class Kind(enum.Enum):
    A = "a"
def outer(n):
    names = {"x", "y", "z", "w"}
    def inner(a, b=(1, (2, 3)), *, c={"k": [1, 2]}):
        return a in {"p", "q", "r"}, a in WORDS, n, names, re.compile("x"), Kind.A, (1, 2)
    return inner
def other():
    return (1, (2, 3)), (1, 2)
f = outer(4)
"""


def test_the_name_is_the_same_in_every_process(tmp_path):
    (tmp_path / "named_module.py").write_text(MODULE)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import named_module;"
        "from herasys_rt.graph.code_digest import code_digest;"
        "print(code_digest(named_module.f, '1'))"
    )

    def named(seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    first = named("1")  # compiled here, read from its .pyc by the others
    assert (tmp_path / "__pycache__").exists()
    assert {named("2"), named("77")} == {first}
