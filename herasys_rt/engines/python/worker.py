"""A worker process of the python engine: ``python -m ... FD`` serves calls until told off.

The main thread calls; another one reads, so that the process ends as soon as its host
does, whatever the call is at.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading

from herasys_rt.engines.python import output
from herasys_rt.engines.python.calls import (
    Call,
    Functions,
    attempt,
    bound,
    error_info,
    failure,
    result_of,
)
from herasys_rt.engines.python.processes import HEAD, Answer, Ask
from herasys_rt.graph import codec
from herasys_rt.graph.types import PortType

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main(fd: int) -> None:
    """Serve calls from the socket ``fd`` until it closes."""
    # The reader below notices a lost host too, unless native code holds the interpreter.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    output.listen()
    connection = socket.socket(fileno=fd)
    asked: queue.SimpleQueue[Ask] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, asked), daemon=True).start()
    functions = Functions()
    bodies: dict[bytes, bytes] = {}
    _send(connection, Answer())
    while True:
        ask = asked.get()
        if ask.function:
            bodies[ask.digest] = ask.function
        call = Call(ask.name, bodies[ask.digest], ask.arguments, PortType(ask.output))
        _send(connection, _answered(call, functions, ask.most_bytes))


def _send(connection: socket.socket, answer: Answer) -> None:
    data = codec.encode(answer)
    connection.sendall(HEAD.pack(len(data)) + data)


def _answered(call: Call, functions: Functions, most_bytes: int) -> Answer:
    try:
        with output.spoken_by(call.name):
            return Answer(value=codec.encode(_called(call, functions, most_bytes)))
    except Exception as e:
        return Answer(error=error_info(e))


def _called(call: Call, functions: Functions, most_bytes: int) -> object:
    loaded = functions.load(call)
    if not loaded.asynchronous:
        return attempt(call, functions, most_bytes)
    positional, named = bound(loaded, call)

    async def run() -> object:
        return await loaded.function(*positional, **named)

    try:
        value = asyncio.run(run())
    except BaseException as e:
        raise failure(call.name, e) from e
    return result_of(value, loaded, call, most_bytes)


def _read(connection: socket.socket, asked: queue.SimpleQueue[Ask]) -> None:
    decoder = codec.typed_decoder(Ask)
    while True:
        head = _exactly(connection, HEAD.size)
        asked.put(decoder.decode(_exactly(connection, HEAD.unpack(head)[0])))


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes; ends the process when the host is gone."""
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(min(size - len(data), 1 << 20))
        except OSError:
            part = b""
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
