"""The python engine: user functions in threads and processes, and text chunking."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import enum
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import psutil
import pydantic
import pytest

from herasys_rt.config import PoolConfig
from herasys_rt.dsl import workflow
from herasys_rt.dsl.tool import Tool
from herasys_rt.engines.protocol import Engine, Item, Outcome
from herasys_rt.engines.python.engine import create
from herasys_rt.errors import ConfigError, ErrorInfo, NodeError
from herasys_rt.graph import codec
from herasys_rt.graph.expressions import resolve
from herasys_rt.graph.types import PortType, value_fault
from operators import tool
from tests.outcome_sink import OutcomeSink


def pool(cpus: float = 0.1, gpus: float = 0.0, **options: Any) -> PoolConfig:
    return PoolConfig(
        name="python",
        resource="python",
        engine="python",
        cpus=cpus,
        gpus=gpus,
        options=options,
    )


class Bench:
    """An engine with its sink; calls are lowered as in a workflow."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sink = OutcomeSink()
        self.count = 0
        engine.start(self.sink)

    def item(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> Item:
        spec = workflow(name="flow")(lambda: called(*args, **kwargs)).spec
        self.count += 1
        node = spec.nodes[0]
        return Item(f"{self.count}.1", node.verb, resolve(node.args, {}, {}))

    def submit(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> str:
        item = self.item(called, *args, **kwargs)
        self.engine.submit([item])
        return item.key

    def call(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> Outcome:
        return self.sink.outcome(self.submit(called, *args, **kwargs))

    def value(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> Any:
        outcome = self.call(called, *args, **kwargs)
        assert outcome.error is None, outcome.error
        return outcome.value

    def error(self, called: Tool[..., Any], *args: Any, **kwargs: Any) -> ErrorInfo:
        error = self.call(called, *args, **kwargs).error
        assert error is not None
        return error


Start = Callable[..., Bench]


@pytest.fixture
def start() -> Iterator[Start]:
    benches: list[Bench] = []

    def begin(**options: Any) -> Bench:
        bench = Bench(create(pool(**options)))
        benches.append(bench)
        return bench

    yield begin
    for bench in benches:
        bench.engine.close()
        assert bench.sink.each_ended_once()


@pytest.fixture(params=["thread", "process"])
def either(request: pytest.FixtureRequest, start: Start) -> Bench:
    """An engine that calls in threads, and one that calls in processes."""
    return start(isolate=request.param)


class Hit(pydantic.BaseModel):
    title: str
    rank: int = 0


FACTOR = 3


def scaled(x: int) -> int:
    return x * FACTOR


@tool
def hits(title: str, n: int = 2) -> list[Hit]:
    return [Hit(title=title, rank=scaled(i)) for i in range(n)]


@tool
async def shout(text: str) -> str:
    await asyncio.sleep(0)
    return text.upper()


@tool
def echo(value: Any) -> Any:
    return value


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


# --- values -----------------------------------------------------------------------------


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


# --- what goes wrong --------------------------------------------------------------------


def test_an_exception_is_told_with_its_type_words_and_place(either):
    error = either.error(fail, "words")
    assert (error.code, error.retryable) == ("tool_failed", False)
    assert error.message.startswith(
        "tool 'fail' raised LookupError: not found (from ValueError: words)\n"
    )
    assert "test_python_engine.py" in error.message
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


# --- time -------------------------------------------------------------------------------


@tool
def hang(ready: str, gate: str) -> str:
    """Say who runs, then wait until somebody opens the gate."""
    with open(ready, "w") as told:
        told.write(str(os.getpid()))
    with open(gate) as opened:
        return opened.read() or "late"


@tool
async def hang_later(ready: str, gate: str) -> str:
    with open(ready, "w") as told:
        told.write(str(os.getpid()))
    await asyncio.Event().wait()
    return "late"


@tool
async def block_the_loop(ready: str, gate: str) -> str:
    return hang.function(ready, gate)


class Gate:
    """Two named pipes: functions tell when they run, and wait to be let go."""

    def __init__(self, folder: Path) -> None:
        self.ready, self.way = folder / "ready", folder / "gate"
        os.mkfifo(self.ready)
        os.mkfifo(self.way)
        self.args = (str(self.ready), str(self.way))

    def await_caller(self) -> int:
        """Wait until a function runs; the process it runs in."""
        return int(self.ready.read_text())

    def let_go(self) -> None:
        """Let the function that runs end; it may not have come to its gate yet."""
        os.close(os.open(self.way, os.O_WRONLY))

    def open(self) -> None:
        """Let who waits go; nobody has to."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.way, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.open()


@pytest.fixture(params=["thread", "process", "coroutine"])
def hanging(request: pytest.FixtureRequest) -> tuple[Tool[..., Any], dict[str, Any]]:
    """A function that hangs, and the options of an engine for it."""
    isolate = "process" if request.param == "process" else "thread"
    return (hang_later if request.param == "coroutine" else hang), {"isolate": isolate}


def test_a_call_that_hangs_ends_at_the_pools_limit(start, gate, hanging):
    function, options = hanging
    bench = start(timeout_s=1.0, **options)
    key = bench.submit(function, *gate.args)
    gate.await_caller()
    error = bench.sink.outcome(key).error
    assert (error.code, error.retryable) == ("tool_timeout", True)
    assert "within 1 s" in error.message
    assert bench.value(echo, 5) == 5


def test_an_abort_ends_a_call_at_once_and_the_next_one_works(start, gate, hanging):
    function, options = hanging
    bench = start(workers=1, **options)
    key = bench.submit(function, *gate.args)
    pid = gate.await_caller()
    bench.engine.abort(key)
    bench.engine.abort("unknown")
    assert bench.sink.outcome(key).aborted
    assert bench.value(echo, 5) == 5
    if options["isolate"] == "process":
        assert pid != os.getpid()
        gone(pid)


def test_an_abort_of_what_has_not_begun_ends_it(start, gate):
    bench = start(workers=1)
    first = bench.submit(hang, *gate.args)
    gate.await_caller()
    second = bench.submit(echo, 1)
    bench.engine.abort(second)
    assert bench.sink.outcome(second).aborted
    gate.let_go()
    assert bench.sink.outcome(first).value == "late"


def test_closing_aborts_what_is_under_way(start, gate, hanging):
    function, options = hanging
    bench = start(**options)
    key = bench.submit(function, *gate.args)
    gate.await_caller()
    bench.engine.close()
    assert bench.sink.outcome(key).aborted
    bench.engine.close()


def test_a_coroutine_that_blocks_its_loop_blocks_no_later_one(start, gate, monkeypatch):
    monkeypatch.setattr("herasys_rt.engines.python.threads._GRACE_S", 0.2)
    bench = start()
    key = bench.submit(block_the_loop, *gate.args)
    gate.await_caller()
    behind = bench.submit(shout, "a")
    bench.engine.abort(key)
    assert bench.sink.outcome(key).aborted
    error = bench.sink.outcome(behind).error
    assert (error.code, error.retryable) == ("tools_stuck", True)
    assert bench.value(shout, "b") == "B"


def test_too_many_threads_left_behind_are_a_fault_of_the_engine(start, gate, monkeypatch):
    monkeypatch.setattr("herasys_rt.engines.python.engine._ABANDONED", 1)
    bench = start()
    key = bench.submit(hang, *gate.args)
    gate.await_caller()
    assert bench.engine.snapshot().running == 1
    bench.engine.abort(key)
    assert bench.sink.outcome(key).aborted
    fault = bench.engine.snapshot().fault
    assert fault is not None and fault.code == "tools_stuck"


def test_calls_that_ask_for_cpus_wait_for_each_other(start, gate):
    bench = start(cpus=1.5)
    first = bench.submit(tool(resources={"cpus": 1})(hang.function), *gate.args)
    gate.await_caller()
    second = bench.submit(tool(resources={"cpus": 1})(echo.function), 2)
    free = bench.submit(echo, 3)
    assert bench.sink.outcome(free).value == 3  # asked for nothing, so it went ahead
    assert ("started", second) not in bench.sink.log
    gate.open()
    assert bench.sink.outcome(first).value == "late"
    assert bench.sink.outcome(second).value == 2


@pytest.mark.parametrize("resources", [{"cpus": 2}, {"gpus": 1}])
def test_more_than_an_instance_has_is_refused_with_both_numbers(start, resources):
    error = start(cpus=1).error(tool(resources=resources)(echo.function), 1)
    assert error.code == "tool_resources"
    (key, amount), *_ = resources.items()
    assert f"asks for {amount} {key}" in error.message


# --- processes --------------------------------------------------------------------------


@tool
def die(how: str) -> None:
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


@tool
def spawn_and_hang(ready: str, gate: str) -> str:
    child = subprocess.Popen(["cat", gate])
    with open(ready, "w") as told:
        told.write(str(child.pid))
    return str(child.wait())


def gone(pid: int) -> None:
    """Wait until a process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            process.wait(20)


@pytest.mark.parametrize(
    ("how", "told"), [("exit", "exit status 3"), ("kill", "killed by SIGKILL")]
)
def test_a_process_that_dies_is_told_and_replaced(start, how, told):
    bench = start(isolate="process", workers=1)
    error = bench.error(die, how)
    assert error.code == "tool_died"
    assert told in error.message
    assert bench.value(echo, 1) == 1


def test_an_abort_ends_what_the_function_started_as_well(start, gate):
    bench = start(isolate="process")
    key = bench.submit(spawn_and_hang, *gate.args)
    grandchild = gate.await_caller()
    bench.engine.abort(key)
    assert bench.sink.outcome(key).aborted
    gone(grandchild)


def test_a_worker_serves_one_call_after_the_other(start):
    bench = start(isolate="process", workers=1)
    pids = {bench.value(tool(name="pid")(os.getpid)) for _ in range(3)}
    assert len(pids) == 1
    assert pids != {os.getpid()}


def test_workers_die_with_their_host(tmp_path):
    gate = Gate(tmp_path)
    script = (
        "import os, signal, sys\n"
        "from tests.real.test_python_engine import Bench, create, hang, pool\n"
        "bench = Bench(create(pool(isolate='process')))\n"
        "bench.submit(hang, *sys.argv[1:3])\n"
        "open(sys.argv[3]).read()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    kill = tmp_path / "kill"
    os.mkfifo(kill)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    host = subprocess.Popen([sys.executable, "-c", script, *gate.args, str(kill)], env=env)
    worker = gate.await_caller()
    kill.write_text("")
    assert host.wait(30) == -signal.SIGKILL
    gone(worker)


# --- output -----------------------------------------------------------------------------


@tool
def talk(text: str) -> None:
    print(text)
    print("no end", end="")


@tool
async def talk_later(text: str) -> None:
    print(text)


def test_what_functions_print_goes_to_the_log_under_their_name(start, caplog, capsys):
    caplog.set_level(logging.INFO, "herasys_rt.tools")
    bench = start()
    bench.value(talk, "one\ntwo")
    bench.value(talk_later, "three")
    print("of the host")
    assert caplog.messages == [
        *("talk: one", "talk: two", "talk: no end", "talk_later: three")
    ]
    assert capsys.readouterr().out == "of the host\n"


def test_what_functions_print_in_processes_goes_to_the_log_too(start, capfd):
    start(isolate="process").value(talk, "one")
    captured = capfd.readouterr()
    assert captured.err.splitlines() == ["talk: one", "talk: no end"]
    assert captured.out == ""


# --- batches ----------------------------------------------------------------------------


def test_one_bad_call_leaves_the_others_alone(either):
    items = [either.item(fail, "x"), *(either.item(echo, n) for n in range(8))]
    either.engine.submit(items)
    assert either.sink.outcome(items[0].key).error.code == "tool_failed"
    assert [either.sink.outcome(item.key).value for item in items[1:]] == list(range(8))


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


# --- chunking ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model directory whose tokens are words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("words")
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    return str(folder)


def chunk(bench: Bench, **args: Any) -> Outcome:
    bench.count += 1
    key = f"{bench.count}.1"
    bench.engine.submit([Item(key, "text.chunk", args)])
    return bench.sink.outcome(key)


def test_text_is_cut_by_tokens_with_an_overlap(start, tokenizer):
    text = " ".join(f"w{i}" for i in range(10))
    outcome = chunk(start(tokenizer=tokenizer), text=text, max_tokens=4, overlap=1)
    assert outcome.value == ["w0 w1 w2 w3", "w3 w4 w5 w6", "w6 w7 w8 w9"]
    assert outcome.usage == {"items": 1, "chunks": 3}
    assert value_fault(outcome.value, PortType.TEXTS) is None


@pytest.mark.parametrize("value", [None, "x", [1, {"a": 2.5}]])
def test_a_value_is_a_step_when_it_has_to_be(start, value):
    bench = start()
    bench.engine.submit([Item("value", "text.value", {"value": value})])
    assert bench.sink.outcome("value").value == value


@pytest.mark.parametrize("text", ["", " \n\t", "\0"])
def test_a_blank_text_gives_no_chunks(start, tokenizer, text):
    assert chunk(start(tokenizer=tokenizer), text=text).value == []


def test_broken_text_gives_chunks_of_clean_text(start, tokenizer):
    outcome = chunk(start(tokenizer=tokenizer), text="a\0 \ud83d 👩‍👩‍👧 b")
    assert outcome.value == ["a \ufffd 👩‍👩‍👧 b"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"text": 7}, "invalid_input"),
        ({"text": "a", "max_tokens": 0}, "invalid_chunking"),
        ({"text": "a", "max_tokens": 5, "overlap": 5}, "invalid_chunking"),
    ],
)
def test_what_cannot_be_chunked_is_refused(start, tokenizer, args, code):
    error = chunk(start(tokenizer=tokenizer), **args).error
    assert error is not None and error.code == code


def test_without_its_tokenizer_the_engine_still_calls_functions(start, tmp_path):
    bench = start(tokenizer=str(tmp_path))
    error = chunk(bench, text="a").error
    assert error is not None and error.code == "unknown_model"
    assert bench.value(echo, 1) == 1


def test_the_fingerprint_names_what_chunks_depend_on(start, tokenizer, tmp_path):
    prints = {
        start(tokenizer=name).engine.describe()["fingerprint"]
        for name in (tokenizer, str(tmp_path))
    }
    assert len(prints) == 2


# --- options ----------------------------------------------------------------------------


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
