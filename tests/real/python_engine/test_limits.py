"""Functions that hang or take their process along, and what they ask for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from herasys_rt.dsl.tool import Tool
from operators import tool
from tests.real.python_engine.bench import Gate, echo, gone, hang, shout


@tool
async def hang_later(ready: str, gate: str) -> str:
    with open(ready, "w") as told:
        told.write(str(os.getpid()))
    await asyncio.Event().wait()
    return "late"


@tool
async def block_the_loop(ready: str, gate: str) -> str:
    return hang.function(ready, gate)


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
        "from herasys_rt.engines.python.engine import create\n"
        "from tests.real.python_engine.bench import Bench, hang, pool\n"
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
