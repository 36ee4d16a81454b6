"""The daemon: the process that is Ray's driver and PostgreSQL's parent.

`herasys up` leaves one behind; a client without one starts a *private* daemon that ends
with it. Parent and daemon speak JSON lines: the order on the daemon's standard input,
progress and the outcome on its standard output. While the parent holds the other end of
standard input, its death ends the daemon; a background daemon is let go by the word
``detach`` once it is ready.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from herasys_rt.config import Config
from herasys_rt.errors import (
    ErrorInfo,
    HerasysError,
    InternalError,
    RuntimeStateError,
    error_from_info,
)
from herasys_rt.links import Endpoint
from herasys_rt.runtime import places

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

_STOP_PATIENCE_S = 30.0
_INTERRUPTED = "the start was interrupted"
_HEALTH_EVERY_S = 2.0


# --- the parent's side --------------------------------------------------------------
class Daemon:
    """A daemon process as its parent sees it; `state` tells how to reach the runtime."""

    def __init__(self, process: subprocess.Popen[str], state: dict[str, Any]) -> None:
        self._process = process
        self.state = state

    @property
    def endpoint(self) -> Endpoint:
        """Where the scheduler listens."""
        return endpoint_of(self.state)

    def detach(self) -> None:
        """Let the daemon live on without this process."""
        assert self._process.stdin is not None
        self._process.stdin.write("detach\n")
        self._process.stdin.close()

    def stop(self) -> None:
        """End the daemon and wait until everything of it is gone. Idempotent."""
        _end(self._process)


def endpoint_of(state: dict[str, Any]) -> Endpoint:
    """The scheduler's endpoint out of a state file's content."""
    return msgspec.msgpack.decode(base64.b64decode(state["endpoint"]), type=Endpoint)


def spawn(config: Config, *, private: bool, progress: Progress) -> Daemon:
    """Start a daemon and wait until it serves.

    Errors: whatever it could not start with, as the same typed error; nothing of it is
    left then, nor when this call is interrupted.
    """
    run_dir = places.new_run_dir()
    log_path = run_dir / "daemon.log" if private else places.state_dir() / "daemon.log"
    with log_path.open("a") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "herasys_rt.runtime.daemon"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            start_new_session=True,
        )
    try:
        return Daemon(process, _await_ready(process, config, private, run_dir, progress))
    except BaseException:
        _end(process)
        _keep_log(log_path)
        places.remove_run_dir(run_dir)
        raise


def _failed_log() -> Path:
    """Where the log of the last start that failed is kept."""
    return places.state_dir() / "failed-start.log"


def _keep_log(log_path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.copyfile(log_path, _failed_log())


def _await_ready(
    process: subprocess.Popen[str],
    config: Config,
    private: bool,
    run_dir: Path,
    progress: Progress,
) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    order = {
        "config": plain_config(config),
        "private": private,
        "run_dir": str(run_dir),
    }
    with contextlib.suppress(BrokenPipeError):  # It died; its last words are read below.
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
    for line in process.stdout:
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if "progress" in message:
                progress(message["progress"])
            elif "ready" in message:
                return message["ready"]
            elif "error" in message:
                raise error_from_info(ErrorInfo(**message["error"]))
    raise RuntimeStateError(
        f"the runtime's process ended while it started (status {process.wait()})",
        hint=f"Its log: {_failed_log()}. Run `herasys doctor`.",
    )


def plain_config(config: Config) -> dict[str, Any]:
    """The configuration as JSON data with its secrets, for a process of our own."""
    plain = config.model_dump(mode="json")
    if config.database.dsn is not None:
        plain["database"]["dsn"] = config.database.dsn.get_secret_value()
    return plain


def _end(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            _kill_tree(process.pid)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _kill_tree(pid: int) -> None:
    """The last resort: end a process and everything it started."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for child in [*root.children(recursive=True), root]:
            with contextlib.suppress(psutil.Error):
                child.kill()


def up(config: Config, *, on_progress: Progress = lambda _: None) -> dict[str, Any]:
    """Start the background runtime. Errors: `RuntimeStateError` when one is up."""
    state = places.read_state()
    if state is not None:
        raise RuntimeStateError(
            f"a runtime is already up (process {state['pid']})",
            hint="Use it, or `herasys down` first.",
        )
    daemon = spawn(config, private=False, progress=on_progress)
    daemon.detach()
    return daemon.state


def down(*, on_progress: Progress = lambda _: None) -> bool:
    """Stop the background runtime and wait until it is gone; False when none was up."""
    pid, started = _background_process()
    if pid is None:
        return False
    on_progress(f"stopping the runtime (process {pid})")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _STOP_PATIENCE_S
    while places.is_process(pid, started) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if places.is_process(pid, started):
        on_progress("it does not end by itself; killing it")
        _kill_tree(pid)
    places.read_state()  # Clears what a killed one left.
    return True


def _background_process() -> tuple[int | None, float]:
    """The daemon that serves, or the one that is still starting and has told no state."""
    state = places.read_state()
    if state is not None:
        return state["pid"], state["started"]
    pid = places.lock_holder()
    if pid is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            return pid, places.process_started(pid)
    return None, 0.0


# --- the daemon's side --------------------------------------------------------------
class _Stop:
    """The wish to end, from a signal, the parent's death or a broken scheduler."""

    def __init__(self, private: bool) -> None:
        self.wished = False
        # Unlike an event's, its operations may be interrupted by a signal whose handler
        # does the same: two signals at once would wait for each other.
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.reason = ""
        self._private = private

    def wish(self, reason: str) -> bool:
        """Wish to end; whether this is the first such wish."""
        first, self.wished = not self.wished, True
        self.reason = self.reason or reason
        self._told.put(None)
        return first

    def wait(self, timeout_s: float) -> bool:
        """Wait for a wish; whether there is one."""
        with contextlib.suppress(queue.Empty):
            self._told.get(timeout=timeout_s)
        return self.wished

    def watch_parent(self) -> None:
        """Standard input ends with the parent; ``detach`` lets a daemon outlive it."""
        for line in sys.stdin:
            if line.strip() == "detach" and not self._private:
                return
        self.reason = self.reason or "the parent process is gone"
        os.kill(os.getpid(), signal.SIGTERM)  # Ends a start-up too, as any signal does.


def _say(**message: Any) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):
        print(json.dumps(message), flush=True)


def main() -> int:
    """Run as a daemon; the order arrives on standard input."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    order = json.loads(sys.stdin.readline())
    stop = _Stop(order["private"])
    _on_end_signals(lambda n, _: stop.wish(signal.Signals(n).name))
    threading.Thread(target=stop.watch_parent, daemon=True).start()
    run_dir = Path(order["run_dir"])
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(places.remove_run_dir, run_dir)
            _serve(Config.model_validate(order["config"]), order, run_dir, stop, stack)
    except HerasysError as e:
        info = e.info()
        _say(error=msgspec.to_builtins(info))
        return 1
    except Exception as e:
        log.exception("the daemon broke")
        error = InternalError(
            f"the runtime's process broke: {type(e).__name__}: {e}",
            hint="This should not have happened. Run `herasys doctor`, and report it with "
            f"the log, {_failed_log()}.",
        )
        _say(error=msgspec.to_builtins(error.info()))
        return 1
    log.info("ended: %s", stop.reason)
    return 0


def _serve(
    config: Config,
    order: dict[str, Any],
    run_dir: Path,
    stop: _Stop,
    stack: contextlib.ExitStack,
) -> None:
    from herasys_rt.runtime.stack import Stack

    if not order["private"]:
        stack.enter_context(_only_daemon())
    runtime = Stack(config, run_dir)
    stack.callback(runtime.stop)
    _abandon_when(stop)
    stack.callback(_finish_undisturbed)
    endpoint = runtime.start(lambda text: _say(progress=text))
    # From here on signals end the wait below instead of the start-up; Ray has put
    # handlers of its own in place meanwhile.
    _on_end_signals(lambda n, _: stop.wish(signal.Signals(n).name))
    if stop.wished:
        return
    state = {
        "pid": os.getpid(),
        "started": places.process_started(os.getpid()),
        "run_dir": str(run_dir),
        "endpoint": base64.b64encode(msgspec.msgpack.encode(endpoint)).decode(),
        "dsn": runtime.dsn,
        "job_address": runtime.job_address,
        "ray_address": runtime.ray_address,
        "token_path": str(run_dir / "ray-token") if runtime.job_address else "",
    }
    if not order["private"]:
        places.write_state(state)
        stack.callback(places.state_file().unlink, missing_ok=True)
    _say(ready=state)
    while not stop.wait(_HEALTH_EVERY_S):
        if not runtime.alive():
            stop.wish("the scheduler is gone")


def _abandon_when(stop: _Stop) -> None:
    """During start-up the first wish to end interrupts whatever is being waited for."""

    def interrupt(number: int, _: Any) -> None:
        if stop.wish(signal.Signals(number).name):
            raise RuntimeStateError(_INTERRUPTED, hint="Start it again.")

    _on_end_signals(interrupt)
    if stop.wished:
        raise RuntimeStateError(_INTERRUPTED, hint="Start it again.")


def _on_end_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handler)


def _finish_undisturbed() -> None:
    """Clearing up has begun: a second signal, whoever handles it now, must not end it."""
    _on_end_signals(signal.SIG_IGN)


@contextlib.contextmanager
def _only_daemon() -> Any:
    """Be the one background daemon of this user, or say who is."""
    try:
        with places.daemon_lock() as lock:
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            os.truncate(sys.stderr.fileno(), 0)  # The log of the runtime before this one.
            yield
    except BlockingIOError:
        raise RuntimeStateError(
            "another `herasys up` is starting or a runtime is already up "
            f"(process {places.lock_holder() or 'unknown'})",
            hint="Wait for it, or `herasys down` first; end that process if neither helps.",
        ) from None


if __name__ == "__main__":
    sys.exit(main())
