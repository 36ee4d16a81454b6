"""Worker processes for user functions: one call at a time each, killed when it must end.

A worker is a fresh interpreter that speaks over a socket pair; it dies with its host.
Messages are a 4-byte length and that many bytes in the canonical codec.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from herasys_rt.engines.python.calls import Call
from herasys_rt.engines.python.threads import Threads
from herasys_rt.errors import ErrorInfo, NodeError
from herasys_rt.graph import codec

HEAD = struct.Struct("!I")
_WORKER = "herasys_rt.engines.python.worker"


class Ask(msgspec.Struct, frozen=True):
    """A call for a worker; ``function`` is empty when the worker has it by ``digest``."""

    name: str
    digest: bytes
    function: bytes
    arguments: dict[str, Any]
    output: str
    most_bytes: int


class Answer(msgspec.Struct, frozen=True):
    """How a call ended: the encoded result, or an error."""

    value: bytes = b""
    error: ErrorInfo | None = None


class WorkerError(NodeError):
    """A call's error, told by the worker that made it."""

    code = "tool_failed"

    def info(self) -> ErrorInfo:
        """As the worker told it."""
        told: ErrorInfo | None = self.fields.get("told")
        return told or super().info()


class Workers:
    """At most ``limit`` worker processes; belongs to one event loop, in whose thread they
    are started (they end when that thread does)."""

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._endings: set[asyncio.Task[int]] = set()

    @asynccontextmanager
    async def lent(self) -> AsyncGenerator[Worker]:
        """A worker for one call; one that is still at it afterwards is killed.

        Errors: `NodeError` (``tool_died``) when none can be started.
        """
        async with self._places:
            worker = await self._free()
            try:
                yield worker
            finally:
                if worker.at_rest:
                    self._idle.append(worker)
                else:
                    self._end(worker)

    async def close(self) -> None:
        """Kill every worker and wait until they are gone."""
        for worker in list(self._all):
            self._end(worker)
        await asyncio.gather(*self._endings, return_exceptions=True)

    async def _free(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.at_rest:
                return worker
            self._end(worker)
        worker = await Worker.start()
        self._all.add(worker)
        try:
            await worker.greeted()
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _end(self, worker: Worker) -> None:
        self._all.discard(worker)
        task = asyncio.get_running_loop().create_task(worker.end())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


class Worker:
    """One worker process and the connection to it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._known: set[bytes] = set()
        self._busy = True

    @classmethod
    async def start(cls) -> Worker:
        """A fresh process; it is ready when it has `greeted`."""
        ours, theirs = socket.socketpair()
        with theirs:
            paths = os.pathsep.join(path for path in sys.path if path)
            process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": paths},
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def at_rest(self) -> bool:
        """Whether it can take a call."""
        return not self._busy and self._process.poll() is None

    async def greeted(self) -> None:
        """Wait until it is ready. Errors: `NodeError` (``tool_died``)."""
        await self._answer("a worker process, while it started,")
        self._busy = False

    async def call(self, call: Call, most_bytes: int) -> Any:
        """The checked result of a call. Errors: `NodeError` as the call's, or
        ``tool_died`` when the process ended under it."""
        self._busy = True
        digest = codec.digest(call.function)
        function = b"" if digest in self._known else call.function
        self._known.add(digest)
        ask = Ask(call.name, digest, function, call.arguments, call.output, most_bytes)
        data = codec.encode(ask)
        with contextlib.suppress(ConnectionError):  # the missing answer tells as much
            self._writer.write(HEAD.pack(len(data)) + data)
            await self._writer.drain()
        answer = await self._answer(f"the process of tool {call.name!r}, in its call,")
        self._busy = False
        if answer.error is not None:
            told = answer.error
            raise WorkerError(told.message, hint=told.hint, code=told.code, told=told)
        return codec.decode(answer.value)

    async def end(self) -> int:
        """Kill it with everything it started; its exit status."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._writer.close()
        return await Threads().run(self._process.wait, "reap")

    async def _answer(self, who: str) -> Answer:
        try:
            (size,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            data = await self._reader.readexactly(size)
        except (EOFError, ConnectionError) as e:
            status = await Threads().run(self._process.wait, "reap")
            raise NodeError(
                f"{who} ended unasked ({_ending(status)})",
                hint="Look for a crash in native code, or too little memory.",
                code="tool_died",
            ) from e
        return _answers.decode(data)


_answers = codec.typed_decoder(Answer)


def _ending(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
