"""vLLM's own OpenAI-compatible server, which the rival programs talk to.

    with serve() as server:
        ...  # server.url, server.model

It runs in the environment of the caller (the one with vLLM in it), with the settings
that our own LLM pool has on a machine without a GPU, so that both sides drive the same
engine. ``python -m benchmarks.rivals.serve`` serves until it is interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import psutil

from herasys_rt.engines.models import resolve_model

MODEL = "smollm2-135m"
TOOL_TEMPLATE = Path(__file__).with_name("tools.jinja")
"""The model's chat template, with tools and their results, which its own leaves out."""

_POLL_S = 0.25
_STOP_S = 30.0
_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers. ``url`` ends in ``/v1``; ``model`` is the name to ask for."""

    url: str
    model: str
    pid: int


class ServerFailed(RuntimeError):
    """The server ended, or did not answer in time; the message ends with its log."""


@contextlib.contextmanager
def serve(
    model: str = MODEL,
    *,
    slots: int = 32,
    kv_cache_mb: int = 256,
    max_model_len: int = 2048,
    start_timeout_s: float = 240.0,
    options: Sequence[str] = (),
) -> Iterator[Server]:
    """A server for ``model`` (an alias, a path or a hub id) that is gone afterwards.

    ``slots`` sequences run at once, with ``kv_cache_mb`` MiB for their keys and values;
    ``options`` are more words of the server's command line. Yields once it answers;
    raises `ServerFailed` when it ends or does not answer within ``start_timeout_s``.
    """
    path = resolve_model(model).path
    port = _free_port()
    words = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", path, "--served-model-name", model),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-num-seqs", str(slots), "--max-model-len", str(max_model_len)),
        *("--kv-cache-memory-bytes", str(kv_cache_mb * 1024**2)),
        *("--enforce-eager", "--block-size", "32", "--chat-template", str(TOOL_TEMPLATE)),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        "--exclude-tools-when-tool-choice-none",
        *options,
    ]
    with tempfile.TemporaryFile() as log:
        process = psutil.Popen(
            words,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_it_answers(process, port, log, start_timeout_s)
            yield Server(f"http://127.0.0.1:{port}/v1", model, process.pid)
        finally:
            _stop(process)


def _environment() -> dict[str, str]:
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    return {**defaults, **os.environ}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_it_answers(
    process: psutil.Popen, port: int, log: IO[bytes], timeout_s: float
) -> None:
    deadline_s = time.monotonic() + timeout_s
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5.0) as client:
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                raise ServerFailed(f"it ended with {process.returncode}\n{_tail(log)}")
            with contextlib.suppress(httpx.TransportError):
                if client.get("/health").is_success:
                    return
            time.sleep(_POLL_S)
    raise ServerFailed(f"no answer within {timeout_s:g} s\n{_tail(log)}")


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL_BYTES))
    return log.read().decode(errors="replace")


def _stop(process: psutil.Popen) -> None:
    """End the server and what it started, by their ids; asked first, then killed."""
    family = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += process.children(recursive=True)
        process.terminate()
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(_STOP_S)
    _, alive = psutil.wait_procs(family, timeout=5.0)
    for left in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    psutil.wait_procs(alive, timeout=5.0)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Serve until interrupted; the address is the one line on standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--slots", type=int, default=32)
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    with contextlib.suppress(KeyboardInterrupt), serve(args.model, slots=args.slots) as up:
        print(up.url, flush=True)
        psutil.Process(up.pid).wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
