"""The vLLM engine with its own engine process (`AsyncLLM`), on the CPU.

Both tests drive it from a child process: what must be shown is that nothing of it is
left when its owner closes it, and when its owner is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PROGRAM = textwrap.dedent(
    """
    import json, sys, threading
    import psutil
    from herasys_rt.config import PoolConfig
    from herasys_rt.engines.protocol import Item
    from herasys_rt.engines.vllm import create

    class Sink:
        def __init__(self):
            self.changed = threading.Condition()
            self.pieces, self.ends = {}, {}
        def started(self, key): pass
        def collection_changed(self, collection, revision): pass
        def piece(self, key, text, tokens):
            with self.changed:
                self.pieces.setdefault(key, []).append(text)
                self.changed.notify_all()
        def finished(self, key, outcome):
            with self.changed:
                self.ends.setdefault(key, []).append(outcome)
                self.changed.notify_all()
        def wait(self, done):
            with self.changed:
                assert self.changed.wait_for(done, 120)

    def ask(key, prompt, most, stream=False, **more):
        args = {"prompt": prompt, "max_tokens": most, **more}
        return Item(key, "llm.generate", args, stream)

    def engine_processes():
        # The interpreter's own resource tracker stays until the interpreter ends.
        found = psutil.Process().children(recursive=True)
        alive = [p for p in found if p.status() != psutil.STATUS_ZOMBIE]
        return [p.pid for p in alive if "resource_tracker" not in " ".join(p.cmdline())]

    def main():
        sink = Sink()
        engine = create(PoolConfig(
            name="llm", resource="llm", engine="vllm", model="smollm2-135m", slots=4,
            options={"backend": "async", "max_model_len": 512, "kv_cache_memory_mb": 64},
        ))
        engine.start(sink)
        children = engine_processes()
        story = "Write a long story about the sea."
        engine.submit([ask("a", "What is the capital of France?", 24, True)])
        engine.submit([ask("b", story, 400, True), ask("early", story, 400)])
        engine.abort("early")
        sink.wait(lambda: "b" in sink.pieces)
        if sys.argv[1] == "hang":
            print(json.dumps({"children": children}), flush=True)
            threading.Event().wait()
        engine.abort("b")
        sink.wait(lambda: {"a", "b", "early"} <= set(sink.ends))
        engine.submit([ask("long", "word " * 300, 400), ask("bad", "{x}", 4)])
        sink.wait(lambda: {"long", "bad"} <= set(sink.ends))
        schema = json.dumps({"type": "array", "items": {"enum": [1, 2]},
                             "minItems": 2, "maxItems": 3})
        engine.submit([
            ask("json", "Choose.", 24, schema=schema),
            ask("choice", "Choose.", 24, choices=["left", "right"]),
            ask("many", "Name an animal.", 4, True, n=3, temperature=1.0, seed=1),
            ask("told", "Say hello.", 2, logprobs=2),
        ])
        sink.wait(lambda: {"json", "choice", "many", "told"} <= set(sink.ends))
        if sys.argv[1] == "killed":
            engine.submit([ask("lost", story, 400, True)])
            sink.wait(lambda: "lost" in sink.pieces)
            for pid in children:
                psutil.Process(pid).kill()
            sink.wait(lambda: "lost" in sink.ends)
            engine.submit([ask("late", story, 4)])
            sink.wait(lambda: "late" in sink.ends)
        fault = engine.snapshot().fault
        idle = engine.snapshot().running + engine.snapshot().waiting
        engine.close()
        print(json.dumps({
            "children": children,
            "idle": idle,
            "fault": fault is not None,
            "threads": [t.name for t in threading.enumerate()],
            "left": engine_processes(),
            "ends": {k: [
                {"value": o.value, "aborted": o.aborted, "usage": o.usage,
                 "error": o.error and [o.error.code, o.error.retryable]} for o in v]
                for k, v in sink.ends.items()},
            "pieces": {k: "".join(v) for k, v in sink.pieces.items()},
        }), flush=True)

    if __name__ == "__main__":
        main()
    """
)


def start(tmp_path: Any, mode: str) -> subprocess.Popen[str]:
    script = tmp_path / "owner.py"
    script.write_text(PROGRAM)
    root = str(pytest.importorskip("herasys_rt").__path__[0]).removesuffix("/herasys_rt")
    env = os.environ | {"PYTHONPATH": root}
    return subprocess.Popen(
        [sys.executable, str(script), mode], stdout=subprocess.PIPE, text=True, env=env
    )


def test_the_engine_process_answers_streams_aborts_fails_and_is_gone_after_close(
    tmp_path: Any,
) -> None:
    with start(tmp_path, "killed") as owner:
        assert owner.stdout is not None
        report = json.loads(owner.stdout.readlines()[-1])
    assert owner.returncode == 0
    ends = report["ends"]
    assert all(len(outcomes) == 1 for outcomes in ends.values())
    assert "Paris" in ends["a"][0]["value"]
    assert report["pieces"]["a"] == ends["a"][0]["value"]
    assert ends["a"][0]["usage"]["completion_tokens"] > 0
    assert ends["b"][0]["aborted"] and ends["early"][0]["aborted"]
    assert ends["long"][0]["error"] == ["prompt_too_long", False]
    assert ends["bad"][0]["error"] == ["invalid_prompt", False]
    assert set(ends["json"][0]["value"]) <= {1, 2}
    assert ends["choice"][0]["value"] in ("left", "right")
    assert len(ends["many"][0]["value"]) == 3 and "many" not in report["pieces"]
    assert [len(t["top"]) for t in ends["told"][0]["value"]["logprobs"]] == [2, 2]
    assert ends["lost"][0]["error"] == ["engine_failed", True]
    assert ends["late"][0]["error"] == ["engine_failed", True]
    assert report["fault"]
    assert report["children"] and not report["left"]
    assert report["threads"] == ["MainThread"]
    gone_or_dead(report["children"])


def test_the_engine_process_ends_when_its_owner_is_killed(tmp_path: Any) -> None:
    with start(tmp_path, "hang") as owner:
        assert owner.stdout is not None
        children = json.loads(owner.stdout.readline())["children"]
        assert children
        os.kill(owner.pid, signal.SIGKILL)
    gone_or_dead(children)


def gone_or_dead(pids: list[int]) -> None:
    """Wait for the ends of processes that are nobody's children of ours."""
    running = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(running, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
